//! A partition of their own for jobs that deviate from the access pattern (§6, irregular data access).

use super::policy::Policy;
use super::problem::{Allocation, DatasetShare, Job, JobShare, Problem};
use super::shares::{
    Division, holdings_of, job_shares, left, limits, readers, set_by_hand, shares,
};
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
    if !(0..problem.jobs.len()).any(is_irregular) {
        return policy.allocate(problem);
    }
    let of_kind = |irregular: bool| {
        let jobs = problem.jobs.iter().enumerate();
        let jobs = jobs.filter(|(at, _)| is_irregular(*at) == irregular);
        Problem {
            totals: problem.totals,
            datasets: problem.datasets.clone(),
            jobs: jobs.map(|(_, job)| of_its_kind(job, irregular)).collect(),
        }
    };
    let (mut apart, mut rest) = (of_kind(true), of_kind(false));
    // The datasets that only irregular jobs read.
    let both = readers(&apart).into_iter().zip(readers(&rest));
    let own: Vec<bool> = both
        .map(|(apart, regular)| apart > 0.0 && regular == 0.0)
        .collect();
    let part = fraction(problem, &apart);
    let by_hand = set_by_hand(problem).into_iter();
    let budgets = own.iter().zip(by_hand);
    let budgets = budgets.map(|(own, set)| (*own, set.unwrap_or(0.0)));
    let cache = entitled(problem.totals.cache, part, &budgets);
    let rates = problem.jobs.iter().enumerate();
    let rates = rates.map(|(at, job)| (is_irregular(at), job.remote_io.unwrap_or(0.0)));
    let remote_io = entitled(problem.totals.remote_io, part, &rates);
    let cached = equal_caches(&apart, &own, cache);
    let held = shares(&apart.datasets, &cached);
    let taken = irregular_shares(&mut apart, &held, remote_io);

    // The regular jobs share everything that the irregular jobs do not take.
    rest.totals.cache = left(problem.totals.cache, &cached);
    rest.totals.remote_io = left(problem.totals.remote_io, &used(&taken));
    for (dataset, _) in rest.datasets.iter_mut().zip(&own).filter(|(_, own)| **own) {
        dataset.budget = None;
    }
    let answer = policy.allocate(&rest);

    // The irregular jobs get back what the regular jobs do not need.
    let mut datasets = answer.datasets;
    let caches: Vec<f64> = datasets.iter().map(|share| share.cache).collect();
    let spare = left(rest.totals.cache, &caches);
    let again = equal_caches(&apart, &own, cached.iter().sum::<f64>() + spare);
    for (at, cache) in again.into_iter().enumerate().filter(|(at, _)| own[*at]) {
        datasets[at] = DatasetShare::of(&problem.datasets[at], cache);
    }
    // Private caches of a shared dataset may add up to more than its size.
    let useful = datasets.iter().zip(&problem.datasets);
    let useful: Vec<DatasetShare> = useful
        .map(|(share, dataset)| DatasetShare {
            cache: share.cache.min(dataset.size),
            ..*share
        })
        .collect();
    let remote_io = left(problem.totals.remote_io, &used(&answer.jobs));
    let taken = irregular_shares(&mut apart, &useful, remote_io);

    let (mut regular, mut irregular) = (answer.jobs.into_iter(), taken.into_iter());
    let next = |at| match is_irregular(at) {
        false => regular.next(),
        true => irregular.next().map(|share| JobShare {
            order: share.order + rest.jobs.len(),
            ..share
        }),
    };
    let mut jobs: Vec<JobShare> = (0..problem.jobs.len()).filter_map(next).collect();
    let limits = limits(problem, &used(&jobs));
    for (share, limit) in jobs.iter_mut().zip(limits) {
        share.limit = limit;
    }
    Allocation {
        datasets,
        jobs,
        objective: answer.objective,
    }
}

/// Returns a job as its partition sees it. An irregular job does not read each item once an epoch, so
/// it exhausts no chunk.
fn of_its_kind(job: &Job, irregular: bool) -> Job {
    Job {
        substitutes: job.substitutes && !irregular,
        ..job.clone()
    }
}

/// Returns the part of cache and remote IO that the irregular jobs are entitled to.
#[expect(clippy::cast_precision_loss, reason = "jobs are far fewer than 2^53")]
fn fraction(problem: &Problem, apart: &Problem) -> f64 {
    let gpus = |problem: &Problem| problem.jobs.iter().map(|job| job.gpus).sum::<f64>();
    if gpus(problem) > 0.0 {
        gpus(apart) / gpus(problem)
    } else {
        apart.jobs.len() as f64 / problem.jobs.len() as f64
    }
}

/// Returns a part of a total that covers the manual settings of the irregular partition, and leaves enough
/// for those of the regular one. `manual`: for each setting whether it is irregular, and its amount.
fn entitled(total: f64, part: f64, manual: &(impl Iterator<Item = (bool, f64)> + Clone)) -> f64 {
    let sum = |irregular: bool| -> f64 {
        let settings = manual.clone().filter(|(own, _)| *own == irregular);
        settings.map(|(_, amount)| amount).sum()
    };
    (total * part)
        .max(sum(true))
        .min((total - sum(false)).max(0.0))
}

fn used(jobs: &[JobShare]) -> Vec<f64> {
    jobs.iter().map(|share| share.remote_io).collect()
}

/// Divides `cache` among the datasets of irregular jobs: manual budgets first, and then the same amount
/// for each reader.
fn equal_caches(apart: &Problem, own: &[bool], cache: f64) -> Vec<f64> {
    let wanted = |manual: bool| -> Vec<f64> {
        let datasets = apart.datasets.iter().zip(own);
        let wanted = datasets.map(|(dataset, own)| {
            // Chunks have an order, which irregular jobs do not follow.
            let by_hand = dataset.set_by_hand(false);
            if *own && by_hand.is_some() == manual {
                by_hand.unwrap_or(dataset.size)
            } else {
                0.0
            }
        });
        wanted.collect()
    };
    // Manual budgets are exact, so they are filled before the weights apply.
    let mut given = fill(cache, &wanted(true));
    let divided = fill_weighted(left(cache, &given), &wanted(false), &readers(apart));
    for (given, more) in given.iter_mut().zip(divided) {
        *given += more;
    }
    given
}

/// Divides `remote_io` among the irregular jobs: manual rates first, and the rest max-min.
fn irregular_shares(apart: &mut Problem, shares: &[DatasetShare], remote_io: f64) -> Vec<JobShare> {
    apart.totals.remote_io = remote_io;
    job_shares(apart, &holdings_of(apart, shares), Division::Even)
}

#[cfg(test)]
mod tests;
