//! Counters of requests to storage.

use copperfs_metrics::{Counter, Histogram, Registry, Unit};
use copperfs_overlay::{Failure, FailureKind};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Counters, each monotonic. Relaxed: they are read for people, not for decisions.
#[derive(Debug, Default)]
pub struct OriginCounters {
    opens: Counter,
    read_bytes: Counter,
    listings: Counter,
    stats: Counter,
    errors: Counter,
    /// Times to the beginning of an answer, by [`OPERATIONS`].
    latencies: [Histogram; OPERATIONS.len()],
    /// Limits log lines about faults. The lock is held briefly.
    complaints: Mutex<Complaints>,
}

/// Questions to storage whose latency is measured.
const OPERATIONS: [&str; 4] = ["list", "stat", "read", "read_range"];

/// A question to storage whose latency is measured: an index of [`OPERATIONS`].
#[derive(Debug, Clone, Copy)]
pub(super) enum Operation {
    List,
    Stat,
    Read,
    ReadRange,
}

/// The minimum interval between two log lines about faults; the faults in between are counted.
const BETWEEN_COMPLAINTS: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Complaints {
    last: Option<Instant>,
    /// Faults since the last log line.
    untold: u64,
}

/// The counters at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct OriginSnapshot {
    /// Reads begun: one per `ReadRequest`, however many blocks it asks for.
    pub opens: u64,
    /// Bytes of content that came from storage.
    pub read_bytes: u64,
    /// Directories listed; the further pages of a large one are not counted again.
    pub listings: u64,
    /// Names whose attributes were asked for one by one (not those that came along with a listing).
    pub stats: u64,
    /// Answers that are faults (refused, unavailable, corrupt, I/O); "not found" and "stale" are not.
    pub errors: u64,
    /// Attempts that object stores refused for want of room (503, 429, time-outs); most were repeated
    /// and answered.
    pub throttled: u64,
    /// Requests that object stores may be sent at a time, as things stand; all stores together.
    pub concurrency: u64,
    /// Calls into POSIX storage that hang now, in all origins together.
    pub hanging: u64,
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

    /// The counters now; without what the stores themselves count.
    #[must_use]
    pub fn snapshot(&self) -> OriginSnapshot {
        OriginSnapshot {
            opens: self.opens.get(),
            read_bytes: self.read_bytes.get(),
            listings: self.listings.get(),
            stats: self.stats.get(),
            errors: self.errors.get(),
            throttled: 0,
            concurrency: 0,
            hanging: 0,
        }
    }

    /// Awaits `answer`, and measures the time if it is no failure.
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

    pub(super) fn opened(&self) {
        self.opens.increment();
    }

    pub(super) fn read(&self, bytes: usize) {
        self.read_bytes.add_len(bytes);
    }

    pub(super) fn listed(&self) {
        self.listings.increment();
    }

    pub(super) fn stated(&self, names: usize) {
        self.stats.add_len(names);
    }

    /// Logs the fault on this root, because the caller that waits may be on another node.
    fn complain(&self, failure: &Failure) {
        if failure.kind == FailureKind::PermissionDenied {
            // These concern single users, and a program that searches directories causes many.
            return;
        }
        let now = Instant::now();
        let mut complaints = self.complaints.lock();
        let recent = |last: Instant| now.duration_since(last) < BETWEEN_COMPLAINTS;
        if complaints.last.is_some_and(recent) {
            complaints.untold += 1;
            return;
        }
        complaints.last = Some(now);
        let more = std::mem::take(&mut complaints.untold);
        drop(complaints);
        tracing::warn!(kind = ?failure.kind, %failure, more, "storage fails");
    }

    /// Counts `failure` if it is a fault and not an answer.
    pub(super) fn failed(&self, failure: &Failure) {
        let fault = match failure.kind {
            FailureKind::PermissionDenied
            | FailureKind::Unavailable
            | FailureKind::Corrupt
            | FailureKind::Io => true,
            FailureKind::NotFound
            | FailureKind::NotADirectory
            | FailureKind::IsADirectory
            | FailureKind::Stale
            | FailureKind::SymlinkLoop
            | FailureKind::NameTooLong
            | FailureKind::Unsupported => false,
        };
        if fault {
            self.errors.increment();
            self.complain(failure);
        }
    }
}
