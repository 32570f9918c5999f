//! Readers that go through a directory one entry after the other, and what to fetch ahead of them. Pure.
//!
//! A tar, a copy or an epoch over a directory reads its files in the order of its listing or of their
//! names. Such a reader would wait for a round trip up the tree at every file. After a run of
//! files that are each the next one, the following ones are fetched ahead, a window that grows with the
//! run ([`Stride`]). A program that picks files (a Python import) rarely makes such a run.
//!
//! Files that were fetched ahead and stored into the page cache are read without a message: a step
//! over such files is a step to the next one.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// How soon and how far one who goes in order is fetched ahead for.
#[derive(Debug)]
pub(super) struct Stride {
    /// Entries taken one after another before anything is fetched ahead.
    pub(super) run_min: u32,
    /// The window, in runs.
    pub(super) growth: u32,
    /// Entries fetched ahead at most.
    pub(super) window_max: u32,
}

/// Of those who read files.
pub(super) const FILES: Stride = Stride {
    run_min: 8,
    growth: 4,
    window_max: 1024,
};

/// Files that one step may go over unseen.
const SKIP_MAX: u32 = 256;

/// The readers of one directory in one order. Several readers at a time spoil each other's run; none
/// is served wrongly for it.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// The place after the file that was read last.
    next: AtomicU32,
    /// Files read in a row.
    run: AtomicU32,
    /// The place up to which files were fetched ahead.
    fetched: AtomicU32,
}

impl Walk {
    /// Begins a run at place `at` as if it had come from there: for a reader who has just gone through
    /// another directory to its end.
    pub(super) fn carry_on(&self, at: u32) {
        self.next.store(at, Ordering::Relaxed);
        self.run.store(FILES.run_min - 1, Ordering::Relaxed);
        self.fetched.store(0, Ordering::Relaxed);
    }

    /// Whether the run here is the longer one.
    pub(super) fn is_longer_than(&self, other: &Self) -> bool {
        self.run.load(Ordering::Relaxed) > other.run.load(Ordering::Relaxed)
    }

    /// Whether a reader goes forward here.
    pub(super) fn is_run(&self) -> bool {
        self.run.load(Ordering::Relaxed) >= FILES.run_min
    }

    /// Whether a run long enough to fetch ahead for has come to place `end`.
    pub(super) fn has_come_to(&self, end: u32) -> bool {
        self.next.load(Ordering::Relaxed) == end && self.is_run()
    }

    /// The entry at place `at` is being taken; `unseen` says whether entries may have been taken without
    /// a message. Gives the places to fetch ahead.
    pub(super) fn step(
        &self,
        at: u32,
        stride: &Stride,
        unseen: impl Fn(Range<u32>) -> bool,
    ) -> Option<Range<u32>> {
        let next = self.next.swap(at.saturating_add(1), Ordering::Relaxed);
        if at.saturating_add(1) == next {
            // The same one once more.
            return None;
        }
        let skipped = at.checked_sub(next).unwrap_or(u32::MAX);
        if skipped > 0 && !(skipped <= SKIP_MAX && unseen(next..at)) {
            self.run.store(1, Ordering::Relaxed);
            self.fetched.store(0, Ordering::Relaxed);
            return None;
        }
        let step = skipped.saturating_add(1);
        let run = self.run.fetch_add(step, Ordering::Relaxed);
        let run = run.saturating_add(step);
        if run < stride.run_min {
            return None;
        }
        let window = run.saturating_mul(stride.growth).min(stride.window_max);
        let fetched = self.fetched.load(Ordering::Relaxed).max(at + 1);
        // In halves of the window, not one by one.
        if fetched - (at + 1) > window / 2 {
            return None;
        }
        let end = (at + 1).saturating_add(window);
        self.fetched.store(end, Ordering::Relaxed);
        Some(fetched..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead(walk: &Walk, places: impl IntoIterator<Item = u32>) -> Vec<u32> {
        places
            .into_iter()
            .filter_map(|at| walk.step(at, &FILES, |_| false))
            .flatten()
            .collect()
    }

    #[test]
    fn one_who_goes_in_order_has_each_file_fetched_once_and_ahead() {
        let walk = Walk::default();
        let fetched = ahead(&walk, 0..100);
        assert!(
            fetched.windows(2).all(|pair| pair[0] + 1 == pair[1]),
            "{fetched:?}"
        );
        assert!(fetched[0] <= FILES.run_min + 1);
        assert!((100..=100 + 100 * FILES.growth).contains(fetched.last().unwrap()));
    }

    #[test]
    fn one_who_starts_in_the_middle_is_seen_as_well() {
        assert!(!ahead(&Walk::default(), 40..60).is_empty());
    }

    #[test]
    fn one_who_has_come_to_an_end_carries_on_elsewhere() {
        let (first, second) = (Walk::default(), Walk::default());
        ahead(&first, 0..7);
        assert!(!first.has_come_to(7), "too short to mean anything");
        ahead(&first, 7..20);
        assert!(first.has_come_to(20));
        second.carry_on(2);
        assert_eq!(ahead(&second, [2])[0], 3);
    }

    #[test]
    fn one_who_picks_files_gets_nothing_ahead() {
        let picks = [
            3, 4, 5, 9, 10, 11, 12, 2, 40, 41, 43, 44, 45, 46, 47, 48, 50,
        ];
        assert!(ahead(&Walk::default(), picks).is_empty());
    }

    #[test]
    fn files_that_are_read_unseen_do_not_break_the_run() {
        let walk = Walk::default();
        let pushed = |places: Range<u32>| places.start >= 8;
        for at in (0..8).chain([15, 23]) {
            walk.step(at, &FILES, pushed);
        }
        assert!(walk.has_come_to(24));
        let other = Walk::default();
        for at in (0..8).chain([15, 23]) {
            other.step(at, &FILES, |_| false);
        }
        assert!(!other.has_come_to(24));
    }

    #[test]
    fn the_same_file_again_neither_counts_nor_breaks_the_run() {
        let walk = Walk::default();
        assert!(ahead(&walk, [5; 50]).is_empty());
        assert!(!ahead(&walk, (6..30).flat_map(|at| [at, at])).is_empty());
    }

    proptest::proptest! {
        /// Whatever the order: what is fetched lies behind the reader, no further than the widest
        /// window, and within one run no file is named twice.
        #[test]
        fn windows_lie_ahead_and_are_bounded(places in proptest::collection::vec(0u32..40, 0..300)) {
            let walk = Walk::default();
            let mut at = 0u32;
            let mut end = 0;
            let mut last = None;
            for jump in places {
                // Mostly one step on, sometimes elsewhere.
                at = if jump < 36 { at + 1 } else { jump * 1000 };
                if last != at.checked_sub(1) {
                    end = 0;
                }
                if let Some(window) = walk.step(at, &FILES, |_| false) {
                    proptest::prop_assert!(window.start > at && window.start >= end);
                    proptest::prop_assert!(window.end <= at + 1 + FILES.window_max);
                    end = window.end;
                }
                last = Some(at);
            }
        }
    }
}
