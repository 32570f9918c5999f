//! Counts at all homes, while homes and owners die and come back, and readers read.

use super::{BYTES, REFERENCES, submission, submitting, with};
use crate::skip;
use crate::support::datasets::{SOON, datasets};
use crate::support::kernel::mount_at;
use crate::support::tree::Members;
use crate::support::{Mount, Scratch, command, copperfs, eventually, is_root};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nodes that are started one by one, each with a data mount and a store on disk.
pub(super) struct Restartable {
    members: Members,
    scratch: Scratch,
    flags: Vec<String>,
    nodes: Vec<Option<Mount>>,
}

impl Restartable {
    #[track_caller]
    pub(super) fn start(count: usize, origin: &Path, flags: &[&str]) -> Self {
        let mut all = Self {
            members: Members::with_arity(count, 2, origin),
            scratch: Scratch::new(),
            flags: flags.iter().map(ToString::to_string).collect(),
            nodes: (0..count).map(|_| None).collect(),
        };
        (0..count).for_each(|rank| all.start_node(rank));
        all
    }

    #[track_caller]
    pub(super) fn start_node(&mut self, rank: usize) {
        let (data, disk) = (self.data(rank), self.scratch.dir(&format!("disk{rank}")));
        let disk = format!("{}:200MB", disk.display());
        let own = [
            "--data-mount",
            data.to_str().unwrap(),
            "--disk",
            &disk,
            "--page-cache=false",
        ];
        let flags: Vec<&str> = own
            .into_iter()
            .chain(self.flags.iter().map(String::as_str))
            .collect();
        self.nodes[rank] = Some(self.members.start(rank, &flags));
    }

    /// SIGKILL, and what the daemon leaves is taken away.
    #[track_caller]
    pub(super) fn kill(&mut self, rank: usize) {
        let node = self.nodes[rank].take().unwrap();
        node.kill();
        eventually(SOON, "it is dead", || !node.is_alive());
        drop(node);
        unmount_dead(&self.data(rank));
    }

    pub(super) fn node(&self, rank: usize) -> &Mount {
        self.nodes[rank].as_ref().unwrap()
    }

    pub(super) fn data(&self, rank: usize) -> PathBuf {
        self.scratch.dir(&format!("data{rank}"))
    }

    /// The dataset in the data mount of node `rank`.
    fn set(&self, rank: usize) -> PathBuf {
        self.data(rank).join("set")
    }

    pub(super) fn command(&self, rank: usize, words: &[&str]) -> Command {
        let mut command = copperfs(words);
        command.env("COPPERFS_MOUNTPOINT", self.members.point(rank));
        command
    }

    #[track_caller]
    pub(super) fn ask(&self, rank: usize, words: &[&str]) -> String {
        command::check(&mut self.command(rank, words))
    }

    /// Declares the dataset, which is kept by references, and waits until all nodes have their shares of it.
    #[track_caller]
    pub(super) fn declare(&self, budget: &str) {
        let add = ["dataset", "add", "set", "/set", "--budget", budget];
        self.ask(0, &[&add[..], &REFERENCES].concat());
        eventually(SOON, "all nodes know the dataset", || {
            let mut nodes = self.nodes.iter().flatten();
            nodes.all(|node| node.stats().get("datasets.share_bytes") > 0)
        });
    }

    /// Numbers of `dataset show set`, as node `rank` says; 0 while it has none.
    pub(super) fn shown(&self, rank: usize, key: &str) -> u64 {
        let finished = command::run(&mut self.command(rank, &["dataset", "show", "set", "--json"]));
        let shown: Value = serde_json::from_slice(&finished.stdout).unwrap_or_default();
        match shown["references"][key].as_u64() {
            Some(number) => number,
            None => shown[key].as_u64().unwrap_or(0),
        }
    }

    #[track_caller]
    pub(super) fn submit(&self, rank: usize, submission: &Value) {
        let line = submission.to_string();
        let finished = submitting(&self.scratch, line.as_bytes(), |words| {
            self.command(rank, words)
        });
        assert_eq!(
            super::answers(&finished)[0]["accepted"],
            true,
            "{finished:?}"
        );
    }
}

impl Drop for Restartable {
    fn drop(&mut self) {
        self.nodes.clear();
        // Those of daemons that were killed.
        for rank in 0..self.nodes.capacity() {
            let point = self.scratch.path().join(format!("data{rank}"));
            if mount_at(&point).is_some() {
                drop(Command::new("umount").arg("-l").arg(&point).status());
            }
        }
    }
}

fn unmount_dead(point: &Path) {
    if mount_at(point).is_some() {
        command::check(Command::new("umount").arg("-l").arg(point));
    }
}

/// Reads all files again and again on a thread. The first failure is kept.
struct ReaderLoop<'a> {
    stop: &'a AtomicBool,
    files: &'a AtomicU64,
}

impl ReaderLoop<'_> {
    fn read(&self, directory: &Path, truth: &Path, files: Range<u64>) -> Result<(), String> {
        while !self.stop.load(Ordering::Relaxed) {
            for name in files.clone().map(super::file) {
                let read =
                    fs::read(directory.join(&name)).map_err(|error| format!("{name}: {error}"))?;
                if read != fs::read(truth.join(&name)).unwrap() {
                    return Err(format!("{name} has other bytes"));
                }
                self.files.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// Counts are right again after a home is killed and started again, and after its node has a new process; they go with
/// their owner. No read fails.
#[test]
fn counts_follow_homes_and_owners_that_die() {
    if !is_root() {
        skip!("needs root");
    }
    const FILES: u64 = 200;
    let origin = datasets(&[("set", FILES, BYTES)]);
    let mut all = Restartable::start(4, origin.path(), &[]);
    all.declare("2MB");
    let truth = origin.path().join("set");
    // Half of the files are referred to.
    const REFERENCED: u64 = 100 * BYTES as u64;
    all.submit(3, &submission("j", "set", &[("t", 0..100), ("u", 0..50)]));
    super::read(&all.set(1), &truth, 0..FILES);
    eventually(SOON, "what is cached is referred to", || {
        all.shown(1, "referenced") == REFERENCED && all.shown(1, "undeclared") == REFERENCED
    });
    let (stop, files) = (AtomicBool::new(false), AtomicU64::new(0));
    let reader = ReaderLoop {
        stop: &stop,
        files: &files,
    };
    let directory = all.set(1);
    let outcome = std::thread::scope(|scope| {
        let reading = scope.spawn(|| reader.read(&directory, &truth, 0..FILES));
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            a_home_dies_and_comes_back(&mut all, REFERENCED);
            an_owner_dies(&mut all, REFERENCED);
        }));
        stop.store(true, Ordering::Relaxed);
        let read = reading.join().unwrap();
        checked.map(|()| read)
    });
    match outcome {
        Ok(read) => read.unwrap(),
        Err(panic) => std::panic::resume_unwind(panic),
    }
    let files = files.into_inner();
    eprintln!("{files} files were read meanwhile");
    assert!(files > FILES, "the reader has read {files} files only");
}

#[track_caller]
fn a_home_dies_and_comes_back(all: &mut Restartable, referenced: u64) {
    all.kill(2);
    // Counts change while it is away.
    all.ask(3, &["lrc", "done", "j", "t"]);
    std::thread::sleep(Duration::from_secs(1));
    all.start_node(2);
    let back = Instant::now();
    let unconfirmed = |all: &Restartable| all.node(3).stats().get("pipelines.unconfirmed");
    eventually(SOON, "the owner has told all homes", || {
        unconfirmed(all) == 0
    });
    eprintln!(
        "a home is back: told after {:?} (issue: 2 s)",
        back.elapsed()
    );
    // Task u refers to half of them.
    eventually(SOON, "the counts are right", || {
        all.shown(1, "referenced") == referenced / 2
    });
    eprintln!(
        "a home is back: its items are counted after {:?}",
        back.elapsed()
    );
    // A home that is new is not told of items that were declared and have no references any more.
    let others = |all: &Restartable| all.shown(1, "undeclared") + all.shown(1, "unreferenced");
    eventually(SOON, "the others are there", || {
        others(all) == referenced * 3 / 2
    });
    assert!(all.shown(1, "unreferenced") > 0);
}

#[track_caller]
fn an_owner_dies(all: &mut Restartable, referenced: u64) {
    assert_eq!(all.shown(1, "referenced"), referenced / 2);
    let killed = Instant::now();
    all.kill(3);
    eventually(SOON, "homes forget its counts", || {
        all.shown(1, "referenced") == 0
    });
    eprintln!(
        "an owner is killed: forgotten after {:?} (issue: 5 s)",
        killed.elapsed()
    );
    // The node comes back without jobs, and takes the job again.
    all.start_node(3);
    let ls = all.ask(3, &["lrc", "ls"]);
    assert!(ls.contains("no pipeline of this node"), "{ls}");
    let job = submission("j", "set", &[("t", 0..100)]);
    eventually(SOON, "it knows the dataset again", || {
        let line = job.to_string();
        submitting(&all.scratch, line.as_bytes(), |words| all.command(3, words))
            .status
            .success()
    });
    let submitted = Instant::now();
    eventually(SOON, "its counts are known", || {
        all.shown(1, "referenced") == referenced
    });
    eprintln!("submitted again: counted after {:?}", submitted.elapsed());
}

/// A home that hangs holds up neither the others nor the owner; it forgets the owner, and is told all when it goes on.
#[test]
fn a_home_that_hangs_is_told_later() {
    if !is_root() {
        skip!("needs root");
    }
    const FILES: u64 = 120;
    let origin = datasets(&[("set", FILES, BYTES)]);
    let all = Restartable::start(3, origin.path(), &[]);
    all.declare("1.2MB");
    let truth = origin.path().join("set");
    super::read(&all.set(1), &truth, 0..FILES);
    all.node(2).signal(Signal::STOP);
    all.submit(1, &submission("j", "set", &[("t", 0..FILES)]));
    // The other homes are told while this one hangs.
    let total = FILES * BYTES as u64;
    eventually(SOON, "two homes know", || {
        let left = all.node(1).stats().get("pipelines.unconfirmed");
        (1..FILES).contains(&left)
    });
    // Longer than an owner may be silent.
    std::thread::sleep(Duration::from_secs(5));
    all.node(2).signal(Signal::CONT);
    let back = Instant::now();
    // Slots of a home that was away may have moved, so its items are read again.
    eventually(SOON, "all items are counted", || {
        super::read(&all.set(1), &truth, 0..FILES);
        all.shown(1, "referenced") == total
    });
    eprintln!(
        "a home goes on: its items are counted after {:?}",
        back.elapsed()
    );
}

/// Jobs of several nodes add up, and each goes by itself.
#[test]
fn owners_add_up() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 60, BYTES)]);
    let all = Restartable::start(3, origin.path(), &[]);
    all.declare("600kB");
    super::read(&all.set(0), &origin.path().join("set"), 0..60);
    let job = |files: Range<u64>| submission("same name", "set", &[("t", files)]);
    all.submit(1, &job(0..30));
    all.submit(2, &with(&job(20..60), "attempt", 9));
    let referenced = |bytes: u64| {
        eventually(SOON, format!("{bytes} bytes are referred to"), || {
            all.shown(0, "referenced") == bytes
        });
    };
    referenced(600_000);
    assert_eq!([all.shown(0, "jobs"), all.shown(0, "references")], [2, 70]);
    all.ask(2, &["lrc", "end", "same name"]);
    referenced(300_000);
    all.ask(1, &["lrc", "end", "same name"]);
    referenced(0);
    assert_eq!(all.shown(0, "unreferenced"), 600_000);
}

/// An owner that hangs is forgotten like one that is gone, and its counts are back when it goes on.
#[test]
fn an_owner_that_hangs_is_forgotten_and_heard_again() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 60, BYTES)]);
    let all = Restartable::start(3, origin.path(), &[]);
    all.declare("600kB");
    super::read(&all.set(0), &origin.path().join("set"), 0..60);
    all.submit(2, &submission("j", "set", &[("t", 0..60)]));
    eventually(SOON, "its counts are known", || {
        all.shown(0, "referenced") == 600_000
    });
    all.node(2).signal(Signal::STOP);
    let stopped = Instant::now();
    // What the node that hangs has said last is a third of the sum, about.
    eventually(SOON, "the others forget its counts", || {
        all.shown(0, "referenced") <= 300_000
    });
    eprintln!("an owner hangs: forgotten after {:?}", stopped.elapsed());
    all.node(2).signal(Signal::CONT);
    let goes_on = Instant::now();
    eventually(SOON, "its counts are back", || {
        super::read(&all.set(0), &origin.path().join("set"), 0..60);
        all.shown(0, "referenced") == 600_000
    });
    eprintln!("an owner goes on: counted after {:?}", goes_on.elapsed());
}

/// The allocator of budgets dies while jobs are live elsewhere: counts stay, and reads of tasks still reach their owner.
#[test]
fn counts_outlive_the_allocator() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 60, BYTES)]);
    let mut all = Restartable::start(4, origin.path(), &["--roots", "2"]);
    all.declare("600kB");
    let truth = origin.path().join("set");
    super::read(&all.set(2), &truth, 0..60);
    let job = submission("j", "set", &[("t", 0..60), ("u", 0..1)]);
    all.submit(3, &with(&job, "consume", "read"));
    eventually(SOON, "its counts are known", || {
        all.shown(2, "referenced") == 600_000
    });
    all.kill(0);
    let killed = Instant::now();
    // Items of the node that is gone are read again, and their homes are others.
    eventually(
        SOON,
        "all items are counted at the homes that are left",
        || {
            super::read(&all.set(2), &truth, 0..60);
            all.shown(2, "referenced") == 600_000
        },
    );
    eprintln!(
        "the allocator is killed: all items are counted after {:?}",
        killed.elapsed()
    );
    let held = |all: &Restartable| all.node(3).stats().get("pipelines.references");
    assert_eq!(held(&all), 61);
    let mut cat = Command::new("cat");
    cat.env("COPPERFS_TASK", "j/t")
        .arg(all.set(2).join(super::file(7)));
    command::check(cat.stdout(std::process::Stdio::null()));
    eventually(SOON, "the read has reached the owner", || held(&all) == 60);
    all.start_node(0);
    let back = Instant::now();
    eventually(
        SOON,
        "all items are counted with the node that is back",
        || {
            super::read(&all.set(2), &truth, 0..60);
            all.shown(2, "referenced") == 590_000
        },
    );
    eprintln!(
        "its node is back: all items are counted after {:?}",
        back.elapsed()
    );
}
