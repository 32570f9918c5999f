//! Whether the guesses about small files were right.
//!
//! Prefetched bytes that no reader has read so far may not exceed [`CREDIT_BYTES`] and a fifth of those that were
//! read. A program that picks files of large directories uses that credit once. After that, nothing more is
//! prefetched for it until the files that it reads had been prefetched.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that may be prefetched before any of them was read.
const CREDIT_BYTES: u64 = 8 << 20;
/// One in this many of the useful bytes may be wasted.
const WASTE_SHARE: u64 = 5;
/// The maximum of unread bytes prefetched for readers that take files in no order: eight requests of a bundle.
const SHUFFLED_BYTES_MAX: u64 = 128 << 20;
/// … and one part in this many of the data cache.
const SHUFFLED_CACHE_SHARE: u64 = 4;

/// Counters of this node's own bundles. The children count theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BundleStats {
    /// Requests sent.
    pub requests: u64,
    /// Files requested.
    pub files: u64,
    /// Bytes of prefetched files that were read later; an estimate by samples for files that were stored into
    /// the page cache.
    pub useful_bytes: u64,
    /// Bytes of prefetched files that were not read so far.
    pub wasted_bytes: u64,
}

/// See the module. Relaxed atomics: for people and for guesses.
#[derive(Debug, Default)]
pub struct Usefulness {
    requests: AtomicU64,
    files: AtomicU64,
    prefetched_bytes: AtomicU64,
    useful_bytes: AtomicU64,
    /// The parts of the two for readers that take files in no order.
    shuffled_prefetched_bytes: AtomicU64,
    shuffled_useful_bytes: AtomicU64,
}

impl Usefulness {
    /// The counters as they stand.
    #[must_use]
    pub fn stats(&self) -> BundleStats {
        let prefetched = self.prefetched_bytes.load(Ordering::Relaxed);
        let useful_bytes = self.useful_bytes.load(Ordering::Relaxed);
        BundleStats {
            requests: self.requests.load(Ordering::Relaxed),
            files: self.files.load(Ordering::Relaxed),
            useful_bytes,
            wasted_bytes: prefetched.saturating_sub(useful_bytes),
        }
    }

    /// Counts `requests` for `files`, with `bytes` that no reader has requested.
    pub fn add_prefetched(&self, requests: u64, files: u64, bytes: u64, is_shuffled: bool) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
        self.files.fetch_add(files, Ordering::Relaxed);
        self.prefetched_bytes.fetch_add(bytes, Ordering::Relaxed);
        if is_shuffled {
            self.shuffled_prefetched_bytes
                .fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Counts prefetched `bytes` that were read.
    pub(super) fn add_useful(&self, bytes: u64, is_shuffled: bool) {
        self.useful_bytes.fetch_add(bytes, Ordering::Relaxed);
        if is_shuffled {
            self.shuffled_useful_bytes
                .fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Whether the guesses so far were right often enough for another one. Bytes for readers in no order have a
    /// limit of their own.
    #[must_use]
    pub fn pays(&self) -> bool {
        let stats = self.stats();
        let wasted = stats.wasted_bytes.saturating_sub(self.shuffled_unread());
        wasted <= CREDIT_BYTES + stats.useful_bytes / WASTE_SHARE
    }

    /// Bytes that may be prefetched now for readers that take files in no order.
    pub(super) fn shuffled_credit(&self, cache_bytes: u64) -> u64 {
        let max = SHUFFLED_BYTES_MAX.min(cache_bytes / SHUFFLED_CACHE_SHARE);
        max.saturating_sub(self.shuffled_unread())
    }

    /// Bytes prefetched for readers in no order that were not read so far.
    pub(crate) fn shuffled_unread(&self) -> u64 {
        let prefetched = self.shuffled_prefetched_bytes.load(Ordering::Relaxed);
        prefetched.saturating_sub(self.shuffled_useful_bytes.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wasted_bytes_end_the_credit_and_useful_ones_renew_it() {
        let usefulness = Usefulness::default();
        assert!(usefulness.pays());
        usefulness.add_prefetched(1, 10, CREDIT_BYTES + 1, false);
        assert!(!usefulness.pays());
        usefulness.add_useful(CREDIT_BYTES / 2, false);
        assert!(usefulness.pays());
        assert_eq!(usefulness.stats().wasted_bytes, CREDIT_BYTES / 2 + 1);
    }

    #[test]
    fn readers_in_no_order_have_a_limit_of_their_own() {
        let usefulness = Usefulness::default();
        assert_eq!(usefulness.shuffled_credit(u64::MAX), SHUFFLED_BYTES_MAX);
        assert_eq!(usefulness.shuffled_credit(400), 100);
        usefulness.add_prefetched(1, 10, SHUFFLED_BYTES_MAX, true);
        assert!(usefulness.pays(), "the other guesses are not affected");
        assert_eq!(usefulness.shuffled_credit(u64::MAX), 0);
        usefulness.add_useful(1000, true);
        assert_eq!(usefulness.shuffled_credit(u64::MAX), 1000);
    }
}
