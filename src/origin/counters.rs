//! Counters of requests to storage.

use copperfs_metrics::{Counter, Histogram, Registry, Unit};
use copperfs_overlay::{Failure, FailureKind};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Counters and latencies of all origins of a node.
#[derive(Default)]
pub struct OriginCounters {
    /// Reads begun: one per request, however many blocks it covers.
    pub opens: Counter,
    /// Bytes of content read from storage.
    pub read_bytes: Counter,
    /// Listed directories. Only the first page of a large one counts.
    pub listings: Counter,
    /// Names whose attributes were requested one by one, without those that came with a listing.
    pub stats: Counter,
    /// Answers that are faults (refused, unavailable, corrupt, I/O); "not found" and "stale" are not.
    pub errors: Counter,
    /// Times to the beginning of an answer, by [`OPERATIONS`].
    latencies: [Histogram; OPERATIONS.len()],
    /// Limits the log lines about faults. Locked briefly.
    fault_log: Mutex<FaultLog>,
}

/// How the object stores of a node cope with its requests.
#[derive(Clone, Copy, Default, Debug)]
pub struct StorePressure {
    /// Attempts that the stores refused for want of room (503, 429, time-outs) so far. Most were repeated and
    /// answered.
    pub throttled: u64,
    /// The current limit of concurrent requests, of all stores together.
    pub concurrency: u64,
}

/// Requests to storage whose latency is measured.
const OPERATIONS: [&str; 4] = ["list", "stat", "read", "read_range"];

/// A request to storage whose latency is measured: an index into [`OPERATIONS`].
#[derive(Clone, Copy)]
pub(super) enum Operation {
    List,
    Stat,
    Read,
    ReadRange,
}

/// The minimum interval between two log lines about faults. The faults in between are counted.
const FAULT_LOG_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Default)]
struct FaultLog {
    last: Option<Instant>,
    /// Faults since the last log line.
    suppressed: u64,
}

impl OriginCounters {
    /// Declares the counters in `registry`.
    pub fn declare(&self, registry: &Registry) {
        let storage = registry.scope("latency_seconds").label("tier", "storage");
        for (operation, histogram) in OPERATIONS.iter().zip(&self.latencies) {
            let help = "Time from a question to a tier to the beginning of its answer.";
            storage
                .label("op", operation)
                .histogram("", help, histogram);
        }
        let origin = registry.scope("origin");
        let help = "Reads begun in storage: one per request, however many blocks it names.";
        origin.counter("opens", Unit::Count, help, &self.opens);
        let help = "Bytes of content read from storage.";
        origin.counter("read_bytes", Unit::Bytes, help, &self.read_bytes);
        let help = "Directories listed in storage.";
        origin.counter("listings", Unit::Count, help, &self.listings);
        let help = "Names whose attributes were requested from storage one by one.";
        origin.counter("stats", Unit::Count, help, &self.stats);
        let help = "Faults of storage: refused, unavailable, corrupt, or an I/O error.";
        origin.counter("errors", Unit::Count, help, &self.errors);
    }

    /// Awaits `answer`, and records its latency unless it is a failure.
    pub(super) async fn timed<T, E>(
        &self,
        operation: Operation,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let begun = Instant::now();
        let answer = answer.await?;
        self.latencies[operation as usize].observe(begun.elapsed());
        Ok(answer)
    }

    /// Counts `failure` if it is a fault and not an answer.
    pub(super) fn failed(&self, failure: &Failure) {
        match failure.kind {
            FailureKind::Unavailable | FailureKind::Corrupt | FailureKind::Io => {
                self.errors.increment();
                self.log_fault(failure);
            }
            // Not logged: these concern single users, and a program that searches directories causes many.
            FailureKind::PermissionDenied => self.errors.increment(),
            FailureKind::NotFound
            | FailureKind::NotADirectory
            | FailureKind::IsADirectory
            | FailureKind::Stale
            | FailureKind::SymlinkLoop
            | FailureKind::NameTooLong
            | FailureKind::Unsupported => {}
        }
    }

    /// Logs the fault on this root, because the caller that waits may be on another node.
    fn log_fault(&self, failure: &Failure) {
        let now = Instant::now();
        let mut log = self.fault_log.lock();
        let is_recent = |last: Instant| now.duration_since(last) < FAULT_LOG_INTERVAL;
        if log.last.is_some_and(is_recent) {
            log.suppressed += 1;
            return;
        }
        log.last = Some(now);
        let more = std::mem::take(&mut log.suppressed);
        drop(log);
        tracing::warn!(kind = ?failure.kind, %failure, more, "storage fails");
    }
}
