//! How far a job is in a dataset on this node: epochs, and what was read in them.

mod ordinals;
#[cfg(test)]
mod tests;

pub use ordinals::Ordinals;

use super::pattern::{Pattern, window};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How an item was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ItemOutcome {
    /// Its bytes.
    pub bytes: u64,
    /// It came from the dataset's cache (this node's or its home's).
    pub cached: bool,
    /// Bytes of the origin that this read was charged: 0 for who joined another's.
    pub charged: u64,
    /// Its home has admitted it to the cache because of this read.
    pub admitted: bool,
}

/// What was read in an epoch, on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EpochCounts {
    /// Items read, repeats too, those in the page cache too.
    pub items: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Items that the dataset's cache or the page cache had.
    pub hit_items: u64,
    /// Their bytes.
    pub hit_bytes: u64,
    /// Of the hits, items that the kernel's page cache had: opened and closed without a read.
    pub page_cache_items: u64,
    /// Their bytes.
    pub page_cache_bytes: u64,
    /// Bytes of the origin that these reads were charged.
    pub charged_bytes: u64,
    /// Bytes that came into the dataset's cache by these reads.
    pub admitted_bytes: u64,
}

impl EpochCounts {
    /// Of one item that was read.
    #[must_use]
    pub fn of_read(outcome: ItemOutcome) -> Self {
        let when = |yes: bool, number: u64| if yes { number } else { 0 };
        Self {
            items: 1,
            bytes: outcome.bytes,
            hit_items: u64::from(outcome.cached),
            hit_bytes: when(outcome.cached, outcome.bytes),
            page_cache_items: 0,
            page_cache_bytes: 0,
            charged_bytes: outcome.charged,
            admitted_bytes: when(outcome.admitted, outcome.bytes),
        }
    }

    /// Of one item that the page cache had.
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

    /// Bytes that were not cached.
    #[must_use]
    pub fn miss_bytes(&self) -> u64 {
        self.bytes - self.hit_bytes
    }

    /// Adds another part.
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

/// Results of epochs kept: more than a training has; 64 KiB for each job.
const ENDED_MAX: usize = 1000;

/// Reads looked back on to see that an epoch has ended before all of its items were read.
const LAST: u32 = 16;

/// Repeats among the last reads that say so. An item that was left out (`drop_last`, at most a tenth)
/// is read for the first time in the next epoch, so not all of them need to be repeats.
const LAST_REPEATS: u32 = 14;

/// Items that an epoch which ends early has to have: who reads fewer items of a large dataset over and
/// over begins a curriculum.
const EPOCH_ITEMS_MIN: u64 = 64;

/// A job's way through a dataset on one node.
///
/// An epoch ends when as many items were read as it has here ([`expect`](Self::expect)); or, on one
/// node, when nearly all of the last 16 reads (14) were of items that it had already read (a sampler
/// that leaves some out, or reads a part of the dataset); or, on several nodes, at the first repeat
/// after nine tenths of it (there only one item in so many comes again in the next epoch).
///
/// Loaders read ahead, so items of the next epoch come before the last ones of this one: an item's
/// first read counts for this epoch and its second for the next. When neither explains a read, or a
/// second comes long before the end, the job does not read as trainings do: [`Pattern`] judges.
/// Of a job that is irregular, an epoch is as many reads as a dataset has items here.
#[derive(Debug, Default)]
pub struct Progress {
    expected: Option<u64>,
    several_nodes: bool,
    number: u64,
    /// Read in this epoch; of an irregular job, since its reads were last followed anew.
    seen: Bits,
    /// Read for the next epoch.
    ahead: Bits,
    /// Read in the epoch before, if that ended before all was read: what it left out may still come,
    /// late, and is taken for this epoch's; its second read then is this epoch's, and the late one
    /// is made good.
    before_late: Option<Bits>,
    this: EpochCounts,
    next: EpochCounts,
    /// All but this epoch and what is ahead of it.
    before: EpochCounts,
    /// The last reads, the newest in the lowest bit: set for a repeat.
    last: u32,
    /// Of those, the repeats that no epoch's end explains.
    unexplained: u32,
    pattern: Pattern,
    ended: VecDeque<EpochCounts>,
}

impl Progress {
    /// Nothing was read yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many items an epoch has on this node, if that is known, and on how many nodes the job
    /// reads. 0 items count as not known.
    pub fn expect(&mut self, items: Option<u64>, nodes: u32) {
        self.expected = items.filter(|items| *items > 0);
        self.several_nodes = nodes > 1;
    }

    /// An item was read. `ordinal`: its number in [`Ordinals`]; without one it is counted, and not
    /// told from others.
    pub fn read(&mut self, ordinal: Option<u32>, counts: &EpochCounts) {
        if self.pattern.irregular() {
            self.read_irregular(ordinal, counts);
        } else {
            self.read_regular(ordinal, counts);
        }
    }

    fn read_regular(&mut self, ordinal: Option<u32>, counts: &EpochCounts) {
        let first = ordinal.is_none_or(|item| self.seen.insert(item));
        let late = !first && self.was_late(ordinal);
        let mut unexplained = false;
        if first {
            self.this.add(counts);
        } else if late {
            self.before.add(counts);
            if let Some(before) = self.ended.back_mut() {
                before.add(counts);
            }
        } else {
            let second = ordinal.is_none_or(|item| self.ahead.insert(item));
            // A tenth may be left out at the end, and loaders be ahead of that.
            let early = |items| self.this.items + window(items) + items / 10 < items;
            unexplained = self.expected.is_some_and(|items| !second || early(items));
            self.next.add(counts);
        }
        // What leaves the last reads was not the beginning of an epoch.
        self.pattern.read(self.unexplained >> (LAST - 1) & 1 == 1);
        self.last = shifted(self.last, !first && !late);
        self.unexplained = shifted(self.unexplained, unexplained);
        if self.pattern.irregular() {
            self.become_irregular();
        } else if self.expected.is_some_and(|items| self.this.items >= items) {
            self.before_late = None;
            self.end_epoch();
        } else if self.has_ended_early(first || late) {
            self.end_early();
        }
    }

    /// Whether the first read of an item in this epoch was a late one of the epoch before; then this
    /// is its read in this epoch.
    fn was_late(&mut self, ordinal: Option<u32>) -> bool {
        match (&mut self.before_late, ordinal) {
            (Some(before), Some(item)) => before.insert(item),
            _ => false,
        }
    }

    fn end_early(&mut self) {
        let items = self.this.items;
        if items < EPOCH_ITEMS_MIN && self.expected.is_some_and(|expected| items * 2 < expected) {
            for _ in 0..self.unexplained.count_ones() {
                self.pattern.read(true);
            }
            if self.pattern.irregular() {
                return self.become_irregular();
            }
        }
        let mut read = self.before_late.take().unwrap_or_default();
        read.clone_from(&self.seen);
        self.before_late = Some(read);
        self.end_epoch();
    }

    fn has_ended_early(&self, new: bool) -> bool {
        let nearly = |items| self.this.items >= items - items / 10;
        if self.several_nodes {
            !new && self.expected.is_some_and(nearly)
        } else {
            self.last.count_ones() >= LAST_REPEATS
        }
    }

    fn end_epoch(&mut self) {
        self.note_epoch();
        std::mem::swap(&mut self.seen, &mut self.ahead);
        self.ahead.clear();
        self.this = std::mem::take(&mut self.next);
        self.last = 0;
        self.unexplained = 0;
        self.pattern.epoch_ended();
    }

    fn become_irregular(&mut self) {
        let ahead = std::mem::take(&mut self.next);
        self.this.add(&ahead);
        self.follow_anew();
    }

    fn follow_anew(&mut self) {
        self.seen.clear();
        self.ahead.clear();
        self.before_late = None;
        self.last = 0;
        self.unexplained = 0;
    }

    fn read_irregular(&mut self, ordinal: Option<u32>, counts: &EpochCounts) {
        self.this.add(counts);
        let repeat = !ordinal.is_none_or(|item| self.seen.insert(item));
        let items = self.expected.unwrap_or(u64::MAX);
        if self.pattern.read_irregular(repeat, items) {
            self.follow_anew();
        }
        if !self.pattern.irregular() || self.this.items >= items {
            self.note_epoch();
        }
    }

    fn note_epoch(&mut self) {
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        let ended = std::mem::take(&mut self.this);
        self.before.add(&ended);
        self.ended.push_back(ended);
        self.number += 1;
    }

    /// The epoch's number, from 0.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Items of an epoch here, if known.
    #[must_use]
    pub fn expected(&self) -> Option<u64> {
        self.expected
    }

    /// What was read in this epoch.
    #[must_use]
    pub fn epoch(&self) -> &EpochCounts {
        &self.this
    }

    /// What was read at all.
    #[must_use]
    pub fn total(&self) -> EpochCounts {
        let mut total = self.before;
        total.add(&self.this);
        total.add(&self.next);
        total
    }

    /// Whether it does not read each item once in each epoch.
    #[must_use]
    pub fn irregular(&self) -> bool {
        self.pattern.irregular()
    }

    /// The last epochs that have ended, oldest first.
    pub fn ended(&self) -> impl Iterator<Item = &EpochCounts> {
        self.ended.iter()
    }
}

fn shifted(last: u32, newest: bool) -> u32 {
    (last << 1 | u32::from(newest)) & ((1 << LAST) - 1)
}

/// A set of ordinals: a bit for each, as far as there are any. At most 3 MiB ([`Ordinals`] has no more
/// than 22 million).
#[derive(Debug, Default, Clone)]
struct Bits(Vec<u64>);

impl Bits {
    /// Adds it; `false`: it was there.
    fn insert(&mut self, ordinal: u32) -> bool {
        let word = crate::num::to_usize(u64::from(ordinal / 64));
        let bit = 1 << (ordinal % 64);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }

    fn clear(&mut self) {
        self.0.fill(0);
    }
}
