//! A run of blocks on its way to one child.
//!
//! A feed looks for a block only when it comes to it, and holds it until it is sent ([`super::handouts`]).
//! Of a run that is missing it has as many blocks fetched as it may hold.

use super::blocks::BlockSource;
use super::flight::{Flight, Progress};
use super::handouts::Hold;
use super::memory::COPY_BYTES;
use super::{Block, Data};
use crate::read::file::FileRef;
use bytes::Bytes;
use copperfs_overlay::{BlockPart, ContentHash, Failure, FailureKind, ReadRequest};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::watch;

/// The maximum of blocks that one request to the source brings.
const RUN_BLOCKS_MAX: u64 = 64;

/// See the module. Read by [`Feed::next`].
pub(in crate::read) struct Feed {
    data: Data,
    file: FileRef,
    blocks: Range<u64>,
    current: Current,
    /// MemoryBudget for the current block and those ahead; `None` before the feed has looked for one.
    hold: Option<Arc<Hold>>,
    /// The hash of the block of which a part was sent; the rest must come from a block with the same hash.
    sent: Option<ContentHash>,
    /// Flights of equal files elsewhere that failed.
    detours: u32,
}

enum Current {
    /// To be looked up; the number of its bytes that were sent.
    Look(usize),
    /// On its way here.
    Flying(Following),
    /// A verified block that is held; the number of its bytes that were sent.
    Sending(usize),
    /// All its bytes were sent.
    Sent(ContentHash),
    Failed,
}

/// A flight whose bytes are forwarded as they arrive.
struct Following {
    flight: Arc<Flight>,
    progress: watch::Receiver<Progress>,
    /// The number of bytes that were sent.
    sent: usize,
    /// How often the block had begun again by then.
    restarts: u32,
}

impl Current {
    /// Continues with `flight` after `sent` bytes.
    fn following(flight: Arc<Flight>, sent: usize) -> Self {
        Self::Flying(Following {
            progress: flight.watch(),
            flight,
            sent,
            restarts: 0,
        })
    }
}

type Part = Result<BlockPart, Failure>;

impl Feed {
    /// Sends `blocks` of `file`.
    pub(in crate::read) fn new(data: Data, file: FileRef, blocks: Range<u64>) -> Self {
        Self {
            data,
            file,
            blocks,
            current: Current::Look(0),
            hold: None,
            sent: None,
            detours: 0,
        }
    }

    /// The next part, or `None` after the last one and after a failure.
    pub(in crate::read) async fn next(&mut self) -> Option<Part> {
        loop {
            let current = std::mem::replace(&mut self.current, Current::Failed);
            if self.hold.as_ref().is_some_and(|hold| !hold.touch()) {
                self.hold = None;
            }
            let part = match current {
                Current::Failed => return None,
                Current::Look(_) if self.blocks.is_empty() => return None,
                Current::Look(sent) => self.look(sent).await,
                Current::Sending(sent) => self.send(sent),
                Current::Sent(hash) => Some(self.end(hash)),
                Current::Flying(following) => self.fly(following).await,
            };
            if part.is_some() {
                return part;
            }
        }
    }

    /// Looks the block up, with room for it; `sent` of its bytes were sent.
    async fn look(&mut self, sent: usize) -> Option<Part> {
        let index = self.blocks.start;
        let hold = match &self.hold {
            Some(hold) => Arc::clone(hold),
            None => {
                let bytes = ReadRequest::block_len(self.file.size, index);
                let hold = self.data.memory().handouts().hold(bytes).await;
                Arc::clone(self.hold.insert(hold))
            }
        };
        if let Some(flight) = self.fetch(&hold) {
            self.current = Current::following(flight, sent);
            return None;
        }
        match self
            .data
            .block_source(&self.file, index, || [index..index + 1, 0..0])
        {
            BlockSource::Cached(block) => self.found(block, sent),
            BlockSource::Flying(flight) => {
                self.current = Current::following(flight, sent);
                None
            }
        }
    }

    /// If the block is missing, starts fetching it, and with it as many of those that follow as there is
    /// room to hold.
    fn fetch(&self, hold: &Hold) -> Option<Arc<Flight>> {
        let first = self.blocks.start;
        let end = self.blocks.end.min(first + RUN_BLOCKS_MAX);
        let missing = self.data.missing(&self.file, first..end);
        let more = hold.extend(missing.checked_sub(1)?);
        let flights = self.data.fetch_first(&self.file, first..first + 1 + more);
        let mut flights = flights.into_iter();
        let flight = flights.next();
        hold.lead(flights);
        flight
    }

    /// Continues with a block that is here.
    fn found(&mut self, block: Block, sent: usize) -> Option<Part> {
        if sent > 0 && self.sent.is_some_and(|hash| hash != block.hash) {
            return Some(self.restart());
        }
        self.sent = Some(block.hash);
        match &self.hold {
            Some(hold) if hold.touch() => hold.keep(block),
            // Its room was taken away while it came: it is looked up once there is room again.
            _ => {
                self.hold = None;
                self.current = Current::Look(sent);
                return None;
            }
        }
        self.send(sent)
    }

    /// Sends the next bytes of the block that is held.
    fn send(&mut self, sent: usize) -> Option<Part> {
        let block = self.hold.as_ref().and_then(|hold| hold.current());
        let Some(Block { bytes, hash, .. }) = block else {
            self.current = Current::Look(sent);
            return None;
        };
        if sent >= bytes.len() {
            return Some(self.end(hash));
        }
        let as_a_whole = self.hold.as_ref().is_some_and(|hold| hold.give());
        let (end, part) = if as_a_whole {
            (bytes.len(), bytes.slice(sent..))
        } else {
            let end = bytes.len().min(sent + COPY_BYTES);
            (end, Bytes::copy_from_slice(&bytes[sent..end]))
        };
        self.current = match end == bytes.len() {
            true => Current::Sent(hash),
            false => Current::Sending(end),
        };
        Some(Ok(BlockPart::Bytes(part)))
    }

    fn end(&mut self, hash: ContentHash) -> Part {
        self.blocks.start += 1;
        self.sent = None;
        self.current = Current::Look(0);
        // Without a block ahead its room goes to the feeds that wait.
        if let Some(hold) = self.hold.take()
            && let Some(flight) = hold.next()
        {
            self.hold = Some(hold);
            self.current = Current::following(flight, 0);
        }
        Ok(BlockPart::End(hash))
    }

    fn restart(&mut self) -> Part {
        self.current = Current::Look(0);
        self.sent = None;
        Ok(BlockPart::Restart)
    }

    /// Continues with a block whose fetch is in progress.
    async fn fly(&mut self, mut following: Following) -> Option<Part> {
        let sent = following.sent;
        let now = following.progress.borrow_and_update().clone();
        match now {
            Progress::Done(_, restarts) if restarts != following.restarts && sent > 0 => {
                Some(self.restart())
            }
            Progress::Done(block, _) => self.found(block, sent),
            Progress::Failed(_) if following.flight.is_elsewhere(&self.file, self.detours) => {
                self.detours += 1;
                self.current = Current::Look(0);
                (sent > 0).then(|| self.restart())
            }
            Progress::Failed(failure) => Some(Err(failure)),
            Progress::Filling(restarts) if restarts != following.restarts => {
                (following.sent, following.restarts) = (0, restarts);
                self.current = Current::Flying(following);
                (sent > 0).then_some(Ok(BlockPart::Restart))
            }
            Progress::Filling(restarts) => {
                let bytes = following.flight.forwardable(sent, restarts);
                if let Some(bytes) = &bytes {
                    following.sent += bytes.len();
                } else if self.changed(&mut following).await.is_err() {
                    let detail = "the fetch was given up";
                    return Some(Err(Failure::new(FailureKind::Unavailable, detail)));
                }
                self.current = Current::Flying(following);
                bytes.map(|bytes| Ok(BlockPart::Bytes(bytes)))
            }
        }
    }

    async fn changed(&self, following: &mut Following) -> Result<(), watch::error::RecvError> {
        let (file, index) = (&self.file, self.blocks.start);
        let (flight, progress) = (&following.flight, &mut following.progress);
        self.data
            .wait_change_or_urge(file, index, flight, progress)
            .await
    }
}
