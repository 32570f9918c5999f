//! What the origins have done, counted: `origin.{opens,bytes_read,listings,stats,errors,throttled,concurrency}`.

use copperfs_overlay::{Failure, FailureKind};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counters, each monotonic. Relaxed: they are read for people, not for decisions.
#[derive(Debug, Default)]
pub struct OriginCounters {
    opens: AtomicU64,
    bytes_read: AtomicU64,
    listings: AtomicU64,
    stats: AtomicU64,
    errors: AtomicU64,
    /// Limits log lines about faults. The lock is held briefly.
    complaints: Mutex<Complaints>,
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
    pub bytes_read: u64,
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
    /// The counters now; without what the stores themselves count.
    #[must_use]
    pub fn snapshot(&self) -> OriginSnapshot {
        OriginSnapshot {
            opens: self.opens.load(Ordering::Relaxed),
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            listings: self.listings.load(Ordering::Relaxed),
            stats: self.stats.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            throttled: 0,
            concurrency: 0,
            hanging: 0,
        }
    }

    pub(super) fn opened(&self) {
        self.opens.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn listed(&self) {
        self.listings.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn stated(&self, names: usize) {
        let names = u64::try_from(names).unwrap_or(u64::MAX);
        self.stats.fetch_add(names, Ordering::Relaxed);
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
            self.errors.fetch_add(1, Ordering::Relaxed);
            self.complain(failure);
        }
    }
}
