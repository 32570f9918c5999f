//! Reading blocks: from the cache, from a fetch in progress, or by a new fetch. A [`Fetch`] is one request to the
//! source, and the flights that it fills in order.

use super::flight::{Flight, Route};
use super::memory::{Charge, FETCH_BYTES_MAX};
use super::{Block, Data};
use crate::num::to_usize;
use crate::read::file::{BlockKey, FileRef};
use crate::read::slices::{Cut, PIECE_BYTES, Part, PartRange};
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, ContentHash, Failure, FailureKind, ReadRequest, ReadStream,
    STRIPE_BLOCKS, UNSETTLED_BYTES_MAX,
};
use dashmap::mapref::entry::Entry;
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The blocks of a run that come next. A reader does not request them separately, because they arrive about
/// as soon.
const NEAR_BLOCKS: usize = 4;
/// The memory of a cached piece besides its bytes: entries of the cache's maps and queues (measured at about
/// 300 B with glibc's allocator).
const PIECE_COST_BYTES: u64 = 320;

/// How a reader waits for a block that comes with a bundle or with a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Priority {
    /// A local reader waits: after a short time the block is requested separately.
    Urgent,
    /// The block may come when its turn comes.
    InTurn,
}

/// Where a block, or a piece of one, comes from.
pub(in crate::read) enum BlockSource {
    Cached(Block),
    Flying(Arc<Flight>),
}

impl Data {
    /// Up to `size` bytes of `file` from `offset`, with the parts from which they were cut, if all of them are
    /// cached.
    pub fn try_read(&self, file: &FileRef, offset: u64, size: u32) -> Option<Cut> {
        let range = clip(file, offset, size);
        if range.is_empty() {
            return Some(Cut::default());
        }
        let blocks = blocks_of(&range);
        let part = |index| match self.cache().get(&file.key(index)) {
            Some(block) => Some(cut_of(file, file.key(index), &block, &range)),
            None if self.is_small(file) => None,
            None => self.try_pieces(file, index, &within(&range, index)),
        };
        if blocks.end - blocks.start == 1 {
            return part(blocks.start);
        }
        Some(Cut::joined(blocks.map(part).collect::<Option<Vec<_>>>()?))
    }

    /// The whole content of a small file, if it is cached. Not counted as a hit.
    pub fn try_whole(&self, file: &FileRef) -> Option<Cut> {
        let all = 0..file.size;
        let keys = (0..file.block_count()).map(|index| file.key(index));
        let cuts = keys.map(|key| Some(cut_of(file, key, &self.cache().peek(&key)?, &all)));
        Some(Cut::joined(cuts.collect::<Option<Vec<_>>>()?))
    }

    /// Refuses a read of a file so young that one request must read all of it, if it is too large for that.
    pub(in crate::read) fn check_settled(&self, file: &FileRef) -> Result<(), Failure> {
        let at_once = self.is_small(file) && file.size <= UNSETTLED_BYTES_MAX;
        if file.version.is_settled() || at_once {
            return Ok(());
        }
        let detail = format!("{}: too young to be read in parts", file.path);
        Err(Failure::new(FailureKind::Stale, detail))
    }

    /// The bytes of `range`, which is not empty and lies within `file`. A small file is fetched whole, and of
    /// a large one only what was requested.
    pub(in crate::read) async fn read(
        &self,
        file: &FileRef,
        range: Range<u64>,
    ) -> Result<Cut, Failure> {
        self.cache().count_miss();
        if !self.is_small(file) {
            // Twice the bytes: as pieces, and joined.
            let bytes = 2 * (range.end - range.start);
            let reading = self.read_part(file, &range);
            return self.memory().within(bytes, reading).await;
        }
        let first = match file.version.is_settled() {
            true => range.start / BLOCK_BYTES,
            // Bytes under an unsettled version must come from a single request.
            false => 0,
        };
        // From the requested block to the end, and then the blocks before it.
        let wanted = [first..file.block_count(), 0..first];
        let reading = async {
            let mut cuts = Vec::with_capacity(2);
            for index in blocks_of(&range) {
                let block = self.block(file, index, &wanted, Priority::Urgent).await?;
                cuts.push(cut_of(file, file.key(index), &block, &range));
            }
            Ok(Cut::joined(cuts))
        };
        // The size of the returned bytes, rounded up to whole blocks.
        let blocks = range.end.div_ceil(BLOCK_BYTES) - first;
        let bytes = ReadRequest::block_len(file.size, first) * blocks;
        self.memory().within(bytes, reading).await
    }

    /// Reads `range` of a large file: whole blocks as blocks, and the rest as pieces, unless their block is
    /// cached or on its way.
    async fn read_part(&self, file: &FileRef, range: &Range<u64>) -> Result<Cut, Failure> {
        let last = match range.end == file.size {
            true => file.block_count(),
            false => range.end / BLOCK_BYTES,
        };
        // One request for all whole blocks, before any of them is waited for.
        self.fetch(file, range.start.div_ceil(BLOCK_BYTES)..last);
        let cuts = blocks_of(range).map(|index| async move {
            let part = within(range, index);
            if part.end - part.start == ReadRequest::block_len(file.size, index) {
                let block = self.block(file, index, &[], Priority::Urgent).await?;
                return Ok(cut_of(file, file.key(index), &block, range));
            }
            self.pieces(file, index, &part).await
        });
        Ok(Cut::joined(try_join_all(cuts).await?))
    }

    /// Whether `file` is fetched whole: it is small for this node, or only all of it can be checked against
    /// the hash that an index promised.
    pub(in crate::read) fn is_small(&self, file: &FileRef) -> bool {
        let promised = file.content.is_some() && file.block_count() == 1;
        file.size <= self.whole_file_max() || promised
    }

    /// Waits for block `index`; if it is missing, the runs `wanted` are fetched with it. A fetch that another
    /// file with the same content began, and that fails there, is repeated at this file's path.
    pub(super) async fn block(
        &self,
        file: &FileRef,
        index: u64,
        wanted: &[Range<u64>],
        priority: Priority,
    ) -> Result<Block, Failure> {
        let mut detours = 0;
        loop {
            let flight = match self.block_source(file, index, wanted) {
                BlockSource::Cached(block) => return Ok(block),
                BlockSource::Flying(flight) => flight,
            };
            let outcome = match priority {
                Priority::Urgent => self.or_urge(file, &flight, flight.done()).await,
                Priority::InTurn => flight.done().await,
            };
            match outcome {
                Err(_) if flight.is_elsewhere(file, detours) => detours += 1,
                outcome => return outcome,
            }
        }
    }

    /// Whether the block is cached or on its way.
    pub(in crate::read) fn has_or_awaits(&self, file: &FileRef, index: u64) -> bool {
        let key = file.key(index);
        self.cache().contains(&key) || self.flights().contains_key(&key)
    }

    /// The block, or its flight. If there is neither, starts fetching the runs `wanted` and the block.
    pub(in crate::read) fn block_source(
        &self,
        file: &FileRef,
        index: u64,
        wanted: &[Range<u64>],
    ) -> BlockSource {
        self.source_or(file.key(index), || {
            for run in wanted {
                self.fetch(file, run.clone());
            }
            self.fetch(file, index..index + 1).pop()
        })
    }

    /// The block or piece, or its flight. If there is neither, calls `begin`, which returns the flight if it has
    /// begun it just now.
    pub(super) fn source_or(
        &self,
        key: BlockKey,
        mut begin: impl FnMut() -> Option<Arc<Flight>>,
    ) -> BlockSource {
        let mut requested = false;
        loop {
            if let Some(block) = self.cache().get(&key) {
                return BlockSource::Cached(block);
            }
            if let Some(flight) = self.flights().get(&key) {
                if !requested {
                    (self.0.shared.coalesced).fetch_add(1, Ordering::Relaxed);
                }
                return BlockSource::Flying(Arc::clone(&flight));
            }
            requested = true;
            // The block may have arrived and been evicted, or failed, between two of these lines. Then it is
            // requested again: by now that is a new request.
            if let Some(flight) = begin() {
                return BlockSource::Flying(flight);
            }
        }
    }

    /// Starts fetching the blocks of `run` that are neither cached nor on their way. Returns their flights.
    pub(in crate::read) fn fetch(&self, file: &FileRef, run: Range<u64>) -> Vec<Arc<Flight>> {
        let flights: Vec<_> = run
            .filter_map(|index| self.claim(file, file.key(index)))
            .collect();
        self.launch_blocks(file, &flights);
        flights
    }

    /// A flight for the block or piece, to be launched by the caller; `None` if it is cached or on its way.
    pub(in crate::read) fn claim(&self, file: &FileRef, key: BlockKey) -> Option<Arc<Flight>> {
        match self.flights().entry(key) {
            Entry::Occupied(_) => None,
            // Looked up under the flight's lock: a block is in the cache before its flight ends.
            Entry::Vacant(_) if self.cache().contains(&key) => None,
            Entry::Vacant(entry) => {
                let range = file.range_of(key);
                let (asked, len) = (self.0.shared.epoch.now(), range.end - range.start);
                let flight = Flight::new(key, file.path.clone(), asked, to_usize(len));
                let flight = Arc::new(flight);
                drop(entry.insert(Arc::clone(&flight)));
                Some(flight)
            }
        }
    }

    /// Requests the blocks of `flights`, which are in order: one request for each consecutive series of them, and
    /// for each stripe with several roots.
    pub(in crate::read) fn launch_blocks(&self, file: &FileRef, flights: &[Arc<Flight>]) {
        let together = |one: &Arc<Flight>, next: &Arc<Flight>| {
            let (one, next) = (one.key.index, next.key.index);
            one + 1 == next && !(self.0.stripes && next.is_multiple_of(STRIPE_BLOCKS))
        };
        for run in flights.chunk_by(together) {
            self.launch(file, FetchKind::Run, run);
        }
    }

    /// Sends one request for `flights`.
    pub(super) fn launch(&self, file: &FileRef, kind: FetchKind, flights: &[Arc<Flight>]) {
        let fetch = Fetch {
            data: self.clone(),
            file: file.clone(),
            kind,
            flights: Vec::from(flights).into_iter(),
        };
        drop(self.0.metadata.runtime().spawn(fetch.run()));
    }

    /// Caches `block`, unless it was cleared meanwhile, and ends `flight`, unless another request brought the block
    /// first. Returns whether it did, and no reader waits for the block.
    pub(super) fn complete(&self, flight: &Arc<Flight>, block: Block) -> bool {
        if !flight.land() {
            return false;
        }
        let cost = PIECE_COST_BYTES * u64::from(flight.key.is_piece());
        let weight = block.bytes.len() as u64 + cost;
        let keep = || self.cache().insert(flight.key, block.clone(), weight);
        (self.0.shared.epoch).keep(flight.asked, &flight.path, keep);
        // In this order: a reader that finds no flight must find the block in the cache.
        self.remove_flight(flight);
        // The list's reference is gone, so every other one belongs to a reader.
        let is_awaited = Arc::strong_count(flight) > 1;
        flight.finish(Ok(block));
        !is_awaited
    }

    /// Removes `flight` from the list. The list may have a newer flight for the key, begun after a clear.
    fn remove_flight(&self, flight: &Arc<Flight>) {
        self.flights()
            .remove_if(&flight.key, |_, listed| Arc::ptr_eq(listed, flight));
    }
}

/// The contents of a [`Fetch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FetchKind {
    /// A run of blocks.
    Run,
    /// One block of a run or bundle, for which a reader waits.
    Urgent,
    /// Consecutive pieces of a block.
    Pieces,
}

/// See the module.
pub(super) struct Fetch {
    pub(super) data: Data,
    pub(super) file: FileRef,
    kind: FetchKind,
    /// The flights that it has not filled yet.
    pub(super) flights: std::vec::IntoIter<Arc<Flight>>,
}

impl Fetch {
    async fn run(mut self) {
        let outcome = match self.kind {
            FetchKind::Pieces => self.fill_pieces().await,
            FetchKind::Run | FetchKind::Urgent => self.fill_blocks().await,
        };
        if let Err(failure) = outcome {
            self.data.invalidate_after(&failure, &self.file);
            self.fail_rest(&failure);
        }
    }

    async fn fill_blocks(&mut self) -> Result<(), Failure> {
        let Some(first) = self.flights.as_slice().first() else {
            return Ok(());
        };
        let block_count = self.flights.len() as u64;
        let bytes = (first.len as u64 * block_count).min(FETCH_BYTES_MAX);
        let mut charge = match self.kind {
            FetchKind::Urgent => self.data.memory().urgent(bytes).await,
            _ => self.data.memory().fetch(bytes).await,
        };
        if self.kind == FetchKind::Urgent && first.route() == Route::Landed {
            return Ok(());
        }
        self.mark_near();
        let request = self.file.request(first.key.index, block_count);
        let reading = self.data.source_of(&self.file).read(request);
        let mut stream = charge.awaiting(reading).await?;
        while let Some(flight) = self.flights.as_slice().first().map(Arc::clone) {
            let filled = match self.mark_near() {
                true => Arc::clone(&flight),
                // A separate request brings this block. The bytes of the run go into another buffer, and so do those
                // of the separate request. The buffer that is complete first is used.
                false => Arc::new(flight.apart()),
            };
            let hash = self.receive(&filled, &mut stream, &mut charge).await?;
            let block = filled.complete(hash)?;
            self.file.check(hash)?;
            // The block's turn at storage ends with the stream. The stream must end after the block is cached, or a
            // bundle would read the block again.
            self.data.complete(&flight, block);
            self.flights.next();
        }
        Ok(())
    }

    /// Receives one block.
    async fn receive(
        &self,
        filled: &Flight,
        stream: &mut ReadStream,
        charge: &mut Charge,
    ) -> Result<ContentHash, Failure> {
        while let Some(part) = charge.awaiting(stream.next()).await {
            match part? {
                BlockPart::Bytes(bytes) => {
                    if filled.is_empty() {
                        charge.begin().await;
                    } else {
                        charge.go_on();
                    }
                    filled.push(bytes)?;
                }
                BlockPart::Restart => filled.restart(),
                BlockPart::End(hash) => return Ok(hash),
            }
        }
        let detail = format!("{}: the stream ended too early", self.file.path);
        Err(Failure::new(FailureKind::Corrupt, detail))
    }

    /// Marks the blocks that come next. Returns whether this request alone fills the first of them.
    fn mark_near(&self) -> bool {
        let next = self.flights.as_slice().iter().take(NEAR_BLOCKS);
        // In reverse order, so that the result of the first block comes out.
        next.rev().fold(false, |_, flight| flight.come_near())
    }

    /// Fails the remaining flights. A run leaves those to their own requests that were requested separately.
    fn fail_rest(&mut self, failure: &Failure) {
        for flight in self.flights.by_ref() {
            let ends = match self.kind {
                FetchKind::Urgent => flight.land(),
                FetchKind::Run | FetchKind::Pieces => flight.leave_run(),
            };
            if ends {
                self.data.remove_flight(&flight);
                flight.finish(Err(failure.clone()));
            }
        }
    }
}

/// A fetch that is dropped with its runtime must not leave readers waiting.
impl Drop for Fetch {
    fn drop(&mut self) {
        let failure = Failure::new(FailureKind::Unavailable, "the node is shutting down");
        self.fail_rest(&failure);
    }
}

/// The part of a read that lies inside the file.
pub(in crate::read) fn clip(file: &FileRef, offset: u64, size: u32) -> Range<u64> {
    let start = offset.min(file.size);
    start..offset.saturating_add(u64::from(size)).min(file.size)
}

fn blocks_of(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)
}

/// The part of `range` that lies in block `index`.
fn within(range: &Range<u64>, index: u64) -> Range<u64> {
    let base = index * BLOCK_BYTES;
    range.start.max(base)..range.end.min(base + BLOCK_BYTES)
}

/// The part of `range` that lies in `held`, the block or piece of `file` that has `key`.
pub(super) fn cut_of(file: &FileRef, key: BlockKey, held: &Block, range: &Range<u64>) -> Cut {
    let whole = file.range_of(key);
    let from = range.start.saturating_sub(whole.start);
    let to = (range.end - whole.start).min(held.bytes.len() as u64);
    let range = match key.is_piece() {
        true => PartRange::Piece(whole.start / PIECE_BYTES),
        false => PartRange::Block(key.index),
    };
    let hash = held.hash;
    let bytes = held.bytes.slice(to_usize(from)..to_usize(to));
    Cut::of(bytes, Part { range, hash })
}
