//! From a stream of bytes to a stream of hashed blocks.

use crate::origin::counters::OriginCounters;
use crate::origin::failure::worded;
use crate::origin::{ByteRange, ByteStream, HashedStream};
use bytes::{Bytes, BytesMut};
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, ContentHash, Failure, FailureKind, ItemPath, ReadRequest, ReadStream,
};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::sync::Arc;

/// The bytes that `request` stands for; blocks beyond the end of the file hold none.
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

struct Blocks {
    bytes: ByteStream,
    /// Bytes that came and are not handed on yet.
    piece: Bytes,
    /// Path for messages.
    path: ItemPath,
    hasher: blake3::Hasher,
    /// Bytes that the current block still lacks.
    block_left: u64,
    /// Bytes that the whole range still lacks, the current block's included.
    left: u64,
    /// The current block is complete and its hash is due.
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
    stream::try_unfold(blocks, Blocks::next).boxed()
}

/// Blocks that the origin has hashed, counted; after a failure nothing more comes.
pub(super) fn counted(blocks: HashedStream, counters: Arc<OriginCounters>) -> ReadStream {
    let parts = stream::try_unfold((blocks, counters), async |(mut blocks, counters)| {
        let Some(next) = blocks.next().await else {
            return Ok::<_, Failure>(None);
        };
        let (bytes, hash) = next.inspect_err(|failure| counters.failed(failure))?;
        counters.read(bytes.len());
        let parts = [Ok(BlockPart::Bytes(bytes)), Ok(BlockPart::End(hash))];
        Ok(Some((stream::iter(parts), (blocks, counters))))
    });
    parts.try_flatten().boxed()
}

/// All of `bytes`, which must be `length` of them, in one piece.
pub(super) async fn gathered(
    mut bytes: ByteStream,
    path: &ItemPath,
    length: u64,
    counters: &OriginCounters,
) -> Result<Bytes, Failure> {
    let mut whole = Bytes::new();
    while let Some(next) = bytes.next().await {
        let piece = next.inspect_err(|failure| counters.failed(failure))?;
        counters.read(piece.len());
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
    let cause = "another number of bytes than the range has";
    let failure = worded(FailureKind::Io, "data", "read", path, &cause, "");
    counters.failed(&failure);
    Err(failure)
}

impl Blocks {
    async fn next(mut self) -> Result<Option<(BlockPart, Self)>, Failure> {
        if self.hash_due {
            self.hash_due = false;
            self.block_left = self.left.min(BLOCK_BYTES);
            let hash = ContentHash(*self.hasher.finalize().as_bytes());
            self.hasher.reset();
            return Ok(Some((BlockPart::End(hash), self)));
        }
        if self.left == 0 && self.piece.is_empty() {
            // The stream's own last word: a version that changed, or more bytes than asked for.
            return match self.pull().await? {
                true => Err(self.fault("more bytes than the range has")),
                false => Ok(None),
            };
        }
        while self.piece.is_empty() {
            if !self.pull().await? {
                return Err(self.fault("the data ended early"));
            }
        }
        if self.left == 0 {
            return Err(self.fault("more bytes than the range has"));
        }
        let take = usize::try_from(self.block_left)
            .map_or(self.piece.len(), |left| left.min(self.piece.len()));
        let part = self.piece.split_to(take);
        self.hasher.update(&part);
        let taken = u64::try_from(take).unwrap_or(self.block_left);
        self.block_left -= taken;
        self.left -= taken;
        self.hash_due = self.block_left == 0;
        Ok(Some((BlockPart::Bytes(part), self)))
    }

    /// Waits for the next piece that is not empty; `false` at the end of the stream.
    async fn pull(&mut self) -> Result<bool, Failure> {
        while let Some(next) = self.bytes.next().await {
            match next {
                Ok(piece) if piece.is_empty() => {}
                Ok(piece) => {
                    self.counters.read(piece.len());
                    self.piece = piece;
                    return Ok(true);
                }
                Err(failure) => {
                    self.counters.failed(&failure);
                    return Err(failure);
                }
            }
        }
        Ok(false)
    }

    fn fault(&self, cause: &str) -> Failure {
        let failure = worded(FailureKind::Io, "data", "read", &self.path, &cause, "");
        self.counters.failed(&failure);
        failure
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
                BlockPart::Restart => panic!("storage takes nothing back"),
            }
        }
        assert!(block.is_empty(), "a block without its hash");
        Ok(blocks)
    }

    #[tokio::test]
    async fn blocks_are_cut_and_hashed_whatever_the_pieces() {
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
