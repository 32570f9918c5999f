//! Properties of every policy for every problem.

use super::*;
use proptest::prelude::*;
use proptest::sample::Index;

/// Any problem, with shared datasets, more or less of every resource than is needed, and sometimes
/// none.
pub(in super::super) fn problems() -> impl Strategy<Value = Problem> {
    let datasets = prop::collection::vec(1.0..30_000.0_f64, 1..8);
    let some_ratio = prop::option::weighted(0.3, 0.0..=1.0_f64);
    let some_work = prop::option::weighted(0.8, 1.0..1e5_f64);
    let jobs = prop::collection::vec(
        (
            any::<Index>(),
            1.0..500.0_f64,
            0..8_u8,
            some_work,
            some_ratio,
        ),
        0..12,
    );
    let total = |most: f64| prop_oneof![1 => Just(0.0), 8 => 0.0..most];
    (datasets, jobs, total(40_000.0), total(2_000.0)).prop_map(|(sizes, jobs, cache, remote_io)| {
        let datasets: Vec<Dataset> = sizes
            .iter()
            .enumerate()
            .map(|(at, size)| dataset(&format!("d{at}"), size * GB))
            .collect();
        let jobs = jobs
            .into_iter()
            .enumerate()
            .map(|(at, (on, rate, gpus, work, hit_ratio))| Job {
                work: work.map(|work| work * GB),
                hit_ratio,
                ..job(
                    &format!("j{at}"),
                    on.index(datasets.len()),
                    rate * MB,
                    f64::from(gpus),
                )
            })
            .collect();
        Problem {
            totals: totals(16.0, cache * GB, remote_io * MB),
            datasets,
            jobs,
        }
    })
}

/// Problems in steady state, with jobs and with some remote IO.
pub(in super::super) fn steady_problems() -> impl Strategy<Value = Problem> {
    problems().prop_map(|mut problem| {
        for job in &mut problem.jobs {
            job.hit_ratio = None;
        }
        if problem.jobs.is_empty() {
            problem.jobs.push(job("only", 0, 100.0 * MB, 1.0));
        }
        problem.totals.remote_io = problem.totals.remote_io.max(MB);
        problem
    })
}

/// Returns the problem with its lists rotated by `by` entries.
fn turned(problem: &Problem, by: usize) -> Problem {
    let mut turned = problem.clone();
    let datasets = turned.datasets.len();
    turned.datasets.rotate_left(by % datasets);
    for job in &mut turned.jobs {
        job.dataset = (job.dataset + datasets - by % datasets) % datasets;
    }
    if !turned.jobs.is_empty() {
        let jobs = turned.jobs.len();
        turned.jobs.rotate_left(by % jobs);
    }
    turned
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs().max(b.abs()) + 1.0
}

pub(in super::super) fn sound(policy: Policy, problem: &Problem) -> Result<(), TestCaseError> {
    let answer = policy.allocate(problem);
    prop_assert_eq!(answer.datasets.len(), problem.datasets.len());
    prop_assert_eq!(answer.jobs.len(), problem.jobs.len());
    let totals = problem.totals;
    let cache: f64 = answer.datasets.iter().map(|share| share.cache).sum();
    prop_assert!(cache <= totals.cache * (1.0 + 1e-9), "cache {cache}");
    let remote: f64 = answer.jobs.iter().map(|share| share.remote_io).sum();
    prop_assert!(remote <= totals.remote_io * (1.0 + 1e-9), "remote {remote}");
    let limits: f64 = answer.jobs.iter().map(|share| share.limit).sum();
    prop_assert!(limits <= totals.remote_io * (1.0 + 1e-9), "limits {limits}");
    for (share, dataset) in answer.datasets.iter().zip(&problem.datasets) {
        prop_assert!(share.cache >= 0.0);
        prop_assert!(policy == Policy::Static || share.cache <= dataset.size);
    }
    let mut orders: Vec<usize> = answer.jobs.iter().map(|share| share.order).collect();
    orders.sort_unstable();
    prop_assert!(orders.into_iter().eq(0..problem.jobs.len()));
    for (share, job) in answer.jobs.iter().zip(&problem.jobs) {
        prop_assert!(share.cache <= problem.datasets[job.dataset].size);
        prop_assert!((0.0..=1.0).contains(&share.hit_ratio));
        prop_assert!(share.remote_io >= 0.0 && share.limit >= share.remote_io);
        prop_assert!(share.remote_io <= job.ideal_rate * (1.0 - share.hit_ratio) * (1.0 + 1e-9));
        let wanted = performance::silod_perf(job.ideal_rate, share.remote_io, share.hit_ratio);
        prop_assert_eq!(share.throughput, wanted);
        prop_assert!(share.score.is_none_or(|score| score >= 0.0));
    }
    prop_assert!(answer.objective >= 0.0);
    Ok(())
}

proptest! {
    #[test]
    fn shares_stay_within_the_totals(problem in problems()) {
        for policy in Policy::ALL {
            sound(policy, &problem)?;
        }
    }

    #[test]
    fn the_order_of_the_lists_changes_nothing(problem in problems(), by in 0..10_usize) {
        let turned = turned(&problem, by);
        for policy in Policy::ALL {
            let (one, other) = (policy.allocate(&problem), policy.allocate(&turned));
            prop_assert!(
                near(one.objective, other.objective)
                    || one.objective.is_infinite() && other.objective.is_infinite()
            );
            for (at, job) in problem.jobs.iter().enumerate() {
                let there = turned.jobs.iter().position(|other| other.id == job.id).unwrap();
                let (one, other) = (one.jobs[at], other.jobs[there]);
                prop_assert!(near(one.remote_io, other.remote_io), "{policy} {job:?}");
                prop_assert!(near(one.throughput, other.throughput), "{policy} {job:?}");
                prop_assert!(near(one.cache, other.cache), "{policy} {job:?}");
            }
        }
    }

    /// More cache saves more, and more remote IO slows no job down.
    #[test]
    fn more_is_no_worse(problem in problems(), cache in 1.0..2.0_f64, remote_io in 1.0..2.0_f64) {
        let mut more = problem.clone();
        more.totals.cache *= cache;
        more.totals.remote_io *= remote_io;
        for policy in [Policy::Greedy, Policy::Static] {
            let (before, after) = (policy.allocate(&problem), policy.allocate(&more));
            prop_assert!(after.objective >= before.objective * (1.0 - 1e-9), "{policy}");
            let least = |answer: &Allocation| -> f64 {
                let lacks = answer.jobs.iter().zip(&problem.jobs);
                lacks.map(|(share, job)| share.throughput / job.ideal_rate).fold(1.0, f64::min)
            };
            if cache == 1.0 {
                prop_assert!(least(&after) >= least(&before) * (1.0 - 1e-9), "{policy}");
            }
        }
    }

    /// Quiver's all or nothing saves less than the greedy policy's parts.
    #[test]
    fn parts_of_datasets_save_more(problem in problems()) {
        let greedy = Policy::Greedy.allocate(&problem).objective;
        // The objective of `benefit` is in GPUs.
        let whole: f64 = Policy::Benefit
            .allocate(&problem)
            .datasets
            .iter()
            .zip(shares::per_dataset(&problem, |job| job.ideal_rate))
            .zip(&problem.datasets)
            .map(|((share, rate), dataset)| rate * share.cache / dataset.size)
            .sum();
        prop_assert!(whole <= greedy * (1.0 + 1e-9) + 1.0, "benefit: {whole} > {greedy}");
        for policy in [Policy::Static, Policy::Lru] {
            let other = policy.allocate(&problem).objective;
            // Private caches of a shared dataset hold the same bytes twice, so they are never
            // better either.
            prop_assert!(other <= greedy * (1.0 + 1e-9) + 1.0, "{policy}: {other} > {greedy}");
        }
    }
}
