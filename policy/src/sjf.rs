//! Multi-resource shortest job first (Eq. 6 and 7).
//!
//! # The minimum in closed form
//! A job's score is the minimum over all possible allocations of the weighted sum of its resources
//! times its duration (Eq. 7), with weights `1/total`:
//!
//! ```text
//! score = min over c, b of  (g/G + c/C + b/B) · work / T      T = min(f*, b / (1 - c/d))
//! ```
//!
//! Its GPUs `g` are fixed. For a given `c`, more throughput is always better (`b` grows with `T`,
//! while the other resources are needed for a shorter time), so `T` is `f*`, or the rate with all
//! remote IO: `B / (1 - c/d)`. Where remote IO suffices, the score is linear in `c`. Where it does
//! not, the score is `work/B · (1 - c/d) · (1 + g/G + c/C)`, concave in `c`. So the minimum is at
//! an end of one of these two ranges: `c = 0`, `c = min(d, C)`, or where remote IO begins to
//! suffice, `c = d · (1 - B/f*)`.
//!
//! # The allocation
//! The paper defines the order in which jobs are scheduled, but not how much cache and remote IO
//! each gets. If each job in turn got its minimising `R`, the first jobs would get whole datasets,
//! although few bytes of them will be read. Several divisions were tried in fluid simulations (150
//! jobs with Table 4's models on 24 GPUs, durations from ten minutes to four days, four mixes of
//! cache and remote IO, four seeds each). This one had the shortest average completion time:
//!
//! - cache by efficiency, like `greedy`: the largest saving of remote IO helps all jobs;
//! - remote IO first to the job with the fewest bytes left to read remotely, `work · (1 - c/d)`:
//!   shortest first in the scarce resource;
//! - but a tenth of it evenly, so that every job with GPUs makes progress. That improved the
//!   average, too.
//!
//! With allocations by `R` and score, the average was 1 to 17 % longer; with max-min remote IO, 7
//! to 28 %.

use super::performance::{hit_ratio, io_perf, remote_io};
use super::problem::{Allocation, Job, Problem};
use super::shares::{
    Division, allocation, by_efficiency, efficiencies, holdings, job_shares, ranked, readers,
};

/// The best allocation for one job alone: the minimising `R` of Eq. 7.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Best {
    /// The score in seconds: duration times the part of the cluster that the job uses.
    pub score: f64,
    /// Bytes of cache.
    pub cache: f64,
    /// Bytes per second of remote IO.
    pub remote_io: f64,
}

/// Returns the score of a job (Eq. 7) and the minimising allocation. `None` if its work is unknown,
/// or if no allocation lets it run.
///
/// `readers` jobs read its dataset, including this one. Each is charged the same part of the shared
/// cache (§6).
#[must_use]
pub fn best(problem: &Problem, job: &Job, readers: f64) -> Option<Best> {
    let totals = problem.totals;
    let dataset = &problem.datasets[job.dataset];
    let work = job.work?;
    let gpus = part(job.gpus, totals.gpus);
    let most = dataset.size.min(totals.cache);
    let enough = dataset.size * (1.0 - totals.remote_io / job.ideal_rate);
    // The three ends of the two ranges in the module documentation. A manual budget leaves no
    // choice.
    let candidates = match dataset.set_by_hand(job.uses_chunks()) {
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
        // The score is infinite or NaN without a rate.
        .filter(|best| best.score.is_finite())
        .min_by(|a, b| a.score.total_cmp(&b.score))
}

/// The fraction of remote IO that is divided evenly.
const EVEN: f64 = 0.1;

/// Multi-resource SJF.
///
/// Input: sizes and work in bytes, ideal rates in bytes/s, GPUs, and the totals. Output: cache in
/// bytes and remote IO in bytes/s, as described in the module documentation. A job's score is that
/// of Eq. 7 in seconds, and its order is the rank of the score: the scheduler starts the first
/// jobs. Jobs with unknown work have no score and come last, by id.
///
/// Objective: the sum of the scores; lower is better.
#[must_use]
pub fn sjf(problem: &Problem) -> Allocation {
    let efficiencies = efficiencies(problem);
    let caches = by_efficiency(problem, &efficiencies);
    let holdings = holdings(problem, &caches);
    let left_to_read = problem.jobs.iter().zip(&holdings);
    let left_to_read: Vec<Option<f64>> = left_to_read
        .map(|(job, holding)| Some(remote_io(job.work?, holding.hit_ratio)))
        .collect();
    let shortest_first = ranked(problem, &left_to_read);
    let mut jobs = job_shares(problem, &holdings, Division::InOrder(&shortest_first, EVEN));
    let scores = scores(problem);
    for (rank, at) in ranked(problem, &scores).into_iter().enumerate() {
        jobs[at].order = rank;
        jobs[at].score = scores[at];
    }
    let objective = scores.into_iter().flatten().sum();
    allocation(problem, &caches, jobs, objective)
}

/// Returns the score of each job (Eq. 7), in seconds.
#[must_use]
pub fn scores(problem: &Problem) -> Vec<Option<f64>> {
    let readers = readers(problem);
    let score = |job: &Job| best(problem, job, readers[job.dataset]).map(|best| best.score);
    problem.jobs.iter().map(score).collect()
}

/// Returns the fraction of a total, and 0 for an amount of 0 even if the total is 0.
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
        // Calculated by hand: 1/8 of the GPUs and half of 143 GB of 2 TB, for 10 TB at 114 MB/s.
        let score = (0.125 + 0.0715 / 2.0) * 10.0 * TB / (114.0 * MB);
        assert_near(answer.jobs[1].score.unwrap(), score, 1e-12);
    }

    #[test]
    fn the_shortest_jobs_come_first_and_every_job_progresses() {
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
    fn jobs_without_cache_or_remote_io() {
        let problem = one(0.0, 0.0, 1.0, 1.0, 1.0);
        assert_eq!(best(&problem, &problem.jobs[0], 1.0), None);
        // With its dataset cached whole, it runs without remote IO.
        let problem = one(1e12, 0.0, 1e12, 1e8, 1.0);
        let found = best(&problem, &problem.jobs[0], 1.0).unwrap();
        assert_eq!((found.cache, found.remote_io), (1e12, 0.0));
        // More remote IO than it needs, and no cache.
        let problem = one(0.0, 1e9, 1e12, 1e8, 1.0);
        let found = best(&problem, &problem.jobs[0], 1.0).unwrap();
        assert_eq!((found.cache, found.remote_io), (0.0, 1e8));
    }
}
