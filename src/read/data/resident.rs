//! Access to a node's cached file data for the reader of its storage, which checks it before it reads.

use super::blocks::cut_of;
use super::{Block, Data, Shared, pieces};
use crate::read::file::FileRef;
use bytes::Bytes;
use copperfs_overlay::ContentHash;
use std::ops::Range;
use std::sync::Arc;

/// The data cache of a node. Look-ups here count neither as hits nor as misses.
#[derive(Clone)]
pub struct ResidentData(Arc<Shared>);

impl Data {
    /// This node's cached file data.
    #[must_use]
    pub fn resident(&self) -> ResidentData {
        ResidentData(Arc::clone(&self.0.shared))
    }
}

impl ResidentData {
    /// Block `index` of `file` and its hash.
    #[must_use]
    pub fn block(&self, file: &FileRef, index: u64) -> Option<(Bytes, ContentHash)> {
        let Block { bytes, hash, .. } = self.0.cache.peek(&file.key(index))?;
        Some((bytes, hash))
    }

    /// The bytes of `range`, which lies within block `index` of `file`.
    #[must_use]
    pub fn range(&self, file: &FileRef, index: u64, range: &Range<u64>) -> Option<Bytes> {
        let key = file.key(index);
        let cut = match self.0.cache.peek(&key) {
            Some(block) => cut_of(file, key, &block, range),
            None => pieces::joined(file, index, range, |key| self.0.cache.peek(key))?,
        };
        Some(cut.bytes)
    }
}
