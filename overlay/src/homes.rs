//! The client for homes of items: content that one node caches for all others.
//!
//! Each item of a declared dataset has one home. A node that reads an item requests it from its home
//! directly, over a connection that is made on demand, and not through a tree. The caller and the
//! [`Service`](crate::Service) that answers know datasets, which node is which item's home, and the cost of
//! reading the origin. This module moves the bytes, bounded, and verifies them on arrival.

mod connections;

use crate::config::OverlayConfig;
use crate::counters::Counters;
use crate::exchange::{AnswerError, expect_body, open_stream, read_verified};
use crate::model::{
    Failure, FailureKind, HeldAnswer, HeldRequest, ItemAnswer, ItemRequest, RangeAnswer,
};
use crate::peer::Peer;
use crate::transport::stream::StreamError;
use crate::wire::{FrameKind, Head, Request, WireError, message};
use connections::Connections;
use parking_lot::Mutex;
use quinn::ConnectionError;
use std::sync::Arc;
use std::time::Instant;

/// A node's client for homes of items. Clones share its connections.
#[derive(Clone)]
pub struct Homes(Arc<HomesInner>);

struct HomesInner {
    config: Arc<OverlayConfig>,
    counters: Arc<Counters>,
    /// Held for look-ups only.
    connections: Mutex<Connections>,
}

impl Homes {
    /// A client that fails all requests until [`Homes::open`].
    pub(crate) fn new(config: Arc<OverlayConfig>, counters: Arc<Counters>) -> Self {
        Self(Arc::new(HomesInner {
            config,
            counters,
            connections: Mutex::default(),
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
        match self.ask(rank, &Request::Item(request)).await? {
            HomeAnswer::Item(answer) => Ok(answer),
            HomeAnswer::Held(_) => Err(other_question()),
        }
    }

    /// Asks the member at `rank`, which must not be this node, which items it holds.
    ///
    /// # Errors
    /// As [`Homes::item`].
    pub async fn held(&self, rank: usize, request: HeldRequest) -> Result<HeldAnswer, Failure> {
        match self.ask(rank, &Request::Held(request)).await? {
            HomeAnswer::Held(answer) => Ok(answer),
            HomeAnswer::Item(_) => Err(other_question()),
        }
    }

    /// Sends `request` to the member at `rank`, twice if that has restarted since the connection was made.
    async fn ask(&self, rank: usize, request: &Request) -> Result<HomeAnswer, Failure> {
        let mut restarted = false;
        loop {
            let home = self.connection(rank).await?;
            let _in_flight = home.begin_request();
            let mut silent = home.health.silent.subscribe();
            let exchange = self.exchange(&home, request);
            // An answer that is complete counts even if the home fell silent after it: biased.
            let outcome = tokio::select! {
                biased;
                outcome = exchange => outcome,
                Ok(_) = silent.wait_for(|silent| *silent) => {
                    Err(StreamError::Lost(ConnectionError::TimedOut).into())
                }
            };
            match outcome {
                Ok(answer) => return Ok(answer),
                // The home has restarted since the connection was made: it is there, so one retry is worth it.
                Err(AnswerError::Stream(StreamError::Lost(ConnectionError::Reset)))
                    if !restarted =>
                {
                    restarted = true;
                    self.forget(&home);
                }
                Err(AnswerError::Failure(failure)) => return Err(failure),
                Err(AnswerError::Stream(error)) => return Err(self.failed(&home, &error)),
            }
        }
    }

    /// Sends one request to `home`, and reads its answer.
    async fn exchange(&self, home: &Peer, request: &Request) -> Result<HomeAnswer, AnswerError> {
        let (counters, timeout) = (&self.0.counters, self.0.config.request_timeout);
        let begun = Instant::now();
        let (mut reader, writer) = open_stream(&home.connection, 0, request, timeout).await?;
        writer.finish();
        counters.items_asked.increment();
        reader.meter = Some(counters.item_bytes_received.clone());
        reader.peek().await?;
        counters.home_latency.observe(begun.elapsed());
        let head = expect_body(&mut reader, FrameKind::Head, "head").await?;
        let head: Head = message::decode("head", &head)?;
        head.check(request)?;
        match (head, request) {
            (
                Head::Item {
                    cached,
                    charged,
                    admitted,
                },
                Request::Item(request),
            ) => {
                let len = request.wanted.len;
                let RangeAnswer { bytes, hash } = read_verified(&mut reader, len).await?;
                counters.blocks_verified.increment();
                Ok(HomeAnswer::Item(ItemAnswer::Bytes {
                    bytes,
                    hash,
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
                let found = read_verified(&mut reader, len.into()).await?;
                let bits = Some(found.bytes);
                Ok(HomeAnswer::Held(HeldAnswer { state, bits }))
            }
            _ => Err(WireError::Impossible("an answer to another question").into()),
        }
    }
}

/// The answer to a request of a reader.
enum HomeAnswer {
    Item(ItemAnswer),
    Held(HeldAnswer),
}

/// Heads are compared with their requests when they arrive, so this is not seen.
fn other_question() -> Failure {
    Failure::new(FailureKind::Corrupt, "an answer to another question")
}
