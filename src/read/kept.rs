//! Access to a node's cached file data for the reader of its storage, which checks it before it reads.

use super::blocks::slice;
use super::file::{BlockKey, FileRef};
use super::{Block, ReadPath, pieces};
use crate::cache::Cache;
use bytes::Bytes;
use copperfs_overlay::ContentHash;
use std::ops::Range;
use std::sync::Arc;

/// The data cache of a [`ReadPath`] and its views. Look-ups here count neither as hits nor as misses.
#[derive(Clone)]
pub struct KeptData(Arc<Cache<BlockKey, Block>>);

impl std::fmt::Debug for KeptData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("KeptData").field(&self.0.stats()).finish()
    }
}

impl ReadPath {
    /// This node's cached file data.
    #[must_use]
    pub fn kept(&self) -> KeptData {
        KeptData(Arc::clone(&self.0.data))
    }
}

impl KeptData {
    /// Block `index` of `file` and its hash.
    #[must_use]
    pub fn block(&self, file: &FileRef, index: u64) -> Option<(Bytes, ContentHash)> {
        let Block { bytes, hash, .. } = self.0.peek(&file.key(index))?;
        Some((bytes, hash))
    }

    /// The bytes of `range`, which lies within block `index` of `file`.
    #[must_use]
    pub fn range(&self, file: &FileRef, index: u64, range: &Range<u64>) -> Option<Bytes> {
        if let Some(block) = self.0.peek(&file.key(index)) {
            return Some(slice(&block, index, range));
        }
        let cut = pieces::joined(file, index, range, |key| self.0.peek(key))?;
        Some(cut.bytes)
    }
}
