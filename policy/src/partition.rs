//! A partition of their own for jobs that deviate from the access pattern (§6, irregular data access).

use super::policy::Policy;
use super::problem::{Allocation, DatasetShare, JobShare, Problem, Totals};
use super::shares::{Division, holdings, job_shares, limits};
use super::water::{fill, fill_weighted};

/// Allocates with `policy` among the regular jobs, and equally among the irregular ones.
///
/// `irregular` tells for each job whether it is irregular; jobs beyond its end are regular.
///
/// Cache and remote IO are split in proportion to the GPUs of the two kinds of jobs (to their
/// numbers if no job has a GPU), so a job's part does not depend on its behaviour. Irregular jobs
/// share their partition equally: each has the same part of its cache, jobs on one dataset combine
/// their parts, and remote IO is max-min on the demands, as far as they are known. Each kind
/// returns the resources that it cannot use to the other, so nothing is idle while a job could use
/// it. A dataset that regular jobs also read is cached once, in their partition.
///
/// Manual settings come out of the partition of their jobs (of the regular jobs, for a dataset that
/// both kinds or no job reads). In `order` the regular jobs come first. Objective: that of the
/// regular jobs.
#[must_use]
pub fn allocate_partitioned(policy: Policy, problem: &Problem, irregular: &[bool]) -> Allocation {
    let is_irregular = |at: usize| irregular.get(at).copied().unwrap_or(false);
    let (apart, regular): (Vec<usize>, Vec<usize>) =
        (0..problem.jobs.len()).partition(|&at| is_irregular(at));
    if apart.is_empty() {
        return policy.allocate(problem);
    }
    let own = own_datasets(problem, &apart, &regular);
    let part = fraction(problem, &apart);
    let budget = |at: usize| problem.datasets[at].budget.unwrap_or(0.0);
    let manual = manual_sums(problem.datasets.len(), budget, |at| own[at]);
    let cache = entitled(problem.totals.cache, part, &manual);
    let rate = |at: usize| problem.jobs[at].remote_io.unwrap_or(0.0);
    let manual = manual_sums(problem.jobs.len(), rate, is_irregular);
    let remote_io = entitled(problem.totals.remote_io, part, &manual);
    let cached = equal_caches(problem, &apart, &own, cache);
    let taken = irregular_shares(problem, &apart, &cached, remote_io);

    // The regular jobs share everything that the irregular jobs do not take.
    let mut rest = Problem {
        totals: Totals {
            gpus: problem.totals.gpus,
            cache: left(problem.totals.cache, cached.iter().copied()),
            remote_io: left(problem.totals.remote_io, used(&taken)),
        },
        datasets: problem.datasets.clone(),
        jobs: regular.iter().map(|&at| problem.jobs[at].clone()).collect(),
    };
    for (dataset, _) in rest.datasets.iter_mut().zip(&own).filter(|(_, own)| **own) {
        dataset.budget = None;
    }
    let answer = policy.allocate(&rest);

    // The irregular jobs get back what the regular jobs do not need.
    let spare = left(
        rest.totals.cache,
        answer.datasets.iter().map(|share| share.cache),
    );
    let again = equal_caches(problem, &apart, &own, cached.iter().sum::<f64>() + spare);
    let caches: Vec<f64> = (0..own.len())
        .map(|at| {
            if own[at] {
                again[at]
            } else {
                answer.datasets[at].cache
            }
        })
        .collect();
    // Private caches of a shared dataset may add up to more than its size.
    let useful = caches.iter().zip(&problem.datasets);
    let useful: Vec<f64> = useful
        .map(|(cache, dataset)| cache.min(dataset.size))
        .collect();
    let remote_io = left(problem.totals.remote_io, used(&answer.jobs));
    let shares = irregular_shares(problem, &apart, &useful, remote_io);

    let mut jobs: Vec<Option<JobShare>> = vec![None; problem.jobs.len()];
    for (share, &at) in answer.jobs.iter().zip(&regular) {
        jobs[at] = Some(*share);
    }
    for (mut share, &at) in shares.into_iter().zip(&apart) {
        share.order += regular.len();
        jobs[at] = Some(share);
    }
    let mut jobs: Vec<JobShare> = jobs.into_iter().flatten().collect();
    let given: Vec<f64> = used(&jobs).collect();
    for (share, limit) in jobs.iter_mut().zip(limits(problem, &given)) {
        share.limit = limit;
    }
    Allocation {
        datasets: caches
            .into_iter()
            .map(|cache| DatasetShare { cache })
            .collect(),
        jobs,
        objective: answer.objective,
    }
}

/// Returns the part of cache and remote IO that the irregular jobs are entitled to.
#[expect(clippy::cast_precision_loss, reason = "jobs are far fewer than 2^53")]
fn fraction(problem: &Problem, apart: &[usize]) -> f64 {
    let gpus: f64 = problem.jobs.iter().map(|job| job.gpus).sum();
    if gpus > 0.0 {
        apart.iter().map(|&at| problem.jobs[at].gpus).sum::<f64>() / gpus
    } else {
        apart.len() as f64 / problem.jobs.len() as f64
    }
}

/// Returns the sums of manual settings in the irregular partition and in the regular one.
fn manual_sums(
    count: usize,
    manual: impl Fn(usize) -> f64,
    apart: impl Fn(usize) -> bool,
) -> [f64; 2] {
    let side = |wanted: bool| {
        let entries = (0..count).filter(|&at| apart(at) == wanted);
        entries.map(&manual).sum()
    };
    [side(true), side(false)]
}

/// Returns a part of a total that covers the manual settings of its partition, and leaves enough for
/// those of the other.
fn entitled(total: f64, part: f64, manual: &[f64; 2]) -> f64 {
    let [here, elsewhere] = manual;
    (total * part).max(*here).min((total - elsewhere).max(0.0))
}

fn left(total: f64, taken: impl Iterator<Item = f64>) -> f64 {
    (total - taken.sum::<f64>()).max(0.0)
}

fn used(jobs: &[JobShare]) -> impl Iterator<Item = f64> {
    jobs.iter().map(|share| share.remote_io)
}

/// Returns for each dataset whether only irregular jobs read it.
fn own_datasets(problem: &Problem, apart: &[usize], regular: &[usize]) -> Vec<bool> {
    let mut own = vec![false; problem.datasets.len()];
    for &at in apart {
        own[problem.jobs[at].dataset] = true;
    }
    for &at in regular {
        own[problem.jobs[at].dataset] = false;
    }
    own
}

/// Divides `cache` among the datasets of irregular jobs: manual budgets first, and then the same amount
/// for each reader.
fn equal_caches(problem: &Problem, apart: &[usize], own: &[bool], cache: f64) -> Vec<f64> {
    let mut readers = vec![0.0; problem.datasets.len()];
    for &at in apart {
        readers[problem.jobs[at].dataset] += 1.0;
    }
    let wanted = |manual: bool| -> Vec<f64> {
        let datasets = problem.datasets.iter().zip(own);
        datasets
            .map(|(dataset, own)| {
                if *own && dataset.budget.is_some() == manual {
                    dataset.budget.unwrap_or(dataset.size).min(dataset.size)
                } else {
                    0.0
                }
            })
            .collect()
    };
    // Manual budgets are exact, so they are filled before the weights apply.
    let mut given = fill(cache, &wanted(true));
    let rest = left(cache, given.iter().copied());
    let divided = fill_weighted(rest, &wanted(false), &readers);
    for (given, more) in given.iter_mut().zip(divided) {
        *given += more;
    }
    given
}

/// Divides `remote_io` among the irregular jobs: manual rates first, and the rest max-min.
fn irregular_shares(
    problem: &Problem,
    apart: &[usize],
    caches: &[f64],
    remote_io: f64,
) -> Vec<JobShare> {
    let partition = Problem {
        totals: Totals {
            remote_io,
            ..problem.totals
        },
        datasets: problem.datasets.clone(),
        jobs: apart.iter().map(|&at| problem.jobs[at].clone()).collect(),
    };
    job_shares(&partition, &holdings(&partition, caches), Division::Even)
}

#[cfg(test)]
mod tests;
