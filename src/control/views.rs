//! JSON views of an [`Overview`]. Pure.
//!
//! Amounts are in bytes, bytes per second and seconds. Unknown values are null.

use crate::model::{
    Counting, DatasetDecision, JobDecision, JobReport, NodeReport, OriginReaders, Overview,
    RateSource, ShareReport, UNATTRIBUTED,
};
use crate::num::{as_f64, whole};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A dataset: its declaration, its budget, and its cached part.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DatasetView {
    /// Its name.
    pub name: String,
    /// Its root in the namespace.
    pub path: String,
    /// The URI that it was declared from.
    pub uri: Option<String>,
    /// Its index.
    pub index: Option<String>,
    /// The nodes that read storage for it.
    pub origin_readers: OriginReaders,
    /// Bytes; null if not counted yet.
    pub size: Option<u64>,
    /// Items: files, and the 4 MiB stripes of larger ones; null if not counted yet.
    pub items: Option<u64>,
    /// The progress of the count, while one runs.
    pub counting: Option<CountingView>,
    /// The bytes of cache that it may use.
    pub budget: u64,
    /// Bytes of cache set by hand.
    pub pinned: Option<u64>,
    /// Bytes cached.
    pub cached: u64,
    /// Items cached.
    pub cached_items: u64,
    /// The cached part, 0 to 1; null if not counted yet.
    pub cached_ratio: Option<f64>,
    /// Bytes read from storage for it since the nodes started.
    pub origin_bytes: u64,
    /// The problem that prevents it from being read as declared.
    pub trouble: Option<String>,
    /// The share of each home.
    pub homes: Vec<ShareView>,
}

/// The progress of a count.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CountingView {
    /// Directories listed so far.
    pub directories: u64,
    /// Items found so far.
    pub items: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A home's share of a dataset.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ShareView {
    /// The node.
    pub node: String,
    /// Bytes of the budget that it holds.
    pub share: u64,
    /// Bytes cached there; null if the node has not reported.
    pub cached: Option<u64>,
    /// The last failure of storage on the node.
    pub trouble: Option<String>,
}

/// A job: its declaration, its budget, and its progress.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct JobView {
    /// Its name.
    pub id: String,
    /// The dataset that it reads.
    pub dataset: Option<String>,
    /// Whether it is declared; otherwise only its reads were seen.
    pub declared: bool,
    /// GPUs.
    pub gpus: u32,
    /// Epochs that it will run.
    pub epochs: Option<u32>,
    /// Whether it deviates from one read of each item per epoch in random order.
    pub irregular: bool,
    /// Its current epoch, from 0; null before its first read.
    pub epoch: Option<u32>,
    /// Items read in this epoch.
    pub items: u64,
    /// Bytes read in this epoch.
    pub bytes: u64,
    /// The part of the epoch that was read, 0 to 1.
    pub progress: Option<f64>,
    /// The effective hit ratio so far in this epoch.
    pub hit_ratio: Option<f64>,
    /// The expected hit ratio of its next reads.
    pub next_hit_ratio: Option<f64>,
    /// The epochs that have ended.
    pub past_epochs: Vec<EpochView>,
    /// Bytes per second that it reads.
    pub throughput: u64,
    /// Bytes per second that it would read if data were not its bottleneck.
    pub ideal_rate: Option<u64>,
    /// The source of the ideal rate.
    pub ideal_rate_source: Option<RateSource>,
    /// The confidence in the ideal rate, 0 to 1.
    pub confidence: Option<f64>,
    /// Bytes per second from storage.
    pub remote_io: u64,
    /// Bytes per second from storage that it may use; null without a limit.
    pub remote_io_allowed: Option<u64>,
    /// Bytes per second set by hand.
    pub remote_io_pinned: Option<u64>,
    /// The part of the time that its reads wait for remote IO, 0 to 1.
    pub throttled: f64,
    /// Bytes read since its start.
    pub total_bytes: u64,
    /// Bytes read from storage that were charged to it.
    pub charged_bytes: u64,
    /// Seconds to the end of its epochs, or of this epoch if their number is unknown.
    pub eta_s: Option<u64>,
    /// Its nodes.
    pub nodes: Vec<JobNodeView>,
}

/// An epoch that has ended.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct EpochView {
    /// Its number, from 0.
    pub epoch: u32,
    /// Bytes read.
    pub bytes: u64,
    /// The hit ratio.
    pub hit_ratio: f64,
}

/// One node of a job.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct JobNodeView {
    /// The node.
    pub node: String,
    /// Bytes per second that it reads.
    pub throughput: u64,
    /// Bytes per second from storage.
    pub remote_io: u64,
    /// Bytes per second from storage that it may use; null without a limit.
    pub remote_io_allowed: Option<u64>,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NodeView {
    /// Its rank in the member list.
    pub rank: u32,
    /// Its name in the member list.
    pub name: String,
    /// The bytes of its cache for datasets.
    pub capacity: u64,
    /// Bytes of datasets cached.
    pub cached: u64,
    /// The serial of the decision that it follows.
    pub follows: String,
    /// The jobs that read on it.
    pub jobs: Vec<String>,
}

/// `GET /v1/datasets`.
#[must_use]
pub fn datasets(all: &Overview) -> Value {
    let datasets = all.decision.datasets.iter();
    json!({ "datasets": datasets.map(|one| DatasetView::of(all, one)).collect::<Vec<_>>() })
}

/// `GET /v1/datasets/{name}`.
#[must_use]
pub fn dataset(all: &Overview, name: &str) -> Option<Value> {
    let one = all.decision.dataset(name)?;
    serde_json::to_value(DatasetView::of(all, one)).ok()
}

/// `GET /v1/jobs`.
#[must_use]
pub fn jobs(all: &Overview) -> Value {
    let jobs = all.decision.jobs.iter();
    json!({ "jobs": jobs.map(|job| JobView::of(all, job)).collect::<Vec<_>>() })
}

/// `GET /v1/jobs/{id}`.
#[must_use]
pub fn job(all: &Overview, id: &str) -> Option<Value> {
    let job = all.decision.job(id)?;
    serde_json::to_value(JobView::of(all, job)).ok()
}

/// `GET /v1/nodes`.
#[must_use]
pub fn nodes(all: &Overview) -> Value {
    json!({ "nodes": all.reports.iter().map(NodeView::of).collect::<Vec<_>>() })
}

/// `GET /v1/allocation`.
#[must_use]
pub fn allocation(all: &Overview) -> Value {
    let decision = &all.decision;
    let sum = |amounts: &mut dyn Iterator<Item = u64>| amounts.fold(0, u64::saturating_add);
    let shares = || all.reports.iter().flat_map(|report| &report.shares);
    let parts = || all.reports.iter().flat_map(|report| &report.jobs);
    let allowed = decision
        .remote_io_total
        .map(|_| sum(&mut decision.jobs.iter().filter_map(|job| job.remote_io)));
    let mut value = json!({
        "serial": decision.serial.to_string(),
        "policy": decision.policy,
        "allocator": all.allocator,
        "gpus": all.gpus,
        "cache": {
            "total": decision.cache_total,
            "budgeted": sum(&mut decision.datasets.iter().map(|one| one.budget)),
            "cached": sum(&mut shares().map(|share| share.cached)),
        },
        "remote_io": {
            "total": decision.remote_io_total,
            "allowed": allowed,
            "used": sum(&mut parts().map(|part| part.remote_io)),
        },
    });
    for part in [datasets(all), jobs(all), nodes(all)] {
        if let (Value::Object(whole), Value::Object(part)) = (&mut value, part) {
            whole.extend(part);
        }
    }
    value
}

impl DatasetView {
    /// The view of one entry of `all.decision`.
    #[must_use]
    pub fn of(all: &Overview, one: &DatasetDecision) -> Self {
        let homes = &all.decision.homes;
        let reported = |rank: u32| -> Option<&ShareReport> {
            let node = all.reports.iter().find(|report| report.rank == rank)?;
            node.shares.iter().find(|share| share.dataset == one.id)
        };
        let views = homes.iter().enumerate().map(|(at, home)| {
            let report = reported(home.rank);
            ShareView {
                node: home.name.clone(),
                share: one.share(homes, at),
                cached: report.map(|share| share.cached),
                trouble: report.and_then(|share| share.trouble.clone()),
            }
        });
        let shares = || {
            let shares = all.reports.iter().flat_map(|report| &report.shares);
            shares.filter(|share| share.dataset == one.id)
        };
        let sum = |of: fn(&ShareReport) -> u64| shares().map(of).fold(0, u64::saturating_add);
        let cached = sum(|share| share.cached);
        let counting = all.counting.iter().find(|count| count.dataset == one.name);
        let views: Vec<ShareView> = views.collect();
        let troubled = views
            .iter()
            .find_map(|view| Some(format!("{}: {}", view.node, view.trouble.as_ref()?)));
        Self {
            name: one.name.clone(),
            path: one.path.to_string(),
            uri: one.uri.clone(),
            index: one.index.clone(),
            origin_readers: one.origin_readers,
            size: (one.size > 0).then_some(one.size),
            items: (one.items > 0).then_some(one.items),
            counting: counting.map(CountingView::of),
            budget: one.budget,
            pinned: one.pinned,
            cached,
            cached_items: sum(|share| share.items),
            cached_ratio: ratio(cached, one.size),
            origin_bytes: sum(|share| share.origin_bytes),
            trouble: one.trouble.clone().or(troubled),
            homes: views,
        }
    }
}

impl CountingView {
    fn of(counting: &Counting) -> Self {
        Self {
            directories: counting.directories,
            items: counting.items,
            bytes: counting.bytes,
        }
    }
}

/// The reports of all nodes about one job.
#[derive(Default)]
struct Parts<'a> {
    all: Vec<(&'a NodeReport, &'a JobReport)>,
    epoch: Option<u32>,
}

impl<'a> Parts<'a> {
    fn of(all: &'a Overview, name: &str) -> Self {
        let mut parts = Vec::new();
        for report in &all.reports {
            let jobs = report.jobs.iter();
            parts.extend(
                jobs.filter(|part| part.job == name)
                    .map(|part| (report, part)),
            );
        }
        let epoch = parts.iter().map(|(_, part)| part.epoch).max();
        Self { all: parts, epoch }
    }

    fn sum(&self, of: fn(&JobReport) -> u64) -> u64 {
        let parts = self.all.iter().map(|(_, part)| of(part));
        parts.fold(0, u64::saturating_add)
    }

    /// The sum over the nodes that are in the job's newest epoch.
    fn in_epoch(&self, of: fn(&JobReport) -> u64) -> u64 {
        let parts = self
            .all
            .iter()
            .filter(|(_, part)| Some(part.epoch) == self.epoch);
        parts.map(|(_, part)| of(part)).fold(0, u64::saturating_add)
    }

    fn past(&self) -> Vec<EpochView> {
        let mut epochs: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for (epoch, bytes, hit) in self.all.iter().flat_map(|(_, part)| &part.epochs) {
            let sums = epochs.entry(*epoch).or_default();
            sums.0 = sums.0.saturating_add(*bytes);
            sums.1 = sums.1.saturating_add(*hit);
        }
        let view = |(epoch, (bytes, hit))| EpochView {
            epoch,
            bytes,
            hit_ratio: ratio(hit, bytes).unwrap_or(0.0),
        };
        epochs.into_iter().map(view).collect()
    }
}

impl JobView {
    /// The view of one entry of `all.decision`.
    #[must_use]
    pub fn of(all: &Overview, job: &JobDecision) -> Self {
        let parts = Parts::of(all, &job.name);
        let known = all.rates.iter().find(|rate| rate.job == job.name);
        let dataset = job
            .dataset
            .as_ref()
            .and_then(|name| all.decision.dataset(name));
        let size = dataset.map_or(0, |dataset| dataset.size);
        let bytes = parts.in_epoch(|part| part.bytes);
        let throughput = parts.sum(|part| part.throughput);
        let total_bytes = parts.sum(|part| part.total_bytes);
        let throttled = parts.all.iter().map(|(_, part)| f64::from(part.throttled));
        let belongs = job.name != UNATTRIBUTED;
        Self {
            id: job.name.clone(),
            dataset: job.dataset.clone(),
            declared: job.declared,
            gpus: job.gpus,
            epochs: job.epochs,
            irregular: job.irregular,
            epoch: parts.epoch.filter(|_| belongs),
            items: parts.in_epoch(|part| part.items),
            bytes,
            progress: ratio(bytes, size).filter(|_| belongs),
            hit_ratio: ratio(parts.in_epoch(|part| part.hit_bytes), bytes),
            next_hit_ratio: known.map(|known| known.hit_ratio),
            past_epochs: parts.past(),
            throughput,
            ideal_rate: known.map(|known| known.rate).or(job.ideal_rate),
            ideal_rate_source: known.map(|known| known.source),
            confidence: known.map(|known| f64::from(known.confidence)),
            remote_io: parts.sum(|part| part.remote_io),
            remote_io_allowed: job.remote_io,
            remote_io_pinned: job.pinned,
            throttled: throttled.fold(0.0, f64::max),
            total_bytes,
            charged_bytes: parts.sum(|part| part.charged_bytes),
            eta_s: eta(size, bytes, total_bytes, throughput, job.epochs).filter(|_| belongs),
            nodes: JobNodeView::all(job, &parts),
        }
    }
}

impl JobNodeView {
    fn all(job: &JobDecision, parts: &Parts<'_>) -> Vec<Self> {
        let mut nodes: BTreeMap<u32, Self> = BTreeMap::new();
        for (report, part) in &parts.all {
            let allowed = job.nodes.iter().find(|node| node.rank == report.rank);
            let allowed = allowed.filter(|_| job.remote_io.is_some());
            let node = nodes.entry(report.rank).or_insert(Self {
                node: report.name.clone(),
                throughput: 0,
                remote_io: 0,
                remote_io_allowed: allowed.map(|node| node.remote_io),
            });
            node.throughput = node.throughput.saturating_add(part.throughput);
            node.remote_io = node.remote_io.saturating_add(part.remote_io);
        }
        nodes.into_values().collect()
    }
}

impl NodeView {
    fn of(report: &NodeReport) -> Self {
        let jobs = report.jobs.iter().filter(|job| !job.ended);
        let mut jobs: Vec<String> = jobs.map(|job| job.job.clone()).collect();
        jobs.dedup();
        Self {
            rank: report.rank,
            name: report.name.clone(),
            capacity: report.capacity,
            cached: report
                .shares
                .iter()
                .fold(0, |sum, share| sum.saturating_add(share.cached)),
            follows: report.follows.to_string(),
            jobs,
        }
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| as_f64(part) / as_f64(whole))
}

/// Seconds until all epochs are read, at the current rate.
fn eta(size: u64, bytes: u64, total: u64, throughput: u64, epochs: Option<u32>) -> Option<u64> {
    if size == 0 || throughput == 0 {
        return None;
    }
    let left = match epochs {
        Some(epochs) => size.saturating_mul(u64::from(epochs)).saturating_sub(total),
        None => size.saturating_sub(bytes),
    };
    Some(whole((as_f64(left) / as_f64(throughput)).ceil()))
}
