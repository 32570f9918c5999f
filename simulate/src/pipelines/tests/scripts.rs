//! The events that a script writes.

use crate::pipelines::script::{Job, Lane, Script, Start, Step, Work};
use copperfs_policy::references::replay::Event;

fn work(id: &str, steps: &[Step], after: Option<usize>) -> Work {
    Work {
        id: id.to_owned(),
        steps: steps.to_vec(),
        after,
    }
}

fn job(name: &str, stages: Vec<Vec<Work>>, start: Start) -> Job {
    Job {
        tenant: "t".to_owned(),
        name: name.to_owned(),
        stages,
        start,
    }
}

/// Returns the kind of each event, with its task or its block.
fn written(lane: &Lane) -> Vec<String> {
    let one = |event: &Event| match event {
        Event::Submit { job, .. } => format!("submit {job}"),
        Event::Read { block, .. } => format!("read {block}"),
        Event::Put { block } => format!("put {block}"),
        Event::Done { task, .. } => format!("done {task}"),
        Event::End { job, .. } => format!("end {job}"),
        other => format!("{other:?}"),
    };
    lane.iter().map(one).collect()
}

#[test]
fn jobs_and_stages_run_one_after_the_other() {
    let mut script = Script::new(1);
    let [a, b] = ["A", "B"].map(|name| script.block(name.to_owned(), 1));
    let first = work("0", &[Step::Read(a), Step::Put(b)], None);
    let jobs = [
        job(
            "1",
            vec![vec![first], vec![work("1", &[Step::Read(b)], None)]],
            Start::Listed,
        ),
        job(
            "2",
            vec![vec![work("0", &[Step::Read(b)], None)]],
            Start::Listed,
        ),
    ];
    let lane = script.lane(&jobs);
    assert_eq!(
        written(&lane).join(", "),
        "submit 1, read A, put B, done 0, read B, done 1, end 1, submit 2, read B, done 0, end 2"
    );
    // B is read in its own job and in the next one. A has no source.
    assert_eq!((script.distances.references, script.distances.sum), (2, 1));
    assert_eq!(script.distances.mean(), Some(0.5));
    assert_eq!((script.jobs, script.tasks), (2, 3));
}

#[test]
fn a_task_starts_after_the_one_that_it_waits_for() {
    for seed in 0..50 {
        let mut script = Script::new(seed);
        script.slots = 3;
        let blocks: Vec<_> = (0..6).map(|at| script.block(at.to_string(), 1)).collect();
        let task = |at: usize| {
            let after = (at % 2 == 1).then(|| at - 1);
            work(&at.to_string(), &[Step::Read(blocks[at])], after)
        };
        let stage = (0..6).map(task).collect();
        let lane = script.lane(&[job("1", vec![stage], Start::Random)]);
        let events = written(&lane);
        let place = |event: &str| events.iter().position(|one| one == event).unwrap();
        for at in [1, 3, 5] {
            assert!(
                place(&format!("done {}", at - 1)) < place(&format!("read {at}")),
                "{events:?}"
            );
        }
        assert_eq!(events.len(), 14);
    }
}

/// A driver submits its next job at once, although other tenants are running.
#[test]
fn merged_lanes_keep_their_order() {
    let mut script = Script::new(3);
    let lanes = ["a", "b", "c"].map(|name| {
        let block = script.block(name.to_owned(), 1);
        let one = |number: usize| {
            let task = work("0", &[Step::Read(block)], None);
            job(&format!("{name}{number}"), vec![vec![task]], Start::Listed)
        };
        script.lane(&[one(1), one(2)])
    });
    let merged = script.merge(lanes.to_vec());
    let events = written(&merged);
    assert_eq!(events.len(), 24);
    for name in ["a", "b", "c"] {
        let place = |event: String| events.iter().position(|one| *one == event).unwrap();
        assert_eq!(
            place(format!("submit {name}2")),
            place(format!("end {name}1")) + 1
        );
    }
    let of_a: Vec<_> = events.iter().filter(|event| event.ends_with('a')).collect();
    assert_eq!(of_a, ["read a", "read a"]);
}
