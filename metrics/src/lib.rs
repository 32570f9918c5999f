//! Counters, gauges and latency histograms, and the registry in which every part declares its own.
//!
//! A part keeps its own [`Counter`]s and declares them once, with a name, a unit and a help text, in a [`Scope`] of the
//! [`Registry`]. Numbers that a part computes on demand are declared as functions. [`Registry::snapshot`] reads all of
//! them. A [`Snapshot`] has three forms: JSON, text lines, and the text format of Prometheus. This crate knows no metric
//! by name.
//!
//! Numbers are read one after another, while they change. They are for operators and monitoring, not for decisions.

mod counts;
mod histogram;
mod registry;
mod snapshot;

pub use counts::Counts;
pub use histogram::{Histogram, HistogramSnapshot};
pub use registry::{Registry, Scope};
pub use snapshot::{Kind, Sample, Snapshot, Unit, Value, insert};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds 1.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `count`. Wraps around at 2^64.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Adds the length of a buffer.
    pub fn add_len(&self, len: usize) {
        self.add(u64::try_from(len).unwrap_or(u64::MAX));
    }

    /// The count so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that grows and shrinks. Clones are one number.
#[derive(Debug, Clone, Default)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// Sets the number.
    pub fn set(&self, number: u64) {
        self.0.store(number, Ordering::Release);
    }

    /// The number now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
