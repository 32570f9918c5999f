//! Common parts of the policies: manual settings, orders, and the step from caches to rates.

use super::performance::{cache_efficiency, hit_ratio, remote_io, silod_perf};
use super::problem::{Allocation, DatasetShare, JobShare, Problem};
use super::water::{fill, fill_weighted};

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
        let wanted: Vec<f64> = problem
            .datasets
            .iter()
            .map(|dataset| dataset.budget.unwrap_or(0.0).clamp(0.0, dataset.size))
            .collect();
        let given = fill(problem.totals.cache, &wanted);
        let left = (problem.totals.cache - given.iter().sum::<f64>()).max(0.0);
        Self {
            given,
            open: problem
                .datasets
                .iter()
                .map(|dataset| dataset.budget.is_none())
                .collect(),
            left,
        }
    }

    /// Allocates `wanted` bytes to a dataset, or the rest of the cache if that is less.
    pub(super) fn give(&mut self, dataset: usize, wanted: f64) {
        let more = wanted.min(self.left).max(0.0);
        self.given[dataset] += more;
        self.left -= more;
    }
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
}

/// Returns the holdings with uniform caching: each job hits its dataset's allocation.
pub(super) fn holdings(problem: &Problem, caches: &[f64]) -> Vec<Holding> {
    let holding = |dataset: usize| Holding {
        cache: caches[dataset],
        hit_ratio: hit_ratio(caches[dataset], problem.datasets[dataset].size),
    };
    problem
        .jobs
        .iter()
        .map(|job| holding(job.dataset))
        .collect()
}

/// Divides remote IO by the *instantaneous* demand `f* · (1 - hit)` of each job (§6). The shares
/// have the order of the jobs, which is also their `order` until a policy sets another.
pub(super) fn job_shares(
    problem: &Problem,
    holdings: &[Holding],
    division: Division<'_>,
) -> Vec<JobShare> {
    let jobs = &problem.jobs;
    let hits: Vec<f64> = jobs
        .iter()
        .zip(holdings)
        .map(|(job, holding)| job.hit_ratio.unwrap_or(holding.hit_ratio).clamp(0.0, 1.0))
        .collect();
    let by_hand: Vec<f64> = jobs
        .iter()
        .map(|job| job.remote_io.unwrap_or(0.0).max(0.0))
        .collect();
    // Manual rates come first, and are cut evenly if they exceed the total.
    let mut given = fill(problem.totals.remote_io, &by_hand);
    let left = (problem.totals.remote_io - given.iter().sum::<f64>()).max(0.0);
    let needs: Vec<f64> = jobs
        .iter()
        .zip(&hits)
        .map(|(job, hit)| match job.remote_io {
            Some(_) => 0.0,
            None => remote_io(job.ideal_rate, *hit),
        })
        .collect();
    let divided = divide(left, &needs, division);
    for (given, more) in given.iter_mut().zip(divided) {
        *given += more;
    }
    // The limits include remote IO that no job needs.
    let limits = limits(problem, &given);
    (0..jobs.len())
        .map(|at| JobShare {
            cache: holdings[at].cache,
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
            let mut left = (capacity - given.iter().sum::<f64>()).max(0.0);
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
    let spare = (problem.totals.remote_io - given.iter().sum::<f64>()).max(0.0);
    let weight = |at: usize| match problem.jobs[at].remote_io {
        Some(_) => 0.0,
        None => problem.jobs[at].ideal_rate,
    };
    let weights: f64 = (0..given.len()).map(weight).sum();
    if weights <= 0.0 {
        return given.to_vec();
    }
    given
        .iter()
        .enumerate()
        .map(|(at, given)| given + spare * weight(at) / weights)
        .collect()
}

/// Returns the cache efficiency of each dataset: the sum over its jobs (§6, dataset sharing).
pub(super) fn efficiencies(problem: &Problem) -> Vec<f64> {
    let mut sums = vec![0.0; problem.datasets.len()];
    for job in &problem.jobs {
        let size = problem.datasets[job.dataset].size;
        sums[job.dataset] += cache_efficiency(job.ideal_rate, size);
    }
    sums
}

/// Returns the datasets with jobs, the most efficient first. Names break ties.
pub(super) fn by_efficiency(problem: &Problem, efficiencies: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..problem.datasets.len())
        .filter(|&at| efficiencies[at] > 0.0)
        .collect();
    order.sort_by(|&a, &b| {
        let name = |at: usize| &problem.datasets[at].name;
        efficiencies[b]
            .total_cmp(&efficiencies[a])
            .then_with(|| name(a).cmp(name(b)))
    });
    order
}

/// Allocates the rest of the cache to datasets in this order. The last one gets a part, or nothing
/// if datasets are cached whole only.
pub(super) fn give_in_order(
    problem: &Problem,
    order: &[usize],
    whole_only: bool,
    caches: &mut Caches,
) {
    for &dataset in order {
        let size = problem.datasets[dataset].size;
        if caches.open[dataset] && (!whole_only || size <= caches.left) {
            caches.give(dataset, size);
        }
    }
}

/// Returns the number of jobs that read each dataset.
pub(super) fn readers(problem: &Problem) -> Vec<f64> {
    let mut readers = vec![0.0; problem.datasets.len()];
    for job in &problem.jobs {
        readers[job.dataset] += 1.0;
    }
    readers
}

/// Returns the indices of jobs by ascending key, with jobs without a key last. Ids break ties.
pub(super) fn ranked(problem: &Problem, keys: &[Option<f64>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|&a, &b| {
        let key = |at: usize| keys[at].unwrap_or(f64::INFINITY);
        let id = |at: usize| &problem.jobs[at].id;
        key(a).total_cmp(&key(b)).then_with(|| id(a).cmp(id(b)))
    });
    order
}

/// Sets the order and score of jobs by the efficiency of their datasets. Names break ties.
pub(super) fn rank_by_efficiency(problem: &Problem, efficiencies: &[f64], shares: &mut [JobShare]) {
    let mut order: Vec<usize> = (0..shares.len()).collect();
    let dataset = |at: usize| problem.jobs[at].dataset;
    order.sort_by(|&a, &b| {
        let name = |at: usize| (&problem.datasets[dataset(at)].name, &problem.jobs[at].id);
        efficiencies[dataset(b)]
            .total_cmp(&efficiencies[dataset(a)])
            .then_with(|| name(a).cmp(&name(b)))
    });
    for (rank, at) in order.into_iter().enumerate() {
        shares[at].order = rank;
        shares[at].score = Some(efficiencies[dataset(at)]);
    }
}

/// Returns the remote IO that the cache saves if all jobs read at their ideal rate: `Σ f* · hit`,
/// in bytes per second. `greedy` maximises it, and policies without an objective of their own are
/// compared by it.
pub(super) fn saved(problem: &Problem, holdings: &[Holding]) -> f64 {
    let saved = |(job, holding): (&super::Job, &Holding)| job.ideal_rate * holding.hit_ratio;
    problem.jobs.iter().zip(holdings).map(saved).sum()
}

/// Assembles an allocation.
pub(super) fn allocation(caches: Vec<f64>, jobs: Vec<JobShare>, objective: f64) -> Allocation {
    let share = |cache| DatasetShare { cache };
    Allocation {
        datasets: caches.into_iter().map(share).collect(),
        jobs,
        objective,
    }
}
