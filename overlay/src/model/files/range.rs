//! Runs of bytes shorter than a block, for readers that jump about in large files.

use super::{ReadRequest, ReadStream};
use crate::model::{BlockPart, ContentHash, Failure, FailureKind, ItemPath, Version};
use bytes::{Bytes, BytesMut};
use copperfs_topology::BLOCK_BYTES;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

/// What a range is aligned to, in bytes: a page of the kernel.
pub const RANGE_ALIGN: u64 = 4096;

/// Bytes of one range. Whoever wants more is better served by blocks, or asks several times.
pub const RANGE_BYTES_MAX: u64 = 256 << 10;

/// A run of bytes of one version of one file, within one of its blocks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RangeRequest {
    /// The file.
    pub path: ItemPath,
    /// The version wanted; another one at the origin is answered with `Stale`.
    pub version: Version,
    /// Size of that version in bytes.
    pub size: u64,
    /// First byte wanted, a multiple of [`RANGE_ALIGN`].
    pub offset: u64,
    /// Bytes wanted, 1 to [`RANGE_BYTES_MAX`]: a multiple of [`RANGE_ALIGN`], or up to the file's end.
    pub len: u64,
    /// The hash of the whole file, where the asker knows it ([`crate::Attributes::content`]).
    pub content: Option<ContentHash>,
}

impl RangeRequest {
    /// The block of the file in which all of it lies.
    #[must_use]
    pub fn block(&self) -> u64 {
        self.offset / BLOCK_BYTES
    }

    /// Why this cannot be asked for, if so.
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

/// The bytes of a [`RangeRequest`], all of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeAnswer {
    /// The bytes.
    pub bytes: Bytes,
    /// Their hash: made where the origin was read, or by the node that cut them out of a verified
    /// block; checked wherever they arrive.
    pub hash: ContentHash,
}

impl RangeAnswer {
    /// `bytes` that are known to be right, and their hash.
    #[must_use]
    pub fn of(bytes: Bytes) -> Self {
        let hash = ContentHash(*blake3::hash(&bytes).as_bytes());
        Self { bytes, hash }
    }
}

/// The request for the block that `range` lies in.
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

/// Cuts `range` out of its block.
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
                let bounds = usize::try_from(from)
                    .ok()
                    .zip(usize::try_from(from + range.len).ok());
                let bytes = bounds.and_then(|(from, to)| block.get(from..to));
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
    fn ranges_are_aligned_and_lie_within_one_block() {
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
