//! How the disk is: free space, and trouble, which pauses the store and never a reader.

use super::directory::Directory;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Reads that failed one after another before the disk is left alone for a while.
const READ_FAILURES_MAX: u32 = 3;
/// How long a disk in trouble is left alone before it is tried again.
const PAUSE: Duration = Duration::from_secs(5);
/// How long a disk that does not answer is left alone. Each try costs one reader its patience, so the tries
/// take at most a tenth of the time.
const HANG_PAUSE: Duration = Duration::from_secs(9);

/// See the module.
#[derive(Debug)]
pub(super) struct Health {
    reserve_percent: u8,
    start: Instant,
    read_failures: AtomicU32,
    /// Milliseconds after `start` until which nothing is read, or written.
    no_reads_until: AtomicU64,
    no_writes_until: AtomicU64,
    /// Milliseconds after `start` at which a read last succeeded.
    last_read: AtomicU64,
    /// Trouble was told of.
    told: AtomicBool,
}

impl Health {
    pub(super) fn new(reserve_percent: u8) -> Self {
        Self {
            reserve_percent,
            start: Instant::now(),
            read_failures: AtomicU32::new(0),
            no_reads_until: AtomicU64::new(0),
            no_writes_until: AtomicU64::new(0),
            last_read: AtomicU64::new(0),
            told: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn pause(&self, until: &AtomicU64, pause: Duration) {
        until.store(self.after(pause), Ordering::Relaxed);
    }

    fn after(&self, pause: Duration) -> u64 {
        let pause = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        self.now().saturating_add(pause)
    }

    /// Whether a reader may read from the disk. After a pause one reader tries it, and the others do
    /// without the disk until that read succeeds.
    pub(super) fn begin_read(&self) -> bool {
        let until = self.no_reads_until.load(Ordering::Relaxed);
        if until == 0 {
            return true;
        }
        let (relaxed, next) = (Ordering::Relaxed, self.after(HANG_PAUSE));
        self.now() >= until
            && (self.no_reads_until)
                .compare_exchange(until, next, relaxed, relaxed)
                .is_ok()
    }

    /// Called after a read had no answer for `patience`. If no other read succeeded in that time, the disk
    /// hangs.
    pub(super) fn read_hangs(&self, patience: Duration) {
        let patience = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let quiet = self
            .now()
            .saturating_sub(self.last_read.load(Ordering::Relaxed));
        if quiet >= patience {
            self.pause(&self.no_reads_until, HANG_PAUSE);
            self.tell("read", Errno::TIMEDOUT);
        }
    }

    pub(super) fn may_read(&self) -> bool {
        let until = self.no_reads_until.load(Ordering::Relaxed);
        until == 0 || self.now() >= until
    }

    pub(super) fn may_write(&self) -> bool {
        let until = self.no_writes_until.load(Ordering::Relaxed);
        until == 0 || self.now() >= until
    }

    pub(super) fn read_well(&self) {
        self.last_read.store(self.now(), Ordering::Relaxed);
        if self.no_reads_until.load(Ordering::Relaxed) > 0 {
            self.no_reads_until.store(0, Ordering::Relaxed);
            tracing::info!("the store's disk is read again");
        }
        if self.read_failures.load(Ordering::Relaxed) > 0 {
            self.read_failures.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn read_failed(&self, errno: Errno) {
        self.last_read.store(self.now(), Ordering::Relaxed);
        if self.read_failures.fetch_add(1, Ordering::Relaxed) + 1 >= READ_FAILURES_MAX {
            self.pause(&self.no_reads_until, PAUSE);
        }
        self.tell("read", errno);
    }

    pub(super) fn wrote_well(&self) {
        if self.told.swap(false, Ordering::Relaxed) {
            tracing::info!("the store's disk takes writes again");
        }
    }

    /// The disk may be tried again at once.
    pub(super) fn restored(&self) {
        for until in [&self.no_reads_until, &self.no_writes_until] {
            until.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn write_failed(&self, errno: Errno) {
        self.pause(&self.no_writes_until, PAUSE);
        self.tell("write to", errno);
    }

    fn tell(&self, action: &str, errno: Errno) {
        if self.told.swap(true, Ordering::Relaxed) {
            return;
        }
        let reserve = self.reserve_percent;
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

    /// How many bytes more must become free before `incoming` may be written without touching the
    /// reserve.
    ///
    /// # Errors
    /// The disk's.
    pub(super) fn shortage(&self, directory: &Directory, incoming: u64) -> Result<u64, Errno> {
        let usage = directory.usage()?;
        let total = usage.f_blocks.saturating_mul(usage.f_frsize);
        let free = usage.f_bavail.saturating_mul(usage.f_frsize);
        let reserve = total / 100 * u64::from(self.reserve_percent);
        Ok(reserve.saturating_add(incoming).saturating_sub(free))
    }
}
