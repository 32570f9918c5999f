//! The requests that a daemon may have in hand, for kernels that do not send requests again (before 6.9).
//!
//! The connection of a mount outlives its daemon. A request that the daemon has read and not answered would wait for
//! ever, so the successor answers it with EIO. Its number must be known for that, but a record of each request would
//! cost too much. The kernel numbers requests in order, and refuses answers to requests that have one already. So it is
//! enough to know a range of numbers: a record of it is due once in some 30,000 requests.

use parking_lot::Mutex;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers that one record covers in advance.
const STEP: u64 = 1 << 16;
/// The distance between the numbers of two requests (`FUSE_REQ_ID_STEP`). Odd numbers are those of interrupts.
pub(crate) const DISTANCE: usize = 2;
/// Numbers that a successor tries at most, which takes some seconds.
const TRIED_MAX: u64 = 1 << 24;

/// Keeps the range for a successor.
pub trait InHandRecord: fmt::Debug + Send + Sync + 'static {
    /// Notes that the requests in hand, from now on, have numbers in `numbers`. When it returns, a successor finds them.
    fn note(&self, numbers: Range<u64>);
}

/// The requests in hand of one mount.
#[derive(Debug)]
pub(crate) struct InHand {
    record: Arc<dyn InHandRecord>,
    /// The end of the last range.
    end: AtomicU64,
    /// The first numbers of the last two steps.
    begun: Mutex<[u64; 2]>,
}

impl InHand {
    pub(crate) fn new(record: Arc<dyn InHandRecord>) -> Self {
        Self {
            record,
            end: AtomicU64::new(0),
            begun: Mutex::new([u64::MAX; 2]),
        }
    }

    /// Called before request `unique` is handled. `oldest`: the lowest number of those that wait for their answers.
    pub(crate) fn begin(&self, unique: u64, oldest: impl FnOnce() -> Option<u64>) {
        if unique < self.end.load(Ordering::Relaxed) {
            return;
        }
        let mut begun = self.begun.lock();
        if unique < self.end.load(Ordering::Relaxed) {
            return;
        }
        let [before, last] = *begun;
        // Another thread may still handle a request of the last two steps, which does not wait yet.
        let lowest = before.min(last).min(unique);
        let start = oldest().map_or(lowest, |oldest| oldest.min(lowest));
        let end = unique + STEP;
        self.record.note(start..end);
        *begun = [last, unique];
        self.end.store(end, Ordering::Relaxed);
    }
}

/// Returns those of `numbers` that a successor tries.
pub(crate) fn tried(numbers: &Range<u64>) -> Range<u64> {
    let start = numbers.end.saturating_sub(TRIED_MAX).max(numbers.start);
    // Number zero marks a notification.
    start.max(DISTANCE as u64)..numbers.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Last(Mutex<(Range<u64>, usize)>);

    impl InHandRecord for Last {
        fn note(&self, numbers: Range<u64>) {
            let mut last = self.0.lock();
            *last = (numbers, last.1 + 1);
        }
    }

    /// The last record has the request that begins, those that still wait, and those of the steps before.
    #[test]
    fn a_range_has_all_requests_in_hand() {
        let last = Arc::new(Last::default());
        let in_hand = InHand::new(Arc::clone(&last) as Arc<dyn InHandRecord>);
        let mut waiting = None;
        for unique in (4..1_000_000).step_by(DISTANCE) {
            in_hand.begin(unique, || waiting);
            let range = last.0.lock().0.clone();
            assert!(range.contains(&unique), "{unique} in {range:?}");
            assert!(waiting.is_none_or(|waiting| range.contains(&waiting)));
            assert!(range.start <= unique.saturating_sub(STEP).max(4));
            match unique {
                100 => waiting = Some(unique),
                700_000 => waiting = None,
                _ => {}
            }
        }
        let (range, records) = last.0.lock().clone();
        assert!(range.end - range.start <= 4 * STEP, "{range:?}");
        assert!(records < 20, "{records} records");
    }

    #[test]
    fn a_successor_tries_a_bounded_range() {
        assert_eq!(tried(&(0..10)), 2..10);
        assert_eq!(tried(&(7..10)), 7..10);
        assert_eq!(tried(&(0..u64::MAX)), u64::MAX - TRIED_MAX..u64::MAX);
    }
}
