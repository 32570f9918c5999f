//! Runs of a pipeline under one policy, by the product's own engine.

use super::workload::Pipeline;
use crate::num::as_f64;
use copperfs_policy::references::EvictionPolicy;
use copperfs_policy::references::replay::{Replay, TraceError};
use serde::Serialize;
use std::collections::HashSet;

/// A search for the space of a hit ratio ends when the bounds differ by this part of the upper one.
const SPACE_PRECISION: u64 = 100;

/// The result of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Run {
    /// Reads of resident blocks.
    pub hits: u64,
    /// Other reads.
    pub misses: u64,
    /// Bytes of the blocks that missed: they come from storage, or are computed again.
    pub storage_bytes: u64,
    /// Evicted blocks.
    pub evictions: u64,
}

impl Run {
    /// Returns the part of the reads that hit. 0 if nothing is read.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        let reads = self.hits + self.misses;
        as_f64(self.hits) / as_f64(reads.max(1))
    }
}

/// Runs the pipeline in a cache of `cache` bytes.
///
/// # Errors
/// The cache is too small for the floor or the initial blocks of a recorded trace, or there are 2^32
/// references.
pub fn run(pipeline: &mut Pipeline, policy: EvictionPolicy, cache: u64) -> Result<Run, TraceError> {
    let limits = pipeline.limits(policy, cache);
    pipeline.trace.set_limits(limits)?;
    let trace = &pipeline.trace;
    let mut replay = Replay::new(trace, policy)?;
    let mut run = Run::default();
    for access in trace.accesses() {
        let before = replay.misses();
        replay.advance()?;
        if let Some(access) = access
            && replay.misses() > before
        {
            run.storage_bytes += access.bytes;
        }
    }
    Ok(Run {
        hits: replay.hits(),
        misses: replay.misses(),
        evictions: replay.evictions() as u64,
        ..run
    })
}

/// Returns the least bytes of cache with which the pipeline reaches a hit ratio, to one per cent. `None`: it
/// does not reach the ratio with room for all blocks, because first reads of inputs always miss.
///
/// It bisects, so it assumes that a larger cache is not worse. Where a policy breaks this, the result is one
/// of the sizes at which the ratio is crossed.
///
/// # Errors
/// As [`run`].
pub fn space_for(
    pipeline: &mut Pipeline,
    policy: EvictionPolicy,
    hit_ratio: f64,
) -> Result<Option<u64>, TraceError> {
    let (mut below, mut enough) = (0, footprint(pipeline));
    let mut reaches = |cache| -> Result<bool, TraceError> {
        Ok(run(pipeline, policy, cache)?.hit_ratio() >= hit_ratio)
    };
    if !reaches(enough)? {
        return Ok(None);
    }
    while enough - below > (enough / SPACE_PRECISION).max(1) {
        let middle = below + (enough - below) / 2;
        match reaches(middle)? {
            true => enough = middle,
            false => below = middle,
        }
    }
    Ok(Some(enough))
}

/// Returns the bytes of all blocks that are read or put: a cache of this size evicts nothing.
fn footprint(pipeline: &Pipeline) -> u64 {
    let mut seen = HashSet::new();
    let accesses = pipeline.trace.accesses().flatten();
    let first = accesses.filter(|access| seen.insert(access.block));
    first.map(|access| access.bytes).sum()
}
