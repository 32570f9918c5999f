//! Reading blocks: from the cache, from a fetch in progress, or by a new fetch.

use super::fetch::Fetch;
use super::flight::{Flight, Progress};
use super::{Block, Data};
use crate::num::to_usize;
use crate::read::file::{BlockKey, FileRef};
use crate::read::slices::{Cut, Part, PartRange};
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, Failure, FailureKind, ReadRequest, STRIPE_BLOCKS, UNSETTLED_BYTES_MAX,
};
use dashmap::mapref::entry::Entry;
use futures_util::future::try_join_all;
use std::ops::Range;
use std::sync::Arc;

/// How a reader waits for a block that comes with a bundle or with a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Priority {
    /// A local reader waits: after a short time the block is requested separately.
    Urgent,
    /// The block may come when its turn comes.
    InTurn,
}

/// Where a block comes from.
pub(super) enum BlockSource {
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
            Some(block) => Some(cut_of(&block, index, &range)),
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
        let cut = |index| Some(cut_of(&self.cache().peek(&file.key(index))?, index, &all));
        let cuts = (0..file.block_count()).map(cut);
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
        let reading = async {
            let mut cuts = Vec::with_capacity(2);
            for index in blocks_of(&range) {
                // From the requested block to the end, and then the blocks before it.
                let wanted = || [first..file.block_count(), 0..first];
                let block = self.block(file, index, wanted, Priority::Urgent).await?;
                cuts.push(cut_of(&block, index, &range));
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
                let wanted = || [index..index + 1, 0..0];
                let block = self.block(file, index, wanted, Priority::Urgent).await?;
                return Ok(cut_of(&block, index, range));
            }
            self.pieces(file, index, &part).await
        });
        Ok(Cut::joined(try_join_all(cuts).await?))
    }

    /// Whether `file` is fetched whole: it is small for this node, or only all of it can be checked against
    /// the hash that an index promised.
    pub(in crate::read) fn is_small(&self, file: &FileRef) -> bool {
        let promised = file.content.is_some() && file.block_count() == 1;
        file.size <= self.0.whole_file_max || promised
    }

    /// Waits for block `index`; if it is missing, the runs that `wanted` returns are fetched. A fetch that
    /// another file with the same content began, and that fails there, is repeated at this file's path.
    pub(super) async fn block(
        &self,
        file: &FileRef,
        index: u64,
        wanted: impl Fn() -> [Range<u64>; 2],
        priority: Priority,
    ) -> Result<Block, Failure> {
        let mut detours = 0;
        loop {
            let flight = match self.block_source(file, index, &wanted) {
                BlockSource::Cached(block) => return Ok(block),
                BlockSource::Flying(flight) => flight,
            };
            let outcome = match priority {
                Priority::Urgent => self.wait_done_or_urge(file, index, &flight).await,
                Priority::InTurn => wait_done(&flight).await,
            };
            match outcome {
                Err(_) if flight.is_elsewhere(file, detours) => detours += 1,
                outcome => return outcome,
            }
        }
    }

    /// Whether the block is cached or on its way.
    pub(super) fn has_or_awaits(&self, file: &FileRef, index: u64) -> bool {
        let key = file.key(index);
        self.cache().contains(&key) || self.flights().contains_key(&key)
    }

    /// The number of blocks at the beginning of `run` that are neither cached nor on their way.
    pub(super) fn missing(&self, file: &FileRef, run: Range<u64>) -> u64 {
        let is_missing = |index: &u64| !self.has_or_awaits(file, *index);
        run.take_while(is_missing).count() as u64
    }

    /// Starts fetching the blocks of `run` up to the first one that is cached or on its way. Returns their
    /// flights.
    pub(super) fn fetch_first(&self, file: &FileRef, run: Range<u64>) -> Vec<Arc<Flight>> {
        let first = run.start;
        let flights: Vec<_> = run.map_while(|index| self.claim(file, index)).collect();
        self.launch(file, first, flights.clone());
        flights
    }

    /// The block, or its flight. If there is neither, starts fetching the runs that `wanted` returns.
    pub(super) fn block_source(
        &self,
        file: &FileRef,
        index: u64,
        wanted: impl Fn() -> [Range<u64>; 2],
    ) -> BlockSource {
        let key = file.key(index);
        let mut requested = false;
        loop {
            if let Some(block) = self.cache().get(&key) {
                return BlockSource::Cached(block);
            }
            if let Some(flight) = self.flights().get(&key) {
                if !requested {
                    self.count_coalesced();
                }
                return BlockSource::Flying(Arc::clone(&flight));
            }
            requested = true;
            for run in wanted() {
                self.fetch(file, run);
            }
            // The block may have arrived and been evicted, or failed, between two of these lines. Then it is
            // requested again: by now that is a new request.
            if let Some(flight) = self.fetch(file, index..index + 1) {
                return BlockSource::Flying(flight);
            }
        }
    }

    /// Starts fetching the missing blocks of `run`, for a reader that has not requested them yet.
    pub(in crate::read) fn prefetch(&self, file: &FileRef, run: Range<u64>) {
        drop(self.fetch(file, run));
    }

    /// Starts fetching the blocks of `run` that are neither cached nor on their way: one request for each
    /// consecutive series of them, and for each stripe with several roots. Returns the first flight of
    /// those that it started.
    pub(super) fn fetch(&self, file: &FileRef, run: Range<u64>) -> Option<Arc<Flight>> {
        let mut first = None;
        let mut series: Vec<Arc<Flight>> = Vec::new();
        for index in run.start..run.end + 1 {
            let claimed = if index < run.end {
                self.claim(file, index)
            } else {
                None
            };
            match claimed {
                Some(flight) => {
                    first.get_or_insert_with(|| Arc::clone(&flight));
                    series.push(flight);
                }
                None => self.launch(
                    file,
                    index - series.len() as u64,
                    std::mem::take(&mut series),
                ),
            }
        }
        first
    }

    /// A flight for the block, to be launched by the caller; `None` if the block is cached or on its way.
    pub(super) fn claim(&self, file: &FileRef, index: u64) -> Option<Arc<Flight>> {
        let key = file.key(index);
        match self.flights().entry(key) {
            Entry::Occupied(_) => None,
            // Looked up under the flight's lock: a block is in the cache before its flight ends.
            Entry::Vacant(_) if self.cache().contains(&key) => None,
            Entry::Vacant(entry) => {
                let len = ReadRequest::block_len(file.size, index);
                let flight = self.new_flight(file, len);
                drop(entry.insert(Arc::clone(&flight)));
                Some(flight)
            }
        }
    }

    /// A flight for `len` bytes of `file`.
    pub(super) fn new_flight(&self, file: &FileRef, len: u64) -> Arc<Flight> {
        let moment = self.0.shared.epoch.now();
        Arc::new(Flight::new(file.path.clone(), moment, to_usize(len)))
    }

    /// Requests the blocks from `next_block` on, whose flights are `flights`.
    pub(super) fn launch(
        &self,
        file: &FileRef,
        mut next_block: u64,
        mut flights: Vec<Arc<Flight>>,
    ) {
        while !flights.is_empty() {
            let mut rest = Vec::new();
            if self.0.stripes {
                let in_stripe = STRIPE_BLOCKS - next_block % STRIPE_BLOCKS;
                rest = flights.split_off(flights.len().min(to_usize(in_stripe)));
            }
            let count = flights.len() as u64;
            let flights = std::mem::replace(&mut flights, rest);
            let fetch = Fetch::new(self.clone(), file.clone(), next_block, flights);
            drop(self.0.runtime.spawn(fetch.run()));
            next_block += count;
        }
    }

    /// Ends `flight` with `block`, unless another request brought the block first.
    pub(super) fn complete_first(&self, key: BlockKey, flight: &Arc<Flight>, block: Block) {
        if flight.land() {
            let weight = block.bytes.len() as u64;
            self.complete(key, flight, block, weight);
        }
    }

    /// Caches `block`, unless it was cleared meanwhile, and ends its flight. Returns whether any reader waits
    /// for it.
    pub(super) fn complete(
        &self,
        key: BlockKey,
        flight: &Arc<Flight>,
        block: Block,
        weight: u64,
    ) -> bool {
        let keep = || self.cache().insert(key, block.clone(), weight);
        (self.0.shared.epoch).keep(flight.asked(), flight.path(), keep);
        // In this order: a reader that finds no flight must find the block in the cache.
        self.remove_flight(&key, flight);
        // The list's reference is gone, so every other one belongs to a reader.
        let is_awaited = Arc::strong_count(flight) > 1;
        flight.finish(Ok(block));
        is_awaited
    }

    /// Ends `flight` without a block.
    pub(super) fn fail(&self, key: &BlockKey, flight: &Arc<Flight>, failure: Failure) {
        self.remove_flight(key, flight);
        flight.finish(Err(failure));
    }

    /// Removes `flight` from the list. The list may have a newer flight for the key, begun after a clear.
    fn remove_flight(&self, key: &BlockKey, flight: &Arc<Flight>) {
        self.flights()
            .remove_if(key, |_, listed| Arc::ptr_eq(listed, flight));
    }
}

/// Waits until `flight` has ended.
pub(super) async fn wait_done(flight: &Flight) -> Result<Block, Failure> {
    let mut progress = flight.watch();
    let ended = progress
        .wait_for(|now| !matches!(now, Progress::Filling(_)))
        .await;
    match ended.as_deref() {
        Ok(Progress::Done(block, _)) => Ok(block.clone()),
        Ok(Progress::Failed(failure)) => Err(failure.clone()),
        Ok(Progress::Filling(_)) | Err(_) => Err(Failure::new(
            FailureKind::Unavailable,
            "the fetch was given up",
        )),
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

/// The part of `range` that lies in `block`, the file's block number `index`.
pub(super) fn slice(block: &Block, index: u64, range: &Range<u64>) -> Bytes {
    let base = index * BLOCK_BYTES;
    let from = range.start.saturating_sub(base);
    let to = (range.end - base).min(block.bytes.len() as u64);
    block.bytes.slice(to_usize(from)..to_usize(to))
}

/// Like [`slice`], with the block as the part.
pub(super) fn cut_of(block: &Block, index: u64, range: &Range<u64>) -> Cut {
    let part = Part {
        range: PartRange::Block(index),
        hash: block.hash,
    };
    Cut::of(slice(block, index, range), part)
}
