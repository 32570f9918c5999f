//! Items that a dataset gives up pass to another dataset that has them too.
//!
//! An item of known content is kept for one dataset, although several may name it, and counts in the share
//! of that one. If the dataset gives it up, because its share has shrunk, its rule does not keep the item any
//! more, or it was removed, another one takes it that has room for it. Storage is not read for it again.
//! Until the item is kept there, requests for it wait.

use super::Home;
use super::share::{GivenUp, Lead, Share};
use crate::dataset::item::ItemId;
use crate::dataset::item_store::ItemStore;
use copperfs_overlay::BLOCK_BYTES;
use std::sync::Arc;

/// An item that passes to another dataset, which has reserved room for it.
pub(super) struct Inheritance {
    item: ItemId,
    len: u64,
    lead: Lead,
    /// The item store of that dataset.
    item_store: Arc<ItemStore>,
}

impl Home {
    /// Passes the items that `from` has given up to other datasets, in a task of its own. Those that no other
    /// dataset takes are evicted at once.
    pub(super) fn pass_on(&self, from: &Arc<Share>, mut given_up: GivenUp) {
        let inheritances = self.inheritances(from, &given_up.items);
        if inheritances.is_empty() {
            return;
        }
        // Both are in the order of the items.
        let mut passing = inheritances.iter().map(|one| one.item).peekable();
        given_up
            .items
            .retain(|item| passing.next_if_eq(item).is_none());
        if let Some(item_store) = given_up.item_store.clone() {
            let from = Arc::clone(from);
            drop(
                self.0
                    .runtime
                    .spawn(hand_over(from, item_store, inheritances)),
            );
        }
    }

    /// Reserves room in other datasets for those of the items that they take, in the order of the items.
    pub(super) fn inheritances(&self, from: &Arc<Share>, items: &[ItemId]) -> Vec<Inheritance> {
        // Under the policy `lru` each item has its place in one dataset's order of reads.
        let is_lru = self.0.recency.lock().is_some();
        // The items of a private dataset pass to no other: see `with_content`.
        let heirs = match items.is_empty() || is_lru || !from.is_public() {
            true => Vec::new(),
            false => self.with_content(from),
        };
        if heirs.is_empty() {
            return Vec::new();
        }
        let inherit = |item: &ItemId| {
            let _deciding = self.0.contents.lock();
            if heirs.iter().any(|heir| heir.holds(item)) {
                return None;
            }
            heirs.iter().find_map(|heir| {
                let len = heir.len_of(item)?;
                let (lead, item_store) = heir.reserve(*item, len)?;
                Some(Inheritance {
                    item: *item,
                    len,
                    lead,
                    item_store,
                })
            })
        };
        items.iter().filter_map(inherit).collect()
    }
}

/// Moves items of `from` from its item store to those of the datasets that take them, one after the other. So the bytes
/// of at most one item are in two places.
pub(super) async fn hand_over(
    from: Arc<Share>,
    item_store: Arc<ItemStore>,
    inheritances: Vec<Inheritance>,
) {
    for one in inheritances {
        let blocks = 0..one.len.div_ceil(BLOCK_BYTES);
        let found = item_store.blocks(&one.item, one.len, blocks).await;
        from.discard(&item_store, &[one.item]);
        match found {
            Some(found) => {
                let numbered = (0..).zip(found);
                let blocks = numbered.map(|(index, (bytes, hash))| (index, hash, bytes));
                one.lead.keep(&one.item_store, blocks.collect()).await;
            }
            // Its bytes are damaged: the next request reads them from storage.
            None => one.lead.give_back(),
        }
    }
}
