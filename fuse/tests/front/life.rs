//! Mounting, unmounting, and the mounts of dead daemons.

use crate::fixture::{Fixture, HUNG, Reaped, SOON, pause, run, runtime};
use crate::memory::Memory;
use crate::skipping::{is_root, skipped};
use crate::waiting::{eventually, wait_until_stopped};
use copperfs_fuse::{
    Abort, Ino, MountError, MountOptions, MountState, Op, detach, mount, mount_state,
};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const DAEMON: &str = "COPPERFS_TEST_DAEMON_AT";

/// Mounts at a path until it is killed.
#[test]
#[ignore = "a daemon for other tests"]
fn inner_daemon() {
    #[expect(
        clippy::disallowed_methods,
        reason = "the test that starts this one passes the path"
    )]
    let Some(path) = std::env::var_os(DAEMON) else {
        return;
    };
    let memory = Memory::new();
    memory.file(Ino::ROOT, "f", "content");
    let runtime = runtime();
    let mount = mount(memory, MountOptions::new(path), runtime.handle()).unwrap();
    // Bounded, in case the test that started this one has died.
    mount.wait_closed(Duration::from_secs(60));
}

fn daemon(path: &Path) -> Reaped {
    let child = Reaped::spawn(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "life::inner_daemon", "--ignored"])
            .env(DAEMON, path)
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    );
    eventually(SOON, "the daemon mounts", || {
        mount_state(path).unwrap() == MountState::Live
    });
    child
}

/// Leaves the mount of a killed daemon at `path`.
pub(crate) fn make_stale(path: &Path) {
    let mut child = daemon(path);
    assert_eq!(std::fs::read(path.join("f")).unwrap(), b"content");
    child.0.kill().unwrap();
    assert!(child.ends_within(Duration::from_secs(5)).is_some());
}

struct Detached<'a>(&'a Path);

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        while mount_state(self.0).is_ok_and(|state| state != MountState::NotMounted) {
            if detach(self.0).is_err() {
                return;
            }
        }
    }
}

#[test]
fn a_stale_mount_is_recognized_and_removed_by_the_next_mount() {
    let above = crate::cleanup::directory();
    let (path, beside) = (above.path().join("mnt3"), above.path().join("mnt3x"));
    std::fs::create_dir(&path).unwrap();
    std::fs::create_dir(&beside).unwrap();
    let _guard = Detached(&path);
    make_stale(&path);
    assert_eq!(mount_state(&path).unwrap(), MountState::Stale);
    assert_eq!(mount_state(&beside).unwrap(), MountState::NotMounted);
    assert_eq!(mount_state(above.path()).unwrap(), MountState::NotMounted);
    let runtime = runtime();
    let mounted = mount(Memory::new(), MountOptions::new(&path), runtime.handle()).unwrap();
    assert_eq!(mount_state(&path).unwrap(), MountState::Live);
    mounted.unmount().unwrap();
    assert_eq!(mount_state(&path).unwrap(), MountState::NotMounted);
}

#[test]
fn a_daemon_that_does_not_answer_is_found_in_bounded_time() {
    let directory = crate::cleanup::directory();
    let _guard = Detached(directory.path());
    let child = daemon(directory.path());
    let pid = rustix::process::Pid::from_child(&child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    wait_until_stopped(pid);
    let start = Instant::now();
    let state = mount_state(directory.path()).unwrap();
    assert!(start.elapsed() < HUNG);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert_eq!(state, MountState::Unresponsive);
}

#[test]
fn a_mount_that_is_alive_is_not_covered() {
    let fixture = Fixture::new(|_| {});
    let options = MountOptions::new(fixture.root());
    let error = mount(Memory::new(), options, fixture.runtime.handle()).unwrap_err();
    assert!(
        matches!(error, MountError::AlreadyMounted { .. }),
        "{error:?}"
    );
    let link = crate::cleanup::directory();
    let link = link.path().join("link");
    std::os::unix::fs::symlink(fixture.root(), &link).unwrap();
    assert_eq!(mount_state(&link).unwrap(), MountState::Live);
    let options = MountOptions::new(&link);
    let error = mount(Memory::new(), options, fixture.runtime.handle()).unwrap_err();
    assert!(
        matches!(error, MountError::AlreadyMounted { .. }),
        "{error:?}"
    );
}

#[test]
fn bad_mount_points_are_explained() {
    let directory = crate::cleanup::directory();
    let runtime = runtime();
    let attempt =
        |path: &Path| mount(Memory::new(), MountOptions::new(path), runtime.handle()).unwrap_err();
    let path = directory.path().join("missing");
    let error = attempt(&path);
    assert!(matches!(error, MountError::Missing { .. }), "{error:?}");
    assert!(error.to_string().contains("mkdir -p"), "{error}");
    let error = attempt(&directory.path().join("no/such/way"));
    assert!(matches!(error, MountError::Missing { .. }), "{error:?}");
    let path = directory.path().join("file");
    std::fs::write(&path, "x").unwrap();
    let error = attempt(&path);
    assert!(
        matches!(error, MountError::NotADirectory { .. }),
        "{error:?}"
    );
    let error = attempt(directory.path());
    assert!(matches!(error, MountError::NotEmpty { .. }), "{error:?}");
    let error = attempt(Path::new("/proc"));
    assert!(matches!(error, MountError::Foreign { .. }), "{error:?}");
}

#[test]
fn unmounting_cancels_hanging_requests_and_ends_the_session() {
    let fixture = Fixture::new(|memory| {
        memory.state().hanging_names.insert("hangs".into());
    });
    let root = fixture.root().to_owned();
    let path = fixture.path("hangs");
    let reader = std::thread::spawn(move || std::fs::metadata(path).is_err());
    eventually(SOON, "it hangs", || fixture.requests(Op::Lookup) == 1);
    let closed = fixture.mount.closed();
    let start = Instant::now();
    let Fixture {
        mount,
        runtime,
        directory,
        ..
    } = fixture;
    mount.unmount().unwrap();
    assert!(start.elapsed() < HUNG);
    assert!(reader.join().unwrap());
    runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(2), closed).await })
        .expect("the session has ended");
    assert_eq!(mount_state(&root).unwrap(), MountState::NotMounted);
    drop(directory);
}

#[test]
fn a_full_notifier_queue_does_not_delay_the_end() {
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "f", "content");
        memory.state().hanging_names.insert("hangs".into());
    });
    let path = fixture.path("hangs");
    let reader = std::thread::spawn(move || std::fs::metadata(path).is_err());
    eventually(SOON, "it hangs", || fixture.requests(Op::Lookup) == 1);
    let notifier = fixture.mount.notifier();
    let Fixture { mount, runtime, .. } = fixture;
    runtime.block_on(async {
        let flood = async {
            loop {
                notifier.invalidate_entry(Ino::ROOT, "f".into()).await;
            }
        };
        let flood = tokio::time::timeout(Duration::from_millis(300), flood);
        assert!(flood.await.is_err());
        // Works inside a runtime too, although it blocks.
        mount.unmount().unwrap();
        notifier.flush().await;
    });
    assert!(reader.join().unwrap());
}

#[test]
fn a_mount_held_by_another_namespace_does_not_keep_the_daemon() {
    if !is_root() {
        return skipped("needs root");
    }
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "f", "content");
    });
    let holder = Reaped::spawn(
        Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sleep", "30"])
            .current_dir("/"),
    );
    let ours = std::fs::read_link("/proc/self/ns/mnt").unwrap();
    let theirs = format!("/proc/{}/ns/mnt", holder.0.id());
    eventually(SOON, "the namespace is made", || {
        std::fs::read_link(&theirs).is_ok_and(|theirs| theirs != ours)
    });
    // `unshare` makes its mounts private after it has made the namespace. Until then our unmount would
    // propagate to it.
    eventually(SOON, "sleep runs", || {
        std::fs::read_to_string(format!("/proc/{}/comm", holder.0.id()))
            .is_ok_and(|name| name.trim() == "sleep")
    });
    let closed = fixture.mount.closed();
    let start = Instant::now();
    let Fixture { mount, runtime, .. } = fixture;
    mount.unmount().unwrap();
    assert!(start.elapsed() < HUNG);
    runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(2), closed).await })
        .expect("the daemon's side has ended, although the mount still exists elsewhere");
    drop(holder);
}

#[test]
fn a_mount_in_use_is_detached() {
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "f", "content");
    });
    let root = fixture.root().to_owned();
    let user = Reaped::spawn(Command::new("sleep").arg("30").current_dir(&root));
    // `spawn` returns after the child has changed to the directory and started the program.
    let Fixture { mount, .. } = fixture;
    mount.unmount().unwrap();
    assert_eq!(mount_state(&root).unwrap(), MountState::NotMounted);
    drop(user);
}

#[test]
fn a_umount_by_hand_is_noticed() {
    if !is_root() {
        return skipped("needs root");
    }
    let fixture = Fixture::new(|_| {});
    assert!(!fixture.mount.wait_closed(Duration::from_millis(50)));
    let output = run(Command::new("umount").arg(fixture.root()));
    assert!(output.status.success());
    assert!(fixture.mount.wait_closed(Duration::from_secs(5)));
    // The next mount there is not ours, and must stay.
    let root = fixture.root().to_owned();
    let output = run(Command::new("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(&root));
    assert!(output.status.success());
    let Fixture { mount, .. } = fixture;
    mount.unmount().unwrap();
    let state = mount_state(&root).unwrap();
    assert!(run(Command::new("umount").arg(&root)).status.success());
    assert!(matches!(state, MountState::Foreign { fstype } if fstype == "tmpfs"));
}

#[test]
fn an_idle_daemon_does_not_wake_up() {
    let directory = crate::cleanup::directory();
    let _guard = Detached(directory.path());
    let child = daemon(directory.path());
    assert_eq!(
        std::fs::read(directory.path().join("f")).unwrap(),
        b"content"
    );
    // Work that the read started ends during this pause. The second after it is measured.
    pause(300);
    let before = switches(child.0.id());
    pause(1000);
    let woken = switches(child.0.id()) - before;
    assert!(woken <= 2, "{woken} wake-ups in an idle second");
}

/// Returns the voluntary context switches of all threads of a process.
fn switches(pid: u32) -> u64 {
    let of = |task: std::io::Result<std::fs::DirEntry>| -> u64 {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse().unwrap()
    };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.map(of).sum()
}

/// The kernel reuses the number of a connection that has ended. An `Abort` of the first connection must not
/// abort the second one, even if a slow process receives it after the first has ended.
#[test]
fn an_abort_stays_bound_to_its_connection() {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let number = {
        let ended = Fixture::new(|_| {});
        let number = ended.mount.connection().unwrap();
        Abort::of(number).unwrap().send(&ours).unwrap();
        number
    };
    let next = Fixture::new(|_| {});
    let abort = Abort::receive(&theirs).unwrap().expect("an abort");
    // The first connection has ended, so any result is correct.
    drop(abort.cut());
    if next.mount.connection() != Some(number) {
        println!("another test's mount took the number {number}");
    }
    assert_eq!(mount_state(next.root()).unwrap(), MountState::Live);

    // A live connection is aborted.
    Abort::of(next.mount.connection().unwrap())
        .unwrap()
        .send(&ours)
        .unwrap();
    let abort = Abort::receive(&theirs).unwrap().expect("an abort");
    abort.cut().unwrap();
    assert_ne!(mount_state(next.root()).unwrap(), MountState::Live);
    drop(ours);
    assert!(
        Abort::receive(&theirs).unwrap().is_none(),
        "the end of the stream"
    );
}
