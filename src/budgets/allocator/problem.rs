//! Translates declarations and reports to a [`Problem`], and its solution to bytes and rates. Pure.

use super::super::registry::{Limits, Registry};
use super::{budgets, pipelines, rates};
use crate::model::{
    DatasetDecision, Decision, HomeNode, IdealRate, JobDecision, JobReport, NodeReport, RateSource,
    ReadingReport, UNATTRIBUTED,
};
use crate::num::{as_f64, saturating_sum, whole};
use copperfs_policy::benefit::Probing;
use copperfs_policy::chunks::ChunkReport;
use copperfs_policy::{
    Choice, Dataset, Job, Keep, Mode, Policy, Problem, Totals, allocate_partitioned,
};
use std::collections::BTreeMap;

/// The assumed rate of an unknown job if remote IO has no limit. It then only decides the order of
/// datasets.
const ASSUMED_RATE: u64 = 1_000_000_000;
/// Estimates with less confidence are ignored.
const CONFIDENCE_MIN: f32 = 0.3;
/// The relative change that an estimate must exceed: budgets that follow noise move for nothing.
const ESTIMATE_STEP: f64 = 0.05;
/// The time over which a job's "next reads" extend, in seconds: until the next solution.
const HORIZON_S: f64 = 5.0;
/// The fraction of the total that is divided among all jobs whatever the policy says. Without it a job that
/// is planned as fully cached would wait forever if an item was lost.
const ASSURED: f64 = 0.02;

/// One job's report, with the rank of its node.
pub(super) type Part<'a> = (u32, &'a JobReport);
/// One job's reports from nodes where it still runs.
pub(super) type Parts<'a> = Vec<Part<'a>>;

/// Returns the reports of each job, by its name: none for a job that has ended on all nodes.
pub(super) fn by_job(reports: &[NodeReport]) -> BTreeMap<&str, Parts<'_>> {
    let mut jobs: BTreeMap<&str, Parts<'_>> = BTreeMap::new();
    for report in reports {
        for job in &report.jobs {
            let parts = jobs.entry(&job.job).or_default();
            parts.extend((!job.ended).then_some((report.rank, job)));
        }
    }
    jobs
}

/// Returns whether a report contains a change that should not wait for the next period: another process
/// or capacity; a job that started, ended, began an epoch, became irregular, or reads at another rate; a
/// process that began or exhausted a chunk; a chunk with more or fewer entries.
pub(super) fn differs(before: &NodeReport, after: &NodeReport) -> bool {
    let of_node = |report: &NodeReport| (report.boot, report.capacity);
    let chunks = |report: &NodeReport| -> Vec<(u64, Vec<ChunkReport>)> {
        let shares = report.shares.iter();
        let shares = shares.filter(|share| !share.chunks.is_empty());
        shares
            .map(|share| (share.dataset, share.chunks.clone()))
            .collect()
    };
    of_node(before) != of_node(after)
        || before.readings != after.readings
        || pipelines::differ(before, after)
        || chunks(before) != chunks(after)
        || before.jobs.len() != after.jobs.len()
        || before.jobs.iter().zip(&after.jobs).any(|(before, after)| {
            let of_job = |job: &JobReport| (job.epoch, job.irregular, job.ended, job.bound);
            of_job(before) != of_job(after)
                || (&before.job, &before.dataset) != (&after.job, &after.dataset)
                || moved(before.ideal_rate, after.ideal_rate)
        })
}

fn moved(before: Option<u64>, after: Option<u64>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => {
            as_f64(before.abs_diff(after)) > ESTIMATE_STEP * as_f64(before)
        }
        (before, after) => before.is_some() != after.is_some(),
    }
}

/// The ideal rates of the last solution. An estimate is kept while it changes only by noise.
#[derive(Debug, Default)]
pub(super) struct Estimates(pub(super) Vec<IdealRate>);

impl Estimates {
    /// Returns the ideal rate of `job` (except for its hit ratio): the declared rate; otherwise the
    /// estimate from its reads; otherwise the most that it could use, which is all remote IO, or its
    /// observed rate if that is higher. An overestimated job receives too much at first, and shows its
    /// rate soon. An underestimated job would be held at the estimate by its own limit.
    fn of(&self, job: &JobDecision, parts: &[Part<'_>], remote_io: Option<u64>) -> IdealRate {
        let estimate = |rate: u64, source, confidence| IdealRate {
            job: job.name.clone(),
            rate: rate.max(1),
            source,
            confidence,
            hit_ratio: 0.0,
        };
        if let Some(rate) = job.ideal_rate {
            return estimate(rate, RateSource::Declared, 1.0);
        }
        let known = |(_, part): &Part<'_>| {
            let sure = !part.bound && part.confidence >= CONFIDENCE_MIN;
            let rate = part.ideal_rate.filter(|rate| sure && *rate > 0)?;
            Some((rate, part.confidence))
        };
        let known: Vec<(u64, f32)> = parts.iter().filter_map(known).collect();
        if known.is_empty() {
            let reached = |(_, part): &Part<'_>| part.throughput.max(part.ideal_rate.unwrap_or(0));
            let reached = saturating_sum(parts.iter().map(reached));
            let most = reached.max(remote_io.unwrap_or(ASSUMED_RATE));
            return estimate(most, RateSource::Assumed, 0.0);
        }
        // Nodes without an estimate are assumed to be like those with one.
        let sum = saturating_sum(known.iter().map(|(rate, _)| *rate));
        let all = as_f64(sum) * parts.len() as f64 / known.len() as f64;
        let confidence = known.iter().map(|(_, sure)| *sure).fold(1.0, f32::min);
        let before = self.0.iter().find(|one| one.job == job.name);
        let before = before.filter(|one| one.source == RateSource::Estimated);
        let rate = match before {
            Some(before) if !moved(Some(before.rate), Some(whole(all))) => before.rate,
            _ => whole(all),
        };
        estimate(rate, RateSource::Estimated, confidence)
    }
}

/// Returns the fraction of a job's next reads that is cached (§6, delayed effectiveness): the
/// cached fraction of the items that it has not read in this epoch. Items that it has hit or
/// brought into the cache in this epoch are not read again in it. Towards the epoch's end its next
/// reads are those of the next epoch, for which everything that is cached counts.
pub(super) fn effective_hit_ratio(size: u64, cached: u64, parts: &[(u32, &JobReport)]) -> f64 {
    let size = as_f64(size);
    if size <= 0.0 {
        return 0.0;
    }
    let cached = as_f64(cached).min(size);
    let steady = cached / size;
    let Some(epoch) = parts.iter().map(|(_, part)| part.epoch).max() else {
        return steady;
    };
    let (mut read, mut spent, mut rate) = (0.0, 0.0, 0.0);
    for (_, part) in parts {
        rate += as_f64(part.throughput);
        // A node in an earlier epoch has read nothing of this one.
        if part.epoch == epoch {
            read += as_f64(part.bytes);
            spent += as_f64(part.hit_bytes) + as_f64(part.admitted_bytes);
        }
    }
    let left = (size - read).max(0.0);
    // At least one per cent of the dataset, so that the ratio does not jump at the end of an epoch.
    let horizon = (rate * HORIZON_S).max(size * 0.01).min(size);
    let this_epoch = if left > 0.0 {
        ((cached - spent) / left).clamp(0.0, 1.0)
    } else {
        steady
    };
    let within = (left / horizon).min(1.0);
    within * this_epoch + (1.0 - within) * steady
}

/// The input of a decision.
pub(super) struct Question<'a> {
    pub(super) registry: &'a Registry,
    pub(super) reports: &'a [NodeReport],
    pub(super) homes: &'a [HomeNode],
    pub(super) limits: Limits,
    pub(super) before: &'a Decision,
    /// Budgets stay as they are, as far as they fit.
    pub(super) holds: bool,
    pub(super) probing: &'a Probing,
}

/// Budgets and rates.
pub(super) struct Solution {
    /// The budget of each dataset, in bytes.
    pub(super) budgets: Vec<u64>,
    /// What the budget of each dataset holds.
    pub(super) choices: Vec<Choice>,
    /// The rate of each job, in bytes per second.
    pub(super) rates: Vec<Option<u64>>,
    /// How the look-ups of each job are to be answered. `None`: it does not take part in the division.
    pub(super) modes: Vec<Option<Mode>>,
    /// The rate of reads that belong to no job.
    pub(super) unattributed: Option<u64>,
}

/// A job that takes part in the division.
struct ActiveJob<'a> {
    /// Its index in the registry.
    index: usize,
    job: &'a JobDecision,
    /// The index of its dataset in the registry.
    dataset: usize,
}

impl Question<'_> {
    pub(super) fn solve(&self, estimates: &mut Estimates) -> Solution {
        let by_job = by_job(self.reports);
        let active = self.active(&by_job);
        let unattributed = self.limits.remote_io.map(|total| {
            let before = self.before.job(UNATTRIBUTED).and_then(|job| job.remote_io);
            rates::unattributed(total, !active.is_empty(), self.reports, before)
        });
        let total = self.limits.remote_io;
        let for_jobs = total.map(|total| total.saturating_sub(unattributed.unwrap_or(0)));
        let ideal_rate = |one: &ActiveJob<'_>| {
            let parts = by_job.get(one.job.name.as_str()).into_iter().flatten();
            let parts: Parts<'_> = parts
                .filter(|(_, part)| Some(&part.dataset) == one.job.dataset.as_ref())
                .copied()
                .collect();
            let dataset = &self.registry.datasets()[one.dataset];
            let shares = self.reports.iter().flat_map(|report| &report.shares);
            let shares = shares.filter(|share| share.dataset == dataset.id);
            let cached = saturating_sum(shares.map(|share| share.cached));
            IdealRate {
                hit_ratio: effective_hit_ratio(dataset.size, cached, &parts),
                ..estimates.of(one.job, &parts, for_jobs)
            }
        };
        let ideal_rates: Vec<IdealRate> = active.iter().map(ideal_rate).collect();
        let problem = self.problem(&active, &ideal_rates, for_jobs);
        // The registry accepts only existing policies, so the default is never used.
        let policy: Policy = self.registry.policy().parse().unwrap_or_default();
        // A pipeline has no epochs, in which the policies would divide its time. It gets an equal part.
        let irregular = |one: &ActiveJob<'_>| one.job.irregular || self.is_pipeline(one);
        let irregular: Vec<bool> = active.iter().map(irregular).collect();
        let allocation = allocate_partitioned(policy, &problem, &irregular);
        let caches = allocation.datasets.iter().map(|share| share.cache);
        let choices: Vec<Choice> = allocation.datasets.iter().map(|one| one.choice).collect();
        let budgets = budgets::BudgetPlan {
            datasets: self.registry.datasets(),
            policy,
            problem: &problem,
            before: self.before,
            holds: self.holds,
            choices: &choices,
        }
        .settle(&caches.collect::<Vec<f64>>());
        let limits: Vec<f64> = allocation.jobs.iter().map(|share| share.limit).collect();
        estimates.0 = ideal_rates;
        let mut modes = vec![None; self.registry.jobs().len()];
        for (one, share) in active.iter().zip(&allocation.jobs) {
            modes[one.index] = Some(share.mode);
        }
        Solution {
            modes,
            budgets,
            choices,
            rates: self.rates(&active, &limits, for_jobs),
            unattributed,
        }
    }

    /// Returns the jobs that read a declared dataset. A declared job counts before its first read; a job
    /// whose processes have all ended does not count.
    fn active(&self, by_job: &BTreeMap<&str, Parts<'_>>) -> Vec<ActiveJob<'_>> {
        let datasets = self.registry.datasets();
        let jobs = self.registry.jobs().iter().enumerate();
        jobs.filter_map(|(index, job)| {
            let parts = by_job.get(job.name.as_str());
            let name = job.dataset.as_deref()?;
            let dataset = datasets.iter().position(|one| one.name == name)?;
            (!parts.is_some_and(Vec::is_empty)).then_some(ActiveJob {
                index,
                job,
                dataset,
            })
        })
        .collect()
    }

    fn problem(
        &self,
        active: &[ActiveJob<'_>],
        ideal_rates: &[IdealRate],
        remote_io: Option<u64>,
    ) -> Problem {
        let declared = self.registry.datasets();
        let cache: f64 = self.homes.iter().map(|home| as_f64(home.capacity)).sum();
        let pinned: f64 = declared.iter().map(pinned_bytes).sum();
        // If nodes have left, manual budgets may exceed the total. Then all of them shrink alike.
        let fits = if pinned > cache { cache / pinned } else { 1.0 };
        let share = cache * f64::from(self.limits.pipelines_percent) / 100.0;
        let room = share.min(cache - pinned).max(0.0);
        let referenced = pipelines::budgets(declared, self.reports, self.before, room);
        let with_references = declared.iter().zip(referenced);
        let datasets = with_references.map(|(one, referenced)| Dataset {
            name: one.name.clone(),
            // References may be known before the size.
            size: as_f64(one.size.max(one.pinned.unwrap_or(0)).max(1))
                .max(referenced.filter(|_| one.size == 0).unwrap_or(0.0)),
            budget: match (one.pinned, one.size) {
                _ if one.keep == Keep::None => Some(0.0),
                (Some(_), _) => Some(pinned_bytes(one) * fits),
                _ if referenced.is_some() => referenced,
                // A dataset without a count has no budget unless one was set by hand.
                (None, 0) => Some(0.0),
                // The policy leaves it nothing while no job substitutes.
                (None, _) if self.readings_of(one.id).next().is_some() => chunk_bytes(one),
                (None, _) => None,
            },
            keep: one.keep,
            chunk_size: Some(as_f64(one.chunk_options.size)),
        });
        let job = |(active, ideal): (&ActiveJob<'_>, &IdealRate)| Job {
            id: active.job.name.clone(),
            dataset: active.dataset,
            ideal_rate: as_f64(ideal.rate),
            is_rate_assumed: ideal.source == RateSource::Assumed,
            gpus: f64::from(active.job.gpus),
            work: self.work(active),
            hit_ratio: (!self.is_pipeline(active)).then_some(ideal.hit_ratio),
            remote_io: active.job.pinned.map(as_f64),
            substitutes: self.substitutes(active),
            measured: self.probing.times(&active.job.name),
            mode: self.probing.mode(&active.job.name),
        };
        let jobs: Vec<Job> = active.iter().zip(ideal_rates).map(job).collect();
        let all_rates: f64 = jobs.iter().map(|job| job.ideal_rate).sum();
        let all_gpus = || jobs.iter().map(|job| job.gpus).sum();
        Problem {
            totals: Totals {
                gpus: self.limits.gpus.map_or_else(all_gpus, f64::from),
                cache,
                // Without a limit there is enough for all, and some to spare.
                remote_io: remote_io.map_or(2.0 * all_rates, as_f64),
            },
            datasets: datasets.collect(),
            jobs,
        }
    }

    /// Returns whether the dataset of a job is kept by references, and not for epochs.
    fn is_pipeline(&self, active: &ActiveJob<'_>) -> bool {
        self.registry.datasets()[active.dataset].keep == Keep::References
    }

    /// Returns whether a job reads its dataset by chunks.
    fn substitutes(&self, active: &ActiveJob<'_>) -> bool {
        let dataset = self.registry.datasets()[active.dataset].id;
        let mut readings = self.readings_of(dataset);
        readings.any(|one| one.reader.job == active.job.name)
    }

    /// Returns the processes that read the dataset by chunks.
    fn readings_of(&self, dataset: u64) -> impl Iterator<Item = &ReadingReport> {
        let readings = self.reports.iter().flat_map(|report| &report.readings);
        readings.filter(move |one| one.dataset == dataset)
    }

    /// Returns the bytes that a job still has to read, if its number of epochs is known.
    fn work(&self, active: &ActiveJob<'_>) -> Option<f64> {
        let epochs = active.job.epochs?;
        let size = as_f64(self.registry.datasets()[active.dataset].size);
        let reports = self.reports.iter().flat_map(|report| &report.jobs);
        let read = reports.filter(|part| part.job == active.job.name);
        let read: f64 = read.map(|part| as_f64(part.total_bytes)).sum();
        Some((size * f64::from(epochs) - read).max(size * 0.01).max(1.0))
    }

    /// Returns the limit of each job. The limits sum to at most `for_jobs`.
    fn rates(
        &self,
        active: &[ActiveJob<'_>],
        limits: &[f64],
        for_jobs: Option<u64>,
    ) -> Vec<Option<u64>> {
        let jobs = self.registry.jobs().iter();
        let mut rates: Vec<Option<u64>> = jobs.map(|job| job.pinned).collect();
        let Some(total) = for_jobs.map(as_f64) else {
            return rates;
        };
        // The assured part comes on top of the limits, so the sum may exceed the total and is
        // scaled below.
        let assured = total * ASSURED / as_f64(active.len().max(1) as u64);
        let wanted = |(one, limit): (&ActiveJob<'_>, &f64)| {
            one.job.pinned.map_or(limit.max(assured), as_f64)
        };
        let wanted: Vec<f64> = active.iter().zip(limits).map(wanted).collect();
        let by_hand: f64 = active
            .iter()
            .filter_map(|one| one.job.pinned)
            .map(as_f64)
            .sum();
        let rest: f64 = wanted.iter().sum::<f64>() - by_hand;
        // Manual rates come first.
        let hand_fits = (total / by_hand.max(1.0)).min(1.0);
        let rest_fits = ((total - by_hand * hand_fits) / rest.max(1.0)).clamp(0.0, 1.0);
        for (one, wanted) in active.iter().zip(&wanted) {
            let by_hand = one.job.pinned.is_some();
            let fits = if by_hand { hand_fits } else { rest_fits };
            rates[one.index] = Some(whole(wanted * fits));
        }
        rates
    }
}

/// Returns the budget of a dataset that is kept in chunks. `None`: it is kept in another way.
fn chunk_bytes(one: &DatasetDecision) -> Option<f64> {
    let bytes = one.resident_bytes_max().map(as_f64);
    bytes.filter(|_| one.keep == Keep::Chunks)
}

fn pinned_bytes(one: &DatasetDecision) -> f64 {
    let budget = one.pinned.unwrap_or(0);
    // A budget above the dataset's size means all of it, once the size is known.
    as_f64(if one.size > 0 {
        budget.min(one.size)
    } else {
        budget
    })
}
