//! Properties of the choice, for every problem.

use super::super::off::with_jobs_switched_off;
use super::*;
use proptest::prelude::*;
use proptest::sample::{Index, select};

fn some_times() -> impl Strategy<Value = Option<Times>> {
    let time = || 0.01..10.0_f64;
    let some = |weight| prop::option::weighted(weight, time());
    let part = prop::option::weighted(0.3, (time(), 0.0..1.0_f64));
    let times = (time(), some(0.5), some(0.5), part);
    prop::option::of(
        times.prop_map(|(uncached_s, whole_s, chunks_s, part)| Times {
            uncached_s,
            whole_s,
            chunks_s,
            part: part.map(|(cached_s, hit_ratio)| crate::Part {
                cached_s,
                hit_ratio,
            }),
        }),
    )
}

/// Any problem, with the rules of `keeps`.
fn problems(keeps: &'static [Keep]) -> impl Strategy<Value = Problem> {
    let budget = prop::option::weighted(0.2, 0.0..1.0_f64);
    let chunk_size = prop::option::weighted(0.3, 0.1..100.0_f64);
    let datasets =
        prop::collection::vec((1.0..3_000.0_f64, budget, chunk_size, select(keeps)), 1..8);
    let mode =
        prop_oneof![8 => Just(Mode::Cached), 1 => Just(Mode::Uncached), 1 => Just(Mode::Probe)];
    let hit_ratio = prop::option::weighted(0.3, 0.0..=1.0_f64);
    let jobs = prop::collection::vec(
        (
            any::<Index>(),
            1.0..500.0_f64,
            0..8_u8,
            any::<bool>(),
            some_times(),
            mode,
            hit_ratio,
        ),
        0..16,
    );
    let total = |most: f64| prop_oneof![1 => Just(0.0), 8 => 0.0..most];
    (datasets, jobs, total(6_000.0), total(2_000.0)).prop_map(
        |(datasets, jobs, cache, remote_io)| {
            let count = datasets.len();
            let datasets = datasets.into_iter().enumerate();
            let datasets = datasets.map(|(at, (size, budget, chunk_size, keep))| Dataset {
                budget: budget.map(|part| part * size * GB),
                chunk_size: chunk_size.map(|size| size * GB),
                keep,
                ..dataset(&format!("d{at}"), size * GB)
            });
            let jobs = jobs.into_iter().enumerate();
            let jobs = jobs.map(
                |(at, (on, rate, gpus, substitutes, measured, mode, hit_ratio))| Job {
                    substitutes,
                    measured,
                    mode,
                    hit_ratio,
                    ..job(
                        &format!("j{at}"),
                        on.index(count),
                        rate * MB,
                        f64::from(gpus),
                    )
                },
            );
            Problem {
                totals: totals(64.0, cache * GB, remote_io * MB),
                datasets: datasets.collect(),
                jobs: jobs.collect(),
            }
        },
    )
}

/// What each option costs.
fn cost(dataset: &Dataset, choice: Choice) -> f64 {
    match choice {
        Choice::Whole => dataset.size,
        Choice::Chunks => dataset.two_chunks(),
        Choice::Uniform | Choice::None => 0.0,
    }
}

proptest! {
    #[test]
    fn every_policy_stays_within_the_totals(problem in problems(&Keep::ALL)) {
        for policy in Policy::ALL {
            crate::tests::sound(policy, &problem)?;
        }
    }

    #[test]
    fn equal_inputs_have_equal_outputs(problem in problems(&Keep::ALL)) {
        prop_assert_eq!(benefit(&problem), benefit(&problem.clone()));
        // Whatever the order of the datasets.
        let mut turned = problem.clone();
        turned.datasets.reverse();
        for job in &mut turned.jobs {
            job.dataset = problem.datasets.len() - 1 - job.dataset;
        }
        let mut answer = benefit(&turned);
        answer.datasets.reverse();
        prop_assert_eq!(choices(&answer), choices(&benefit(&problem)));
    }

    /// The module documentation of `choose` has the argument.
    #[test]
    fn more_cache_never_gains_less(
        problem in problems(&[Keep::Auto, Keep::Auto, Keep::None]),
        more in 1.0..3.0_f64,
    ) {
        let mut problem = problem;
        // Budgets that exceed the total are cut, so their choice depends on the total.
        let by_hand: f64 = problem.datasets.iter().filter_map(|one| one.budget).sum();
        problem.totals.cache = problem.totals.cache.max(by_hand);
        let mut larger = problem.clone();
        larger.totals.cache *= more;
        let (before, after) = (benefit(&problem).objective, benefit(&larger).objective);
        prop_assert!(after >= before * (1.0 - 1e-6), "{before} {after}");
    }

    #[test]
    fn each_dataset_has_a_choice_that_it_may_have(problem in problems(&Keep::ALL)) {
        let answer = benefit(&problem);
        let off = with_jobs_switched_off(&problem);
        for (at, (dataset, share)) in problem.datasets.iter().zip(&answer.datasets).enumerate() {
            let readers = || off.jobs.iter().filter(|job| job.dataset == at);
            let used = readers().any(|job| job.mode != Mode::Uncached);
            let allowed = match dataset.keep {
                Keep::Auto => true,
                Keep::None => share.choice == Choice::None,
                Keep::Chunks => matches!(share.choice, Choice::Chunks | Choice::None),
                Keep::Uniform | Keep::References => share.choice != Choice::Chunks,
            };
            prop_assert!(allowed, "{dataset:?} {share:?}");
            prop_assert_eq!(share.choice == Choice::None, share.cache < 1.0);
            if dataset.budget.is_none() {
                prop_assert!(used || share.choice == Choice::None, "{:?} for no job", share);
                if dataset.keep == Keep::Auto {
                    prop_assert_eq!(share.cache, cost(dataset, share.choice));
                }
            }
        }
    }

    /// What is left over is too little for any option that gains.
    #[test]
    fn no_gain_is_left_behind(problem in problems(&[Keep::Auto])) {
        let answer = benefit(&problem);
        let off = with_jobs_switched_off(&problem);
        let measured = problem.jobs.iter().any(|job| job.measured.is_some());
        let used: f64 = answer.datasets.iter().map(|share| share.cache).sum();
        let left = problem.totals.cache - used;
        for (at, (dataset, share)) in problem.datasets.iter().zip(&answer.datasets).enumerate() {
            let reads = off.jobs.iter().any(|job| job.dataset == at && job.mode != Mode::Uncached);
            // Measurements may say that chunks are as good.
            let chunks = share.choice == Choice::Chunks && measured;
            if reads && dataset.budget.is_none() && share.choice != Choice::Whole && !chunks {
                let whole = dataset.size - share.cache;
                prop_assert!(whole > left * (1.0 - 1e-9) - 1.0, "{dataset:?} fits into {left}");
            }
        }
    }

    #[test]
    fn no_job_is_slowed_down_by_design(problem in problems(&Keep::ALL)) {
        let answer = benefit(&problem);
        let mut sum = 0.0;
        for (share, job) in answer.jobs.iter().zip(&problem.jobs) {
            let benefit = share.score.unwrap();
            // Jobs without a measurement stay as they are.
            prop_assert!(job.measured.is_some() || share.mode == job.mode);
            prop_assert!((1.0..=crate::times::BENEFIT_MAX).contains(&benefit), "{benefit}");
            prop_assert!(share.mode != Mode::Uncached || benefit == 1.0);
            sum += benefit * job.gpus.max(1.0);
        }
        prop_assert!((answer.objective - sum).abs() <= 1e-9 * sum);
    }
}
