//! The two policies that allocate by cache efficiency: SiloD's and Quiver's.

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
    by_benefit(problem, false)
}

/// Quiver's policy: a whole dataset or nothing (§7).
///
/// Like [`greedy`], but skips a dataset that does not fit into the rest of the cache. The benefit
/// is the remote IO that the dataset's jobs save, and the cost is its size. Quiver itself measures
/// latencies online, which the paper finds unstable (§7.1.2). Remote IO is divided evenly: Quiver
/// does not manage it, and a fair network divides it max-min.
#[must_use]
pub fn benefit(problem: &Problem) -> Allocation {
    by_benefit(problem, true)
}

fn by_benefit(problem: &Problem, whole_only: bool) -> Allocation {
    let efficiencies = efficiencies(problem);
    let caches = by_efficiency(problem, &efficiencies, whole_only);
    let holdings = holdings(problem, &caches);
    let mut answer = evenly(problem, caches, &holdings);
    rank_by_efficiency(problem, &efficiencies, &mut answer.jobs);
    answer
}
