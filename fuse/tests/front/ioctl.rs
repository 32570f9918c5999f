//! The ioctl ABI from Rust, C and Python: the same numbers.

use crate::fixture::{Fixture, run};
use copperfs_fuse::Ino;
use copperfs_fuse::ioctl;
use copperfs_fuse::ioctl::client::{self, ClientError};
use std::path::Path;
use std::process::Command;

fn source(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The output of a client, without the counters that each client changes.
fn comparable(lines: &str) -> Vec<String> {
    let lines = lines
        .lines()
        .filter(|line| !line.starts_with("fuse.software.requests.ioctl"))
        .filter(|line| !line.starts_with("fuse.software.messages"))
        // A latency is counted after the answer is sent.
        .filter(|line| !line.starts_with("fuse.software.latency_seconds"));
    lines.map(str::to_owned).collect()
}

fn rust(mountpoint: &Path) -> String {
    client::node_stats(mountpoint).unwrap()
}

#[test]
fn rust_c_and_python_read_the_same() {
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "f", "content");
        memory.directory(Ino::ROOT, "d");
    });
    std::fs::read(fixture.path("f")).unwrap();
    let build = crate::cleanup::directory();
    let program = build.path().join("stats");
    let compiled = run(Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"])
        .arg(&program)
        .arg("-I")
        .arg(source("include"))
        .arg(source("examples/stats.c")));
    let error = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{error}");
    // The first call reads the root's attributes. After it only the ioctl counter changes.
    rust(fixture.root());
    for place in [fixture.root().to_owned(), fixture.path("d")] {
        rust(&place);
        let rust = comparable(&rust(&place));
        assert!(rust.contains(&"coalesced 4711".to_owned()), "{rust:?}");
        assert!(
            rust.contains(&"fuse.software.requests.read 1".to_owned()),
            "{rust:?}"
        );
        assert!(rust.contains(&"node memory".to_owned()), "{rust:?}");
        let c = run(Command::new(&program).arg(&place));
        let error = String::from_utf8_lossy(&c.stderr);
        assert_eq!(
            comparable(&String::from_utf8_lossy(&c.stdout)),
            rust,
            "{error}"
        );
        let python = run(Command::new("python3")
            .arg(source("examples/stats.py"))
            .arg(&place));
        let error = String::from_utf8_lossy(&python.stderr);
        let said = comparable(&String::from_utf8_lossy(&python.stdout));
        assert_eq!(said, rust, "{error}");
    }
}

#[test]
fn clear_cluster_stats_and_sockets() {
    let fixture = Fixture::new(|memory| {
        memory.directory(Ino::ROOT, "d");
    });
    assert_eq!(client::cluster_stats(fixture.root()).unwrap(), "nodes 2\n");
    let sockets = client::sockets(&fixture.path("d")).unwrap();
    assert_eq!(sockets.owner, Path::new("/run/copperfs/control.sock"));
    assert_eq!(sockets.users, "copperfs-17");
    assert!(client::clear(fixture.root(), b"", false).unwrap());
    assert!(!client::clear(fixture.root(), b"/lus/x/", true).unwrap());
    let expected = [("".into(), false), ("lus/x".into(), true)];
    assert_eq!(fixture.memory.state().cleared, expected);
}

#[test]
fn other_filesystems_and_unknown_commands_are_refused() {
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "f", "content");
    });
    let error = client::node_stats(Path::new("/")).unwrap_err();
    assert!(matches!(error, ClientError::NotCopperfs { .. }), "{error}");
    let error = client::node_stats(&fixture.path("none")).unwrap_err();
    assert!(matches!(error, ClientError::Open { .. }), "{error}");
    // Unknown commands on a copperfs mount.
    let said = crate::fixture::python(
        fixture.root(),
        &format!(
            "import fcntl, errno\n\
             f = open('f')\n\
             for command, size in (({}, 10), (0x5401, 100), ({}, {})):\n\
             \x20   try: fcntl.ioctl(f, command, bytearray(size)); print('ok')\n\
             \x20   except OSError as e: print(errno.errorcode[e.errno])\n",
            rustix::ioctl::opcode::read::<[u8; 10]>(ioctl::GROUP, 1),
            ioctl::CLEAR,
            ioctl::CLEAR_BYTES,
        ),
    );
    assert_eq!(said, "ENOTTY\nENOTTY\nEINVAL\n");
}
