//! Datasets with manifests: entries as items, copies as one item, and which entries are resident, as the Python package
//! sees them.

use super::{BYTES, SOON};
use crate::skip;
use crate::support::command::{check, has_python_module, python};
use crate::support::datasets::{Nodes, datasets, epoch};
use crate::support::{Scratch, copperfs, eventually, is_root};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Makes the manifest `NAME.manifest` of the directory `NAME`, of all files or of these `entries`.
pub(super) fn make_manifest(origin: &Scratch, name: &str, entries: Option<&str>) {
    let root = origin.path();
    let mut make = copperfs(["dataset", "manifest", "-o"]);
    make.arg(root.join(format!("{name}.manifest")))
        .arg(root.join(name));
    if let Some(entries) = entries {
        let list = root.join(format!("{name}.entries"));
        fs::write(&list, entries).unwrap();
        make.arg("--entries").arg(list);
    }
    check(&mut make);
}

fn add(nodes: &Nodes, name: &str) {
    add_with(nodes, name, &[]);
}

/// Declares the directory `NAME` with its manifest and these flags.
pub(super) fn add_with(nodes: &Nodes, name: &str, flags: &[&str]) {
    let manifest = format!("/{name}.manifest");
    let own = ["--manifest", &manifest, "--origin-readers", "homes"];
    nodes.add(name, &[&own, flags].concat());
}

/// A Python with numpy that finds the package in `python/`.
pub(super) fn package() -> Option<Command> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = repository.join(".venv/bin/python3");
    let found = match own.is_file() {
        true => Some(Command::new(own)),
        false => has_python_module("numpy").then(python),
    };
    found.map(|mut python| {
        python.env("PYTHONPATH", repository.join("python"));
        python.env("PYTHONDONTWRITEBYTECODE", "1");
        python
    })
}

/// A Python with PyTorch that finds the package in `python/`.
fn torch() -> Option<Torch> {
    // Debian's python3-torch, which scripts/test installs, is of Debian's own Python.
    let candidates = ["/usr/bin/python3", "python3"];
    let mut found = candidates.into_iter().map(Torch);
    found.find(|one| {
        crate::support::run(one.command().args(["-c", "import torch, numpy"]))
            .status
            .success()
    })
}

struct Torch(&'static str);

impl Torch {
    fn command(&self) -> Command {
        let mut python = Command::new(self.0);
        python.env(
            "PYTHONPATH",
            Path::new(env!("CARGO_MANIFEST_DIR")).join("python"),
        );
        python.env("PYTHONDONTWRITEBYTECODE", "1");
        python.env("OMP_NUM_THREADS", "1");
        python
    }
}

/// The entries of `name` that are resident, by the data mount of node `rank`. Waits until that node has the manifest.
fn resident(nodes: &Nodes, rank: usize, name: &str) -> Vec<u64> {
    const SCRIPT: &str = "
import json, sys, warnings
import copperfs
warnings.simplefilter('error')
data = copperfs.connect(sys.argv[1]).dataset(sys.argv[2])
print(json.dumps(data.resident().nonzero()[0].tolist()))";
    let mut said = String::new();
    eventually(SOON, "the node has loaded the manifest", || {
        let mut ask = package().unwrap();
        ask.args(["-c", SCRIPT]).arg(nodes.path(rank, "")).arg(name);
        let finished = crate::support::run(&mut ask);
        said = finished.text();
        finished.status.success()
    });
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// Two datasets have the same bytes in other files. They are read from storage once and kept once, and are resident in
/// both, until the dataset that keeps them is taken back.
#[test]
fn copies_in_two_datasets_are_one_item() {
    if !is_root() {
        skip!("needs root");
    }
    if package().is_none() {
        skip!("needs numpy");
    }
    let origin = datasets(&[("set", 40, BYTES)]);
    for number in 0..10 {
        let from = origin.path().join(format!("set/d0/f{number}"));
        origin.file(&format!("copy/c{number}"), fs::read(from).unwrap());
    }
    for name in ["set", "copy"] {
        make_manifest(&origin, name, None);
    }
    origin.settle();
    let nodes = Nodes::launch(3, origin.path(), &[]);
    add(&nodes, "set");
    add(&nodes, "copy");
    assert_eq!(resident(&nodes, 1, "set"), [0_u64; 0]);
    let before = nodes.total("origin.read_bytes");
    let set = origin.path().join("set");
    epoch(&nodes.path(1, "set"), &set, 1);
    assert_eq!(nodes.total("origin.read_bytes") - before, 400_000);
    eventually(SOON, "all of it is resident", || {
        resident(&nodes, 2, "set").len() == 40
    });
    assert_eq!(resident(&nodes, 0, "copy"), (0..10).collect::<Vec<_>>());
    epoch(&nodes.path(2, "copy"), &origin.path().join("copy"), 2);
    epoch(&nodes.path(0, "set"), &set, 3);
    assert_eq!(nodes.total("origin.read_bytes") - before, 400_000);
    assert_eq!(nodes.cached(), 400_000);
    nodes.ask(&["dataset", "set", "set", "--keep", "none"]);
    // The copies pass to the other dataset, and the rest is evicted.
    eventually(SOON, "the copies are kept", || nodes.cached() == 100_000);
    eventually(SOON, "the copies are resident", || {
        resident(&nodes, 0, "copy").len() == 10
    });
    epoch(&nodes.path(2, "copy"), &origin.path().join("copy"), 4);
    assert_eq!(nodes.total("origin.read_bytes") - before, 400_000);
    epoch(&nodes.path(1, "set"), &set, 5);
    assert_eq!(nodes.total("origin.read_bytes") - before, 700_000);
    assert_eq!(nodes.cached(), 100_000);
}

/// The package reads the entries of a mini-batch in one message to the daemon, and the files of any list of paths. What
/// the daemon does not give comes by its path.
#[test]
fn the_package_reads_many_entries_in_one_message() {
    if !is_root() {
        skip!("needs root");
    }
    if package().is_none() {
        skip!("needs numpy");
    }
    const SCRIPT: &str = "
import os, sys
import copperfs
mount = copperfs.connect(sys.argv[1])
data = mount.dataset('set')
truth = [open(os.path.join(sys.argv[2], data.manifest.path(entry)), 'rb').read() for entry in range(len(data))]
assert data.read_many(range(len(data))) == truth
paths = [data.path(entry) for entry in range(len(data))]
linked = os.path.join(sys.argv[1], 'link')
assert copperfs.read_many([*reversed(paths), linked]) == [*reversed(truth), truth[0]]
print(mount.stats()['batch_reads'])";
    let origin = datasets(&[("set", 40, BYTES)]);
    make_manifest(&origin, "set", None);
    let first = fs::read_dir(origin.path().join("set/d0")).unwrap();
    let first = first.map(|entry| entry.unwrap().file_name()).min().unwrap();
    let target = Path::new("set/d0").join(first);
    std::os::unix::fs::symlink(target, origin.path().join("link")).unwrap();
    origin.settle();
    let nodes = Nodes::launch(2, origin.path(), &[]);
    add(&nodes, "set");
    let mut read = package().unwrap();
    read.args(["-c", SCRIPT]).arg(nodes.path(1, ""));
    check(read.arg(origin.path().join("set")));
    let stats = nodes.tree.nodes[1].stats();
    assert_eq!(stats.get("batch_reads.files"), 80);
    assert_eq!(stats.get("batch_reads.declined"), 1);
    assert_eq!(stats.get("batch_reads.batches"), 2);
    assert_eq!(stats.get("fuse.data.requests.readlink"), 1);
}

/// An epoch of the package's loader for PyTorch, with two stops, each followed by other numbers of ranks and workers:
/// every entry comes exactly once, while chunks are loaded and evicted.
#[test]
fn every_entry_comes_once_through_stops_ranks_and_workers() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(torch) = torch() else {
        skip!("needs PyTorch: apt-get install python3-torch");
    };
    const ENTRIES: u64 = 1600;
    let origin = Scratch::new();
    for number in 0..ENTRIES {
        let bytes = [&number.to_le_bytes()[..], &[7; 500]].concat();
        origin.file(&format!("set/f{number:04}"), bytes);
    }
    make_manifest(&origin, "set", None);
    origin.settle();
    let nodes = Nodes::launch(3, origin.path(), &[]);
    add_with(&nodes, "set", &["--keep", "chunks"]);
    resident(&nodes, 1, "set");
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/system/datasets/exactly_once.py");
    for pieces in [
        ["1x0", "4x2", "1x8"],
        ["4x8", "1x2", "4x0"],
        ["4x2", "4x0", "4x8"],
    ] {
        let results = Scratch::new();
        let mut run = torch.command();
        run.arg(&script).arg(nodes.path(1, "")).arg("set");
        run.arg(results.path().join("rank")).args(pieces);
        // Jobs that are not known read no chunks.
        run.env("COPPERFS_JOB", pieces.join("-"));
        let said = check(&mut run);
        let said: Vec<u64> = said
            .split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect();
        assert_eq!(said[..2], [ENTRIES, 0], "{pieces:?}");
        assert!(said[2] > 2, "{pieces:?}: {} chunks were resident", said[2]);
    }
}

/// A job reads entries from storage with its own credentials and gives them to the cache: they are charged to it, and
/// apart from what storage gives the daemons.
#[test]
fn what_a_job_fetches_itself_is_charged_to_it() {
    if !is_root() {
        skip!("needs root");
    }
    if package().is_none() {
        skip!("needs numpy");
    }
    const SCRIPT: &str = "
import sys
import copperfs
data = copperfs.connect(sys.argv[1]).dataset('set')
def fetch(path, offset, length):
    with open(f'{sys.argv[2]}/{path}', 'rb') as file:
        file.seek(offset)
        return file.read(length)
print(sum(len(one) for batch in copperfs.batches(data, 4, bytes, fetch=fetch, fill=0) for one in batch))";
    let origin = datasets(&[("set", 40, BYTES)]);
    make_manifest(&origin, "set", None);
    origin.settle();
    let nodes = Nodes::launch(3, origin.path(), &[]);
    add(&nodes, "set");
    assert_eq!(resident(&nodes, 1, "set"), [0_u64; 0]);
    let before = nodes.total("origin.read_bytes");
    let mut job = package().unwrap();
    job.args(["-c", SCRIPT]).arg(nodes.path(1, ""));
    job.arg(origin.path().join("set"));
    job.env("COPPERFS_JOB", "own");
    assert_eq!(check(&mut job).trim_end(), "400000");
    // The daemons have read nothing, and hold what the job gave them.
    assert_eq!(nodes.total("origin.read_bytes"), before);
    eventually(SOON, "the items are kept", || nodes.cached() == 400_000);
    eventually(SOON, "the bytes are charged", || {
        let shown = nodes.json(&["job", "list"]);
        let mut jobs = shown["jobs"].as_array().unwrap().iter();
        jobs.any(|job| job["id"] == "run:own" && job["own_bytes"] == 400_000)
    });
    epoch(&nodes.path(2, "set"), &origin.path().join("set"), 1);
    assert_eq!(nodes.total("origin.read_bytes"), before);
}

/// Samples in a shard are items of their own. The shard reads right at any offset, its gaps included.
#[test]
fn samples_in_a_shard_are_items() {
    if !is_root() {
        skip!("needs root");
    }
    if package().is_none() {
        skip!("needs numpy");
    }
    let origin = datasets(&[("shards", 2, 6_000_000)]);
    let sample = |shard: u64, at: u64| format!("d0/f{shard}\t{at}\t29488\n");
    let samples = (0..2).flat_map(|shard| (0..150).map(move |at| sample(shard, 512 + at * 30_000)));
    let samples: String = samples.collect();
    // One that has two parts.
    let entries = samples + "d0/f1\t4600000\t1400000\n";
    make_manifest(&origin, "shards", Some(&entries));
    origin.settle();
    let nodes = Nodes::launch(2, origin.path(), &[]);
    add(&nodes, "shards");
    let bytes = 300 * 29_488 + 1_400_000;
    let shown = nodes.dataset("shards");
    assert_eq!(
        (&shown["items"], &shown["size"]),
        (&301.into(), &bytes.into())
    );
    assert_eq!(resident(&nodes, 0, "shards"), [0_u64; 0]);
    for rank in [1, 0] {
        epoch(
            &nodes.path(rank, "shards"),
            &origin.path().join("shards"),
            6,
        );
    }
    eventually(SOON, "all samples are resident", || {
        resident(&nodes, 1, "shards").len() == 301
    });
    assert_eq!(nodes.cached(), bytes);
}

/// A manifest of other files, one that is cut short, and one that is older than a file are reported with a reason.
#[test]
fn a_manifest_that_does_not_fit_is_trouble() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("good", 5, BYTES), ("late", 5, BYTES), ("torn", 5, BYTES)]);
    for name in ["good", "late", "torn"] {
        make_manifest(&origin, name, None);
    }
    let at = |name: &str| origin.path().join(name);
    fs::copy(at("good.manifest"), at("other.manifest")).unwrap();
    fs::create_dir(at("other")).unwrap();
    origin.file("other/x", vec![b'x'; 10]);
    let torn = fs::read(at("torn.manifest")).unwrap();
    fs::write(at("torn.manifest"), &torn[..torn.len() - 1]).unwrap();
    origin.file("late/d0/f0", vec![b'n'; 777]);
    origin.settle();
    let nodes = Nodes::launch(2, origin.path(), &[]);
    for (name, hint) in [
        (
            "other",
            "which is not there: is it the manifest of another dataset?",
        ),
        ("torn", "a copy that was cut off?"),
        ("late", "has changed since the manifest was made"),
    ] {
        let manifest = format!("/{name}.manifest");
        let path = format!("/{name}");
        nodes.ask(&["dataset", "add", name, &path, "--manifest", &manifest]);
        let mut trouble = Value::Null;
        eventually(SOON, format!("{name} is in trouble"), || {
            trouble = nodes.dataset(name)["trouble"].clone();
            trouble.is_string()
        });
        assert!(
            trouble.as_str().unwrap().contains(hint),
            "{name}: {trouble}"
        );
        // Its files are read all the same.
        epoch(&nodes.path(1, name), &at(name), 1);
    }
    let chunks = [
        "dataset",
        "add",
        "c",
        "/other",
        "--keep",
        "chunks",
        "--replace",
    ];
    let chunks = nodes.try_ask(&chunks);
    assert!(chunks.stderr.contains("overlaps"), "{chunks:?}");
    nodes.ask(&["dataset", "rm", "other"]);
    let chunks = nodes.try_ask(&["dataset", "add", "c", "/other", "--keep", "chunks"]);
    let hint = "they consist of the entries of a manifest, and it has none";
    assert!(chunks.stderr.contains(hint), "{chunks:?}");
}

/// Processes that know a hash have the item while it is resident, and give items to the cache; of a private dataset they
/// have nothing.
#[test]
fn the_hash_is_the_capability() {
    const SCRIPT: &str = "
import json, sys, time, warnings
import copperfs
from copperfs.dataset import KEPT, OTHER_BYTES, REFUSED
warnings.simplefilter('error')
mount, other = copperfs.connect(sys.argv[1]), copperfs.connect(sys.argv[2])
known, private = mount.dataset('set'), mount.dataset('own')
stranger = other.dataset('set')
hashes = [bytes(row) for row in known.manifest.hashes[:8]]
secret = [bytes(row) for row in private.manifest.hashes[:2]]

def settle():
    time.sleep(0.3)

assert stranger.get(hashes) == [None] * 8
assert not stranger.lookup(hashes).any()
bytes_of = [known.read(entry) for entry in range(8)]
assert [private.read(entry) for entry in range(2)]
settle()
assert stranger.get(hashes[:4]) == bytes_of[:4]
assert stranger.lookup(hashes + secret).tolist() == [True] * 8 + [False] * 2
assert stranger.get(secret + [bytes(32)]) == [None] * 3

# An item that its reader has fetched with its own rights.
new = int(sys.argv[3])
digest = bytes(known.manifest.hashes[new])
data = open(sys.argv[4], 'rb').read()
assert stranger.get([digest]) == [None]
assert stranger.insert({digest: data[:-1] + b'x'}) == [OTHER_BYTES]
assert stranger.insert({bytes(32): data}) == [OTHER_BYTES]
assert stranger.insert({secret[0]: private.read(0)}) == [REFUSED]
assert stranger.insert({digest: data}) == [KEPT]
assert known.get([digest]) == [data]
print('ok')";
    if !is_root() {
        skip!("needs root");
    }
    if package().is_none() {
        skip!("needs numpy");
    }
    let origin = datasets(&[("set", 20, BYTES), ("own", 5, BYTES)]);
    for name in ["set", "own"] {
        make_manifest(&origin, name, None);
    }
    origin.settle();
    let nodes = Nodes::launch(3, origin.path(), &[]);
    add(&nodes, "set");
    add_with(&nodes, "own", &["--private"]);
    for (rank, name) in [(0, "set"), (1, "set"), (1, "own"), (2, "set")] {
        assert_eq!(resident(&nodes, rank, name), [0_u64; 0]);
    }
    let before = nodes.total("origin.read_bytes");
    let mut ask = package().unwrap();
    ask.args(["-c", SCRIPT])
        .arg(nodes.path(1, ""))
        .arg(nodes.path(2, ""));
    ask.arg("12").arg(origin.path().join("set/d0/f2"));
    assert_eq!(check(&mut ask).trim(), "ok");
    // What was read by path, and nothing for a hash.
    assert_eq!(nodes.total("origin.read_bytes") - before, 10 * BYTES as u64);
}
