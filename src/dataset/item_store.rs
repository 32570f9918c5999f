//! The bytes of one dataset's items on its home: in memory, or in a store of their own.
//!
//! It holds the items that it is told to hold, and decides nothing ([`copperfs_policy::keep`] does). Bytes
//! from a disk are verified when they are read; damaged ones count as missing.

use super::item::ItemId;
use crate::cache::EvictionPolicy;
use crate::num::to_usize;
use crate::store::{ItemBlock, Store, StoreError, StoreOptions};
use bytes::Bytes;
use copperfs_overlay::{BLOCK_BYTES, ContentHash, RangeAnswer};
use copperfs_policy::amounts::Size;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// Verified bytes of a block of an item.
#[derive(Clone, Debug)]
pub(super) struct ItemBytes {
    pub(super) bytes: Bytes,
    /// Their hash, if it is already known.
    pub(super) hash: Option<ContentHash>,
}

/// See the module.
pub(super) enum ItemStore {
    /// Bounded by its caller, which decides what it holds. The lock is held for a look-up only.
    Memory(Mutex<HashMap<ItemId, Vec<ItemBlock>>>),
    /// In a directory of its own.
    Disk(Store),
}

impl ItemStore {
    /// Opens the store in `directory`, which is created if missing, like the directory of all datasets. A disk that
    /// does not answer within `disk_timeout` is not used for a while.
    /// Returns it with its complete items, and removes the rest of incomplete ones.
    ///
    /// # Errors
    /// The directory cannot be used. Damaged files in it are no error.
    pub(super) async fn open(
        directory: &Path,
        reserve_percent: u8,
        disk_timeout: Duration,
    ) -> Result<(Self, Vec<(ItemId, u32)>), StoreError> {
        let datasets = directory.parent().unwrap_or(directory);
        let mut builder = tokio::fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(datasets).await;
        made.map_err(|source| StoreError::Io {
            action: "make",
            path: datasets.to_owned(),
            source,
        })?;
        let store = Store::open_for_items(StoreOptions {
            directory: directory.to_owned(),
            capacity: Size::Bytes(u64::MAX),
            reserve_percent,
            policy: EvictionPolicy::S3Fifo,
            disk_timeout,
        })
        .await?;
        let mut items = Vec::new();
        let mut leftovers = Vec::new();
        for (file, blocks) in store.items() {
            match ItemId::from_file(file).and_then(|item| whole(item, blocks)) {
                Some(held) => items.push(held),
                None => leftovers.push(file),
            }
        }
        // Random evictions depend on the order, so it must be reproducible.
        items.sort_unstable_by_key(|(item, _)| *item.file().as_bytes());
        // Parts of items, left by a crash, would never be found again.
        store.release(leftovers);
        Ok((Self::Disk(store), items))
    }

    /// Stores all verified blocks of an item. Returns whether they were stored. A disk stores them
    /// before it returns, and refuses if it is full, slow or faulty.
    pub(super) async fn keep(&self, item: ItemId, blocks: Vec<ItemBlock>) -> bool {
        match self {
            Self::Memory(items) => {
                items.lock().insert(item, blocks);
                true
            }
            Self::Disk(store) => store.keep_item(item.file(), blocks).await,
        }
    }

    /// Removes items.
    pub(super) fn remove(&self, items: &[ItemId]) {
        match self {
            Self::Memory(held) => {
                let mut held = held.lock();
                for item in items {
                    held.remove(item);
                }
            }
            Self::Disk(store) => store.release(items.iter().map(ItemId::file).collect()),
        }
    }

    /// Returns the bytes `wanted` of an item of `len` bytes, by its blocks. `None` if they are missing or damaged.
    pub(super) async fn get(
        &self,
        item: &ItemId,
        len: u64,
        wanted: Range<u64>,
    ) -> Option<Vec<ItemBytes>> {
        let first = wanted.start / BLOCK_BYTES;
        // Whole blocks, because only they can be verified.
        let blocks = first..wanted.end.div_ceil(BLOCK_BYTES);
        let found = self.blocks(item, len, blocks).await?;
        let before = first * BLOCK_BYTES;
        cut(found, wanted.start - before..wanted.end - before)
    }

    /// Returns the bytes `wanted` of an item, by its blocks, if they are whole blocks in memory.
    pub(super) fn try_get(&self, item: &ItemId, wanted: Range<u64>) -> Option<Vec<RangeAnswer>> {
        let Self::Memory(items) = self else {
            return None;
        };
        let items = items.lock();
        let blocks =
            to_usize(wanted.start / BLOCK_BYTES)..to_usize(wanted.end.div_ceil(BLOCK_BYTES));
        let held = items.get(item)?.get(blocks)?;
        let len: u64 = held.iter().map(|(_, _, bytes)| bytes.len() as u64).sum();
        let is_whole = wanted.start.is_multiple_of(BLOCK_BYTES) && len == wanted.end - wanted.start;
        let answer = |(_, hash, bytes): &ItemBlock| RangeAnswer {
            bytes: bytes.clone(),
            hash: *hash,
        };
        is_whole.then(|| held.iter().map(answer).collect())
    }

    /// Returns blocks of an item of `len` bytes, with their hashes. `None` if one is missing or damaged.
    pub(super) async fn blocks(
        &self,
        item: &ItemId,
        len: u64,
        blocks: Range<u64>,
    ) -> Option<Vec<(Bytes, ContentHash)>> {
        match self {
            Self::Memory(items) => {
                let items = items.lock();
                let held = items.get(item)?;
                let held = blocks.map(|index| held.get(to_usize(index)));
                let found = held.map(|held| held.map(|(_, hash, bytes)| (bytes.clone(), *hash)));
                found.collect()
            }
            Self::Disk(store) => {
                let file = item.file();
                let reads = blocks.map(|index| {
                    let due = len.saturating_sub(index * BLOCK_BYTES).min(BLOCK_BYTES);
                    let read = store.block(&file, index, due);
                    // One missing block fails the whole read.
                    async move { read.await.ok_or(()) }
                });
                try_join_all(reads).await.ok()
            }
        }
    }

    /// Returns whether it returns nothing for now, because its disk has failed and is not used for
    /// a while.
    pub(super) fn rests(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Disk(store) => store.is_paused(),
        }
    }
}

/// Removes a dataset's directory. Its name is free at once. Blocks.
pub(super) fn remove_directory(directory: &Path) -> io::Result<()> {
    // After the rename another directory of this name may be created.
    let gone = directory.with_extension(GONE);
    match std::fs::rename(directory, &gone) {
        Ok(()) => std::fs::remove_dir_all(gone),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => std::fs::remove_dir_all(directory),
    }
}

/// The extension of a removed dataset's directory while it is emptied.
pub(super) const GONE: &str = "gone";

/// Returns the item and its length if all of its blocks are present.
fn whole(item: ItemId, mut blocks: Vec<(u64, u64)>) -> Option<(ItemId, u32)> {
    // All blocks must be present, and all but the last one must be full.
    blocks.sort_unstable();
    let last = item.blocks().checked_sub(1)?;
    let right = blocks.len() == last + 1
        && (0..).zip(&blocks).all(|(due, (index, len))| {
            *index == due && (*len == BLOCK_BYTES || (due == last as u64 && *len < BLOCK_BYTES))
        });
    let len = blocks.iter().map(|(_, len)| len).sum::<u64>();
    Some((item, u32::try_from(len).ok().filter(|_| right)?))
}

/// Returns the bytes `wanted` of consecutive blocks, by block.
fn cut(blocks: Vec<(Bytes, ContentHash)>, wanted: Range<u64>) -> Option<Vec<ItemBytes>> {
    let (from, to) = (to_usize(wanted.start), to_usize(wanted.end));
    let (mut at, mut found) = (0, 0);
    let cut = |(block, hash): (Bytes, ContentHash)| {
        let len = block.len();
        let part = from.saturating_sub(at).min(len)..to.saturating_sub(at).min(len);
        at += len;
        found += part.len();
        (!part.is_empty()).then(|| ItemBytes {
            hash: (part.len() == len).then_some(hash),
            bytes: block.slice(part),
        })
    };
    let cuts = blocks.into_iter().filter_map(cut).collect();
    (from <= to && found == to - from).then_some(cuts)
}
