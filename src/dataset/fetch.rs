//! Reading an item from storage for a request, and checking its bytes against its hash.

use super::item::ItemId;
use super::item_store::ItemBytes;
use crate::model::slots::{STRIPE_BYTES, stripe_extent};
use crate::num::to_usize;
use crate::read::FileRef;
use crate::store::ItemBlock;
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, ContentHash, Extent, Failure, FailureKind, Files, ItemRequest,
    RANGE_ALIGN, RANGE_BYTES_MAX, RangeRequest, ReadRequest,
};
use futures_util::StreamExt;
use std::ops::Range;

/// A request to a home.
#[derive(Clone, Debug)]
pub(super) struct WantedItem {
    pub(super) file: FileRef,
    pub(super) id: ItemId,
    /// The item's bytes in the file.
    pub(super) extent: Extent,
    /// The hash of the item, by which it is known.
    pub(super) content: Option<ContentHash>,
    /// Whether the item is part of no entry of the dataset's manifest, and is not kept.
    pub(super) is_loose: bool,
    /// The requested bytes, relative to the beginning of the item.
    pub(super) range: Range<u64>,
}

impl WantedItem {
    /// Converts a request. `has_manifest`: the dataset's items are the entries of a manifest. `Corrupt` if
    /// the request has a [`ItemRequest::fault`]; `Unavailable` if the item should be a stripe and is not.
    pub(super) fn of(request: &ItemRequest, has_manifest: bool) -> Result<Self, Failure> {
        let (path, extent, size) = (request.path.clone(), request.item, request.size);
        let stripe = stripe_extent(size, extent.start / STRIPE_BYTES);
        if let Some(fault) = request.fault() {
            let detail = format!("{path}: {fault}");
            return Err(Failure::new(FailureKind::Corrupt, detail));
        }
        // Items that overlap would hold the same bytes twice. The reader may have a newer declaration than
        // this home, so it should ask another one.
        if !has_manifest && extent != stripe {
            let detail = format!("{path}: its dataset has no manifest here, and so no such item");
            return Err(Failure::new(FailureKind::Unavailable, detail));
        }
        let of_item = request.content.filter(|_| has_manifest);
        let of_file = request
            .content
            .filter(|_| !has_manifest && extent.len == size);
        let file = FileRef::requested(path, request.version, size, of_file);
        let start = request.wanted.start - extent.start;
        Ok(Self {
            id: match &of_item {
                Some(content) => ItemId::of_content(content, extent.len),
                None => ItemId::of(&file, extent),
            },
            file,
            extent,
            content: of_item,
            is_loose: has_manifest && of_item.is_none(),
            range: start..start + request.wanted.len,
        })
    }

    /// Returns whether the bytes `range` of the item are whole blocks of the file.
    fn is_blocks(&self, range: &Range<u64>) -> bool {
        let (start, end) = (
            self.extent.start + range.start,
            self.extent.start + range.end,
        );
        let ends = end.is_multiple_of(BLOCK_BYTES) || end == self.file.size;
        start.is_multiple_of(BLOCK_BYTES) && ends
    }

    /// Returns the bytes of the file that are read for the bytes `range` of the item: storage returns whole
    /// pages.
    fn read_for(&self, range: &Range<u64>) -> Range<u64> {
        let (start, end) = (
            self.extent.start + range.start,
            self.extent.start + range.end,
        );
        let end = end.next_multiple_of(RANGE_ALIGN).min(self.file.size);
        start / RANGE_ALIGN * RANGE_ALIGN..end
    }

    /// Returns the number of bytes that are read from storage for the bytes `range` of the item.
    pub(super) fn cost(&self, range: &Range<u64>) -> u64 {
        let read = self.read_for(range);
        read.end - read.start
    }

    /// Returns the bytes to read if the item is not kept: all of an item of known content, because its hash
    /// covers all of it. Otherwise the requested ones, in whole blocks up the
    /// tree (`through`), because only blocks pass through other nodes without being kept; in whole pages
    /// from the home's own origins.
    pub(super) fn aligned(&self, through: bool) -> Range<u64> {
        if self.content.is_some() {
            return 0..self.extent.len;
        }
        let align = if through { BLOCK_BYTES } else { RANGE_ALIGN };
        let end = self.range.end.next_multiple_of(align).min(self.extent.len);
        self.range.start / align * align..end
    }
}

/// Consecutive bytes of an item that were read from storage.
#[derive(Clone, Debug)]
pub(super) struct Fetched {
    /// Its offset in the item.
    pub(super) start: u64,
    pub(super) bytes: Bytes,
    /// The hashes of its blocks, if it was read in blocks.
    pub(super) hashes: Vec<ContentHash>,
}

impl Fetched {
    /// Returns the bytes `wanted`, by the item's blocks, if they are part of it.
    pub(super) fn cut(&self, wanted: &Range<u64>) -> Option<Vec<ItemBytes>> {
        let end = self.start + self.bytes.len() as u64;
        if wanted.start < self.start || wanted.end > end || wanted.start > wanted.end {
            return None;
        }
        let first = self.start / BLOCK_BYTES;
        // The hashes are of the file's blocks, which are those of the item only if both begin together.
        let hashes = match self.start.is_multiple_of(BLOCK_BYTES) {
            true => &self.hashes[..],
            false => &[],
        };
        let blocks = wanted.start / BLOCK_BYTES..wanted.end.div_ceil(BLOCK_BYTES);
        let cut = |block: u64| {
            // The bytes of the block that were read.
            let has = self.start.max(block * BLOCK_BYTES)..end.min((block + 1) * BLOCK_BYTES);
            let part = has.start.max(wanted.start)..has.end.min(wanted.end);
            let hash = hashes.get(to_usize(block - first)).copied();
            let range = to_usize(part.start - self.start)..to_usize(part.end - self.start);
            ItemBytes {
                bytes: self.bytes.slice(range),
                hash: hash.filter(|_| part == has),
            }
        };
        Some(blocks.map(cut).collect())
    }

    /// Checks a whole item against its hash, and computes the hashes of its blocks. Takes a millisecond.
    pub(super) fn check(mut self, content: ContentHash) -> Option<Self> {
        // The item's own block has been verified on arrival.
        if self.hashes == [content] && self.bytes.len() as u64 <= BLOCK_BYTES {
            return Some(self);
        }
        if hash_of(&self.bytes) != content {
            return None;
        }
        self.hashes = match self.bytes.len() as u64 <= BLOCK_BYTES {
            true => vec![content],
            false => self
                .bytes
                .chunks(to_usize(BLOCK_BYTES))
                .map(hash_of)
                .collect(),
        };
        Some(self)
    }

    /// Returns its blocks, numbered from the beginning of the item.
    pub(super) fn blocks(&self) -> Vec<ItemBlock> {
        let blocks = self.bytes.chunks(to_usize(BLOCK_BYTES));
        let numbered = (self.start / BLOCK_BYTES..).zip(blocks.zip(&self.hashes));
        numbered
            .map(|(index, (block, hash))| (index, *hash, self.bytes.slice_ref(block)))
            .collect()
    }
}

/// Reads the bytes `range` of the item. `through` as in [`ReadRequest::through`].
///
/// # Errors
/// The source's failure; `Corrupt` if its answer is invalid; `Stale` if it is not the content
/// promised by an index or a manifest.
pub(super) async fn fetch(
    source: &dyn Files,
    wanted: &WantedItem,
    range: Range<u64>,
    through: bool,
) -> Result<Fetched, Failure> {
    let fetched = match wanted.is_blocks(&range) {
        // Whole blocks are fetched as blocks, which are verified by their hashes.
        true => blocks(source, wanted, range, through).await?,
        false => ranges(source, wanted, range).await?,
    };
    let Some(content) = wanted.content else {
        return Ok(fetched);
    };
    let checking = tokio::task::spawn_blocking(move || fetched.check(content)).await;
    checking.ok().flatten().ok_or_else(|| {
        let path = &wanted.file.path;
        let detail =
            format!("{path}: it has other bytes than in the manifest; make the manifest again");
        Failure::new(FailureKind::Stale, detail)
    })
}

async fn ranges(
    source: &dyn Files,
    wanted: &WantedItem,
    range: Range<u64>,
) -> Result<Fetched, Failure> {
    let read = wanted.read_for(&range);
    let mut bytes = Vec::with_capacity(to_usize(read.end - read.start));
    let mut at = read.start;
    while at < read.end {
        let block_end = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
        // A range request must not cross a block, or exceed its maximum.
        let end = read.end.min(block_end).min(at + RANGE_BYTES_MAX);
        let request = RangeRequest {
            path: wanted.file.path.clone(),
            version: wanted.file.version,
            size: wanted.file.size,
            offset: at,
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
    let before = to_usize(wanted.extent.start + range.start - read.start);
    let len = to_usize(range.end - range.start);
    Ok(Fetched {
        start: range.start,
        bytes: Bytes::from(bytes).slice(before..before + len),
        hashes: Vec::new(),
    })
}

async fn blocks(
    source: &dyn Files,
    wanted: &WantedItem,
    range: Range<u64>,
    through: bool,
) -> Result<Fetched, Failure> {
    let first = (wanted.extent.start + range.start) / BLOCK_BYTES;
    let count = (wanted.extent.start + range.end).div_ceil(BLOCK_BYTES) - first;
    let request = ReadRequest {
        path: wanted.file.path.clone(),
        version: wanted.file.version,
        size: wanted.file.size,
        first_block: first,
        block_count: count,
        content: wanted.file.content,
        through,
    };
    let mut parts = source.read(request).await?;
    let due = to_usize(range.end - range.start);
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
                        format!("{path}: it changed since it was indexed; make the index again");
                    return Err(Failure::new(FailureKind::Stale, detail));
                }
                hashes.push(hash);
            }
            Some(Err(failure)) => return Err(failure),
            None => return Err(corrupt(wanted, "the stream ended too early")),
        }
    }
    Ok(Fetched {
        start: range.start,
        bytes: bytes.into(),
        hashes,
    })
}

fn hash_of(bytes: &[u8]) -> ContentHash {
    ContentHash(*blake3::hash(bytes).as_bytes())
}

fn corrupt(wanted: &WantedItem, cause: &str) -> Failure {
    let detail = format!("{}: {cause}", wanted.file.path);
    Failure::new(FailureKind::Corrupt, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of `length` from `start` of an item on, which were read in blocks of the file if `in_blocks`.
    fn fetched(start: u64, length: u64, in_blocks: bool) -> Fetched {
        let byte = |at: u64| u8::try_from(at % 251).unwrap();
        let bytes: Bytes = (start..start + length).map(byte).collect();
        let chunks = bytes.chunks(to_usize(BLOCK_BYTES));
        let hashes = if in_blocks {
            chunks.map(hash_of).collect()
        } else {
            Vec::new()
        };
        Fetched {
            start,
            bytes,
            hashes,
        }
    }

    /// A wrong hash would be taken for a fault of the home.
    #[test]
    fn each_block_of_a_cut_has_its_own_hash_or_none() {
        const HALF: u64 = BLOCK_BYTES / 2;
        for (start, length, in_blocks, wanted, known) in [
            (0, 3 * BLOCK_BYTES, true, 0..3 * BLOCK_BYTES, 3),
            (0, 3 * BLOCK_BYTES, true, HALF..3 * BLOCK_BYTES, 2),
            (0, 3 * BLOCK_BYTES, true, HALF..HALF + 1, 0),
            (
                0,
                2 * BLOCK_BYTES + 7,
                true,
                BLOCK_BYTES..2 * BLOCK_BYTES + 7,
                2,
            ),
            (BLOCK_BYTES, HALF, true, BLOCK_BYTES..BLOCK_BYTES + HALF, 1),
            (0, 2 * BLOCK_BYTES, false, 0..2 * BLOCK_BYTES, 0),
            // Blocks of the file that are none of the item.
            (HALF, 2 * BLOCK_BYTES, true, HALF..2 * BLOCK_BYTES + HALF, 0),
        ] {
            let fetched = fetched(start, length, in_blocks);
            let blocks = fetched.cut(&wanted).unwrap();
            assert_eq!(
                blocks.iter().filter(|block| block.hash.is_some()).count(),
                known
            );
            let mut at = wanted.start;
            for block in &blocks {
                let end = ((at / BLOCK_BYTES + 1) * BLOCK_BYTES).min(wanted.end);
                let due = fetched
                    .bytes
                    .slice(to_usize(at - start)..to_usize(end - start));
                assert_eq!(block.bytes, due);
                assert!(block.hash.is_none_or(|hash| hash == hash_of(&due)));
                at = end;
            }
            assert_eq!(at, wanted.end);
            assert!(fetched.cut(&(wanted.start..start + length + 1)).is_none());
            assert!(start == 0 || fetched.cut(&(start - 1..start)).is_none());
        }
    }
}
