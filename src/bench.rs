//! What the tree costs on this machine, measured on the product's own parts.
//!
//! [`tree`]: many nodes in one process, real QUIC with mutual TLS over loopback, round trips from a
//! leaf to the root and back. [`hop`]: one hop, in bulk, beside TCP with TLS. [`idle`]: what a
//! connection costs that nobody uses. No FUSE, no cache, no storage: nodes pass on, the root answers
//! from memory. Prints nothing; the command line does.

pub mod hop;
pub mod idle;
mod relay;
pub mod tree;

use copperfs_overlay::bench::BenchError as WireError;
use copperfs_overlay::{Failure, OverlayError, SecretError};
use serde::Serialize;
use std::io;
use std::time::Duration;

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A node could not take its place.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// No secret could be made.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The transport alone failed.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A request failed.
    #[error("a request under test failed: {0}")]
    Failed(#[from] Failure),
    /// Something of the system failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The other process, or a task, did not do its part.
    #[error("{0}")]
    Broken(String),
}

/// How long the tree may take to connect.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);

/// What a set of samples is like, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// How many samples.
    pub samples: usize,
    /// The median.
    pub p50_s: f64,
    /// Nine of ten are not above.
    pub p90_s: f64,
    /// 99 of 100 are not above.
    pub p99_s: f64,
}

impl Quantiles {
    /// Of `samples`; all zero without any.
    #[must_use]
    pub fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        let at = |percent: usize| {
            let rank = (samples.len() * percent).div_ceil(100).max(1);
            samples.get(rank - 1).map_or(0.0, Duration::as_secs_f64)
        };
        Self {
            samples: samples.len(),
            p50_s: at(50),
            p90_s: at(90),
            p99_s: at(99),
        }
    }
}

/// A runtime like a daemon's: one worker thread unless asked otherwise.
fn runtime(workers: usize) -> Result<tokio::runtime::Runtime, BenchError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .map_err(|source| BenchError::Io {
            what: "cannot start a runtime",
            source,
        })
}

/// Runs `work` on a worker of `runtime`, where a daemon's requests run too: the thread that waits here
/// costs no wake-ups.
fn on_worker<T: Send + 'static>(
    runtime: &tokio::runtime::Runtime,
    work: impl Future<Output = Result<T, BenchError>> + Send + 'static,
) -> Result<T, BenchError> {
    let task = runtime.spawn(work);
    runtime
        .block_on(task)
        .map_err(|error| BenchError::Broken(format!("a task died: {error}")))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let samples = (1..=100).rev().map(Duration::from_secs).collect();
        let found = Quantiles::of(samples);
        assert_eq!((found.p50_s, found.p90_s, found.p99_s), (50.0, 90.0, 99.0));
        assert_eq!(Quantiles::of(Vec::new()).p50_s, 0.0);
        assert_eq!(Quantiles::of(vec![Duration::from_secs(3)]).p99_s, 3.0);
    }
}
