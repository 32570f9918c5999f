//! Where the bytes of one dataset's items lie on its home: in memory, or in a store of their own.
//!
//! It holds what it is told to, and decides nothing ([`super::uniform`] does). What comes from a disk
//! is checked when it is read; what is damaged is as good as not there.

use super::item::ItemId;
use crate::cache::EvictionPolicy;
use crate::num::to_usize;
use crate::store::{ItemBlock, Store, StoreError, StoreOptions};
use bytes::{Bytes, BytesMut};
use copperfs_overlay::{BLOCK_BYTES, ContentHash};
use copperfs_policy::amounts::Size;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Bytes out of an item, verified.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    pub(super) bytes: Bytes,
    /// Their hash, where it was known anyway.
    pub(super) hash: Option<ContentHash>,
}

/// See the module.
pub(super) enum ItemStore {
    /// Bounded by who decides what it holds. The lock is held for a look only.
    Memory(Mutex<HashMap<ItemId, Vec<ItemBlock>>>),
    /// In a directory of its own.
    Disk { store: Store, directory: PathBuf },
}

impl fmt::Debug for ItemStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(_) => f.write_str("memory"),
            Self::Disk { directory, .. } => directory.fmt(f),
        }
    }
}

impl ItemStore {
    /// An empty one in memory.
    pub(super) fn memory() -> Self {
        Self::Memory(Mutex::default())
    }

    /// The one in `directory`, made if it is missing, and the items that are complete in it. What is
    /// left of others is removed.
    ///
    /// # Errors
    /// The directory cannot be used. What is damaged in it is no error.
    pub(super) async fn open(
        directory: &Path,
        reserve_percent: u8,
    ) -> Result<(Self, Vec<(ItemId, u32)>), StoreError> {
        let store = Store::open_for_items(StoreOptions {
            directory: directory.to_owned(),
            capacity: Size::Bytes(u64::MAX),
            reserve_percent,
            policy: EvictionPolicy::S3Fifo,
            patience: StoreOptions::PATIENCE,
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
        // Which of them go first is drawn from their order: the same one every time.
        items.sort_unstable_by_key(|(item, _)| *item.file().as_bytes());
        store.release(leftovers);
        let directory = directory.to_owned();
        Ok((Self::Disk { store, directory }, items))
    }

    /// Keeps the verified blocks of an item, all of them, and says whether it did. On a disk it returns
    /// when they are written; one that is full, slow or faulty refuses.
    pub(super) async fn keep(&self, item: ItemId, blocks: Vec<ItemBlock>) -> bool {
        match self {
            Self::Memory(items) => {
                items.lock().insert(item, blocks);
                true
            }
            Self::Disk { store, .. } => store.keep_item(item.file(), blocks).await,
        }
    }

    /// These are not held any more.
    pub(super) fn remove(&self, items: &[ItemId]) {
        match self {
            Self::Memory(held) => {
                let mut held = held.lock();
                for item in items {
                    held.remove(item);
                }
            }
            Self::Disk { store, .. } => store.release(items.iter().map(ItemId::file).collect()),
        }
    }

    /// Bytes `wanted` of an item of `len` bytes; `None`: they are not here, or damaged.
    pub(super) async fn get(&self, item: &ItemId, len: u64, wanted: Range<u64>) -> Option<Cut> {
        let first = wanted.start / BLOCK_BYTES;
        let blocks = first..wanted.end.div_ceil(BLOCK_BYTES);
        let found = match self {
            Self::Memory(items) => {
                let items = items.lock();
                let held = items.get(item)?;
                let of = |index| {
                    held.get(to_usize(index))
                        .map(|(_, hash, b)| (b.clone(), *hash))
                };
                blocks.map(of).collect::<Option<Vec<_>>>()?
            }
            Self::Disk { store, .. } => {
                let file = item.file();
                let reads = blocks.map(|index| {
                    let due = len.saturating_sub(index * BLOCK_BYTES).min(BLOCK_BYTES);
                    let read = store.block(&file, index, due);
                    async move { read.await.ok_or(()) }
                });
                try_join_all(reads).await.ok()?
            }
        };
        cut(
            &found,
            wanted.start - first * BLOCK_BYTES..wanted.end - first * BLOCK_BYTES,
        )
    }

    /// Whether it gives nothing for now: its disk has failed and is left alone for a while.
    pub(super) fn rests(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Disk { store, .. } => store.rests(),
        }
    }
}

/// Removes a dataset's directory; its name is free at once. Blocks.
pub(super) fn remove_directory(directory: &Path) -> io::Result<()> {
    // Whoever makes it anew meanwhile gets a fresh one.
    let gone = directory.with_extension(GONE);
    match std::fs::rename(directory, &gone) {
        Ok(()) => std::fs::remove_dir_all(gone),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => std::fs::remove_dir_all(directory),
    }
}

/// What the directory of a removed dataset is called while it is emptied.
pub(super) const GONE: &str = "gone";

/// The bytes of an item, if its blocks are all there.
fn whole(item: ItemId, mut blocks: Vec<(u64, u64)>) -> Option<(ItemId, u32)> {
    blocks.sort_unstable();
    let last = item.blocks().checked_sub(1)?;
    let right = blocks.len() == last + 1
        && (0..).zip(&blocks).all(|(due, (index, len))| {
            *index == due && (*len == BLOCK_BYTES || (due == last as u64 && *len < BLOCK_BYTES))
        });
    let len = blocks.iter().map(|(_, len)| len).sum::<u64>();
    Some((item, u32::try_from(len).ok().filter(|_| right)?))
}

/// Bytes `wanted` of blocks that follow one another.
fn cut(blocks: &[(Bytes, ContentHash)], wanted: Range<u64>) -> Option<Cut> {
    let (from, to) = (to_usize(wanted.start), to_usize(wanted.end));
    if let [(block, hash)] = blocks {
        let bytes = (from <= to && to <= block.len()).then(|| block.slice(from..to))?;
        let hash = (bytes.len() == block.len()).then_some(*hash);
        return Some(Cut { bytes, hash });
    }
    let mut all = BytesMut::with_capacity(to - from);
    let mut at = 0;
    for (block, _) in blocks {
        let part = from.saturating_sub(at).min(block.len())..to.saturating_sub(at).min(block.len());
        all.extend_from_slice(block.get(part)?);
        at += block.len();
    }
    (all.len() == to - from).then(|| Cut {
        bytes: all.freeze(),
        hash: None,
    })
}
