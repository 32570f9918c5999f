//! Whether the guesses about small files were right.
//!
//! Prefetched bytes that no reader has read so far may not exceed [`CREDIT_BYTES`] and a fifth of those that were
//! read. A program that picks files of large directories uses that credit once. After that, nothing more is
//! prefetched for it until the files that it reads had been prefetched.

use copperfs_metrics::Counter;

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

/// See the module. For people and for guesses.
#[derive(Debug, Default)]
pub struct Usefulness {
    requests: Counter,
    files: Counter,
    prefetched_bytes: Counter,
    useful_bytes: Counter,
    /// The parts of the two for readers that take files in no order.
    shuffled_prefetched_bytes: Counter,
    shuffled_useful_bytes: Counter,
}

impl Usefulness {
    /// The counters as they stand.
    #[must_use]
    pub fn stats(&self) -> BundleStats {
        let useful_bytes = self.useful_bytes.get();
        BundleStats {
            requests: self.requests.get(),
            files: self.files.get(),
            useful_bytes,
            wasted_bytes: self.prefetched_bytes.get().saturating_sub(useful_bytes),
        }
    }

    /// Counts `requests` for `files`, with `bytes` that no reader has requested.
    pub fn add_prefetched(&self, requests: u64, files: u64, bytes: u64, is_shuffled: bool) {
        self.requests.add(requests);
        self.files.add(files);
        self.prefetched_bytes.add(bytes);
        if is_shuffled {
            self.shuffled_prefetched_bytes.add(bytes);
        }
    }

    /// Counts prefetched `bytes` that were read.
    pub(super) fn add_useful(&self, bytes: u64, is_shuffled: bool) {
        self.useful_bytes.add(bytes);
        if is_shuffled {
            self.shuffled_useful_bytes.add(bytes);
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
        let prefetched = self.shuffled_prefetched_bytes.get();
        prefetched.saturating_sub(self.shuffled_useful_bytes.get())
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
