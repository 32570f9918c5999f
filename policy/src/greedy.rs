//! The two policies that go by cache efficiency: SiloD's and Quiver's.

use super::problem::{Allocation, Problem};
use super::shares::{
    Caches, Division, allocation, by_efficiency, efficiencies, holdings, job_shares,
    rank_by_efficiency, saved,
};

/// SiloD's greedy policy (Algorithm 2), at the level of datasets.
///
/// In: size of each dataset (bytes), ideal rate of each job (bytes/s), the totals. Out: cache in
/// bytes and remote IO in bytes/s.
///
/// Datasets are cached in descending order of their efficiency `Σ f*/d`, the sum over the jobs that
/// read them (Eq. 5; §6: what jobs share is cached once), until the cache is full; the last one in
/// part. Equal ones: by name. A dataset that no job reads gets nothing. Remote IO is divided
/// max-min over the instantaneous demands `f* · (1 - hit)`.
///
/// Objective: the remote IO saved at ideal speed, `Σ f* · c/d`, in bytes/s. The score of a job is
/// its dataset's efficiency, in bytes/s saved per byte.
#[must_use]
pub fn greedy(problem: &Problem) -> Allocation {
    by_benefit(problem, |wanted, left| wanted.min(left))
}

/// Quiver's policy: a whole dataset, or nothing of it (§7).
///
/// As [`greedy`], but a dataset that does not fit into what is left is passed over for the next.
/// The benefit is the remote IO that the dataset's jobs save, the cost its size; Quiver itself
/// measures latencies online, which the paper finds unstable (§7.1.2). Remote IO is divided evenly:
/// Quiver does not manage it, and max-min is what a fair network gives.
#[must_use]
pub fn benefit(problem: &Problem) -> Allocation {
    by_benefit(
        problem,
        |wanted, left| {
            if wanted <= left { wanted } else { 0.0 }
        },
    )
}

fn by_benefit(problem: &Problem, part: fn(f64, f64) -> f64) -> Allocation {
    let efficiencies = efficiencies(problem);
    let mut caches = Caches::after_budgets(problem);
    for dataset in by_efficiency(problem, &efficiencies) {
        if caches.open[dataset] {
            let wanted = part(problem.datasets[dataset].size, caches.left);
            caches.give(dataset, wanted);
        }
    }
    let holdings = holdings(problem, &caches.given);
    let mut jobs = job_shares(problem, &holdings, Division::Even);
    rank_by_efficiency(problem, &efficiencies, &mut jobs);
    let objective = saved(problem, &holdings);
    allocation(caches.given, jobs, objective)
}
