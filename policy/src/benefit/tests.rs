//! The paper's examples, settings by hand, and properties.

mod properties;

use super::*;
use crate::tests::{GB, MB, TB, assert_near, dataset, job, totals};
use crate::{Choice, Dataset, Job, Keep, Mode, Policy, Times};

pub(super) const GIB: f64 = 1_073_741_824.0;

pub(super) fn choices(answer: &Allocation) -> Vec<Choice> {
    answer.datasets.iter().map(|share| share.choice).collect()
}

pub(super) fn substituting(job: Job) -> Job {
    Job {
        substitutes: true,
        ..job
    }
}

pub(super) fn kept(dataset: Dataset, keep: Keep) -> Dataset {
    Dataset { keep, ..dataset }
}

/// Section 7: four jobs of four GPUs on each of three datasets. The ideal rates are in the
/// proportions of the benefits of Figure 3: images gain most, speech least.
fn section_7(cache_gib: f64, measured: [Option<Times>; 3]) -> Problem {
    let datasets = [
        ("imagenet", 154.0, 3.8),
        ("openimages", 531.0, 2.3),
        ("librispeech", 90.0, 1.3),
    ];
    // 12 jobs share the storage.
    let uncached = 20.0 * MB;
    let jobs = datasets
        .iter()
        .enumerate()
        .flat_map(|(at, (name, _, benefit))| {
            (0..4).map(move |number| Job {
                measured: measured[at],
                ..substituting(job(
                    &format!("{name}-{number}"),
                    at,
                    benefit * uncached,
                    4.0,
                ))
            })
        });
    Problem {
        totals: totals(48.0, cache_gib * GIB, 12.0 * uncached),
        jobs: jobs.collect(),
        datasets: datasets
            .iter()
            .map(|(name, size, _)| dataset(name, size * GB))
            .collect(),
    }
}

/// The times without a cache, and with chunks: slower than SiloDPerf tells, as in Figure 3.
fn with_chunks(whole: f64, chunks: f64) -> Times {
    Times {
        uncached_s: whole,
        chunks_s: Some(whole / chunks),
        ..Times::default()
    }
}

#[test]
fn section_7_of_the_paper() {
    use Choice::{Chunks, Whole};
    let chunks = [
        with_chunks(3.8, 2.3),
        with_chunks(2.3, 1.6),
        with_chunks(1.3, 1.25),
    ];
    // The times after the options have been running are remembered, and the choice stays.
    let both = chunks.map(|times| Times {
        whole_s: Some(1.0),
        ..times
    });
    for measured in [chunks, both] {
        for (cache, wanted) in [
            (100.0, [Chunks, Chunks, Chunks]),
            (200.0, [Whole, Chunks, Chunks]),
            (700.0, [Whole, Whole, Chunks]),
        ] {
            let answer = benefit(&section_7(cache, measured.map(Some)));
            assert_eq!(choices(&answer), wanted, "{cache} GiB");
            let used: Vec<f64> = answer
                .datasets
                .iter()
                .map(|share| share.cache / GB)
                .collect();
            for (share, (whole, chunks)) in
                used.iter()
                    .zip([(154.0, 30.0), (531.0, 30.0), (90.0, 18.0)])
            {
                assert!(*share == whole || *share == chunks, "{used:?}");
            }
        }
    }
}

#[test]
fn the_objective_counts_gpus_by_benefit() {
    let measured = [
        with_chunks(3.8, 2.3),
        with_chunks(2.3, 1.6),
        with_chunks(1.3, 1.25),
    ];
    let answer = benefit(&section_7(200.0, measured.map(Some)));
    // Σ b · n, with 16 GPUs on each dataset.
    assert_near(answer.objective, 16.0 * (3.8 + 1.6 + 1.25), 1e-9);
    for (share, wanted) in answer.jobs.iter().step_by(4).zip([3.8, 1.6, 1.25]) {
        assert_near(share.score.unwrap(), wanted, 1e-9);
    }
    // Most GPUs are gained by the first four.
    let orders: Vec<usize> = answer.jobs.iter().map(|share| share.order).collect();
    assert_eq!(orders[..4], [0, 1, 2, 3]);
}

#[test]
fn jobs_on_chunks_share_their_remote_io() {
    let mut problem = section_7(100.0, [None; 3]);
    // Effective hit ratios are those of uniform caching, which chunks do not follow.
    for job in &mut problem.jobs {
        job.hit_ratio = Some(0.1);
    }
    let answer = benefit(&problem);
    assert_eq!(choices(&answer), [Choice::Chunks; 3]);
    for (share, job) in answer.jobs.iter().zip(&problem.jobs) {
        assert_eq!(share.hit_ratio, 0.75);
        assert_near(share.remote_io, job.ideal_rate / 4.0, 1e-9);
        assert_near(share.throughput, job.ideal_rate, 1e-9);
    }
    // A job that is being probed reads like one without a cache, and the other three share.
    problem.jobs[0].mode = Mode::Probe;
    let answer = benefit(&problem);
    assert_eq!(choices(&answer), [Choice::Chunks; 3]);
    assert_eq!((answer.jobs[0].hit_ratio, answer.jobs[0].cache), (0.0, 0.0));
    assert_near(answer.jobs[0].remote_io, 3.8 * 20.0 * MB, 1e-9);
    assert_near(answer.jobs[1].hit_ratio, 2.0 / 3.0, 1e-9);
}

#[test]
fn one_job_gains_nothing_by_chunks() {
    // It fetches everything itself (section 6: a single job).
    let mut problem = Problem {
        totals: totals(8.0, 50.0 * GB, 50.0 * MB),
        datasets: vec![dataset("a", 100.0 * GB)],
        jobs: vec![substituting(job("one", 0, 100.0 * MB, 4.0))],
    };
    assert_eq!(choices(&benefit(&problem)), [Choice::None]);
    problem
        .jobs
        .push(substituting(job("two", 0, 100.0 * MB, 4.0)));
    let answer = benefit(&problem);
    assert_eq!(choices(&answer), [Choice::Chunks]);
    assert_eq!(answer.datasets[0].cache, 20.0 * GB);
    // Each job needs half, and 50 MB/s are enough for 100 MB/s.
    assert_eq!(answer.jobs[0].throughput, 50.0 * MB);
    // Chunks serve only jobs that substitute.
    problem.jobs[1].substitutes = false;
    assert_eq!(choices(&benefit(&problem)), [Choice::None]);
}

#[test]
fn a_whole_dataset_takes_the_place_of_its_chunks() {
    let mut problem = section_7(100.0, [Some(with_chunks(3.8, 2.3)), None, None]);
    problem.jobs.truncate(4);
    problem.datasets.truncate(1);
    assert_eq!(choices(&benefit(&problem)), [Choice::Chunks]);
    problem.totals.cache = 154.0 * GB;
    assert_eq!(choices(&benefit(&problem)), [Choice::Whole]);
}

#[test]
fn a_whole_dataset_that_was_measured_to_be_slower_than_chunks_takes_no_more() {
    let noisy = Times {
        whole_s: Some(2.0),
        ..with_chunks(3.8, 2.3)
    };
    let answer = benefit(&section_7(10_000.0, [Some(noisy), None, None]));
    assert_eq!(
        choices(&answer),
        [Choice::Chunks, Choice::Whole, Choice::Whole]
    );
}

#[test]
fn chunks_follow_the_chunk_size_and_a_tenth() {
    let cost = |size: f64, chunk_size: Option<f64>| {
        let sized = Dataset {
            chunk_size,
            ..dataset("a", size)
        };
        sized.two_chunks()
    };
    assert_eq!(cost(531.0 * GB, None), 30.0 * GB);
    assert_eq!(cost(90.0 * GB, None), 18.0 * GB);
    assert_eq!(cost(531.0 * GB, Some(4.0 * GB)), 8.0 * GB);
    assert_eq!(cost(90.0 * GB, Some(TB)), 18.0 * GB);
}

#[test]
fn a_job_within_five_per_cent_is_switched_off() {
    let no_gain = Times {
        uncached_s: 1.04,
        whole_s: Some(1.0),
        ..Times::default()
    };
    let mut problem = Problem {
        totals: totals(8.0, TB, 200.0 * MB),
        datasets: vec![dataset("a", 100.0 * GB), dataset("b", 100.0 * GB)],
        jobs: vec![
            Job {
                measured: Some(no_gain),
                ..job("compute", 0, 100.0 * MB, 1.0)
            },
            job("reader", 1, 100.0 * MB, 1.0),
        ],
    };
    let answer = benefit(&problem);
    assert_eq!(choices(&answer), [Choice::None, Choice::Whole]);
    // It reads all from storage, whatever is cached.
    assert_eq!(
        (answer.jobs[0].hit_ratio, answer.jobs[0].score),
        (0.0, Some(1.0))
    );
    problem.jobs[0].dataset = 1;
    let answer = benefit(&problem);
    assert_eq!(choices(&answer), [Choice::None, Choice::Whole]);
    assert_eq!(answer.jobs[0].hit_ratio, 0.0);
    assert_eq!(answer.jobs[0].remote_io, 100.0 * MB);
    // The mode alone says the same.
    problem.jobs[0] = Job {
        mode: Mode::Uncached,
        ..job("compute", 0, 100.0 * MB, 1.0)
    };
    assert_eq!(choices(&benefit(&problem)), [Choice::None, Choice::Whole]);
    // At 6 % it gains.
    problem.jobs[0] = Job {
        measured: Some(Times {
            uncached_s: 1.06,
            ..no_gain
        }),
        ..job("compute", 0, 100.0 * MB, 1.0)
    };
    assert_eq!(choices(&benefit(&problem)), [Choice::Whole, Choice::Whole]);
}

/// The most that jobs could reach tells nothing of their benefit.
#[test]
fn jobs_of_unknown_rates_all_get_chunks_until_they_are_measured() {
    use Choice::{Chunks, None, Whole};
    let unknown = |measured| {
        let mut problem = section_7(100.0, measured);
        for job in &mut problem.jobs {
            job.ideal_rate = 240.0 * MB;
            job.is_rate_assumed = true;
        }
        choices(&benefit(&problem))
    };
    assert_eq!(unknown([Option::None; 3]), [Chunks; 3]);
    let times = |benefit: f64| Some(with_chunks(benefit, benefit));
    // LibriSpeech as a whole would fit in place of the others' chunks, and gain nothing more.
    assert_eq!(unknown([times(3.8), times(2.3), times(1.3)]), [Chunks; 3]);
    let mut problem = section_7(100.0, [times(3.8), times(2.3), times(1.3)]);
    problem.jobs.truncate(4);
    assert_eq!(choices(&benefit(&problem)), [Chunks, None, None]);
    problem.totals.cache = 154.0 * GB;
    assert_eq!(choices(&benefit(&problem)), [Whole, None, None]);
}

/// A job is measured while the others have their caches. Storage cannot serve all of them without.
#[test]
fn no_more_jobs_are_switched_off_than_storage_can_serve() {
    let no_gain = Times {
        uncached_s: 1.0,
        chunks_s: Some(1.0),
        ..Times::default()
    };
    let measured = |id: &str, dataset, rate: f64| Job {
        measured: Some(no_gain),
        ..substituting(job(id, dataset, rate * MB, 1.0))
    };
    let off = |remote_io: f64| {
        let problem = Problem {
            totals: totals(8.0, TB, remote_io * MB),
            datasets: vec![dataset("a", 100.0 * GB), dataset("b", 100.0 * GB)],
            jobs: vec![
                measured("a0", 0, 40.0),
                measured("a1", 0, 40.0),
                measured("b0", 1, 20.0),
                measured("b1", 1, 20.0),
            ],
        };
        let answer = benefit(&problem);
        let off = answer.jobs.iter().map(|job| job.mode == Mode::Uncached);
        off.collect::<Vec<_>>()
    };
    // Three quarters of it may be in use. Those that need least are first.
    assert_eq!(off(160.0), [true; 4]);
    assert_eq!(off(120.0), [false, false, true, true]);
    assert_eq!(off(107.0), [false, false, true, true]);
    assert_eq!(off(100.0), [false; 4]);
    assert_eq!(off(0.0), [false; 4]);
}

#[test]
fn without_a_gain_the_saved_remote_io_decides() {
    // There is enough remote IO for all, so the model sees no gain. Nothing was measured, so idle
    // cache saves what it can.
    let problem = Problem {
        totals: totals(8.0, 150.0 * GB, TB),
        datasets: vec![dataset("slow", 100.0 * GB), dataset("fast", 100.0 * GB)],
        jobs: vec![job("s", 0, 50.0 * MB, 4.0), job("f", 1, 100.0 * MB, 1.0)],
    };
    let answer = benefit(&problem);
    assert_eq!(choices(&answer), [Choice::None, Choice::Whole]);
    assert_eq!(answer.objective, 5.0);
}

#[test]
fn rules_set_by_hand_are_respected() {
    let reads = |at: usize, name: &str| substituting(job(name, at, 100.0 * MB, 1.0));
    let problem = |keep: Keep, cache: f64| Problem {
        totals: totals(8.0, cache, 50.0 * MB),
        datasets: vec![
            kept(dataset("a", 100.0 * GB), keep),
            dataset("b", 100.0 * GB),
        ],
        jobs: vec![reads(0, "a0"), reads(0, "a1"), reads(1, "b0")],
    };
    for (keep, cache, choice, bytes) in [
        (Keep::Auto, TB, Choice::Whole, 100.0),
        (Keep::Auto, 30.0 * GB, Choice::Chunks, 20.0),
        (Keep::None, TB, Choice::None, 0.0),
        (Keep::Chunks, TB, Choice::Chunks, 20.0),
        (Keep::Uniform, TB, Choice::Whole, 100.0),
        // What all others leave.
        (Keep::Uniform, 30.0 * GB, Choice::Uniform, 30.0),
        (Keep::Uniform, 0.0, Choice::None, 0.0),
    ] {
        let answer = benefit(&problem(keep, cache));
        let share = answer.datasets[0];
        assert_eq!(
            (share.choice, share.cache),
            (choice, bytes * GB),
            "{keep} {cache}"
        );
    }
    // Chunks serve jobs that substitute, and only them.
    let mut plain = problem(Keep::Chunks, TB);
    for job in &mut plain.jobs {
        job.substitutes = false;
    }
    assert_eq!(choices(&benefit(&plain)), [Choice::None, Choice::Whole]);
}

#[test]
fn a_budget_set_by_hand_holds_what_gains_most() {
    let with_budget = |budget: f64, jobs: Vec<Job>| {
        let fixed = Dataset {
            budget: Some(budget),
            ..dataset("a", 100.0 * GB)
        };
        let problem = Problem {
            totals: totals(8.0, TB, 50.0 * MB),
            datasets: vec![fixed],
            jobs,
        };
        let share = benefit(&problem).datasets[0];
        assert_eq!(share.cache, budget);
        share.choice
    };
    let (a, b) = (job("a", 0, 100.0 * MB, 1.0), job("b", 0, 100.0 * MB, 1.0));
    let both = || vec![substituting(a.clone()), substituting(b.clone())];
    assert_eq!(with_budget(100.0 * GB, both()), Choice::Whole);
    assert_eq!(with_budget(20.0 * GB, both()), Choice::Chunks);
    // Less than two chunks.
    assert_eq!(with_budget(19.0 * GB, both()), Choice::Uniform);
    // Half by chunks, and three quarters uniformly.
    assert_eq!(with_budget(75.0 * GB, both()), Choice::Uniform);
    assert_eq!(
        with_budget(20.0 * GB, vec![a.clone(), b.clone()]),
        Choice::Uniform
    );
}

#[test]
fn other_policies_respect_rules_too() {
    for policy in Policy::ALL {
        let problem = Problem {
            totals: totals(8.0, TB, 50.0 * MB),
            datasets: vec![
                kept(dataset("none", 100.0 * GB), Keep::None),
                kept(dataset("chunks", 100.0 * GB), Keep::Chunks),
            ],
            jobs: vec![
                job("n", 0, 100.0 * MB, 1.0),
                substituting(job("c0", 1, 100.0 * MB, 1.0)),
                substituting(job("c1", 1, 100.0 * MB, 1.0)),
            ],
        };
        let answer = policy.allocate(&problem);
        assert_eq!(choices(&answer), [Choice::None, Choice::Chunks], "{policy}");
        assert_eq!(answer.datasets[0].cache, 0.0, "{policy}");
        assert_eq!(answer.datasets[1].cache, 20.0 * GB, "{policy}");
        assert_eq!(answer.jobs[0].hit_ratio, 0.0, "{policy}");
        if policy != Policy::Static {
            assert_eq!(answer.jobs[1].hit_ratio, 0.5, "{policy}");
        }
    }
}

#[test]
fn irregular_jobs_do_not_use_chunks() {
    let problem = Problem {
        totals: totals(8.0, 60.0 * GB, 50.0 * MB),
        datasets: vec![dataset("a", 100.0 * GB), dataset("b", 100.0 * GB)],
        jobs: [("a0", 0), ("a1", 0), ("b0", 1), ("b1", 1), ("b2", 1)]
            .map(|(id, at)| substituting(job(id, at, 100.0 * MB, 1.0)))
            .to_vec(),
    };
    let irregular = [true, true, false, false, true];
    let answer = crate::allocate_partitioned(Policy::Benefit, &problem, &irregular);
    assert_eq!(choices(&answer), [Choice::Uniform, Choice::Chunks]);
    let hits: Vec<f64> = answer.jobs.iter().map(|share| share.hit_ratio).collect();
    // Two jobs read the chunks together. The third one finds a fifth of its items in them.
    assert_eq!(hits[2..], [0.5, 0.5, 0.2]);
    assert_eq!(hits[0], answer.datasets[0].cache / (100.0 * GB));
}
