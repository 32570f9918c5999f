//! Prefetching: guesses at what the readers of a directory, or of a large file, want next. Pure.
//!
//! The read path reports each read and carries out the guesses. Each guess is one of these:
//!
//! - **All small files of a directory**, if there are few, at the second file that is read. A program that
//!   imports one module of a package usually imports the others. If such guesses were wrong too often, at the fourth
//!   file, for readers that take the files of many directories in no order.
//! - **The next files in order**, in a large directory, for a reader that goes through it in order
//!   (`sequential`): a tar, a copy, an epoch that is not shuffled.
//! - **The next directories**, with their small files, for a reader that has gone through a whole directory and
//!   begins the next one.
//! - **Batches of a large directory**, for readers that take its files in no order: a shuffled epoch, a loader's
//!   workers. The batches grow with the number of files read (`shuffled`).
//! - **The next listings**, for a reader that lists one directory after another: `find`, a recursive copy.
//! - **The next blocks of a large file**, for each of its readers that goes forward ([`streams`]).
//!
//! [`Usefulness`] records whether the guesses about files were right, and stops them where they are not.
//! What each guess gains is in `docs/adr/0011-what-is-prefetched.md`.

mod marks;
mod sequential;
mod shuffled;
pub mod streams;
mod usefulness;

pub use usefulness::{BundleStats, Usefulness};

use copperfs_overlay::FileKind;
use marks::FileMarks;
use sequential::{SequentialDetector, Window};
use std::iter;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// The maximum number and size of the small files of a directory that is prefetched as a whole.
const WHOLE_FILES_MAX: usize = 256;
const WHOLE_BYTES_MAX: u64 = 4 << 20;
/// The maximum number of entries of such a directory.
const WHOLE_ENTRIES_MAX: usize = 512;
/// The first read of the n-th file of a directory prefetches it as a whole.
const WHOLE_AT: u32 = 2;
/// The same if the guesses so far were not right often enough: the directory is one of many whose files are read in no
/// order.
const WHOLE_SHUFFLED_AT: u32 = 4;
/// Directories that are prefetched ahead of a reader that goes from directory to directory.
const DIRECTORIES_AHEAD: usize = 2;
/// For readers of files.
const FILES: Window = Window {
    run_min: 8,
    growth: 4,
    entries_max: 1024,
};
/// For readers that list directories.
const LISTINGS: Window = Window {
    run_min: 2,
    growth: 2,
    entries_max: 64,
};

/// The entries of a directory, as far as the guesses need to know them. Positions count from 0 in the order
/// of the listing.
pub trait Entries {
    /// The positions of all entries, in the order of their names.
    fn by_name(&self) -> &[u32];

    /// The index of `position` in [`Entries::by_name`].
    fn rank(&self, position: usize) -> usize;

    /// The kind of the entry.
    fn kind(&self, position: usize) -> FileKind;

    /// The size in bytes, if the entry is a file that a bundle may bring.
    fn small_file_bytes(&self, position: usize) -> Option<u64>;
}

/// Limits of one guess.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The size of the data cache in bytes.
    pub cache_bytes: u64,
    /// Whether another bundle may begin.
    pub may_begin: bool,
}

/// Small files to prefetch together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    /// Their positions.
    pub positions: Vec<usize>,
    /// They are for readers that take files in no order.
    pub is_shuffled: bool,
}

/// The guess after one read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Guess {
    /// Files of this directory to prefetch.
    pub batches: Vec<Batch>,
    /// The number of directories after this one to prefetch.
    pub next_directories: usize,
    /// The reader has come to the end of this directory.
    pub at_end: bool,
}

/// The readers of one directory: what they have done so far. Relaxed atomics: a lost update costs a guess.
#[derive(Debug, Default)]
pub struct Readers {
    pub(crate) marks: FileMarks,
    /// Readers of files in the order of the listing, and in the order of names.
    listed: SequentialDetector,
    sorted: SequentialDetector,
    /// Readers that list one subdirectory after another, and the subdirectories' positions.
    descent: SequentialDetector,
    subdirectories: OnceLock<Box<[u32]>>,
}

impl Readers {
    /// Called when the file at `position` is read from its beginning. `has_entered` returns whether a reader has just
    /// gone through the previous directory to its end. `None` if the file was read before.
    pub fn on_read(
        &self,
        position: usize,
        has_entered: impl FnOnce() -> bool,
        entries: &impl Entries,
        usefulness: &Usefulness,
        limits: Limits,
    ) -> Option<Guess> {
        let count = entries.by_name().len();
        let first = self.marks.read(position, count)?;
        // Only now, because most reads are of files that were read before.
        let has_entered = has_entered();
        let bytes_of = |&at: &usize| entries.small_file_bytes(at);
        let useful = first.useful.iter().filter_map(bytes_of).sum();
        usefulness.add_useful(useful, self.marks.shuffled.load(Ordering::Relaxed));

        let conditions = Conditions {
            has_entered,
            may_prefetch: usefulness.pays() && limits.may_begin,
        };
        let advance = |detector, place, position_at: &dyn Fn(usize) -> usize| {
            self.advance(detector, place, conditions, entries, position_at)
        };
        let in_listing = advance(&self.listed, position, &|at| at);
        let named = |rank: usize| entries.by_name()[rank] as usize;
        let in_names = advance(&self.sorted, entries.rank(position), &named);
        let has_begun = in_listing.has_begun || in_names.has_begun;

        let mut guess = Guess {
            at_end: in_listing.at_end || in_names.at_end,
            ..Guess::default()
        };
        let is_large = count > WHOLE_ENTRIES_MAX || self.marks.whole.get() == Some(&false);
        let in_order = self.listed.is_run(&FILES) || self.sorted.is_run(&FILES);
        if is_large
            && !in_order
            && let Some(bytes) = shuffled::due_bytes(first.reads)
        {
            let batch = self.shuffled(position, bytes, entries, usefulness, limits);
            guess.batches.extend(batch);
        }
        if !conditions.may_prefetch {
            let credit = usefulness.shuffled_credit(limits.cache_bytes);
            let is_due = first.reads >= WHOLE_SHUFFLED_AT && limits.may_begin;
            if is_due
                && credit >= WHOLE_BYTES_MAX
                && let Some(batch) = self.whole(position, entries)
            {
                self.marks.shuffled.store(true, Ordering::Relaxed);
                guess.batches.push(Batch {
                    is_shuffled: true,
                    ..batch
                });
            }
            return Some(guess);
        }
        if first.reads >= WHOLE_AT || has_begun {
            guess.batches.extend(self.whole(position, entries));
        }
        let ahead = match in_listing.ahead.is_empty() {
            true => in_names.ahead,
            false => in_listing.ahead,
        };
        if self.marks.whole.get() == Some(&false) && !ahead.is_empty() {
            let files = self.unread_small_files(iter::once(position).chain(ahead), entries);
            guess.batches.push(Batch {
                positions: files.map(|(at, _)| at).collect(),
                is_shuffled: false,
            });
        }
        if has_begun {
            guess.next_directories = DIRECTORIES_AHEAD;
        }
        Some(guess)
    }

    /// Called when a directory ahead of its reader has been listed. `None` ends the prefetching of further
    /// directories: this one is too large.
    pub fn on_listed_ahead(&self, entries: &impl Entries) -> Option<Batch> {
        let first = entries.by_name().first().map_or(0, |&at| at as usize);
        let batch = self.whole(first, entries);
        let is_small = self.marks.whole.get() == Some(&true);
        is_small.then(|| batch.unwrap_or_default())
    }

    /// Called when the subdirectory at `position` is listed from its beginning. Returns the positions of the
    /// subdirectories whose listings its reader wants next.
    pub fn on_list(&self, position: usize, entries: &impl Entries) -> Vec<usize> {
        let subdirectories = self.subdirectories.get_or_init(|| {
            (0..entries.by_name().len())
                .filter(|&at| entries.kind(at) == FileKind::Directory)
                .map(narrow)
                .collect()
        });
        let Ok(place) = subdirectories.binary_search(&narrow(position)) else {
            return Vec::new();
        };
        let ahead = self
            .descent
            .advance(narrow(place), &LISTINGS, true, |_| false);
        let ahead = clipped(ahead, subdirectories.len());
        let positions = subdirectories[ahead].iter();
        positions.map(|&at| at as usize).collect()
    }

    /// The small files of a directory that has few of them, from `position` on; once.
    fn whole(&self, position: usize, entries: &impl Entries) -> Option<Batch> {
        let count = entries.by_name().len();
        if self.marks.whole.get().is_some() || count == 0 {
            return None;
        }
        let batch = || {
            let rest = self.rest_from(position, entries);
            let files = self.unread_small_files(rest, entries);
            let (positions, sizes): (Vec<usize>, Vec<u64>) = files.unzip();
            let bytes: u64 = sizes.iter().sum();
            let is_small = positions.len() <= WHOLE_FILES_MAX && bytes <= WHOLE_BYTES_MAX;
            is_small.then_some(Batch {
                positions,
                is_shuffled: false,
            })
        };
        let batch = (count <= WHOLE_ENTRIES_MAX).then(batch).flatten();
        // Of two readers at a time, one decides.
        self.marks.whole.set(batch.is_some()).ok()?;
        batch
    }

    /// Up to `bytes` of small files for readers that take files in no order.
    fn shuffled(
        &self,
        position: usize,
        bytes: u64,
        entries: &impl Entries,
        usefulness: &Usefulness,
        limits: Limits,
    ) -> Option<Batch> {
        let mut left = bytes.min(usefulness.shuffled_credit(limits.cache_bytes));
        if left == 0 || !limits.may_begin {
            return None;
        }
        let mut positions = Vec::new();
        // Not collected: a large directory has far more files than one batch.
        for (at, bytes) in self.unread_small_files(self.rest_from(position, entries), entries) {
            let Some(rest) = left.checked_sub(bytes) else {
                break;
            };
            left = rest;
            positions.push(at);
        }
        if positions.len() < 2 {
            return None;
        }
        self.marks.shuffled.store(true, Ordering::Relaxed);
        Some(Batch {
            positions,
            is_shuffled: true,
        })
    }

    /// The small files of `positions` that were neither prefetched nor read, with their sizes. The first position is
    /// the file that is being read: it counts as one of them.
    fn unread_small_files(
        &self,
        positions: impl IntoIterator<Item = usize>,
        entries: &impl Entries,
    ) -> impl Iterator<Item = (usize, u64)> {
        let positions = positions.into_iter().enumerate();
        positions
            .filter(|&(nth, at)| nth == 0 || !self.marks.is_known(at))
            .filter_map(|(_, at)| Some((at, entries.small_file_bytes(at)?)))
    }

    /// All positions from `position` on and then those before it, in the order in which its readers seem
    /// to go.
    fn rest_from(&self, position: usize, entries: &impl Entries) -> Vec<usize> {
        let by_name = entries.by_name();
        let count = by_name.len();
        if self.listed.is_longer_than(&self.sorted) {
            return (position..count).chain(0..position).collect();
        }
        let rank = entries.rank(position);
        let ranks = (rank..count).chain(0..rank);
        ranks.map(|rank| by_name[rank] as usize).collect()
    }

    /// Reports a read at `place` to `detector`, which follows readers in the order of `position_at`.
    fn advance(
        &self,
        detector: &SequentialDetector,
        place: usize,
        conditions: Conditions,
        entries: &impl Entries,
        position_at: &dyn Fn(usize) -> usize,
    ) -> Advance {
        let count = entries.by_name().len();
        // Files in the page cache are read without a message, and only files are read.
        let may_be_skipped = |place: usize| {
            let position = position_at(place);
            entries.kind(position) != FileKind::File || self.marks.may_be_read_unseen(position)
        };
        let has_begun = conditions.has_entered && (0..place).all(may_be_skipped);
        if has_begun {
            detector.continue_at(narrow(place), &FILES);
        }
        let all_skipped = |places: Range<u32>| places.map(|at| at as usize).all(may_be_skipped);
        let ahead = detector.advance(narrow(place), &FILES, conditions.may_prefetch, all_skipped);
        Advance {
            ahead: clipped(ahead, count).map(position_at).collect(),
            has_begun,
            at_end: detector.has_come_to(narrow(count), &FILES),
        }
    }
}

/// The conditions of one read.
#[derive(Clone, Copy)]
struct Conditions {
    /// A reader has just gone through the previous directory to its end.
    has_entered: bool,
    /// The guesses so far were right often enough, and there is room for another one.
    may_prefetch: bool,
}

/// The result of one read for the readers in one order.
struct Advance {
    /// Positions of the files that such a reader wants next.
    ahead: Vec<usize>,
    /// A reader that has gone through the previous directory begins here.
    has_begun: bool,
    at_end: bool,
}

fn narrow(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

fn clipped(places: Range<u32>, count: usize) -> Range<usize> {
    (places.start as usize).min(count)..(places.end as usize).min(count)
}

#[cfg(test)]
mod tests;
