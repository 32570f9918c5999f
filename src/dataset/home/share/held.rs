//! Which items are held, of those whose home this node is: for readers one bit each, for the allocator a count
//! for each resident chunk.
//!
//! Items that another dataset keeps are held too. The locks of two datasets are never held at once. So the
//! changes of the others are read before their items: a change meanwhile is then noticed the next time.
//!
//! Readers on every node ask several times a second, and a dataset has millions of items. So all items are examined
//! only once, in slices between which reads may take the lock. Later only those are examined that have changed.

use super::Share;
use crate::dataset::item::ItemId;
use crate::model::HomeNode;
use crate::model::slots::layout_of;
use crate::num::first_u64;
use bytes::Bytes;
use copperfs_policy::chunks::ChunkReport;
use copperfs_policy::keep::ItemCache;
use std::sync::{Arc, Weak};

/// The number of items that are examined under one lock: less than a millisecond.
const SLICE_ITEMS: usize = 4096;

/// The items of a dataset whose home this node is.
pub(in crate::dataset::home) struct HomeItems {
    /// Identifies the dataset's entries and the homes.
    layout: [u8; 16],
    /// In the order of the manifest.
    items: Vec<ItemId>,
    /// Their indexes in the order of the items. Entries of equal content share an item.
    sorted: Vec<u32>,
}

/// Which of the items at home here are held.
pub(in crate::dataset::home) struct HeldBits {
    /// Identifies the bits.
    pub(in crate::dataset::home) state: u64,
    /// A bit for each item at home here, in the order of the manifest.
    pub(in crate::dataset::home) bits: Bytes,
    /// These items.
    home_items: Arc<HomeItems>,
    /// The shares that were examined, each with its [`ItemCache::changes`].
    examined: Examined,
}

/// Shares, each with its [`ItemCache::changes`]. By identity and not by dataset: the share of a dataset that was declared
/// again counts its changes from 0.
type Examined = Vec<(Weak<Share>, u64)>;

impl HomeItems {
    fn new(layout: [u8; 16], items: Vec<ItemId>) -> Self {
        // A home has less than 2^32 items, because a manifest has less than 2^32 entries and a few parts of each
        // at most.
        let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
        let mut sorted: Vec<u32> = (0..count).collect();
        sorted.sort_unstable_by_key(|at| items[*at as usize]);
        Self {
            layout,
            items,
            sorted,
        }
    }

    /// Identifies the dataset's entries and the homes.
    pub(in crate::dataset::home) fn layout(&self) -> [u8; 16] {
        self.layout
    }

    /// The positions of an item.
    fn places(&self, item: &ItemId) -> impl Iterator<Item = usize> {
        let item_at = |at: &u32| self.items[*at as usize];
        let first = self.sorted.partition_point(|at| item_at(at) < *item);
        let same = self.sorted[first..].iter();
        let same = same.take_while(move |at| item_at(at) == *item);
        same.map(|at| *at as usize)
    }
}

/// Identifies what a report on chunks was made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkState {
    /// The sum of the [`ItemCache::changes`].
    changes: u64,
    /// The number of items that could not be read or kept.
    lost: usize,
}

impl Share {
    /// Returns the items whose home this node is, of the dataset's entries at these homes. `None` if the entries are
    /// not known. The caller makes sure that the homes do not change meanwhile.
    pub(in crate::dataset::home) fn home_items(
        &self,
        homes: &[HomeNode],
    ) -> Option<Arc<HomeItems>> {
        let state = self.state.lock();
        let catalog = state.catalog.clone()?;
        let layout = layout_of(catalog.manifest().identity(), homes);
        let known = state.home_items.clone();
        if let Some(known) = known.filter(|known| known.layout == layout) {
            return Some(known);
        }
        let placement = Arc::clone(&state.placement);
        drop(state);
        let items = catalog.in_order().map(|(item, _)| item);
        let items = items.filter(|item| placement.at_home(item.slot()));
        let found = Arc::new(HomeItems::new(layout, items.collect()));
        self.state.lock().home_items = Some(Arc::clone(&found));
        Some(found)
    }

    /// Returns which of its `home_items` are held, by this dataset or by one of `others`, whose items are known by
    /// their content too.
    pub(in crate::dataset::home) fn held(
        self: &Arc<Self>,
        home_items: Arc<HomeItems>,
        others: &[Arc<Self>],
    ) -> Arc<HeldBits> {
        let shares: Vec<&Arc<Self>> = std::iter::once(self).chain(others).collect();
        let known = self.state.lock().held.clone();
        let known = known.filter(|known| Arc::ptr_eq(&known.home_items, &home_items));
        let (examined, changed) = match &known {
            Some(known) => changed_since(&shares, &known.examined),
            None => (changes_of(&shares), None),
        };
        let bits = match (&known, changed) {
            (Some(known), Some(changed)) if changed.is_empty() => {
                return Arc::clone(known);
            }
            (Some(known), Some(changed)) => {
                let mut bits = known.bits.to_vec();
                for slice in changed.chunks(SLICE_ITEMS) {
                    examine(&mut bits, &home_items, slice, &shares);
                }
                bits
            }
            _ => examine_all(&home_items.items, &shares),
        };
        let held = Arc::new(HeldBits {
            state: first_u64(blake3::hash(&bits).as_bytes()),
            bits: bits.into(),
            home_items,
            examined,
        });
        self.state.lock().held = Some(Arc::clone(&held));
        held
    }

    /// Returns whether its resident chunks are known.
    pub(in crate::dataset::home) fn has_chunks(&self) -> bool {
        self.state.lock().chunks.is_some()
    }

    /// Returns the number of resident chunks that are loaded here.
    pub(in crate::dataset::home) fn loaded_chunks(&self, others: &[Arc<Self>]) -> usize {
        let reports = self.chunk_reports(others);
        let chunks = self.state.lock().chunks.clone();
        chunks.map_or(0, |chunks| chunks.loaded(&reports))
    }

    /// Returns how much of the resident chunks is held here, by this dataset or by one of `others`, whose items
    /// are known by their content too.
    pub(in crate::dataset::home) fn chunk_reports(&self, others: &[Arc<Self>]) -> Vec<ChunkReport> {
        let elsewhere = changes(others);
        let state = self.state.lock();
        let Some(chunks) = state.chunks.clone() else {
            return Vec::new();
        };
        let now = ChunkState {
            changes: state.cache.changes().wrapping_add(elsewhere),
            lost: state.lost.len(),
        };
        let known = state.counted.as_ref().filter(|(known, _)| *known == now);
        if let Some((_, reports)) = known {
            return reports.clone();
        }
        let mut counts = chunks.count(|item| state.cache.holds(item));
        drop(state);
        for other in others {
            let other = other.state.lock();
            for count in &mut counts {
                count.add_held(|item| other.cache.holds(item));
            }
        }
        let mut state = self.state.lock();
        let lost = |item: &ItemId| state.lost.contains(item);
        let reports: Vec<ChunkReport> = counts.into_iter().map(|one| one.finish(lost)).collect();
        // Unless a decision has replaced the chunks meanwhile.
        if state
            .chunks
            .as_ref()
            .is_some_and(|same| Arc::ptr_eq(same, &chunks))
        {
            state.counted = Some((now, reports.clone()));
        }
        reports
    }
}

/// Returns a number that grows with each change of what `shares` hold.
fn changes(shares: &[Arc<Share>]) -> u64 {
    let changes = shares
        .iter()
        .map(|share| share.state.lock().cache.changes());
    changes.fold(0, u64::wrapping_add)
}

/// Returns the number of changes of each share.
fn changes_of(shares: &[&Arc<Share>]) -> Examined {
    let changes = |share: &&Arc<Share>| (Arc::downgrade(share), share.state.lock().cache.changes());
    shares.iter().map(changes).collect()
}

/// Returns the number of changes of each share, and the items that have changed since those in `before`. `None`: any
/// item may have changed.
fn changed_since(shares: &[&Arc<Share>], before: &Examined) -> (Examined, Option<Vec<ItemId>>) {
    let same = |(share, (known, _)): (&&Arc<Share>, &(Weak<Share>, u64))| {
        std::ptr::eq(Arc::as_ptr(share), known.as_ptr())
    };
    let known = shares.len() == before.len() && shares.iter().zip(before).all(same);
    let mut changed = known.then(Vec::new);
    let mut examined = Vec::with_capacity(shares.len());
    for (at, share) in shares.iter().enumerate() {
        let state = share.state.lock();
        examined.push((Arc::downgrade(share), state.cache.changes()));
        if let Some(items) = &mut changed {
            match state.cache.changed_since(before[at].1) {
                Some(recent) => items.extend(recent),
                None => changed = None,
            }
        }
    }
    (examined, changed)
}

/// Sets the bits of `changed` items.
fn examine(bits: &mut [u8], home_items: &HomeItems, changed: &[ItemId], shares: &[&Arc<Share>]) {
    let mut held = vec![false; changed.len()];
    for share in shares {
        let state = share.state.lock();
        for (held, item) in held.iter_mut().zip(changed) {
            *held |= state.cache.holds(item);
        }
    }
    for (item, held) in changed.iter().zip(held) {
        for at in home_items.places(item) {
            let bit = 1 << (at % 8);
            bits[at / 8] = (bits[at / 8] & !bit) | if held { bit } else { 0 };
        }
    }
}

/// Returns a bit for each of `items`: at least one byte, because no frame is empty.
fn examine_all(items: &[ItemId], shares: &[&Arc<Share>]) -> Vec<u8> {
    let mut bits = vec![0_u8; items.len().div_ceil(8).max(1)];
    for share in shares {
        // A slice has whole bytes.
        for (items, bits) in items
            .chunks(SLICE_ITEMS)
            .zip(bits.chunks_mut(SLICE_ITEMS / 8))
        {
            mark(bits, items, &share.state.lock().cache);
        }
    }
    bits
}

/// Sets the bit of each item that `cache` holds.
fn mark(bits: &mut [u8], items: &[ItemId], cache: &ItemCache<ItemId>) {
    for (at, item) in items.iter().enumerate() {
        bits[at / 8] |= u8::from(cache.holds(item)) << (at % 8);
    }
}
