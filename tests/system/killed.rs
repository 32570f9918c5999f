//! A daemon that is killed dies, whatever its threads wait for in the kernel; and its mount can be taken
//! away.
//!
//! The kernel has its daemon's threads wait without a way out: for the lock of a page that a READ holds
//! which is in the daemon's hands, say. Nobody answers such a READ once the daemon was killed.

use crate::skip;
use crate::support::fixture::noise;
use crate::support::kernel::{children, mount_at};
use crate::support::mount::Node;
use crate::support::takeover::Daemons;
use crate::support::{
    Background, Mount, Scratch, Tree, check, copperfs, eventually, is_root, within,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A killed daemon may take so long to die, on a busy machine.
const DEATH_LIMIT: Duration = Duration::from_secs(10);

/// Whether the whole process has ended, and not only its first thread.
fn ends_within(process: &OwnedFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap();
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit)).unwrap() > 0
}

fn handle(node: &Node) -> OwnedFd {
    pidfd_open(node.pid, PidfdFlags::empty()).unwrap()
}

/// The process that stands by the daemon of `node`.
fn watchdog(node: &Node) -> Pid {
    let found = children(node.pid, "watchdog");
    assert_eq!(found.len(), 1, "one watchdog of {node:?}");
    found[0]
}

fn quiet(command: &mut Command) -> Background {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    Background::spawn(command.stderr(Stdio::null()))
}

/// Two nodes; the leaf's daemon waits in the kernel for a page that a READ holds, which it cannot
/// answer because the root is stopped. What waits beside it is given too.
fn stuck(takeover: bool) -> (Scratch, Tree, Vec<Background>) {
    let origin = Scratch::new();
    origin.file("cold/file", noise(1, 4000));
    origin.file("other", noise(2, 4000));
    origin.settle();
    let takeover = format!("--takeover={takeover}");
    let flags = [&takeover, "--request-timeout", "100s"];
    let tree = Tree::launch(2, 1, origin.path(), &flags);
    fs::metadata(tree.path(1, "cold/file")).unwrap();
    tree.root().signal(Signal::STOP);
    let mut reader = Command::new("cat");
    let reader = quiet(reader.arg(tree.path(1, "cold/file")));
    // There is no event for the moment in which the kernel waits for the page.
    std::thread::sleep(Duration::from_millis(300));
    let clear = quiet(copperfs(["clear", "--everything", "--this-node"]).arg(&tree.leaf().point));
    let notifier = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", tree.leaf().pid.as_raw_nonzero()));
        tasks.unwrap().any(|task| {
            let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
            stat.contains("(copperfs-notify) D")
        })
    };
    eventually(
        Duration::from_secs(10),
        "a thread hangs in the kernel",
        notifier,
    );
    (origin, tree, vec![reader, clear])
}

/// Readers inside a daemon that has died get an error, and soon.
fn are_let_go(inside: &mut [Background]) {
    for waiting in inside {
        let status = waiting.exit_within(Duration::from_secs(5)).expect("an end");
        assert!(!status.success());
    }
}

#[test]
fn a_daemon_dies_whose_thread_waits_for_a_page() {
    if !is_root() {
        skip!("needs root");
    }
    let (_origin, tree, mut inside) = stuck(false);
    let daemon = handle(tree.leaf());
    tree.leaf().signal(Signal::KILL);
    assert!(ends_within(&daemon, DEATH_LIMIT), "the killed daemon hangs");
    are_let_go(&mut inside);
    free(&tree.leaf().point);
}

/// The thread of a dead daemon that waits for a page needs the next daemon, so that one does not wait for the thread's end.
/// The page comes, and all go on.
#[test]
fn a_daemon_follows_one_whose_thread_waits_for_a_page() {
    if !is_root() {
        skip!("needs root");
    }
    let (_origin, tree, inside) = stuck(true);
    let dead = handle(tree.leaf());
    let mut daemons = Daemons::of(tree.leaf());
    daemons.kill();
    assert!(!ends_within(&dead, Duration::ZERO), "it hangs");
    tree.root().signal(Signal::CONT);
    for mut waiting in inside {
        let status = waiting
            .exit_within(Duration::from_secs(20))
            .expect("an end");
        assert!(status.success(), "{status}");
    }
    assert!(ends_within(&dead, DEATH_LIMIT));
    check(copperfs(["unmount", "--all", "--force"]).arg(tree.base()));
    daemons.are_gone();
}

/// A watchdog that begins when its daemon has ended, and the number of the connection has gone to the next
/// mount, cuts nothing.
#[test]
fn a_late_watchdog_does_no_harm_to_the_next_mount() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("file", "content");
    let number_of = |mount: &Mount| {
        let top = fs::metadata(&mount.point).unwrap();
        rustix::fs::minor(std::os::unix::fs::MetadataExt::dev(&top))
    };
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let ended = Mount::of(origin.path());
    let number = number_of(&ended);
    let means = copperfs_fuse::Abort::of(number).unwrap();
    means.send(&ours).unwrap();
    let mut late = copperfs(["watchdog", "--connections=1"]);
    late.arg(format!("--of={}", ended.pid.as_raw_nonzero()));
    late.arg(&ended.point).stdin(OwnedFd::from(theirs));
    ended.unmount();

    let next = Mount::of(origin.path());
    if number_of(&next) != number {
        eprintln!("another test's mount took the number {number}");
    }
    let mut late = Background::spawn(&mut late);
    let status = late.exit_within(Duration::from_secs(20)).expect("its end");
    assert!(status.success(), "{status}");
    assert_eq!(fs::read(next.path("file")).unwrap(), b"content");
    assert!(next.is_alive());
}

/// The same when the watchdog was killed before (a scheduler kills all of a job): `unmount` frees it.
#[test]
fn unmount_frees_a_killed_daemon_that_hangs() {
    if !is_root() {
        skip!("needs root");
    }
    let (_origin, tree, mut inside) = stuck(false);
    let daemon = handle(tree.leaf());
    kill_process(watchdog(tree.leaf()), Signal::KILL).unwrap();
    tree.leaf().signal(Signal::KILL);
    assert!(!ends_within(&daemon, Duration::from_secs(1)), "it hangs");
    let said = check(copperfs(["unmount"]).arg(&tree.leaf().point));
    assert!(said.contains("gone already"), "{said}");
    assert!(ends_within(&daemon, DEATH_LIMIT), "the killed daemon hangs");
    are_let_go(&mut inside);
    assert!(!tree.leaf().is_mounted());
}

/// And so does the next mount at that place.
#[test]
fn the_next_mount_frees_a_killed_daemon_that_hangs() {
    if !is_root() {
        skip!("needs root");
    }
    for foreground in [false, true] {
        let (origin, tree, mut inside) = stuck(false);
        let daemon = handle(tree.leaf());
        kill_process(watchdog(tree.leaf()), Signal::KILL).unwrap();
        tree.leaf().signal(Signal::KILL);
        assert!(!ends_within(&daemon, Duration::from_secs(1)), "it hangs");
        let point = &tree.leaf().point;
        let served = format!("/=file://{}", origin.path().display());
        let mut mount = copperfs(["mount", "--origin", &served]);
        if foreground {
            let mut again = quiet(mount.arg("--foreground").arg(point));
            assert!(ends_within(&daemon, DEATH_LIMIT), "the killed daemon hangs");
            let file = point.join("other");
            eventually(Duration::from_secs(20), "it mounts", || {
                fs::read(&file).is_ok_and(|bytes| bytes == noise(2, 4000))
            });
            again.signal(Signal::TERM);
            let status = again.exit_within(Duration::from_secs(15)).expect("an end");
            assert!(status.success());
        } else {
            let again = Mount::at(point, &mut mount);
            assert!(ends_within(&daemon, DEATH_LIMIT), "the killed daemon hangs");
            assert_eq!(fs::read(again.path("other")).unwrap(), noise(2, 4000));
            again.unmount();
        }
        are_let_go(&mut inside);
        assert!(mount_at(point).is_none());
    }
}

/// Killed at any moment while directories are listed ahead, files pushed and caches cleared.
#[test]
fn a_daemon_killed_under_load_dies() {
    if !is_root() {
        skip!("needs root");
    }
    const DIRECTORIES: usize = 8;
    const FILES: usize = 100;
    let origin = Scratch::new();
    for directory in 0..DIRECTORIES {
        for file in 0..FILES {
            origin.file(&format!("d{directory}/f{file}"), noise(7, 9000));
        }
    }
    origin.settle();
    for round in 0..5 {
        let mount = Mount::with(origin.path(), &["--takeover=false"]);
        let reader = |directory: usize| {
            let script = "while :; do cat \"$0\"/f* || exit; done";
            let path = mount.path(format!("d{directory}"));
            quiet(Command::new("sh").args(["-c", script]).arg(path))
        };
        let mut inside: Vec<Background> = (0..DIRECTORIES).map(reader).collect();
        let clearing = "while \"$0\" clear --everything \"$1\"; do :; done";
        let mut clear = Command::new("sh");
        let clear = clear.args(["-c", clearing, env!("CARGO_BIN_EXE_copperfs")]);
        inside.push(quiet(clear.arg(&mount.point)));
        eventually(Duration::from_secs(20), "files are pushed", || {
            mount.stats().get("push.software.files") > 20
        });
        // Somewhere in the middle, each time elsewhere.
        std::thread::sleep(Duration::from_millis(150 + 37 * round));
        let daemon = handle(&mount);
        mount.signal(Signal::KILL);
        assert!(ends_within(&daemon, DEATH_LIMIT), "round {round}: it hangs");
        // Without a daemon the kernel still answers from its cache. Readers with everything cached end only
        // when the mount is gone.
        free(&mount.point);
        for waiting in &mut inside {
            waiting
                .exit_within(Duration::from_secs(60))
                .expect("an end");
        }
    }
}

/// Unmounts `point`, as an administrator does.
fn free(point: &Path) {
    let place = point.to_owned();
    within(Duration::from_secs(10), move || {
        check(Command::new("umount").arg("-l").arg(place));
    });
    assert!(mount_at(point).is_none());
}
