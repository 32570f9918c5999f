//! Datasets that change while jobs refer to them.

use super::{BYTES, REFERENCES, live, shows, submission, submit, told};
use crate::skip;
use crate::support::datasets::{Nodes, SOON, datasets};
use crate::support::{eventually, is_root};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// The rule of a dataset changes to another one and back while jobs are live and it is read: no read fails, the jobs end,
/// and those that are submitted after it count.
#[test]
fn a_rule_that_changes_under_live_jobs() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 100, BYTES)]);
    let nodes = Nodes::launch(3, origin.path(), &[]);
    nodes.add("set", &[&REFERENCES[..], &["--budget", "1MB"]].concat());
    let truth = origin.path().join("set");
    let stop = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                super::read(&nodes.path(0, "set"), &truth, 0..100);
            }
        });
        let checked = catch_unwind(AssertUnwindSafe(|| {
            for round in 0..3 {
                submit(&nodes, 1, &submission("j", "set", &[("t", 0..50)]));
                submit(&nodes, 2, &submission("k", "set", &[("t", 25..75)]));
                shows(&nodes, "set", "referenced", 75 * BYTES as u64);
                nodes.ask(&["dataset", "set", "set", "--keep", "uniform"]);
                eventually(SOON, "the jobs end", || {
                    live(&nodes, 1).is_empty() && live(&nodes, 2).is_empty()
                });
                eventually(SOON, "homes follow the other rule", || {
                    nodes.dataset("set")["references"].is_null()
                });
                nodes.ask(&["dataset", "set", "set", "--keep", "references"]);
                eprintln!("round {round}");
                shows(&nodes, "set", "referenced", 0);
                nodes.settled();
            }
        }));
        stop.store(true, Ordering::Relaxed);
        let read = reading.join();
        checked.and(read)
    });
    outcome.unwrap_or_else(|panic| resume_unwind(panic));
}

/// A dataset that is removed while jobs refer to it, and one of the same name that is declared after it.
#[test]
fn a_dataset_that_is_removed_under_live_jobs() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 50, BYTES), ("other", 50, BYTES)]);
    let nodes = Nodes::launch(3, origin.path(), &[]);
    let add = [&REFERENCES[..], &["--budget", "500kB"]].concat();
    nodes.add("set", &add);
    nodes.add("other", &add);
    let truth = origin.path().join("set");
    let job = submission("j", "set", &[("t", 0..50)]);
    submit(&nodes, 1, &job);
    submit(&nodes, 1, &submission("k", "other", &[("t", 0..50)]));
    super::read(&nodes.path(0, "set"), &truth, 0..50);
    nodes.ask(&["dataset", "rm", "set"]);
    eventually(SOON, "its job ends, and no other", || {
        live(&nodes, 1) == ["k"]
    });
    super::read(&nodes.path(0, "set"), &truth, 0..50);
    nodes.add("set", &add);
    shows(&nodes, "set", "jobs", 0);
    // It is another dataset, so the first attempt is new.
    let answer = submit(&nodes, 1, &job);
    assert_eq!(answer["accepted"], true, "{answer}");
    super::read(&nodes.path(0, "set"), &truth, 0..50);
    shows(&nodes, "set", "referenced", 50 * BYTES as u64);
    told(&nodes);
    // A job of this name reads another dataset already.
    let elsewhere = submission("j", "other", &[("t", 0..5)]);
    let scratch = crate::support::Scratch::new();
    let line = elsewhere.to_string();
    let finished = super::submitting(&scratch, line.as_bytes(), |words| nodes.command(1, words));
    assert!(
        finished.refused().contains("another dataset already"),
        "{finished:?}"
    );
}
