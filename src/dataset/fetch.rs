//! Reading an item from storage for a request.

use super::item_store::ItemBytes;
use crate::model::slots::{STRIPE_BYTES, stripe_len};
use crate::num::to_usize;
use crate::read::FileRef;
use crate::store::ItemBlock;
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, ContentHash, Failure, FailureKind, Files, ItemRequest, RANGE_ALIGN,
    RANGE_BYTES_MAX, RangeRequest, ReadRequest, STRIPE_BLOCKS,
};
use futures_util::StreamExt;
use std::ops::Range;

/// A request to a home. Offsets are relative to the beginning of the stripe.
#[derive(Clone, Debug)]
pub(super) struct StripeRequest {
    pub(super) file: FileRef,
    pub(super) stripe: u64,
    /// Bytes of the stripe.
    pub(super) len: u64,
    pub(super) range: Range<u64>,
}

impl StripeRequest {
    /// Converts a request. `Corrupt` if it has a [`ItemRequest::fault`].
    pub(super) fn of(request: &ItemRequest) -> Result<Self, Failure> {
        if let Some(fault) = request.fault() {
            let detail = format!("{}: {fault}", request.path);
            return Err(Failure::new(FailureKind::Corrupt, detail));
        }
        let (path, content) = (request.path.clone(), request.content);
        let start = request.offset % STRIPE_BYTES;
        Ok(Self {
            file: FileRef::requested(path, request.version, request.size, content),
            stripe: request.stripe,
            len: stripe_len(request.size, request.stripe),
            range: start..start + request.len,
        })
    }

    /// Returns the bytes to read if the stripe is not kept: the requested ones, in whole blocks up the
    /// tree (`through`), because only blocks pass through other nodes without being kept; in whole pages
    /// from the home's own origins.
    pub(super) fn aligned(&self, through: bool) -> Range<u64> {
        let align = if through { BLOCK_BYTES } else { RANGE_ALIGN };
        let end = self.range.end.next_multiple_of(align).min(self.len);
        self.range.start / align * align..end
    }
}

/// Consecutive bytes of a stripe that were read from storage.
#[derive(Clone, Debug)]
pub(super) struct Fetched {
    /// Its offset in the stripe.
    pub(super) start: u64,
    pub(super) bytes: Bytes,
    /// The hashes of its blocks, if it was read in blocks.
    pub(super) hashes: Vec<ContentHash>,
}

impl Fetched {
    /// Returns the bytes `wanted`, if they are part of it.
    pub(super) fn cut(&self, wanted: &Range<u64>) -> Option<ItemBytes> {
        let from = to_usize(wanted.start.checked_sub(self.start)?);
        let to = to_usize(wanted.end.checked_sub(self.start)?);
        let bytes = (from <= to && to <= self.bytes.len()).then(|| self.bytes.slice(from..to))?;
        let hash = match self.hashes[..] {
            [hash] if bytes.len() == self.bytes.len() => Some(hash),
            _ => None,
        };
        Some(ItemBytes { bytes, hash })
    }

    /// Returns its blocks, numbered from the beginning of the stripe.
    pub(super) fn blocks(&self) -> Vec<ItemBlock> {
        let blocks = self.bytes.chunks(to_usize(BLOCK_BYTES));
        let numbered = (self.start / BLOCK_BYTES..).zip(blocks.zip(&self.hashes));
        numbered
            .map(|(index, (block, hash))| (index, *hash, self.bytes.slice_ref(block)))
            .collect()
    }
}

/// Reads `extent` of the stripe. `through` as in [`ReadRequest::through`].
///
/// # Errors
/// The source's failure; `Corrupt` if its answer is invalid; `Stale` if it is not the content
/// promised by an index.
pub(super) async fn fetch(
    source: &dyn Files,
    wanted: &StripeRequest,
    extent: Range<u64>,
    through: bool,
) -> Result<Fetched, Failure> {
    // Whole blocks are fetched as blocks, which are verified by their hashes.
    let aligned = |at: u64| at.is_multiple_of(BLOCK_BYTES) || at == wanted.len;
    if aligned(extent.start) && aligned(extent.end) {
        return blocks(source, wanted, extent, through).await;
    }
    let mut bytes = Vec::with_capacity(to_usize(extent.end - extent.start));
    let mut at = extent.start;
    while at < extent.end {
        let block_end = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
        // A range request must not cross a block, or exceed its maximum.
        let end = extent.end.min(block_end).min(at + RANGE_BYTES_MAX);
        let request = RangeRequest {
            path: wanted.file.path.clone(),
            version: wanted.file.version,
            size: wanted.file.size,
            offset: wanted.stripe * STRIPE_BYTES + at,
            len: end - at,
            content: wanted.file.content,
        };
        let answer = source.read_range(request).await?;
        if answer.bytes.len() as u64 != end - at {
            return Err(corrupt(wanted, "a range of another length than asked for"));
        }
        bytes.extend_from_slice(&answer.bytes);
        at = end;
    }
    Ok(Fetched {
        start: extent.start,
        bytes: bytes.into(),
        hashes: Vec::new(),
    })
}

async fn blocks(
    source: &dyn Files,
    wanted: &StripeRequest,
    extent: Range<u64>,
    through: bool,
) -> Result<Fetched, Failure> {
    let first = extent.start / BLOCK_BYTES;
    let count = extent.end.div_ceil(BLOCK_BYTES) - first;
    let request = ReadRequest {
        path: wanted.file.path.clone(),
        version: wanted.file.version,
        size: wanted.file.size,
        first_block: wanted.stripe * STRIPE_BLOCKS + first,
        block_count: count,
        content: wanted.file.content,
        through,
    };
    let mut parts = source.read(request).await?;
    let due = to_usize(extent.end - extent.start);
    let mut bytes = Vec::with_capacity(due);
    let mut hashes = Vec::with_capacity(to_usize(count));
    // The bounds of block number `done`.
    let block = to_usize(BLOCK_BYTES);
    let bounds = |done: usize| (done * block).min(due)..((done + 1) * block).min(due);
    while bytes.len() < due || (hashes.len() as u64) < count {
        let current = bounds(hashes.len());
        match parts.next().await {
            Some(Ok(BlockPart::Bytes(more))) => {
                // Never buffer more than was announced, whatever the source sends.
                if bytes.len() + more.len() > current.end {
                    return Err(corrupt(wanted, "a block longer than announced"));
                }
                bytes.extend_from_slice(&more);
            }
            // The source has found an error, and sends this block again.
            Some(Ok(BlockPart::Restart)) => bytes.truncate(current.start),
            Some(Ok(BlockPart::End(hash))) => {
                if bytes.len() != current.end {
                    return Err(corrupt(wanted, "a block that ended early"));
                }
                // A file of one block is the one that an index has promised.
                let promised = wanted
                    .file
                    .content
                    .filter(|_| wanted.file.size <= BLOCK_BYTES);
                if promised.is_some_and(|content| content != hash) {
                    let path = &wanted.file.path;
                    let detail =
                        format!("{path}: it changed since it was indexed; make the index anew");
                    return Err(Failure::new(FailureKind::Stale, detail));
                }
                hashes.push(hash);
            }
            Some(Err(failure)) => return Err(failure),
            None => return Err(corrupt(wanted, "the stream ended too early")),
        }
    }
    Ok(Fetched {
        start: extent.start,
        bytes: bytes.into(),
        hashes,
    })
}

fn corrupt(wanted: &StripeRequest, cause: &str) -> Failure {
    let detail = format!("{}: {cause}", wanted.file.path);
    Failure::new(FailureKind::Corrupt, detail)
}
