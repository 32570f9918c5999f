//! A store whose owner decides what it holds: item by item, each under a name of its own.
//!
//! It evicts nothing; what does not fit is refused. What is released goes, but for content that another
//! item has too. Its owner calls neither `clear` nor passthrough's functions.

use super::job::Put;
use super::{Keeps, Store, StoreError, StoreOptions};
use crate::read::FileId;
use bytes::Bytes;
use copperfs_overlay::ContentHash;

/// A block of an item: its index, hash and bytes.
pub(crate) type ItemBlock = (u64, ContentHash, Bytes);

impl Store {
    /// Opens a store whose owner decides what it holds; `policy` has no part in it. Returns when its
    /// directory has been compared with its index, so that [`Store::items`] tells all there is: some
    /// seconds for a million blocks.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub(crate) async fn open_for_items(options: StoreOptions) -> Result<Self, StoreError> {
        let directory = options.directory.clone();
        let opening =
            tokio::task::spawn_blocking(move || Self::open_as(&options, Keeps::WhatIsAsked));
        let opened = opening.await.map_err(|error| StoreError::Io {
            action: "open",
            path: directory,
            source: std::io::Error::other(error),
        })?;
        let store = opened?;
        let mut swept = store.0.shared.swept.subscribe();
        // It cannot fail: the sender lives in the store.
        drop(swept.wait_for(|swept| *swept).await);
        Ok(store)
    }

    /// Every item, and the bytes of each of its blocks that is here, by index.
    pub(crate) fn items(&self) -> Vec<(FileId, Vec<(u64, u64)>)> {
        let catalog = &self.0.shared.catalog;
        let mut items = Vec::new();
        catalog.for_each_file(|file, blocks| {
            let here = blocks
                .into_iter()
                .filter_map(|(index, hash)| Some((index, catalog.len_of(hash)?)));
            items.push((file, here.collect()));
        });
        items
    }

    /// Writes the verified blocks of an item, and waits until they are written. Says whether all are;
    /// otherwise none is kept. Cancelled, it may leave some: [`Store::release`] it then.
    pub(crate) async fn keep_item(&self, item: FileId, blocks: Vec<ItemBlock>) -> bool {
        let moment = self.moment();
        let mut expected = Vec::with_capacity(blocks.len());
        let mut taken = true;
        for (index, hash, bytes) in blocks {
            expected.push((index, hash, bytes.len() as u64));
            let put = Put {
                file: item,
                moment,
                index,
                hash,
                pieces: vec![bytes],
            };
            taken = self.0.writer.put(put).await;
            if !taken {
                self.0.shared.counters.dropped.increment();
                break;
            }
        }
        let catalog = &self.0.shared.catalog;
        let kept = taken
            && self.0.writer.written().await
            && expected.iter().all(|(index, hash, len)| {
                catalog.noted(&item, *index) == Some(*hash) && catalog.len_of(*hash) == Some(*len)
            });
        if !kept {
            self.release(vec![item]);
        }
        kept
    }

    /// These items are not held any more. Their disk is free a little later.
    pub(crate) fn release(&self, items: Vec<FileId>) {
        if items.is_empty() {
            return;
        }
        self.0.writer.release(items);
    }

    /// Block `index` of an item, checked, and its hash; `None` if it is not here, or damaged.
    pub(crate) async fn block(
        &self,
        item: &FileId,
        index: u64,
        len: u64,
    ) -> Option<(Bytes, ContentHash)> {
        let catalog = &self.0.shared.catalog;
        let hash = catalog.noted(item, index)?;
        let place = catalog.find_content(hash, len)?;
        Some((self.load(place).await?, hash))
    }

    /// Whether its disk is not read for now, because reading failed.
    pub(crate) fn rests(&self) -> bool {
        !self.0.shared.health.may_read()
    }
}
