//! From what is declared and reported to a [`Problem`], and from its answer to bytes and rates. Pure.

use super::super::registry::{self, Registry};
use super::{budgets, rates};
use crate::model::{
    Decision, HomeNode, IdealRate, JobReport, NodeReport, RateSource, UNATTRIBUTED,
};
use crate::num::{as_f64, whole};
use copperfs_policy::{Dataset, Job, Policy, Problem, Totals, allocate_partitioned};
use std::collections::BTreeMap;

/// What a job is taken to read at, where nothing is known of it and remote IO has no limit: with no
/// limit it only decides whose dataset comes first.
const ASSUMED_RATE: u64 = 1_000_000_000;
/// An estimate that is less sure than this is none.
const CONFIDENCE_MIN: f32 = 0.3;
/// An estimate that moves by less is the same one: budgets that follow noise are moved for nothing.
const ESTIMATE_STEP: f64 = 0.05;
/// What a job reads within so many seconds is what it "reads next": the time to the next solution.
const HORIZON_S: f64 = 5.0;
/// Every job has so much of the total, all of them together, whatever the policy says: who was planned
/// as fully cached and misses after all (an item was lost) would wait forever.
const ASSURED: f64 = 0.02;

/// The parts of each job, by its name: on which node, and what is reported there.
pub(super) fn by_job(reports: &[NodeReport]) -> BTreeMap<&str, Vec<(u32, &JobReport)>> {
    let mut jobs: BTreeMap<&str, Vec<(u32, &JobReport)>> = BTreeMap::new();
    for report in reports {
        for job in &report.jobs {
            jobs.entry(&job.job).or_default().push((report.rank, job));
        }
    }
    jobs
}

/// Whether a node's report says something that is not to wait for the next period: another process or
/// capacity; a job that came, ended, turned an epoch, was found irregular, or reads at another rate.
pub(super) fn differs(before: &NodeReport, after: &NodeReport) -> bool {
    let of_node = |report: &NodeReport| (report.boot, report.capacity);
    of_node(before) != of_node(after)
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

/// What jobs are taken to read at: kept from one solution to the next, so that noise moves nothing.
#[derive(Debug, Default)]
pub(super) struct Estimates(Vec<IdealRate>);

impl Estimates {
    pub(super) fn rates(&self) -> Vec<IdealRate> {
        self.0.clone()
    }

    /// What `job` reads when data is not its bottleneck: as declared; else as its own reads show; else
    /// as much as it could use at most, which is all remote IO (or what it was seen to read, if that is
    /// more). A job that is taken for too fast gets cache and remote IO that others could use, and shows
    /// its rate soon; one that is taken for too slow would be held there by its own limit.
    fn of(
        &self,
        job: &registry::Job,
        parts: &[(u32, &JobReport)],
        remote_io: Option<u64>,
    ) -> (u64, RateSource, f32) {
        if let Some(rate) = job.ideal_rate {
            return (rate.max(1), RateSource::Declared, 1.0);
        }
        let live = || {
            parts
                .iter()
                .map(|(_, part)| part)
                .filter(|part| !part.ended)
        };
        let sure = |part: &&&JobReport| !part.bound && part.confidence >= CONFIDENCE_MIN;
        let known: Vec<(u64, f32)> = live()
            .filter(|part| sure(part))
            .filter_map(|part| Some((part.ideal_rate.filter(|rate| *rate > 0)?, part.confidence)))
            .collect();
        if !known.is_empty() {
            // Nodes that cannot tell yet are like those that can.
            let sum = known
                .iter()
                .fold(0_u64, |sum, (rate, _)| sum.saturating_add(*rate));
            let all = as_f64(sum) * live().count() as f64 / known.len() as f64;
            let confidence = known.iter().map(|(_, sure)| *sure).fold(1.0, f32::min);
            let before = self.0.iter().find(|one| one.job == job.name);
            let before = before.filter(|one| one.source == RateSource::Estimated);
            let rate = match before {
                Some(before) if !moved(Some(before.rate), Some(whole(all))) => before.rate,
                _ => whole(all),
            };
            return (rate.max(1), RateSource::Estimated, confidence);
        }
        let reached = live().fold(0_u64, |sum, part| {
            sum.saturating_add(part.throughput.max(part.ideal_rate.unwrap_or(0)))
        });
        let most = reached.max(remote_io.unwrap_or(ASSUMED_RATE));
        (most.max(1), RateSource::Assumed, 0.0)
    }
}

/// Which part of what a job reads next is cached (§6, delayed effectiveness): of the items that it has
/// not read in this epoch, those that are cached. What it has brought in itself in this epoch, and what
/// it has hit, it will not read again before the next one; towards the end of the epoch what it reads
/// next is the next one's, of which everything that is cached counts.
pub(super) fn effective_hit_ratio(size: u64, cached: u64, parts: &[(u32, &JobReport)]) -> f64 {
    let live = || {
        parts
            .iter()
            .map(|(_, part)| part)
            .filter(|part| !part.ended)
    };
    let size = as_f64(size);
    if size <= 0.0 {
        return 0.0;
    }
    let cached = as_f64(cached).min(size);
    let steady = cached / size;
    let Some(epoch) = live().map(|part| part.epoch).max() else {
        return steady;
    };
    let (mut read, mut spent, mut rate) = (0.0, 0.0, 0.0);
    for part in live() {
        rate += as_f64(part.throughput);
        // A node that has not come to this epoch yet has read nothing of it.
        if part.epoch == epoch {
            read += as_f64(part.bytes);
            spent += as_f64(part.hit_bytes) + as_f64(part.admitted_bytes);
        }
    }
    let left = (size - read).max(0.0);
    let horizon = (rate * HORIZON_S).max(size * 0.01).min(size);
    let now = if left > 0.0 {
        ((cached - spent) / left).clamp(0.0, 1.0)
    } else {
        steady
    };
    let within = (left / horizon).min(1.0);
    within * now + (1.0 - within) * steady
}

/// What is to be solved.
pub(super) struct Question<'a> {
    pub(super) registry: &'a Registry,
    pub(super) reports: &'a [NodeReport],
    pub(super) homes: &'a [HomeNode],
    pub(super) remote_io: Option<u64>,
    pub(super) gpus: Option<u32>,
    pub(super) before: &'a Decision,
}

/// The answer.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Solved {
    /// Of each dataset, in bytes.
    pub(super) budgets: Vec<u64>,
    /// Of each job, in bytes per second.
    pub(super) rates: Vec<Option<u64>>,
    /// Of reads that belong to no job.
    pub(super) unattributed: Option<u64>,
}

impl Question<'_> {
    pub(super) fn solve(&self, estimates: &mut Estimates) -> Solved {
        let jobs = self.registry.jobs();
        let active = self.active();
        let unattributed = self.remote_io.map(|total| {
            let before = self.before.job(UNATTRIBUTED).and_then(|job| job.remote_io);
            rates::unattributed(total, !active.is_empty(), self.reports, before)
        });
        let for_jobs = self
            .remote_io
            .map(|total| total - unattributed.unwrap_or(0).min(total));
        let by_job = by_job(self.reports);
        let mut told = Vec::with_capacity(active.len());
        for (at, dataset) in &active {
            let Some(job) = jobs.get(*at) else { continue };
            let parts: Vec<(u32, &JobReport)> = by_job
                .get(job.name.as_str())
                .into_iter()
                .flatten()
                .filter(|(_, part)| Some(&part.dataset) == job.dataset.as_ref())
                .copied()
                .collect();
            let (rate, source, confidence) = estimates.of(job, &parts, for_jobs);
            told.push(IdealRate {
                job: job.name.clone(),
                rate,
                source,
                confidence,
                hit_ratio: self.hit_ratio(*dataset, &parts),
            });
        }
        let problem = self.problem(&active, &told, for_jobs);
        let policy: Policy = self.registry.policy().parse().unwrap_or_default();
        let irregular: Vec<bool> = active
            .iter()
            .map(|(at, _)| jobs.get(*at).is_some_and(|job| job.irregular))
            .collect();
        let allocation = allocate_partitioned(policy, &problem, &irregular);
        let wanted: Vec<f64> = allocation
            .datasets
            .iter()
            .map(|share| share.cache)
            .collect();
        let budgets = budgets::Wanted {
            datasets: self.registry.datasets(),
            policy,
            problem: &problem,
            before: self.before,
        }
        .settle(&wanted);
        let limits: Vec<f64> = allocation.jobs.iter().map(|share| share.limit).collect();
        estimates.0 = told;
        Solved {
            budgets,
            rates: self.rates(&active, &limits, for_jobs),
            unattributed,
        }
    }

    /// The jobs that read a declared dataset: position of each, and of its dataset. One that was declared
    /// counts from then on, before its first read; one whose processes are all gone does not.
    fn active(&self) -> Vec<(usize, usize)> {
        let by_job = by_job(self.reports);
        let datasets = self.registry.datasets();
        let jobs = self.registry.jobs().iter().enumerate();
        jobs.filter_map(|(at, job)| {
            let parts = by_job.get(job.name.as_str());
            let over = parts.is_some_and(|parts| parts.iter().all(|(_, part)| part.ended));
            let name = job.dataset.as_deref().filter(|_| !over)?;
            let dataset = datasets.iter().position(|one| one.spec.name == name)?;
            Some((at, dataset))
        })
        .collect()
    }

    fn hit_ratio(&self, dataset: usize, parts: &[(u32, &JobReport)]) -> f64 {
        let Some(dataset) = self.registry.datasets().get(dataset) else {
            return 0.0;
        };
        let shares = self.reports.iter().flat_map(|report| &report.shares);
        let cached = shares
            .filter(|share| share.dataset == dataset.id)
            .fold(0_u64, |sum, share| sum.saturating_add(share.cached));
        effective_hit_ratio(dataset.size, cached, parts)
    }

    fn problem(
        &self,
        active: &[(usize, usize)],
        told: &[IdealRate],
        remote_io: Option<u64>,
    ) -> Problem {
        let cache: f64 = self.homes.iter().map(|home| as_f64(home.capacity)).sum();
        let pinned: f64 = self.registry.datasets().iter().map(pinned_bytes).sum();
        // Nodes have left, and what was set by hand is more than there is: everybody gives the same part.
        let fits = if pinned > cache { cache / pinned } else { 1.0 };
        let datasets = self.registry.datasets().iter().map(|one| Dataset {
            name: one.spec.name.clone(),
            // One that is not counted yet gets nothing but what was set by hand.
            size: as_f64(one.size.max(one.spec.budget.unwrap_or(0)).max(1)),
            budget: match (one.spec.budget, one.size) {
                (Some(_), _) => Some(pinned_bytes(one) * fits),
                (None, 0) => Some(0.0),
                (None, _) => None,
            },
        });
        let all_rates: f64 = told.iter().map(|one| as_f64(one.rate)).sum();
        let jobs = active.iter().zip(told).filter_map(|((at, dataset), told)| {
            let job = self.registry.jobs().get(*at)?;
            let size = self
                .registry
                .datasets()
                .get(*dataset)
                .map_or(0, |one| one.size);
            Some(Job {
                id: job.name.clone(),
                dataset: *dataset,
                ideal_rate: as_f64(told.rate),
                gpus: f64::from(job.gpus),
                work: self.work(job, size),
                hit_ratio: Some(told.hit_ratio),
                remote_io: job.pinned.map(as_f64),
            })
        });
        let jobs: Vec<Job> = jobs.collect();
        let gpus = self
            .gpus
            .map_or_else(|| jobs.iter().map(|job| job.gpus).sum(), f64::from);
        Problem {
            totals: Totals {
                gpus,
                cache,
                // Without a limit everybody can have all.
                remote_io: remote_io.map_or(all_rates, as_f64),
            },
            datasets: datasets.collect(),
            jobs,
        }
    }

    /// Bytes that a job still has to read, if its epochs are known.
    fn work(&self, job: &registry::Job, size: u64) -> Option<f64> {
        let epochs = job.epochs?;
        let total = as_f64(size) * f64::from(epochs);
        let reports = self.reports.iter().flat_map(|report| &report.jobs);
        let read = reports.filter(|part| part.job == job.name);
        let read: f64 = read.map(|part| as_f64(part.total_bytes)).sum();
        Some((total - read).max(as_f64(size) * 0.01).max(1.0))
    }

    /// What each job is held to. Together never more than there is.
    fn rates(
        &self,
        active: &[(usize, usize)],
        limits: &[f64],
        for_jobs: Option<u64>,
    ) -> Vec<Option<u64>> {
        let jobs = self.registry.jobs();
        let mut rates: Vec<Option<u64>> = jobs.iter().map(|job| job.pinned).collect();
        let Some(total) = for_jobs.map(as_f64) else {
            return rates;
        };
        let pinned = |at: usize| jobs.get(at).and_then(|job| job.pinned).map(as_f64);
        let assured = total * ASSURED / as_f64(active.len().max(1) as u64);
        let wanted: Vec<f64> = active
            .iter()
            .zip(limits)
            .map(|((at, _), limit)| pinned(*at).unwrap_or(limit.max(assured)))
            .collect();
        let by_hand: f64 = active.iter().filter_map(|(at, _)| pinned(*at)).sum();
        let rest: f64 = wanted.iter().sum::<f64>() - by_hand;
        // What was set by hand goes first.
        let hand_fits = (total / by_hand.max(1.0)).min(1.0);
        let rest_fits = ((total - by_hand * hand_fits) / rest.max(1.0)).clamp(0.0, 1.0);
        for ((at, _), wanted) in active.iter().zip(&wanted) {
            let fits = if pinned(*at).is_some() {
                hand_fits
            } else {
                rest_fits
            };
            if let Some(rate) = rates.get_mut(*at) {
                *rate = Some(whole(wanted * fits));
            }
        }
        rates
    }
}

fn pinned_bytes(one: &registry::Dataset) -> f64 {
    match (one.spec.budget, one.size) {
        // More than everything is everything.
        (Some(budget), size) if size > 0 => as_f64(budget.min(size)),
        (budget, _) => as_f64(budget.unwrap_or(0)),
    }
}
