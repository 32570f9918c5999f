//! What became of each file of a directory: read, brought by a bundle, stored into the page cache.
//!
//! Pages that were stored unasked are read without a message, so nothing shows whether they were of
//! use. Therefore one file of each group of [`GROUP`] that a bundle brings is left to be asked for: it
//! stands for its group.

use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

/// A reader or a child has asked for it.
const READ: u8 = 1;
/// A bundle that this node decided on has brought it, or is to.
const BROUGHT: u8 = 2;
/// Not to be pushed: whether it is asked for says what its group is worth.
const SAMPLE: u8 = 4;
/// Pushed into the page cache.
const PUSHED: u8 = 8;
/// Counted as useful.
const COUNTED: u8 = 16;

/// Files of which one is not pushed.
pub(super) const GROUP: usize = 8;

/// See the module. Relaxed throughout: what is lost is a count or a guess.
#[derive(Debug, Default)]
pub(super) struct Touched {
    marks: OnceLock<Box<[AtomicU8]>>,
    /// Whether the directory is to be brought whole, once that was looked at.
    whole: AtomicU8,
    /// Files were brought to readers in no order.
    scattered: AtomicBool,
    reads: AtomicU32,
    /// Sample and group, by position. Guards itself; held for a push or a search of at most one entry
    /// for each [`GROUP`] files.
    groups: Mutex<Vec<(u32, Box<[u32]>)>>,
}

/// Whether a directory is brought whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whole {
    /// Nobody has looked yet.
    Unknown,
    /// It was.
    Brought,
    /// It has too many small files for that.
    TooLarge,
}

/// What the first read of a file says.
#[derive(Debug, Default)]
pub(super) struct FirstRead {
    /// Files read so far, this one included.
    pub(super) reads: u32,
    /// Positions of files that a bundle brought and that are now known, or taken, to be of use.
    pub(super) useful: Vec<usize>,
}

impl Touched {
    /// The file at `position` of `count` is being read; `None` if it was before.
    pub(super) fn read(&self, position: usize, count: usize) -> Option<FirstRead> {
        let before = self.mark(position, count, READ)?;
        if before & READ != 0 {
            return None;
        }
        let mut first = FirstRead {
            reads: self.reads.fetch_add(1, Ordering::Relaxed).saturating_add(1),
            useful: Vec::new(),
        };
        if before & BROUGHT != 0 && self.count(position, count) {
            first.useful.push(position);
        }
        if before & SAMPLE != 0 {
            let group = self.take_group(position);
            for at in group.iter().map(|&at| at as usize) {
                if self.has(at, PUSHED) && self.count(at, count) {
                    first.useful.push(at);
                }
            }
        }
        Some(first)
    }

    /// A bundle is to bring the files at `positions`, of `count` entries.
    pub(super) fn bring(&self, positions: &[usize], count: usize) {
        for group in positions.chunks(GROUP) {
            for &position in group {
                self.mark(position, count, BROUGHT);
            }
            if let Some((&sample, rest)) = group.split_last() {
                self.mark(sample, count, SAMPLE);
                let narrow = |&at: &usize| u32::try_from(at).unwrap_or(u32::MAX);
                let entry = (narrow(&sample), rest.iter().map(narrow).collect());
                self.groups.lock().push(entry);
            }
        }
    }

    /// What was found out about bringing the directory whole.
    pub(super) fn whole(&self) -> Whole {
        match self.whole.load(Ordering::Relaxed) {
            0 => Whole::Unknown,
            1 => Whole::Brought,
            _ => Whole::TooLarge,
        }
    }

    /// The directory was brought whole, or is too large for that.
    pub(super) fn set_whole(&self, brought: bool) {
        let state = if brought { 1 } else { 2 };
        self.whole.store(state, Ordering::Relaxed);
    }

    /// Whether files were brought to readers in no order.
    pub(super) fn is_scattered(&self) -> bool {
        self.scattered.load(Ordering::Relaxed)
    }

    /// Files are brought to readers in no order.
    pub(super) fn set_scattered(&self) {
        self.scattered.store(true, Ordering::Relaxed);
    }

    /// Whether a bundle has brought the file, or is to, or somebody has read it.
    pub(super) fn is_known(&self, position: usize) -> bool {
        self.has(position, READ | BROUGHT)
    }

    /// Whether somebody has read it.
    pub(super) fn is_read(&self, position: usize) -> bool {
        self.has(position, READ)
    }

    /// Whether a file may be read without a message.
    pub(super) fn may_be_read_unseen(&self, position: usize) -> bool {
        self.has(position, PUSHED | READ)
    }

    /// The file's bytes are to be pushed; whether they may be.
    pub(super) fn push(&self, position: usize, count: usize) -> bool {
        let marks = self.get(position);
        if marks & SAMPLE != 0 && marks & READ == 0 {
            return false;
        }
        if marks & BROUGHT != 0 {
            self.mark(position, count, PUSHED);
        }
        true
    }

    fn take_group(&self, sample: usize) -> Box<[u32]> {
        let mut groups = self.groups.lock();
        let place = groups.iter().position(|(at, _)| *at as usize == sample);
        place.map_or_else(Box::default, |place| groups.swap_remove(place).1)
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

    /// Sets `mark`; gives what was there.
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
    fn a_file_counts_once() {
        let touched = Touched::default();
        assert_eq!(touched.read(3, 10).unwrap().reads, 1);
        assert!(touched.read(3, 10).is_none());
        touched.bring(&[4, 5], 10);
        assert_eq!(touched.read(4, 10).unwrap().useful, [4]);
        assert!(touched.read(4, 10).is_none());
        assert!(touched.read(10, 10).is_none(), "beyond the end");
    }

    #[test]
    fn a_sample_stands_for_what_was_pushed_of_its_group() {
        let touched = Touched::default();
        let all: Vec<usize> = (0..GROUP + 3).collect();
        touched.bring(&all, 20);
        let pushed: Vec<usize> = all
            .iter()
            .copied()
            .filter(|&at| touched.push(at, 20))
            .collect();
        assert!(!pushed.contains(&(GROUP - 1)) && !pushed.contains(&(GROUP + 2)));
        assert_eq!(pushed.len(), GROUP + 1);
        assert_eq!(touched.read(GROUP - 1, 20).unwrap().useful.len(), GROUP);
        assert_eq!(touched.read(GROUP + 2, 20).unwrap().useful.len(), 3);
        assert!(
            touched.read(1, 20).unwrap().useful.is_empty(),
            "counted before"
        );
    }

    #[test]
    fn what_was_not_pushed_speaks_for_itself() {
        let touched = Touched::default();
        touched.bring(&[0, 1, 2], 3);
        assert_eq!(touched.read(2, 3).unwrap().useful, [2]);
        assert_eq!(touched.read(0, 3).unwrap().useful, [0]);
    }
}
