//! Pieces: parts of [`PIECE_BYTES`] of a block, for readers that jump about in large files.
//!
//! A piece is cached under a key of its own, is counted with its overhead, and has a flight while it is
//! being fetched, so that readers of the same piece share it. One request brings consecutive pieces that are
//! missing. If the whole block is cached or on its way, it is used instead.

use super::blocks::{BlockSource, Priority, cut_of, wait_done};
use super::flight::Flight;
use super::{Block, Data, shutting_down};
use crate::num::to_usize;
use crate::read::file::{BlockKey, FileRef};
use crate::read::slices::{BLOCK_PIECES, Cut, PIECE_BYTES, Part, PartRange, Parts};
use bytes::{Bytes, BytesMut};
use copperfs_overlay::{
    BLOCK_BYTES, ContentHash, Failure, FailureKind, RANGE_BYTES_MAX, RangeAnswer, RangeRequest,
};
use dashmap::mapref::entry::Entry;
use std::ops::Range;
use std::sync::Arc;

/// The memory of a cached piece besides its bytes: entries of the cache's maps and queues (measured at about
/// 300 B with glibc's allocator).
const PIECE_COST_BYTES: u64 = 320;

/// A range of a file's bytes within one block.
struct Wanted<'a> {
    file: &'a FileRef,
    block: u64,
    /// Offsets in the file.
    range: Range<u64>,
}

impl Wanted<'_> {
    /// The pieces that contain it, counted from the block's beginning.
    fn pieces(&self) -> Range<u64> {
        let base = self.block * BLOCK_BYTES;
        let (start, end) = (self.range.start - base, self.range.end - base);
        start / PIECE_BYTES..end.div_ceil(PIECE_BYTES)
    }

    fn key(&self, piece: u64) -> BlockKey {
        self.file.piece_key(self.block, piece)
    }

    /// The range of `piece` in the file.
    fn piece_range(&self, piece: u64) -> Range<u64> {
        let start = self.block * BLOCK_BYTES + piece * PIECE_BYTES;
        start..(start + PIECE_BYTES).min(self.file.size)
    }

    /// Joins `held`, which are all the pieces, in order.
    fn join(&self, held: &[Block]) -> Cut {
        let first = self.block * BLOCK_PIECES as u64;
        let part = |(piece, held): (u64, &Block)| Part {
            range: PartRange::Piece(first + piece),
            hash: held.hash,
        };
        Cut {
            bytes: self.joined(held),
            parts: self.pieces().zip(held).map(part).collect::<Parts>(),
        }
    }

    fn joined(&self, held: &[Block]) -> Bytes {
        let cut = |(piece, held): (u64, &Block)| {
            let whole = self.piece_range(piece);
            let from = self.range.start.max(whole.start) - whole.start;
            let to = self.range.end.min(whole.end) - whole.start;
            held.bytes.slice(to_usize(from)..to_usize(to))
        };
        let mut parts = self.pieces().zip(held).map(cut);
        if held.len() == 1 {
            return parts.next().unwrap_or_default();
        }
        let len = to_usize(self.range.end - self.range.start);
        let mut joined = BytesMut::with_capacity(len);
        for part in parts {
            joined.extend_from_slice(&part);
        }
        joined.freeze()
    }
}

enum Claim {
    Cached(Block),
    Flying(Arc<Flight>),
    /// The caller must fetch it.
    Ours(Arc<Flight>),
}

/// The bytes of `range`, which lies within block `block`, if `held` returns all its pieces.
pub(super) fn joined(
    file: &FileRef,
    block: u64,
    range: &Range<u64>,
    held: impl Fn(&BlockKey) -> Option<Block>,
) -> Option<Cut> {
    let range = range.clone();
    let part = Wanted { file, block, range };
    let held = part.pieces().map(|piece| held(&part.key(piece)));
    Some(part.join(&held.collect::<Option<Vec<_>>>()?))
}

impl Data {
    /// The bytes of `range`, which lies within block `block`, if all its pieces are cached.
    pub(super) fn try_pieces(&self, file: &FileRef, block: u64, range: &Range<u64>) -> Option<Cut> {
        joined(file, block, range, |key| self.cache().get(key))
    }

    /// The bytes of `range`, which lies within block `block`, and no others unless that block is cached or
    /// on its way.
    ///
    /// # Errors
    /// Like [`Data::read`].
    pub(in crate::read) async fn pieces(
        &self,
        file: &FileRef,
        block: u64,
        range: &Range<u64>,
    ) -> Result<Cut, Failure> {
        if self.has_or_awaits(file, block) {
            let wanted = || [block..block + 1, 0..0];
            let whole = self.block(file, block, wanted, Priority::Urgent).await?;
            return Ok(cut_of(&whole, block, range));
        }
        let range = range.clone();
        let part = Wanted { file, block, range };
        let mut detours = 0;
        loop {
            match self.fetch_pieces(&part).await {
                Ok(held) => return Ok(part.join(&held)),
                Err((_, flight)) if flight.is_elsewhere(file, detours) => detours += 1,
                Err((failure, _)) => return Err(failure),
            }
        }
    }

    /// All pieces of `part`, or a failure and the flight that ended with it.
    async fn fetch_pieces(&self, part: &Wanted<'_>) -> Result<Vec<Block>, (Failure, Arc<Flight>)> {
        let mut sources = Vec::with_capacity(part.pieces().count());
        let mut ours = Vec::new();
        for piece in part.pieces() {
            let source = match self.claim_piece(part, piece) {
                Claim::Ours(flight) => {
                    ours.push(Arc::clone(&flight));
                    sources.push(BlockSource::Flying(flight));
                    if ours.len() as u64 * PIECE_BYTES == RANGE_BYTES_MAX {
                        self.launch_pieces(part, piece + 1, &mut ours);
                    }
                    continue;
                }
                Claim::Cached(held) => BlockSource::Cached(held),
                Claim::Flying(flight) => BlockSource::Flying(flight),
            };
            self.launch_pieces(part, piece, &mut ours);
            sources.push(source);
        }
        self.launch_pieces(part, part.pieces().end, &mut ours);
        let mut held = Vec::with_capacity(sources.len());
        for source in sources {
            held.push(match source {
                BlockSource::Cached(piece) => piece,
                BlockSource::Flying(flight) => match wait_done(&flight).await {
                    Ok(piece) => piece,
                    Err(failure) => return Err((failure, flight)),
                },
            });
        }
        Ok(held)
    }

    fn claim_piece(&self, part: &Wanted<'_>, piece: u64) -> Claim {
        let key = part.key(piece);
        if let Some(held) = self.cache().get(&key) {
            return Claim::Cached(held);
        }
        match self.flights().entry(key) {
            Entry::Occupied(entry) => {
                self.count_coalesced();
                Claim::Flying(Arc::clone(entry.get()))
            }
            // Looked up under the flight's lock: a piece is in the cache before its flight ends.
            Entry::Vacant(entry) => match self.cache().peek(&key) {
                Some(held) => Claim::Cached(held),
                None => {
                    let range = part.piece_range(piece);
                    let flight = self.new_flight(part.file, range.end - range.start);
                    drop(entry.insert(Arc::clone(&flight)));
                    Claim::Ours(flight)
                }
            },
        }
    }

    /// Fetches the pieces before `end`, whose flights are `ours`.
    fn launch_pieces(&self, part: &Wanted<'_>, end: u64, ours: &mut Vec<Arc<Flight>>) {
        if ours.is_empty() {
            return;
        }
        let flights = std::mem::take(ours);
        let fetch = PiecesFetch {
            data: self.clone(),
            file: part.file.clone(),
            block: part.block,
            next: end - flights.len() as u64,
            flights: flights.into_iter(),
        };
        drop(self.0.runtime.spawn(fetch.run()));
    }
}

/// One upstream request and the flights of the pieces that it brings, in order.
struct PiecesFetch {
    data: Data,
    file: FileRef,
    block: u64,
    /// The piece of the first of `flights`.
    next: u64,
    flights: std::vec::IntoIter<Arc<Flight>>,
}

impl PiecesFetch {
    async fn run(mut self) {
        let offset = self.block * BLOCK_BYTES + self.next * PIECE_BYTES;
        let len = self.flights.len() as u64 * PIECE_BYTES;
        let request = RangeRequest {
            path: self.file.path.clone(),
            version: self.file.version,
            size: self.file.size,
            offset,
            len: len.min(self.file.size - offset),
            content: self.file.content,
        };
        let due = request.len;
        let data = self.data.clone();
        let mut charge = data.memory().fetch(due).await;
        let reading = data.source_of(&self.file).read_range(request);
        let failure = match charge.awaiting(reading).await {
            Ok(answer) if answer.bytes.len() as u64 == due => return self.complete(&answer),
            Ok(_) => {
                let detail = format!("{}: a range of another length", self.file.path);
                Failure::new(FailureKind::Corrupt, detail)
            }
            Err(failure) => failure,
        };
        data.invalidate_after(&failure, &self.file);
        self.fail_rest(&failure);
    }

    fn complete(&mut self, answer: &RangeAnswer) {
        let single = self.flights.len() == 1;
        let chunks = answer.bytes.chunks(to_usize(PIECE_BYTES));
        for (chunk, flight) in chunks.zip(self.flights.by_ref()) {
            let hash = match single {
                true => answer.hash,
                false => ContentHash(*blake3::hash(chunk).as_bytes()),
            };
            let piece = Block {
                // A copy, because the received bytes may be part of a larger buffer.
                bytes: Bytes::copy_from_slice(chunk),
                hash,
                path: self.file.path.clone(),
            };
            let key = self.file.piece_key(self.block, self.next);
            let weight = chunk.len() as u64 + PIECE_COST_BYTES;
            self.data.complete(key, &flight, piece, weight);
            self.next += 1;
        }
    }

    fn fail_rest(&mut self, failure: &Failure) {
        for flight in self.flights.by_ref() {
            let key = self.file.piece_key(self.block, self.next);
            self.data.fail(&key, &flight, failure.clone());
            self.next += 1;
        }
    }
}

/// A fetch that is dropped with its runtime must not leave readers waiting.
impl Drop for PiecesFetch {
    fn drop(&mut self) {
        self.fail_rest(&shutting_down());
    }
}
