//! Nodes with data mounts, and an operator's commands to them.

use super::command::{self, Background, Finished, python};
use super::fixture::{files_below, noise};
use super::kernel::mount_at;
use super::mount::copperfs;
use super::{Scratch, Stats, Tree, eventually};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long the allocator may take to hear of something, with room for a busy machine.
pub const SOON: Duration = Duration::from_secs(10);

/// A directory with datasets. Each has a number of files of one size, all different.
pub fn datasets(of: &[(&str, u64, usize)]) -> Scratch {
    let origin = Scratch::new();
    for (set, &(name, files, bytes)) in (0_u64..).zip(of) {
        for number in 0..files {
            let path = format!("{name}/d{}/f{number}", number / 100);
            origin.file(&path, noise(set << 32 | number, bytes));
        }
    }
    origin.settle();
    origin
}

/// Local nodes of one tree, each with a data mount.
#[derive(Debug)]
pub struct Nodes {
    pub tree: Tree,
    data: DataMounts,
}

/// What a node has of its share of all datasets.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub bytes: u64,
    pub share: u64,
}

/// Data mounts that a killed daemon leaves are taken away with this.
#[derive(Debug)]
struct DataMounts {
    count: usize,
    scratch: Scratch,
}

impl Drop for DataMounts {
    fn drop(&mut self) {
        for rank in 0..self.count {
            let point = self.scratch.path().join(format!("data/{rank}"));
            for _ in 0..4 {
                if mount_at(&point).is_none() {
                    break;
                }
                let mut umount = Command::new("umount");
                let quiet = umount.arg("-l").arg(&point).stderr(Stdio::null());
                drop(quiet.status());
            }
        }
    }
}

impl Nodes {
    /// `count` nodes that serve `origin`; reads of data mounts all reach the daemons.
    #[track_caller]
    pub fn launch(count: usize, origin: &Path, flags: &[&str]) -> Self {
        Self::with_page_cache(count, origin, &[&["--page-cache=false"], flags].concat())
    }

    /// The same with the origins of a configuration file.
    #[track_caller]
    pub fn with_config(count: usize, config: &Path) -> Self {
        let flags = ["--page-cache=false", "--config", config.to_str().unwrap()];
        Self::with_data_mounts(count, &flags, |flags| Tree::launch_with(count, 2, flags))
    }

    /// As [`Nodes::launch`], with the kernel's page cache.
    #[track_caller]
    pub fn with_page_cache(count: usize, origin: &Path, flags: &[&str]) -> Self {
        Self::with_data_mounts(count, flags, |flags| Tree::launch(count, 2, origin, flags))
    }

    #[track_caller]
    fn with_data_mounts(count: usize, flags: &[&str], launch: impl Fn(&[&str]) -> Tree) -> Self {
        let scratch = Scratch::new();
        let dir = scratch.dir("data");
        let flags = [&["--data-mount", dir.to_str().unwrap()], flags].concat();
        let data = DataMounts { count, scratch };
        let tree = launch(&flags);
        Self { tree, data }
    }

    /// A path in the data mount of node `rank`.
    pub fn path(&self, rank: usize, inside: &str) -> PathBuf {
        let data = self.data.scratch.path().join("data");
        data.join(rank.to_string()).join(inside)
    }

    /// `copperfs WORDS` about node `rank`.
    pub fn command(&self, rank: usize, words: &[&str]) -> Command {
        let mut command = copperfs(words);
        command.env("COPPERFS_MOUNTPOINT", &self.tree.nodes[rank].point);
        command
    }

    /// What the same prints, of the last node that lives; it must succeed.
    #[track_caller]
    pub fn ask(&self, words: &[&str]) -> String {
        command::check(&mut self.command(self.speaker(), words))
    }

    /// The same, as JSON.
    #[track_caller]
    pub fn json(&self, words: &[&str]) -> Value {
        let said = self.ask(&[words, &["--json"]].concat());
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    /// The same, however it ends.
    pub fn try_ask(&self, words: &[&str]) -> Finished {
        command::run(&mut self.command(self.speaker(), words))
    }

    fn speaker(&self) -> usize {
        let mut nodes = self.tree.nodes.iter();
        nodes.rposition(|node| node.is_alive()).unwrap()
    }

    /// Declares the directory of this name, and waits until it is counted and all nodes know.
    #[track_caller]
    pub fn add(&self, name: &str, flags: &[&str]) {
        let path = format!("/{name}");
        self.ask(&[&["dataset", "add", name, &path], flags].concat());
        eventually(SOON, format!("{name} is counted"), || {
            !self.dataset(name)["items"].is_null()
        });
        self.settled();
    }

    /// Waits until all nodes follow the newest decision, which holds for two looks.
    #[track_caller]
    pub fn settled(&self) {
        let mut last = Value::Null;
        eventually(SOON, "all nodes follow", || {
            let shown = self.json(&["allocation"]);
            let nodes = shown["nodes"].as_array().unwrap();
            let follow = nodes.iter().all(|node| node["follows"] == shown["serial"]);
            let same = std::mem::replace(&mut last, shown["serial"].clone()) == shown["serial"];
            follow && same && nodes.len() == self.living().count()
        });
    }

    /// What `dataset show` says.
    #[track_caller]
    pub fn dataset(&self, name: &str) -> Value {
        self.json(&["dataset", "show", name])
    }

    /// What `job show` says, if there is such a job and it has not ended.
    pub fn job(&self, name: &str) -> Option<Value> {
        let finished = self.try_ask(&["job", "show", name, "--json"]);
        let well = finished.status.success();
        let job: Option<Value> = well.then(|| serde_json::from_slice(&finished.stdout).unwrap());
        job.filter(|job| job["ago_s"].is_null())
    }

    /// Ranks of the nodes that live.
    pub fn living(&self) -> impl Iterator<Item = usize> {
        let nodes = &self.tree.nodes;
        (0..nodes.len()).filter(|&rank| nodes[rank].is_alive())
    }

    /// Bytes of datasets that node `rank` holds, and that it may hold, as it says itself.
    pub fn held(&self, rank: usize) -> Held {
        let stats = self.tree.nodes[rank].stats();
        Held {
            bytes: stats.get("datasets.bytes"),
            share: stats.get("datasets.share_bytes"),
        }
    }

    /// Bytes of datasets on all nodes that live.
    pub fn cached(&self) -> u64 {
        self.total("datasets.bytes")
    }

    /// A counter, summed over the nodes that live.
    #[track_caller]
    pub fn total(&self, key: &str) -> u64 {
        let stats = |rank: usize| -> Stats { self.tree.nodes[rank].stats() };
        self.living().map(|rank| stats(rank).get(key)).sum()
    }

    /// `copperfs job run` of a program on node `rank`.
    pub fn job_run(&self, rank: usize, flags: &[&str], program: &Command) -> Command {
        let mut run = self.command(rank, &["job", "run"]);
        run.args(flags).arg("--").arg(program.get_program());
        run.args(program.get_args());
        run
    }
}

/// The loader of the benchmarks over `directory`: a training job that knows nothing of copperfs.
pub fn loader(directory: &Path, flags: &[&str]) -> Command {
    let mut command = python();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/benchlib/loader.py");
    command.arg(script).arg(directory).args(flags);
    command
}

/// Runs a loader to its end: its lines, the last of which is about the whole.
#[track_caller]
pub fn lines(command: &mut Command) -> Vec<Value> {
    let said = command::check(command);
    said.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Starts a program that prints nothing here.
pub fn quietly(command: &mut Command) -> Background {
    Background::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))
}

/// Reads every file of `directory` once, in an order of this seed, and compares it with `truth`.
#[track_caller]
pub fn epoch(directory: &Path, truth: &Path, seed: u64) {
    let mut files = files_below(truth);
    files.sort();
    for (place, random) in noise(seed, files.len() * 8).chunks_exact(8).enumerate() {
        let random = u64::from_le_bytes(random.try_into().unwrap());
        let other = usize::try_from(random % (place as u64 + 1)).unwrap();
        files.swap(place, other);
    }
    for file in files {
        let inside = file.strip_prefix(truth).unwrap();
        let read = std::fs::read(directory.join(inside));
        let read = read.unwrap_or_else(|error| panic!("{}: {error}", inside.display()));
        assert!(
            read == std::fs::read(&file).unwrap(),
            "{}",
            inside.display()
        );
    }
}
