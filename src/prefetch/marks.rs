//! Marks of each file of a directory: read, prefetched, stored into the page cache.
//!
//! A file in the page cache is read without a message, so nothing shows whether its prefetching was useful.
//! Therefore one file in [`GROUP`] is prefetched but not stored into the page cache. It is a sample: when it is read,
//! its whole group counts as useful.

use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

/// A reader has read it.
const READ: u8 = 1;
/// It was prefetched, or is being prefetched.
const PREFETCHED: u8 = 2;
/// It must not be stored into the page cache: it is the sample of its group.
const SAMPLE: u8 = 4;
/// It was stored into the page cache.
const PUSHED: u8 = 8;
/// It was counted as useful.
const COUNTED: u8 = 16;

/// The number of prefetched files with one sample among them.
pub(super) const GROUP: usize = 8;

/// See the module. Relaxed atomics: a lost update costs a count or a guess.
#[derive(Debug, Default)]
pub(crate) struct FileMarks {
    marks: OnceLock<Box<[AtomicU8]>>,
    /// Whether all small files of the directory are prefetched together, or are too many for that; empty while that
    /// is not decided.
    pub(super) whole: OnceLock<bool>,
    /// Files were prefetched for readers in no order.
    pub(super) shuffled: AtomicBool,
    /// The number of files that were read.
    reads: AtomicU32,
    /// The position of each sample, and those of its group. Locked for a push, or a search among at most one entry
    /// for each [`GROUP`] files.
    groups: Mutex<Vec<(u32, Box<[u32]>)>>,
}

/// The findings of the first read of a file.
#[derive(Debug, Default)]
pub(super) struct FirstRead {
    /// The number of files read so far, including this one.
    pub(super) reads: u32,
    /// Positions of prefetched files that count as useful from now on.
    pub(super) useful: Vec<usize>,
}

impl FileMarks {
    /// Called when the file at `position`, of `count` entries, is read; `None` if it was read before.
    pub(super) fn read(&self, position: usize, count: usize) -> Option<FirstRead> {
        let before = self.mark(position, count, READ)?;
        if before & READ != 0 {
            return None;
        }
        let mut first = FirstRead {
            reads: self.reads.fetch_add(1, Ordering::Relaxed).saturating_add(1),
            useful: Vec::new(),
        };
        if before & PREFETCHED != 0 && self.count(position, count) {
            first.useful.push(position);
        }
        if before & SAMPLE != 0 {
            let mut groups = self.groups.lock();
            let place = groups.iter().position(|(at, _)| *at as usize == position);
            let group = place.map(|place| groups.swap_remove(place).1);
            drop(groups);
            for at in group.iter().flatten().map(|&at| at as usize) {
                if self.has(at, PUSHED) && self.count(at, count) {
                    first.useful.push(at);
                }
            }
        }
        Some(first)
    }

    /// Called when the files at `positions`, of `count` entries, are requested.
    pub(crate) fn prefetch(&self, positions: &[usize], count: usize) {
        for group in positions.chunks(GROUP) {
            for &position in group {
                self.mark(position, count, PREFETCHED);
            }
            if let Some((&sample, rest)) = group.split_last() {
                self.mark(sample, count, SAMPLE);
                let narrow = |&at: &usize| u32::try_from(at).unwrap_or(u32::MAX);
                let entry = (narrow(&sample), rest.iter().map(narrow).collect());
                self.groups.lock().push(entry);
            }
        }
    }

    /// Whether the file was prefetched or read.
    pub(super) fn is_known(&self, position: usize) -> bool {
        self.has(position, READ | PREFETCHED)
    }

    /// Whether the file was read.
    pub(crate) fn is_read(&self, position: usize) -> bool {
        self.has(position, READ)
    }

    /// Whether a reader may read the file without a message.
    pub(super) fn may_be_read_unseen(&self, position: usize) -> bool {
        self.has(position, PUSHED | READ)
    }

    /// Called before the file at `position`, of `count` entries, is stored into the page cache. Returns whether it may
    /// be.
    pub(crate) fn push(&self, position: usize, count: usize) -> bool {
        let marks = self.get(position);
        if marks & SAMPLE != 0 && marks & READ == 0 {
            return false;
        }
        if marks & PREFETCHED != 0 {
            self.mark(position, count, PUSHED);
        }
        true
    }

    fn count(&self, position: usize, count: usize) -> bool {
        self.mark(position, count, COUNTED)
            .is_some_and(|before| before & COUNTED == 0)
    }

    fn has(&self, position: usize, marks: u8) -> bool {
        self.get(position) & marks != 0
    }

    fn get(&self, position: usize) -> u8 {
        self.marks
            .get()
            .and_then(|marks| marks.get(position))
            .map_or(0, |marks| marks.load(Ordering::Relaxed))
    }

    /// Sets `mark`. Returns the marks before; `None` if there is no such entry.
    fn mark(&self, position: usize, count: usize, mark: u8) -> Option<u8> {
        let marks = self
            .marks
            .get_or_init(|| (0..count).map(|_| AtomicU8::new(0)).collect());
        Some(marks.get(position)?.fetch_or(mark, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_as_read_once() {
        let marks = FileMarks::default();
        assert_eq!(marks.read(3, 10).unwrap().reads, 1);
        assert!(marks.read(3, 10).is_none());
        marks.prefetch(&[4, 5], 10);
        assert_eq!(marks.read(4, 10).unwrap().useful, [4]);
        assert!(marks.read(4, 10).is_none());
        assert!(marks.read(10, 10).is_none(), "beyond the end");
    }

    #[test]
    fn a_sample_counts_for_its_group() {
        let marks = FileMarks::default();
        let all: Vec<usize> = (0..GROUP + 3).collect();
        marks.prefetch(&all, 20);
        let pushed: Vec<usize> = all
            .iter()
            .copied()
            .filter(|&at| marks.push(at, 20))
            .collect();
        assert!(!pushed.contains(&(GROUP - 1)) && !pushed.contains(&(GROUP + 2)));
        assert_eq!(pushed.len(), GROUP + 1);
        assert_eq!(marks.read(GROUP - 1, 20).unwrap().useful.len(), GROUP);
        assert_eq!(marks.read(GROUP + 2, 20).unwrap().useful.len(), 3);
        assert!(
            marks.read(1, 20).unwrap().useful.is_empty(),
            "counted before"
        );
    }

    #[test]
    fn files_outside_the_page_cache_count_by_themselves() {
        let marks = FileMarks::default();
        marks.prefetch(&[0, 1, 2], 3);
        assert_eq!(marks.read(2, 3).unwrap().useful, [2]);
        assert_eq!(marks.read(0, 3).unwrap().useful, [0]);
    }
}
