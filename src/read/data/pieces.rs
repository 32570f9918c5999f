//! Pieces: parts of [`PIECE_BYTES`] of a block, for readers that jump about in large files.
//!
//! A piece is cached under a key of its own, is counted with its overhead, and has a flight while it is
//! being fetched, so that readers of the same piece share it. One request brings consecutive pieces that are
//! missing. If the whole block is cached or on its way, it is used instead.

use super::blocks::{BlockSource, Fetch, FetchKind, Priority, cut_of};
use super::flight::Flight;
use super::{Block, Data};
use crate::num::to_usize;
use crate::read::file::{BlockKey, FileRef};
use crate::read::slices::{Cut, PIECE_BYTES};
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, ContentHash, Failure, FailureKind, RANGE_BYTES_MAX, RangeRequest,
};
use std::ops::Range;
use std::sync::Arc;

/// The keys of the pieces that contain `range`, which lies within block `block` of `file`.
fn keys_of(file: &FileRef, block: u64, range: &Range<u64>) -> impl Iterator<Item = BlockKey> {
    let base = block * BLOCK_BYTES;
    let (start, end) = (range.start - base, range.end - base);
    let pieces = start / PIECE_BYTES..end.div_ceil(PIECE_BYTES);
    pieces.map(move |piece| file.piece_key(block, piece))
}

/// The bytes of `range`, which lies within block `block`, if `held` returns all its pieces.
pub(super) fn joined(
    file: &FileRef,
    block: u64,
    range: &Range<u64>,
    held: impl Fn(&BlockKey) -> Option<Block>,
) -> Option<Cut> {
    let cuts = keys_of(file, block, range).map(|key| Some(cut_of(file, key, &held(&key)?, range)));
    Some(Cut::joined(cuts.collect::<Option<Vec<_>>>()?))
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
            let whole = self.block(file, block, &[], Priority::Urgent).await?;
            return Ok(cut_of(file, file.key(block), &whole, range));
        }
        let mut detours = 0;
        loop {
            match self.fetch_pieces(file, block, range).await {
                Err((_, flight)) if flight.is_elsewhere(file, detours) => detours += 1,
                outcome => return outcome.map_err(|(failure, _)| failure),
            }
        }
    }

    /// Like [`Data::pieces`]; or a failure and the flight that ended with it.
    async fn fetch_pieces(
        &self,
        file: &FileRef,
        block: u64,
        range: &Range<u64>,
    ) -> Result<Cut, (Failure, Arc<Flight>)> {
        let mut ours = Vec::new();
        let source_of = |key| {
            let source = self.source_or(key, || {
                let flight = self.claim(file, key)?;
                ours.push(Arc::clone(&flight));
                Some(flight)
            });
            (key, source)
        };
        let sources: Vec<_> = keys_of(file, block, range).map(source_of).collect();
        let consecutive =
            |one: &Arc<Flight>, next: &Arc<Flight>| one.key.piece + 1 == next.key.piece;
        for run in ours.chunk_by(consecutive) {
            for flights in run.chunks(to_usize(RANGE_BYTES_MAX / PIECE_BYTES)) {
                self.launch(file, FetchKind::Pieces, flights);
            }
        }
        let mut cuts = Vec::with_capacity(sources.len());
        for (key, source) in sources {
            let piece = match source {
                BlockSource::Cached(piece) => piece,
                BlockSource::Flying(flight) => match flight.done().await {
                    Ok(piece) => piece,
                    Err(failure) => return Err((failure, flight)),
                },
            };
            cuts.push(cut_of(file, key, &piece, range));
        }
        Ok(Cut::joined(cuts))
    }
}

impl Fetch {
    pub(super) async fn fill_pieces(&mut self) -> Result<(), Failure> {
        let flights = self.flights.as_slice();
        let (Some(first), Some(last)) = (flights.first(), flights.last()) else {
            return Ok(());
        };
        let single = flights.len() == 1;
        let offset = self.file.range_of(first.key).start;
        let len = self.file.range_of(last.key).end - offset;
        let request = RangeRequest {
            path: self.file.path.clone(),
            version: self.file.version,
            size: self.file.size,
            offset,
            len,
            content: self.file.content,
        };
        let mut charge = self.data.memory().fetch(len).await;
        let reading = self.data.source_of(&self.file).read_range(request);
        let answer = charge.awaiting(reading).await?;
        if answer.bytes.len() as u64 != len {
            let detail = format!("{}: a range of another length", self.file.path);
            return Err(Failure::new(FailureKind::Corrupt, detail));
        }
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
            self.data.complete(&flight, piece);
        }
        Ok(())
    }
}
