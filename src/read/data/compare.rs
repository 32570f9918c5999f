//! Compares a version of a file with the bytes that were returned under an earlier version.

use super::Data;
use super::blocks::Priority;
use crate::num::to_usize;
use crate::read::file::FileRef;
use crate::read::returned::{ReturnedParts, ReturnedPieces};
use crate::read::slices::BLOCK_PIECES;
use copperfs_overlay::{BLOCK_BYTES, ContentHash, Failure, RANGE_ALIGN};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::ops::Range;
use std::slice;

/// Blocks that are requested at a time during a comparison.
const COMPARED_BLOCKS: usize = 16;
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
        for run in runs_of(parts.blocks(), COMPARED_BLOCKS) {
            let bytes = (run.end - run.start) * BLOCK_BYTES;
            let comparing = self.blocks_agree(file, run, parts);
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
            let rest = index..run.end;
            let wanted = slice::from_ref(&rest);
            let block = self.block(file, index, wanted, Priority::InTurn).await?;
            if !parts.agrees(index, &block.hash) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn pieces_agree(&self, file: &FileRef, row: &ReturnedPieces) -> Result<bool, Failure> {
        let mut hashes: Vec<ContentHash> = Vec::new();
        for run in runs_of(row.pieces(), BLOCK_PIECES) {
            let base = row.block * BLOCK_BYTES;
            let end = (base + run.end * RANGE_ALIGN).min(file.size);
            let range = base + run.start * RANGE_ALIGN..end;
            let bytes = range.end - range.start;
            let reading = self.pieces(file, row.block, &range);
            let cut = self.memory().within(bytes, reading).await?;
            let hashed = cut.bytes.chunks(to_usize(RANGE_ALIGN)).map(blake3::hash);
            hashes.extend(hashed.map(|hash| ContentHash(*hash.as_bytes())));
        }
        Ok(row.agrees(&hashes))
    }
}

/// The consecutive series among `indices`, which are in order, in parts of at most `max`.
fn runs_of(indices: impl Iterator<Item = u64>, max: usize) -> Vec<Range<u64>> {
    let indices: Vec<u64> = indices.collect();
    let series = indices.chunk_by(|one, next| one + 1 == *next);
    let runs = series.flat_map(|series| series.chunks(max));
    runs.map(|run| run[0]..run[0] + run.len() as u64).collect()
}
