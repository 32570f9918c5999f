//! Measures the cost of the tree on this machine with the real transport, and of images.
//!
//! [`tree`] measures round trips from a leaf to the root, with many nodes in one process and real QUIC with
//! mutual TLS over loopback. [`hop`] measures bulk transfer over one hop, and compares it with TCP and TLS.
//! [`idle`] measures the memory of idle connections. FUSE, caches and storage are not involved: nodes relay
//! requests, and the root answers from memory. [`image`] measures the writer of images. The command line prints the
//! results, and the errors, which it does not tell apart.

pub mod hop;
pub mod idle;
pub mod image;
mod relay;
pub mod tree;

use anyhow::Context;
use serde::Serialize;
use std::time::Duration;
use tokio::runtime::Runtime;

/// How long the tree may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Quantiles of a set of samples, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// The number of samples.
    pub samples: usize,
    /// The median.
    pub p50_s: f64,
    /// The 90th percentile.
    pub p90_s: f64,
    /// The 99th percentile.
    pub p99_s: f64,
}

impl Quantiles {
    /// The quantiles of `samples`; zero without samples.
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
fn runtime(workers: usize) -> anyhow::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(workers).enable_all().build();
    runtime.context("cannot start a runtime")
}

/// Runs `work` on a worker of `runtime`, as a daemon's requests run. So the thread that waits here adds no
/// wake-ups to the measurement.
fn on_worker<T: Send + 'static>(
    runtime: &Runtime,
    work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
) -> anyhow::Result<T> {
    let task = runtime.spawn(work);
    runtime.block_on(task).context("a task died")?
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
