//! Numbers for the items of a dataset, in a table with four bytes for each item.

use crate::num::{mix64, to_usize};

/// Slots of the first and the last segment. Each segment has four times as many as the one before
/// it, so that a small dataset costs 16 KiB and a large one has few segments.
const FIRST_SLOTS: usize = 1 << 12;
const LAST_SLOTS: usize = 1 << 24;
/// The number of tags of a part: 32 KiB.
const PART_TAGS: usize = 8192;

/// Assigns a stable number to each item. Numbers are below 2^25 and have gaps.
///
/// An item is identified by its slot and 32 more bits of its hash. Among datasets of a million
/// items, fewer than one in a thousand has two items with the same number. The table holds 16
/// million items in 90 MiB, more than the largest image datasets have files. In a larger dataset,
/// the items that were read first are tracked and stand for the others.
#[derive(Debug, Default)]
pub struct Ordinals {
    segments: Vec<Segment>,
}

#[derive(Debug)]
struct Segment {
    /// The number of its first slot.
    first: usize,
    /// The tag of the item in each slot. 0: none.
    tags: Vec<u32>,
    used: usize,
}

impl Ordinals {
    /// Returns the number of the item with this hash. `None` if it is new and the table is full. If it is new and
    /// has a number, calls `added` with its number and tag.
    pub fn of(&mut self, hash: u64, added: impl FnOnce(u32, u32)) -> Option<u32> {
        // The hash may be weak.
        let hash = mix64(hash);
        let tag = u32::try_from(hash >> 32).unwrap_or(0).max(1);
        let mut free = None;
        // Items never move, because their number is their position. So every segment is searched.
        for segment in &self.segments {
            match segment.find(hash, tag) {
                Ok(slot) => return u32::try_from(segment.first + slot).ok(),
                Err(slot) => free = Some(slot),
            }
        }
        let last = self.segments.last();
        // A quarter of free slots keeps probe sequences short, and ends every one.
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
        let number = u32::try_from(last.first + slot).ok()?;
        added(number, tag);
        Some(number)
    }

    /// Adds items with the numbers from `first` on, as they were in another table. A tag of 0 is none.
    pub fn restore(&mut self, first: u32, tags: &[u32]) {
        for (number, tag) in (to_usize(first.into())..).zip(tags) {
            while self.slots() <= number {
                if self.grow().is_none() {
                    return;
                }
            }
            let mut segments = self.segments.iter_mut().rev();
            let Some(segment) = segments.find(|segment| segment.first <= number) else {
                return;
            };
            let slot = &mut segment.tags[number - segment.first];
            if *slot == 0 && *tag != 0 {
                *slot = *tag;
                segment.used += 1;
            }
        }
    }

    /// Returns the tags of all numbers in parts, each with its first number. Parts without items are left out.
    pub fn parts(&self) -> impl Iterator<Item = (u32, &[u32])> {
        let parts = self.segments.iter().flat_map(|segment| {
            let firsts = (segment.first..).step_by(PART_TAGS);
            firsts.zip(segment.tags.chunks(PART_TAGS))
        });
        let parts = parts.filter(|(_, tags)| tags.iter().any(|tag| *tag != 0));
        parts.filter_map(|(first, tags)| Some((u32::try_from(first).ok()?, tags)))
    }

    /// The number of slots of all segments.
    fn slots(&self) -> usize {
        let last = self.segments.last();
        last.map_or(0, |last| last.first + last.tags.len())
    }

    /// Adds a segment, unless there are too many.
    fn grow(&mut self) -> Option<()> {
        let (first, slots) = match self.segments.last() {
            None => (0, FIRST_SLOTS),
            Some(last) => (self.slots(), last.tags.len() * 4),
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
    /// Returns the slot of an item, or the free slot for it. A quarter of the slots is free.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_are_distinct_and_stay() {
        let mut ordinals = Ordinals::default();
        let numbers: Vec<u32> = (0..100_000)
            .map(|i| ordinals.of(i, |_, _| {}).unwrap())
            .collect();
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), numbers.len());
        for (item, number) in (0..).zip(&numbers) {
            assert_eq!(ordinals.of(item, |_, _| {}), Some(*number));
        }
        let bytes: usize = ordinals.segments.iter().map(|s| 4 * s.tags.len()).sum();
        assert!(bytes < 100_000 * 16, "{bytes}");
    }

    #[test]
    fn a_full_table_keeps_its_items() {
        let mut ordinals = Ordinals::default();
        let first = ordinals.of(1, |_, _| {}).unwrap();
        ordinals.segments.push(Segment {
            first: FIRST_SLOTS,
            tags: vec![0; LAST_SLOTS],
            used: LAST_SLOTS,
        });
        assert_eq!(ordinals.of(2, |_, _| {}), None);
        assert_eq!(ordinals.of(1, |_, _| {}), Some(first));
    }
}
