//! Jobs: their readers, their progress, and their limits for reading storage.

use crate::skip;
use crate::support::command::{as_user, python};
use crate::support::datasets::{Nodes, SOON, datasets, epoch, lines, loader, quietly};
use crate::support::{Background, command, eventually, is_root};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

const BYTES: usize = 10_000;

/// A user that names another user's job in the environment neither uses its remote IO nor counts as its
/// reader.
#[test]
fn a_job_of_one_user_is_not_charged_for_the_reads_of_another() {
    if !is_root() {
        skip!("needs root");
    }
    const OWNER: u32 = 12_001;
    const STRANGER: u32 = 12_002;
    let origin = datasets(&[("set", 40, BYTES)]);
    let nodes = Nodes::launch(2, origin.path(), &["--allow-other"]);
    nodes.add("set", &[]);
    let directory = nodes.path(1, "set/d0");
    let read = |user: u32, files: std::ops::Range<u64>| {
        let files: Vec<_> = files.map(|n| format!("f{n}")).collect();
        let mut reader = as_user(user, user, "sh");
        // The shell keeps running, so that its job has a process while its children read.
        reader.args(["-c", "cat \"$@\" && read -r _", "sh"]);
        reader.args(files).current_dir(&directory);
        reader.env("COPPERFS_JOB", "train");
        Background::spawn(reader.stdin(Stdio::piped()).stdout(Stdio::null()))
    };
    let charged = |job: &str| {
        let job = nodes.job(job);
        job.and_then(|job| job["charged_bytes"].as_u64())
            .unwrap_or(0)
    };
    let of_files = |files: u64| files * BYTES as u64;
    let _owner = read(OWNER, 0..10);
    eventually(SOON, "the owner's job is charged", || {
        charged("run:train") == of_files(10)
    });
    let _stranger = read(STRANGER, 10..40);
    eventually(SOON, "the stranger's reads are counted", || {
        charged("unattributed") == of_files(30)
    });
    assert_eq!(charged("run:train"), of_files(10));
}

/// A program started by `job run` is followed: its dataset, its epochs and its hits.
#[test]
fn a_job_is_followed_from_its_start_to_its_end() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 200, BYTES)]);
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--budget", "1MB", "--origin-readers", "homes"]);
    let flags = [
        "--dataset",
        "set",
        "--name",
        "train",
        "--ideal-rate",
        "20MB/s",
        "--gpus",
        "2",
    ];
    let epochs = ["--epochs", "3"];
    let program = loader(
        &nodes.path(1, "set"),
        &[
            "--epochs",
            "3",
            "--pause",
            "1.5",
            "--processes",
            "--rate",
            "0.7e6",
        ],
    );
    let run = nodes.job_run(1, &[&flags[..], &epochs].concat(), &program);
    let job = Running(run).start();
    let shown =
        |what: &dyn Fn(&Value) -> bool| nodes.job("run:train").is_some_and(|job| what(&job));
    eventually(SOON, "it is known", || shown(&|job| job["gpus"] == 2));
    eventually(Duration::from_secs(30), "its third epoch", || {
        shown(&|job| job["epoch"] == 2 && job["items"].as_u64().is_some_and(|items| items > 50))
    });
    let told = nodes.job("run:train").unwrap();
    assert_eq!(told["dataset"], "set", "{told}");
    assert_eq!(told["ideal_rate"], 20_000_000, "{told}");
    let second = epoch_hits(&told, 1);
    assert!((second - 0.5).abs() < 0.03, "{told}");
    assert!(epoch_hits(&told, 0) < 0.02, "{told}");
    let done = job.finish();
    assert_eq!(done["wrong"], 0);
    eventually(SOON, "its end is known", || {
        nodes.job("run:train").is_none()
    });
}

/// The hit ratio of an epoch that has ended.
#[track_caller]
fn epoch_hits(job: &Value, epoch: u64) -> f64 {
    let epochs = job["past_epochs"].as_array().unwrap();
    let found = epochs.iter().find(|one| one["epoch"] == epoch);
    let found = found.unwrap_or_else(|| panic!("no epoch {epoch} in {job}"));
    found["hit_ratio"].as_f64().unwrap()
}

/// A command that runs beside the test.
struct Running(Command);

impl Running {
    fn start(mut self) -> Started {
        let child = Background::spawn(self.0.stdout(Stdio::piped()));
        Started(child)
    }
}

struct Started(Background);

impl Started {
    /// Its last line.
    #[track_caller]
    fn finish(mut self) -> Value {
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.0.stdout(), &mut said).unwrap();
        let last = said.lines().rfind(|line| line.starts_with('{'));
        serde_json::from_str(last.unwrap_or_else(|| panic!("{said}"))).unwrap()
    }
}

/// Three jobs on nodes of their own read storage at 2 : 1 : 1, as allocated, and all together no faster than the cluster
/// may read.
#[test]
fn jobs_get_the_rates_that_they_were_given() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("a", 60, 50_000), ("b", 60, 50_000), ("c", 60, 50_000)]);
    let nodes = Nodes::launch(3, origin.path(), &["--remote-io", "4MB/s"]);
    let jobs = [
        ("a", 2e6, "2MB/s"),
        ("b", 1e6, "1MB/s"),
        ("c", 1e6, "1MB/s"),
    ];
    let stop = origin.path().join("stop");
    let mut running = Vec::new();
    for (rank, (name, _, rate)) in jobs.iter().enumerate() {
        nodes.add(name, &["--budget", "1B", "--origin-readers", "roots"]);
        let how = [
            "--epochs",
            "1000",
            "--every",
            "0.1",
            "--stop",
            stop.to_str().unwrap(),
        ];
        let program = loader(&nodes.path(rank, name), &how);
        let run = nodes.job_run(rank, &["--dataset", name, "--name", name], &program);
        running.push(Running(run).start());
        eventually(SOON, "the job is known", || {
            nodes.job(&format!("run:{name}")).is_some()
        });
        nodes.ask(&["job", "set", &format!("run:{name}"), "--remote-io", rate]);
    }
    let charged = |name| {
        nodes.job(&format!("run:{name}")).unwrap()["charged_bytes"]
            .as_u64()
            .unwrap()
    };
    // The buckets are full at the start; readers spend that first.
    std::thread::sleep(Duration::from_secs(3));
    let begin = std::time::SystemTime::now();
    let storage = nodes.total("origin.read_bytes");
    std::thread::sleep(Duration::from_secs(5));
    let read = nodes.total("origin.read_bytes") - storage;
    let seconds = begin.elapsed().unwrap().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let whole = read as f64 / seconds;
    assert!(whole < 4e6 * 1.1, "{whole} bytes/s of storage");
    for (name, _, _) in jobs {
        assert!(charged(name) > 0);
    }
    std::fs::write(&stop, "").unwrap();
    let begin = begin
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    for ((name, rate, _), job) in jobs.iter().zip(running) {
        let got = job.rate(begin, begin + seconds);
        assert!(
            (got / rate - 1.0).abs() < 0.1,
            "{name}: {got} of {rate} bytes/s"
        );
    }
}

impl Started {
    /// Bytes a second between two moments, as the loader tells.
    fn rate(mut self, begin: f64, end: f64) -> f64 {
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.0.stdout(), &mut said).unwrap();
        let lines = said
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let points: Vec<(f64, f64)> = lines
            .filter_map(|line| Some((line["at"].as_f64()?, line["read"].as_f64()?)))
            .filter(|(at, _)| (begin..end).contains(at))
            .collect();
        let (first, last) = (points[0], points[points.len() - 1]);
        (last.1 - first.1) / (last.0 - first.0)
    }
}

/// An undeclared job is identified by its launcher's variables in its environment, and its dataset by the files that it
/// reads.
#[test]
fn a_job_is_known_by_its_launcher() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 100, BYTES)]);
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--budget", "1MB"]);
    let stop = origin.path().join("stop");
    let how = [
        "--epochs",
        "1000",
        "--rate",
        "2e6",
        "--stop",
        stop.to_str().unwrap(),
    ];
    let mut slurm = loader(&nodes.path(0, "set"), &how);
    let slurm = quietly(slurm.env("SLURM_JOB_ID", "4711"));
    let mut torchrun = loader(&nodes.path(1, "set"), &how);
    let torchrun = quietly(torchrun.env("TORCHELASTIC_RUN_ID", "bert"));
    for name in ["slurm:4711", "torchrun:bert"] {
        eventually(SOON, name, || {
            nodes.job(name).is_some_and(|job| job["dataset"] == "set")
        });
    }
    std::fs::write(&stop, "").unwrap();
    for mut job in [slurm, torchrun] {
        assert!(job.exit_within(Duration::from_secs(10)).is_some());
    }
    eventually(Duration::from_secs(60), "their end is seen", || {
        nodes.job("slurm:4711").is_none() && nodes.job("torchrun:bert").is_none()
    });
}

/// Jobs that read one dataset at the same time: its bytes are fetched once, and kept once.
#[test]
fn two_jobs_share_a_dataset() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 200, BYTES)]);
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--budget", "2MB", "--origin-readers", "homes"]);
    let before = nodes.total("origin.read_bytes");
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let program = loader(&nodes.path(rank, "set"), &["--epochs", "2"]);
            let name = format!("job{rank}");
            let mut run = nodes.job_run(rank, &["--dataset", "set", "--name", &name], &program);
            scope.spawn(move || assert_eq!(lines(&mut run).len(), 3));
        }
    });
    assert_eq!(nodes.total("origin.read_bytes") - before, 2_000_000);
    assert_eq!(nodes.cached(), 2_000_000);
}

/// What the command line does can be done by HTTP on the socket beside the mount, which is its owner's.
#[test]
fn the_socket_beside_the_mount_speaks_http() {
    if !is_root() {
        skip!("needs root");
    }
    if !command::has_program("curl") {
        skip!("curl is missing");
    }
    let origin = datasets(&[("set", 20, BYTES)]);
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--budget", "100kB"]);
    let log = &nodes.tree.leaf().log;
    let socket = log.parent().unwrap().join("control.sock");
    let mode = std::os::unix::fs::PermissionsExt::mode(&socket.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let curl = |words: &[&str]| -> Value {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "20", "--unix-socket"])
            .arg(&socket);
        let said = command::check(curl.args(words));
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    };
    let shown = curl(&["http://localhost/v1/datasets/set"]);
    assert_eq!(shown["budget"], 100_000, "{shown}");
    let put = [
        "-X",
        "PUT",
        "-H",
        "content-type: application/json",
        "-d",
        r#"{"size":"150kB"}"#,
    ];
    curl(&[&put[..], &["http://localhost/v1/datasets/set/cache"]].concat());
    assert_eq!(nodes.dataset("set")["budget"], 150_000);
    let missing = curl(&["http://localhost/v1/datasets/nothing"]);
    assert!(missing.to_string().contains("nothing"), "{missing}");
    let document = curl(&["http://localhost/openapi.json"]);
    assert!(document["openapi"].is_string(), "{document}");
}

/// Hints at all files below a directory, and says so.
const HINTING: &str = "
import os, sys
for directory, _, names in os.walk(sys.argv[1]):
    for name in names:
        file = os.open(os.path.join(directory, name), os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
        os.close(file)
print('hinted', flush=True)
sys.stdin.read()
";

/// Each file that a job has hinted at is a request in the kernel's background queue, which all readers of a mount share, and
/// waits for the job's rate.
#[test]
fn a_job_that_hints_ahead_of_its_rate_delays_no_other() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("slow", 2000, 4000), ("set", 50, BYTES)]);
    let nodes = Nodes::with_page_cache(1, origin.path(), &["--remote-io", "10MB/s"]);
    nodes.add("slow", &["--keep", "none"]);
    nodes.add("set", &["--budget", "1MB"]);
    nodes.ask(&["job", "add", "run:slow", "--dataset", "slow"]);
    nodes.ask(&["job", "set", "run:slow", "--remote-io", "10kB/s"]);
    let mut hinting = python();
    hinting.args(["-c", HINTING]).arg(nodes.path(0, "slow"));
    hinting.env("COPPERFS_JOB", "slow");
    let hinting = hinting.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut hinting = Background::spawn(hinting);
    let mut line = String::new();
    BufReader::new(hinting.stdout())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "hinted\n");
    let before = nodes.job("run:slow").unwrap()["charged_bytes"].as_u64();
    epoch(&nodes.path(0, "set"), &origin.path().join("set"), 0);
    let after = nodes.job("run:slow").unwrap()["charged_bytes"].as_u64();
    assert!(
        after < Some(1_000_000),
        "{before:?} and {after:?}: nothing waits"
    );
    drop(hinting);
}
