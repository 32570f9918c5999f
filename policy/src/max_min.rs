//! Gavel's max-min fairness with SiloDPerf (Eq. 8 and 9), leximin beyond the first minimum.
//!
//! # How it is solved
//! Let every job run at `t` times its equal share, or at its ideal rate if that is less:
//! `T_j(t) = min(f*_j, t · T_equal_j)`. The remote IO that this needs is `Σ T_j · (1 - c/d)` (Eq. 2):
//! for a given `t` it is linear in the caches, so the caches that need least go to the datasets in
//! descending order of `Σ T_j / d`, whole as long as they fit. It grows with `t`, so the largest `t`
//! that the remote IO allows is found by bisection.
//!
//! That is the whole leximin, without rounds in which saturated jobs are frozen. Remote IO is one
//! pool: at that `t` it is used up, and a job that is faster costs some of it, whoever it is, except
//! for jobs at their ideal rate, which need no more, and jobs whose dataset is cached whole, which
//! cost nothing and get their ideal rate. (The need is concave in the rates, as a minimum of linear
//! functions: where a job's next byte costs something now, no larger step is free either.) Only
//! among datasets of equal `Σ T_j / d` at the edge of the cache there is a choice that leaves `t` as
//! it is: the one that lets most jobs have their dataset whole is taken.

use super::performance::{hit_ratio, remote_io, silod_perf};
use super::problem::{Allocation, Problem};
use super::shares::{Caches, Division, allocation, holdings, job_shares};

/// Steps of bisection at most: the interval shrinks to the precision of `f64` in half of them.
const STEPS: usize = 200;
/// Intervals of `t`, relative to it, that are narrow enough.
const NARROW: f64 = 1e-13;
/// Datasets whose `Σ T/d` differ by less than this part are equally good to cache. It costs as
/// small a part of `t`.
const EQUAL: f64 = 1e-10;

/// Max-min fairness over an equal division (Eq. 9).
///
/// In: sizes in bytes, ideal rates in bytes/s, the totals. Out: cache in bytes and remote IO in
/// bytes/s.
///
/// `R_equal` of `n` jobs: each has `C/n` of cache and `B/n` of remote IO, and the GPUs that it runs
/// on (`f*` says what they do). What jobs share counts once: `k` jobs of one dataset put their parts
/// together, and each of them hits `min(d, k · C/n)`. What a job cannot use of its part is not given
/// to others there. So the equal share is always feasible, and nobody gets less than it.
///
/// A rate set by hand takes the job out of the competition. With instantaneous hit ratios, caches
/// are planned for steady state, and rates are then the fairest that these caches and hits allow:
/// nobody is below the equal share in steady state, but may be so while the cache fills.
///
/// A job's score is its throughput over that of the equal share (none if that is zero: without
/// remote IO). Objective: the least score, 0 if there is none.
#[must_use]
pub fn max_min(problem: &Problem) -> Allocation {
    let equal = equal_throughputs(problem);
    let mut caches = Caches::after_budgets(problem);
    let level = {
        let mut need = Need::new(problem, &equal, &caches);
        need.highest_level()
    };
    place(problem, &equal, level, &mut caches);
    let holdings = holdings(problem, &caches.given);
    let weights: Vec<f64> = problem
        .jobs
        .iter()
        .zip(&holdings)
        .zip(&equal)
        .map(|((job, holding), equal)| {
            remote_io(*equal, job.hit_ratio.unwrap_or(holding.hit_ratio))
        })
        .collect();
    let mut jobs = job_shares(problem, &holdings, Division::Weighted(&weights));
    let mut objective = f64::INFINITY;
    for (share, equal) in jobs.iter_mut().zip(&equal) {
        share.score = (*equal > 0.0).then(|| share.throughput / equal);
        objective = objective.min(share.score.unwrap_or(f64::INFINITY));
    }
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by(|&a, &b| {
        let score = |at: usize| jobs[at].score.unwrap_or(f64::INFINITY);
        let id = |at: usize| &problem.jobs[at].id;
        score(a).total_cmp(&score(b)).then_with(|| id(a).cmp(id(b)))
    });
    for (rank, at) in order.into_iter().enumerate() {
        jobs[at].order = rank;
    }
    let objective = if objective.is_finite() {
        objective
    } else {
        0.0
    };
    allocation(caches.given, jobs, objective)
}

/// What each job reads with an equal share of everything, `SiloDPerf(j, R_equal)` of [`max_min`], in
/// bytes/s; 0 for jobs whose rate is set by hand.
#[must_use]
pub fn equal_throughputs(problem: &Problem) -> Vec<f64> {
    #[expect(clippy::cast_precision_loss, reason = "jobs are far fewer than 2^53")]
    let jobs = problem.jobs.len().max(1) as f64;
    let mut readers = vec![0.0; problem.datasets.len()];
    for job in &problem.jobs {
        readers[job.dataset] += 1.0;
    }
    let (cache, io) = (problem.totals.cache / jobs, problem.totals.remote_io / jobs);
    problem
        .jobs
        .iter()
        .map(|job| match job.remote_io {
            Some(_) => 0.0,
            None => {
                let hit = hit_ratio(
                    cache * readers[job.dataset],
                    problem.datasets[job.dataset].size,
                );
                silod_perf(job.ideal_rate, io, hit)
            }
        })
        .collect()
}

/// The rate of a job at level `t`.
fn rate_at(level: f64, ideal_rate: f64, equal: f64) -> f64 {
    ideal_rate.min(level * equal)
}

/// The least remote IO that a level needs.
struct Need<'a> {
    problem: &'a Problem,
    equal: &'a [f64],
    caches: &'a Caches,
    /// For the jobs.
    remote_io: f64,
    /// Rates of each dataset's jobs together: scratch.
    rates: Vec<f64>,
    /// Datasets to be cached, in the order of the last level: nearly that of the next one.
    order: Vec<usize>,
}

impl<'a> Need<'a> {
    fn new(problem: &'a Problem, equal: &'a [f64], caches: &'a Caches) -> Self {
        let by_hand = |job: &super::Job| job.remote_io.unwrap_or(0.0);
        let taken: f64 = problem.jobs.iter().map(by_hand).sum();
        let order = (0..problem.datasets.len())
            .filter(|&at| caches.open[at])
            .collect();
        Self {
            problem,
            equal,
            caches,
            remote_io: (problem.totals.remote_io - taken).max(0.0),
            rates: vec![0.0; problem.datasets.len()],
            order,
        }
    }

    fn highest_level(&mut self) -> f64 {
        let jobs = self.problem.jobs.iter().zip(self.equal);
        let mut high = jobs
            .filter(|(_, equal)| **equal > 0.0)
            .map(|(job, equal)| job.ideal_rate / equal)
            .fold(0.0, f64::max);
        if self.fits(high) {
            return high;
        }
        let mut low = 0.0;
        for _ in 0..STEPS {
            let middle = f64::midpoint(low, high);
            if self.fits(middle) {
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

    fn fits(&mut self, level: f64) -> bool {
        self.rates.fill(0.0);
        let mut need = 0.0;
        for (job, equal) in self.problem.jobs.iter().zip(self.equal) {
            let rate = rate_at(level, job.ideal_rate, *equal);
            self.rates[job.dataset] += rate;
            need += rate;
        }
        let datasets = &self.problem.datasets;
        let rates = &self.rates;
        let slope = |at: usize| rates[at] / datasets[at].size;
        self.order
            .sort_by(|&a, &b| slope(b).total_cmp(&slope(a)).then(a.cmp(&b)));
        let mut left = self.caches.left;
        for &at in &self.order {
            let cache = datasets[at].size.min(left);
            need -= slope(at) * cache;
            left -= cache;
            if left <= 0.0 {
                break;
            }
        }
        for (at, cache) in self.caches.given.iter().enumerate() {
            need -= slope(at) * cache;
        }
        need <= self.remote_io
    }
}

/// Gives cache at `level`: the datasets that save most remote IO first.
fn place(problem: &Problem, equal: &[f64], level: f64, caches: &mut Caches) {
    let mut rates = vec![0.0; problem.datasets.len()];
    // Jobs that would gain if their dataset were cached whole.
    let mut hungry = vec![0.0; problem.datasets.len()];
    let mut readers = vec![0_usize; problem.datasets.len()];
    for (job, equal) in problem.jobs.iter().zip(equal) {
        let rate = rate_at(level, job.ideal_rate, *equal);
        rates[job.dataset] += rate;
        readers[job.dataset] += 1;
        if rate < job.ideal_rate * (1.0 - EQUAL) {
            hungry[job.dataset] += 1.0;
        }
    }
    let datasets = &problem.datasets;
    let slope = |at: usize| rates[at] / datasets[at].size;
    let mut order: Vec<usize> = (0..datasets.len())
        .filter(|&at| caches.open[at] && readers[at] > 0)
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
        // Whole ones first, then a part of the first that did not fit.
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
