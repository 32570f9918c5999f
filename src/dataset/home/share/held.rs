//! Which items are held, of those whose home this node is: for readers one bit each, for the allocator a count
//! for each resident chunk.
//!
//! Items that another dataset keeps are held too. The locks of two datasets are never held at once. So the
//! changes of the others are read before their items: a change meanwhile is then noticed the next time.

use super::Share;
use crate::dataset::item::ItemId;
use crate::model::HomeNode;
use crate::model::slots::layout_of;
use crate::num::first_u64;
use bytes::Bytes;
use copperfs_policy::chunks::ChunkReport;
use copperfs_policy::keep::ItemCache;
use std::sync::Arc;

/// Which of the items at home here are held.
pub(in crate::dataset::home) struct HeldBits {
    pub(in crate::dataset::home) layout: [u8; 16],
    /// Identifies the bits.
    pub(in crate::dataset::home) state: u64,
    /// A bit for each item at home here, in the order of the manifest.
    pub(in crate::dataset::home) bits: Bytes,
    /// The sum of the [`ItemCache::changes`] of which they are.
    changes: u64,
    /// These items.
    at_home: Arc<[ItemId]>,
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
    /// Returns which of the items at home here are held, by this dataset or by one of `others`, whose items
    /// are known by their content too. `None` if the entries of the dataset are not known.
    pub(in crate::dataset::home) fn held(
        &self,
        homes: &[HomeNode],
        others: &[Arc<Self>],
    ) -> Option<Arc<HeldBits>> {
        let elsewhere = changes(others);
        let state = self.state.lock();
        let catalog = state.catalog.clone()?;
        let layout = layout_of(catalog.manifest().identity(), homes);
        let changes = state.cache.changes().wrapping_add(elsewhere);
        let known = state.held.clone().filter(|known| known.layout == layout);
        let at_home: Arc<[ItemId]> = match known {
            Some(known) if known.changes == changes => return Some(known),
            Some(known) => Arc::clone(&known.at_home),
            None => {
                let items = catalog.in_order().map(|(item, _)| item);
                let here = |item: &ItemId| state.placement.at_home(item.slot());
                items.filter(here).collect()
            }
        };
        // At least one byte, because no frame is empty.
        let mut bits = vec![0_u8; at_home.len().div_ceil(8).max(1)];
        mark(&mut bits, &at_home, &state.cache);
        drop(state);
        for other in others {
            mark(&mut bits, &at_home, &other.state.lock().cache);
        }
        let held = Arc::new(HeldBits {
            layout,
            state: first_u64(blake3::hash(&bits).as_bytes()),
            bits: bits.into(),
            changes,
            at_home,
        });
        self.state.lock().held = Some(Arc::clone(&held));
        Some(held)
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

/// Sets the bit of each item that `cache` holds.
fn mark(bits: &mut [u8], items: &[ItemId], cache: &ItemCache<ItemId>) {
    for (at, item) in items.iter().enumerate() {
        bits[at / 8] |= u8::from(cache.holds(item)) << (at % 8);
    }
}
