//! `copperfs lrc run`: variables, the relay, and jobs that end in whatever way the run ends.

use super::counts::Restartable;
use super::{BYTES, live, lrc_json};
use crate::skip;
use crate::support::command::{Background, python};
use crate::support::datasets::{Nodes, SOON, datasets};
use crate::support::{Scratch, command, eventually, is_root};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Makes `run` the command `copperfs lrc run` of the engine in `engine.py`, which does what `words` say.
fn engine(mut run: Command, flags: &[&str], words: &[&str]) -> Command {
    let python = python();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/system/pipelines/engine.py");
    run.args(["--engine", "none"])
        .args(flags)
        .arg("--")
        .arg(python.get_program())
        .arg(script)
        .args(words);
    run
}

/// Starts a run whose engine has said what it did, in the file `said`.
#[track_caller]
fn started(mut run: Command, said: &Path) -> (Background, Value) {
    let out = fs::File::create(said).unwrap();
    let run = Background::spawn(run.stdin(Stdio::null()).stdout(out));
    let mut value = Value::Null;
    eventually(SOON, "the engine has submitted its jobs", || {
        let text = fs::read_to_string(said).unwrap();
        text.lines().next().is_some_and(|line| {
            value = serde_json::from_str(line).unwrap_or_default();
            !value.is_null()
        })
    });
    (run, value)
}

/// The processes below `parent`.
fn children(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero();
    let path = format!("/proc/{parent}/task/{parent}/children");
    let list = fs::read_to_string(path).unwrap_or_default();
    list.split_whitespace()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
}

/// The command finds the variables, its lines are relayed and answered, and its status is that of the run.
#[test]
fn lines_are_relayed_and_the_status_is_passed_on() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 12, BYTES)]);
    let nodes = Nodes::launch(3, origin.path(), &[]);
    nodes.add("set", &["--keep", "references", "--budget", "120kB"]);
    let scratch = Scratch::new();
    let (go, log) = (scratch.path().join("go"), scratch.path().join("run.log"));
    let until = format!("until={}", go.display());
    let flags = [
        "--app",
        "daily",
        "--consume",
        "read",
        "--log",
        log.to_str().unwrap(),
    ];
    let run = engine(
        nodes.command(1, &["lrc", "run"]),
        &flags,
        &[&until, "end", "7"],
    );
    let (mut run, said) = started(run, &scratch.path().join("said"));
    assert_eq!(said["COPPERFS_LRC_DATASET"], "set", "the only one");
    assert_eq!(said["COPPERFS_LRC_APP"], "daily");
    assert_eq!(said["COPPERFS_LRC_CONSUME"], "read");
    assert_eq!(
        said["COPPERFS_LRC_ROOT"],
        nodes.path(1, "set").to_str().unwrap()
    );
    let accepted = |blocks: u64| json!({ "accepted": true, "blocks": blocks, "unknown_paths": [] });
    assert_eq!(said["submitted"], json!([accepted(12), accepted(3)]));
    assert_eq!(said["done"], json!({ "accepted": true }));
    let wrong = said["wrong"]["error"].as_str().unwrap();
    assert!(
        wrong.contains("reads file 1, and there are 1 files"),
        "{said}"
    );
    assert_eq!(said["again"]["accepted"], false, "it has the same attempt");
    let ls = lrc_json(&nodes, 1, &["ls"]);
    assert_eq!(ls["jobs"][0]["app"], "daily", "{ls}");
    assert_eq!(
        [&ls["jobs"][0]["consume"], &ls["jobs"][0]["tasks_ended"]],
        [&json!("read"), &json!(1)]
    );
    let jobs = live(&nodes, 1);
    assert!(jobs.len() == 2 && jobs[0].starts_with("first-"), "{jobs:?}");
    fs::write(&go, "").unwrap();
    let status = run.exit_within(SOON * 4).expect("the run ends");
    assert_eq!(status.code(), Some(7));
    eventually(SOON, "its jobs have ended", || live(&nodes, 1).is_empty());
    assert_eq!(nodes.total("pipelines.references"), 0);
    let log = fs::read_to_string(&log).unwrap();
    // Six of the engine, and the end of the second job, which the run tells itself.
    assert!(log.lines().count() >= 6, "{log}");
}

/// Jobs end when the command ends, is killed, or crashes; when the run is killed, the daemon ends them.
#[test]
fn jobs_end_however_the_run_ends() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 12, BYTES)]);
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--keep", "references", "--budget", "120kB"]);
    let scratch = Scratch::new();
    let run = |words: &[&str]| {
        let run = engine(
            nodes.command(1, &["lrc", "run"]),
            &["--dataset", "set"],
            words,
        );
        let (run, said) = started(run, &scratch.path().join(format!("said-{}", words[0])));
        assert_eq!(said["submitted"][0]["accepted"], true, "{said}");
        run
    };
    let ended = |how: &str| {
        let since = Instant::now();
        eventually(SOON, format!("{how}: all jobs have ended"), || {
            live(&nodes, 1).is_empty()
        });
        eprintln!("{how}: jobs had ended after {:?}", since.elapsed());
    };
    // The command crashes.
    let status = run(&["abort"]).exit_within(SOON * 4).expect("the run ends");
    assert_eq!(status.code(), Some(128 + 6));
    ended("the command has crashed");
    // The command is killed.
    let mut killed = run(&["wait"]);
    let [command] = children(killed.pid())[..] else {
        panic!("{:?}", children(killed.pid()));
    };
    rustix::process::kill_process(command, Signal::KILL).unwrap();
    let status = killed.exit_within(SOON * 4).expect("the run ends");
    assert_eq!(status.code(), Some(128 + 9));
    ended("the command was killed");
    // A signal to the run reaches the command.
    let mut told = run(&["wait"]);
    told.signal(Signal::TERM);
    let status = told.exit_within(SOON * 4).expect("the run ends");
    assert_eq!(status.code(), Some(128 + 15));
    ended("the run was told to end");
    // The run itself is killed; its command lives on, and is ended here.
    let mut killed = run(&["wait"]);
    let [command] = children(killed.pid())[..] else {
        panic!("{:?}", children(killed.pid()));
    };
    killed.signal(Signal::KILL);
    let status = killed.exit_within(SOON * 4).expect("it is killed");
    assert_eq!(status.signal(), Some(9));
    ended("the run was killed");
    let _gone = rustix::process::kill_process(command, Signal::KILL);
}

/// The command goes on while the daemon is away, and its live jobs are submitted again when it is back, without the tasks
/// that have ended.
#[test]
fn jobs_are_submitted_again_when_the_daemon_is_back() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 12, BYTES)]);
    let mut all = Restartable::start(3, origin.path(), &[]);
    all.ask(
        0,
        &[
            "dataset",
            "add",
            "set",
            "/set",
            "--keep",
            "references",
            "--budget",
            "120kB",
        ],
    );
    // Not by their shares: one of three nodes may be the home of none of twelve items.
    eventually(SOON, "all nodes know the dataset", || {
        let shown: Value = serde_json::from_str(&all.ask(0, &["allocation", "--json"])).unwrap();
        let nodes = shown["nodes"].as_array().unwrap();
        let follow = nodes.iter().all(|node| node["follows"] == shown["serial"]);
        follow && nodes.len() == 3 && !shown["datasets"][0]["size"].is_null()
    });
    let scratch = Scratch::new();
    let go = scratch.path().join("go");
    let until = format!("until={}", go.display());
    let run = engine(all.command(2, &["lrc", "run"]), &[], &[&until, "end", "0"]);
    let (mut run, _) = started(run, &scratch.path().join("said"));
    all.kill(2);
    all.start_node(2);
    let back = Instant::now();
    let references = |all: &Restartable| all.node(2).stats().get("pipelines.references");
    // Task t/0 of the first job has ended.
    eventually(SOON, "the jobs are live again", || {
        references(&all) == 11 + 3
    });
    eprintln!("submitted again after {:?}", back.elapsed());
    let ls = all.ask(2, &["lrc", "ls"]);
    assert!(ls.contains("first") && ls.contains("second"), "{ls}");
    fs::write(&go, "").unwrap();
    let status = run.exit_within(SOON * 4).expect("the run ends");
    assert_eq!(status.code(), Some(0));
    let said = fs::read_to_string(scratch.path().join("said")).unwrap();
    assert!(said.ends_with("{\"accepted\": true}\n"), "{said}");
    eventually(SOON, "the jobs have ended", || references(&all) == 0);
}

/// Everything that can be wrong is told before the command is started.
#[test]
fn runs_that_cannot_be() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 2, BYTES), ("two", 2, BYTES)]);
    let nodes = Nodes::launch(1, origin.path(), &[]);
    let scratch = Scratch::new();
    let ran = scratch.path().join("ran");
    let refused = |flags: &[&str]| {
        let mut run = nodes.command(0, &["lrc", "run"]);
        run.args(flags).args(["--", "touch"]).arg(&ran);
        let said = command::run(&mut run).refused().to_owned();
        assert!(!said.contains("panicked"), "{said}");
        said
    };
    let said = refused(&["--engine", "none"]);
    assert!(said.contains("no dataset is declared"), "{said}");
    nodes.add("set", &["--keep", "references"]);
    nodes.add("two", &["--keep", "references"]);
    let said = refused(&["--engine", "none"]);
    assert!(
        said.contains("set") && said.contains("two") && said.contains("--dataset"),
        "{said}"
    );
    let said = refused(&["--engine", "none", "--dataset", "three"]);
    assert!(said.contains("three") && said.contains("set"), "{said}");
    let said = refused(&["--engine", "flink"]);
    assert!(said.contains("flink") && said.contains("spark"), "{said}");
    let said = refused(&[
        "--engine",
        "none",
        "--dataset",
        "set",
        "--profile",
        scratch.path().to_str().unwrap(),
    ]);
    assert!(said.contains("directory"), "{said}");
    let said = refused(&["--engine", "none", "--dataset", "set", "--data-mount", "/"]);
    assert!(said.contains("no copperfs is mounted there"), "{said}");
    assert!(!ran.exists(), "the command was started");
    let mut run = nodes.command(
        0,
        &[
            "lrc",
            "run",
            "--engine",
            "none",
            "--dataset",
            "set",
            "--",
            "/nowhere",
        ],
    );
    let finished = command::run(&mut run);
    assert!(finished.refused().contains("/nowhere"), "{finished:?}");
}
