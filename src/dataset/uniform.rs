//! The uniform cache of one dataset on one home (`SiloD`, section 2.2). Pure.
//!
//! Items are admitted until the share is full, and nothing is evicted until the share shrinks. Then
//! strays are evicted first, which are items whose home is now elsewhere, and after them random
//! items. Since every epoch reads every item once in random order, its hit ratio is the ratio of
//! bytes held to bytes of the dataset, whichever items they are.
//!
//! Invariant: bytes held never exceed the share, and neither do bytes held and reserved together
//! when something is reserved.

use super::item::ItemId;
use crate::num::mix64;
use std::collections::HashMap;

/// See the module.
#[derive(Debug, Default)]
pub struct Uniform {
    /// Without the number of items, which is that of the entries.
    stats: UniformStats,
    /// Dense, so that a random one can be drawn.
    entries: Vec<Entry>,
    /// The index in `entries` by [`ItemId::key`]: one version of each item.
    positions: HashMap<u64, u32>,
    /// Items without their home here when the placement was last examined. Some may have been
    /// evicted since.
    strays: Vec<ItemId>,
    random: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    item: ItemId,
    len: u32,
}

/// Room reserved for an item while it is fetched, for [`Uniform::commit`] or [`Uniform::abort`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the room stays reserved until it is committed or aborted"]
pub struct Reserved {
    item: ItemId,
    len: u32,
}

/// The decision on an item that is about to be read from storage.
#[derive(PartialEq, Eq, Debug)]
pub enum Admission {
    /// It is held already.
    Held,
    /// There is no room for it in the share, so it is not kept.
    Refused,
    /// There is room.
    Reserved(Reserved),
}

/// The result of committing an item.
#[derive(PartialEq, Eq, Debug)]
pub struct Committed {
    /// Whether it is held. It is not if the share has shrunk in the meantime.
    pub kept: bool,
    /// The older version of it, which is no longer held.
    pub replaced: Option<ItemId>,
}

/// The fill level of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UniformStats {
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

impl Uniform {
    /// Creates an empty cache without a share. `seed` determines the random evictions.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            random: seed,
            ..Self::default()
        }
    }

    /// Returns whether this version of the item is held.
    #[must_use]
    pub fn holds(&self, item: &ItemId) -> bool {
        self.at(item).is_some()
    }

    /// Reserves room for an item of `len` bytes, if the share has it. Evicts an older version of
    /// the item, and then strays if necessary. Appends the evicted items to `evicted`.
    pub fn admit(&mut self, item: ItemId, len: u32, evicted: &mut Vec<ItemId>) -> Admission {
        if self.holds(&item) {
            return Admission::Held;
        }
        let bytes = u64::from(len);
        // Do not evict anything for an item that does not fit.
        // An item larger than the whole share would evict strays for nothing.
        if bytes > self.stats.share.saturating_sub(self.stats.reserved) {
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

    /// Holds an item whose bytes have arrived.
    #[expect(clippy::needless_pass_by_value, reason = "room is used once")]
    pub fn commit(&mut self, room: Reserved) -> Committed {
        let Reserved { item, len } = room;
        self.stats.reserved -= u64::from(len);
        let replaced = self.displace(&item);
        let kept = self.stats.used + u64::from(len) <= self.stats.share && self.insert(item, len);
        Committed { kept, replaced }
    }

    /// Releases the room of an item that did not arrive, or could not be kept.
    #[expect(clippy::needless_pass_by_value, reason = "room is used once")]
    pub fn abort(&mut self, room: Reserved) {
        self.stats.reserved -= u64::from(room.len);
    }

    /// Sets the share. Returns the evicted items: strays first, and then random ones.
    pub fn set_share(&mut self, bytes: u64) -> Vec<ItemId> {
        self.stats.share = bytes;
        self.shrink()
    }

    /// Marks the items of slots that are not `at_home` as strays, which are evicted first. Examines
    /// all items.
    pub fn mark_strays(&mut self, at_home: impl Fn(u16) -> bool) {
        let strays = self.entries.iter().map(|entry| entry.item);
        self.strays = strays.filter(|item| !at_home(item.slot())).collect();
    }

    /// Restores items that an earlier process has kept. Returns those that are not held, because
    /// they exceed the share, or because they are the earlier one of two versions.
    pub fn restore(&mut self, items: impl IntoIterator<Item = (ItemId, u32)>) -> Vec<ItemId> {
        let mut gone = Vec::new();
        for (item, len) in items {
            if !self.holds(&item) {
                gone.extend(self.displace(&item));
                gone.extend((!self.insert(item, len)).then_some(item));
            }
        }
        gone.extend(self.shrink());
        gone
    }

    /// Removes an item whose bytes are lost. Returns whether it was held.
    pub fn remove(&mut self, item: &ItemId) -> bool {
        self.at(item).and_then(|at| self.take(at)).is_some()
    }

    /// Returns the fill level.
    #[must_use]
    pub fn stats(&self) -> UniformStats {
        UniformStats {
            items: self.entries.len() as u64,
            ..self.stats
        }
    }

    fn at(&self, item: &ItemId) -> Option<u32> {
        let at = *self.positions.get(&item.key())?;
        let entry = self.entries.get(at as usize)?;
        (entry.item == *item).then_some(at)
    }

    /// Returns whether it is held, which fails beyond 2^32 items.
    fn insert(&mut self, item: ItemId, len: u32) -> bool {
        let Ok(at) = u32::try_from(self.entries.len()) else {
            return false;
        };
        self.entries.push(Entry { item, len });
        self.positions.insert(item.key(), at);
        self.stats.used += u64::from(len);
        true
    }

    /// Removes an entry. The last entry takes its position.
    fn take(&mut self, at: u32) -> Option<ItemId> {
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
        Some(gone.item)
    }

    /// Removes any version of the item.
    fn displace(&mut self, item: &ItemId) -> Option<ItemId> {
        let at = *self.positions.get(&item.key())?;
        self.take(at)
    }

    fn shrink(&mut self) -> Vec<ItemId> {
        let mut gone = Vec::new();
        while self.stats.used > self.stats.share
            && let Some(item) = self.evict_stray().or_else(|| self.evict_any())
        {
            gone.push(item);
        }
        gone
    }

    fn evict_stray(&mut self) -> Option<ItemId> {
        // A stray may have been removed since it was marked.
        while let Some(stray) = self.strays.pop() {
            if self.remove(&stray) {
                self.stats.evicted += 1;
                return Some(stray);
            }
        }
        None
    }

    fn evict_any(&mut self) -> Option<ItemId> {
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
