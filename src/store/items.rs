//! A store whose owner decides which items it holds, each under its own name.
//!
//! It evicts nothing and refuses items that do not fit. Releasing an item removes its content, except for
//! content that another item has too. The owner calls neither `clear` nor the functions for passthrough.

use super::catalog::Catalog;
use super::record::BlockOrigin;
use super::{Store, StoreError, StoreOptions};
use crate::read::FileId;
use bytes::Bytes;
use copperfs_overlay::ContentHash;
use std::collections::HashMap;

/// A block of an item: its index, hash and bytes.
pub(crate) type ItemBlock = (u64, ContentHash, Bytes);

/// The number of blocks of items with each content. Only the writer's thread, which records and removes
/// content, uses it. So content that an item still has is never removed with another item.
pub(super) struct ReferenceCounts(HashMap<ContentHash, u32>);

impl ReferenceCounts {
    /// Counts the content of the index.
    pub(super) fn of(catalog: &Catalog) -> Self {
        let mut counts = Self(HashMap::new());
        catalog.for_each_file(|_, blocks| {
            let held = blocks.into_iter().map(|(_, hash)| hash);
            let held = held.filter(|hash| catalog.has_content(*hash));
            held.for_each(|hash| counts.add(hash));
        });
        counts
    }

    pub(super) fn add(&mut self, hash: ContentHash) {
        *self.0.entry(hash).or_default() += 1;
    }

    /// Removes one reference. Returns whether it was the last.
    pub(super) fn remove(&mut self, hash: ContentHash) -> bool {
        let count = self.0.entry(hash).or_insert(1);
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.0.remove(&hash);
        }
        is_last
    }
}

impl Store {
    /// Opens a store whose owner decides which items it holds; `policy` is not used. Returns after its
    /// directory was compared with its index, so that [`Store::items`] is complete: some seconds for a million
    /// blocks.
    ///
    /// # Errors
    /// Those of [`Store::open`].
    pub(crate) async fn open_for_items(options: StoreOptions) -> Result<Self, StoreError> {
        let directory = options.directory.clone();
        let opening = tokio::task::spawn_blocking(move || Self::open_as(&options, true));
        let opened = opening.await.map_err(std::io::Error::other);
        let store = opened.map_err(StoreError::on(&directory, "open"))??;
        let mut swept = store.shared.swept.subscribe();
        // It cannot fail, because the store has the sender.
        drop(swept.wait_for(|swept| *swept).await);
        Ok(store)
    }

    /// Every item, with the index and the length of each of its blocks that the store holds.
    pub(crate) fn items(&self) -> Vec<(FileId, Vec<(u64, u64)>)> {
        let catalog = &self.shared.catalog;
        let mut items = Vec::new();
        catalog.for_each_file(|file, blocks| {
            let held = blocks
                .into_iter()
                .filter_map(|(index, hash)| Some((index, catalog.len_of(hash)?)));
            items.push((file, held.collect()));
        });
        items
    }

    /// Writes the verified blocks of an item, and waits until they are written. Returns whether all are;
    /// otherwise none is kept. If the future is dropped, some blocks may remain: [`Store::release`] the item
    /// then.
    pub(crate) async fn keep_item(&self, item: FileId, blocks: Vec<ItemBlock>) -> bool {
        let catalog = &self.shared.catalog;
        let moment = catalog.moment();
        let mut expected = Vec::with_capacity(blocks.len());
        let mut is_queued = true;
        for (index, hash, bytes) in blocks {
            expected.push((index, hash, bytes.len() as u64));
            let origin = BlockOrigin::new(item, moment, index);
            is_queued = self.keep(origin, hash, vec![bytes]).await;
            if !is_queued {
                break;
            }
        }
        // A queued block may still be refused, so the catalog decides.
        let is_kept = is_queued
            && self.writer.drained().await
            && expected.iter().all(|(index, hash, len)| {
                catalog.recorded_hash(&item, *index) == Some(*hash)
                    && catalog.len_of(*hash) == Some(*len)
            });
        if !is_kept {
            self.release(vec![item]);
        }
        is_kept
    }

    /// Removes these items. Their disk space becomes free a little later.
    pub(crate) fn release(&self, items: Vec<FileId>) {
        if !items.is_empty() {
            self.writer.release(items);
        }
    }

    /// Block `index` of an item, verified, and its hash. Returns `None` if it is missing or damaged.
    pub(crate) async fn block(
        &self,
        item: &FileId,
        index: u64,
        len: u64,
    ) -> Option<(Bytes, ContentHash)> {
        let catalog = &self.shared.catalog;
        let hash = catalog.recorded_hash(item, index)?;
        let block = catalog.find_content(hash, len)?;
        Some((self.load(block).await?, hash))
    }

    /// Whether the disk is not read for now, because reads have failed.
    pub(crate) fn is_paused(&self) -> bool {
        !self.shared.health.may_read()
    }
}
