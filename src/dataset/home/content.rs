//! Items by their hash alone: what the home gives to readers without a path, and takes from them.

use super::share::Share;
use super::{Home, hash_of};
use crate::dataset::fetch::Fetched;
use crate::dataset::item::ItemId;
use bytes::Bytes;
use copperfs_overlay::{ContentHash, Insertion};
use std::sync::Arc;

impl Home {
    /// Returns an item that is held here, by its hash: see [`copperfs_overlay::Service::content`]. Only items
    /// that the manifest of a public dataset names are given.
    pub async fn content(&self, hash: ContentHash) -> Option<Bytes> {
        let items = ItemId::all_of_content(&hash);
        let shares = self.public();
        // Both are looked up in any case, so that the time does not tell why an item is not given.
        let is_named = self.is_public(&shares, &items);
        let held = shares.iter().find_map(|share| share.held_item(&items));
        let (item, len, item_store) = held.filter(|_| is_named)?;
        let found = item_store.get(&item, len, 0..len).await?;
        let (bytes, known) = match found.as_slice() {
            [only] => (only.bytes.clone(), only.hash),
            blocks => {
                let blocks: Vec<&[u8]> = blocks.iter().map(|block| &*block.bytes).collect();
                (blocks.concat().into(), None)
            }
        };
        let known = match known {
            Some(known) => known,
            None => hash_of(&bytes).await,
        };
        // An identity is only a part of the hash.
        (known == hash).then_some(bytes)
    }

    /// Takes an item: see [`copperfs_overlay::Service::insert`]. Its bytes are checked before they are kept.
    pub async fn insert(&self, hash: ContentHash, bytes: Bytes) -> Insertion {
        let len = bytes.len() as u64;
        let item = ItemId::of_content(&hash, len);
        let fetched = Fetched {
            start: 0,
            bytes,
            hashes: Vec::new(),
        };
        let checking = tokio::task::spawn_blocking(move || fetched.check(hash));
        let Some(checked) = checking.await.ok().flatten() else {
            return Insertion::Refused;
        };
        let shares = self.public();
        if !self.is_public(&shares, &[item]) {
            return Insertion::Refused;
        }
        let mut keeping: Vec<&Arc<Share>> = shares.iter().collect();
        keeping.retain(|share| share.names(&[item]) && share.keeps(&item));
        if self.0.recency.lock().is_some() {
            // Shares have no limit of their own then. Room is made in one of them, as for a read.
            keeping.truncate(1);
            keeping
                .iter()
                .for_each(|share| self.touch(share, item, len, len));
        }
        let reserved = {
            let _deciding = self.0.contents.lock();
            if shares.iter().any(|share| share.holds(&item)) {
                return Insertion::Kept;
            }
            keeping.iter().find_map(|share| share.reserve(item, len))
        };
        let Some((lead, item_store)) = reserved else {
            return Insertion::NoRoom;
        };
        match lead.keep(&item_store, checked.blocks()).await {
            true => Insertion::Kept,
            false => Insertion::NoRoom,
        }
    }

    /// Returns whether the manifest of a public dataset names one of these items.
    fn is_public(&self, shares: &[Arc<Share>], items: &[ItemId]) -> bool {
        let public = shares.iter().map(|share| share.names(items));
        // Not `any`, which would end with the first.
        public.fold(false, |found, names| found | names)
    }
}
