//! A node without caches that relays reads to its ancestor. The root's storage is memory.

use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, ContentHash, Failure, FailureKind, Files, FilesFuture, FilesystemUsage,
    ItemPath, Leased, ListRequest, Listed, OriginFingerprint, ReadRequest, ReadStream, Service,
    StatAnswers, StatRequest, Upstream, XattrList,
};
use futures_util::future::ready;
use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

use crate::num::to_usize;

/// Bytes of one piece of an answer of the root, as in reads of an origin.
const PIECE_BYTES: u64 = 128 << 10;

/// The root's data: blocks of a single byte value, whose hashes are computed once.
#[derive(Debug)]
pub(super) struct Memory {
    piece: Bytes,
    /// Hashes by the length of the block. The lock is held for a look-up, or while a new length is hashed.
    hashes: Mutex<HashMap<u64, ContentHash>>,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self {
            piece: vec![0x5a; to_usize(PIECE_BYTES)].into(),
            hashes: Mutex::default(),
        }
    }

    fn hash(&self, len: u64) -> ContentHash {
        let mut hashes = self.hashes.lock();
        *hashes.entry(len).or_insert_with(|| {
            let mut hasher = blake3::Hasher::new();
            for piece in self.pieces(len) {
                hasher.update(&piece);
            }
            ContentHash(*hasher.finalize().as_bytes())
        })
    }

    fn pieces(&self, len: u64) -> impl Iterator<Item = Bytes> {
        (0..len.div_ceil(PIECE_BYTES)).map(move |index| {
            let left = (len - index * PIECE_BYTES).min(PIECE_BYTES);
            self.piece.slice(..to_usize(left))
        })
    }
}

fn unsupported<T: Send + 'static>() -> FilesFuture<T> {
    let failure = Failure::new(FailureKind::Unsupported, "a benchmark reads, nothing else");
    ready(Err(failure)).boxed()
}

/// The root's storage. Answers reads only.
#[derive(Debug)]
pub(super) struct Storage(pub(super) Arc<Memory>);

impl Files for Storage {
    fn list(&self, _request: ListRequest) -> FilesFuture<Listed> {
        unsupported()
    }

    fn stat(&self, _request: StatRequest) -> FilesFuture<Leased<StatAnswers>> {
        unsupported()
    }

    fn read(&self, request: ReadRequest) -> FilesFuture<ReadStream> {
        let (memory, size) = (Arc::clone(&self.0), request.size);
        let blocks = request.first_block..request.first_block + request.block_count;
        let blocks = blocks.filter(move |&block| block * BLOCK_BYTES < size);
        let parts = stream::iter(blocks).flat_map(move |block| {
            let len = ReadRequest::block_len(size, block);
            let pieces: Vec<_> = memory.pieces(len).map(BlockPart::Bytes).collect();
            let end = BlockPart::End(memory.hash(len));
            stream::iter(pieces.into_iter().chain([end]).map(Ok))
        });
        ready(Ok(parts.boxed())).boxed()
    }

    fn xattrs(&self, _path: ItemPath) -> FilesFuture<Leased<XattrList>> {
        unsupported()
    }

    fn usage(&self, _path: ItemPath) -> FilesFuture<FilesystemUsage> {
        unsupported()
    }
}

/// A node that sends its requests to its ancestor in the tree.
pub(super) struct Relay(pub(super) Upstream);

impl Service for Relay {
    fn files(&self, attempt: u8) -> Arc<dyn Files> {
        Arc::new(self.0.at(attempt))
    }

    fn origins(&self) -> FilesFuture<Vec<OriginFingerprint>> {
        ready(Ok(Vec::new())).boxed()
    }

    fn report(&self) -> Bytes {
        Bytes::from_static(b"{}")
    }

    fn clear(&self, _path: ItemPath) -> FilesFuture<bool> {
        ready(Ok(true)).boxed()
    }
}
