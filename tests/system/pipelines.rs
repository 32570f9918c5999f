//! Reference counts of pipelines, from the commands to the homes: what homes keep, and the output of each command. Counts
//! under faults are in `pipelines/counts.rs`, reads of tasks in `pipelines/reads.rs`, `lrc run` in `pipelines/run.rs`, users
//! in `pipelines/tenants.rs`, invalid and hostile input in `pipelines/refused.rs` and `pipelines/hostile.rs`, and budgets,
//! expiry and changes of the rule in `pipelines/budgets.rs` and `pipelines/rules.rs`.

mod budgets;
mod counts;
mod hostile;
mod reads;
mod refused;
mod rules;
mod run;
mod tenants;

use crate::skip;
use crate::support::command::Finished;
use crate::support::datasets::{Nodes, SOON, datasets};
use crate::support::{Scratch, command, eventually, is_root};
use serde_json::{Value, json};
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

/// Bytes of a file, unless a test says something else.
const BYTES: usize = 10_000;

/// Flags of a dataset that is kept by references. Its homes read storage themselves, so that each byte that they read counts
/// once.
const REFERENCES: [&str; 4] = ["--keep", "references", "--origin-readers", "homes"];

/// The path of file `number` in its dataset, as [`datasets`] makes them.
fn file(number: u64) -> String {
    format!("d{}/f{number}", number / 100)
}

/// A submission whose tasks each read files of these numbers.
fn submission(job: &str, dataset: &str, tasks: &[(&str, Range<u64>)]) -> Value {
    let end = tasks.iter().map(|(_, files)| files.end).max().unwrap_or(0);
    let files: Vec<String> = (0..end).map(file).collect();
    let task = |(id, files): &(&str, Range<u64>)| {
        let files: Vec<u64> = files.clone().collect();
        json!({ "id": id, "in": files })
    };
    let tasks: Vec<Value> = tasks.iter().map(task).collect();
    json!({ "v": 1, "op": "submit", "app": "test", "job": job, "dataset": dataset, "files": files, "tasks": tasks })
}

/// A copy of `submission` with one more field.
fn with(submission: &Value, field: &str, value: impl Into<Value>) -> Value {
    let mut changed = submission.clone();
    changed[field] = value.into();
    changed
}

/// `copperfs lrc submit` of these lines, asked by `ask` (a command without words).
fn submitting(scratch: &Scratch, lines: &[u8], ask: impl FnOnce(&[&str]) -> Command) -> Finished {
    let path = tempfile::Builder::new().tempfile_in(scratch.path());
    let (_, path) = path.unwrap().keep().unwrap();
    fs::write(&path, lines).unwrap();
    let finished = command::run(&mut ask(&["lrc", "submit", path.to_str().unwrap()]));
    fs::remove_file(&path).unwrap();
    finished
}

/// The answers that a successful `lrc submit` has printed.
#[track_caller]
fn answers(finished: &Finished) -> Vec<Value> {
    assert!(finished.status.success(), "{finished:?}");
    let text = finished.text();
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text.lines().map(parse).collect()
}

/// Submits `submission` on node `rank`. Returns the answer.
#[track_caller]
fn submit(nodes: &Nodes, rank: usize, submission: &Value) -> Value {
    let scratch = Scratch::new();
    let line = submission.to_string();
    let finished = submitting(&scratch, line.as_bytes(), |words| {
        nodes.command(rank, words)
    });
    answers(&finished).pop().unwrap()
}

/// `copperfs lrc WORDS` on node `rank`, which must succeed. Returns its output.
#[track_caller]
fn lrc(nodes: &Nodes, rank: usize, words: &[&str]) -> String {
    command::check(&mut nodes.command(rank, &[&["lrc"], words].concat()))
}

/// The same as JSON.
#[track_caller]
fn lrc_json(nodes: &Nodes, rank: usize, words: &[&str]) -> Value {
    let said = lrc(
        nodes,
        rank,
        &[&words[..1], &["--json"], &words[1..]].concat(),
    );
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// Names of the live jobs of node `rank`.
#[track_caller]
fn live(nodes: &Nodes, rank: usize) -> Vec<String> {
    let all = lrc_json(nodes, rank, &["ls"]);
    let jobs = all["jobs"].as_array().unwrap().iter();
    jobs.map(|job| job["job"].as_str().unwrap().to_owned())
        .collect()
}

/// References that each task of a job holds.
#[track_caller]
fn held(nodes: &Nodes, rank: usize, job: &str) -> Vec<u64> {
    let all = lrc_json(nodes, rank, &["show", job]);
    let tasks = all["tasks"].as_array().unwrap().iter();
    tasks.map(|task| task["held"].as_u64().unwrap()).collect()
}

/// Waits until all homes know all counts.
#[track_caller]
fn told(nodes: &Nodes) {
    eventually(SOON, "homes know all counts", || {
        nodes.total("pipelines.unconfirmed") == 0
    });
}

/// Waits until a number of `dataset show … --json` about references has this value.
#[track_caller]
fn shows(nodes: &Nodes, dataset: &str, key: &str, value: u64) {
    let mut last = Value::Null;
    let mut is_so = || {
        last = nodes.dataset(dataset)["references"].clone();
        last[key] == value
    };
    // The last value goes into the message.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually(SOON, format!("{key} is {value}"), &mut is_so);
    }));
    outcome.unwrap_or_else(|_| panic!("{dataset}: {key} is not {value}: {last}"));
}

/// Reads files of these numbers through `directory`, and compares them with those in `truth`.
#[track_caller]
fn read(directory: &Path, truth: &Path, files: Range<u64>) {
    for name in files.map(file) {
        let bytes =
            fs::read(directory.join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(bytes == fs::read(truth.join(&name)).unwrap(), "{name}");
    }
}

/// Items with more references stay at all homes while others pass through, and each command tells of it.
#[test]
fn homes_keep_the_items_with_the_most_references() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 400, BYTES)]);
    let nodes = Nodes::launch(4, origin.path(), &[]);
    nodes.add("set", &[&REFERENCES[..], &["--budget", "1.6MB"]].concat());
    let truth = origin.path().join("set");
    let tasks = [
        ("a/0", 0..60),
        ("a/1", 0..60),
        ("a/2", 0..60),
        ("b/0", 60..400),
    ];
    let answer = submit(&nodes, 3, &submission("app-1/sql-0", "set", &tasks));
    assert_eq!(
        answer,
        json!({ "accepted": true, "blocks": 400, "unknown_paths": [] })
    );
    told(&nodes);
    // The budget holds 160 items, and 60 are referred to three times.
    for rank in [1, 0, 2] {
        read(&nodes.path(rank, "set"), &truth, 0..400);
    }
    let before = nodes.total("origin.read_bytes");
    read(&nodes.path(2, "set"), &truth, 0..60);
    assert_eq!(nodes.total("origin.read_bytes"), before, "they were kept");
    read(&nodes.path(2, "set"), &truth, 60..400);
    let again = nodes.total("origin.read_bytes") - before;
    assert!(
        again >= 200 * BYTES as u64,
        "{again} bytes of the others were read again"
    );
    let cached = nodes.cached();
    assert!(cached <= 1_600_000, "{cached} bytes are cached");
    shows(&nodes, "set", "referenced", cached);
    let shown = nodes.dataset("set")["references"].clone();
    eprintln!("dataset show: {shown}");
    let count = |key: &str| {
        shown[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key}: {shown}"))
    };
    assert_eq!([count("jobs"), count("references")], [1, 3 * 60 + 340]);
    assert_eq!([count("unreferenced"), count("undeclared")], [0, 0]);
    assert!(count("evicted") > 0, "{shown}");
    // Each of three rounds and the last one.
    shows(&nodes, "set", "hits", 3 * 60);
    shows(&nodes, "set", "misses", 400 + 3 * 340);
    let text = nodes.ask(&["dataset", "show", "set"]);
    assert!(
        text.contains("1 live pipelines with 520 references"),
        "{text}"
    );

    the_commands_tell_of_a_job(&nodes);
    // Nothing refers to the items now. They stay until room is needed, or flush-zero.
    shows(&nodes, "set", "referenced", 0);
    assert_eq!(nodes.cached(), cached);
    let flushed = lrc(&nodes, 1, &["flush-zero", "set"]);
    assert!(
        flushed.contains(&format!("{} items of", cached / BYTES as u64)),
        "{flushed}"
    );
    assert_eq!(nodes.cached(), 0);
    read(&nodes.path(0, "set"), &truth, 0..400);
}

/// Reads the output of each command about the only job, on its node 3, and ends it.
#[track_caller]
fn the_commands_tell_of_a_job(nodes: &Nodes) {
    let ls = lrc(nodes, 3, &["ls"]);
    assert!(ls.contains("app-1/sql-0") && ls.contains("520"), "{ls}");
    // Other nodes know that there is a job, and where.
    let elsewhere = lrc_json(nodes, 0, &["ls"]);
    assert_eq!(elsewhere["jobs"], json!([]));
    assert_eq!(elsewhere["nodes"][0]["jobs"], 1, "{elsewhere}");
    assert_eq!(
        elsewhere["nodes"][0]["bytes"],
        400 * BYTES as u64,
        "{elsewhere}"
    );
    let ls = lrc(nodes, 0, &["ls"]);
    assert!(
        ls.contains("no pipeline of this node is live") && ls.contains("3.81 MiB"),
        "{ls}"
    );

    let show = lrc(nodes, 3, &["show", "app-1/sql-0"]);
    assert!(show.contains("a/0") && show.contains("340"), "{show}");
    let gone = command::run(&mut nodes.command(0, &["lrc", "show", "app-1/sql-0"]));
    assert!(gone.refused().contains("no live job"), "{gone:?}");
    let count = |path: &str| {
        let counts = lrc_json(nodes, 3, &["counts", "set", path]);
        let counts = counts["counts"].as_array().unwrap().clone();
        counts
            .iter()
            .map(|one| one["count"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        [count("d0/f5"), count("d3/f399"), count("d9")],
        [vec![3], vec![1], vec![]]
    );
    assert_eq!(
        [count("").len(), count("d0").len(), count("d0/").len()],
        [400, 100, 100]
    );
    let counts = lrc(nodes, 3, &["counts", "set", "d0/f5"]);
    assert!(
        counts.contains("d0/f5") && counts.contains("9.76 KiB"),
        "{counts}"
    );
    let counts = lrc(nodes, 3, &["counts", "set", "--max", "2"]);
    assert_eq!(counts.lines().count(), 3, "{counts}");

    let told = |words: &[&str]| lrc(nodes, 3, words);
    let done = ["done", "app-1/sql-0", "a/0"];
    assert_eq!(told(&done), "a/0 of app-1/sql-0 has released its inputs\n");
    assert_eq!(count("d0/f5"), [2]);
    let failed = told(&["taskfail", "app-1/sql-0", "a/0"]);
    assert!(
        failed.contains("nothing to do") && failed.contains("has ended"),
        "{failed}"
    );
    let failed = told(&["taskfail", "app-1/sql-0", "a/1"]);
    assert_eq!(failed, "a/1 of app-1/sql-0 will read its inputs again\n");
    assert_eq!(
        [count("d0/f5"), held(nodes, 3, "app-1/sql-0")],
        [vec![2], vec![0, 60, 60, 340]]
    );
    assert!(told(&["done", "app-1/sql-0", "z"]).contains("nothing to do"));
    assert_eq!(told(&["end", "app-1/sql-0"]), "app-1/sql-0 has ended\n");
    assert!(told(&["end", "app-1/sql-0"]).contains("nothing to do"));
    assert!(told(&["counts", "set"]).contains("no live job"));
    assert!(told(&["ls"]).contains("no pipeline of this node is live"));
}

/// A reference to bytes counts on each stripe that they touch, once for a task, and only there.
#[test]
fn ranges_count_on_the_stripes_that_they_touch() {
    if !is_root() {
        skip!("needs root");
    }
    const STRIPE: u64 = 4 << 20;
    const SIZE: usize = (12 << 20) + 5;
    let origin = datasets(&[("large", 2, SIZE)]);
    let nodes = Nodes::launch(3, origin.path(), &[]);
    nodes.add("large", &["--keep", "references", "--budget", "40MB"]);
    let line = json!({ "v": 1, "op": "submit", "job": "j", "dataset": "large", "files": ["d0/f0"], "tasks": [
        // The last byte of the first stripe, and the first one of the second; both twice.
        { "id": "over", "in": [[0, STRIPE - 1, 2], [0, STRIPE - 1, 2]] },
        { "id": "whole", "in": [0, [0, 0, 1]], "after": ["over"] },
        { "id": "end", "in": [[0, 3 * STRIPE, 5]] },
        { "id": "nothing", "in": [[0, 7, 0]] },
    ] });
    let answer = submit(&nodes, 1, &line);
    assert_eq!(answer["blocks"], 4, "{answer}");
    let counts = lrc_json(&nodes, 1, &["counts", "large"]);
    let counts: Vec<[u64; 3]> = counts["counts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| ["offset", "len", "count"].map(|key| one[key].as_u64().unwrap()))
        .collect();
    let wanted = [
        [0, STRIPE, 2],
        [STRIPE, STRIPE, 2],
        [2 * STRIPE, STRIPE, 1],
        [3 * STRIPE, 5, 2],
    ];
    assert_eq!(counts, wanted);
    // Inputs by their own paths, and a directory with all that is below.
    let line = json!({ "v": 1, "op": "submit", "job": "k", "dataset": "large", "tasks": [
        { "id": "all", "inputs": [{ "path": "d0", "recursive": true }] },
        { "id": "part", "inputs": [{ "path": "./d0//f1", "off": 5, "len": 1 }, { "path": "/large/d0/f1" }] },
        { "id": "not there", "inputs": [{ "path": "later" }, { "path": "d0" }] },
    ] });
    let answer = submit(&nodes, 1, &line);
    assert_eq!(answer["blocks"], 8, "{answer}");
    assert_eq!(answer["unknown_paths"], json!(["later"]));
    // A directory is read by the task that says so only.
    assert_eq!(held(&nodes, 1, "k"), [8, 4, 0]);
    told(&nodes);
    for job in ["j", "k"] {
        lrc(&nodes, 1, &["end", job]);
    }
    told(&nodes);
    assert_eq!(nodes.total("pipelines.references"), 0);
    assert_eq!(nodes.total("pipelines.referenced_bytes"), 0);
}

/// A submission with a higher attempt replaces the job; the same or a lower one is ignored, also after the end.
#[test]
fn attempts_replace_each_other() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 20, BYTES)]);
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--keep", "references", "--budget", "200kB"]);
    let first = submission("j", "set", &[("t", 0..10)]);
    let accepted = |submission: &Value| submit(&nodes, 1, submission)["accepted"] == true;
    assert!(accepted(&with(&first, "attempt", 3)));
    assert!(!accepted(&with(&first, "attempt", 3)) && !accepted(&first));
    let again = submission("j", "set", &[("t", 5..20), ("u", 19..20)]);
    assert!(accepted(&with(&again, "attempt", 4)));
    assert_eq!(held(&nodes, 1, "j"), [15, 1]);
    assert_eq!(nodes.total("pipelines.references"), 16);
    lrc(&nodes, 1, &["end", "j"]);
    assert!(!accepted(&with(&again, "attempt", 4)), "it has ended");
    assert!(accepted(&with(&first, "attempt", 5)));
    // The job is known on the node that has taken it only.
    assert_eq!([live(&nodes, 1).len(), live(&nodes, 0).len()], [1, 0]);
}
