use super::*;
use crate::tests::{MB, TB, assert_near};
use crate::{Keep, Mode};
use proptest::prelude::*;

const EXAMPLE: &str = r#"{
    "totals": {"gpus": 8, "cache": "2TB", "remote_io": "1.6Gbps"},
    "datasets": [{"name": "A", "size": "1.3TB"}, {"name": "B", "size": 1300000000000}],
    "jobs": [
        {"id": "r0", "dataset": "A", "ideal_rate": "114MB/s", "gpus": 1, "work": "16.9TB"},
        {"id": "r1", "dataset": "B", "ideal_rate": 114000000, "gpus": 1}
    ]
}"#;

#[test]
fn a_problem_is_parsed_and_its_allocation_formatted() {
    let problem = Problem::from_json(EXAMPLE).unwrap();
    assert_eq!(problem.totals.cache, 2.0 * TB);
    assert_eq!(problem.totals.remote_io, 200.0 * MB);
    assert_eq!(problem.datasets[0].size, problem.datasets[1].size);
    assert_eq!(problem.jobs[0].ideal_rate, problem.jobs[1].ideal_rate);
    assert_eq!(problem.jobs[0].work, Some(16_900_000_000_000.0));
    assert_eq!(problem.jobs[1].work, None);
    let answer = Policy::Greedy.allocate(&problem);
    let json = answer.to_json(&problem, Policy::Greedy);
    assert_eq!(json["policy"], "greedy");
    // A whole number of bytes, and not 1.3e12.
    assert_eq!(json["datasets"]["A"]["cache"].to_string(), "1300000000000");
    assert_eq!(json["datasets"]["B"]["cache"], 700_000_000_000_u64);
    assert_eq!(json["jobs"]["r0"]["remote_io"], 0);
    assert_eq!(json["jobs"]["r0"]["order"], 0);
    assert_eq!(json["jobs"]["r0"]["throughput"], 114_000_000);
    assert_near(
        json["jobs"]["r1"]["remote_io"].as_f64().unwrap(),
        52.6 * MB,
        1e-3,
    );
    assert_near(json["objective"].as_f64().unwrap(), 175.4 * MB, 1e-3);
    assert_eq!(json["datasets"]["A"]["choice"], "whole");
    assert_eq!(json["datasets"]["B"]["choice"], "uniform");
    // A job without a score has null, and not zero.
    let json = Policy::Sjf
        .allocate(&problem)
        .to_json(&problem, Policy::Sjf);
    assert!(json["jobs"]["r1"]["score"].is_null());
    assert!(json["jobs"]["r0"]["score"].is_number());
}

#[test]
fn what_benefit_needs_is_parsed() {
    let with_measurements = EXAMPLE
        .replace(
            r#""size": "1.3TB""#,
            r#""size": "1.3TB", "keep": "chunks", "chunk_size": "4GB""#,
        )
        .replace(
            r#""work": "16.9TB""#,
            r#""substitutes": true, "mode": "probe", "measured": {"uncached_s": 0.36,
               "whole_s": 0.09, "chunks_s": 0.15, "part_s": 0.2, "part_hits": 0.5}"#,
        );
    let problem = Problem::from_json(&with_measurements).unwrap();
    let dataset = &problem.datasets[0];
    assert_eq!((dataset.keep, dataset.two_chunks()), (Keep::Chunks, 8e9));
    let job = &problem.jobs[0];
    assert_eq!((job.substitutes, job.mode), (true, Mode::Probe));
    let measured = Times {
        uncached_s: 0.36,
        whole_s: Some(0.09),
        chunks_s: Some(0.15),
        part: Some(Part {
            cached_s: 0.2,
            hit_ratio: 0.5,
        }),
    };
    assert_eq!(job.measured, Some(measured));
    let plain = Problem::from_json(EXAMPLE).unwrap();
    assert_eq!(
        (plain.datasets[0].keep, plain.datasets[0].two_chunks()),
        (Keep::Auto, 30e9)
    );
    let job = &plain.jobs[0];
    assert_eq!(
        (job.substitutes, job.mode, job.measured),
        (false, Mode::Cached, None)
    );
    let answer = Policy::Benefit.allocate(&problem);
    let json = answer.to_json(&problem, Policy::Benefit);
    assert_eq!(json["datasets"]["A"]["choice"], "chunks");
}

/// Returns the error for the example with one text replaced.
#[track_caller]
fn refused(from: &str, to: &str) -> String {
    assert!(EXAMPLE.contains(from), "{from}");
    Problem::from_json(&EXAMPLE.replacen(from, to, 1))
        .unwrap_err()
        .to_string()
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn every_mistake_has_its_message() {
    for (from, to, message) in [
        (
            r#""name": "B""#,
            r#""name": "A""#,
            r#"datasets 0 and 1 have the same name, "A": every dataset needs its own"#,
        ),
        (
            r#""id": "r1""#,
            r#""id": "r0""#,
            r#"jobs 0 and 1 have the same name, "r0": every job needs its own"#,
        ),
        (
            r#""size": "1.3TB""#,
            r#""size": 0"#,
            r#"datasets[0] ("A"): size: it is 0: a dataset without bytes has nothing to cache"#,
        ),
        (
            r#""114MB/s""#,
            r#""0MB/s""#,
            r#"jobs[0] ("r0"): ideal_rate: it is 0: a job that never reads needs no cache and no remote IO; leave it out"#,
        ),
        (
            r#""size": "1.3TB""#,
            r#""size": "1.3TB", "budget": -1"#,
            r#"datasets[0] ("A"): budget: -1 is negative"#,
        ),
        (
            r#""size": "1.3TB""#,
            r#""size": "1.3TB", "budget": "2.5TB""#,
            r#"datasets[0] ("A"): budget: 2500000000000 is more than the cluster's cache, 2000000000000"#,
        ),
        (
            r#""size": "1.3TB"}, {"name": "B","#,
            r#""size": "1.3TB", "budget": "1.3TB"}, {"name": "B", "budget": "1TB","#,
            "budgets set by hand add up to 2300000000000, and the total is 2000000000000: lower one of them",
        ),
        (
            r#""work": "16.9TB""#,
            r#""remote_io": "300MB/s""#,
            r#"jobs[0] ("r0"): remote_io: 300000000 is more than the cluster's remote IO, 200000000"#,
        ),
        (
            r#""2TB""#,
            r#""-2TB""#,
            r#"totals: cache: "-2TB" is negative"#,
        ),
        (r#""1.6Gbps""#, "-5", "totals: remote_io: -5 is negative"),
        (
            r#""1.3TB""#,
            r#""12""#,
            r#"datasets[0] ("A"): size: "12" has no unit: write "1.3TB", or 12 without quotes for bytes"#,
        ),
        (
            r#""114MB/s""#,
            r#""114""#,
            r#"jobs[0] ("r0"): ideal_rate: "114" has no unit: write "114MB/s", or 114 without quotes for bytes per second"#,
        ),
        (
            r#""114MB/s""#,
            r#""114MB""#,
            r#"jobs[0] ("r0"): ideal_rate: "114MB" is not a rate: it does not say per second. Write a number and a unit: 200MB/s (1000-based), 200MiB/s (1024-based), or bits: 1.6Gbps, 1.6Gbit/s"#,
        ),
        (
            r#""dataset": "B", "#,
            "",
            r#"jobs[1] ("r1"): "dataset" is missing. A job on no dataset reads nothing: give the name of one of "datasets"."#,
        ),
        (
            r#""dataset": "B""#,
            r#""dataset": "imagenet""#,
            r#"jobs[1] ("r1"): there is no dataset "imagenet". The datasets: A, B"#,
        ),
        (
            r#""gpus": 1, "#,
            r#""gpus": 16, "#,
            r#"jobs[0] ("r0") wants 16 GPUs; the cluster has 8"#,
        ),
        (
            r#""gpus": 8"#,
            r#""gpus": 0"#,
            "totals: gpus: it is 0: a cluster without GPUs runs no job",
        ),
        (
            r#""cache": "2TB", "remote_io": "1.6Gbps""#,
            r#""cache": 0, "remote_io": 0"#,
            "totals: cache and remote_io are both 0: no job could read a byte, so there is nothing to plan",
        ),
        (
            r#""work":"#,
            r#""wrok":"#,
            r#"jobs[0] ("r0"): there is no field "wrok" (did you mean "work"?). The fields: id, dataset, ideal_rate, gpus, work, hit_ratio, remote_io, substitutes, measured, mode"#,
        ),
        (
            r#""totals": {"#,
            r#""totals": {"nodes": 4, "#,
            r#"totals: there is no field "nodes". The fields: gpus, cache, remote_io"#,
        ),
        (
            r#""cache": "2TB", "#,
            "",
            r#"totals: "cache" is missing. Write "2TB"."#,
        ),
        (
            r#""2TB""#,
            "true",
            "totals: cache is true or false; it must be a number or a text with a unit",
        ),
        (
            r#""gpus": 8"#,
            r#""gpus": "8""#,
            "totals: gpus is a text; it must be a number",
        ),
        (
            r#""id": "r1""#,
            r#""id": " ""#,
            r#"jobs[1] (" "): id: it is empty"#,
        ),
        (
            r#""work": "16.9TB""#,
            r#""hit_ratio": 1.5"#,
            r#"jobs[0] ("r0"): hit_ratio: 1.5 is not a ratio: it lies between 0 and 1"#,
        ),
        (
            r#""size": "1.3TB""#,
            r#""size": "1.3TB", "keep": "some""#,
            r#"datasets[0] ("A"): keep: "some" is not a rule of what is kept. The rules: auto (the default), uniform, chunks, references, none"#,
        ),
        (
            r#""size": "1.3TB""#,
            r#""size": "1.3TB", "keep": "none", "budget": "1TB""#,
            r#"datasets[0] ("A"): it has a budget, and its rule is to keep nothing: remove the budget, or write "keep": "uniform""#,
        ),
        (
            r#""size": "1.3TB""#,
            r#""size": "1.3TB", "chunk_size": 0"#,
            r#"datasets[0] ("A"): chunk_size: it is 0: a chunk without bytes holds nothing"#,
        ),
        (
            r#""work": "16.9TB""#,
            r#""substitutes": "yes""#,
            r#"jobs[0] ("r0"): substitutes is a text; it must be true or false, without quotes"#,
        ),
        (
            r#""work": "16.9TB""#,
            r#""mode": "off""#,
            r#"jobs[0] ("r0"): mode: "off" is not a mode. The modes: cached (the default), uncached, probe"#,
        ),
        (
            r#""work": "16.9TB""#,
            r#""measured": {"whole_s": 1}"#,
            r#"jobs[0] ("r0"): measured: "uncached_s" is missing. Seconds per mini-batch without a cache: a number."#,
        ),
        (
            r#""work": "16.9TB""#,
            r#""measured": {"uncached_s": 1, "whole_s": 0}"#,
            r#"jobs[0] ("r0"): measured: with a cache: it is 0: no mini-batch takes no time; leave it out if it was not measured"#,
        ),
        (
            r#""work": "16.9TB""#,
            r#""measured": {"uncached_s": 1, "part_s": 1, "part_hits": 2}"#,
            r#"jobs[0] ("r0"): measured: part_hits: 2 is not a ratio: it lies between 0 and 1"#,
        ),
        (
            r#""work": "16.9TB""#,
            r#""measured": {"uncached_s": 1, "part_s": 1}"#,
            r#"jobs[0] ("r0"): measured: "part_hits" is missing. The fraction of look-ups that hit in "part_s": a number."#,
        ),
        (
            r#""1.3TB""#,
            r#""NaN""#,
            r#"datasets[0] ("A"): size: "NaN" is not a size: no number in front. Write a number and a unit: 10GiB (1024-based), 10GB (1000-based), 10G (short for 10GiB), 512MiB, 64K, or plain bytes"#,
        ),
    ] {
        assert_eq!(refused(from, to), message);
    }
    // Numbers beyond f64, and invalid JSON.
    assert!(
        refused("1300000000000", "1e999")
            .starts_with("the problem is not JSON: number out of range")
    );
    assert!(refused("1300000000000", "NaN").starts_with("the problem is not JSON: "));
    assert_eq!(
        Problem::from_json("[]").unwrap_err().to_string(),
        "the problem is a list; it must be an object"
    );
}

/// The worked example of docs/ALLOCATOR.md, with the numbers calculated by hand there.
#[test]
fn the_worked_example() {
    let text = include_str!("../../../docs/ALLOCATOR.md");
    let (_, example) = text.split_once("## A worked example\n```json\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let problem = Problem::from_json(example).unwrap();
    for (policy, caches, reads) in [
        (Policy::Greedy, [0.8, 0.2, 0.0], [100.0, 60.0, 33.3, 20.0]),
        (Policy::MaxMin, [0.8, 0.2, 0.0], [100.0, 60.0, 34.1, 19.5]),
        (Policy::Sjf, [0.8, 0.2, 0.0], [100.0, 60.0, 50.0, 10.0]),
        (Policy::Benefit, [0.8, 0.0, 0.0], [100.0, 60.0, 20.0, 20.0]),
        (Policy::Static, [0.5, 0.25, 0.25], [14.5, 14.5, 20.0, 11.4]),
    ] {
        let answer = policy.allocate(&problem);
        for (share, cache) in answer.datasets.iter().zip(caches) {
            assert!(
                (share.cache / TB - cache).abs() < 1e-9,
                "{policy}: {share:?}"
            );
        }
        for (share, read) in answer.jobs.iter().zip(reads) {
            assert_near(share.throughput / MB, read, 5e-3);
        }
    }
    assert_near(
        Policy::Greedy.allocate(&problem).objective,
        180.0 * MB,
        1e-9,
    );
    assert_near(Policy::MaxMin.allocate(&problem).objective, 1.707, 1e-3);
    assert_near(Policy::Benefit.allocate(&problem).objective, 18.0, 1e-9);
    let sjf = Policy::Sjf.allocate(&problem);
    let scores = sjf
        .jobs
        .iter()
        .zip([130_000.0, 65_000.0, 75_000.0, 112_500.0]);
    for (share, score) in scores {
        assert_near(share.score.unwrap(), score, 1e-9);
    }
    let orders: Vec<usize> = sjf.jobs.iter().map(|share| share.order).collect();
    assert_eq!(orders, [3, 0, 1, 2]);
}

#[test]
fn notes_name_surprising_consequences() {
    let with = |from: &str, to: &str| Problem::from_json(&EXAMPLE.replacen(from, to, 1)).unwrap();
    assert_eq!(
        Problem::from_json(EXAMPLE).unwrap().notes(),
        Vec::<String>::new()
    );
    let notes = with(r#""1.6Gbps""#, "0").notes();
    assert!(
        notes[0].starts_with("without remote IO only jobs whose whole dataset"),
        "{notes:?}"
    );
    let notes = with(r#""gpus": 8"#, r#""gpus": 1"#).notes();
    assert!(
        notes[0].starts_with("the jobs want 2 GPUs and the cluster has 1"),
        "{notes:?}"
    );
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,60}", field in 0..60_usize) {
        let _any = Problem::from_json(&text);
        // A valid problem with text inserted somewhere.
        let cut = EXAMPLE.char_indices().nth(field * EXAMPLE.len() / 60).unwrap().0;
        let _spoilt = Problem::from_json(&format!("{}{text}{}", &EXAMPLE[..cut], &EXAMPLE[cut..]));
    }
}
