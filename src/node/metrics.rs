//! The metrics of a node, and how they outlive its daemon.

use crate::takeover::Estate;
use copperfs_metrics::{Counts, Kind, Registry, Snapshot, Unit};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A killed daemon loses the counts since the last ones that it has kept.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The interval grows to this while nothing is counted, because an idle daemon should do nothing.
const KEEP_INTERVAL_MAX: Duration = Duration::from_secs(8);

/// Keeps counts for a successor.
struct Keeper {
    keep: Box<dyn Fn(&Counts) + Send + Sync>,
    /// The last ones that were kept.
    last: Counts,
}

/// All metrics of a node.
pub(super) struct Metrics {
    registry: Registry,
    keeper: Option<Mutex<Keeper>>,
}

impl Metrics {
    /// Begins with those of this process. Counts go on where those of earlier daemons have ended. Must be called within a
    /// runtime.
    pub(super) fn new(estate: Option<&mut Estate>) -> Arc<Self> {
        let registry = of_process(Instant::now());
        let keeper = estate.map(|estate| {
            registry.continue_from(estate.take_counts().unwrap_or_default());
            Mutex::new(Keeper {
                keep: Box::new(estate.keep_counts()),
                last: Counts::default(),
            })
        });
        let metrics = Arc::new(Self { registry, keeper });
        if metrics.keeper.is_some() {
            let weak = Arc::downgrade(&metrics);
            drop(tokio::spawn(async move {
                let mut interval = KEEP_INTERVAL;
                loop {
                    tokio::time::sleep(interval).await;
                    let Some(metrics) = weak.upgrade() else {
                        return;
                    };
                    let (_snapshot, is_new) = metrics.read();
                    interval = match is_new {
                        true => KEEP_INTERVAL,
                        false => (2 * interval).min(KEEP_INTERVAL_MAX),
                    };
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
        self.read().0
    }

    /// Reads all metrics, and keeps the counts. Returns whether they are other ones than the last.
    fn read(&self) -> (Snapshot, bool) {
        // Read under the lock, so that older counts do not replace newer ones.
        let keeper = self.keeper.as_ref().map(Mutex::lock);
        let snapshot = self.registry.snapshot();
        let Some(mut keeper) = keeper else {
            return (snapshot, false);
        };
        let counts = self.registry.counts(&snapshot);
        let is_new = counts != keeper.last;
        if is_new {
            (keeper.keep)(&counts);
            keeper.last = counts;
        }
        (snapshot, is_new)
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
