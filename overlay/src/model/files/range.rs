//! Ranges: consecutive bytes, less than a block, for random readers of large files.

use super::{ReadRequest, ReadStream};
use crate::model::{BlockPart, ContentHash, Failure, FailureKind, ItemPath, Version};
use bytes::{Bytes, BytesMut};
use copperfs_topology::BLOCK_BYTES;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

/// Alignment of ranges in bytes: a page of the kernel.
pub const RANGE_ALIGN: u64 = 4096;

/// Most bytes of a range. Larger reads are better served by blocks, or by several ranges.
pub const RANGE_BYTES_MAX: u64 = 256 << 10;

/// Requests consecutive bytes of one version of a file, within one block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RangeRequest {
    /// The file.
    pub path: ItemPath,
    /// The requested version. If the origin has another one, the answer is `Stale`.
    pub version: Version,
    /// Size of that version in bytes.
    pub size: u64,
    /// Offset of the first byte, a multiple of [`RANGE_ALIGN`].
    pub offset: u64,
    /// Number of bytes, 1 to [`RANGE_BYTES_MAX`]: a multiple of [`RANGE_ALIGN`], or up to the file's end.
    pub len: u64,
    /// The hash of the whole file, if the requester knows it ([`crate::Attributes::content`]).
    pub content: Option<ContentHash>,
}

impl RangeRequest {
    /// The index of the block that contains the range.
    #[must_use]
    pub fn block(&self) -> u64 {
        self.offset / BLOCK_BYTES
    }

    /// The reason why this request is invalid; `None` if it is valid.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        let end = self.offset.checked_add(self.len);
        let Some(end) = end.filter(|end| *end <= self.size) else {
            return Some("a range beyond the end of the file");
        };
        if self.len == 0 || self.len > RANGE_BYTES_MAX {
            return Some("a range of no bytes or of too many");
        }
        let aligned = |at: u64| at.is_multiple_of(RANGE_ALIGN);
        if !aligned(self.offset) || !(aligned(end) || end == self.size) {
            return Some("a range that is not aligned");
        }
        if (end - 1) / BLOCK_BYTES != self.block() {
            return Some("a range over two blocks");
        }
        None
    }
}

/// The answer to a [`RangeRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeAnswer {
    /// All requested bytes.
    pub bytes: Bytes,
    /// Their hash, made by the node that read the origin, or that cut them out of a verified block. Verified wherever
    /// they arrive.
    pub hash: ContentHash,
}

impl RangeAnswer {
    /// An answer with `bytes`, which must be verified, and their hash.
    #[must_use]
    pub fn of(bytes: Bytes) -> Self {
        let hash = ContentHash(*blake3::hash(&bytes).as_bytes());
        Self { bytes, hash }
    }

    /// Joins the bytes of several answers. Copies nothing if there is one.
    #[must_use]
    pub fn joined(answers: &[Self]) -> Bytes {
        if let [only] = answers {
            return only.bytes.clone();
        }
        let mut joined = BytesMut::with_capacity(answers.iter().map(|one| one.bytes.len()).sum());
        answers
            .iter()
            .for_each(|one| joined.extend_from_slice(&one.bytes));
        joined.freeze()
    }
}

/// Returns the request for the block that contains `range`.
pub(super) fn block_of(range: &RangeRequest) -> ReadRequest {
    ReadRequest {
        path: range.path.clone(),
        version: range.version,
        size: range.size,
        first_block: range.block(),
        block_count: 1,
        content: range.content,
        through: false,
    }
}

/// Reads the block from `parts`, and cuts `range` out of it.
pub(super) async fn cut(
    range: &RangeRequest,
    mut parts: ReadStream,
) -> Result<RangeAnswer, Failure> {
    let corrupt = |cause: &str| {
        let detail = format!("{}: {cause}", range.path);
        Failure::new(FailureKind::Corrupt, detail)
    };
    if let Some(fault) = range.fault() {
        return Err(corrupt(fault));
    }
    let due = ReadRequest::block_len(range.size, range.block());
    let mut block = BytesMut::new();
    while let Some(part) = parts.next().await {
        match part? {
            BlockPart::Bytes(bytes) => {
                let len = u64::try_from(block.len() + bytes.len()).unwrap_or(u64::MAX);
                if len > due {
                    return Err(corrupt("a block longer than announced"));
                }
                block.extend_from_slice(&bytes);
            }
            BlockPart::Restart => block.clear(),
            BlockPart::End(_hash) => {
                let from = range.offset % BLOCK_BYTES;
                let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
                let bytes = block.get(index(from)..index(from + range.len));
                let bytes = bytes.ok_or_else(|| corrupt("a block that ended early"))?;
                return Ok(RangeAnswer::of(Bytes::copy_from_slice(bytes)));
            }
        }
    }
    Err(corrupt("the stream ended too early"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, len: u64, size: u64) -> RangeRequest {
        RangeRequest {
            path: ItemPath::root(),
            version: Version::from_data([0; 16]),
            size,
            offset,
            len,
            content: None,
        }
    }

    #[test]
    fn ranges_are_aligned_and_within_one_block() {
        const TIB: u64 = 1 << 40;
        let fine = [
            (0, 4096, 8192),
            (4096, 4096, 8192),
            (4096, 5, 4101),
            (0, 1, 1),
            (3 * TIB, 4096, 4 * TIB),
            (BLOCK_BYTES - 4096, 4096, TIB),
            (BLOCK_BYTES, RANGE_BYTES_MAX, TIB),
        ];
        for (offset, len, size) in fine {
            assert_eq!(range(offset, len, size).fault(), None, "{offset} {len}");
        }
        let wrong = [
            (0, 0, 8192),
            (1, 4096, 8192),
            (0, 5, 8192),
            (4096, 4096, 8191),
            (u64::MAX - 4095, 8192, u64::MAX),
            (BLOCK_BYTES - 4096, 8192, TIB),
            (0, RANGE_BYTES_MAX + 4096, TIB),
        ];
        for (offset, len, size) in wrong {
            assert!(range(offset, len, size).fault().is_some(), "{offset} {len}");
        }
    }
}
