//! A workload under several policies, in caches of several sizes, with several seeds.

use super::inactive::{Inactive, inactive};
use super::ranks::{Ranks, ranks};
use super::run::{Run, run, space_for};
use super::workload::Pipeline;
use crate::num::{as_f64, index_f64, whole};
use copperfs_policy::amounts::ByteSize;
use copperfs_policy::references::EvictionPolicy;
use copperfs_policy::references::replay::TraceError;
use serde::Serialize;
use std::str::FromStr;

/// The size of a cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CacheSize {
    /// Bytes.
    Bytes(u64),
    /// Per cent of the inputs of the workload: of all blocks that it reads, each counted once.
    Percent(f64),
}

/// A text is not the size of a cache.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not the size of a cache. Write per cent of the inputs, above 0 and up to 1000: 20%; or a \
     size with a unit: 10GB (1000-based), 10GiB (1024-based)"
)]
pub struct CacheSizeError {
    text: String,
}

impl FromStr for CacheSize {
    type Err = CacheSizeError;

    fn from_str(text: &str) -> Result<Self, CacheSizeError> {
        let trimmed = text.trim();
        let size = match trimmed.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.trim_end().parse().ok();
                let percent = percent.filter(|percent| *percent > 0.0 && *percent <= 1000.0);
                percent.map(Self::Percent)
            }
            None if trimmed.ends_with(|last: char| last.is_ascii_digit()) => None,
            None => {
                let bytes = trimmed.parse().ok().filter(|ByteSize(bytes)| *bytes > 0);
                bytes.map(|ByteSize(bytes)| Self::Bytes(bytes))
            }
        };
        size.ok_or_else(|| CacheSizeError { text: text.into() })
    }
}

impl CacheSize {
    /// Returns the bytes for a workload with these inputs, at least 1.
    #[must_use]
    pub fn bytes(self, inputs: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => whole(as_f64(inputs) * percent / 100.0).max(1),
        }
    }
}

/// The policies, caches and hit ratios of a study.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The policies. LRU is run too, because gains are over it.
    pub policies: Vec<EvictionPolicy>,
    /// The sizes of the cache.
    pub caches: Vec<CacheSize>,
    /// The hit ratios for which the space is searched.
    pub hit_ratios: Vec<f64>,
}

/// The results of a workload. Numbers are means over its seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Study {
    /// The name of the workload.
    pub workload: String,
    /// The number of tenants, if it is a workload of tenants.
    pub tenants: Option<usize>,
    /// Bytes of all blocks that are read, each counted once.
    pub inputs_bytes: u64,
    /// Blocks that are read or put.
    pub blocks: u64,
    /// Submitted jobs; 0 if the trace is from a file.
    pub jobs: u64,
    /// Their tasks; 0 if the trace is from a file.
    pub tasks: u64,
    /// The mean distance of references to generated blocks, in jobs (Table VI).
    pub reference_distance: Option<f64>,
    /// A row for each cache and policy.
    pub rows: Vec<Row>,
    /// The space for each hit ratio and policy.
    pub spaces: Vec<Space>,
    /// Inactive data under LRU for each cache (the first seed).
    pub inactive: Vec<InactiveAt>,
    /// The ranks of blocks that are read, by metric (the first seed).
    pub ranks: Vec<Ranks>,
}

/// A policy in a cache of one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// The cache, as a part of the inputs.
    pub cache_share: f64,
    /// The policy.
    pub policy: &'static str,
    /// The part of the reads that hit.
    pub hit_ratio: f64,
    /// The hit ratio minus that of LRU.
    pub over_lru: f64,
    /// The least of these differences over the seeds.
    pub over_lru_min: f64,
    /// The hit ratio divided by that of LRU. `None`: LRU has no hit.
    pub to_lru: Option<f64>,
    /// Bytes from storage.
    pub storage_bytes: f64,
    /// Evicted blocks.
    pub evictions: f64,
}

/// The space that a policy needs for a hit ratio.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Space {
    /// The hit ratio.
    pub hit_ratio: f64,
    /// The policy.
    pub policy: &'static str,
    /// Bytes of the cache. `None`: with some seed no cache reaches the ratio.
    pub bytes: Option<f64>,
    /// The space divided by the space that LRU needs.
    pub to_lru: Option<f64>,
}

/// Inactive data in a cache of one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InactiveAt {
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// The inactive data.
    #[serde(flatten)]
    pub inactive: Inactive,
}

/// Studies a workload. `pipelines` has its trace for each seed, and at least one.
///
/// # Errors
/// As [`run`].
pub fn study(pipelines: &mut [Pipeline], plan: &Plan) -> Result<Study, TraceError> {
    let count = index_f64(pipelines.len().max(1));
    let mean =
        |values: &mut dyn Iterator<Item = u64>| whole(values.map(as_f64).sum::<f64>() / count);
    let distances = pipelines.iter().filter_map(|one| one.distances.mean());
    let distances: Vec<f64> = distances.collect();
    let mut study = Study {
        workload: pipelines
            .first()
            .map_or(String::new(), |one| one.name.clone()),
        tenants: pipelines.first().and_then(|one| one.tenants),
        inputs_bytes: mean(&mut pipelines.iter().map(|one| one.inputs)),
        blocks: mean(&mut pipelines.iter().map(|one| one.trace.blocks() as u64)),
        jobs: mean(&mut pipelines.iter().map(|one| one.jobs)),
        tasks: mean(&mut pipelines.iter().map(|one| one.tasks)),
        reference_distance: (!distances.is_empty()).then(|| average(&distances)),
        rows: Vec::new(),
        spaces: Vec::new(),
        inactive: Vec::new(),
        ranks: Vec::new(),
    };
    for &cache in &plan.caches {
        study.rows.append(&mut rows(pipelines, plan, cache)?);
        if let Some(first) = pipelines.first_mut() {
            let cache_bytes = cache.bytes(first.inputs);
            let inactive = inactive(first, cache_bytes)?;
            study.inactive.push(InactiveAt {
                cache_bytes,
                inactive,
            });
        }
    }
    for &hit_ratio in &plan.hit_ratios {
        study
            .spaces
            .append(&mut spaces(pipelines, plan, hit_ratio)?);
    }
    if let Some(first) = pipelines.first() {
        study.ranks = ranks(first)?;
    }
    Ok(study)
}

fn rows(pipelines: &mut [Pipeline], plan: &Plan, cache: CacheSize) -> Result<Vec<Row>, TraceError> {
    let mut of_policy = |policy| -> Result<Vec<Run>, TraceError> {
        let one = |pipeline: &mut Pipeline| {
            let bytes = cache.bytes(pipeline.inputs);
            run(pipeline, policy, bytes)
        };
        pipelines.iter_mut().map(one).collect()
    };
    let lru = of_policy(EvictionPolicy::Lru)?;
    let mut found = Vec::new();
    for &policy in &plan.policies {
        let runs = match policy {
            EvictionPolicy::Lru => lru.clone(),
            _ => of_policy(policy)?,
        };
        found.push((policy, runs));
    }
    let inputs: Vec<f64> = pipelines.iter().map(|one| as_f64(one.inputs)).collect();
    let cache_bytes = cache.bytes(whole(average(&inputs)));
    let row = |(policy, runs): (EvictionPolicy, Vec<Run>)| {
        let each =
            |value: &dyn Fn(&Run) -> f64| average(&runs.iter().map(value).collect::<Vec<_>>());
        let differences = runs.iter().zip(&lru);
        let differences = differences.map(|(run, lru)| run.hit_ratio() - lru.hit_ratio());
        let hit_ratio = each(&Run::hit_ratio);
        let of_lru = average(&lru.iter().map(Run::hit_ratio).collect::<Vec<_>>());
        Row {
            cache_bytes,
            cache_share: as_f64(cache_bytes) / average(&inputs).max(1.0),
            policy: policy.name(),
            hit_ratio,
            over_lru: hit_ratio - of_lru,
            over_lru_min: differences.fold(f64::INFINITY, f64::min),
            to_lru: (of_lru > 0.0).then(|| hit_ratio / of_lru),
            storage_bytes: each(&|run| as_f64(run.storage_bytes)),
            evictions: each(&|run| as_f64(run.evictions)),
        }
    };
    Ok(found.into_iter().map(row).collect())
}

fn spaces(
    pipelines: &mut [Pipeline],
    plan: &Plan,
    hit_ratio: f64,
) -> Result<Vec<Space>, TraceError> {
    let mut of_policy = |policy| -> Result<Option<Vec<f64>>, TraceError> {
        let one = |pipeline| Ok(space_for(pipeline, policy, hit_ratio)?.map(as_f64));
        pipelines.iter_mut().map(one).collect()
    };
    let lru = of_policy(EvictionPolicy::Lru)?;
    let mut spaces = Vec::new();
    for &policy in &plan.policies {
        let found = match policy {
            EvictionPolicy::Lru => lru.clone(),
            _ => of_policy(policy)?,
        };
        let ratios = found.as_ref().zip(lru.as_ref()).map(|(found, lru)| {
            let ratios = found.iter().zip(lru).map(|(found, lru)| found / lru);
            ratios.collect::<Vec<_>>()
        });
        spaces.push(Space {
            hit_ratio,
            policy: policy.name(),
            bytes: found.as_deref().map(average),
            to_lru: ratios.as_deref().map(average),
        });
    }
    Ok(spaces)
}

/// Returns the mean; 0 of no value.
pub(super) fn average(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / index_f64(values.len().max(1))
}
