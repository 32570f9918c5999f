//! SiloD's greedy policy, which allocates by cache efficiency.

use super::problem::{Allocation, Problem};
use super::shares::{by_efficiency, efficiencies, evenly, holdings, rank_by_efficiency};

/// SiloD's greedy policy (Algorithm 2), at the level of datasets.
///
/// Input: the size of each dataset (bytes), the ideal rate of each job (bytes/s), and the totals.
/// Output: cache in bytes and remote IO in bytes/s.
///
/// Datasets are cached in descending order of their efficiency `Σ f*/d`, the sum over the jobs that
/// read them (Eq. 5; §6: a shared dataset is cached once), until the cache is full; the last one in
/// part. Names break ties. A dataset without jobs gets nothing. Remote IO is divided max-min over
/// the instantaneous demands `f* · (1 - hit)`.
///
/// Objective: the remote IO saved at ideal speed, `Σ f* · c/d`, in bytes/s. A job's score is its
/// dataset's efficiency, in bytes/s saved per byte.
#[must_use]
pub fn greedy(problem: &Problem) -> Allocation {
    let efficiencies = efficiencies(problem);
    let caches = by_efficiency(problem, &efficiencies);
    let holdings = holdings(problem, &caches);
    let mut answer = evenly(problem, &caches, &holdings);
    rank_by_efficiency(problem, &efficiencies, &mut answer.jobs);
    answer
}
