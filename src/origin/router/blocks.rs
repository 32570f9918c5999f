//! Turns a stream of bytes into a stream of hashed blocks.

use crate::num::to_usize;
use crate::origin::counters::OriginCounters;
use crate::origin::failure::Cause;
use crate::origin::{ByteRange, ByteStream, HashedStream};
use bytes::{Bytes, BytesMut};
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, ContentHash, Failure, FailureKind, ItemPath, ReadRequest, ReadStream,
};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::sync::Arc;

/// The bytes of the blocks of `request`; blocks beyond the end of the file are empty.
pub(super) fn range_of(request: &ReadRequest, path: ItemPath) -> ByteRange {
    let offset = request
        .first_block
        .saturating_mul(BLOCK_BYTES)
        .min(request.size);
    let end = request
        .first_block
        .saturating_add(request.block_count)
        .saturating_mul(BLOCK_BYTES)
        .min(request.size);
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
    bytes: ByteStream,
    /// Bytes that have arrived and are not returned yet.
    piece: Bytes,
    /// Path for messages.
    path: ItemPath,
    hasher: blake3::Hasher,
    /// Missing bytes of the current block.
    block_left: u64,
    /// Missing bytes of the whole range, including those of the current block.
    left: u64,
    /// The current block is complete, and its hash is returned next.
    hash_due: bool,
    counters: Arc<OriginCounters>,
}

/// Cuts `bytes` (exactly `length` of them, from a block's beginning) into blocks, each followed by its
/// hash. A stream of another length is a fault of the origin and ends with a failure.
pub(super) fn hashed(
    bytes: ByteStream,
    path: ItemPath,
    length: u64,
    counters: Arc<OriginCounters>,
) -> ReadStream {
    let blocks = Blocks {
        bytes,
        piece: Bytes::new(),
        path,
        hasher: blake3::Hasher::new(),
        block_left: length.min(BLOCK_BYTES),
        left: length,
        hash_due: false,
        counters,
    };
    let parts = stream::try_unfold(blocks, |mut blocks| async move {
        Ok(blocks.next().await?.map(|part| (part, blocks)))
    });
    parts.boxed()
}

/// Counts blocks that the origin has hashed itself. The stream ends after a failure.
pub(super) fn counted(blocks: HashedStream, counters: Arc<OriginCounters>) -> ReadStream {
    let parts = stream::try_unfold((blocks, counters), async |(mut blocks, counters)| {
        let Some(next) = blocks.next().await else {
            return Ok::<_, Failure>(None);
        };
        let (bytes, hash) = next.inspect_err(|failure| counters.failed(failure))?;
        counters.read_bytes.add_len(bytes.len());
        let parts = [Ok(BlockPart::Bytes(bytes)), Ok(BlockPart::End(hash))];
        Ok(Some((stream::iter(parts), (blocks, counters))))
    });
    parts.try_flatten().boxed()
}

/// All of `bytes` in one piece. Any other number of bytes than `length` is a fault of the origin.
pub(super) async fn gathered(
    mut bytes: ByteStream,
    path: &ItemPath,
    length: u64,
    counters: &OriginCounters,
) -> Result<Bytes, Failure> {
    let mut whole = Bytes::new();
    while let Some(next) = bytes.next().await {
        let piece = next.inspect_err(|failure| counters.failed(failure))?;
        counters.read_bytes.add_len(piece.len());
        // Most ranges arrive in one piece, which is not copied.
        if whole.is_empty() {
            whole = piece;
        } else {
            let mut joined = BytesMut::from(whole);
            joined.extend_from_slice(&piece);
            whole = joined.freeze();
        }
        if whole.len() as u64 > length {
            break;
        }
    }
    if whole.len() as u64 == length {
        return Ok(whole);
    }
    Err(fault(
        "another number of bytes than the range has",
        path,
        counters,
    ))
}

/// The counted failure for an origin that returned wrong data.
fn fault(cause: &'static str, path: &ItemPath, counters: &OriginCounters) -> Failure {
    let failure = Cause::new(FailureKind::Io, cause).failure("data", "read", path);
    counters.failed(&failure);
    failure
}

impl Blocks {
    async fn next(&mut self) -> Result<Option<BlockPart>, Failure> {
        if self.hash_due {
            self.hash_due = false;
            self.block_left = self.left.min(BLOCK_BYTES);
            let hash = ContentHash(*self.hasher.finalize().as_bytes());
            self.hasher.reset();
            return Ok(Some(BlockPart::End(hash)));
        }
        while self.piece.is_empty() {
            // Also after the last byte: a changed version may be reported only at the end of the stream.
            let Some(next) = self.bytes.next().await else {
                return match self.left {
                    0 => Ok(None),
                    _ => Err(fault("the data ended early", &self.path, &self.counters)),
                };
            };
            self.piece = next.inspect_err(|failure| self.counters.failed(failure))?;
            self.counters.read_bytes.add_len(self.piece.len());
        }
        if self.left == 0 {
            let cause = "more bytes than the range has";
            return Err(fault(cause, &self.path, &self.counters));
        }
        let taken = self.block_left.min(self.piece.len() as u64);
        let part = self.piece.split_to(to_usize(taken));
        self.hasher.update(&part);
        self.block_left -= taken;
        self.left -= taken;
        self.hash_due = self.block_left == 0;
        Ok(Some(BlockPart::Bytes(part)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let counters = Arc::new(OriginCounters::default());
        let mut parts = hashed(bytes, ItemPath::root(), length, counters);
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
