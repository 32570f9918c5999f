//! Jobs that break the access pattern share apart from those that keep it (§6, irregular data access).

use super::performance::{hit_ratio, remote_io, silod_perf};
use super::policy::Policy;
use super::problem::{Allocation, DatasetShare, Job, JobShare, Problem, Totals};
use super::shares::limits;
use super::water::fill;

/// Allocates with `policy` among the regular jobs, and equally among the irregular ones.
///
/// `irregular` says of each job whether it is; jobs beyond its end are regular.
///
/// Cache and remote IO are split in proportion to the GPUs of the two kinds of jobs (to their numbers,
/// if none has a GPU): what a job is entitled to does not depend on how it behaves. Irregular jobs
/// share their partition as an equal division does: each has the same part of its cache, those on one
/// dataset put theirs together, and remote IO is max-min on the demands, as well as they are known.
/// What the irregular jobs cannot use goes to the regular ones, and what these do not need comes back:
/// nothing lies idle while somebody could use it. A dataset that regular jobs read too belongs to
/// theirs: it is cached once, by the policy.
///
/// What was set by hand comes out of the partition of its jobs (of the regular ones, for a dataset that
/// both read or nobody does). In `order` the regular jobs come first. Objective: that of the regular
/// ones.
#[must_use]
pub fn allocate_partitioned(policy: Policy, problem: &Problem, irregular: &[bool]) -> Allocation {
    let is_irregular = |at: usize| irregular.get(at).copied().unwrap_or(false);
    let (apart, regular): (Vec<usize>, Vec<usize>) =
        (0..problem.jobs.len()).partition(|&at| is_irregular(at));
    if apart.is_empty() {
        return policy.allocate(problem);
    }
    let part = fraction(problem, &apart);
    let mut datasets = vec![DatasetShare { cache: 0.0 }; problem.datasets.len()];
    let own = own_datasets(problem, &apart, &regular);
    let budget = |at: usize| problem.datasets[at].budget.unwrap_or(0.0);
    let cache = entitled(
        problem.totals.cache,
        part,
        &split(problem.datasets.len(), budget, |at| own[at]),
    );
    let by_hand = |at: usize| problem.jobs[at].remote_io.unwrap_or(0.0);
    let io = entitled(
        problem.totals.remote_io,
        part,
        &split(problem.jobs.len(), by_hand, is_irregular),
    );
    let cached = equal_caches(problem, &apart, &own, cache);
    let taken = remote(problem, &apart, &cached, io);

    let rest = rest(problem, &regular, &own, &cached, &taken);
    let answer = policy.allocate(&rest);
    for (dataset, share) in datasets.iter_mut().zip(&answer.datasets) {
        dataset.cache = share.cache;
    }

    // What comes back.
    let spare = left(rest.totals.cache, &caches(&answer));
    let again = equal_caches(problem, &apart, &own, cached.iter().sum::<f64>() + spare);
    for (dataset, cache) in again.iter().enumerate().filter(|(at, _)| own[*at]) {
        datasets[dataset].cache = *cache;
    }
    let used: f64 = answer.jobs.iter().map(|share| share.remote_io).sum();
    let seen: Vec<f64> = datasets.iter().map(|share| share.cache).collect();
    let given = remote(
        problem,
        &apart,
        &seen,
        (problem.totals.remote_io - used).max(0.0),
    );

    let mut jobs = vec![None; problem.jobs.len()];
    for (share, &at) in answer.jobs.into_iter().zip(&regular) {
        jobs[at] = Some(share);
    }
    for (rank, (given, &at)) in given.into_iter().zip(&apart).enumerate() {
        jobs[at] = Some(share_of(problem, at, &seen, given, regular.len() + rank));
    }
    let mut jobs: Vec<JobShare> = jobs.into_iter().flatten().collect();
    let given: Vec<f64> = jobs.iter().map(|share| share.remote_io).collect();
    for (share, limit) in jobs.iter_mut().zip(limits(problem, &given)) {
        share.limit = limit;
    }
    Allocation {
        datasets,
        jobs,
        objective: answer.objective,
    }
}

/// The regular jobs' problem: all that the others do not take.
fn rest(
    problem: &Problem,
    regular: &[usize],
    own: &[bool],
    cached: &[f64],
    taken: &[f64],
) -> Problem {
    let datasets = problem.datasets.iter().zip(own).map(|(dataset, own)| {
        let mut dataset = dataset.clone();
        dataset.budget = dataset.budget.filter(|_| !own);
        dataset
    });
    Problem {
        totals: Totals {
            gpus: problem.totals.gpus,
            cache: left(problem.totals.cache, cached),
            remote_io: left(problem.totals.remote_io, taken),
        },
        datasets: datasets.collect(),
        jobs: pick(problem, regular),
    }
}

/// The part of cache and remote IO that the irregular jobs are entitled to.
fn fraction(problem: &Problem, apart: &[usize]) -> f64 {
    let gpus: f64 = problem.jobs.iter().map(|job| job.gpus).sum();
    if gpus > 0.0 {
        apart.iter().map(|&at| problem.jobs[at].gpus).sum::<f64>() / gpus
    } else {
        count(apart.len()) / count(problem.jobs.len())
    }
}

/// What is set by hand on the irregular side, and on the other.
fn split(count: usize, by_hand: impl Fn(usize) -> f64, apart: impl Fn(usize) -> bool) -> [f64; 2] {
    let side = |wanted: bool| {
        (0..count)
            .filter(|&at| apart(at) == wanted)
            .map(&by_hand)
            .sum()
    };
    [side(true), side(false)]
}

/// A part of a total, but at least what is set by hand there, and leaving what is set by hand
/// elsewhere.
fn entitled(total: f64, part: f64, by_hand: &[f64; 2]) -> f64 {
    let [here, elsewhere] = by_hand;
    (total * part).max(*here).min((total - elsewhere).max(0.0))
}

#[expect(clippy::cast_precision_loss, reason = "jobs are far fewer than 2^53")]
fn count(jobs: usize) -> f64 {
    jobs as f64
}

fn pick(problem: &Problem, jobs: &[usize]) -> Vec<Job> {
    jobs.iter().map(|&at| problem.jobs[at].clone()).collect()
}

fn caches(answer: &Allocation) -> Vec<f64> {
    answer.datasets.iter().map(|share| share.cache).collect()
}

fn left(total: f64, taken: &[f64]) -> f64 {
    (total - taken.iter().sum::<f64>()).max(0.0)
}

/// Which datasets only irregular jobs read.
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

/// Bytes of each dataset: what was set by hand, and of the rest of `cache` the same for each reader.
fn equal_caches(problem: &Problem, apart: &[usize], own: &[bool], cache: f64) -> Vec<f64> {
    let mut readers = vec![0.0; problem.datasets.len()];
    for &at in apart {
        readers[problem.jobs[at].dataset] += 1.0;
    }
    let wanted = |by_hand: bool| -> Vec<f64> {
        let open = |at: usize| own[at] && problem.datasets[at].budget.is_some() == by_hand;
        let most = |at: usize| {
            let dataset = &problem.datasets[at];
            dataset.budget.unwrap_or(dataset.size).min(dataset.size)
        };
        (0..own.len())
            .map(|at| if open(at) { most(at) } else { 0.0 })
            .collect()
    };
    let mut given = fill(cache, &wanted(true));
    let rest = left(cache, &given);
    let divided = super::water::fill_weighted(rest, &wanted(false), &readers);
    for (given, more) in given.iter_mut().zip(divided) {
        *given += more;
    }
    given
}

fn hit(problem: &Problem, job: &Job, caches: &[f64]) -> f64 {
    let cached = hit_ratio(caches[job.dataset], problem.datasets[job.dataset].size);
    job.hit_ratio.unwrap_or(cached)
}

/// Remote IO of the irregular jobs out of `capacity`: what was set by hand, and the rest max-min.
fn remote(problem: &Problem, apart: &[usize], caches: &[f64], capacity: f64) -> Vec<f64> {
    let jobs = || apart.iter().map(|&at| &problem.jobs[at]);
    let by_hand: Vec<f64> = jobs().map(|job| job.remote_io.unwrap_or(0.0)).collect();
    let mut given = fill(capacity, &by_hand);
    let needs: Vec<f64> = jobs()
        .map(|job| match job.remote_io {
            Some(_) => 0.0,
            None => remote_io(job.ideal_rate, hit(problem, job, caches)),
        })
        .collect();
    let divided = fill(left(capacity, &given), &needs);
    for (given, more) in given.iter_mut().zip(divided) {
        *given += more;
    }
    given
}

fn share_of(problem: &Problem, at: usize, caches: &[f64], given: f64, order: usize) -> JobShare {
    let job = &problem.jobs[at];
    let hit_ratio = hit(problem, job, caches);
    JobShare {
        cache: caches[job.dataset].min(problem.datasets[job.dataset].size),
        hit_ratio,
        remote_io: given,
        limit: given,
        throughput: silod_perf(job.ideal_rate, given, hit_ratio),
        score: None,
        order,
    }
}

#[cfg(test)]
mod tests;
