//! Turns a stream of bytes into a stream of hashed blocks.

use crate::num::to_usize;
use crate::origin::counters::OriginCounters;
use crate::origin::{ByteRange, ByteStream, HashedStream, wrong_data};
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, ContentHash, Failure, ItemPath, ReadRequest, ReadStream,
};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::sync::Arc;

/// The bytes of the blocks of `request`; blocks beyond the end of the file are empty.
pub(super) fn range_of(request: &ReadRequest, path: ItemPath) -> ByteRange {
    let start_of = |block: u64| block.saturating_mul(BLOCK_BYTES).min(request.size);
    let offset = start_of(request.first_block);
    let end = start_of(request.first_block.saturating_add(request.block_count));
    ByteRange {
        path,
        version: request.version,
        size: request.size,
        offset,
        length: end.saturating_sub(offset),
    }
}

/// A stream that is cut into blocks.
struct Blocks {
    /// Path for messages.
    path: ItemPath,
    /// Length of the whole range.
    length: u64,
    /// Bytes that have arrived.
    done: u64,
    /// Has the bytes of the current block.
    hasher: blake3::Hasher,
}

/// Cuts `bytes` (exactly `length` of them, from a block's beginning) into blocks, each followed by its
/// hash. A stream of another length is a fault of the origin and ends with a failure.
pub(super) fn hashed(bytes: ByteStream, path: ItemPath, length: u64) -> ReadStream {
    let blocks = Blocks {
        path,
        length,
        done: 0,
        hasher: blake3::Hasher::new(),
    };
    let parts = stream::try_unfold((bytes, blocks), async |(mut bytes, mut blocks)| {
        // Also after the last byte: a changed version may be reported only at the end of the stream.
        match bytes.next().await.transpose()? {
            Some(piece) => {
                let parts = blocks.cut(piece)?.into_iter().map(Ok);
                Ok(Some((stream::iter(parts), (bytes, blocks))))
            }
            None if blocks.done == blocks.length => Ok(None),
            None => Err(wrong_data("the data ended early", &blocks.path)),
        }
    });
    parts.try_flatten().boxed()
}

impl Blocks {
    /// The parts of blocks that `piece` consists of.
    fn cut(&mut self, mut piece: Bytes) -> Result<Vec<BlockPart>, Failure> {
        if piece.len() as u64 > self.length - self.done {
            return Err(wrong_data("more bytes than the range has", &self.path));
        }
        let mut parts = Vec::new();
        while !piece.is_empty() {
            let block_left = BLOCK_BYTES - self.done % BLOCK_BYTES;
            let part = piece.split_to(to_usize(block_left).min(piece.len()));
            self.hasher.update(&part);
            self.done += part.len() as u64;
            parts.push(BlockPart::Bytes(part));
            if self.done.is_multiple_of(BLOCK_BYTES) || self.done == self.length {
                let hash = ContentHash(*self.hasher.finalize().as_bytes());
                parts.push(BlockPart::End(hash));
                self.hasher.reset();
            }
        }
        Ok(parts)
    }
}

/// The parts of blocks that the origin has hashed itself.
pub(super) fn parts_of(blocks: HashedStream) -> ReadStream {
    let parts = |(bytes, hash)| [Ok(BlockPart::Bytes(bytes)), Ok(BlockPart::End(hash))];
    blocks
        .map_ok(move |block| stream::iter(parts(block)))
        .try_flatten()
        .boxed()
}

/// Counts the bytes of `parts`, and its failure, after which the stream ends.
pub(super) fn counted(parts: ReadStream, counters: Arc<OriginCounters>) -> ReadStream {
    let parts = stream::try_unfold((parts, counters), async |(mut parts, counters)| {
        let part = parts.next().await.transpose();
        let part = part.inspect_err(|failure| counters.failed(failure))?;
        if let Some(BlockPart::Bytes(bytes)) = &part {
            counters.read_bytes.add_len(bytes.len());
        }
        Ok(part.map(|part| (part, (parts, counters))))
    });
    parts.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use copperfs_overlay::FailureKind;

    fn pieces(sizes: &[usize]) -> (ByteStream, Vec<u8>) {
        let mut whole = Vec::new();
        let mut parts = Vec::new();
        for (i, &size) in sizes.iter().enumerate() {
            let part: Vec<u8> = (0..size)
                .map(|j| u8::try_from((i + j) % 251).unwrap())
                .collect();
            whole.extend_from_slice(&part);
            parts.push(Ok(Bytes::from(part)));
        }
        (stream::iter(parts).boxed(), whole)
    }

    async fn collect(sizes: &[usize], length: u64) -> Result<Vec<(Vec<u8>, ContentHash)>, Failure> {
        let (bytes, _) = pieces(sizes);
        let mut parts = hashed(bytes, ItemPath::root(), length);
        let (mut blocks, mut block) = (Vec::new(), Vec::new());
        while let Some(part) = parts.next().await {
            match part? {
                BlockPart::Bytes(bytes) => block.extend_from_slice(&bytes),
                BlockPart::End(hash) => blocks.push((std::mem::take(&mut block), hash)),
                BlockPart::Restart => panic!("storage never restarts a block"),
            }
        }
        assert!(block.is_empty(), "a block without its hash");
        Ok(blocks)
    }

    #[tokio::test]
    async fn pieces_of_any_size_are_cut_into_hashed_blocks() {
        const MIB: usize = 1 << 20;
        for sizes in [
            &[2 * MIB + 5][..],
            &[MIB, MIB, 5],
            &[1, 0, MIB - 1, 0, 7, MIB - 2],
            &[3 * MIB],
        ] {
            let (_, whole) = pieces(sizes);
            let blocks = collect(sizes, whole.len() as u64).await.unwrap();
            assert_eq!(blocks.len(), whole.len().div_ceil(MIB));
            for (chunk, (block, hash)) in whole.chunks(MIB).zip(&blocks) {
                assert_eq!(chunk, block);
                assert_eq!(hash.0, *blake3::hash(chunk).as_bytes());
            }
        }
    }

    #[tokio::test]
    async fn short_and_long_data_is_a_fault_and_never_a_block() {
        assert_eq!(collect(&[10], 11).await.unwrap_err().kind, FailureKind::Io);
        assert_eq!(collect(&[10], 9).await.unwrap_err().kind, FailureKind::Io);
        assert_eq!(
            collect(&[10, 1], 10).await.unwrap_err().kind,
            FailureKind::Io
        );
        assert_eq!(collect(&[], 0).await.unwrap(), []);
    }

    #[test]
    fn ranges_end_at_the_end_of_the_file() {
        let request = |first_block, block_count, size| ReadRequest {
            path: ItemPath::root(),
            version: copperfs_overlay::Version::from_data([0; 16]),
            size,
            first_block,
            block_count,
            content: None,
            through: false,
        };
        let range = |r: ReadRequest| {
            let range = range_of(&r, ItemPath::root());
            (range.offset, range.length)
        };
        assert_eq!(range(request(0, 1, 5)), (0, 5));
        assert_eq!(range(request(1, 2, BLOCK_BYTES + 5)), (BLOCK_BYTES, 5));
        assert_eq!(
            range(request(0, u64::MAX, 3 * BLOCK_BYTES)),
            (0, 3 * BLOCK_BYTES)
        );
        assert_eq!(range(request(u64::MAX, u64::MAX, 7)), (7, 0));
        assert_eq!(range(request(0, 1, 0)), (0, 0));
    }
}
