//! The client for homes of items: content that one node caches for all others.
//!
//! Each item of a declared dataset has one home. A node that reads an item requests it from its home
//! directly, over a connection that is made on demand, and not through a tree. The caller and the
//! [`Service`](crate::Service) that answers know datasets, which node is which item's home, and the cost of
//! reading the origin. This module moves the bytes, bounded, and verifies them on arrival.
//!
//! A request uses the connections of the lane whose runtime polls it, so that lanes share nothing here. A request for an
//! item from another runtime moves to a lane.

mod connections;

use crate::config::OverlayConfig;
use crate::counters::Counters;
use crate::exchange::{
    AnswerError, encode_parts, expect_body, open_stream, read_part, read_verified,
};
use crate::model::{
    BlockPart, ContentHash, Failure, FailureKind, HeldAnswer, HeldRequest, ITEM_BYTES_MAX,
    Insertion, ItemAnswer, ItemRequest,
};
use crate::peer::Peer;
use crate::transport::stream::{FrameReader, StreamError};
use crate::wire::{FrameKind, Head, Request, STEERING_BYTES_MAX, WireError, message};
use bytes::Bytes;
use connections::Lane;
use copperfs_topology::digest;
use quinn::ConnectionError;
use std::sync::Arc;
use std::time::Instant;
use tokio::task::JoinSet;

/// A node's client for homes of items. Clones share its connections.
#[derive(Clone)]
pub struct Homes(Arc<HomesInner>);

struct HomesInner {
    config: Arc<OverlayConfig>,
    counters: Arc<Counters>,
    /// At least one.
    lanes: Vec<Lane>,
}

impl Homes {
    /// A client that fails all requests until [`Homes::open`].
    pub(crate) fn new(config: Arc<OverlayConfig>, counters: Arc<Counters>) -> Self {
        let lanes = match config.lanes.as_slice() {
            [] => vec![Lane::default()],
            runtimes => runtimes.iter().map(Lane::of).collect(),
        };
        Self(Arc::new(HomesInner {
            config,
            counters,
            lanes,
        }))
    }

    /// Requests an item from the member at `rank`, which must not be this node. Makes a connection if there
    /// is none. Dropping the future cancels the request at the home.
    ///
    /// # Errors
    /// `Unavailable` if the home cannot be reached: within about a second if it died without notice, and at
    /// once for a while after that. `Corrupt` if its answer cannot be true. Any failure of the home.
    pub async fn item(&self, rank: usize, request: ItemRequest) -> Result<ItemAnswer, Failure> {
        if let Some(fault) = request.fault() {
            let path = &request.path;
            let detail = format!("{path}: an item that cannot be asked for: {fault}");
            return Err(Failure::new(FailureKind::Io, detail));
        }
        let hash = || {
            let stripe = request.item.start / ITEM_BYTES_MAX;
            digest(request.path.as_bytes()) ^ stripe
        };
        let Some(lane) = self.0.other_lane(hash) else {
            return self.item_here(rank, request).await;
        };
        let homes = self.clone();
        // Ends with this future.
        let mut asking = JoinSet::new();
        asking.spawn_on(async move { homes.item_here(rank, request).await }, lane);
        let stopped = || Failure::new(FailureKind::Unavailable, "this node is shutting down");
        match asking.join_next().await {
            Some(Ok(answer)) => answer,
            _ => Err(stopped()),
        }
    }

    /// As [`Homes::item`], over a connection of this lane.
    async fn item_here(&self, rank: usize, request: ItemRequest) -> Result<ItemAnswer, Failure> {
        match self.ask(rank, &Request::Item(request), None).await? {
            HomeAnswer::Item(answer) => Ok(answer),
            _ => Err(other_question()),
        }
    }

    /// Asks the member at `rank`, which must not be this node, which items it holds.
    ///
    /// # Errors
    /// As [`Homes::item`].
    pub async fn held(&self, rank: usize, request: HeldRequest) -> Result<HeldAnswer, Failure> {
        match self.ask(rank, &Request::Held(request), None).await? {
            HomeAnswer::Held(answer) => Ok(answer),
            _ => Err(other_question()),
        }
    }

    /// Requests an item by its hash alone from the member at `rank`, which must not be this node. `None`: it is
    /// not held there, or not given to readers without its path.
    ///
    /// # Errors
    /// As [`Homes::item`].
    pub async fn content(&self, rank: usize, hash: ContentHash) -> Result<Option<Bytes>, Failure> {
        match self.ask(rank, &Request::Content { hash }, None).await? {
            HomeAnswer::Content(bytes) => Ok(bytes),
            _ => Err(other_question()),
        }
    }

    /// Gives an item to the member at `rank`, which must not be this node. `bytes` have the hash `hash`, and are 1
    /// to [`ITEM_BYTES_MAX`]. The item may be kept although the future is dropped.
    ///
    /// # Errors
    /// As [`Homes::item`].
    pub async fn insert(
        &self,
        rank: usize,
        hash: ContentHash,
        bytes: Bytes,
    ) -> Result<Insertion, Failure> {
        let len = bytes.len() as u64;
        let request = Request::Insert { hash, len };
        match self.ask(rank, &request, Some(&bytes)).await? {
            HomeAnswer::Inserted(insertion) => Ok(insertion),
            _ => Err(other_question()),
        }
    }

    /// Sends a message to the member at `rank`, which must not be this node, and returns its answer. Both have at most
    /// [`STEERING_BYTES_MAX`] bytes, and are opaque here. The message may have arrived although no answer comes.
    ///
    /// # Errors
    /// As [`Homes::item`].
    pub async fn message(&self, rank: usize, message: Bytes) -> Result<Bytes, Failure> {
        if message.len() > STEERING_BYTES_MAX {
            let detail = format!("a message of {} bytes is too long", message.len());
            return Err(Failure::new(FailureKind::Unsupported, detail));
        }
        match self.ask(rank, &Request::Message, Some(&message)).await? {
            HomeAnswer::Message(answer) => Ok(answer),
            _ => Err(other_question()),
        }
    }

    /// Sends `request`, and the `body` that belongs to it, to the member at `rank`, twice if that has restarted since
    /// the connection was made.
    async fn ask(
        &self,
        rank: usize,
        request: &Request,
        body: Option<&Bytes>,
    ) -> Result<HomeAnswer, Failure> {
        let mut restarted = false;
        loop {
            let home = self.connection(rank).await?;
            let _in_flight = home.begin_request();
            match self.exchange(&home, request, body).await {
                Ok(answer) => return Ok(answer),
                // The home has restarted since the connection was made: it is there, so one retry is worth it.
                Err(AnswerError::Stream(StreamError::Lost(ConnectionError::Reset)))
                    if !restarted =>
                {
                    restarted = true;
                    self.leave(&home, &StreamError::Lost(ConnectionError::Reset));
                }
                Err(AnswerError::Failure(failure)) => return Err(failure),
                Err(AnswerError::Stream(error)) => return Err(self.failed(&home, &error)),
            }
        }
    }

    /// Sends one request to `home`, and reads its answer.
    async fn exchange(
        &self,
        home: &Peer,
        request: &Request,
        body: Option<&Bytes>,
    ) -> Result<HomeAnswer, AnswerError> {
        let (counters, timeout) = (&self.0.counters, self.0.config.request_timeout);
        let begun = Instant::now();
        let (mut reader, mut writer) = open_stream(&home.connection, 0, request, timeout).await?;
        match (body, request) {
            (Some(bytes), Request::Insert { hash, .. }) => {
                let parts = vec![BlockPart::Bytes(bytes.clone()), BlockPart::End(*hash)];
                writer.chunks(&mut encode_parts(parts)?).await?;
            }
            (Some(message), Request::Message) => {
                writer.frame(FrameKind::Steering, message.clone()).await?;
                writer.finish();
                let answer = expect_body(&mut reader, FrameKind::Steering, "steering").await?;
                reader.finish()?;
                return Ok(HomeAnswer::Message(answer));
            }
            _ => {}
        }
        writer.finish();
        counters.item_asked(home.lane);
        reader.meter = Some(counters.item_bytes_received.clone());
        reader.peek().await?;
        counters.home_latency.observe(begun.elapsed());
        let head = expect_body(&mut reader, FrameKind::Head, "head").await?;
        let head: Head = message::decode("head", &head)?;
        head.check(request)?;
        self.receive(&mut reader, head, request).await
    }

    /// Receives the answer to `request` behind its `head`.
    async fn receive(
        &self,
        reader: &mut FrameReader,
        head: Head,
        request: &Request,
    ) -> Result<HomeAnswer, AnswerError> {
        let counters = &self.0.counters;
        match (head, request) {
            (
                Head::Item {
                    cached,
                    charged,
                    admitted,
                },
                Request::Item(request),
            ) => {
                let mut blocks = Vec::with_capacity(1);
                for block in request.blocks() {
                    blocks.push(read_part(reader, block.len).await?);
                    counters.blocks_verified.increment();
                }
                // Bytes after the last hash would not be verified.
                reader.finish()?;
                Ok(HomeAnswer::Item(ItemAnswer::Bytes {
                    blocks,
                    cached,
                    charged,
                    admitted,
                }))
            }
            (Head::Unpaid { cost }, _) => {
                reader.finish()?;
                Ok(HomeAnswer::Item(ItemAnswer::Unpaid { cost }))
            }
            (Head::Held { state, bytes: None }, _) => {
                reader.finish()?;
                Ok(HomeAnswer::Held(HeldAnswer { state, bits: None }))
            }
            (
                Head::Held {
                    state,
                    bytes: Some(len),
                },
                _,
            ) => {
                let found = read_verified(reader, len.into()).await?;
                let bits = Some(found.bytes);
                Ok(HomeAnswer::Held(HeldAnswer { state, bits }))
            }
            (Head::Content { bytes: None }, _) => {
                reader.finish()?;
                Ok(HomeAnswer::Content(None))
            }
            (Head::Content { bytes: Some(len) }, Request::Content { hash }) => {
                let found = read_verified(reader, len).await?;
                if found.hash != *hash {
                    return Err(WireError::WrongHash.into());
                }
                Ok(HomeAnswer::Content(Some(found.bytes)))
            }
            (Head::Inserted(insertion), _) => {
                reader.finish()?;
                Ok(HomeAnswer::Inserted(insertion))
            }
            _ => Err(WireError::Impossible("an answer to another question").into()),
        }
    }
}

/// The answer to a request of a reader.
enum HomeAnswer {
    Item(ItemAnswer),
    Held(HeldAnswer),
    Content(Option<Bytes>),
    Inserted(Insertion),
    Message(Bytes),
}

/// Heads are compared with their requests when they arrive, so this is not seen.
fn other_question() -> Failure {
    Failure::new(FailureKind::Corrupt, "an answer to another question")
}
