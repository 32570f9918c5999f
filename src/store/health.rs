//! How the disk is: free space, and trouble, which pauses the store and never a reader.

use super::directory::Directory;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Reads that failed one after another before the disk is left alone for a while.
const READ_FAILURES_MAX: u32 = 3;
/// How long a disk in trouble is left alone before it is tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(super) struct Health {
    reserve_percent: u8,
    start: Instant,
    read_failures: AtomicU32,
    /// Milliseconds after `start` until which nothing is read, or written.
    no_reads_until: AtomicU64,
    no_writes_until: AtomicU64,
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
            told: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn pause(&self, until: &AtomicU64) {
        let pause = u64::try_from(PAUSE.as_millis()).unwrap_or(u64::MAX);
        until.store(self.now().saturating_add(pause), Ordering::Relaxed);
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
        if self.read_failures.load(Ordering::Relaxed) > 0 {
            self.read_failures.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn read_failed(&self, errno: Errno) {
        if self.read_failures.fetch_add(1, Ordering::Relaxed) + 1 >= READ_FAILURES_MAX {
            self.pause(&self.no_reads_until);
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
        self.pause(&self.no_writes_until);
        self.tell("write to", errno);
    }

    fn tell(&self, action: &str, errno: Errno) {
        if !self.told.swap(true, Ordering::Relaxed) {
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
