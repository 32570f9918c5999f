//! A job's progress in a dataset on this node: epochs, and the reads in them.

mod bits;
mod ordinals;
mod parts;
#[cfg(test)]
mod tests;

pub use ordinals::Ordinals;
pub use parts::{ItemSet, ProgressPart};

use super::pattern::{Pattern, window};
use bits::Bits;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The outcome of a read of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ItemOutcome {
    /// Its bytes.
    pub bytes: u64,
    /// Whether it came from the dataset's cache (this node's or its home's).
    pub cached: bool,
    /// Bytes read from storage that were charged to this read. 0 if it joined another read.
    pub charged: u64,
    /// Whether its home has admitted it to the cache because of this read.
    pub admitted: bool,
}

/// The reads of an epoch, on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EpochCounts {
    /// Items read, including repeats and page-cache hits.
    pub items: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Items in the dataset's cache or the page cache.
    pub hit_items: u64,
    /// Their bytes.
    pub hit_bytes: u64,
    /// Hits in the kernel's page cache: opened and closed without a read.
    pub page_cache_items: u64,
    /// Their bytes.
    pub page_cache_bytes: u64,
    /// Bytes read from storage that were charged to these reads.
    pub charged_bytes: u64,
    /// Bytes that these reads brought into the dataset's cache.
    pub admitted_bytes: u64,
}

impl EpochCounts {
    /// Returns the counts of one read item.
    #[must_use]
    pub fn of_read(outcome: ItemOutcome) -> Self {
        Self {
            items: 1,
            bytes: outcome.bytes,
            hit_items: u64::from(outcome.cached),
            hit_bytes: u64::from(outcome.cached) * outcome.bytes,
            charged_bytes: outcome.charged,
            admitted_bytes: u64::from(outcome.admitted) * outcome.bytes,
            ..Self::default()
        }
    }

    /// Returns the counts of one item in the page cache.
    #[must_use]
    pub fn of_page_cache(bytes: u64) -> Self {
        Self {
            items: 1,
            bytes,
            hit_items: 1,
            hit_bytes: bytes,
            page_cache_items: 1,
            page_cache_bytes: bytes,
            ..Self::default()
        }
    }

    /// Adds other counts.
    pub fn add(&mut self, other: &Self) {
        self.items += other.items;
        self.bytes += other.bytes;
        self.hit_items += other.hit_items;
        self.hit_bytes += other.hit_bytes;
        self.page_cache_items += other.page_cache_items;
        self.page_cache_bytes += other.page_cache_bytes;
        self.charged_bytes += other.charged_bytes;
        self.admitted_bytes += other.admitted_bytes;
    }
}

/// The maximum number of ended epochs whose counts are kept: more than a training has; 64 KiB for
/// each job.
const ENDED_MAX: usize = 1000;

/// The number of last reads that are examined to detect an epoch that ended before all of its items
/// were read.
const LAST: u32 = u16::BITS;

/// The number of repeats among them that indicate it. An item that was left out (`drop_last`, at
/// most a tenth) is read for the first time in the next epoch, so not all of them need to be
/// repeats.
const LAST_REPEATS: u32 = 14;

/// The minimum number of items of an epoch that ends early. A job that reads fewer items of a large
/// dataset repeatedly begins a curriculum.
const EPOCH_ITEMS_MIN: u64 = 64;

/// A job's progress in a dataset on one node.
///
/// An epoch ends when as many items have been read as it has here ([`expect`](Self::expect)). It
/// ends early on one node when nearly all of the last 16 reads (14) were repeats (a sampler that
/// leaves some items out, or reads a part of the dataset). On several nodes it ends early at the
/// first repeat after nine tenths of it, because there only some items are read again in the next
/// epoch.
///
/// Loaders read ahead, so items of the next epoch come before the last ones of this epoch. So an
/// item's first read counts for this epoch and its second for the next. If neither explains a read,
/// or a second read comes long before the end, the job does not read like a training, and
/// [`Pattern`] judges. An epoch of an irregular job is as many reads as the dataset has items here.
///
/// Its encoding leaves out the parts that may be long: [`ProgressPart`] has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    expected: Option<u64>,
    several_nodes: bool,
    /// The number of the current epoch, from 0.
    pub(super) number: u64,
    /// Items read in this epoch, or by an irregular job in this run.
    #[serde(skip)]
    seen: Bits,
    /// Items read for the next epoch.
    #[serde(skip)]
    ahead: Bits,
    /// Items read in the previous epoch, if that ended early. An item that it left out may still be
    /// read late, which then counts for this epoch. Its second read is then this epoch's, and the
    /// late one is moved to the previous epoch.
    #[serde(skip)]
    before_late: Option<Bits>,
    /// The counts of the current epoch.
    pub(super) epoch: EpochCounts,
    next: EpochCounts,
    /// The counts of all earlier epochs.
    before: EpochCounts,
    /// The last reads, with the newest in the lowest bit: set for a repeat.
    last: u16,
    /// The repeats among them that no epoch's end explains.
    unexplained: u16,
    pattern: Pattern,
    /// The counts of the last ended epochs, oldest first.
    #[serde(skip)]
    pub(super) ended: VecDeque<EpochCounts>,
}

impl Progress {
    /// Sets the number of items of an epoch on this node, if known, and the number of nodes on
    /// which the job reads. 0 items count as unknown. Returns whether that is news.
    pub fn expect(&mut self, items: Option<u64>, nodes: u32) -> bool {
        let expected = (items.filter(|items| *items > 0), nodes > 1);
        let before = (self.expected, self.several_nodes);
        (self.expected, self.several_nodes) = expected;
        expected != before
    }

    /// Records a read. `ordinal`: the item's number in [`Ordinals`]. Without one it is counted, but
    /// not distinguished from other items.
    pub fn read(&mut self, ordinal: Option<u32>, counts: &EpochCounts) {
        if self.pattern.irregular {
            self.read_irregular(ordinal, counts);
        } else {
            self.read_regular(ordinal, counts);
        }
    }

    fn read_regular(&mut self, ordinal: Option<u32>, counts: &EpochCounts) {
        let first = ordinal.is_none_or(|item| self.seen.insert(item));
        // The first read of an item in this epoch may have been a late one of the previous epoch. Then
        // this one is the item's read in this epoch.
        let before = self.before_late.as_mut().filter(|_| !first);
        let again = before.zip(ordinal);
        let late = again.is_some_and(|(before, item)| before.insert(item));
        let mut unexplained = false;
        if first {
            self.epoch.add(counts);
        } else if late {
            self.before.add(counts);
            if let Some(before) = self.ended.back_mut() {
                before.add(counts);
            }
        } else {
            let second = ordinal.is_none_or(|item| self.ahead.insert(item));
            // A tenth may be left out at the end, and loaders may be ahead of that.
            let early = |items| self.epoch.items + window(items) + items / 10 < items;
            unexplained = self.expected.is_some_and(|items| !second || early(items));
            self.next.add(counts);
        }
        // A repeat that leaves the last reads did not belong to the beginning of an epoch.
        self.pattern.read(self.unexplained >> (LAST - 1) & 1 == 1);
        self.last = self.last << 1 | u16::from(!first && !late);
        self.unexplained = self.unexplained << 1 | u16::from(unexplained);
        if self.pattern.irregular {
            self.become_irregular();
        } else if self.expected.is_some_and(|items| self.epoch.items >= items) {
            self.before_late = None;
            self.end_epoch();
        } else if self.has_ended_early(first || late) {
            self.end_early();
        }
    }

    fn end_early(&mut self) {
        let items = self.epoch.items;
        if items < EPOCH_ITEMS_MIN && self.expected.is_some_and(|expected| items * 2 < expected) {
            for _ in 0..self.unexplained.count_ones() {
                self.pattern.read(true);
            }
            if self.pattern.irregular {
                return self.become_irregular();
            }
        }
        // Reuses the allocation of the previous set.
        self.before_late
            .get_or_insert_default()
            .clone_from(&self.seen);
        self.end_epoch();
    }

    fn has_ended_early(&self, new: bool) -> bool {
        let nearly = |items| self.epoch.items >= items - items / 10;
        if self.several_nodes {
            !new && self.expected.is_some_and(nearly)
        } else {
            self.last.count_ones() >= LAST_REPEATS
        }
    }

    fn end_epoch(&mut self) {
        self.note_epoch();
        // Items read ahead are the first ones of the new epoch.
        std::mem::swap(&mut self.seen, &mut self.ahead);
        self.ahead.clear();
        self.epoch = std::mem::take(&mut self.next);
        self.last = 0;
        self.unexplained = 0;
        self.pattern.epoch_ended();
    }

    fn become_irregular(&mut self) {
        let ahead = std::mem::take(&mut self.next);
        self.epoch.add(&ahead);
        self.restart_tracking();
    }

    fn restart_tracking(&mut self) {
        self.seen.clear();
        self.ahead.clear();
        self.before_late = None;
        self.last = 0;
        self.unexplained = 0;
    }

    fn read_irregular(&mut self, ordinal: Option<u32>, counts: &EpochCounts) {
        self.epoch.add(counts);
        // Items without a number cannot be recognised as repeats.
        let repeat = !ordinal.is_none_or(|item| self.seen.insert(item));
        let items = self.expected.unwrap_or(u64::MAX);
        if self.pattern.read_irregular(repeat, items) {
            self.restart_tracking();
        }
        if !self.pattern.irregular || self.epoch.items >= items {
            self.note_epoch();
        }
    }

    fn note_epoch(&mut self) {
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        let ended = std::mem::take(&mut self.epoch);
        self.before.add(&ended);
        self.ended.push_back(ended);
        self.number += 1;
    }

    /// Returns the counts of all reads.
    #[must_use]
    pub fn total(&self) -> EpochCounts {
        let mut total = self.before;
        total.add(&self.epoch);
        total.add(&self.next);
        total
    }

    /// Returns whether the job deviates from reading each item once per epoch.
    #[must_use]
    pub fn irregular(&self) -> bool {
        self.pattern.irregular
    }
}
