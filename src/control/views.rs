//! JSON views of an [`Overview`]. Pure.
//!
//! `docs/openapi.json` describes every key; a test keeps the two equal. Amounts are in bytes, bytes per second and
//! seconds. Unknown values are null.

use crate::model::{
    CountReport, DatasetDecision, Decision, EndedJob, HomeNode, JobDecision, JobReport, NodeReport,
    OriginReaders, Overview, ShareReport, UNATTRIBUTED,
};
use crate::num::{as_f64, saturating_sum as sum, whole};
use copperfs_policy::Times;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A node's report, and its part about one job.
type JobPart<'a> = (&'a NodeReport, &'a JobReport);

/// `GET /v1/datasets`.
#[must_use]
pub fn datasets(all: &Overview) -> Value {
    let datasets = all.decision.datasets.iter();
    json!({ "datasets": datasets.map(|one| dataset_view(all, one)).collect::<Vec<_>>() })
}

/// `GET /v1/datasets/{name}`.
#[must_use]
pub fn dataset(all: &Overview, name: &str) -> Option<Value> {
    Some(dataset_view(all, all.decision.dataset(name)?))
}

/// `GET /v1/datasets/{name}/homes`.
#[must_use]
pub fn homes(decision: &Decision, name: &str) -> Option<Value> {
    let dataset = decision.dataset(name)?;
    let home = |home: &HomeNode| json!({ "rank": home.rank, "node": home.name, "capacity": home.capacity });
    Some(json!({
        "serial": decision.serial.to_string(),
        "identity": dataset.identity.map(hex),
        "homes": decision.homes.iter().map(home).collect::<Vec<_>>(),
    }))
}

/// `GET /v1/jobs`.
#[must_use]
pub fn jobs(all: &Overview) -> Value {
    let jobs = all.decision.jobs.iter();
    json!({ "jobs": jobs.map(|job| job_view(all, job)).collect::<Vec<_>>() })
}

/// `GET /v1/jobs/{id}`.
#[must_use]
pub fn job(all: &Overview, id: &str) -> Option<Value> {
    Some(job_view(all, all.decision.job(id)?))
}

/// `GET /v1/ended-jobs`.
#[must_use]
pub fn ended_jobs(all: &Overview) -> Value {
    json!({ "jobs": all.ended.iter().map(ended_job_view).collect::<Vec<_>>() })
}

/// `GET /v1/nodes`.
#[must_use]
pub fn nodes(all: &Overview) -> Value {
    json!({ "nodes": all.reports.iter().map(node_view).collect::<Vec<_>>() })
}

/// `GET /v1/allocation`.
#[must_use]
pub fn allocation(all: &Overview) -> Value {
    let decision = &all.decision;
    let shares = all.reports.iter().flat_map(|report| &report.shares);
    let parts = all.reports.iter().flat_map(|report| &report.jobs);
    let limits = decision.jobs.iter().filter_map(|job| job.remote_io);
    let allowed = decision.remote_io_total.map(|_| sum(limits));
    json!({
        "serial": decision.serial.to_string(),
        "policy": decision.policy,
        "allocator": all.allocator,
        "gpus": all.gpus,
        "cache": {
            "total": decision.cache_total,
            "budgeted": sum(decision.datasets.iter().map(|one| one.budget)),
            "cached": sum(shares.map(|share| share.cached)),
        },
        "remote_io": {
            "total": decision.remote_io_total,
            "allowed": allowed,
            "used": sum(parts.map(|part| part.remote_io)),
        },
        "datasets": datasets(all)["datasets"].take(),
        "jobs": jobs(all)["jobs"].take(),
        "nodes": nodes(all)["nodes"].take(),
    })
}

/// A dataset: its declaration, its budget, and its cached part.
fn dataset_view(all: &Overview, one: &DatasetDecision) -> Value {
    let homes = &all.decision.homes;
    let reported = homes.iter().map(|home| {
        let node = all.reports.iter().find(|report| report.rank == home.rank)?;
        node.shares.iter().find(|share| share.dataset == one.id)
    });
    // Collected, because it is a search among all nodes for each home.
    let reported: Vec<Option<&ShareReport>> = reported.collect();
    let views = homes
        .iter()
        .zip(&reported)
        .enumerate()
        .map(|(at, (home, report))| {
            json!({
                "node": home.name,
                "share": one.share(homes, at),
                "cached": report.map(|share| share.cached),
                "trouble": report.and_then(|share| share.trouble.as_ref()),
            })
        });
    let troubled = homes.iter().zip(&reported).find_map(|(home, report)| {
        let trouble = (*report)?.trouble.as_ref()?;
        Some(format!("{}: {trouble}", home.name))
    });
    let total = |of: fn(&ShareReport) -> u64| {
        let shares = all.reports.iter().flat_map(|report| &report.shares);
        sum(shares.filter(|share| share.dataset == one.id).map(of))
    };
    let cached = total(|share| share.cached);
    let of_it = all.reports.iter().flat_map(|report| &report.shares);
    let of_it = of_it.filter(|share| share.dataset == one.id);
    let by_count: Vec<CountReport> = of_it.filter_map(|share| share.by_count).collect();
    let counting = all.counting.iter().find(|count| count.dataset == one.name);
    json!({
        "name": one.name,
        "path": one.path.to_string(),
        "uri": one.uri,
        "index": one.index,
        "manifest": one.manifest.as_ref().map(ToString::to_string),
        "identity": one.identity.map(hex),
        "origin_readers": one.origin_readers,
        "homes_can_read": homes_can_read(all, one),
        "private": one.is_private,
        "keep": one.keep,
        "chunk_size": one.chunk_options.size,
        "evict_after_s": one.chunk_options.evict_after.as_secs_f64(),
        "chunks": one.resident,
        "size": (one.size > 0).then_some(one.size),
        "items": (one.items > 0).then_some(one.items),
        "entries": (one.entries > 0).then_some(one.entries),
        "counting": counting.map(|counting| json!({
            "directories": counting.directories,
            "items": counting.items,
            "bytes": counting.bytes,
        })),
        "budget": one.budget,
        "pinned": one.pinned,
        "cached": cached,
        "cached_items": total(|share| share.items),
        "cached_ratio": ratio(cached, one.size),
        "origin_bytes": total(|share| share.origin_bytes),
        "references": references(all, one.id, &by_count),
        "trouble": one.trouble.as_ref().map(ToString::to_string).or(troubled),
        "homes": views.collect::<Vec<_>>(),
    })
}

/// Whether all homes read the storage of a dataset by themselves, or could do so.
fn homes_can_read(all: &Overview, one: &DatasetDecision) -> bool {
    let reads = |report: &NodeReport| {
        let mut origins = report.origins.iter();
        origins.any(|origin| one.path.is_within(origin))
    };
    let can = |home: &HomeNode| {
        let mut reports = all.reports.iter();
        reports.any(|report| report.rank == home.rank && reads(report))
    };
    let homes = &all.decision.homes;
    one.origin_readers == OriginReaders::Homes || (!homes.is_empty() && homes.iter().all(can))
}

/// The items of a dataset that is kept by references, at all homes together. Null if it is kept by another rule.
fn references(all: &Overview, dataset: u64, shares: &[CountReport]) -> Value {
    if shares.is_empty() {
        return Value::Null;
    }
    let total = |of: fn(&CountReport) -> u64| sum(shares.iter().map(of));
    let pipelines = all.reports.iter().flat_map(|report| &report.pipelines);
    let pipelines = pipelines.filter(|one| one.dataset == dataset);
    let (hits, misses) = (total(|one| one.hits), total(|one| one.misses));
    json!({
        "jobs": sum(pipelines.clone().map(|one| one.jobs.into())),
        "references": sum(pipelines.map(|one| one.references)),
        "referenced": total(|one| one.referenced),
        "unreferenced": total(|one| one.unreferenced),
        "undeclared": total(|one| one.undeclared),
        "hits": hits,
        "misses": misses,
        "hit_ratio": ratio(hits, hits + misses),
        "evicted": total(|one| one.evicted),
    })
}

/// An identity as text.
pub(super) fn hex(identity: [u8; 32]) -> String {
    blake3::Hash::from_bytes(identity).to_hex().to_string()
}

/// A job: its declaration, its budget, and its progress.
fn job_view(all: &Overview, job: &JobDecision) -> Value {
    let reports = all.reports.iter();
    let parts = reports.flat_map(|report| report.jobs.iter().map(move |part| (report, part)));
    let parts: Vec<JobPart<'_>> = parts.filter(|(_, part)| part.job == job.name).collect();
    let epoch = parts.iter().map(|(_, part)| part.epoch).max();
    let total = |of: fn(&JobReport) -> u64| sum(parts.iter().map(|(_, part)| of(part)));
    // Only over the nodes that are in the job's newest epoch.
    let in_epoch = |of: fn(&JobReport) -> u64| {
        let parts = parts.iter().map(|(_, part)| part);
        let newest = parts.filter(|part| Some(part.epoch) == epoch);
        sum(newest.map(|part| of(part)))
    };
    let known = all.rates.iter().find(|rate| rate.job == job.name);
    let dataset = job.dataset.as_ref();
    let dataset = dataset.and_then(|name| all.decision.dataset(name));
    let size = dataset.map_or(0, |dataset| dataset.size);
    let bytes = in_epoch(|part| part.bytes);
    let throughput = total(|part| part.throughput);
    let total_bytes = total(|part| part.total_bytes);
    let throttled = parts.iter().map(|(_, part)| f64::from(part.throttled));
    let belongs = job.name != UNATTRIBUTED;
    json!({
        "id": job.name,
        "dataset": job.dataset,
        "declared": job.declared,
        "gpus": job.gpus,
        "epochs": job.epochs,
        "irregular": job.irregular,
        "mode": job.mode,
        "batch_s": job.measured.as_ref().and_then(|one| one.times).map(batch_times),
        "epoch": epoch.filter(|_| belongs),
        "items": in_epoch(|part| part.items),
        "bytes": bytes,
        "progress": ratio(bytes, size).filter(|_| belongs),
        "hit_ratio": ratio(in_epoch(|part| part.hit_bytes), bytes),
        "next_hit_ratio": known.map(|known| known.hit_ratio),
        "past_epochs": past_epochs(&parts),
        "throughput": throughput,
        "ideal_rate": known.map(|known| known.rate).or(job.ideal_rate),
        "ideal_rate_source": known.map(|known| known.source),
        "confidence": known.map(|known| f64::from(known.confidence)),
        "remote_io": total(|part| part.remote_io),
        "remote_io_allowed": job.remote_io,
        "remote_io_pinned": job.pinned,
        "throttled": throttled.fold(0.0, f64::max),
        "total_bytes": total_bytes,
        "charged_bytes": total(|part| part.charged_bytes),
        "probe_bytes": total(|part| part.probe_bytes),
        "own_bytes": total(|part| part.own_bytes),
        "eta_s": eta(size, bytes, total_bytes, throughput, job.epochs).filter(|_| belongs),
        "nodes": job_nodes(job, &parts),
    })
}

/// A job that has ended: its declaration, and its reads.
fn ended_job_view(job: &EndedJob) -> Value {
    let totals = &job.totals;
    let of = |which: fn(&(u64, u64)) -> u64| sum(totals.epochs.values().map(which));
    json!({
        "id": job.job,
        "dataset": job.dataset,
        "declared": job.declared,
        "gpus": job.gpus,
        "epochs": job.epochs,
        "ago_s": job.ago.as_secs_f64(),
        "lasted_s": job.lasted.as_secs_f64(),
        "complete": job.is_complete,
        "nodes": totals.nodes,
        "total_bytes": totals.bytes,
        "hit_ratio": ratio(of(|epoch| epoch.1), of(|epoch| epoch.0)),
        "past_epochs": epoch_views(&totals.epochs),
        "charged_bytes": totals.charged_bytes,
        "probe_bytes": totals.probe_bytes,
        "own_bytes": totals.own_bytes,
        "waited_s": totals.waited_s,
    })
}

/// The measured times of a job, in seconds for each mini-batch.
fn batch_times(times: Times) -> Value {
    json!({
        "uncached": times.uncached_s,
        "whole": times.whole_s,
        "chunks": times.chunks_s,
        "part": times.part.map(|part| part.cached_s),
        "part_hit_ratio": times.part.map(|part| part.hit_ratio),
    })
}

/// The epochs of a job that have ended.
fn past_epochs(parts: &[JobPart<'_>]) -> Vec<Value> {
    let mut epochs: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (epoch, bytes, hit) in parts.iter().flat_map(|(_, part)| &part.epochs) {
        let sums = epochs.entry(*epoch).or_default();
        sums.0 = sums.0.saturating_add(*bytes);
        sums.1 = sums.1.saturating_add(*hit);
    }
    epoch_views(&epochs)
}

/// Epochs: bytes read, and bytes of these that were cached.
fn epoch_views(epochs: &BTreeMap<u32, (u64, u64)>) -> Vec<Value> {
    let view = |(epoch, (bytes, hit)): (&u32, &(u64, u64))| {
        let hit_ratio = ratio(*hit, *bytes).unwrap_or(0.0);
        json!({ "epoch": epoch, "bytes": bytes, "hit_ratio": hit_ratio })
    };
    epochs.iter().map(view).collect()
}

/// The nodes of a job.
fn job_nodes(job: &JobDecision, parts: &[JobPart<'_>]) -> Vec<Value> {
    let mut nodes: BTreeMap<u32, (&str, u64, u64)> = BTreeMap::new();
    for (report, part) in parts {
        let node = nodes.entry(report.rank);
        let node = node.or_insert((report.name.as_str(), 0, 0));
        node.1 = node.1.saturating_add(part.throughput);
        node.2 = node.2.saturating_add(part.remote_io);
    }
    let view = |(rank, (name, throughput, remote_io))| {
        let allowed = job.nodes.iter().find(|node| node.rank == rank);
        let allowed = allowed.filter(|_| job.remote_io.is_some());
        json!({
            "node": name,
            "throughput": throughput,
            "remote_io": remote_io,
            "remote_io_allowed": allowed.map(|node| node.remote_io),
        })
    };
    nodes.into_iter().map(view).collect()
}

fn node_view(report: &NodeReport) -> Value {
    let jobs = report.jobs.iter().filter(|job| !job.ended);
    let mut jobs: Vec<&str> = jobs.map(|job| job.job.as_str()).collect();
    jobs.dedup();
    json!({
        "rank": report.rank,
        "name": report.name,
        "capacity": report.capacity,
        "cached": sum(report.shares.iter().map(|share| share.cached)),
        "follows": report.follows.to_string(),
        "jobs": jobs,
    })
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
