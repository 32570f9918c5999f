//! Counters and clearing as other languages reach them: by ioctl, on nothing but the mount.

use crate::skip;
use crate::support::command::has_program;
use crate::support::{Mount, Scratch, Stats, Tree, check, copperfs, is_root, python};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Every key that the documentation promises.
const KEYS: &[&str] = &[
    "pid",
    "rank",
    "uptime_seconds",
    "resident_bytes",
    "fuse.software.requests.lookup",
    "fuse.software.requests.getattr",
    "fuse.software.requests.readlink",
    "fuse.software.requests.open",
    "fuse.software.requests.read",
    "fuse.software.requests.readdir",
    "fuse.software.requests.readdirplus",
    "fuse.software.requests.statfs",
    "fuse.software.requests.getxattr",
    "fuse.software.requests.ioctl",
    "cache.data.entries",
    "cache.data.bytes",
    "cache.data.hits",
    "cache.data.misses",
    "cache.data.evictions",
    "cache.attributes.entries",
    "cache.attributes.bytes",
    "cache.attributes.hits",
    "cache.attributes.misses",
    "cache.attributes.evictions",
    "cache.listings.entries",
    "cache.listings.bytes",
    "cache.listings.hits",
    "cache.listings.misses",
    "cache.listings.evictions",
    "coalesced",
    "upstream.requests",
    "upstream.received_bytes",
    "downstream.requests",
    "downstream.sent_bytes",
    "origin.opens",
    "origin.read_bytes",
    "origin.listings",
    "origin.stats",
    "origin.errors",
    "verify.blocks",
    "verify.failures",
];

fn origin() -> Scratch {
    let origin = Scratch::new();
    for number in 0..20 {
        origin.file(&format!("dir/f{number}"), vec![b'x'; 1000 * number]);
    }
    origin.settle();
    origin
}

fn read_all(top: &Path) {
    check(
        Command::new("find")
            .arg(top)
            .args(["-type", "f", "-exec", "cat", "{}", "+"]),
    );
}

#[test]
fn every_documented_key_is_there() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let tree = Tree::launch(3, 1, origin.path(), &[]);
    read_all(&tree.leaf().point);
    let (nodes, total) = tree.leaf().cluster_stats();
    assert_eq!(nodes.len(), 3);
    for (rank, (node, started)) in nodes.iter().zip(&tree.nodes).enumerate() {
        // Fails where one is missing.
        let _values: Vec<u64> = KEYS.iter().map(|key| node.get(key)).collect();
        assert_eq!(node.get("rank"), rank as u64);
        assert_eq!(
            node.get("pid"),
            u64::from(started.pid.as_raw_nonzero().get().cast_unsigned())
        );
        let text = |key: &str| node.0[key].as_str().map(ToOwned::to_owned);
        assert_eq!(text("role").unwrap(), ["root", "inner", "leaf"][rank]);
        assert_eq!(text("node").unwrap(), format!("mnt/{rank}"));
        assert_eq!(node.0["parent"].as_u64(), (rank as u64).checked_sub(1));
        assert!(node.get("resident_bytes") > 1 << 20);
    }
    for key in KEYS
        .iter()
        .filter(|key| key.contains('.') || **key == "coalesced")
    {
        assert!(
            total.get(key) >= nodes.iter().map(|node| node.get(key)).max().unwrap(),
            "{key}"
        );
    }
    for key in [
        "origin.opens",
        "cache.data.bytes",
        "upstream.requests",
        "verify.blocks",
    ] {
        assert_eq!(
            total.get(key),
            nodes.iter().map(|node| node.get(key)).sum::<u64>(),
            "{key}"
        );
    }
    assert_eq!(total.get("origin.opens"), 19, "one of the twenty is empty");
}

/// `key value` lines, as the examples print them.
fn parse(text: &str) -> BTreeMap<String, u64> {
    let pair = |line: &str| {
        let (key, value) = line.split_once(' ')?;
        Some((key.to_owned(), value.parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

/// The output of an example equals that of the command, except for counters that the question itself changes.
#[track_caller]
fn assert_equal(printed: &BTreeMap<String, u64>, stats: &Stats) {
    const MOVES: [&str; 3] = [
        "fuse.software.requests.ioctl",
        "uptime_seconds",
        "resident_bytes",
    ];
    for key in KEYS.iter().filter(|key| !MOVES.contains(key)) {
        let value = printed
            .get(*key)
            .unwrap_or_else(|| panic!("no {key} in {printed:?}"));
        assert_eq!(*value, stats.get(key), "{key}");
    }
}

#[test]
fn the_c_header_and_the_c_example_work() {
    if !is_root() {
        skip!("needs root");
    }
    if !has_program("cc") {
        skip!("there is no C compiler");
    }
    let fuse = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuse");
    let build = Scratch::new();
    let program = build.path().join("stats");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c11", "-o"])
        .arg(&program);
    check(
        cc.arg("-I")
            .arg(fuse.join("include"))
            .arg(fuse.join("examples/stats.c")),
    );
    let origin = origin();
    let mount = Mount::of(origin.path());
    read_all(&mount.node.point);
    let printed = parse(&check(Command::new(&program).arg(&mount.node.point)));
    let stats = mount.stats();
    assert_equal(&printed, &stats);
    assert_eq!(stats.get("origin.opens"), 19);
    // On a file of the mount as well as on a directory.
    assert_equal(
        &parse(&check(Command::new(&program).arg(mount.path("dir/f3")))),
        &mount.stats(),
    );
}

#[test]
fn the_python_example_works() {
    if !is_root() {
        skip!("needs root");
    }
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuse/examples/stats.py");
    let origin = origin();
    let mount = Mount::of(origin.path());
    read_all(&mount.node.point);
    let said = check(python().arg(&example).arg(&mount.node.point));
    let stats = mount.stats();
    let opens = stats.get("origin.opens").to_string();
    assert!(said.contains(&opens), "{said}");
    assert!(said.contains(&stats.get("pid").to_string()), "{said}");
}

#[test]
fn the_sockets_for_commands_and_images_are_the_owners_alone() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let mount = Mount::of(origin.path());
    let dir = mount.log.parent().unwrap();
    let sockets: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let kind = std::fs::symlink_metadata(path).unwrap().file_type();
            std::os::unix::fs::FileTypeExt::is_socket(&kind)
        })
        .collect();
    let expected = ["control.sock", "images.sock"].map(|name| dir.join(name));
    assert!(sockets.contains(&expected[0]), "{sockets:?}");
    assert!(
        sockets.iter().all(|socket| expected.contains(socket)),
        "{sockets:?}"
    );
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir), 0o700);
    assert!(sockets.iter().all(|socket| mode(socket) == 0o600));
}

#[test]
fn stats_and_clear_say_when_there_is_no_mount() {
    let dir = Scratch::new();
    for arguments in [
        ["stats", "--json"].as_slice(),
        &["stats", "--all"],
        &["clear"],
        &["clear", "--everything"],
    ] {
        // The default could otherwise be the mount of another test.
        let mut command = copperfs(arguments);
        command.env("COPPERFS_MOUNTPOINT", dir.path());
        let finished = crate::support::run(command.arg(dir.path()));
        assert!(finished.refused().contains("copperfs"), "{finished:?}");
        assert_eq!(finished.text(), "");
    }
}
