//! Compares a version of a file with the bytes that were returned under an earlier version.

use super::Data;
use super::blocks::Priority;
use crate::num::to_usize;
use crate::read::file::FileRef;
use crate::read::returned::{ReturnedParts, ReturnedPieces};
use copperfs_overlay::{BLOCK_BYTES, ContentHash, Failure, RANGE_ALIGN};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::ops::Range;

/// Blocks that are requested at a time during a comparison.
const COMPARED_BLOCKS: u64 = 16;
/// Blocks whose pieces are requested at a time during a comparison.
const COMPARED_PIECED_BLOCKS: usize = 16;

impl Data {
    /// Whether `file` has the blocks and pieces of `parts`. They are fetched like any others.
    ///
    /// # Errors
    /// Failures of the source.
    pub async fn has_returned(
        &self,
        file: &FileRef,
        parts: &ReturnedParts,
    ) -> Result<bool, Failure> {
        let blocks: Vec<u64> = parts.blocks().collect();
        let mut blocks = blocks.into_iter().peekable();
        while let Some(first) = blocks.next() {
            let mut end = first + 1;
            while end - first < COMPARED_BLOCKS && blocks.next_if_eq(&end).is_some() {
                end += 1;
            }
            let comparing = self.blocks_agree(file, first..end, parts);
            let bytes = (end - first) * BLOCK_BYTES;
            if !self.memory().within(bytes, comparing).await? {
                return Ok(false);
            }
        }
        let pieced = parts.pieces().iter();
        let comparing: Vec<_> = pieced.map(|row| self.pieces_agree(file, row)).collect();
        stream::iter(comparing)
            .buffer_unordered(COMPARED_PIECED_BLOCKS)
            .try_all(std::future::ready)
            .await
    }

    async fn blocks_agree(
        &self,
        file: &FileRef,
        run: Range<u64>,
        parts: &ReturnedParts,
    ) -> Result<bool, Failure> {
        for index in run.clone() {
            let wanted = || [index..run.end, 0..0];
            let block = self.block(file, index, wanted, Priority::InTurn).await?;
            if !parts.agrees(index, &block.hash) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn pieces_agree(&self, file: &FileRef, row: &ReturnedPieces) -> Result<bool, Failure> {
        let mut hashes: Vec<ContentHash> = Vec::new();
        let pieces: Vec<u64> = row.pieces().collect();
        let mut pieces = pieces.into_iter().peekable();
        while let Some(first) = pieces.next() {
            let mut end = first + 1;
            while pieces.next_if_eq(&end).is_some() {
                end += 1;
            }
            let base = row.block * BLOCK_BYTES;
            let range = base + first * RANGE_ALIGN..(base + end * RANGE_ALIGN).min(file.size);
            let bytes = range.end - range.start;
            let reading = self.pieces(file, row.block, &range);
            let cut = self.memory().within(bytes, reading).await?;
            let hashed = cut.bytes.chunks(to_usize(RANGE_ALIGN)).map(blake3::hash);
            hashes.extend(hashed.map(|hash| ContentHash(*hash.as_bytes())));
        }
        Ok(row.agrees(&hashes))
    }
}
