//! The metrics of a node, and how they outlive its daemon.

use crate::takeover::Estate;
use copperfs_metrics::{Counts, Kind, Registry, Snapshot, Unit};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A killed daemon loses the counts since the last ones that it has kept.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps counts for a successor.
type Keep = Box<dyn Fn(&Counts) + Send + Sync>;

/// All metrics of a node.
pub(super) struct Metrics {
    registry: Registry,
    keep: Option<Mutex<Keep>>,
}

impl Metrics {
    /// Begins with those of this process. Counts go on where those of earlier daemons have ended. Must be called within a
    /// runtime.
    pub(super) fn new(estate: Option<&mut Estate>) -> Arc<Self> {
        let registry = of_process(Instant::now());
        let keep = estate.map(|estate| {
            registry.continue_from(estate.take_counts().unwrap_or_default());
            Mutex::new(Box::new(estate.keep_counts()) as Keep)
        });
        let metrics = Arc::new(Self { registry, keep });
        if metrics.keep.is_some() {
            let weak = Arc::downgrade(&metrics);
            drop(tokio::spawn(async move {
                loop {
                    tokio::time::sleep(KEEP_INTERVAL).await;
                    let Some(metrics) = weak.upgrade() else {
                        return;
                    };
                    drop(metrics.snapshot());
                }
            }));
        }
        metrics
    }

    /// The registry, to declare more in.
    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Reads all metrics. A successor begins with no smaller counts: monitoring would take a count that has become
    /// smaller for one that began at zero.
    pub(super) fn snapshot(&self) -> Snapshot {
        // Read under the lock, so that older counts do not replace newer ones.
        let keep = self.keep.as_ref().map(Mutex::lock);
        let snapshot = self.registry.snapshot();
        if let Some(keep) = keep {
            keep(&self.registry.counts(&snapshot));
        }
        snapshot
    }
}

/// A registry with the metrics of this process, which started at `started`.
fn of_process(started: Instant) -> Registry {
    let registry = Registry::default();
    let help = "Seconds since the daemon started.";
    let uptime = registry.scope("uptime_seconds");
    uptime.computed("", Kind::Gauge, Unit::Seconds, help, move || {
        started.elapsed().as_secs()
    });
    let help = "Memory of the daemon that is resident.";
    let resident = registry.scope("resident_bytes");
    resident.computed("", Kind::Gauge, Unit::Bytes, help, || {
        resident_bytes().unwrap_or(0)
    });
    registry
}

/// Resident memory of this process in bytes, as the kernel counts it.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
