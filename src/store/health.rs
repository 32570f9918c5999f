//! The health of the disk: free space, and failures, which pause the use of the disk and never a reader.

use super::directory::Directory;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Consecutive failed reads after which the disk is not used for a while.
const READ_FAILURES_MAX: u32 = 3;
/// How long a failing disk is not used.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);
/// How long a hanging disk is not used. Each attempt delays one reader by the timeout of the disk, so the
/// attempts take at most a tenth of the time.
const HANG_PAUSE: Duration = Duration::from_secs(9);

/// See the module. Relaxed: an outdated value costs at most one attempt.
pub(super) struct Health {
    reserve_percent: AtomicU8,
    start: Instant,
    read_failures: AtomicU32,
    /// Milliseconds after `start` until which the disk is not read, or not written; 0 if it is healthy.
    no_reads_until: AtomicU64,
    no_writes_until: AtomicU64,
    /// Milliseconds after `start` at which a read last succeeded.
    last_read: AtomicU64,
    /// The current failure is in the log.
    is_logged: AtomicBool,
}

impl Health {
    pub(super) fn new(reserve_percent: u8) -> Self {
        Self {
            reserve_percent: AtomicU8::new(reserve_percent),
            start: Instant::now(),
            read_failures: AtomicU32::new(0),
            no_reads_until: AtomicU64::new(0),
            no_writes_until: AtomicU64::new(0),
            last_read: AtomicU64::new(0),
            is_logged: AtomicBool::new(false),
        }
    }

    /// Changes the share of the filesystem that is left free.
    pub(super) fn set_reserve(&self, percent: u8) {
        self.reserve_percent.store(percent, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        milliseconds(self.start.elapsed())
    }

    /// The time after `pause` from now.
    fn after(&self, pause: Duration) -> u64 {
        self.now().saturating_add(milliseconds(pause))
    }

    /// Whether a reader may read from the disk. After a pause one reader tries it, and the others do not use
    /// the disk until that read succeeds.
    pub(super) fn begin_read(&self) -> bool {
        let until = self.no_reads_until.load(Ordering::Relaxed);
        if until == 0 {
            return true;
        }
        let (relaxed, next) = (Ordering::Relaxed, self.after(HANG_PAUSE));
        // Only one reader exchanges the value.
        self.now() >= until
            && (self.no_reads_until)
                .compare_exchange(until, next, relaxed, relaxed)
                .is_ok()
    }

    /// Called after a read had no answer within `timeout`. If no other read succeeded in that time, the disk
    /// hangs.
    pub(super) fn read_timed_out(&self, timeout: Duration) {
        let last_read = self.last_read.load(Ordering::Relaxed);
        if self.now().saturating_sub(last_read) >= milliseconds(timeout) {
            let until = self.after(HANG_PAUSE);
            self.no_reads_until.store(until, Ordering::Relaxed);
            self.log("read", Errno::TIMEDOUT);
        }
    }

    pub(super) fn may_read(&self) -> bool {
        self.now() >= self.no_reads_until.load(Ordering::Relaxed)
    }

    pub(super) fn may_write(&self) -> bool {
        self.now() >= self.no_writes_until.load(Ordering::Relaxed)
    }

    /// Called when a read has succeeded, or failed with an error.
    pub(super) fn read_ended(&self, failure: Option<Errno>) {
        // Any answer proves that the disk does not hang.
        self.last_read.store(self.now(), Ordering::Relaxed);
        if let Some(errno) = failure {
            if self.read_failures.fetch_add(1, Ordering::Relaxed) + 1 >= READ_FAILURES_MAX {
                let until = self.after(FAILURE_PAUSE);
                self.no_reads_until.store(until, Ordering::Relaxed);
            }
            self.log("read", errno);
            return;
        }
        if self.no_reads_until.load(Ordering::Relaxed) > 0 {
            self.no_reads_until.store(0, Ordering::Relaxed);
            tracing::info!("the store's disk is read again");
        }
        self.read_failures.store(0, Ordering::Relaxed);
    }

    pub(super) fn write_succeeded(&self) {
        if self.is_logged.swap(false, Ordering::Relaxed) {
            tracing::info!("the store's disk takes writes again");
        }
    }

    /// Ends all pauses, after the directory was restored.
    pub(super) fn restored(&self) {
        self.no_reads_until.store(0, Ordering::Relaxed);
        self.no_writes_until.store(0, Ordering::Relaxed);
    }

    pub(super) fn write_failed(&self, errno: Errno) {
        let until = self.after(FAILURE_PAUSE);
        self.no_writes_until.store(until, Ordering::Relaxed);
        self.log("write to", errno);
    }

    fn log(&self, action: &str, errno: Errno) {
        if self.is_logged.swap(true, Ordering::Relaxed) {
            return;
        }
        let reserve = self.reserve_percent.load(Ordering::Relaxed);
        if errno == Errno::NOSPC {
            tracing::warn!(
                "the store's disk has no room left beside its reserve of {reserve}% (disk_reserve); \
                 nothing more is stored until there is room"
            );
        } else {
            tracing::warn!(
                error = %std::io::Error::from(errno),
                "cannot {action} the store's disk; going on without it, and trying again from time to time"
            );
        }
    }

    /// The number of bytes that must become free before `incoming` bytes can be written beside the reserve.
    ///
    /// # Errors
    /// Those of the disk.
    pub(super) fn shortage(&self, directory: &Directory, incoming: u64) -> Result<u64, Errno> {
        let usage = directory.usage()?;
        let total = usage.f_blocks.saturating_mul(usage.f_frsize);
        let free = usage.f_bavail.saturating_mul(usage.f_frsize);
        let reserve = total / 100 * u64::from(self.reserve_percent.load(Ordering::Relaxed));
        Ok(reserve.saturating_add(incoming).saturating_sub(free))
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
