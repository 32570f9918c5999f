//! One mount with its daemon, taken away when its guard goes.

use super::command::{self, Background, Finished};
use super::fronts::Front;
use super::kernel::mount_at;
use super::leash::{Leash, is_daemon, kill};
use super::{Scratch, Stats};
use copperfs::daemon::runtime_dir::hidden_top;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A command may wait for a daemon that ends in an orderly way, or for one that has to be killed.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(40);

/// The program under test, with a modest cache and nothing of the tester's own configuration.
pub fn copperfs<I: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_copperfs"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("COPPERFS_") {
            command.env_remove(name);
        }
    }
    // Storage is on this host, so a file is old as soon as a further write would show in its times.
    command.env("COPPERFS_CLOCK_SKEW", "0s");
    // The share of a large disk is more than the tester's disk may have left.
    command.env("COPPERFS_DISK_RESERVE", "0%");
    command.env("COPPERFS_MEMORY", "512MiB").args(arguments);
    command
}

/// The program in `scratch`, for other users: the build directory may lie where they cannot look.
#[track_caller]
pub fn program_for_all(scratch: &Scratch) -> PathBuf {
    let program = scratch.path().join("copperfs");
    std::fs::copy(env!("CARGO_BIN_EXE_copperfs"), &program).unwrap();
    program
}

/// A daemon and its mount point.
#[derive(Debug, Clone)]
pub struct Node {
    pub point: PathBuf,
    pub pid: Pid,
    /// Its log, in its runtime directory.
    pub log: PathBuf,
}

impl Node {
    /// From the output of `copperfs mount`.
    fn parse(point: &Path, said: &str) -> Self {
        let between = |before: &str, after: &str| {
            let rest = said.split_once(before)?.1;
            Some(rest.split_once(after)?.0)
        };
        let pid = between("(pid ", ",")
            .and_then(|pid| pid.parse().ok())
            .and_then(Pid::from_raw);
        let log = between(", log ", ")");
        let (Some(pid), Some(log)) = (pid, log) else {
            panic!("not what mount says: {said}")
        };
        Self {
            point: point.to_owned(),
            pid,
            log: log.into(),
        }
    }

    /// This node's counters.
    #[track_caller]
    pub fn stats(&self) -> Stats {
        let mut ask = copperfs(["stats", "--json"]);
        Stats(serde_json::from_str(&command::check(ask.arg(&self.point))).unwrap())
    }

    /// The counters of all nodes, and their sum.
    #[track_caller]
    pub fn cluster_stats(&self) -> (Vec<Stats>, Stats) {
        let mut ask = copperfs(["stats", "--json", "--all"]);
        let mut all: Value = serde_json::from_str(&command::check(ask.arg(&self.point))).unwrap();
        let Value::Array(nodes) = all["nodes"].take() else {
            panic!("nodes is no list")
        };
        (
            nodes.into_iter().map(Stats).collect(),
            Stats(all["total"].take()),
        )
    }

    /// Clears the cached state of `path`, as the mount sees it, on this node; `/`: everything.
    #[track_caller]
    pub fn clear(&self, path: &str) {
        command::check(self.clearing(path).arg("--this-node"));
    }

    /// Like [`Node::clear`], on all nodes.
    #[track_caller]
    pub fn clear_everywhere(&self, path: &str) {
        command::check(&mut self.clearing(path));
    }

    /// The command that clears `path` on all nodes.
    pub fn clearing(&self, path: &str) -> Command {
        let mut command = copperfs(["clear"]);
        if path == "/" {
            command.arg("--everything").arg(&self.point);
        } else {
            command.arg("--mount").arg(&self.point).arg(path);
        }
        command
    }

    /// Sends the daemon a signal. It has stopped after SIGSTOP.
    pub fn signal(&self, signal: Signal) {
        assert!(self.is_alive(), "the daemon is gone");
        super::kernel::signal(self.pid, signal);
    }

    /// Kills the daemon and its watchdog, as the death of the host does: no other daemon takes over.
    pub fn kill(&self) {
        let watchdogs = super::takeover::processes("watchdog", &self.point);
        // A watchdog that is killed first would be replaced; one that is stopped is not missed.
        for pid in &watchdogs {
            super::kernel::signal(*pid, Signal::STOP);
        }
        self.signal(Signal::KILL);
        // What a watchdog does: a thread of the daemon may hang in a notification.
        drop(copperfs_fuse::abort(&self.point));
        for pid in &watchdogs {
            super::kernel::signal(*pid, Signal::KILL);
        }
    }

    /// Whether its daemon runs.
    pub fn is_alive(&self) -> bool {
        is_daemon(self.pid)
    }

    /// Whether it is mounted, as this mount namespace sees it.
    pub fn is_mounted(&self) -> bool {
        mount_at(&self.point).is_some()
    }

    /// What its daemon has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last word: whatever state it is in, it is gone afterwards. Never panics.
    pub fn take_away(&self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- log of {}", self.point.display());
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
            let beside = self.log.parent().map(std::fs::read_dir);
            let files: Vec<_> = beside.into_iter().flatten().flatten().flatten().collect();
            eprintln!(
                "--- alive: {}, mounted: {}, beside the log: {files:?}",
                self.is_alive(),
                self.is_mounted(),
            );
        }
        if self.is_alive() {
            let _gone = rustix::process::kill_process(self.pid, Signal::CONT);
        }
        if self.is_alive() || self.is_mounted() {
            let mut unmount = copperfs(["unmount", "--force"]);
            unmount.arg(&self.point).stdout(std::process::Stdio::null());
            if !ends_well(&mut unmount) {
                eprintln!("{} could not be unmounted", self.point.display());
            }
        }
        if self.is_alive() {
            kill(self.pid);
        }
        for _ in 0..4 {
            if !self.is_mounted() {
                break;
            }
            ends_well(Command::new("fusermount3").arg("-uz").arg(&self.point));
            ends_well(Command::new("umount").arg("-l").arg(&self.point));
        }
        // An attendant that was killed leaves it.
        let hidden_top = self.log.parent().map(hidden_top).unwrap_or_default();
        if mount_at(&hidden_top).is_some() {
            ends_well(Command::new("umount").arg("-l").arg(&hidden_top));
            drop(std::fs::remove_dir(hidden_top));
        }
        forget_runtime_dir(&self.point, None);
    }
}

/// Removes the runtime directory that a mount of a test leaves for its log; that of this host, or of
/// the one named. Mount points of tests are never used again.
pub fn forget_runtime_dir(point: &Path, host: Option<&str>) {
    let machine = copperfs::config::Machine::inspect();
    let host = host.unwrap_or_else(|| machine.host_name());
    let name = copperfs::config::resolve::instance_name(point, host);
    // There is none after a mount that was refused early.
    drop(std::fs::remove_dir_all(machine.runtime_base().join(name)));
}

/// As a guard needs it: bounded, and without a panic.
fn ends_well(command: &mut Command) -> bool {
    let quiet = command
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    if !command::has_program(&quiet.get_program().to_string_lossy())
        && !Path::new(quiet.get_program()).is_file()
    {
        return false;
    }
    let mut child = Background::spawn(quiet);
    child
        .exit_within(UNMOUNT_LIMIT)
        .is_some_and(|status| status.success())
}

/// A mount of one node without others.
#[derive(Debug)]
pub struct Mount {
    pub node: Node,
    _leash: Leash,
    _scratch: Option<Scratch>,
    _front: Option<Front>,
}

impl Mount {
    /// Serves directory `origin` at the top of a new mount.
    #[track_caller]
    pub fn of(origin: &Path) -> Self {
        Self::with(origin, &[])
    }

    /// As [`Mount::of`], with more flags.
    #[track_caller]
    pub fn with(origin: &Path, flags: &[&str]) -> Self {
        let front = Front::of_run(origin, flags);
        let more = front.iter().flat_map(|front| &front.flags);
        let more: Vec<&str> = more.map(String::as_str).collect();
        let origin = format!("/=file://{}", origin.display());
        let mut mount = Self::serving(&[&["--origin", &origin], flags, &more].concat());
        mount._front = front;
        mount
    }

    /// A new mount with just these flags.
    #[track_caller]
    pub fn serving(flags: &[&str]) -> Self {
        let scratch = Scratch::new();
        let point = scratch.dir("mnt");
        let mut mount = Self::at(&point, copperfs(["mount"]).args(flags));
        mount._scratch = Some(scratch);
        mount
    }

    /// Runs `command`, a `copperfs mount …` without its mount point.
    #[track_caller]
    pub fn at(point: &Path, command: &mut Command) -> Self {
        // Files that a test has just written settle meanwhile, so that they are read once.
        std::thread::sleep(Duration::from_millis(120));
        Self::try_at(point, command).unwrap_or_else(|failed| panic!("no mount: {failed:?}"))
    }

    /// As [`Mount::at`], for mounts that may be refused.
    ///
    /// # Errors
    /// How the command failed.
    #[track_caller]
    pub fn try_at(point: &Path, command: &mut Command) -> Result<Self, Finished> {
        let finished = command::run(command.arg(point));
        if !finished.status.success() {
            // Not that of a mount that is there already.
            if mount_at(point).is_none() {
                forget_runtime_dir(point, None);
            }
            return Err(finished);
        }
        let node = Node::parse(point, &finished.text());
        Ok(Self {
            _leash: Leash::tie(vec![node.pid]),
            node,
            _scratch: None,
            _front: None,
        })
    }

    /// A path in the mount.
    pub fn path(&self, inside: impl AsRef<Path>) -> PathBuf {
        self.node.point.join(inside)
    }

    /// Unmounts, even if it is in use, and checks that this ends the daemon.
    #[track_caller]
    pub fn unmount(self) {
        let mut unmount = copperfs(["unmount", "--force"]);
        let finished = command::run_within(unmount.arg(&self.node.point), UNMOUNT_LIMIT);
        assert!(finished.status.success(), "{finished:?}");
        assert!(!self.node.is_alive(), "the daemon runs on: {finished:?}");
        assert!(!self.node.is_mounted(), "the mount is there: {finished:?}");
    }
}

impl std::ops::Deref for Mount {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.node.take_away();
    }
}
