//! Manifests of datasets: made by `copperfs dataset manifest`, read by numpy as `docs/manifest-format.md` shows.

use crate::object_store::{Server, rclone};
use crate::skip;
use crate::support::command::{as_user, has_python_module};
use crate::support::fixture::noise;
use crate::support::{Background, Scratch, check, copperfs, eventually, is_root, python, run};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const MIB: usize = 1 << 20;

/// The command that makes the manifest `file` of `place`.
fn manifest(place: &Path, file: &Path, flags: &[&str]) -> Command {
    let mut make = copperfs(["dataset", "manifest", "--json", "-o"]);
    make.arg(file).arg(place).args(flags);
    make
}

fn made(command: &mut Command) -> Value {
    serde_json::from_str(&check(command)).unwrap()
}

/// A Python with numpy.
fn numpy() -> Option<Command> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/python3");
    match own.is_file() {
        true => Some(Command::new(own)),
        false => has_python_module("numpy").then(python),
    }
}

/// The manifest `file` as the numpy code of the specification reads it.
fn read_back(mut numpy: Command, file: &Path) -> Value {
    let document = include_str!("../../docs/manifest-format.md");
    let (_, code) = document.split_once("```python\n").unwrap();
    let (code, _) = code.split_once("```").unwrap();
    let code = code.replace("\"imagenet.manifest\"", "sys.argv[1]");
    let script = format!(
        "import sys, json\n{code}
ends = [0, *path_ends.tolist()]
names = [bytes(paths[a:b]).decode() for a, b in zip(ends, ends[1:])]
entries = zip(files.tolist(), offsets.tolist(), lengths.tolist(), hashes)
print(json.dumps({{
    'entries': [[names[f], o, l, bytes(h).hex()] for f, o, l, h in entries],
    'sizes': dict(zip(names, sizes.tolist())), 'long': long.tolist(), 'parts_at': parts_at.tolist(),
    'parts': [bytes(p).hex() for p in parts], 'total': int(total), 'size': int(size),
    'identity': bytes(head[6:10].tobytes()).hex(), 'versions': len({{bytes(v) for v in versions}}),
}}))"
    );
    serde_json::from_str(&check(numpy.args(["-c", &script]).arg(file))).unwrap()
}

fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// What numpy should read of entries `(path, offset, length)` of the tree at `root`.
fn expected(root: &Path, entries: &[(&str, usize, usize)]) -> Value {
    let mut identity = blake3::Hasher::new();
    let (mut rows, mut long, mut parts_at, mut parts) = (vec![], vec![], vec![], vec![]);
    let mut sizes = serde_json::Map::new();
    for (number, (path, offset, length)) in entries.iter().enumerate() {
        let whole = fs::read(root.join(path)).unwrap();
        let bytes = &whole[*offset..offset + length];
        rows.push(json!([path, offset, length, hash(bytes)]));
        identity.update(blake3::hash(bytes).as_bytes());
        identity.update(&(*length as u64).to_le_bytes());
        sizes.insert((*path).to_owned(), whole.len().into());
        if *length > 4 * MIB {
            long.push(number);
            parts_at.push(parts.len());
            parts.extend(bytes.chunks(4 * MIB).map(hash));
        }
    }
    let total: usize = entries.iter().map(|(_, _, length)| length).sum();
    json!({
        "entries": rows, "versions": sizes.len(), "sizes": sizes, "long": long, "parts_at": parts_at,
        "parts": parts, "total": total, "identity": identity.finalize().to_hex().as_str(),
    })
}

/// A dataset of small files and a long one, with its entries by path.
fn plant(root: &Path) -> Vec<(&'static str, usize, usize)> {
    let files = [
        ("a/1", 20_000),
        ("a/2", 300),
        ("b.bin", 9 * MIB + 1),
        ("c/empty", 0),
        ("c/mid", 2 * MIB),
    ];
    for (number, (path, size)) in (0..).zip(files) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, noise(number, size)).unwrap();
    }
    files.map(|(path, size)| (path, 0, size)).to_vec()
}

#[test]
fn numpy_maps_what_was_written() {
    if numpy().is_none() {
        skip!("no Python with numpy");
    }
    let (set, out) = (Scratch::new(), Scratch::new());
    let by_path = plant(set.path());
    let file = out.path().join("m");
    let compare = |told: &Value, entries: &[(&str, usize, usize)]| {
        let mut found = read_back(numpy().unwrap(), &file);
        let wanted = expected(set.path(), entries);
        assert_eq!(found["size"].take(), fs::metadata(&file).unwrap().len());
        found.as_object_mut().unwrap().remove("size");
        assert_eq!(found, wanted);
        assert_eq!(told["identity"], wanted["identity"]);
        assert_eq!(told["entries"], entries.len());
    };
    let told = made(&mut manifest(set.path(), &file, &[]));
    compare(&told, &by_path);
    assert_eq!(told["read_bytes"], told["bytes"], "each byte is read once");

    let reversed: Vec<_> = by_path.iter().rev().copied().collect();
    let order: String = reversed
        .iter()
        .map(|(path, ..)| format!("{path}\n"))
        .collect();
    let order = out.file("order", order);
    let told = made(manifest(set.path(), &file, &["--order"]).arg(&order));
    compare(&told, &reversed);

    let samples = [
        ("b.bin", 5 * MIB, 100),
        ("a/1", 10, 20),
        ("b.bin", 0, 5 * MIB),
    ];
    let line =
        |(path, offset, length): &(&str, usize, usize)| format!("{path}\t{offset}\t{length}\n");
    let entries = out.file("entries", samples.iter().map(line).collect::<String>());
    let told = made(manifest(set.path(), &file, &["--entries"]).arg(&entries));
    compare(&told, &samples);
}

/// The same content in a bucket has the same identity; only versions differ.
#[test]
fn a_bucket_has_the_identity_of_its_copy() {
    let Some(program) = rclone() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    let server = Server::start(program);
    let set = server.bucket().join("set");
    plant(&set);
    let out = Scratch::new();
    let (copy, file) = (
        made(&mut manifest(&set, &out.path().join("copy"), &[])),
        out.path().join("m"),
    );
    let uri = Path::new("s3://bucket/set");
    let bucket = made(server.let_in(&mut manifest(uri, &file, &[])));
    for key in ["identity", "entries", "files", "bytes", "read_bytes"] {
        assert_eq!(bucket[key], copy[key], "{key}");
    }
    // An index with hashes has those of the parts of long files, too.
    let index = out.path().join("index");
    let mut make = copperfs(["index", "build", "s3://bucket/set", "--hash", "-o"]);
    check(server.let_in(make.arg(&index)));
    let indexed = made(server.let_in(manifest(uri, &file, &["--index"]).arg(&index)));
    assert_eq!(indexed["identity"], copy["identity"]);
    assert_eq!(indexed["read_bytes"], 0);
}

/// Whether it is interrupted by its user or killed.
#[test]
fn a_manifest_that_is_ended_goes_on() {
    let (set, out) = (Scratch::new(), Scratch::new());
    for number in 0..400 {
        set.file(&format!("d{}/f{number}", number % 7), noise(number, MIB));
    }
    let (whole, file) = (out.path().join("whole"), out.path().join("m"));
    let expected = made(&mut manifest(set.path(), &whole, &[]));
    let partial = PathBuf::from(format!("{}.partial", file.display()));
    let records = || fs::metadata(&partial).map_or(0, |meta| meta.len());
    for (signal, status) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        let before = records();
        let mut make = manifest(set.path(), &file, &["--concurrency", "1"]);
        let mut child = Background::spawn(make.stdout(Stdio::null()));
        eventually(Duration::from_secs(20), "it has begun", || {
            records() > before + 2000
        });
        child.signal(signal);
        let ended = child.exit_within(Duration::from_secs(10)).unwrap();
        assert_eq!(ended.code(), status);
        assert!(!file.exists() && partial.exists(), "it was ended too late");
    }
    let resumed = made(&mut manifest(set.path(), &file, &[]));
    assert_eq!(resumed["identity"], expected["identity"]);
    let read = resumed["read_bytes"].as_u64().unwrap();
    assert!(
        read < 400 << 20,
        "{read} bytes are read, and some hashes were kept"
    );
    assert!(!partial.exists());
}

#[test]
fn an_unreadable_file_is_named() {
    if !is_root() {
        skip!("needs root");
    }
    let (set, out) = (Scratch::new(), Scratch::new());
    plant(set.path());
    check(Command::new("chmod").arg("600").arg(set.path().join("a/2")));
    check(Command::new("chmod").arg("777").arg(out.path()));
    let mut make = as_user(65534, 65534, env!("CARGO_BIN_EXE_copperfs"));
    make.args(["dataset", "manifest", "-o"]);
    let refused = run(make.arg(out.path().join("m")).arg(set.path()));
    let said = refused.refused();
    assert!(
        said.contains("/a/2 cannot be read") && said.contains("ermission denied"),
        "{said}"
    );
    assert!(said.contains("make the files readable"), "{said}");
}
