//! Daemons in their own pid namespaces are identified independently of their numbers.

use crate::skip;
use crate::support::command::Background;
use crate::support::kernel::mount_at_of;
use crate::support::mount::forget_runtime_dir;
use crate::support::{Scratch, check, copperfs, eventually, is_root, run};
use rustix::process::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A daemon in the foreground in its own pid namespace.
struct Contained {
    origin: Scratch,
    scratch: Scratch,
    point: PathBuf,
    /// The process that made the namespaces; all processes in them end with it.
    holder: Background,
}

impl Contained {
    /// Starts a daemon with the number `number` in new namespaces made with `flags` of unshare(1), and
    /// waits until it is mounted.
    fn start(number: u32, flags: &[&str]) -> Self {
        const RUN: &str = "echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid
            \"$2\" mount --foreground --memory 64MiB --origin \"$3\" \"$4\" & wait";
        let origin = Scratch::new();
        origin.file("file", "content");
        origin.settle();
        let scratch = Scratch::new();
        let point = scratch.dir("mnt");
        let mut unshare = Command::new("unshare");
        unshare
            .args(["--pid", "--fork", "--kill-child"])
            .args(flags)
            .args(["bash", "-c", RUN, "run", &number.to_string()])
            .arg(env!("CARGO_BIN_EXE_copperfs"))
            .arg(format!("/={}", origin.path().display()))
            .arg(&point)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let contained = Self {
            origin,
            scratch,
            point,
            holder: Background::spawn(&mut unshare),
        };
        eventually(Duration::from_secs(20), "it is mounted", || {
            contained.seen_from().is_some_and(|pid| {
                mount_at_of(pid, &contained.point).is_some()
                    && fs::read(contained.inside(pid)).is_ok_and(|bytes| bytes == b"content")
            })
        });
        contained
    }

    /// A process that sees the mount: the shell in the namespaces.
    fn seen_from(&self) -> Option<Pid> {
        let holder = self.holder.pid().as_raw_nonzero();
        let children = format!("/proc/{holder}/task/{holder}/children");
        let text = fs::read_to_string(children).ok()?;
        Pid::from_raw(text.split_whitespace().next()?.parse().ok()?)
    }

    fn inside(&self, pid: Pid) -> PathBuf {
        let root = format!("/proc/{}/root", pid.as_raw_nonzero());
        let point = self.point.strip_prefix("/").unwrap();
        Path::new(&root).join(point).join("file")
    }

    /// Whether its daemon answers.
    fn answers(&self) -> bool {
        // A new name, which the kernel cannot answer from its cache.
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.origin.file(&format!("new{number}/file"), "x");
        let Some(pid) = self.seen_from() else {
            return false;
        };
        let top = self.inside(pid).with_file_name("");
        rustix::fs::statfs(top).is_ok()
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        let _any = Command::new("umount")
            .arg("-l")
            .arg(&self.point)
            .stderr(Stdio::null())
            .status();
        forget_runtime_dir(&self.point, None);
        let _held = &self.scratch;
    }
}

/// A number that no process has here.
fn free_number() -> u32 {
    let free = |number: &u32| !Path::new("/proc").join(number.to_string()).exists();
    (20_000..30_000).rev().find(free).unwrap()
}

fn bystander() -> Background {
    Background::spawn(Command::new("sleep").arg("600").stdin(Stdio::null()))
}

/// `unmount` ends the daemon of a container, and not the process of this host that has the same number.
/// With a separate mount namespace, and without.
#[test]
fn unmount_ends_the_daemon_and_not_the_process_with_its_number() {
    if !is_root() {
        skip!("needs root");
    }
    for flags in [&["--mount-proc"][..], &[]] {
        let mut other = bystander();
        let number = other.pid().as_raw_nonzero().get().unsigned_abs();
        let mut contained = Contained::start(number, flags);
        let said = check(copperfs(["unmount"]).arg(&contained.point));
        assert!(said.contains("ended"), "{said}");
        assert!(!said.contains(&format!("daemon {number} ")), "{said}");
        let ended = contained.holder.exit_within(Duration::from_secs(20));
        assert!(ended.is_some(), "the daemon runs on: {said}");
        assert_eq!(other.exit_within(Duration::ZERO), None, "it was signalled");
    }
}

/// `mount` recognises a live daemon of another pid namespace, although no process has its number here, and
/// leaves its mount alone.
#[test]
fn mount_leaves_a_daemon_of_another_pid_namespace_alone() {
    if !is_root() {
        skip!("needs root");
    }
    for flags in [&["--mount-proc"][..], &[]] {
        let contained = Contained::start(free_number(), flags);
        let origin = format!("/={}", contained.origin.path().display());
        let refused = run(copperfs(["mount", "--origin", &origin]).arg(&contained.point));
        let said = refused.refused();
        assert!(said.contains("already"), "{said}");
        assert!(contained.answers(), "its mount was cut: {said}");
        check(copperfs(["unmount"]).arg(&contained.point));
    }
}

/// A daemon whose `/proc` shows another pid namespace than its own keeps its mount, and can be ended
/// normally.
#[test]
fn a_daemon_without_a_proc_of_its_own_keeps_its_mount() {
    if !is_root() {
        skip!("needs root");
    }
    let contained = Contained::start(free_number(), &[]);
    let watched = || {
        let mut all = fs::read_dir("/proc").unwrap().flatten();
        let point = contained.point.display().to_string();
        all.any(|entry| {
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            command.starts_with(b"copperfs-watch\0")
                && String::from_utf8_lossy(&command).contains(&point)
        })
    };
    eventually(Duration::from_secs(10), "it is watched", watched);
    // An watchdog that takes its daemon for dead aborts the mount at once, and ends.
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(50));
        assert!(contained.answers() && watched());
    }
    check(copperfs(["unmount"]).arg(&contained.point));
}

/// A daemon that is not visible from here cannot be signalled. Without force it keeps running, and the
/// error says so; with force its mount is aborted, and it ends.
#[test]
fn a_daemon_that_is_not_seen_ends_with_its_mount_or_runs_on() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("file", "content");
    let mount = crate::support::Mount::of(origin.path());
    let inside = |flags: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare
            .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
            .arg(env!("CARGO_BIN_EXE_copperfs"))
            .arg("unmount")
            .args(flags)
            .arg(&mount.node.point);
        run(&mut unshare)
    };
    let refused = inside(&[]);
    let said = refused.refused();
    assert!(said.contains("of another pid namespace) runs on"), "{said}");
    assert!(mount.is_alive());
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"content");
    let forced = inside(&["--force"]);
    assert!(
        forced.text().contains("in another pid namespace, ended"),
        "{forced:?}"
    );
    eventually(Duration::from_secs(10), "it ends", || !mount.is_alive());
}
