//! Common parts of the policies: manual settings, orders, and the step from caches to rates.

use super::choice::Choice;
use super::performance::{cache_efficiency, hit_ratio, hit_ratio_together, remote_io, silod_perf};
use super::problem::{Allocation, Dataset, DatasetShare, Job, JobShare, Problem};
use super::times::Mode;
use super::water::{fill, fill_weighted};
use std::cmp::Ordering;

/// The allocation of cache after manual budgets.
#[derive(Debug)]
pub(super) struct Caches {
    /// Bytes allocated to each dataset so far.
    pub(super) given: Vec<f64>,
    /// Whether the policy may allocate cache to each dataset.
    pub(super) open: Vec<bool>,
    /// The rest of the total, in bytes.
    pub(super) left: f64,
}

impl Caches {
    /// Allocates manual budgets, cut evenly if they exceed the total.
    pub(super) fn after_budgets(problem: &Problem) -> Self {
        let by_hand = set_by_hand(problem);
        let wanted: Vec<f64> = by_hand.iter().map(|set| set.unwrap_or(0.0)).collect();
        let given = fill(problem.totals.cache, &wanted);
        Self {
            left: left(problem.totals.cache, &given),
            given,
            open: by_hand.iter().map(Option::is_none).collect(),
        }
    }

    /// Allocates `wanted` bytes to a dataset, or the rest of the cache if that is less.
    pub(super) fn give(&mut self, dataset: usize, wanted: f64) {
        let more = wanted.min(self.left).max(0.0);
        self.given[dataset] += more;
        self.left -= more;
    }
}

/// Returns the bytes of each dataset that were set by hand, directly or by its rule.
pub(super) fn set_by_hand(problem: &Problem) -> Vec<Option<f64>> {
    let substituted = per_dataset(problem, |job| f64::from(u8::from(job.uses_chunks())));
    let datasets = problem.datasets.iter().zip(substituted);
    datasets
        .map(|(dataset, jobs)| dataset.set_by_hand(jobs > 0.0))
        .collect()
}

/// Returns the rest of a total.
pub(super) fn left(total: f64, given: &[f64]) -> f64 {
    (total - given.iter().sum::<f64>()).max(0.0)
}

/// How remote IO is divided among jobs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Division<'a> {
    /// Max-min on the demands.
    Even,
    /// Max-min on demand divided by weight, with one weight for each job.
    Weighted(&'a [f64]),
    /// To one job after another in this order (indices), after this fraction of it has been divided
    /// max-min on the demands.
    InOrder(&'a [usize], f64),
}

/// A job's part of the cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holding {
    /// Bytes.
    pub(super) cache: f64,
    /// The resulting hit ratio in steady state.
    pub(super) hit_ratio: f64,
    /// Whether items that were cached in an epoch are hits from the next one on, so that the job's
    /// own `hit_ratio` may differ from the steady state.
    pub(super) delayed: bool,
}

impl Holding {
    /// The holding of a job whose look-ups all miss.
    pub(super) const MISSES: Self = Self {
        cache: 0.0,
        hit_ratio: 0.0,
        delayed: false,
    };

    /// Returns the fraction of the job's next reads that hits (§6, delayed effectiveness).
    pub(super) fn hits_now(&self, job: &Job) -> f64 {
        let stated = job.hit_ratio.filter(|_| self.delayed);
        stated.unwrap_or(self.hit_ratio).clamp(0.0, 1.0)
    }
}

/// Returns the holdings of jobs with the caches that a policy has allocated without a choice of its
/// own.
pub(super) fn holdings(problem: &Problem, caches: &[f64]) -> Vec<Holding> {
    holdings_of(problem, &shares(&problem.datasets, caches))
}

/// Returns the shares that follow from the bytes and the datasets' rules.
pub(super) fn shares(datasets: &[Dataset], caches: &[f64]) -> Vec<DatasetShare> {
    let datasets = datasets.iter().zip(caches);
    datasets
        .map(|(dataset, cache)| DatasetShare::of(dataset, *cache))
        .collect()
}

/// Returns the holdings of jobs. With uniform caching each job hits its dataset's allocation. Of the
/// `n` jobs that read chunks together each fetches its part, so it hits the rest (Quiver, section
/// 5.2).
pub(super) fn holdings_of(problem: &Problem, shares: &[DatasetShare]) -> Vec<Holding> {
    let reads_chunks = |job: &Job| job.substitutes && job.mode == Mode::Cached;
    let together = per_dataset(problem, |job| f64::from(u8::from(reads_chunks(job))));
    let holding = |job: &Job| {
        let share = shares[job.dataset];
        if job.mode != Mode::Cached {
            return Holding::MISSES;
        }
        let chunks = share.choice == Choice::Chunks && reads_chunks(job);
        Holding {
            cache: share.cache,
            hit_ratio: if chunks {
                hit_ratio_together(together[job.dataset])
            } else {
                hit_ratio(share.cache, problem.datasets[job.dataset].size)
            },
            delayed: !chunks,
        }
    };
    problem.jobs.iter().map(holding).collect()
}

/// Divides remote IO by the *instantaneous* demand `f* · (1 - hit)` of each job (§6). The shares
/// have the order of the jobs, which is also their `order` until a policy sets another.
pub(super) fn job_shares(
    problem: &Problem,
    holdings: &[Holding],
    division: Division<'_>,
) -> Vec<JobShare> {
    let jobs = &problem.jobs;
    let hits = jobs.iter().zip(holdings);
    let hits: Vec<f64> = hits.map(|(job, held)| held.hits_now(job)).collect();
    let by_hand = jobs.iter().map(|job| job.remote_io.unwrap_or(0.0).max(0.0));
    // Manual rates come first, and are cut evenly if they exceed the total.
    let mut given = fill(problem.totals.remote_io, &by_hand.collect::<Vec<f64>>());
    let need = |(job, hit): (&Job, &f64)| match job.remote_io {
        Some(_) => 0.0,
        None => remote_io(job.ideal_rate, *hit),
    };
    let needs: Vec<f64> = jobs.iter().zip(&hits).map(need).collect();
    let divided = divide(left(problem.totals.remote_io, &given), &needs, division);
    for (given, more) in given.iter_mut().zip(divided) {
        *given += more;
    }
    // The limits include remote IO that no job needs.
    let limits = limits(problem, &given);
    (0..jobs.len())
        .map(|at| JobShare {
            cache: holdings[at].cache,
            mode: jobs[at].mode,
            hit_ratio: hits[at],
            remote_io: given[at],
            limit: limits[at],
            throughput: silod_perf(jobs[at].ideal_rate, given[at], hits[at]),
            score: None,
            order: at,
        })
        .collect()
}

fn divide(capacity: f64, needs: &[f64], division: Division<'_>) -> Vec<f64> {
    match division {
        Division::Even => fill(capacity, needs),
        Division::Weighted(weights) => fill_weighted(capacity, needs, weights),
        Division::InOrder(order, even) => {
            let mut given = fill(capacity * even, needs);
            let mut left = left(capacity, &given);
            for &at in order {
                let more = (needs[at] - given[at]).min(left);
                given[at] += more;
                left -= more;
            }
            given
        }
    }
}

/// Returns the enforced limit of each job: its allocation plus a part of the unneeded remote IO, in
/// proportion to its ideal rate. Manual rates are enforced unchanged.
pub(super) fn limits(problem: &Problem, given: &[f64]) -> Vec<f64> {
    let spare = left(problem.totals.remote_io, given);
    let weight = |job: &Job| match job.remote_io {
        Some(_) => 0.0,
        None => job.ideal_rate,
    };
    let weights: f64 = problem.jobs.iter().map(weight).sum();
    if weights <= 0.0 {
        return given.to_vec();
    }
    let jobs = given.iter().zip(&problem.jobs);
    jobs.map(|(given, job)| given + spare * weight(job) / weights)
        .collect()
}

/// Returns for each dataset the sum over its jobs.
pub(super) fn per_dataset(problem: &Problem, value: impl Fn(&Job) -> f64) -> Vec<f64> {
    let mut sums = vec![0.0; problem.datasets.len()];
    for job in &problem.jobs {
        sums[job.dataset] += value(job);
    }
    sums
}

/// Returns the cache efficiency of each dataset: the sum over its jobs (§6, dataset sharing).
pub(super) fn efficiencies(problem: &Problem) -> Vec<f64> {
    let size = |job: &Job| problem.datasets[job.dataset].size;
    per_dataset(problem, |job| cache_efficiency(job.ideal_rate, size(job)))
}

/// Returns the indices below `count` in an order.
fn sorted(count: usize, compare: impl Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| compare(a, b));
    order
}

/// Allocates the cache after manual budgets to the datasets with jobs, the most efficient first. Names break
/// ties. The last one gets a part.
pub(super) fn by_efficiency(problem: &Problem, efficiencies: &[f64]) -> Vec<f64> {
    let mut caches = Caches::after_budgets(problem);
    let name = |at: usize| &problem.datasets[at].name;
    let order = sorted(problem.datasets.len(), |a, b| {
        let by_efficiency = efficiencies[b].total_cmp(&efficiencies[a]);
        by_efficiency.then_with(|| name(a).cmp(name(b)))
    });
    for dataset in order.into_iter().filter(|&at| efficiencies[at] > 0.0) {
        if caches.open[dataset] {
            caches.give(dataset, problem.datasets[dataset].size);
        }
    }
    caches.given
}

/// Returns the number of jobs that read each dataset.
pub(super) fn readers(problem: &Problem) -> Vec<f64> {
    per_dataset(problem, |_| 1.0)
}

/// Returns the indices of jobs by ascending key, with jobs without a key last. Ids break ties.
pub(super) fn ranked(problem: &Problem, keys: &[Option<f64>]) -> Vec<usize> {
    let key = |at: usize| keys[at].unwrap_or(f64::INFINITY);
    let id = |at: usize| &problem.jobs[at].id;
    sorted(keys.len(), |a, b| {
        key(a).total_cmp(&key(b)).then_with(|| id(a).cmp(id(b)))
    })
}

/// Sets the order and score of jobs by the efficiency of their datasets. Names break ties.
pub(super) fn rank_by_efficiency(problem: &Problem, efficiencies: &[f64], shares: &mut [JobShare]) {
    let dataset = |at: usize| problem.jobs[at].dataset;
    let name = |at: usize| (&problem.datasets[dataset(at)].name, &problem.jobs[at].id);
    let order = sorted(shares.len(), |a, b| {
        let by_efficiency = efficiencies[dataset(b)].total_cmp(&efficiencies[dataset(a)]);
        by_efficiency.then_with(|| name(a).cmp(&name(b)))
    });
    for (rank, at) in order.into_iter().enumerate() {
        shares[at].order = rank;
        shares[at].score = Some(efficiencies[dataset(at)]);
    }
}

/// Returns the remote IO that the cache saves if all jobs read at their ideal rate: `Σ f* · hit`,
/// in bytes per second. `greedy` maximises it, and policies without an objective of their own are
/// compared by it.
fn saved(problem: &Problem, holdings: &[Holding]) -> f64 {
    let saved = |(job, holding): (&Job, &Holding)| job.ideal_rate * holding.hit_ratio;
    problem.jobs.iter().zip(holdings).map(saved).sum()
}

/// Assembles the allocation of a policy that divides remote IO evenly, with the saved remote IO as its
/// objective.
pub(super) fn evenly(problem: &Problem, caches: &[f64], holdings: &[Holding]) -> Allocation {
    let jobs = job_shares(problem, holdings, Division::Even);
    allocation(problem, caches, jobs, saved(problem, holdings))
}

/// Assembles the allocation of a policy that has allocated caches without a choice of its own.
pub(super) fn allocation(
    problem: &Problem,
    caches: &[f64],
    jobs: Vec<JobShare>,
    objective: f64,
) -> Allocation {
    Allocation {
        datasets: shares(&problem.datasets, caches),
        jobs,
        objective,
    }
}
