use super::*;
use crate::tests::{
    MB, assert_near, dataset, figure_4, job, micro_benchmark, steady_problems, totals,
};
use proptest::prelude::*;

#[test]
fn figure_4_with_both_readings() {
    // 50 MB/s for both jobs together. Any division of the cache between the two equal jobs leaves
    // the slower one at 51.5 MB/s; leximin lets the other have its dataset whole.
    let answer = max_min(&figure_4(50.0 * MB));
    let rates: Vec<f64> = answer
        .jobs
        .iter()
        .map(|share| share.throughput / MB)
        .collect();
    assert_near(rates[0], 114.0, 1e-9);
    assert_near(rates[1], 50.0 / (1.0 - 0.04 / 1.36), 1e-9);
    let equal = equal_throughputs(&figure_4(50.0 * MB));
    assert_near(equal[0] / MB, 25.0 / (1.0 - 0.7 / 1.36), 1e-9);
    assert_near(equal[0] / MB, 51.5, 1e-3);
    assert_near(answer.objective, 1.0, 1e-9);
    // 50 MB/s for each job: equal shares give 103 (the paper: 107), and there is a better way.
    let answer = max_min(&figure_4(100.0 * MB));
    let equal = equal_throughputs(&figure_4(100.0 * MB));
    assert_near(equal[0] / MB, 103.03, 1e-3);
    let rates: Vec<f64> = answer
        .jobs
        .iter()
        .map(|share| share.throughput / MB)
        .collect();
    assert_near(rates[0], 114.0, 1e-9);
    assert_near(rates[1], 100.0 / (1.0 - 0.04 / 1.36), 1e-9);
}

#[test]
fn the_micro_benchmark_needs_no_sacrifice() {
    let answer = max_min(&micro_benchmark());
    for (share, job) in answer.jobs.iter().zip(micro_benchmark().jobs) {
        assert_near(share.throughput, job.ideal_rate, 1e-9);
    }
}

#[test]
fn jobs_at_one_level_and_one_beyond() {
    // The small dataset is cached whole and its job needs no remote IO. The other two share the
    // rest evenly, relative to their equal shares.
    let problem = Problem {
        totals: totals(3.0, 300.0, 30.0),
        datasets: vec![
            dataset("small", 100.0),
            dataset("big", 1_000.0),
            dataset("bigger", 2_000.0),
        ],
        jobs: vec![
            job("s", 0, 50.0, 1.0),
            job("b", 1, 50.0, 1.0),
            job("c", 2, 50.0, 1.0),
        ],
    };
    let equal = equal_throughputs(&problem);
    assert_near(equal[0], 50.0, 1e-9);
    assert_near(equal[1], 10.0 / 0.9, 1e-9);
    assert_near(equal[2], 10.0 / 0.95, 1e-9);
    let answer = max_min(&problem);
    // Its own share is enough for the small one: the others have all the remote IO.
    assert_near(answer.jobs[0].throughput, 50.0, 1e-9);
    assert_eq!(answer.jobs[0].remote_io, 0.0);
    let level = 30.0 / (equal[1] * 0.8 + equal[2]);
    assert_near(answer.jobs[1].score.unwrap(), level, 1e-9);
    assert_near(answer.jobs[2].score.unwrap(), level, 1e-9);
    assert_near(answer.datasets[1].cache, 200.0, 1e-9);
    assert_near(answer.objective, 1.0, 1e-9);
}

#[test]
fn without_remote_io_most_jobs_that_can_run_do() {
    let problem = Problem {
        totals: totals(4.0, 250.0, 0.0),
        datasets: vec![
            dataset("a", 200.0),
            dataset("b", 100.0),
            dataset("c", 120.0),
        ],
        jobs: vec![
            job("a", 0, 50.0, 1.0),
            job("b", 1, 50.0, 1.0),
            job("c", 2, 50.0, 1.0),
        ],
    };
    let answer = max_min(&problem);
    let rates: Vec<f64> = answer.jobs.iter().map(|share| share.throughput).collect();
    assert_eq!(rates, [0.0, 50.0, 50.0]);
    assert_eq!(answer.objective, 0.0);
    assert!(answer.jobs.iter().all(|share| share.score.is_none()));
}

#[test]
fn sharing_counts_once() {
    // Two jobs on one dataset put their parts of the cache together.
    let problem = Problem {
        totals: totals(3.0, 300.0, 30.0),
        datasets: vec![dataset("shared", 200.0), dataset("own", 200.0)],
        jobs: vec![
            job("x", 0, 50.0, 1.0),
            job("y", 0, 50.0, 1.0),
            job("z", 1, 50.0, 1.0),
        ],
    };
    let equal = equal_throughputs(&problem);
    assert_near(equal[0], 50.0, 1e-9);
    assert_near(equal[2], 20.0, 1e-9);
    let answer = max_min(&problem);
    assert_eq!(answer.datasets[0].cache, 200.0);
    assert_near(answer.jobs[2].throughput, 50.0, 1e-9);
}

/// Scores from the lowest.
fn sorted(mut scores: Vec<f64>) -> Vec<f64> {
    scores.sort_by(f64::total_cmp);
    scores
}

/// Returns the fairest scores that the caches allow.
fn with_caches(problem: &Problem, equal: &[f64], caches: &[f64]) -> Vec<f64> {
    let holdings = holdings(problem, caches);
    let weights: Vec<f64> = holdings
        .iter()
        .zip(equal)
        .map(|(holding, equal)| equal * (1.0 - holding.hit_ratio))
        .collect();
    let shares = job_shares(problem, &holdings, Division::Weighted(&weights));
    let scores = shares.iter().zip(equal);
    sorted(
        scores
            .map(|(share, equal)| share.throughput / equal)
            .collect(),
    )
}

/// Returns whether `a` is fairer than `b`: larger at the first clear difference.
fn fairer(a: &[f64], b: &[f64]) -> bool {
    let differ = |(a, b): &(&f64, &f64)| (*a - *b).abs() > 1e-7 * a.max(**b);
    a.iter().zip(b).find(differ).is_some_and(|(a, b)| a > b)
}

proptest! {
    /// Leximin: no other division of the cache is fairer, at the first minimum or beyond it.
    #[test]
    fn no_other_caches_are_fairer(
        problem in steady_problems(),
        order in Just((0..7_usize).collect::<Vec<_>>()).prop_shuffle(),
        parts in prop::collection::vec(0.0..1.0_f64, 7),
    ) {
        let equal = equal_throughputs(&problem);
        let answer = max_min(&problem);
        let found = sorted(answer.jobs.iter().map(|share| share.score.unwrap()).collect());
        prop_assert!(found[0] >= 1.0 - 1e-9, "worse than an equal share");
        // One dataset after another in any order: the corners of the feasible region.
        let mut left = problem.totals.cache;
        let mut corner = vec![0.0; problem.datasets.len()];
        for at in order.into_iter().filter(|at| *at < problem.datasets.len()) {
            corner[at] = problem.datasets[at].size.min(left);
            left -= corner[at];
        }
        prop_assert!(!fairer(&with_caches(&problem, &equal, &corner), &found));
        // A point inside the region.
        let sum: f64 = parts.iter().take(problem.datasets.len()).sum();
        let inside: Vec<f64> = problem
            .datasets
            .iter()
            .zip(&parts)
            .map(|(dataset, part)| dataset.size.min(problem.totals.cache * part / sum))
            .collect();
        prop_assert!(!fairer(&with_caches(&problem, &equal, &inside), &found));
    }
}
