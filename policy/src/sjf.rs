//! Multi-resource shortest job first (Eq. 6 and 7).
//!
//! # The minimum in closed form
//! A job's score is the least, over what it could be given, of the weighted sum of its resources
//! times its duration (Eq. 7), with weights `1/total`:
//!
//! ```text
//! score = min over c, b of  (g/G + c/C + b/B) · work / T      T = min(f*, b / (1 - c/d))
//! ```
//!
//! Its GPUs `g` are fixed. For a given `c`, more throughput is always better (`b` grows with `T`, the
//! rest is paid for a shorter time), so `T` is `f*`, or what all remote IO gives: `B / (1 - c/d)`.
//! Where remote IO suffices, the score is linear in `c`; where it does not, it is
//! `work/B · (1 - c/d) · (1 + g/G + c/C)`, concave in `c`. So the minimum lies at an end of one of the
//! two ranges: `c = 0`, `c = min(d, C)`, or where remote IO begins to suffice, `c = d · (1 - B/f*)`.
//!
//! # What jobs are given
//! The paper says in which order jobs are scheduled, not what of cache and remote IO each gets. Given
//! literally the minimising `R` of one job after the other, the first take whole datasets that few
//! bytes will be read from. Of the divisions that were tried in fluid simulations (150 jobs with
//! Table 4's models on 24 GPUs, durations from ten minutes to four days, four mixes of cache and
//! remote IO, four seeds each) this one had the shortest average completion:
//!
//! - cache by efficiency, as `greedy`: what saves most remote IO helps all;
//! - remote IO first to the job that has least to read remotely, `work · (1 - c/d)`: shortest first
//!   in the resource that is short;
//! - but a tenth of it evenly, so that no job that holds GPUs stands still. That made the average
//!   better too.
//!
//! Literally by `R` and score, the average was 1 to 17 % longer; with remote IO max-min, 7 to 28 %.

use super::performance::{hit_ratio, io_perf, remote_io};
use super::problem::{Allocation, Job, Problem};
use super::shares::{
    Caches, Division, allocation, by_efficiency, efficiencies, give_in_order, holdings, job_shares,
};

/// What a job would best be given by itself: the minimising `R` of Eq. 7.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Best {
    /// The score, in seconds: duration times the part of the cluster that it takes.
    pub score: f64,
    /// Bytes of cache.
    pub cache: f64,
    /// Bytes per second of remote IO.
    pub remote_io: f64,
}

/// The score of a job (Eq. 7), and where it is least. `None` if its work is not known, or if no
/// allocation lets it run.
///
/// `readers` jobs read its dataset, this one among them: what they share is charged once, to each of
/// them the same part (§6).
#[must_use]
pub fn best(problem: &Problem, job: &Job, readers: f64) -> Option<Best> {
    let totals = problem.totals;
    let dataset = &problem.datasets[job.dataset];
    let work = job.work?;
    let gpus = part(job.gpus, totals.gpus);
    let most = dataset.size.min(totals.cache);
    let enough = dataset.size * (1.0 - totals.remote_io / job.ideal_rate);
    let candidates = match dataset.budget {
        Some(budget) => [budget.min(most); 3],
        None => [0.0, enough.clamp(0.0, most), most],
    };
    let score = |cache: f64| {
        let hit = hit_ratio(cache, dataset.size);
        let rate = job.ideal_rate.min(io_perf(totals.remote_io, hit));
        let remote_io = remote_io(rate, hit);
        let taken = gpus + part(cache, totals.cache) / readers + part(remote_io, totals.remote_io);
        Best {
            score: taken * work / rate,
            cache,
            remote_io,
        }
    };
    candidates
        .map(score)
        .into_iter()
        .filter(|best| best.score.is_finite())
        .min_by(|a, b| a.score.total_cmp(&b.score))
}

/// The part of remote IO that is divided evenly.
const EVEN: f64 = 0.1;

/// Multi-resource SJF.
///
/// In: sizes and work in bytes, ideal rates in bytes/s, GPUs, the totals. Out: cache in bytes and
/// remote IO in bytes/s, as the module's head says. A job's score is that of Eq. 7 in seconds, and
/// its order the rank of that: the scheduler starts the first ones. Jobs of which the work is not
/// known have no score; they come last, by id.
///
/// Objective: the sum of the scores; lower is better.
#[must_use]
pub fn sjf(problem: &Problem) -> Allocation {
    let efficiencies = efficiencies(problem);
    let mut caches = Caches::after_budgets(problem);
    give_in_order(problem, &by_efficiency(problem, &efficiencies), &mut caches);
    let holdings = holdings(problem, &caches.given);
    let left_to_read: Vec<Option<f64>> = problem
        .jobs
        .iter()
        .zip(&holdings)
        .map(|(job, holding)| job.work.map(|work| remote_io(work, holding.hit_ratio)))
        .collect();
    let shortest_first = ranked(problem, &left_to_read);
    let mut jobs = job_shares(problem, &holdings, Division::InOrder(&shortest_first, EVEN));
    let scores = scores(problem);
    for (rank, at) in ranked(problem, &scores).into_iter().enumerate() {
        jobs[at].order = rank;
        jobs[at].score = scores[at];
    }
    let objective = scores.into_iter().flatten().sum();
    allocation(caches.given, jobs, objective)
}

/// The score of each job (Eq. 7), in seconds.
#[must_use]
pub fn scores(problem: &Problem) -> Vec<Option<f64>> {
    let mut readers = vec![0.0; problem.datasets.len()];
    for job in &problem.jobs {
        readers[job.dataset] += 1.0;
    }
    let score = |job: &Job| best(problem, job, readers[job.dataset]).map(|best| best.score);
    problem.jobs.iter().map(score).collect()
}

/// Positions of jobs, the least key first, then those without, each by id.
fn ranked(problem: &Problem, keys: &[Option<f64>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|&a, &b| {
        let key = |at: usize| keys[at].unwrap_or(f64::INFINITY);
        let id = |at: usize| &problem.jobs[at].id;
        key(a).total_cmp(&key(b)).then_with(|| id(a).cmp(id(b)))
    });
    order
}

/// A resource over its total; nothing of nothing is nothing.
fn part(amount: f64, total: f64) -> f64 {
    if amount > 0.0 { amount / total } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{MB, TB, assert_near, dataset, job, micro_benchmark, totals};
    use proptest::prelude::*;

    fn one(cache: f64, remote_io: f64, size: f64, ideal_rate: f64, gpus: f64) -> Problem {
        let mut only = job("only", 0, ideal_rate, gpus);
        only.work = Some(1e15);
        Problem {
            totals: totals(16.0, cache, remote_io),
            datasets: vec![dataset("d", size)],
            jobs: vec![only],
        }
    }

    proptest! {
        /// The closed form against a search over caches and rates.
        #[test]
        fn no_allocation_scores_less(
            cache in 1.0..1e13_f64,
            remote_io in 1.0..1e9_f64,
            size in 1.0..1e13_f64,
            ideal_rate in 1.0..1e9_f64,
            gpus in 0..8_u8,
        ) {
            let problem = one(cache, remote_io, size, ideal_rate, f64::from(gpus));
            let found = best(&problem, &problem.jobs[0], 1.0).unwrap();
            let gpus = f64::from(gpus) / 16.0;
            for c in 0..=60 {
                let c = size.min(cache) * f64::from(c) / 60.0;
                for b in 0..=60 {
                    let b = remote_io * f64::from(b) / 60.0;
                    let rate = ideal_rate.min(io_perf(b, hit_ratio(c, size)));
                    let score = (gpus + c / cache + b / remote_io) * 1e15 / rate;
                    prop_assert!(score.is_nan() || score >= found.score * (1.0 - 1e-9));
                }
            }
        }
    }

    #[test]
    fn small_datasets_go_first() {
        // §5.1: the same GPUs and steps, ImageNet-1k or ImageNet-22k.
        let mut problem = Problem {
            totals: totals(8.0, 2.0 * TB, 200.0 * MB),
            datasets: vec![dataset("22k", 1.36 * TB), dataset("1k", 0.143 * TB)],
            jobs: vec![
                job("a-22k", 0, 114.0 * MB, 1.0),
                job("b-1k", 1, 114.0 * MB, 1.0),
                job("c-unknown", 1, 114.0 * MB, 1.0),
            ],
        };
        problem.jobs[0].work = Some(10.0 * TB);
        problem.jobs[1].work = Some(10.0 * TB);
        let answer = sjf(&problem);
        let orders: Vec<usize> = answer.jobs.iter().map(|share| share.order).collect();
        assert_eq!(orders, [1, 0, 2]);
        assert_eq!(answer.jobs[2].score, None);
        // By hand: 1/8 of the GPUs and half of 143 GB of 2 TB, for 10 TB at 114 MB/s.
        let score = (0.125 + 0.0715 / 2.0) * 10.0 * TB / (114.0 * MB);
        assert_near(answer.jobs[1].score.unwrap(), score, 1e-12);
    }

    #[test]
    fn the_shortest_have_remote_io_and_nobody_stands_still() {
        let mut problem = micro_benchmark();
        problem.totals.remote_io = 100.0 * MB;
        let answer = sjf(&problem);
        let rates: Vec<f64> = answer
            .jobs
            .iter()
            .map(|share| share.remote_io / MB)
            .collect();
        // resnet0 hits always; bert has 1.5 TB left, resnet1 7.8, the others 13 each.
        assert_eq!(rates[0], 0.0);
        assert_near(rates[4], 8.0, 1e-9);
        assert_near(rates[1], 52.6, 1e-3);
        assert!(rates[2] > rates[3] && rates[3] == 2.5, "{rates:?}");
        assert_near(rates.iter().sum(), 100.0, 1e-9);
    }

    #[test]
    fn with_nothing_to_read_from() {
        let problem = one(0.0, 0.0, 1.0, 1.0, 1.0);
        assert_eq!(best(&problem, &problem.jobs[0], 1.0), None);
        // Cached whole, it runs without remote IO.
        let problem = one(1e12, 0.0, 1e12, 1e8, 1.0);
        let found = best(&problem, &problem.jobs[0], 1.0).unwrap();
        assert_eq!((found.cache, found.remote_io), (1e12, 0.0));
        // More remote IO than it needs, and no cache.
        let problem = one(0.0, 1e9, 1e12, 1e8, 1.0);
        let found = best(&problem, &problem.jobs[0], 1.0).unwrap();
        assert_eq!((found.cache, found.remote_io), (0.0, 1e8));
    }
}
