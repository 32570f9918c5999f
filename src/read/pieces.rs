//! Parts of blocks, for readers that jump about in large files: pieces of [`PIECE_BYTES`].
//!
//! A piece is cached under a key of its own, counted with what it costs to hold it, and has a flight
//! while it is under way, so that readers who want the same one share it. Pieces that lie together and
//! are neither here nor under way come by one request. Where the block is here, or on its way, there are
//! no pieces.

use super::blocks::{Haste, Source, cut_of, landed};
use super::file::{BlockKey, FileRef};
use super::flight::Flight;
use super::parts::{Cut, Part as Given, Parts, Place};
use super::{Block, Inner, ReadPath};
use crate::num::to_usize;
use bytes::{Bytes, BytesMut};
use copperfs_overlay::{
    BLOCK_BYTES, ContentHash, Failure, FailureKind, RANGE_ALIGN, RANGE_BYTES_MAX, RangeAnswer,
    RangeRequest,
};
use dashmap::mapref::entry::Entry;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a piece; the last of a file is shorter.
const PIECE_BYTES: u64 = RANGE_ALIGN;

/// Pieces of a block.
pub(super) const BLOCK_PIECES: usize = 256;
const _: () = assert!(BLOCK_PIECES as u64 * PIECE_BYTES == BLOCK_BYTES);

/// What holding a piece costs besides its bytes: its places in the cache's maps and queues (measured
/// at about 300 B with glibc's allocator).
const PIECE_COST_BYTES: u64 = 320;

/// Bytes of one file between two offsets, within one block.
struct Part<'a> {
    file: &'a FileRef,
    block: u64,
    /// Offsets in the file.
    range: Range<u64>,
}

impl Part<'_> {
    /// The pieces that hold it, counted from the block's beginning.
    fn pieces(&self) -> Range<u64> {
        let base = self.block * BLOCK_BYTES;
        let (start, end) = (self.range.start - base, self.range.end - base);
        start / PIECE_BYTES..end.div_ceil(PIECE_BYTES)
    }

    fn key(&self, piece: u64) -> BlockKey {
        self.file.piece_key(self.block, piece)
    }

    /// Where the bytes of `piece` lie in the file.
    fn piece_range(&self, piece: u64) -> Range<u64> {
        let start = self.block * BLOCK_BYTES + piece * PIECE_BYTES;
        start..(start + PIECE_BYTES).min(self.file.size)
    }

    /// Puts `held`, which are all the pieces, together.
    fn join(&self, held: &[Block]) -> Cut {
        let first = self.block * BLOCK_PIECES as u64;
        let given = |(piece, held): (u64, &Block)| Given {
            place: Place::Piece(first + piece),
            hash: held.hash,
        };
        Cut {
            bytes: self.joined(held),
            parts: self.pieces().zip(held).map(given).collect::<Parts>(),
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
    /// To be fetched by whoever claimed it.
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
    let part = Part { file, block, range };
    let held = part.pieces().map(|piece| held(&part.key(piece)));
    Some(part.join(&held.collect::<Option<Vec<_>>>()?))
}

impl ReadPath {
    /// The bytes of `range`, which lies within block `block`, if all its pieces are cached.
    pub(super) fn pieces_now(&self, file: &FileRef, block: u64, range: &Range<u64>) -> Option<Cut> {
        joined(file, block, range, |key| self.0.data.get(key))
    }

    /// The bytes of `range`, which lies within block `block`, and no others unless that block is here or
    /// on its way.
    ///
    /// # Errors
    /// As [`ReadPath::read`].
    pub(super) async fn pieces(
        &self,
        file: &FileRef,
        block: u64,
        range: &Range<u64>,
    ) -> Result<Cut, Failure> {
        if self.has_or_awaits(file, block) {
            let wanted = || [block..block + 1, 0..0];
            let whole = self.block(file, block, wanted, Haste::Urgent).await?;
            return Ok(cut_of(&whole, block, range));
        }
        let range = range.clone();
        let part = Part { file, block, range };
        let mut detours = 0;
        loop {
            match self.try_pieces(&part).await {
                Ok(held) => return Ok(part.join(&held)),
                Err((_, flight)) if flight.is_elsewhere(file, detours) => detours += 1,
                Err((failure, _)) => return Err(failure),
            }
        }
    }

    /// All pieces of `part`, or a failure and the flight that ended with it.
    async fn try_pieces(&self, part: &Part<'_>) -> Result<Vec<Block>, (Failure, Arc<Flight>)> {
        let mut sources = Vec::with_capacity(part.pieces().count());
        let mut ours = Vec::new();
        for piece in part.pieces() {
            let source = match self.claim_piece(part, piece) {
                Claim::Ours(flight) => {
                    ours.push(Arc::clone(&flight));
                    sources.push(Source::Flying(flight));
                    if ours.len() as u64 * PIECE_BYTES == RANGE_BYTES_MAX {
                        self.launch_pieces(part, piece + 1, &mut ours);
                    }
                    continue;
                }
                Claim::Cached(held) => Source::Cached(held),
                Claim::Flying(flight) => Source::Flying(flight),
            };
            self.launch_pieces(part, piece, &mut ours);
            sources.push(source);
        }
        self.launch_pieces(part, part.pieces().end, &mut ours);
        let mut held = Vec::with_capacity(sources.len());
        for source in sources {
            held.push(match source {
                Source::Cached(piece) => piece,
                Source::Flying(flight) => match landed(&flight).await {
                    Ok(piece) => piece,
                    Err(failure) => return Err((failure, flight)),
                },
            });
        }
        Ok(held)
    }

    fn claim_piece(&self, part: &Part<'_>, piece: u64) -> Claim {
        let inner = &self.0;
        let key = part.key(piece);
        if let Some(held) = inner.data.get(&key) {
            return Claim::Cached(held);
        }
        match inner.block_flights.entry(key) {
            Entry::Occupied(entry) => {
                inner.coalesced.fetch_add(1, Ordering::Relaxed);
                Claim::Flying(Arc::clone(entry.get()))
            }
            // Looked up under the flight's lock: a piece is in the cache before its flight ends.
            Entry::Vacant(entry) => match inner.data.peek(&key) {
                Some(held) => Claim::Cached(held),
                None => {
                    let range = part.piece_range(piece);
                    let flight = Arc::new({
                        let len = to_usize(range.end - range.start);
                        Flight::new(part.file.path.clone(), inner.data_epoch.now(), len)
                    });
                    drop(entry.insert(Arc::clone(&flight)));
                    Claim::Ours(flight)
                }
            },
        }
    }

    /// Fetches the pieces before `end`, whose flights are `ours`.
    fn launch_pieces(&self, part: &Part<'_>, end: u64, ours: &mut Vec<Arc<Flight>>) {
        if ours.is_empty() {
            return;
        }
        let flights = std::mem::take(ours);
        let fetch = PiecesFetch {
            inner: Arc::clone(&self.0),
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
    inner: Arc<Inner>,
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
        let source = self.inner.source_of(&self.file);
        let room = Arc::clone(&self.inner.room);
        let mut charge = room.fetch(due).await;
        let failure = match charge.awaiting(source.read_range(request)).await {
            Ok(answer) if answer.bytes.len() as u64 == due => return self.land(&answer),
            Ok(_) => {
                let detail = format!("{}: a range of another length", self.file.path);
                Failure::new(FailureKind::Corrupt, detail)
            }
            Err(failure) => failure,
        };
        self.inner.look_again_after(&failure, &self.file);
        self.fail_rest(&failure);
    }

    fn land(&mut self, answer: &RangeAnswer) {
        let single = self.flights.len() == 1;
        let chunks = answer.bytes.chunks(to_usize(PIECE_BYTES));
        for (chunk, flight) in chunks.zip(self.flights.by_ref()) {
            let hash = match single {
                true => answer.hash,
                false => ContentHash(*blake3::hash(chunk).as_bytes()),
            };
            let piece = Block {
                // A copy: what arrived may be part of something larger.
                bytes: Bytes::copy_from_slice(chunk),
                hash,
                path: self.file.path.clone(),
            };
            let key = self.file.piece_key(self.block, self.next);
            let weight = chunk.len() as u64 + PIECE_COST_BYTES;
            self.inner.land(key, &flight, &piece, weight);
            flight.finish(Ok(piece));
            self.next += 1;
        }
    }

    fn fail_rest(&mut self, failure: &Failure) {
        for flight in self.flights.by_ref() {
            let key = self.file.piece_key(self.block, self.next);
            self.inner.end_flight(&key, &flight);
            flight.finish(Err(failure.clone()));
            self.next += 1;
        }
    }
}

/// A fetch that is dropped with its runtime leaves nobody waiting.
impl Drop for PiecesFetch {
    fn drop(&mut self) {
        self.fail_rest(&Failure::new(
            FailureKind::Unavailable,
            "the node is shutting down",
        ));
    }
}
