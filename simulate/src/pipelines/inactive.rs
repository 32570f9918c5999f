//! Inactive data under LRU over time (LRC, section II-C, Figures 2 and 3).

use super::workload::Pipeline;
use crate::num::index_f64;
use copperfs_policy::references::EvictionPolicy;
use copperfs_policy::references::replay::{Replay, TraceError};
use serde::Serialize;

/// The maximum number of samples. A screen shows no more.
const SAMPLES_MAX: usize = 500;

/// The cache after a part of the reads and puts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sample {
    /// The part of all reads and puts that were made, 0 to 1.
    pub progress: f64,
    /// Bytes in the cache.
    pub cached_bytes: u64,
    /// Bytes in the cache that no task will read again.
    pub inactive_bytes: u64,
}

impl Sample {
    /// Returns the part of the cached bytes that is inactive.
    #[must_use]
    pub fn share(&self) -> f64 {
        let cached = crate::num::as_f64(self.cached_bytes.max(1));
        crate::num::as_f64(self.inactive_bytes) / cached
    }
}

/// Inactive data under LRU.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Inactive {
    /// The median over the run of the part of the cached bytes that is inactive.
    pub median: f64,
    /// The 95th percentile of it.
    pub p95: f64,
    /// Samples in their order, at equal intervals of reads and puts.
    pub samples: Vec<Sample>,
}

/// Samples the inactive data of an LRU cache of `cache` bytes. A block is inactive if no task of any job,
/// present or later, still refers to it.
///
/// # Errors
/// As [`run`](super::run).
pub fn inactive(pipeline: &mut Pipeline, cache: u64) -> Result<Inactive, TraceError> {
    let limits = pipeline.limits(EvictionPolicy::Lru, cache);
    pipeline.trace.set_limits(limits)?;
    let trace = &pipeline.trace;
    let total = trace.accesses().flatten().count();
    let interval = total.div_ceil(SAMPLES_MAX).max(1);
    let mut replay = Replay::with_all_jobs(trace, EvictionPolicy::Lru)?;
    let (mut samples, mut accesses) = (Vec::new(), 0_usize);
    for access in trace.accesses() {
        replay.advance()?;
        if access.is_none() {
            continue;
        }
        accesses += 1;
        let bytes = replay.resident_bytes();
        if (accesses.is_multiple_of(interval) || accesses == total) && bytes.total() > 0 {
            samples.push(Sample {
                progress: index_f64(accesses) / index_f64(total),
                cached_bytes: bytes.total(),
                inactive_bytes: bytes.total() - bytes.referenced,
            });
        }
    }
    let mut shares: Vec<f64> = samples.iter().map(Sample::share).collect();
    shares.sort_unstable_by(f64::total_cmp);
    let quantile = |percent: usize| {
        let at = shares.len().saturating_sub(1) * percent / 100;
        shares.get(at).copied().unwrap_or(0.0)
    };
    Ok(Inactive {
        median: quantile(50),
        p95: quantile(95),
        samples,
    })
}
