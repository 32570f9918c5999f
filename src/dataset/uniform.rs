//! The rules of a uniform cache, as one home keeps it for one dataset (`SiloD`, section 2.2). Pure.
//!
//! Items are admitted until the share is full, and nothing is evicted until the share shrinks; then
//! items go that are no longer at home here, and after them any, each as likely as any other. Since
//! every epoch reads every item once, in random order, the hit ratio of an epoch is that of bytes held
//! to bytes of the dataset, whichever items they are.
//!
//! Invariant: what is held, and what is held and reserved when something is reserved, is never above
//! the share.

use super::item::ItemId;
use std::collections::HashMap;

/// See the module.
#[derive(Debug)]
pub struct Uniform {
    share: u64,
    used: u64,
    reserved: u64,
    /// Dense, so that each is as easily drawn as any other.
    entries: Vec<Entry>,
    /// Where in `entries` the item at a place is: one version of it.
    places: HashMap<u64, u32>,
    /// Items that were not at home here when the placement was last looked at; some may be gone since.
    strays: Vec<ItemId>,
    random: u64,
    evicted: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    item: ItemId,
    len: u32,
}

/// Room that is set aside for an item while its bytes are on the way: to be given to
/// [`Uniform::commit`] or [`Uniform::abort`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the room stays reserved until it is committed or aborted"]
pub struct Reserved {
    item: ItemId,
    len: u32,
}

/// What becomes of an item that is about to be read from storage.
#[derive(PartialEq, Eq, Debug)]
pub enum Admission {
    /// It is held already.
    Held,
    /// There is no room for it in the share: it is passed on and not kept.
    Refused,
    /// There is room.
    Reserved(Reserved),
}

/// What became of an item that arrived.
#[derive(PartialEq, Eq, Debug)]
pub struct Committed {
    /// It is held. It is not when the share has shrunk meanwhile.
    pub kept: bool,
    /// The older version of it, which is no longer held.
    pub replaced: Option<ItemId>,
}

/// How full it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UniformStats {
    /// Bytes that it may hold.
    pub share: u64,
    /// Bytes held.
    pub used: u64,
    /// Bytes that room is reserved for.
    pub reserved: u64,
    /// Items held.
    pub items: u64,
    /// Items evicted since it was made.
    pub evicted: u64,
}

impl Uniform {
    /// An empty cache without a share. Which items go when it shrinks follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            share: 0,
            used: 0,
            reserved: 0,
            entries: Vec::new(),
            places: HashMap::new(),
            strays: Vec::new(),
            random: seed,
            evicted: 0,
        }
    }

    /// Whether this version of the item is held.
    #[must_use]
    pub fn holds(&self, item: &ItemId) -> bool {
        self.at(item).is_some()
    }

    /// Reserves room for an item of `len` bytes, if the share has it. An older version of the item goes
    /// for it, and, where that is not enough, what is not at home here: `evicted` gets what went.
    pub fn admit(&mut self, item: ItemId, len: u32, evicted: &mut Vec<ItemId>) -> Admission {
        if self.holds(&item) {
            return Admission::Held;
        }
        let bytes = u64::from(len);
        // Nothing goes for what will not fit.
        if bytes > self.share.saturating_sub(self.reserved) {
            return Admission::Refused;
        }
        evicted.extend(self.displace(&item));
        while self.used + self.reserved + bytes > self.share {
            let Some(stray) = self.evict_stray() else {
                return Admission::Refused;
            };
            evicted.push(stray);
        }
        self.reserved += bytes;
        Admission::Reserved(Reserved { item, len })
    }

    /// The bytes are here: they are held from now on.
    #[expect(clippy::needless_pass_by_value, reason = "room is used once")]
    pub fn commit(&mut self, room: Reserved) -> Committed {
        let Reserved { item, len } = room;
        self.reserved -= u64::from(len);
        let replaced = self.displace(&item);
        let kept = self.used + u64::from(len) <= self.share && self.insert(item, len);
        Committed { kept, replaced }
    }

    /// The bytes did not come, or could not be kept.
    #[expect(clippy::needless_pass_by_value, reason = "room is used once")]
    pub fn abort(&mut self, room: Reserved) {
        self.reserved -= u64::from(room.len);
    }

    /// The share is `bytes` now. Gives what is evicted for it: first what is not at home here, then any.
    pub fn set_share(&mut self, bytes: u64) -> Vec<ItemId> {
        self.share = bytes;
        self.shrink()
    }

    /// Items of slots for which `at_home` says no are the first to go, and make way for those that are
    /// at home here. Looks at all of them.
    pub fn place(&mut self, at_home: impl Fn(u16) -> bool) {
        let strays = self.entries.iter().map(|entry| entry.item);
        self.strays = strays.filter(|item| !at_home(item.slot())).collect();
    }

    /// Takes up what an earlier process has kept. Gives what is not held: beyond the share, or of two
    /// versions the one that came first.
    pub fn restore(&mut self, items: impl IntoIterator<Item = (ItemId, u32)>) -> Vec<ItemId> {
        let mut gone = Vec::new();
        for (item, len) in items {
            if !self.holds(&item) {
                gone.extend(self.displace(&item));
                if !self.insert(item, len) {
                    gone.push(item);
                }
            }
        }
        gone.extend(self.shrink());
        gone
    }

    /// Forgets an item: its bytes are lost. Says whether it was held.
    pub fn remove(&mut self, item: &ItemId) -> bool {
        match self.at(item) {
            Some(at) => {
                self.take(at);
                true
            }
            None => false,
        }
    }

    /// How full it is.
    #[must_use]
    pub fn stats(&self) -> UniformStats {
        UniformStats {
            share: self.share,
            used: self.used,
            reserved: self.reserved,
            items: self.entries.len() as u64,
            evicted: self.evicted,
        }
    }

    fn at(&self, item: &ItemId) -> Option<u32> {
        let at = *self.places.get(&item.place())?;
        let entry = self.entries.get(at as usize)?;
        (entry.item == *item).then_some(at)
    }

    /// Says whether it is held: of one dataset a node holds four thousand million items at most.
    fn insert(&mut self, item: ItemId, len: u32) -> bool {
        let Ok(at) = u32::try_from(self.entries.len()) else {
            return false;
        };
        self.entries.push(Entry { item, len });
        self.places.insert(item.place(), at);
        self.used += u64::from(len);
        true
    }

    /// Takes an entry out; the last one gets its position.
    fn take(&mut self, at: u32) -> Option<ItemId> {
        if at as usize >= self.entries.len() {
            return None;
        }
        let gone = self.entries.swap_remove(at as usize);
        self.places.remove(&gone.item.place());
        if let Some(moved) = self.entries.get(at as usize) {
            self.places.insert(moved.item.place(), at);
        }
        self.used -= u64::from(gone.len);
        Some(gone.item)
    }

    /// Takes out whatever version of the item is held.
    fn displace(&mut self, item: &ItemId) -> Option<ItemId> {
        let at = *self.places.get(&item.place())?;
        self.take(at)
    }

    fn shrink(&mut self) -> Vec<ItemId> {
        let mut gone = Vec::new();
        while self.used > self.share {
            let Some(item) = self.evict_stray().or_else(|| self.evict_any()) else {
                break;
            };
            gone.push(item);
        }
        gone
    }

    fn evict_stray(&mut self) -> Option<ItemId> {
        while let Some(stray) = self.strays.pop() {
            if self.remove(&stray) {
                self.evicted += 1;
                return Some(stray);
            }
        }
        None
    }

    fn evict_any(&mut self) -> Option<ItemId> {
        let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        let at = self.draw(count);
        self.evicted += 1;
        self.take(at)
    }

    /// Evenly below `count`, to one part in 2^32 (splitmix64; Steele, Lea and Flood, 2014).
    fn draw(&mut self, count: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let drawn = (u128::from(mixed) * u128::from(count)) >> 64;
        u32::try_from(drawn).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
