//! Batches of files for clients that share memory: bytes, rights, jobs, and daemons that die.

use crate::skip;
use crate::support::command::{Background, as_user, has_program, run};
use crate::support::datasets::{Nodes, SOON, datasets};
use crate::support::fixture::{NOBODY, files_with_rights};
use crate::support::takeover::Followed;
use crate::support::{Mount, Scratch, eventually, is_root};
use copperfs_fuse::ioctl::client;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

/// Debian's own, which every user may run.
const PYTHON: &str = "/usr/bin/python3";
/// Asks for files as docs/client.md says.
const CLIENT: &str = include_str!("../fixtures/batch_client.py");
/// What the client prints for a file that it gets.
const GIVEN: &str = "0";
const DENIED: &str = "13";

fn python() -> Command {
    Command::new(PYTHON)
}

/// Makes `python` the client of the mount at `root`.
fn client_of(mut python: Command, root: &Path, arguments: &[&str]) -> Command {
    let socket = client::sockets(root).unwrap().users;
    python.arg("-c").arg(CLIENT).arg(root).arg(socket);
    python.args(arguments);
    python
}

/// What a client prints: for each file its errno and its hash.
#[track_caller]
fn ask(python: Command, root: &Path, arguments: &[&str]) -> Vec<(String, String)> {
    let said = run(&mut client_of(python, root, arguments)).text();
    let words = |line: &str| {
        let (errno, hash) = line.split_once(' ').unwrap_or((line, ""));
        (errno.to_owned(), hash.to_owned())
    };
    said.lines().map(words).collect()
}

/// The errnos alone.
#[track_caller]
fn errnos(python: Command, root: &Path, arguments: &[&str]) -> Vec<String> {
    let said = ask(python, root, arguments);
    said.into_iter().map(|(errno, _)| errno).collect()
}

/// The hashes of files, as the client computes them.
#[track_caller]
fn hashes_of(root: &Path, paths: &[&str]) -> Vec<String> {
    let script = "import hashlib, sys
for path in sys.argv[1:]: print(hashlib.blake2b(open(path, 'rb').read()).hexdigest())";
    let mut hash = python();
    let paths = paths.iter().map(|path| root.join(path));
    hash.arg("-c").arg(script).args(paths);
    run(&mut hash).text().lines().map(str::to_owned).collect()
}

#[test]
fn a_batch_has_the_bytes_of_the_files() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 100, 10_000), ("large", 1, 9_000_000)]);
    origin.file("other/file", "in no dataset");
    origin.file("other/empty", "");
    symlink("file", origin.path().join("other/link")).unwrap();
    symlink("other", origin.path().join("directory-link")).unwrap();
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--origin-readers", "homes"]);
    nodes.add("large", &["--origin-readers", "homes"]);
    let root = nodes.path(1, "");
    let stats = || nodes.tree.nodes[1].stats();
    let before = stats();
    let names: Vec<String> = (0..100).map(|n| format!("set/d0/f{n}")).collect();
    let mut paths: Vec<&str> = names.iter().map(String::as_str).collect();
    paths.extend(["large/d0/f0", "other/file", "other/empty"]);
    let due = hashes_of(origin.path(), &paths);
    for _ in 0..2 {
        let said = ask(python(), &root, &paths);
        assert_eq!(said.len(), paths.len());
        for (path, ((errno, hash), due)) in paths.iter().zip(said.iter().zip(&due)) {
            assert_eq!((errno.as_str(), hash), (GIVEN, due), "{path}");
        }
    }
    let after = stats();
    let grown = |key: &str| after.get(key) - before.get(key);
    assert_eq!(
        grown("fuse.data.requests.read"),
        0,
        "the mount was not read"
    );
    assert_eq!(grown("batch_reads.files"), 2 * paths.len() as u64);
    assert_eq!(grown("batch_reads.bytes"), 2 * (1_000_000 + 9_000_000 + 13));
    // They are charged as reads by path are.
    eventually(SOON, "the reads are charged", || {
        let job = nodes.job("unattributed");
        job.is_some_and(|job| job["charged_bytes"] == 1_000_000 + 9_000_000)
    });
    // What only the mount can do is left to it.
    let special = [
        "other",
        "other/link",
        "directory-link/file",
        "absent",
        "other/file/x",
    ];
    let left: Vec<i32> = errnos(python(), &root, &special)
        .iter()
        .map(|errno| errno.parse().unwrap())
        .collect();
    assert_eq!(left, [21, 95, 20, 2, 20]);
    assert_eq!(errnos(python(), &root, &["../etc/passwd"]), ["closed"]);
}

#[test]
fn a_batch_grants_no_right_that_the_mount_does_not() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    files_with_rights(&origin);
    let listed = origin.file("listed", "listed");
    fs::set_permissions(&listed, fs::Permissions::from_mode(0o644)).unwrap();
    let mut setfacl = Command::new("setfacl");
    setfacl
        .args(["-m", &format!("u:{NOBODY}:---")])
        .arg(&listed);
    let has_list = has_program("setfacl") && run(&mut setfacl).status.success();
    let mount = Mount::with(origin.path(), &["--allow-other"]);
    let root = &mount.node.point;
    let may = |group: u32, name: &str| {
        let said = errnos(as_user(NOBODY, group, PYTHON), root, &[name]);
        match said.as_slice() {
            [errno] if errno == GIVEN => true,
            [errno] if errno == DENIED => false,
            other => panic!("{name}: {other:?}"),
        }
    };
    for _ in 0..2 {
        for name in ["all", "group", "owner", "search/inside"] {
            assert!(may(NOBODY, name), "{name}");
        }
        for name in ["root_only", "not_the_owner", "closed/inside"] {
            assert!(!may(NOBODY, name), "{name}");
        }
        assert!(!may(0, "not_the_owner"));
        assert!(!has_list || !may(NOBODY, "listed"));
    }
    // The root of another filesystem, and a directory of this one, prove nothing.
    let inside = mount.path("search");
    for directory in [Path::new("/proc"), &inside] {
        let shown = ["--directory", directory.to_str().unwrap(), "all"];
        assert_eq!(errnos(python(), root, &shown), ["refused"]);
    }
}

#[test]
fn a_mount_of_one_user_serves_no_batch_of_another() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("all", "all");
    let mount = Mount::of(origin.path());
    let root = &mount.node.point;
    assert_eq!(errnos(python(), root, &["all"]), [GIVEN]);
    // It cannot open the mount's root, so it shows another directory.
    let other = as_user(NOBODY, NOBODY, PYTHON);
    assert_eq!(
        errnos(other, root, &["--directory", "/", "all"]),
        ["closed"]
    );
}

/// The client is told by the end of its connection, and the next daemon serves it.
#[test]
fn a_client_outlives_the_daemon() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("all", "all");
    let mut mount = Followed::start(origin.path(), &[]);
    let root = mount.point.clone();
    let root = root.as_path();
    let mut waiting = client_of(python(), root, &["--wait", "all"]);
    let piped = waiting.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut waiting = Background::spawn(piped);
    let mut ready = [0; 6];
    let mut said = waiting.stdout();
    said.read_exact(&mut ready).unwrap();
    mount.kill();
    // A client that had died with the daemon would not take this.
    drop(waiting.stdin().write_all(b"\n"));
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rest.trim(), "closed");
    waiting.exit_within(SOON).unwrap();
    assert_eq!(errnos(python(), root, &["all"]), [GIVEN]);
    mount.end();
}
