//! Gavel's max-min fairness with SiloDPerf (Eq. 8 and 9), leximin beyond the first minimum.
//!
//! # How it is solved
//! Let every job run at `t` times its equal share, or at its ideal rate if that is less: `T_j(t) =
//! min(f*_j, t · T_equal_j)`. This needs remote IO of `Σ T_j · (1 - c/d)` (Eq. 2). For a given `t`
//! that is linear in the caches, so the need is least if cache goes to datasets in descending order
//! of `Σ T_j / d`, whole as long as they fit. The need grows with `t`, so bisection finds the
//! largest `t` that the remote IO allows.
//!
//! This already is the leximin solution, without rounds in which saturated jobs are frozen. At that
//! `t` the remote IO, which is a single pool, is used up, and any faster job costs some of it. The
//! exceptions are jobs at their ideal rate, which need no more, and jobs whose dataset is cached
//! whole, which need none and run at their ideal rate. (The need is concave in the rates, as a
//! minimum of linear functions: if a job's next byte has a cost now, no larger step is free
//! either.) A choice that leaves `t` unchanged exists only among datasets of equal `Σ T_j / d` at
//! the edge of the cache. Then the choice is taken that lets most jobs have their dataset whole.

use super::performance::{hit_ratio, remote_io, silod_perf};
use super::problem::{Allocation, Job, Problem};
use super::shares::{Caches, Division, allocation, holdings, job_shares, ranked, readers};

/// The maximum number of bisection steps. Half of them shrink the interval to the precision of
/// `f64`.
const STEPS: usize = 200;
/// The relative width of an interval of `t` at which bisection ends.
const NARROW: f64 = 1e-13;
/// The relative difference of `Σ T/d` below which datasets are equally good to cache. It changes
/// `t` by as small a fraction.
const EQUAL: f64 = 1e-10;

/// Max-min fairness over an equal division (Eq. 9).
///
/// Input: sizes in bytes, ideal rates in bytes/s, and the totals. Output: cache in bytes and remote
/// IO in bytes/s.
///
/// `R_equal` of `n` jobs: each has `C/n` of cache, `B/n` of remote IO, and its GPUs (which `f*`
/// includes). A shared dataset counts once: `k` jobs on one dataset combine their parts, and each
/// of them hits `min(d, k · C/n)`. The part that a job cannot use is not given to others. So the
/// equal share is always feasible, and no job gets less than it.
///
/// A job with a manual rate does not compete. With instantaneous hit ratios, caches are planned for
/// steady state, and rates are the fairest that these caches and hits allow. So no job is below its
/// equal share in steady state, but it may be while the cache fills.
///
/// A job's score is its throughput divided by that of the equal share (none if that is zero:
/// without remote IO). Objective: the least score, or 0 without scores.
#[must_use]
pub fn max_min(problem: &Problem) -> Allocation {
    let equal = equal_throughputs(problem);
    let mut caches = Caches::after_budgets(problem);
    let level = highest_level(problem, &equal, &caches);
    place(problem, &equal, level, &mut caches);
    let holdings = holdings(problem, &caches.given);
    let hits = problem.jobs.iter().zip(&holdings);
    let hits = hits.map(|(job, holding)| holding.hits_now(job));
    let weights = equal.iter().zip(hits);
    let weights: Vec<f64> = weights.map(|(equal, hit)| remote_io(*equal, hit)).collect();
    let mut jobs = job_shares(problem, &holdings, Division::Weighted(&weights));
    // Without remote IO the equal share is zero, and a ratio to it means nothing.
    for (share, equal) in jobs.iter_mut().zip(&equal) {
        share.score = (*equal > 0.0).then(|| share.throughput / equal);
    }
    let scores: Vec<Option<f64>> = jobs.iter().map(|share| share.score).collect();
    for (rank, at) in ranked(problem, &scores).into_iter().enumerate() {
        jobs[at].order = rank;
    }
    let objective = scores.into_iter().flatten().reduce(f64::min);
    let objective = objective.filter(|least| least.is_finite()).unwrap_or(0.0);
    allocation(problem, &caches.given, jobs, objective)
}

/// Returns each job's throughput with an equal share of everything, `SiloDPerf(j, R_equal)` of
/// [`max_min`], in bytes/s; 0 for jobs with a manual rate.
#[must_use]
pub fn equal_throughputs(problem: &Problem) -> Vec<f64> {
    #[expect(clippy::cast_precision_loss, reason = "jobs are far fewer than 2^53")]
    let jobs = problem.jobs.len().max(1) as f64;
    let readers = readers(problem);
    let (cache, io) = (problem.totals.cache / jobs, problem.totals.remote_io / jobs);
    let equal = |job: &Job| match job.remote_io {
        Some(_) => 0.0,
        None => {
            let size = problem.datasets[job.dataset].size;
            let hit = hit_ratio(cache * readers[job.dataset], size);
            silod_perf(job.ideal_rate, io, hit)
        }
    };
    problem.jobs.iter().map(equal).collect()
}

/// Returns the rate of a job at level `t`.
fn rate_at(level: f64, ideal_rate: f64, equal: f64) -> f64 {
    ideal_rate.min(level * equal)
}

/// Returns the highest level whose need of remote IO is met with the best caches.
fn highest_level(problem: &Problem, equal: &[f64], caches: &Caches) -> f64 {
    let (datasets, jobs) = (&problem.datasets, || problem.jobs.iter().zip(equal));
    // Remote IO for jobs without a manual rate.
    let by_hand = |job: &Job| job.remote_io.unwrap_or(0.0);
    let taken: f64 = problem.jobs.iter().map(by_hand).sum();
    let remote_io = (problem.totals.remote_io - taken).max(0.0);
    // The sum of rates of each dataset's jobs. Reused by each step.
    let mut rates = vec![0.0; datasets.len()];
    // Datasets in the order of the last level, which is nearly that of the next level.
    let mut order: Vec<usize> = (0..datasets.len()).filter(|&at| caches.open[at]).collect();
    let mut fits = |level: f64| {
        rates.fill(0.0);
        let mut need = 0.0;
        for (job, equal) in jobs() {
            let rate = rate_at(level, job.ideal_rate, *equal);
            rates[job.dataset] += rate;
            need += rate;
        }
        let slope = |at: usize| rates[at] / datasets[at].size;
        order.sort_by(|&a, &b| slope(b).total_cmp(&slope(a)).then(a.cmp(&b)));
        let mut left = caches.left;
        for &at in &order {
            let cache = datasets[at].size.min(left);
            need -= slope(at) * cache;
            left -= cache;
            if left <= 0.0 {
                break;
            }
        }
        for (at, cache) in caches.given.iter().enumerate() {
            need -= slope(at) * cache;
        }
        // `need` started as the sum of all rates, from which the caches' savings were subtracted.
        need <= remote_io
    };
    let competing = jobs().filter(|(_, equal)| **equal > 0.0);
    let levels = competing.map(|(job, equal)| job.ideal_rate / equal);
    let mut high = levels.fold(0.0, f64::max);
    // Beyond this level every job is at its ideal rate.
    if fits(high) {
        return high;
    }
    let mut low = 0.0;
    for _ in 0..STEPS {
        let middle = f64::midpoint(low, high);
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
        if high - low <= NARROW * high {
            break;
        }
    }
    low
}

/// Allocates cache at `level`, first to the datasets that save most remote IO.
fn place(problem: &Problem, equal: &[f64], level: f64, caches: &mut Caches) {
    let mut rates = vec![0.0; problem.datasets.len()];
    // The number of jobs that would be faster if their dataset were cached whole.
    let mut hungry = vec![0.0; problem.datasets.len()];
    let readers = readers(problem);
    for (job, equal) in problem.jobs.iter().zip(equal) {
        let rate = rate_at(level, job.ideal_rate, *equal);
        rates[job.dataset] += rate;
        if rate < job.ideal_rate * (1.0 - EQUAL) {
            hungry[job.dataset] += 1.0;
        }
    }
    let datasets = &problem.datasets;
    let slope = |at: usize| rates[at] / datasets[at].size;
    let mut order: Vec<usize> = (0..datasets.len())
        .filter(|&at| caches.open[at] && readers[at] > 0.0)
        .collect();
    order.sort_by(|&a, &b| slope(b).total_cmp(&slope(a)));
    let mut from = 0;
    while from < order.len() {
        let edge = slope(order[from]) * (1.0 - EQUAL);
        let same = order[from..].iter().take_while(|&&at| slope(at) >= edge);
        let to = from + same.count();
        let group = &mut order[from..to];
        group.sort_by(|&a, &b| {
            let cost = |at: usize| datasets[at].size / hungry[at];
            cost(a)
                .total_cmp(&cost(b))
                .then_with(|| datasets[a].name.cmp(&datasets[b].name))
        });
        // Whole datasets first, then a part of the first one that did not fit.
        for &at in group.iter() {
            if datasets[at].size <= caches.left {
                caches.give(at, datasets[at].size);
            }
        }
        for &at in group.iter() {
            caches.give(at, datasets[at].size - caches.given[at]);
        }
        from = to;
    }
}

#[cfg(test)]
mod tests;
