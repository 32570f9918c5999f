//! Datasets that are kept in chunks, and jobs that read them with the Python package.

use super::entries::{add_with, make_manifest, package};
use super::{BYTES, FILES, SIZE, SOON};
use crate::skip;
use crate::support::command::Background;
use crate::support::datasets::{Nodes, datasets};
use crate::support::{Scratch, eventually, is_root};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

/// The numbers of the resident chunks.
fn resident(nodes: &Nodes) -> Vec<u64> {
    let shown = nodes.dataset("set");
    let chunks = shown["chunks"].as_array().unwrap().iter();
    chunks.map(|one| one["chunk"].as_u64().unwrap()).collect()
}

/// Three nodes and a dataset that is kept in chunks.
fn chunked(evict_after: &str) -> (Nodes, Scratch) {
    let origin = datasets(&[("set", FILES, BYTES)]);
    make_manifest(&origin, "set", None);
    origin.settle();
    let nodes = Nodes::launch(3, origin.path(), &[]);
    let flags = ["--keep", "chunks", "--evict-after", evict_after];
    add_with(&nodes, "set", &flags);
    (nodes, origin)
}

/// Starts a job on node `rank` that runs `script`. The script's arguments are the data mount and the dataset's name.
fn job(nodes: &Nodes, rank: usize, name: &str, script: &str) -> Background {
    let mut job = package().unwrap();
    job.args(["-c", script])
        .arg(nodes.path(rank, ""))
        .arg("set");
    job.env("COPPERFS_JOB", name).stdout(Stdio::piped());
    Background::spawn(&mut job)
}

/// Two epochs of small mini-batches, at 50 entries a second: a chunk lasts about as long as a decision takes. All files differ, so entries are told by their bytes.
const TRAIN: &str = "
import hashlib, sys, time
import copperfs
data = copperfs.connect(sys.argv[1]).dataset(sys.argv[2])
for epoch in range(2):
    sums = []
    for batch in copperfs.batches(data, 4, lambda entry: hashlib.sha256(entry).digest(), fill=2):
        sums += batch
        time.sleep(0.08)
    print(len(sums), len(set(sums)), flush=True)
";

/// A job that runs [`TRAIN`] on each of three nodes.
fn three_jobs(nodes: &Nodes) -> Vec<Background> {
    let one = |rank| job(nodes, rank, &format!("j{rank}"), TRAIN);
    (0..3).map(one).collect()
}

/// Waits until a job that runs [`TRAIN`] has ended.
fn has_read_each_entry_once(job: &mut Background) {
    let lines = BufReader::new(job.stdout()).lines();
    let lines: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(lines, ["400 400", "400 400"], "each entry once an epoch");
}

/// Jobs that substitute share two chunks: storage gives each entry about once an epoch, whichever job asks.
#[test]
fn jobs_share_two_chunks() {
    if !is_root() {
        skip!("needs root");
    }
    if package().is_none() {
        skip!("needs numpy");
    }
    let (nodes, _origin) = chunked("20s");
    assert_eq!(resident(&nodes), [0_u64; 0], "no job reads it");
    let before = nodes.total("origin.read_bytes");
    let mut jobs = three_jobs(&nodes);
    let mut seen = std::collections::BTreeSet::new();
    let mut have_ended = || {
        let now = resident(&nodes);
        assert!(now.len() <= 2, "{now:?}");
        // Of each node, because two nodes may follow different decisions for a moment.
        for rank in nodes.living() {
            let held = nodes.held(rank);
            assert!(held.bytes <= held.share, "{held:?}");
        }
        seen.extend(now);
        let mut jobs = jobs.iter_mut();
        jobs.all(|job| job.exit_within(Duration::ZERO).is_some())
    };
    eventually(
        Duration::from_secs(120),
        "the jobs have ended",
        &mut have_ended,
    );
    assert_eq!(seen, (0..10).collect(), "each chunk has been resident");
    eventually(SOON, "two chunks are kept at most", || {
        nodes.cached() <= SIZE / 10 * 2
    });
    jobs.iter_mut().for_each(has_read_each_entry_once);
    // Six epochs; without chunks storage would give each of them almost all. A busy machine may delay a decision,
    // so that jobs go on with misses.
    let read = nodes.total("origin.read_bytes") - before;
    println!("{read} bytes of storage for {} in epochs", 6 * SIZE);
    assert!((SIZE..5 * SIZE).contains(&read), "{read} bytes of storage");
    let shown = nodes.json(&["job", "list"]);
    let jobs = shown["jobs"].as_array().unwrap();
    let regular = jobs
        .iter()
        .all(|job| job["id"] == "unattributed" || job["irregular"] == Value::Bool(false));
    assert!(
        regular,
        "entries that are fetched ahead are no deviation: {shown}"
    );
}

/// Under the policy `benefit`, a dataset of the rule `auto` gets two chunks when jobs read it that can use them, and
/// loses them with these jobs.
#[test]
fn the_policy_chooses_chunks_for_jobs_that_can_use_them() {
    if !is_root() {
        skip!("needs root");
    }
    if package().is_none() {
        skip!("needs numpy");
    }
    let origin = datasets(&[("set", FILES, BYTES)]);
    make_manifest(&origin, "set", None);
    origin.settle();
    // As much as ten of the jobs read.
    let flags = ["--policy", "benefit", "--remote-io", "10MB/s"];
    let nodes = Nodes::launch(3, origin.path(), &flags);
    // Two chunks fit, and the whole does not.
    let budget = format!("{}B", SIZE / 4);
    add_with(&nodes, "set", &["--keep", "auto", "--budget", &budget]);
    let chunks = || nodes.dataset("set")["chunks"].is_array();
    assert!(!chunks(), "no job reads it");
    let mut jobs = three_jobs(&nodes);
    eventually(SOON, "two chunks are kept", || {
        let running = jobs
            .iter_mut()
            .all(|job| job.exit_within(Duration::ZERO).is_none());
        assert!(running, "the jobs have ended");
        chunks()
    });
    jobs.iter_mut().for_each(has_read_each_entry_once);
    eventually(SOON, "no chunk is kept", || !chunks());
}

/// Refers to chunk 0, says so, and waits for its end.
const HOLD: &str = "
import sys, time
import copperfs
data = copperfs.connect(sys.argv[1]).dataset(sys.argv[2])
while not any(chunk.number == 0 for chunk in data.join().resident):
    time.sleep(0.05)
assert data.ref(0)
print('refers', flush=True)
time.sleep(600)
";

/// Reads all of chunks 0 and 1, and exhausts them.
const EXHAUST: &str = "
import sys, time
import copperfs
data = copperfs.connect(sys.argv[1]).dataset(sys.argv[2])
for number in (0, 1):
    while not any(chunk.number == number for chunk in data.join().resident):
        time.sleep(0.05)
    assert data.ref(number)
    for entry in data.chunks().layout.chunk(number).tolist():
        data.read(entry)
    data.unref(number, exhausted=True)
print('exhausted', flush=True)
time.sleep(600)
";

fn line(job: &mut Background) -> String {
    let mut line = String::new();
    BufReader::new(job.stdout()).read_line(&mut line).unwrap();
    line
}

/// The other jobs wait for a job that reads a chunk, but not for one that has died.
#[test]
fn a_killed_job_gives_its_chunks_back() {
    if !is_root() {
        skip!("needs root");
    }
    if package().is_none() {
        skip!("needs numpy");
    }
    let (nodes, _origin) = chunked("1h");
    let mut slow = job(&nodes, 1, "slow", HOLD);
    assert_eq!(line(&mut slow), "refers\n");
    let mut fast = job(&nodes, 2, "fast", EXHAUST);
    assert_eq!(line(&mut fast), "exhausted\n");
    let shown = |what| {
        let mut shown = Vec::new();
        eventually(SOON, what, || {
            let chunks = nodes.dataset("set")["chunks"].clone();
            let chunks = chunks.as_array().unwrap().iter();
            shown = chunks
                .map(|one| (one["chunk"].clone(), one["state"].clone()))
                .collect();
            shown.iter().any(|(_, state)| *state == "marked")
        });
        shown
    };
    let marked = shown("the older chunk is marked");
    assert_eq!(marked[0], (0.into(), "marked".into()));
    // A daemon that has looked at its jobs again still knows that one refers to it.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(resident(&nodes), [0, 1]);
    slow.signal(Signal::KILL);
    drop(slow);
    // The job that is left has exhausted both.
    eventually(SOON, "the next chunks have come in", || {
        resident(&nodes) == [2, 3]
    });
}
