//! How many calls to storage may hang in one process.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory of a thread with a hanging call, in bytes, as charged to `--memory`.
pub(super) const THREAD_BYTES: u64 = 32 << 10;
/// Hanging calls of one process, in all origins together. Beyond it requests to the filesystems in which
/// calls hang fail at once. A filesystem that begins to hang after that adds at most its running calls,
/// which are `posix_concurrency` at most.
const HANGING_MAX: usize = 2048;
/// Hanging calls may take one part in this many of a node's memory.
const MEMORY_SHARE: u64 = 8;

/// The number of hanging calls of all origins, and its bound.
#[derive(Debug)]
pub struct HangingBound {
    max: usize,
    now: AtomicUsize,
}

impl HangingBound {
    /// A bound of `max` hanging calls; the default is `HANGING_MAX`.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            max,
            now: AtomicUsize::new(0),
        }
    }
}

impl HangingBound {
    /// Counts another hanging call.
    pub(super) fn add(&self) {
        self.now.fetch_add(1, Ordering::AcqRel);
    }

    /// A hanging call has returned.
    pub(super) fn remove(&self) {
        self.now.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns whether fewer calls hang than the bound.
    pub(super) fn has_room(&self) -> bool {
        self.now.load(Ordering::Acquire) < self.max
    }
}

impl HangingBound {
    /// The bound for a node with `memory_bytes`, and the memory that this many hanging calls take, which
    /// must be reserved for them.
    #[must_use]
    pub fn of_memory(memory_bytes: u64) -> (usize, u64) {
        let fits = usize::try_from(memory_bytes / MEMORY_SHARE / THREAD_BYTES);
        let max = fits.unwrap_or(HANGING_MAX).clamp(1, HANGING_MAX);
        (max, u64::try_from(max).unwrap_or(u64::MAX) * THREAD_BYTES)
    }
}

impl Default for HangingBound {
    fn default() -> Self {
        Self::new(HANGING_MAX)
    }
}
