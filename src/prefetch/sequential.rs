//! Detects readers that go through the entries of a directory in order.
//!
//! A tar, a copy or an epoch that is not shuffled reads the files of a directory in the order of its listing or of
//! their names. Such a reader would wait for a round trip up the tree at every file. After several entries that
//! directly follow each other, the next ones are prefetched, in a window that grows with the run. A program that
//! picks files (a Python import) rarely makes such a run.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// When prefetching begins, and how far it goes.
#[derive(Debug)]
pub(super) struct Window {
    /// Consecutive entries before anything is prefetched.
    pub(super) run_min: u32,
    /// The length of the window divided by the length of the run.
    pub(super) growth: u32,
    /// The maximum length of the window.
    pub(super) entries_max: u32,
}

/// The maximum number of entries that one step may skip.
const SKIP_MAX: u32 = 256;

/// The readers of one directory in one order. Several readers at a time interrupt each other's runs. Then less is
/// prefetched, and nothing else happens. Relaxed atomics for the same reason.
#[derive(Debug, Default)]
pub(super) struct SequentialDetector {
    /// The place after the entry that was taken last.
    next: AtomicU32,
    /// The number of consecutive entries taken.
    run: AtomicU32,
    /// The end of the entries that were prefetched.
    prefetched: AtomicU32,
}

impl SequentialDetector {
    /// Continues a run at place `at`: its reader has just gone through another directory to its end.
    pub(super) fn continue_at(&self, at: u32, window: &Window) {
        self.next.store(at, Ordering::Relaxed);
        self.run.store(window.run_min - 1, Ordering::Relaxed);
        self.prefetched.store(0, Ordering::Relaxed);
    }

    /// Whether this run is longer than that of `other`.
    pub(super) fn is_longer_than(&self, other: &Self) -> bool {
        self.run.load(Ordering::Relaxed) > other.run.load(Ordering::Relaxed)
    }

    /// Whether the run is long enough to prefetch for it.
    pub(super) fn is_run(&self, window: &Window) -> bool {
        self.run.load(Ordering::Relaxed) >= window.run_min
    }

    /// Whether a run that is long enough has come to place `end`.
    pub(super) fn has_come_to(&self, end: u32, window: &Window) -> bool {
        self.next.load(Ordering::Relaxed) == end && self.is_run(window)
    }

    /// Called when the entry at place `at` is taken. `may_be_skipped` returns whether a reader in order may have
    /// passed these entries without a message. Returns the places to prefetch, often none; always none unless
    /// `may_prefetch`.
    pub(super) fn advance(
        &self,
        at: u32,
        window: &Window,
        may_prefetch: bool,
        may_be_skipped: impl Fn(Range<u32>) -> bool,
    ) -> Range<u32> {
        const NOTHING: Range<u32> = 0..0;
        let next = self.next.swap(at.saturating_add(1), Ordering::Relaxed);
        if at.saturating_add(1) == next {
            // The same entry again.
            return NOTHING;
        }
        // An entry before `next` is a jump back: it counts as one that skips too many.
        let skipped = at.checked_sub(next).unwrap_or(u32::MAX);
        if skipped > 0 && !(skipped <= SKIP_MAX && may_be_skipped(next..at)) {
            self.run.store(1, Ordering::Relaxed);
            self.prefetched.store(0, Ordering::Relaxed);
            return NOTHING;
        }
        let step = skipped.saturating_add(1);
        let run = self.run.fetch_add(step, Ordering::Relaxed);
        let run = run.saturating_add(step);
        // The end of the window stays where it is if nothing may be prefetched now: a later entry prefetches the
        // same places. Otherwise the reader would wait for each of them.
        if run < window.run_min || !may_prefetch {
            return NOTHING;
        }
        let ahead = run.saturating_mul(window.growth).min(window.entries_max);
        let prefetched = self.prefetched.load(Ordering::Relaxed).max(at + 1);
        // Half a window at a time, so that few requests bring many entries.
        if prefetched - (at + 1) > ahead / 2 {
            return NOTHING;
        }
        let end = (at + 1).saturating_add(ahead);
        self.prefetched.store(end, Ordering::Relaxed);
        prefetched..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefetch::{FILES, LISTINGS};

    fn ahead(detector: &SequentialDetector, places: impl IntoIterator<Item = u32>) -> Vec<u32> {
        places
            .into_iter()
            .flat_map(|at| detector.advance(at, &FILES, true, |_| false))
            .collect()
    }

    #[test]
    fn a_reader_in_order_has_each_file_prefetched_once() {
        let detector = SequentialDetector::default();
        let fetched = ahead(&detector, 0..100);
        assert!(
            fetched.windows(2).all(|pair| pair[0] + 1 == pair[1]),
            "{fetched:?}"
        );
        assert!(fetched[0] <= FILES.run_min + 1);
        assert!((100..=100 + 100 * FILES.growth).contains(fetched.last().unwrap()));
    }

    #[test]
    fn a_run_may_begin_in_the_middle() {
        assert!(!ahead(&SequentialDetector::default(), 40..60).is_empty());
    }

    #[test]
    fn a_run_continues_in_the_next_directory() {
        let (first, second) = (SequentialDetector::default(), SequentialDetector::default());
        ahead(&first, 0..7);
        assert!(!first.has_come_to(7, &FILES), "too short to mean anything");
        ahead(&first, 7..20);
        assert!(first.has_come_to(20, &FILES));
        second.continue_at(2, &FILES);
        assert_eq!(ahead(&second, [2])[0], 3);
    }

    #[test]
    fn a_program_that_picks_files_has_nothing_prefetched() {
        let picks = [
            3, 4, 5, 9, 10, 11, 12, 2, 40, 41, 43, 44, 45, 46, 47, 48, 50,
        ];
        assert!(ahead(&SequentialDetector::default(), picks).is_empty());
    }

    #[test]
    fn files_that_are_read_without_a_message_do_not_interrupt_the_run() {
        let detector = SequentialDetector::default();
        let pushed = |places: Range<u32>| places.start >= 8;
        for at in (0..8).chain([15, 23]) {
            detector.advance(at, &FILES, true, pushed);
        }
        assert!(detector.has_come_to(24, &FILES));
        let other = SequentialDetector::default();
        for at in (0..8).chain([15, 23]) {
            other.advance(at, &FILES, true, |_| false);
        }
        assert!(!other.has_come_to(24, &FILES));
    }

    #[test]
    fn repeated_reads_of_a_file_neither_count_nor_interrupt_the_run() {
        let detector = SequentialDetector::default();
        assert!(ahead(&detector, [5; 50]).is_empty());
        assert!(!ahead(&detector, (6..30).flat_map(|at| [at, at])).is_empty());
    }

    proptest::proptest! {
        /// In any order of reads, the prefetched entries come after the read one, no further than the largest window,
        /// and within one run no entry is prefetched twice.
        #[test]
        fn windows_lie_ahead_and_are_bounded(places in proptest::collection::vec(0u32..40, 0..300)) {
            let detector = SequentialDetector::default();
            let mut at = 0u32;
            let mut end = 0;
            let mut last = None;
            for jump in places {
                // Mostly one step on, sometimes elsewhere.
                at = if jump < 36 { at + 1 } else { jump * 1000 };
                if last != at.checked_sub(1) {
                    end = 0;
                }
                let window = detector.advance(at, &FILES, true, |_| false);
                if !window.is_empty() {
                    proptest::prop_assert!(window.start > at && window.start >= end);
                    proptest::prop_assert!(window.end <= at + 1 + FILES.entries_max);
                    end = window.end;
                }
                last = Some(at);
            }
        }
    }

    #[test]
    fn a_reader_of_listings_is_detected_at_the_second() {
        let detector = SequentialDetector::default();
        let step = |at| detector.advance(at, &LISTINGS, true, |_| false);
        let listed: Vec<u32> = (0..200).flat_map(step).collect();
        assert_eq!(listed[0], 2);
        assert!(listed.windows(2).all(|pair| pair[0] + 1 == pair[1]));
        let last = listed[listed.len() - 1];
        assert!(
            (199..199 + 1 + LISTINGS.entries_max).contains(&last),
            "{last}"
        );
        let picks = [3, 9, 1, 7, 7, 5, 2, 0, 4];
        assert_eq!(picks.into_iter().flat_map(step).count(), 0);
    }
}
