//! Items that are kept by their reference counts (LRC, section III-A).
//!
//! An item that comes in is a candidate beside the items held ([`Admit::Compare`]): a file that is read once must not
//! evict one that will be read again. Items that no pipeline has declared are spared while they have at most
//! [`FLOOR_PERCENT`] of the share.
//!
//! The order knows items by their keys. Room that is reserved has its place in the order, so that two items in flight
//! do not count on the same room. It may be chosen for another item meanwhile. Then its own item asks for room again
//! when it arrives.

use super::{Admission, ItemCache, Reserved};
use crate::keep::Item;
use crate::references::{Admit, EvictionOrder, Limits, ResidentBytes};

/// The part of a share up to which undeclared items are spared, in per cent.
const FLOOR_PERCENT: u64 = 20;

fn limits(share: u64) -> Limits {
    Limits {
        capacity: share,
        floor: share / 100 * FLOOR_PERCENT,
        admit: Admit::Compare,
    }
}

impl<I: Item> ItemCache<I> {
    /// Chooses whether the items with the fewest references make room for others. All counts are 0 at first.
    pub fn keep_by_count(&mut self, by_count: bool) {
        if by_count == self.order.is_some() {
            return;
        }
        self.order = by_count.then(|| {
            let mut order = EvictionOrder::new(limits(self.stats.share));
            for entry in &self.entries {
                // All of them are within the share.
                order.insert(entry.item.key(), u64::from(entry.len), &mut Vec::new());
            }
            order
        });
    }

    /// Returns whether items are kept by their counts.
    #[must_use]
    pub fn is_by_count(&self) -> bool {
        self.order.is_some()
    }

    /// Declares the item with this key, and sets its number of references. An item without references that is not held
    /// is forgotten.
    pub fn set_count(&mut self, key: u64, count: u32) {
        if let Some(order) = &mut self.order {
            match count == 0 && !order.is_resident(&key) {
                true => order.forget(&key),
                false => order.set_count(&key, count),
            }
        }
    }

    /// Makes an item the last one read, if it is held.
    pub fn touch(&mut self, item: &I) {
        if self.holds(item)
            && let Some(order) = &mut self.order
        {
            order.touch(&item.key());
        }
    }

    /// Evicts the declared items without references. Returns them.
    pub fn flush(&mut self) -> Vec<I> {
        let mut keys = Vec::new();
        if let Some(order) = &mut self.order {
            order.flush(&mut keys);
        }
        let mut gone = Vec::new();
        self.evict_keys(keys, &mut gone);
        gone
    }

    /// Returns the bytes held and reserved, by the declaration of their items. `None`: items are not kept by their
    /// counts.
    #[must_use]
    pub fn bytes_by_count(&self) -> Option<ResidentBytes> {
        self.order.as_ref().map(EvictionOrder::bytes)
    }

    /// Returns whether there would be room. While there are strays, and for another version of an item that is held,
    /// it may say so although there is none, at the cost of reading the item whole.
    pub(super) fn would_admit_by_count(
        &self,
        order: &EvictionOrder<u64>,
        item: &I,
        bytes: u64,
    ) -> bool {
        let key = item.key();
        let is_held = self.positions.contains_key(&key);
        // Another version of it is on its way.
        let is_on_its_way = order.is_resident(&key) && !is_held;
        let may_have_room = is_held || !self.strays.is_empty();
        bytes <= self.stats.share
            && !is_on_its_way
            && (may_have_room || order.victims_for(&key, bytes).is_some())
    }

    pub(super) fn admit_by_count(
        &mut self,
        item: I,
        len: u32,
        evicted: &mut Vec<I>,
    ) -> Admission<I> {
        let (key, bytes) = (item.key(), u64::from(len));
        let is_on_its_way = |order: &EvictionOrder<u64>| order.is_resident(&key);
        if bytes > self.stats.share {
            return Admission::Refused;
        }
        evicted.extend(self.displace(&item));
        if self.order.as_ref().is_some_and(is_on_its_way) {
            return Admission::Refused;
        }
        self.make_room_of_strays(bytes, evicted);
        if !self.take_room(key, bytes, evicted) {
            return Admission::Refused;
        }
        self.stats.reserved += bytes;
        Admission::Reserved(Reserved { item, len })
    }

    /// Holds an item, whose room is reserved unless another item has it now.
    pub(super) fn commit_by_count(
        &mut self,
        item: I,
        len: u32,
        keeps: bool,
        evicted: &mut Vec<I>,
    ) -> bool {
        let (key, bytes) = (item.key(), u64::from(len));
        if let Some(order) = &mut self.order {
            order.remove(&key);
        }
        let kept = keeps && self.take_room(key, bytes, evicted) && self.insert(item, len);
        if !kept {
            self.leave_order(key);
        }
        kept
    }

    pub(super) fn shrink_by_count(&mut self) -> Vec<I> {
        let mut gone = Vec::new();
        self.make_room_of_strays(0, &mut gone);
        let mut keys = Vec::new();
        if let Some(order) = &mut self.order {
            order.set_limits(limits(self.stats.share), &mut keys);
        }
        self.evict_keys(keys, &mut gone);
        gone
    }

    /// Removes a key that is neither held nor on its way from the order. Its count stays.
    pub(super) fn leave_order(&mut self, key: u64) {
        if let Some(order) = &mut self.order {
            order.remove(&key);
            if order.rank(&key) == 0 {
                order.forget(&key);
            }
        }
    }

    /// Evicts strays until there is room for `bytes`, or no stray is left.
    fn make_room_of_strays(&mut self, bytes: u64, evicted: &mut Vec<I>) {
        let used = |cache: &Self| cache.bytes_by_count().unwrap_or_default().total();
        while used(self) + bytes > self.stats.share
            && let Some(stray) = self.evict_stray()
        {
            evicted.push(stray);
        }
    }

    /// Returns whether there is room.
    fn take_room(&mut self, key: u64, bytes: u64, evicted: &mut Vec<I>) -> bool {
        let mut victims = Vec::new();
        let order = self.order.as_mut();
        let has_room = order.is_some_and(|order| order.insert(key, bytes, &mut victims));
        self.evict_keys(victims, evicted);
        has_room
    }

    /// Evicts the items of keys that have left the order. Room that was reserved has no item yet.
    fn evict_keys(&mut self, keys: Vec<u64>, evicted: &mut Vec<I>) {
        for key in keys {
            let at = self.positions.get(&key).copied();
            match at.and_then(|at| self.take(at)) {
                Some(item) => {
                    self.stats.evicted += 1;
                    evicted.push(item);
                }
                None => self.leave_order(key),
            }
        }
    }
}

#[cfg(test)]
mod tests;
