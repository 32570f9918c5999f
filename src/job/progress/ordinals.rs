//! Numbers for the items of a dataset, in a table of four bytes for each.

use crate::num::to_usize;

/// Slots of the first segment, and of the last: each has four times as many as the one before it, so
/// that a small dataset costs 16 KiB and a large one's segments are few.
const FIRST_SLOTS: usize = 1 << 12;
const LAST_SLOTS: usize = 1 << 24;

/// Gives each item that it is asked for a number, the same one each time. Numbers are below 2^25 and
/// have gaps.
///
/// An item is known by its slot and 32 more bits of its hash: of a million items less than one in a
/// thousand datasets has two that are taken for one. The table holds 16 million items in 90 MiB, more
/// than the largest image datasets have files; of a dataset with more, those that were seen first
/// are followed and stand for the others.
#[derive(Debug, Default)]
pub struct Ordinals {
    segments: Vec<Segment>,
}

#[derive(Debug)]
struct Segment {
    /// The number of its first slot.
    first: usize,
    /// The tag of the item in each slot; 0: none.
    tags: Vec<u32>,
    used: usize,
}

impl Ordinals {
    /// Of no item yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of the item with this hash. `None`: it is new and the table is full.
    pub fn of(&mut self, hash: u64) -> Option<u32> {
        let hash = mixed(hash);
        let tag = u32::try_from(hash >> 32).unwrap_or(0).max(1);
        let mut free = None;
        for segment in &self.segments {
            match segment.find(hash, tag) {
                Ok(slot) => return u32::try_from(segment.first + slot).ok(),
                Err(slot) => free = Some(slot),
            }
        }
        let last = self.segments.last();
        let full = last.is_none_or(|last| last.used >= last.tags.len() / 4 * 3);
        let slot = if full {
            self.grow()?;
            self.segments.last()?.find(hash, tag).err()?
        } else {
            free?
        };
        let last = self.segments.last_mut()?;
        last.tags[slot] = tag;
        last.used += 1;
        u32::try_from(last.first + slot).ok()
    }

    /// Another segment, if there may be one.
    fn grow(&mut self) -> Option<()> {
        let (first, slots) = match self.segments.last() {
            None => (0, FIRST_SLOTS),
            Some(last) => (last.first + last.tags.len(), last.tags.len() * 4),
        };
        if slots > LAST_SLOTS {
            return None;
        }
        self.segments.push(Segment {
            first,
            tags: vec![0; slots],
            used: 0,
        });
        Some(())
    }
}

impl Segment {
    /// The slot of an item, or the free one where it would be. A quarter of the slots is free.
    fn find(&self, hash: u64, tag: u32) -> Result<usize, usize> {
        let mask = self.tags.len() - 1;
        let mut slot = to_usize(hash) & mask;
        loop {
            match self.tags[slot] {
                0 => return Err(slot),
                found if found == tag => return Ok(slot),
                _ => slot = (slot + 1) & mask,
            }
        }
    }
}

/// Spreads a hash, in case its maker did not (`SplitMix64`'s finisher).
fn mixed(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_are_distinct_and_stay() {
        let mut ordinals = Ordinals::new();
        let numbers: Vec<u32> = (0..100_000).map(|i| ordinals.of(i).unwrap()).collect();
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), numbers.len());
        for (item, number) in (0..).zip(&numbers) {
            assert_eq!(ordinals.of(item), Some(*number));
        }
        let bytes: usize = ordinals.segments.iter().map(|s| 4 * s.tags.len()).sum();
        assert!(bytes < 100_000 * 16, "{bytes}");
    }

    #[test]
    fn a_full_table_follows_what_it_has() {
        let mut ordinals = Ordinals::new();
        let first = ordinals.of(1).unwrap();
        ordinals.segments.push(Segment {
            first: FIRST_SLOTS,
            tags: vec![0; LAST_SLOTS],
            used: LAST_SLOTS,
        });
        assert_eq!(ordinals.of(2), None);
        assert_eq!(ordinals.of(1), Some(first));
    }
}
