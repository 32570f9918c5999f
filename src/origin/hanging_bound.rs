//! The bound on hanging calls to storage in one process.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory of a thread with a hanging call, in bytes, as charged to `--memory`.
const THREAD_BYTES: u64 = 32 << 10;
/// Hanging calls of one process, in all origins together. At this number, requests to the filesystems in
/// which calls hang fail at once. A filesystem that begins to hang after that adds at most its running calls,
/// which are `posix_concurrency` at most.
const HANGING_MAX: usize = 2048;
/// Hanging calls may take one in this many parts of a node's memory.
const MEMORY_SHARE: u64 = 8;

/// The number of hanging calls of all origins, and its bound.
pub struct HangingBound {
    max: usize,
    hanging: AtomicUsize,
}

impl HangingBound {
    /// A bound of `max` hanging calls; the default is `HANGING_MAX`.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            max,
            hanging: AtomicUsize::new(0),
        }
    }

    /// The bound for a node with `memory_bytes`, and the memory that this many hanging calls take, which
    /// must be reserved for them.
    #[must_use]
    pub fn of_memory(memory_bytes: u64) -> (usize, u64) {
        let fits = usize::try_from(memory_bytes / MEMORY_SHARE / THREAD_BYTES);
        let max = fits.unwrap_or(HANGING_MAX).clamp(1, HANGING_MAX);
        (max, max as u64 * THREAD_BYTES)
    }

    /// Counts another hanging call.
    pub(super) fn add(&self) {
        self.hanging.fetch_add(1, Ordering::AcqRel);
    }

    /// A hanging call has returned.
    pub(super) fn remove(&self) {
        self.hanging.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether fewer calls hang than the bound.
    pub(super) fn has_room(&self) -> bool {
        self.hanging.load(Ordering::Acquire) < self.max
    }
}

impl Default for HangingBound {
    fn default() -> Self {
        Self::new(HANGING_MAX)
    }
}
