//! The items of one dataset on one home, within the home's share of the dataset's budget. Pure.
//!
//! Items that the [`Rule`] keeps are admitted until the share is full. Nothing is evicted until the
//! share shrinks or the rule changes. If the share shrinks, strays are evicted first, which are items
//! whose home is now elsewhere, and after them random items.
//!
//! A rule that keeps everything makes a uniform cache (`SiloD`, section 2.2): since every epoch reads
//! every item once in random order, its hit ratio is the ratio of bytes held to bytes of the
//! dataset, whichever items they are.
//!
//! With [`ItemCache::keep_by_count`] the items with the fewest references make room for others (LRC,
//! section III-A; `counted`). An item's counts belong to all of its versions.
//!
//! Invariant: bytes held never exceed the share, and neither do bytes held and reserved together
//! when something is reserved. (By count, room that was reserved may go to an item with more references.)
//! Every item held is one that the rule keeps.

mod counted;

use super::{Everything, Item, Rule};
use crate::references::EvictionOrder;
use copperfs_topology::mix64;
use std::collections::{HashMap, VecDeque};

/// The number of changes that are remembered: those of a busy second, so that what looks at the cache more often need
/// not look at all items.
const RECENT_MAX: usize = 1 << 14;

/// See the module.
#[derive(Debug)]
pub struct ItemCache<I> {
    rule: Box<dyn Rule<I>>,
    /// Without the number of items, which is that of the entries.
    stats: ItemCacheStats,
    /// Dense, so that a random one can be drawn.
    entries: Vec<Entry<I>>,
    /// The index in `entries` by [`Item::key`]: one version of each item.
    positions: HashMap<u64, u32>,
    /// Items without their home here when the placement was last examined. Some may have been
    /// evicted since.
    strays: Vec<I>,
    random: u64,
    /// The order of eviction by counts, with the items held and those whose room is reserved. `None`: items do
    /// not make room for others.
    order: Option<EvictionOrder<u64>>,
    changes: u64,
    /// The items of the last changes, the newest one last.
    recent: VecDeque<I>,
}

#[derive(Clone, Copy, Debug)]
struct Entry<I> {
    item: I,
    len: u32,
}

/// Room reserved for an item while it is fetched, for [`ItemCache::commit`] or [`ItemCache::abort`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the room stays reserved until it is committed or aborted"]
pub struct Reserved<I> {
    item: I,
    len: u32,
}

/// The decision on an item that is about to be read from storage.
#[derive(PartialEq, Eq, Debug)]
pub enum Admission<I> {
    /// It is held already.
    Held,
    /// It is not kept: the rule does not keep it, or the share has no room for it.
    Refused,
    /// There is room.
    Reserved(Reserved<I>),
}

/// The fill level of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ItemCacheStats {
    /// The share in bytes.
    pub share: u64,
    /// Bytes held.
    pub used: u64,
    /// Bytes reserved.
    pub reserved: u64,
    /// Items held.
    pub items: u64,
    /// Items evicted since the cache was created.
    pub evicted: u64,
}

impl<I: Item> ItemCache<I> {
    /// Creates an empty cache without a share, which keeps everything. `seed` determines the random
    /// evictions.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            rule: Box::new(Everything),
            stats: ItemCacheStats::default(),
            entries: Vec::new(),
            positions: HashMap::new(),
            strays: Vec::new(),
            random: seed,
            order: None,
            changes: 0,
            recent: VecDeque::new(),
        }
    }

    /// Returns whether this version of the item is held.
    #[must_use]
    pub fn holds(&self, item: &I) -> bool {
        self.at(item).is_some()
    }

    /// Returns the length in bytes of this version of the item, if it is held.
    #[must_use]
    pub fn len_of(&self, item: &I) -> Option<u32> {
        let at = self.at(item)?;
        self.entries.get(at as usize).map(|entry| entry.len)
    }

    /// Returns whether the rule keeps the item.
    #[must_use]
    pub fn keeps(&self, item: &I) -> bool {
        self.rule.keeps(item)
    }

    /// Returns whether [`ItemCache::admit`] would reserve room for an item of `len` bytes. Changes nothing.
    #[must_use]
    pub fn would_admit(&self, item: &I, len: u32) -> bool {
        let bytes = u64::from(len);
        if !self.rule.keeps(item) || self.holds(item) {
            return false;
        }
        if let Some(order) = &self.order {
            return self.would_admit_by_count(order, item, bytes);
        }
        let older = self.positions.get(&item.key());
        let older = older.map_or(0, |at| u64::from(self.entries[*at as usize].len));
        let strays = self.strays.iter().filter(|stray| stray.key() != item.key());
        let strays = strays.filter_map(|stray| self.len_of(stray)).map(u64::from);
        let needed = (self.stats.used - older + self.stats.reserved + bytes)
            .saturating_sub(self.stats.share);
        needed == 0 || (bytes <= self.unreserved() && needed <= strays.sum())
    }

    /// Reserves room for an item of `len` bytes, if the rule keeps it and the share has room. Evicts an older version of
    /// the item, and then strays if necessary, and by count items with fewer references. Appends the evicted items to
    /// `evicted`.
    pub fn admit(&mut self, item: I, len: u32, evicted: &mut Vec<I>) -> Admission<I> {
        if self.holds(&item) {
            return Admission::Held;
        }
        let bytes = u64::from(len);
        if !self.rule.keeps(&item) {
            return Admission::Refused;
        }
        if self.order.is_some() {
            return self.admit_by_count(item, len, evicted);
        }
        // An item larger than the whole share would evict strays for nothing.
        if bytes > self.unreserved() {
            return Admission::Refused;
        }
        evicted.extend(self.displace(&item));
        while self.stats.used + self.stats.reserved + bytes > self.stats.share {
            let Some(stray) = self.evict_stray() else {
                return Admission::Refused;
            };
            evicted.push(stray);
        }
        self.stats.reserved += bytes;
        Admission::Reserved(Reserved { item, len })
    }

    /// Holds an item whose bytes have arrived, and returns whether it is held. It is not if the share has shrunk, the
    /// rule has changed, or its room has gone to another item in the meantime. If this version of it has been held since
    /// the room was reserved, it stays. Appends the items that are held no more to `evicted`, an older version among
    /// them.
    #[expect(clippy::needless_pass_by_value, reason = "room is used once")]
    pub fn commit(&mut self, room: Reserved<I>, evicted: &mut Vec<I>) -> bool {
        let Reserved { item, len } = room;
        self.stats.reserved -= u64::from(len);
        if self.holds(&item) {
            return true;
        }
        evicted.extend(self.displace(&item));
        let keeps = self.rule.keeps(&item);
        if self.order.is_some() {
            return self.commit_by_count(item, len, keeps, evicted);
        }
        let fits = self.stats.used + u64::from(len) <= self.stats.share;
        fits && keeps && self.insert(item, len)
    }

    /// Releases the room of an item that did not arrive, or could not be kept.
    #[expect(clippy::needless_pass_by_value, reason = "room is used once")]
    pub fn abort(&mut self, room: Reserved<I>) {
        self.stats.reserved -= u64::from(room.len);
        let key = room.item.key();
        // Another version of it may have arrived meanwhile.
        if !self.positions.contains_key(&key) {
            self.leave_order(key);
        }
    }

    /// Sets the rule. Returns the evicted items, which are those that it does not keep.
    pub fn set_rule(&mut self, rule: Box<dyn Rule<I>>) -> Vec<I> {
        let entries = self.entries.iter().map(|entry| entry.item);
        let gone: Vec<I> = entries.filter(|item| !rule.keeps(item)).collect();
        self.rule = rule;
        for item in &gone {
            self.remove(item);
        }
        self.stats.evicted += gone.len() as u64;
        gone
    }

    /// Sets the share. Returns the evicted items: strays first, and then random ones, or by count those with the
    /// fewest references.
    pub fn set_share(&mut self, bytes: u64) -> Vec<I> {
        self.stats.share = bytes;
        self.shrink()
    }

    /// Marks the items that are not `at_home` as strays, which are evicted first. Examines
    /// all items.
    pub fn mark_strays(&mut self, at_home: impl Fn(&I) -> bool) {
        let strays = self.entries.iter().map(|entry| entry.item);
        self.strays = strays.filter(|item| !at_home(item)).collect();
    }

    /// Restores items that an earlier process has kept. Returns those that are not held, because
    /// they exceed the share, because the rule does not keep them, or because they are the earlier
    /// one of two versions.
    pub fn restore(&mut self, items: impl IntoIterator<Item = (I, u32)>) -> Vec<I> {
        let mut gone = Vec::new();
        for (item, len) in items {
            if !self.holds(&item) {
                gone.extend(self.displace(&item));
                let keeps = self.rule.keeps(&item);
                let kept = match self.order.is_some() {
                    true => self.commit_by_count(item, len, keeps, &mut gone),
                    false => keeps && self.insert(item, len),
                };
                gone.extend((!kept).then_some(item));
            }
        }
        gone.extend(self.shrink());
        gone
    }

    /// Removes an item whose bytes are lost. Returns whether it was held.
    pub fn remove(&mut self, item: &I) -> bool {
        self.at(item).and_then(|at| self.take(at)).is_some()
    }

    /// Returns a number that grows whenever an item begins or ceases to be held.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the items of the changes after the first `changes` ones. Returns `None` if some of them are not
    /// remembered any more: then any item may have changed.
    #[must_use]
    pub fn changed_since(&self, changes: u64) -> Option<impl Iterator<Item = &I>> {
        let count = usize::try_from(self.changes.checked_sub(changes)?).ok()?;
        let skipped = self.recent.len().checked_sub(count)?;
        Some(self.recent.range(skipped..))
    }

    /// Returns the fill level.
    #[must_use]
    pub fn stats(&self) -> ItemCacheStats {
        ItemCacheStats {
            items: self.entries.len() as u64,
            ..self.stats
        }
    }

    /// Returns the bytes of the share that are not reserved.
    fn unreserved(&self) -> u64 {
        self.stats.share.saturating_sub(self.stats.reserved)
    }

    fn at(&self, item: &I) -> Option<u32> {
        let at = *self.positions.get(&item.key())?;
        let entry = self.entries.get(at as usize)?;
        (entry.item == *item).then_some(at)
    }

    /// Returns whether it is held, which fails beyond 2^32 items.
    fn insert(&mut self, item: I, len: u32) -> bool {
        let Ok(at) = u32::try_from(self.entries.len()) else {
            return false;
        };
        self.entries.push(Entry { item, len });
        self.positions.insert(item.key(), at);
        self.stats.used += u64::from(len);
        self.note_change(item);
        true
    }

    /// Removes an entry. The last entry takes its position.
    fn take(&mut self, at: u32) -> Option<I> {
        if at as usize >= self.entries.len() {
            return None;
        }
        // The last entry takes the position, so that entries stay dense.
        let gone = self.entries.swap_remove(at as usize);
        self.positions.remove(&gone.item.key());
        if let Some(moved) = self.entries.get(at as usize) {
            self.positions.insert(moved.item.key(), at);
        }
        self.stats.used -= u64::from(gone.len);
        self.leave_order(gone.item.key());
        self.note_change(gone.item);
        Some(gone.item)
    }

    fn note_change(&mut self, item: I) {
        self.changes += 1;
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(item);
    }

    /// Removes any version of the item.
    fn displace(&mut self, item: &I) -> Option<I> {
        let at = *self.positions.get(&item.key())?;
        self.take(at)
    }

    fn shrink(&mut self) -> Vec<I> {
        if self.order.is_some() {
            return self.shrink_by_count();
        }
        let mut gone = Vec::new();
        while self.stats.used > self.stats.share
            && let Some(item) = self.evict_stray().or_else(|| self.evict_any())
        {
            gone.push(item);
        }
        gone
    }

    fn evict_stray(&mut self) -> Option<I> {
        // A stray may have been removed since it was marked.
        while let Some(stray) = self.strays.pop() {
            if self.remove(&stray) {
                self.stats.evicted += 1;
                return Some(stray);
            }
        }
        None
    }

    fn evict_any(&mut self) -> Option<I> {
        // Splitmix64 (Steele, Lea and Flood, 2014), scaled to the number of entries. The probabilities
        // differ by less than 2^-32 of each other.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let drawn = (u128::from(mix64(self.random)) * self.entries.len() as u128) >> 64;
        self.stats.evicted += 1;
        self.take(u32::try_from(drawn).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
