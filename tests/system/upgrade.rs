//! `copperfs upgrade`: the daemon of another program takes a mount over while it is in use.

use crate::skip;
use crate::support::fixture::noise;
use crate::support::takeover::{Followed, processes, read_cold};
use crate::support::{Mount, Scratch, Tree, check, copperfs, is_root};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Output;

const BYTES: usize = 50_000;

fn origin() -> Scratch {
    let origin = Scratch::new();
    origin.file("a", noise(1, BYTES));
    origin.file("b", noise(2, BYTES));
    origin.settle();
    origin
}

/// The program under test.
fn own() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_copperfs"))
}

/// A copy of the program at another path: "another version".
fn copy(scratch: &Scratch, name: &str) -> PathBuf {
    let path = scratch.path().join(name);
    fs::copy(own(), &path).unwrap();
    path
}

/// A script in place of a program.
fn script(scratch: &Scratch, name: &str, text: &str) -> PathBuf {
    let path = scratch.file(name, format!("#!/bin/sh\n{text}\n"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn upgrade(mount: &Path, program: &Path) -> Output {
    let mut upgrade = copperfs(["upgrade"]);
    upgrade.arg(mount).arg("--program").arg(program);
    upgrade.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The programs that the daemons of the mount run.
fn programs(mount: &Path) -> Vec<PathBuf> {
    let pids = processes("daemon", mount).into_iter();
    let links = pids.map(|pid| format!("/proc/{}/exe", pid.as_raw_nonzero()));
    links.filter_map(|link| fs::read_link(link).ok()).collect()
}

/// Another program takes over, and another one after it; open files go on.
#[test]
fn another_program_takes_over() {
    if !is_root() {
        skip!("needs root");
    }
    let (origin, scratch) = (origin(), Scratch::new());
    let followed = Followed::start(origin.path(), &[]);
    let held = File::open(followed.point.join("a")).unwrap();
    for name in ["second", "third"] {
        let other = copy(&scratch, name);
        let done = upgrade(&followed.point, &other);
        assert!(done.status.success(), "{done:?}\n{}", followed.log());
        assert!(text(&done.stdout).contains("->"), "{done:?}");
        assert_eq!(programs(&followed.point), [other]);
        let mut bytes = vec![0; BYTES];
        held.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == noise(1, BYTES));
        assert!(read_cold(&followed.point.join("b")).unwrap() == noise(2, BYTES));
    }
    drop(held);
    followed.end();
}

/// Programs that cannot take over are refused before anything moves, each with its reason.
#[test]
fn a_program_that_does_not_fit_is_refused() {
    if !is_root() {
        skip!("needs root");
    }
    let (origin, scratch) = (origin(), Scratch::new());
    let followed = Followed::start(origin.path(), &[]);
    let before = processes("daemon", &followed.point);
    let plain = scratch.file("plain", "no program");
    let elsewhere = scratch.file("other", b"\x7fELF\x02\x01\x01\0strange machine");
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o755)).unwrap();
    let cases = [
        (scratch.path().join("absent"), "No such file"),
        (plain, "Permission denied"),
        (elsewhere, "Exec format error"),
        (
            script(&scratch, "no", "echo no such flag >&2; exit 2"),
            "no such flag",
        ),
        (script(&scratch, "mute", "exit 3"), "exit status: 3"),
        (
            script(&scratch, "old", "echo 'the journal has format 9'; exit 1"),
            "the journal has format 9",
        ),
    ];
    for (program, reason) in cases {
        let refused = upgrade(&followed.point, &program);
        assert!(!refused.status.success());
        let said = text(&refused.stderr);
        assert!(said.contains(reason), "{said}");
        assert!(said.contains("Nothing has changed"), "{said}");
    }
    assert_eq!(processes("daemon", &followed.point), before);
    followed.end();
}

/// A program that says that it fits, and then does not answer, is followed by the program before it.
#[test]
fn a_program_that_does_not_answer_is_rolled_back() {
    if !is_root() {
        skip!("needs root");
    }
    let (origin, scratch) = (origin(), Scratch::new());
    let followed = Followed::start(origin.path(), &[]);
    let before = programs(&followed.point);
    let fits = format!(
        "case \"$*\" in *--check*) exec {} \"$@\";; esac",
        own().display()
    );
    let dies = script(&scratch, "dies", &format!("{fits}\nexit 1"));
    let hangs = script(&scratch, "hangs", &format!("{fits}\nexec sleep 60"));
    for (program, reason) in [
        (dies, "it has died at once"),
        (hangs, "does not answer within 5 s"),
    ] {
        let failed = upgrade(&followed.point, &program);
        assert!(!failed.status.success());
        let said = text(&failed.stderr);
        assert!(said.contains("goes on with the version before"), "{said}");
        assert!(said.contains(reason), "{said}");
        assert_eq!(programs(&followed.point), before);
        assert!(read_cold(&followed.point.join("b")).unwrap() == noise(2, BYTES));
    }
    followed.end();
}

/// Nodes of a tree cannot change to a program that speaks another protocol, and a mount without take-over not at all.
#[test]
fn a_tree_is_upgraded_together() {
    if !is_root() {
        skip!("needs root");
    }
    let (origin, scratch) = (origin(), Scratch::new());
    let tree = Tree::launch(4, 2, origin.path(), &["--takeover"]);
    let all = |program: &Path| {
        let mut upgrade = copperfs(["upgrade", "--all", "--program"]);
        upgrade.arg(program).arg(tree.base()).output().unwrap()
    };
    let other = script(
        &scratch,
        "other-wire",
        r#"echo '{"version":"9.9.9","wire":"copperfs/99"}'"#,
    );
    let refused = all(&other);
    assert!(!refused.status.success());
    let said = text(&refused.stderr);
    assert!(said.contains("speaks copperfs/99 to other nodes"), "{said}");
    assert!(
        said.contains("4 of 4 nodes cannot change: none has"),
        "{said}"
    );

    let new = copy(&scratch, "new");
    let done = all(&new);
    assert!(done.status.success(), "{done:?}");
    let order: Vec<String> = text(&done.stdout).lines().map(str::to_owned).collect();
    assert_eq!(order.len(), 4, "{order:?}");
    let root = tree.nodes[0].point.display().to_string();
    assert!(
        order[3].starts_with(&root),
        "the root comes last: {order:?}"
    );
    for node in &tree.nodes {
        assert_eq!(programs(&node.point), std::slice::from_ref(&new));
        assert!(read_cold(&node.point.join("b")).unwrap() == noise(2, BYTES));
    }
    check(copperfs(["unmount", "--all", "--force"]).arg(tree.base()));
}

#[test]
fn a_mount_without_takeover_cannot_be_upgraded() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin();
    let mount = Mount::with(origin.path(), &["--takeover=false"]);
    let refused = upgrade(&mount.point, own());
    let said = text(&refused.stderr);
    assert!(said.contains("mounted without --takeover"), "{said}");
    let absent = upgrade(origin.path(), own());
    let said = text(&absent.stderr);
    assert!(said.contains("is not a copperfs mount"), "{said}");
}
