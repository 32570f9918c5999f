use super::*;
use crate::tests::{MB, TB, assert_near, dataset, job, problems, totals};
use proptest::prelude::*;

/// Two regular jobs and two that follow a curriculum, one GPU each.
fn mixed() -> Problem {
    Problem {
        totals: totals(4.0, 2.0 * TB, 200.0 * MB),
        datasets: vec![
            dataset("a", TB),
            dataset("b", TB),
            dataset("c", 0.2 * TB),
            dataset("d", 5.0 * TB),
        ],
        jobs: vec![
            job("a", 0, 100.0 * MB, 1.0),
            job("b", 1, 80.0 * MB, 1.0),
            job("c", 2, 200.0 * MB, 1.0),
            job("d", 3, 100.0 * MB, 1.0),
        ],
    }
}

#[test]
fn irregular_jobs_share_equally_in_their_part() {
    let problem = mixed();
    let answer = allocate_partitioned(Policy::Greedy, &problem, &[false, false, true, true]);
    // Half of the cache is for irregular jobs: the small dataset needs 0.2 TB of it, the other has
    // the rest.
    let caches: Vec<f64> = answer
        .datasets
        .iter()
        .map(|share| share.cache / TB)
        .collect();
    assert_near(caches[0], 1.0, 1e-9);
    assert_eq!(caches[1], 0.0);
    assert_near(caches[2], 0.2, 1e-9);
    assert_near(caches[3], 0.8, 1e-9);
    // The regular jobs need 80 of their 100 MB/s, and the irregular jobs get the rest.
    let rates: Vec<f64> = answer
        .jobs
        .iter()
        .map(|share| share.remote_io / MB)
        .collect();
    assert_eq!(rates[..3], [0.0, 80.0, 0.0]);
    assert_near(rates[3], 84.0, 1e-9);
    let orders: Vec<usize> = answer.jobs.iter().map(|share| share.order).collect();
    assert_eq!(orders, [0, 1, 2, 3]);
}

#[test]
fn a_misjudged_job_costs_regular_jobs_nothing() {
    // However high the ideal rates of irregular jobs, the regular jobs keep their half.
    let mut problem = mixed();
    problem.totals.remote_io = 100.0 * MB;
    problem.jobs[2].ideal_rate = 10_000.0 * MB;
    problem.jobs[3].ideal_rate = 10_000.0 * MB;
    problem.datasets[2].size = 9.0 * TB;
    let answer = allocate_partitioned(Policy::Greedy, &problem, &[false, false, true, true]);
    assert_near(answer.datasets[0].cache, TB, 1e-9);
    assert_near(answer.jobs[1].remote_io, 50.0 * MB, 1e-9);
    assert_near(answer.jobs[2].remote_io, 25.0 * MB, 1e-9);
    assert_near(answer.jobs[3].remote_io, 25.0 * MB, 1e-9);
    assert_near(answer.datasets[2].cache, 0.5 * TB, 1e-9);
}

#[test]
fn a_dataset_of_both_kinds_belongs_to_the_regular_jobs() {
    let mut problem = mixed();
    problem.jobs[3].dataset = 0;
    let answer = allocate_partitioned(Policy::Greedy, &problem, &[false, false, true, true]);
    assert_near(answer.datasets[0].cache, TB, 1e-9);
    assert_eq!(answer.jobs[3].remote_io, 0.0);
    assert_eq!(answer.jobs[3].hit_ratio, 1.0);
}

#[test]
fn without_irregular_jobs_nothing_changes() {
    let problem = mixed();
    for policy in Policy::ALL {
        assert_eq!(
            allocate_partitioned(policy, &problem, &[]),
            policy.allocate(&problem)
        );
        let all = allocate_partitioned(policy, &problem, &[true; 4]);
        let cache: f64 = all.datasets.iter().map(|share| share.cache).sum();
        assert_near(cache, 2.0 * TB, 1e-9);
    }
}

proptest! {
    #[test]
    fn both_partitions_stay_within_the_totals(
        mut problem in problems(),
        irregular in prop::collection::vec(any::<bool>(), 0..12),
        budget in prop::option::of(0.0..1e13_f64),
        by_hand in prop::option::of(0.0..1e9_f64),
    ) {
        problem.datasets[0].budget = budget;
        if let Some(job) = problem.jobs.first_mut() {
            job.remote_io = by_hand;
        }
        for policy in Policy::ALL {
            let answer = allocate_partitioned(policy, &problem, &irregular);
            let cache: f64 = answer.datasets.iter().map(|share| share.cache).sum();
            prop_assert!(cache <= problem.totals.cache * (1.0 + 1e-9), "{policy}");
            let limits: f64 = answer.jobs.iter().map(|share| share.limit).sum();
            prop_assert!(limits <= problem.totals.remote_io * (1.0 + 1e-9), "{policy}");
            for (share, dataset) in answer.datasets.iter().zip(&problem.datasets) {
                prop_assert!(policy == Policy::Static || share.cache <= dataset.size);
            }
            let mut orders: Vec<usize> = answer.jobs.iter().map(|share| share.order).collect();
            orders.sort_unstable();
            prop_assert!(orders.into_iter().eq(0..problem.jobs.len()));
            if let (Some(by_hand), Some(share)) = (by_hand, answer.jobs.first()) {
                let wanted = by_hand.min(problem.totals.remote_io);
                prop_assert!((share.remote_io - wanted).abs() <= 1e-9 * wanted);
            }
        }
    }
}
