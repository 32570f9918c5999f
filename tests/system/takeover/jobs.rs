//! Training jobs whose daemons die: positions in epochs, rates, and what the allocator makes of it.

use crate::skip;
use crate::support::command::{self, python};
use crate::support::datasets::{SOON, datasets};
use crate::support::takeover::{Daemons, sends_no_request_again};
use crate::support::tree::Members;
use crate::support::{Background, Mount, Scratch, Stats, copperfs, eventually, is_root};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Reads all files of a directory, in another order in each epoch, and compares them. Prints the bytes and the seconds in
/// the end.
const TRAINING: &str = "
import errno, os, random, sys, time
data, truth, epochs, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
is_old_kernel = sys.argv[5] == 'old-kernel'
def whole(path):
    try:
        return open(path, 'rb', buffering=0).readall()
    except OSError as error:
        # A request that was in hand when the daemon died.
        if error.errno != errno.EIO or not is_old_kernel:
            raise
        return open(path, 'rb', buffering=0).readall()
files = sorted(os.path.join(d, f)[len(truth) + 1:] for d, _, fs in os.walk(truth) for f in fs)
begun, count = time.monotonic(), 0
for epoch in range(epochs):
    random.Random(epoch).shuffle(files)
    for name in files:
        read = whole(os.path.join(data, name))
        assert read == open(os.path.join(truth, name), 'rb').read(), name
        count += len(read)
        time.sleep(pause)
print(count, time.monotonic() - begun, flush=True)
sys.stdin.read()
";

/// Nodes with a data mount and a store each, whose daemons are killed.
struct Trained {
    daemons: Vec<Daemons>,
    mounts: Vec<Mount>,
    members: Members,
    origin: Scratch,
    scratch: Scratch,
}

impl Trained {
    #[track_caller]
    fn start(count: usize, origin: Scratch, disk: &str, flags: &[&str]) -> Self {
        let mut nodes = Self {
            daemons: Vec::new(),
            mounts: Vec::new(),
            members: Members::with_arity(count, 2, origin.path()),
            origin,
            scratch: Scratch::new(),
        };
        for rank in 0..count {
            let place = nodes.scratch.dir(&format!("disk{rank}"));
            let disk = format!("{}:{disk}", place.display());
            let data = nodes.data(rank);
            let own = [
                "--takeover",
                "--page-cache=false",
                "--data-mount",
                data.to_str().unwrap(),
                "--disk",
                &disk,
            ];
            let mount = nodes.members.start(rank, &[&own, flags].concat());
            nodes.daemons.push(Daemons::of(&mount));
            nodes.mounts.push(mount);
        }
        nodes
    }

    fn data(&self, rank: usize) -> PathBuf {
        self.scratch.dir(&format!("data{rank}"))
    }

    /// `copperfs WORDS` about node `rank`.
    fn command(&self, rank: usize, words: &[&str]) -> Command {
        let mut command = copperfs(words);
        command.env("COPPERFS_MOUNTPOINT", &self.daemons[rank].point);
        command
    }

    #[track_caller]
    fn ask(&self, words: &[&str]) -> String {
        command::check(&mut self.command(0, words))
    }

    /// The same as JSON, if it is answered.
    fn json(&self, words: &[&str]) -> Option<Value> {
        let said = command::run(&mut self.command(0, &[words, &["--json"]].concat()));
        serde_json::from_slice(&said.stdout).ok()
    }

    /// Declares the directory of this name, and waits until all nodes know how much of it they may hold.
    #[track_caller]
    fn add(&self, name: &str, flags: &[&str]) {
        let path = format!("/{name}");
        self.ask(&[&["dataset", "add", name, &path], flags].concat());
        eventually(SOON, format!("{name} is counted"), || {
            let shown = self.json(&["dataset", "show", name]);
            shown.is_some_and(|shown| !shown["items"].is_null())
        });
        self.settled();
    }

    /// Waits until all nodes follow the newest decision.
    #[track_caller]
    fn settled(&self) {
        eventually(SOON, "all nodes follow", || {
            self.json(&["allocation"]).is_some_and(|shown| {
                let nodes = shown["nodes"].as_array().unwrap();
                let follow = nodes.iter().all(|node| node["follows"] == shown["serial"]);
                follow && nodes.len() == self.daemons.len()
            })
        });
    }

    /// The number at `key` of what `job show` says.
    fn job(&self, name: &str, key: &str) -> Option<u64> {
        self.json(&["job", "show", name])?[key].as_u64()
    }

    /// A training on node `rank` that reads dataset `set`.
    fn train(&self, rank: usize, job: &str, set: &str, epochs: u32, pause: &str) -> Background {
        let mut reader = python();
        reader.args(["-c", TRAINING]).env("COPPERFS_JOB", job);
        reader.arg(self.data(rank).join(set)).arg(self.truth(set));
        let kernel = if sends_no_request_again() {
            "old-kernel"
        } else {
            ""
        };
        reader.args([&epochs.to_string(), pause, kernel]);
        Background::spawn(reader.stdin(Stdio::piped()).stdout(Stdio::piped()))
    }

    fn truth(&self, set: &str) -> PathBuf {
        self.origin.path().join(set)
    }

    fn stats(&self, rank: usize) -> Stats {
        self.mounts[rank].stats()
    }
}

/// Bytes and seconds of a training that has ended its last epoch. Its process stays, so the job goes on.
#[track_caller]
fn outcome(training: &mut Background) -> (u64, f64) {
    let mut line = String::new();
    let stdout = training.stdout();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    let (bytes, seconds) = line.trim().split_once(' ').unwrap();
    (bytes.parse().unwrap(), seconds.parse().unwrap())
}

/// The daemon is killed in each of four epochs. All epochs have all items, and the hits of each are those that the budget
/// allows.
#[test]
fn a_training_goes_on_in_each_of_its_epochs() {
    if !is_root() {
        skip!("needs root");
    }
    const FILES: u64 = 1000;
    const BYTES: u64 = 4000;
    let origin = datasets(&[("set", FILES, 4000)]);
    let mut nodes = Trained::start(1, origin, "100MB", &[]);
    nodes.add("set", &["--budget", "1.6MB"]);
    // The last read before each death may be unknown to the next daemon. So the fourth epoch ends with the fifth.
    let mut training = nodes.train(0, "train", "set", 5, "0.002");
    for epoch in 0..4 {
        let after = epoch * FILES * BYTES + FILES * BYTES / 3;
        eventually(Duration::from_secs(60), format!("epoch {epoch}"), || {
            nodes.job("run:train", "total_bytes") > Some(after)
        });
        nodes.daemons[0].kill();
    }
    let (bytes, _) = outcome(&mut training);
    assert_eq!(bytes, 5 * FILES * BYTES);
    let mut shown = Value::Null;
    eventually(SOON, "nearly all reads are counted", || {
        shown = nodes
            .json(&["job", "show", "run:train"])
            .unwrap_or_default();
        shown["total_bytes"].as_u64() >= Some((5 * FILES - 4) * BYTES)
    });
    eprintln!("{}", shown["past_epochs"]);
    for (epoch, past) in (0..).zip(shown["past_epochs"].as_array().unwrap()) {
        assert_eq!(past["epoch"], epoch);
        let lost = (FILES * BYTES).abs_diff(past["bytes"].as_u64().unwrap());
        assert!(lost <= FILES * BYTES / 100, "{past}");
        let expected = if epoch == 0 { 0.0 } else { 0.4 };
        let off = past["hit_ratio"].as_f64().unwrap() - expected;
        assert!(off.abs() <= 0.01, "{past}");
    }
    assert!(
        shown["past_epochs"].as_array().unwrap().len() >= 4,
        "{shown}"
    );
    assert_eq!(shown["irregular"], false, "{shown}");
    drop(training);
}

/// The successor has the lanes of the daemon before, with the sockets that other nodes know.
#[test]
fn lanes_go_on() {
    if !is_root() {
        skip!("needs root");
    }
    const FILES: u64 = 300;
    const BYTES: u64 = 20_000;
    let origin = datasets(&[("set", FILES, 20_000)]);
    let mut nodes = Trained::start(2, origin, "100MB", &["--lanes", "3"]);
    nodes.add("set", &["--budget", "6MB"]);
    let mut training = nodes.train(1, "train", "set", 4, "0.002");
    for (epoch, rank) in [(0, 0), (1, 1), (2, 0)] {
        let after = epoch * FILES * BYTES + FILES * BYTES / 2;
        eventually(Duration::from_secs(60), format!("epoch {epoch}"), || {
            nodes.job("run:train", "total_bytes") > Some(after)
        });
        nodes.daemons[rank].kill();
    }
    let (bytes, _) = outcome(&mut training);
    assert_eq!(bytes, 4 * FILES * BYTES);
    // Another training, all of it after the take-overs: the first one may have ended before the last successor answered.
    let before = [0, 1].map(|rank| nodes.stats(rank));
    let (bytes, _) = outcome(&mut nodes.train(1, "again", "set", 1, "0"));
    assert_eq!(bytes, FILES * BYTES);
    let after = [0, 1].map(|rank| nodes.stats(rank));
    for lane in 0..3 {
        let key = format!("lanes.{lane}.requests");
        assert!(after[1].since(&before[1], &key) > 0, "{key}");
        let key = format!("lanes.{lane}.answered");
        assert!(after[0].since(&before[0], &key) > 0, "{key}");
    }
}

/// A job never reads more than its rate, however often its daemon dies: nothing is kept of its dataset, so each byte that
/// it gets is one of storage.
#[test]
fn a_job_keeps_its_rate() {
    if !is_root() {
        skip!("needs root");
    }
    const RATE: f64 = 2e6;
    const BYTES: u64 = 200_000;
    let origin = datasets(&[("set", 80, 200_000)]);
    let mut nodes = Trained::start(1, origin, "100MB", &["--remote-io", "10MB/s"]);
    nodes.add("set", &["--keep", "none"]);
    nodes.ask(&["job", "add", "run:train", "--dataset", "set"]);
    nodes.ask(&["job", "set", "run:train", "--remote-io", "2MB/s"]);
    let mut training = nodes.train(0, "train", "set", 1, "0");
    for file in 1..=5_u64 {
        eventually(Duration::from_secs(60), format!("{file}"), || {
            nodes.job("run:train", "total_bytes") > Some(file * 12 * BYTES)
        });
        nodes.daemons[0].kill();
    }
    let (bytes, seconds) = outcome(&mut training);
    assert_eq!(bytes, 80 * BYTES);
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let bytes = bytes as f64;
    eprintln!("{bytes} bytes in {seconds} s");
    // What an idle job has collected, and one item.
    let most = RATE * seconds + 512.0 * 1024.0 + 200_000.0;
    assert!(bytes <= most, "{bytes} bytes in {seconds} s");
    drop(training);
}

/// Nodes whose daemons die, the allocator's among them, keep their shares and their jobs: nothing moves. Children keep
/// their parent.
#[test]
fn no_budget_moves_for_a_daemon_that_dies() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("fast", 200, 200_000), ("slow", 200, 200_000)]);
    // Room for one and a half of them.
    let mut nodes = Trained::start(4, origin, "16MiB", &["--remote-io", "20MB/s"]);
    for (set, rate) in [("fast", "10MB/s"), ("slow", "1MB/s")] {
        nodes.add(set, &["--origin-readers", "homes"]);
        let job = format!("run:{set}");
        nodes.ask(&["job", "add", &job, "--dataset", set, "--ideal-rate", rate]);
    }
    nodes.settled();
    let trainings = [(3, "fast"), (2, "slow")].map(|(rank, set)| {
        let training = nodes.train(rank, set, set, 100, "0.01");
        eventually(SOON, format!("{set} is read"), || {
            nodes.job(&format!("run:{set}"), "total_bytes") > Some(2_000_000)
        });
        training
    });
    let shrunk: Vec<u64> = (0..4).map(|rank| moves(&nodes, rank)).collect();
    let budgets = |nodes: &Trained| -> Vec<Option<u64>> {
        let budget = |set| nodes.json(&["dataset", "show", set])?["budget"].as_u64();
        ["fast", "slow"].map(budget).to_vec()
    };
    let before = budgets(&nodes);
    assert_eq!(before[0], Some(40_000_000));
    assert!(
        (Some(5_000_000)..Some(30_000_000)).contains(&before[1]),
        "{before:?}"
    );
    for rank in [1, 0, 3] {
        let total = |nodes: &Trained, set: &str| nodes.job(&format!("run:{set}"), "total_bytes");
        nodes.daemons[rank].kill();
        // Longer than a node is missed.
        std::thread::sleep(Duration::from_secs(5));
        nodes.settled();
        let now = ["fast", "slow"].map(|set| total(&nodes, set).unwrap());
        eventually(SOON, "both jobs are read", || {
            let later = ["fast", "slow"].map(|set| total(&nodes, set));
            later[0] > Some(now[0]) && later[1] > Some(now[1])
        });
        assert!(now[0] > 2_000_000 && now[1] > 2_000_000, "{now:?}");
        assert_eq!(budgets(&nodes), before, "after {rank}");
        let now: Vec<u64> = (0..4).map(|rank| moves(&nodes, rank)).collect();
        assert_eq!(now, shrunk, "after {rank}");
        if rank < 2 {
            let failovers = nodes.stats(3).get("healing.failovers");
            assert_eq!(failovers, 0, "after {rank}");
        }
    }
    drop(trainings);
}

/// How often a decision has left a dataset fewer bytes on a node.
#[track_caller]
fn moves(nodes: &Trained, rank: usize) -> u64 {
    nodes.stats(rank).get("datasets.shrunk")
}
