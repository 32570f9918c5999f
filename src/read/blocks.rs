//! File data: blocks from the cache, from a flight, or fetched.

use super::file::{BlockKey, FileRef};
use super::flight::{Flight, Progress};
use super::parts::{Cut, Part, Parts, Place};
use super::room::{Charge, FETCH_BYTES_MAX};
use super::streams::{Pattern, ReadAhead};
use super::{Block, Inner, ReadPath};
use crate::num::to_usize;
use bytes::{Bytes, BytesMut};
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, Failure, FailureKind, Files, ReadRequest, ReadStream, STRIPE_BLOCKS,
    UNSETTLED_BYTES_MAX,
};
use dashmap::mapref::entry::Entry;
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How one waits for a block that a bundle or a run will bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Haste {
    /// A reader waits: after a while the block is requested separately.
    Urgent,
    /// It is wanted when its turn comes.
    InTurn,
}

/// The blocks of a run that come next. They are not requested separately: they arrive about as soon.
const NEAR_BLOCKS: usize = 4;

/// How a block is to be had.
pub(super) enum Source {
    Cached(Block),
    Flying(Arc<Flight>),
}

impl ReadPath {
    /// Up to `size` bytes of `file` from `offset`, if all of them are cached.
    pub fn read_now(&self, file: &FileRef, offset: u64, size: u32) -> Option<Bytes> {
        Some(self.cut_now(file, offset, size)?.bytes)
    }

    /// Like [`ReadPath::read_now`], with the parts from which the bytes were cut.
    pub fn cut_now(&self, file: &FileRef, offset: u64, size: u32) -> Option<Cut> {
        let range = clip(file, offset, size);
        if range.is_empty() {
            return Some(Cut::default());
        }
        let blocks = blocks_of(&range);
        let data = &self.0.data;
        let part = |index| match data.get(&file.key(index)) {
            Some(block) => Some(cut_of(&block, index, &range)),
            None if self.is_small(file) => None,
            None => self.pieces_now(file, index, &within(&range, index)),
        };
        if blocks.end - blocks.start == 1 {
            return part(blocks.start);
        }
        let mut bytes = BytesMut::with_capacity(to_usize(range.end - range.start));
        let mut parts = Parts::default();
        for index in blocks {
            let cut = part(index)?;
            bytes.extend_from_slice(&cut.bytes);
            cut.parts.iter().for_each(|part| parts.push(*part));
        }
        let bytes = bytes.freeze();
        Some(Cut { bytes, parts })
    }

    /// Up to `size` bytes of `file` from `offset`; fewer only at its end. Small files are fetched
    /// whole; of large ones what is asked for, or blocks with a read-ahead for those who go forward, as
    /// `ahead` sees them. Dropping the future does not stop a fetch that others may wait for.
    ///
    /// # Errors
    /// `Stale` when the version is gone; `Unavailable` and other faults, after retries.
    pub async fn read(
        &self,
        file: &FileRef,
        ahead: &ReadAhead,
        offset: u64,
        size: u32,
    ) -> Result<Bytes, Failure> {
        Ok(self.cut(file, ahead, offset, size).await?.bytes)
    }

    /// Like [`ReadPath::read`], with the parts from which the bytes were cut.
    ///
    /// # Errors
    /// Like [`ReadPath::read`].
    pub async fn cut(
        &self,
        file: &FileRef,
        ahead: &ReadAhead,
        offset: u64,
        size: u32,
    ) -> Result<Cut, Failure> {
        let range = clip(file, offset, size);
        if range.is_empty() {
            return Ok(Cut::default());
        }
        self.0.data.count_miss();
        if !file.version.is_settled() && !self.is_read_at_once(file) {
            return Err(must_settle(file));
        }
        if offset == 0 {
            // A bundle brings this file first.
            self.reading(file);
        }
        if self.is_small(file) {
            let first = match file.version.is_settled() {
                true => range.start / BLOCK_BYTES,
                // Read by a single request.
                false => 0,
            };
            let wanted = [first..file.block_count(), 0..first];
            let reading = self.read_blocks(file, &range, &wanted);
            // The size of the returned bytes, rounded up to whole blocks.
            let blocks = range.end.div_ceil(BLOCK_BYTES) - first;
            let bytes = ReadRequest::block_len(file.size, first) * blocks;
            return self.0.room.within(bytes, reading).await;
        }
        if let Pattern::Forward(run) = ahead.read(&range, file.size, &self.0.pace) {
            self.fetch(file, run);
        }
        // Twice: as pieces, and put together.
        let bytes = 2 * (range.end - range.start);
        let reading = self.read_asked(file, &range);
        self.0.room.within(bytes, reading).await
    }

    /// Reads by blocks; `wanted` are the runs to fetch where one of them is missing.
    async fn read_blocks(
        &self,
        file: &FileRef,
        range: &Range<u64>,
        wanted: &[Range<u64>; 2],
    ) -> Result<Cut, Failure> {
        let mut cuts = Vec::with_capacity(2);
        for index in blocks_of(range) {
            let block = self
                .block(file, index, || wanted.clone(), Haste::Urgent)
                .await?;
            cuts.push(cut_of(&block, index, range));
        }
        Ok(Cut::joined(cuts))
    }

    /// Reads what is asked for, from the blocks that are here or under way, and no more than that of
    /// others.
    async fn read_asked(&self, file: &FileRef, range: &Range<u64>) -> Result<Cut, Failure> {
        let last = match range.end == file.size {
            true => file.block_count(),
            false => range.end / BLOCK_BYTES,
        };
        self.fetch(file, range.start.div_ceil(BLOCK_BYTES)..last);
        let cuts = blocks_of(range).map(|index| async move {
            let part = within(range, index);
            if part.end - part.start == ReadRequest::block_len(file.size, index) {
                let wanted = || [index..index + 1, 0..0];
                let block = self.block(file, index, wanted, Haste::Urgent).await?;
                return Ok(cut_of(&block, index, range));
            }
            self.pieces(file, index, &part).await
        });
        Ok(Cut::joined(try_join_all(cuts).await?))
    }

    /// Keeps what is fetched ahead ahead of a reader that was answered from the cache: a large file's
    /// window, or the files that follow.
    pub fn read_ahead(&self, file: &FileRef, ahead: &ReadAhead, offset: u64, size: u32) {
        if offset == 0 {
            self.reading(file);
        }
        let range = clip(file, offset, size);
        if self.is_small(file) || range.is_empty() {
            return;
        }
        if let Pattern::Forward(run) = ahead.read(&range, file.size, &self.0.pace) {
            self.fetch(file, run);
        }
    }

    /// Whether the file is fetched whole: it is small for this node, or only all of it can be held
    /// against what an index has promised.
    fn is_small(&self, file: &FileRef) -> bool {
        let promised = file.content.is_some() && file.block_count() == 1;
        file.size <= self.0.whole_file_max || promised
    }

    /// Whether one request reads all of the file: under an unsettled version there may be only one.
    fn is_read_at_once(&self, file: &FileRef) -> bool {
        self.is_small(file) && file.size <= UNSETTLED_BYTES_MAX
    }

    /// The whole content of a small file, if it is cached. Not counted as a hit.
    pub fn whole_now(&self, file: &FileRef) -> Option<Cut> {
        let mut cuts = Vec::new();
        for index in 0..file.block_count() {
            let block = self.0.data.peek(&file.key(index))?;
            cuts.push(cut_of(&block, index, &(0..file.size)));
        }
        Some(Cut::joined(cuts))
    }

    /// The block, waited for. One that was under way for an equal file elsewhere, and fails there, is
    /// asked for at this place.
    pub(super) async fn block(
        &self,
        file: &FileRef,
        index: u64,
        wanted: impl Fn() -> [Range<u64>; 2],
        haste: Haste,
    ) -> Result<Block, Failure> {
        let mut detours = 0;
        loop {
            let flight = match self.source_of(file, index, &wanted) {
                Source::Cached(block) => return Ok(block),
                Source::Flying(flight) => flight,
            };
            let outcome = match haste {
                Haste::Urgent => self.landed_soon(file, index, &flight).await,
                Haste::InTurn => landed(&flight).await,
            };
            match outcome {
                Err(_) if flight.is_elsewhere(file, detours) => detours += 1,
                outcome => return outcome,
            }
        }
    }

    /// Whether the block is here or on its way.
    pub(super) fn has_or_awaits(&self, file: &FileRef, index: u64) -> bool {
        let key = file.key(index);
        self.0.data.contains(&key) || self.0.block_flights.contains_key(&key)
    }

    /// The number of blocks at the beginning of `run` that are neither here nor on their way.
    pub(super) fn missing(&self, file: &FileRef, run: Range<u64>) -> u64 {
        let is_missing = |index: &u64| !self.has_or_awaits(file, *index);
        run.take_while(is_missing).count() as u64
    }

    /// Starts fetching the blocks of `run` up to the first one that is here or on its way. Returns their
    /// flights.
    pub(super) fn fetch_first(&self, file: &FileRef, run: Range<u64>) -> Vec<Arc<Flight>> {
        let first = run.start;
        let claims = run.map_while(|index| self.claim(file, index));
        let flights: Vec<_> = claims.collect();
        self.launch(file, first, &mut flights.clone());
        flights
    }

    /// The block, or its flight; starts fetching the `wanted` runs when there is neither.
    pub(super) fn source_of(
        &self,
        file: &FileRef,
        index: u64,
        wanted: impl Fn() -> [Range<u64>; 2],
    ) -> Source {
        let inner = &self.0;
        let key = file.key(index);
        let mut asked = false;
        loop {
            if let Some(block) = inner.data.get(&key) {
                return Source::Cached(block);
            }
            if let Some(flight) = inner.block_flights.get(&key) {
                if !asked {
                    inner.coalesced.fetch_add(1, Ordering::Relaxed);
                }
                return Source::Flying(Arc::clone(&flight));
            }
            asked = true;
            for run in wanted() {
                self.fetch(file, run);
            }
            // A block that was fetched and evicted, or that failed, between two of these lines is
            // asked for again: by then it is a new question.
            if let Some(flight) = self.fetch(file, index..index + 1) {
                return Source::Flying(flight);
            }
        }
    }

    /// Starts fetching those blocks of `run` that are neither cached nor under way: one upstream
    /// request for each stretch of them (and stripe, with several roots). Gives the first flight it started.
    fn fetch(&self, file: &FileRef, run: Range<u64>) -> Option<Arc<Flight>> {
        let mut first = None;
        let mut stretch: Vec<Arc<Flight>> = Vec::new();
        let mut start = run.start;
        for index in run {
            match self.claim(file, index) {
                Some(flight) => {
                    if stretch.is_empty() {
                        start = index;
                    }
                    first.get_or_insert_with(|| Arc::clone(&flight));
                    stretch.push(flight);
                }
                None => self.launch(file, start, &mut stretch),
            }
        }
        self.launch(file, start, &mut stretch);
        first
    }

    pub(super) fn claim(&self, file: &FileRef, index: u64) -> Option<Arc<Flight>> {
        let inner = &self.0;
        match inner.block_flights.entry(file.key(index)) {
            Entry::Occupied(_) => None,
            // Looked up under the flight's lock: a block is in the cache before its flight ends.
            Entry::Vacant(_) if inner.data.contains(&file.key(index)) => None,
            Entry::Vacant(entry) => {
                let len = ReadRequest::block_len(file.size, index);
                let flight = Arc::new(Flight::new(
                    file.path.clone(),
                    inner.data_epoch.now(),
                    to_usize(len),
                ));
                drop(entry.insert(Arc::clone(&flight)));
                Some(flight)
            }
        }
    }

    pub(super) fn launch(&self, file: &FileRef, first_block: u64, stretch: &mut Vec<Arc<Flight>>) {
        let mut flights = std::mem::take(stretch);
        let mut next_block = first_block;
        while !flights.is_empty() {
            let mut rest = Vec::new();
            if self.0.options.stripes {
                let in_stripe = STRIPE_BLOCKS - next_block % STRIPE_BLOCKS;
                rest = flights.split_off(flights.len().min(to_usize(in_stripe)));
            }
            let count = flights.len() as u64;
            let fetch = Fetch {
                inner: Arc::clone(&self.0),
                file: file.clone(),
                next_block,
                flights: std::mem::replace(&mut flights, rest).into_iter(),
            };
            drop(self.0.runtime.spawn(fetch.run()));
            next_block += count;
        }
    }
}

impl Inner {
    /// Who is asked for bytes of `file`.
    pub(super) fn source_of(&self, file: &FileRef) -> Arc<dyn Files> {
        match (&self.direct, self.options.bypass_above) {
            (Some(direct), Some(bound)) if file.size > bound => Arc::clone(direct),
            _ => Arc::clone(&self.source),
        }
    }

    /// Caches the block of `flight`, unless it was cleared meanwhile, and removes the flight from the list.
    /// The caller then calls [`Flight::finish`].
    pub(super) fn land(&self, key: BlockKey, flight: &Arc<Flight>, block: &Block, weight: u64) {
        let keep = || self.data.insert(key, block.clone(), weight);
        self.data_epoch.keep(flight.asked(), flight.path(), keep);
        self.end_flight(&key, flight);
    }

    /// Lands `flight` with `block`, unless another request has brought the block before.
    pub(super) fn land_first(&self, key: BlockKey, flight: &Arc<Flight>, block: Block) {
        if flight.land() {
            let weight = block.bytes.len() as u64;
            self.land(key, flight, &block, weight);
            flight.finish(Ok(block));
        }
    }

    /// Removes `flight` from the list. The list may have a newer flight for the key, begun after a clear.
    pub(super) fn end_flight(&self, key: &BlockKey, flight: &Arc<Flight>) {
        self.block_flights
            .remove_if(key, |_, listed| Arc::ptr_eq(listed, flight));
    }

    /// If `failure` of a read of `file` means that the metadata that led to it is wrong, the next look-up
    /// asks again. Metadata of another version is kept: after a `chmod -R` the first file renews its
    /// directory's listing, and the other files find their new versions in it.
    pub(super) fn look_again_after(&self, failure: &Failure, file: &FileRef) {
        let renewed = || self.known_unlike(&file.path, file.version).is_some();
        match failure.kind {
            FailureKind::Stale if renewed() => {}
            // The listing is correct. Its attributes of this file expire when the version could have
            // settled.
            FailureKind::Stale if !file.version.is_settled() => self.forget_unsettled(&file.path),
            FailureKind::Stale | FailureKind::NotFound => self.forget_attributes(&file.path),
            _ => {}
        }
    }
}

/// One upstream request and the flights it fills, in order.
struct Fetch {
    inner: Arc<Inner>,
    file: FileRef,
    next_block: u64,
    flights: std::vec::IntoIter<Arc<Flight>>,
}

impl Fetch {
    async fn run(mut self) {
        let source = self.inner.source_of(&self.file);
        let block_count = self.flights.len() as u64;
        let request = ReadRequest {
            path: self.file.path.clone(),
            version: self.file.version,
            size: self.file.size,
            first_block: self.next_block,
            block_count,
            content: self.file.content,
            through: false,
        };
        let block_bytes = ReadRequest::block_len(self.file.size, self.next_block);
        let bytes = block_bytes.saturating_mul(block_count).min(FETCH_BYTES_MAX);
        let room = Arc::clone(&self.inner.room);
        let mut charge = room.fetch(bytes).await;
        self.come_near();
        let outcome = match charge.awaiting(source.read(request)).await {
            Ok(stream) => self.fill(stream, &mut charge).await,
            Err(failure) => Err(failure),
        };
        let failure = match outcome {
            Ok(()) => return,
            Err(failure) => failure,
        };
        self.inner.look_again_after(&failure, &self.file);
        self.fail_rest(&failure);
    }

    async fn fill(&mut self, mut stream: ReadStream, charge: &mut Charge) -> Result<(), Failure> {
        while let Some(flight) = self.flights.as_slice().first().map(Arc::clone) {
            let filled = match self.come_near() {
                true => Arc::clone(&flight),
                // A separate request brings it. If that has not ended by then, this block is taken.
                false => Arc::new(flight.apart()),
            };
            let hash = loop {
                match charge.awaiting(stream.next()).await {
                    Some(Ok(BlockPart::Bytes(bytes))) => {
                        if filled.is_empty() {
                            charge.begin().await;
                        } else {
                            charge.go_on();
                        }
                        filled.push(bytes)?;
                    }
                    Some(Ok(BlockPart::Restart)) => filled.restart(),
                    Some(Ok(BlockPart::End(hash))) => break hash,
                    Some(Err(failure)) => return Err(failure),
                    None => {
                        let detail = format!("{}: the stream ended too early", self.file.path);
                        return Err(Failure::new(FailureKind::Corrupt, detail));
                    }
                }
            };
            let block = filled.complete(hash)?;
            self.file.check(hash)?;
            self.inner
                .land_first(self.file.key(self.next_block), &flight, block);
            self.next_block += 1;
            self.flights.next();
        }
        Ok(())
    }

    /// Marks the blocks that come next. Returns whether the first of them is filled by this request alone.
    fn come_near(&self) -> bool {
        let next = self.flights.as_slice().iter().take(NEAR_BLOCKS);
        next.rev().fold(false, |_, flight| flight.come_near())
    }

    /// Blocks that were requested separately are left to those requests.
    fn fail_rest(&mut self, failure: &Failure) {
        for flight in self.flights.by_ref() {
            if flight.leave_run() {
                self.inner
                    .end_flight(&self.file.key(self.next_block), &flight);
                flight.finish(Err(failure.clone()));
            }
            self.next_block += 1;
        }
    }
}

/// A fetch that is dropped with its runtime leaves nobody waiting.
impl Drop for Fetch {
    fn drop(&mut self) {
        self.fail_rest(&Failure::new(
            FailureKind::Unavailable,
            "the node is shutting down",
        ));
    }
}

/// The failure of a read that would need several requests for a file with an unsettled version.
fn must_settle(file: &FileRef) -> Failure {
    let detail = format!("{}: too young to be read in parts", file.path);
    Failure::new(FailureKind::Stale, detail)
}

pub(super) async fn landed(flight: &Flight) -> Result<Block, Failure> {
    let mut progress = flight.watch();
    let landed = progress
        .wait_for(|now| !matches!(now, Progress::Filling(_)))
        .await;
    match landed.as_deref() {
        Ok(Progress::Done(block, _)) => Ok(block.clone()),
        Ok(Progress::Failed(failure)) => Err(failure.clone()),
        Ok(Progress::Filling(_)) | Err(_) => Err(Failure::new(
            FailureKind::Unavailable,
            "the fetch was given up",
        )),
    }
}

/// The part of a read that lies inside the file.
fn clip(file: &FileRef, offset: u64, size: u32) -> Range<u64> {
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
        place: Place::Block(index),
        hash: block.hash,
    };
    Cut::of(slice(block, index, range), part)
}
