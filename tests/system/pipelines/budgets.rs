//! Budgets that follow the references of pipelines, and jobs that expire.

use super::{BYTES, REFERENCES, live, shows, submission, submit, told, with};
use crate::skip;
use crate::support::datasets::{Nodes, SOON, datasets};
use crate::support::{eventually, is_root};
use serde_json::Value;
use std::time::Instant;

#[track_caller]
fn budget(nodes: &Nodes, dataset: &str) -> u64 {
    nodes.dataset(dataset)["budget"].as_u64().unwrap_or(0)
}

/// Bytes for datasets on all nodes together.
#[track_caller]
fn capacity(nodes: &Nodes) -> u64 {
    let shown: Value = nodes.json(&["allocation"]);
    let capacity = shown["cache"]["total"].as_u64();
    capacity.unwrap_or_else(|| panic!("no capacity: {shown}"))
}

/// Without a budget by hand, a dataset gets the bytes of the items with references, up to the share for pipelines. It keeps its bytes after
/// the job as long as nothing else needs the room; then a training job takes it.
#[test]
#[expect(clippy::too_many_lines, reason = "one history of a budget")]
fn a_budget_is_what_is_referred_to() {
    if !is_root() {
        skip!("needs root");
    }
    // A tenth of the cache is more than the smallest part that is worth a move.
    const FILES: u64 = 280;
    const FILE: usize = 500_000;
    let origin = datasets(&[("set", FILES, FILE)]);
    // More than fits: sparse, because nothing reads it.
    origin.dir("train");
    for part in 0..4 {
        origin.hole(&format!("train/f{part}"), 1 << 30, &[]);
    }
    origin.settle();
    let nodes = Nodes::launch(3, origin.path(), &["--pipelines-share", "10"]);
    nodes.add("set", &REFERENCES);
    nodes.add("train", &[]);
    assert_eq!(budget(&nodes, "set"), 0);
    submit(
        &nodes,
        2,
        &submission("small", "set", &[("t", 0..40), ("u", 0..20)]),
    );
    let small = 40 * FILE as u64;
    eventually(SOON, "the budget is what is referred to", || {
        budget(&nodes, "set") == small
    });
    nodes.settled();
    let truth = origin.path().join("set");
    for _ in 0..2 {
        super::read(&nodes.path(0, "set"), &truth, 0..40);
    }
    shows(&nodes, "set", "referenced", nodes.cached());
    assert!(
        nodes.cached() >= small * 8 / 10,
        "{} of {small} bytes are cached",
        nodes.cached()
    );
    // More than the share for pipelines.
    submit(&nodes, 1, &submission("large", "set", &[("t", 0..FILES)]));
    let share = capacity(&nodes) / 10;
    eprintln!(
        "the share for pipelines is {share} bytes of {}",
        capacity(&nodes)
    );
    assert!(
        share < FILES * FILE as u64,
        "the dataset is larger than the share of {share} bytes"
    );
    eventually(SOON, "the budget is the share", || {
        budget(&nodes, "set").abs_diff(share) <= share / 50
    });
    nodes.settled();
    super::read(&nodes.path(0, "set"), &truth, 0..FILES);
    let train = || {
        let job = ["job", "add", "bert", "--dataset", "train"];
        nodes.ask(&[&job[..], &["--ideal-rate", "100MB/s"]].concat());
    };
    // A training job that could use all of the cache does not get the share of live pipelines.
    train();
    eventually(SOON, "the training job has room", || {
        budget(&nodes, "train") > share * 5
    });
    nodes.settled();
    assert!(
        budget(&nodes, "set").abs_diff(share) <= share / 50,
        "{}",
        budget(&nodes, "set")
    );
    nodes.ask(&["job", "end", "bert"]);
    eventually(SOON, "the training job is gone", || {
        nodes.job("bert").is_none()
    });
    let cached = nodes.cached();
    for (rank, job) in [(2, "small"), (1, "large")] {
        super::lrc(&nodes, rank, &["end", job]);
    }
    told(&nodes);
    nodes.settled();
    shows(&nodes, "set", "referenced", 0);
    assert!(
        nodes.cached() >= cached * 9 / 10,
        "{} of {cached} bytes stay",
        nodes.cached()
    );
    // Now another dataset needs the room.
    train();
    eventually(SOON, "the training job has the room", || {
        budget(&nodes, "set") == 0
    });
    eventually(SOON, "the items have gone", || nodes.cached() == 0);
    super::read(&nodes.path(0, "set"), &truth, 0..40);
}

/// A job whose end is never told ends by itself.
#[test]
fn a_job_expires() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 20, BYTES)]);
    let nodes = Nodes::launch(3, origin.path(), &[]);
    nodes.add("set", &[&REFERENCES[..], &["--budget", "200kB"]].concat());
    super::read(&nodes.path(0, "set"), &origin.path().join("set"), 0..20);
    let job = submission("short", "set", &[("t", 0..20)]);
    submit(&nodes, 1, &submission("long", "set", &[("t", 0..5)]));
    let submitted = Instant::now();
    submit(&nodes, 1, &with(&job, "expires_s", 1));
    eventually(SOON, "it has expired", || live(&nodes, 1) == ["long"]);
    eprintln!("a job of 1 s was over after {:?}", submitted.elapsed());
    shows(&nodes, "set", "referenced", 5 * BYTES as u64);
    shows(&nodes, "set", "unreferenced", 15 * BYTES as u64);
    eprintln!("its counts were gone after {:?}", submitted.elapsed());
    // A fraction of a second, and longer than any clock.
    for expires in [Value::from(0.001), Value::from(1e300)] {
        let job = with(
            &submission(&format!("for {expires}"), "set", &[("t", 0..1)]),
            "expires_s",
            expires,
        );
        assert_eq!(submit(&nodes, 1, &job)["accepted"], true);
    }
    eventually(SOON, "one of them has expired", || {
        live(&nodes, 1).len() == 2
    });
}
