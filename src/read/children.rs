//! The read path as children use it: requests that come from the nodes below.
//!
//! Blocks go to a child through a [`Feed`]. It looks for a block only when it comes to it, and holds it until it is
//! sent ([`super::data::Hold`]). Of a run that is missing it has as many blocks fetched as it may hold.

use super::ReadPath;
use super::data::{Block, BlockSource, COPY_BYTES, Data, Flight, Hold, Progress, given_up};
use super::file::FileRef;
use bytes::Bytes;
use copperfs_overlay::{
    BlockPart, BundleRequest, BundleStream, ContentHash, Failure, FailureKind, Files, FilesFuture,
    FilesystemUsage, ItemPath, Leased, ListRequest, Listed, RangeAnswer, RangeRequest, ReadRequest,
    ReadStream, StatAnswers, StatRequest, XattrList,
};
use futures_util::{FutureExt, StreamExt, stream};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::watch;

impl Files for ReadPath {
    fn list(&self, request: ListRequest) -> FilesFuture<Listed> {
        if request.cursor.is_some() {
            // A later page of a large directory is not cached on the way: each node pages in its own steps.
            return self.source.list(request);
        }
        let metadata = self.metadata.clone();
        async move { metadata.list_for_child(request).await }.boxed()
    }

    fn stat(&self, request: StatRequest) -> FilesFuture<Leased<StatAnswers>> {
        let metadata = self.metadata.clone();
        async move { metadata.stat_for_child(request).await }.boxed()
    }

    fn read(&self, request: ReadRequest) -> FilesFuture<ReadStream> {
        if request.through {
            return self.source.read(request);
        }
        let blocks = request.first_block..request.first_block.saturating_add(request.block_count);
        let file = FileRef::requested(request.path, request.version, request.size, request.content);
        let feed = Feed {
            data: self.data.clone(),
            file,
            blocks,
            sent: 0,
            verified: None,
            flying: None,
            hold: None,
            detours: 0,
        };
        let parts = stream::unfold(Some(feed), |feed| async move {
            let mut feed = feed?;
            let part = feed.next().await?;
            // Nothing comes after a failure.
            let more = part.is_ok().then_some(feed);
            Some((part, more))
        });
        std::future::ready(Ok(parts.boxed())).boxed()
    }

    fn read_range(&self, request: RangeRequest) -> FilesFuture<RangeAnswer> {
        let data = self.data.clone();
        async move {
            if let Some(fault) = request.fault() {
                return Err(Failure::new(FailureKind::Corrupt, fault));
            }
            let block = request.block();
            let range = request.offset..request.offset + request.len;
            // The content hash cannot be checked with a part of a block.
            let file = FileRef::new(request.path, request.version, request.size, None);
            let cut = data.pieces(&file, block, &range).await?;
            Ok(RangeAnswer::of(cut.bytes))
        }
        .boxed()
    }

    fn bundle(&self, request: BundleRequest) -> FilesFuture<BundleStream> {
        std::future::ready(Ok(self.data.bundle_for_child(request))).boxed()
    }

    fn xattrs(&self, path: ItemPath) -> FilesFuture<Leased<XattrList>> {
        let metadata = self.metadata.clone();
        async move {
            let list = metadata.xattrs_for_child(&path).await?;
            Ok(list.map(|list| list.as_ref().clone()))
        }
        .boxed()
    }

    fn usage(&self, path: ItemPath) -> FilesFuture<FilesystemUsage> {
        let metadata = self.metadata.clone();
        async move { metadata.usage(&path).await }.boxed()
    }
}

/// The maximum of blocks that one request to the source brings.
const RUN_BLOCKS_MAX: u64 = 64;

/// A run of blocks on its way to one child: see the module.
struct Feed {
    data: Data,
    file: FileRef,
    /// The current block and those after it.
    blocks: Range<u64>,
    /// The number of bytes of the current block that were sent.
    sent: usize,
    /// The hash and the length of the current block, once it is verified. The rest of its bytes must come from a
    /// block with the same hash.
    verified: Option<(ContentHash, usize)>,
    /// The current block, if it is on its way here.
    flying: Option<Following>,
    /// Room for the current block and those ahead; `None` before the feed has looked for one.
    hold: Option<Arc<Hold>>,
    /// Flights of equal files elsewhere that failed.
    detours: u32,
}

/// A flight whose bytes are forwarded as they arrive.
struct Following {
    flight: Arc<Flight>,
    progress: watch::Receiver<Progress>,
    /// How often the block had begun again when bytes were sent last.
    restarts: u32,
}

impl Following {
    fn of(flight: Arc<Flight>) -> Self {
        Self {
            progress: flight.watch(),
            flight,
            restarts: 0,
        }
    }
}

type Part = Result<BlockPart, Failure>;

impl Feed {
    /// The next part, or `None` after the last one.
    async fn next(&mut self) -> Option<Part> {
        while !self.blocks.is_empty() {
            if self.hold.as_ref().is_some_and(|hold| !hold.touch()) {
                self.hold = None;
            }
            let part = match (self.flying.take(), self.verified) {
                (Some(following), _) => self.fly(following).await,
                (None, Some((hash, len))) if self.sent >= len => Some(self.end(hash)),
                (None, _) => match self.hold.as_ref().and_then(|hold| hold.current()) {
                    Some(block) => Some(self.send(&block)),
                    None => self.look().await,
                },
            };
            if part.is_some() {
                return part;
            }
        }
        None
    }

    /// Looks the block up, once there is room for it.
    async fn look(&mut self) -> Option<Part> {
        let index = self.blocks.start;
        let hold = match &self.hold {
            Some(hold) => Arc::clone(hold),
            None => {
                let bytes = ReadRequest::block_len(self.file.size, index);
                let hold = self.data.memory().handouts.hold(bytes).await;
                Arc::clone(self.hold.insert(hold))
            }
        };
        let source = match self.fetch(&hold) {
            Some(flight) => BlockSource::Flying(flight),
            None => self.data.block_source(&self.file, index, &[]),
        };
        match source {
            BlockSource::Cached(block) => self.found(block),
            BlockSource::Flying(flight) => {
                self.flying = Some(Following::of(flight));
                None
            }
        }
    }

    /// If the block is missing, starts fetching it, and with it as many of those that follow as there is
    /// room to hold.
    fn fetch(&self, hold: &Hold) -> Option<Arc<Flight>> {
        let first = self.blocks.start;
        let end = self.blocks.end.min(first + RUN_BLOCKS_MAX);
        let Self { data, file, .. } = self;
        let is_missing = |&index: &u64| !data.has_or_awaits(file, index);
        let missing = (first..end).take_while(is_missing).count() as u64;
        let more = hold.extend(missing.checked_sub(1)?);
        // Up to the first block that another reader has claimed meanwhile.
        let claimed = (first..first + 1 + more).map_while(|at| data.claim(file, file.key(at)));
        let flights: Vec<_> = claimed.collect();
        data.launch_blocks(file, &flights);
        let mut flights = flights.into_iter();
        let flight = flights.next();
        hold.lead(flights);
        flight
    }

    /// Continues with a block that is here.
    fn found(&mut self, block: Block) -> Option<Part> {
        if self.sent > 0 && self.verified.is_some_and(|(hash, _)| hash != block.hash) {
            return Some(self.restart());
        }
        self.verified = Some((block.hash, block.bytes.len()));
        match &self.hold {
            Some(hold) if hold.touch() => hold.keep(block),
            // Its room was taken away while it came: it is looked up once there is room again.
            _ => self.hold = None,
        }
        None
    }

    /// Sends the next bytes of `block`, which is held.
    fn send(&mut self, block: &Block) -> Part {
        let bytes = &block.bytes;
        let as_a_whole = self.hold.as_ref().is_some_and(|hold| hold.give());
        let sent = self.sent;
        let part = if as_a_whole {
            bytes.slice(sent..)
        } else {
            let end = bytes.len().min(sent + COPY_BYTES);
            Bytes::copy_from_slice(&bytes[sent..end])
        };
        self.sent += part.len();
        Ok(BlockPart::Bytes(part))
    }

    fn end(&mut self, hash: ContentHash) -> Part {
        self.blocks.start += 1;
        (self.sent, self.verified) = (0, None);
        // Without a block ahead its room goes to the feeds that wait.
        if let Some(hold) = self.hold.take()
            && let Some(flight) = hold.next()
        {
            self.hold = Some(hold);
            self.flying = Some(Following::of(flight));
        }
        Ok(BlockPart::End(hash))
    }

    fn restart(&mut self) -> Part {
        (self.sent, self.verified) = (0, None);
        Ok(BlockPart::Restart)
    }

    /// Continues with a block whose fetch is in progress.
    async fn fly(&mut self, mut following: Following) -> Option<Part> {
        let now = following.progress.borrow_and_update().clone();
        match now {
            Progress::Done(_, restarts) if restarts != following.restarts && self.sent > 0 => {
                Some(self.restart())
            }
            Progress::Done(block, _) => self.found(block),
            Progress::Failed(_) if following.flight.is_elsewhere(&self.file, self.detours) => {
                self.detours += 1;
                (self.sent > 0).then(|| self.restart())
            }
            Progress::Failed(failure) => Some(Err(failure)),
            Progress::Filling(restarts) => {
                let mut part = None;
                if restarts != following.restarts {
                    following.restarts = restarts;
                    part = (self.sent > 0).then(|| self.restart());
                } else if let Some(bytes) = following.flight.forwardable(self.sent, restarts) {
                    self.sent += bytes.len();
                    part = Some(Ok(BlockPart::Bytes(bytes)));
                } else {
                    let changed = following.progress.changed();
                    let changed = (self.data).or_urge(&self.file, &following.flight, changed);
                    if changed.await.is_err() {
                        return Some(Err(given_up()));
                    }
                }
                self.flying = Some(following);
                part
            }
        }
    }
}
