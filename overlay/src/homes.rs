//! The client for homes of items: content that one node caches for all others.
//!
//! Each item of a declared dataset has one home. A node that reads an item requests it from its home
//! directly, over a connection that is made on demand, and not through a tree. The caller and the
//! [`Service`](crate::Service) that answers know datasets, which node is which item's home, and the cost of
//! reading the origin. This module moves the bytes, bounded, and verifies them on arrival.

mod connections;

use crate::exchange::{AnswerError, expect_body, open_stream, read_verified};
use crate::model::{Failure, FailureKind, ItemAnswer, ItemRequest, RangeAnswer};
use crate::peer::{Dialer, Peer};
use crate::transport::stream::StreamError;
use crate::wire::{FrameKind, Head, Request, WireError, message};
use bytes::Bytes;
use connections::Connections;
use parking_lot::Mutex;
use quinn::ConnectionError;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Default for [`HomesBounds::connections_max`]: enough for a cluster of this size. quinn takes 39 KiB for an
/// idle connection, so all of them take 10 MiB.
const CONNECTIONS_MAX: usize = 256;
/// Default for [`HomesBounds::idle`]: longer than a job computes between two reads.
const IDLE: Duration = Duration::from_secs(60);

/// Limits of a node's connections to homes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HomesBounds {
    /// Most connections, at least 1. When all are in use, the longest idle one is closed for a new one.
    pub connections_max: usize,
    /// A connection without requests for this long is closed.
    pub idle: Duration,
}

impl Default for HomesBounds {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            idle: IDLE,
        }
    }
}

/// A node's client for homes of items. Clones share its connections.
#[derive(Clone)]
pub struct Homes(Arc<HomesInner>);

struct HomesInner {
    bounds: HomesBounds,
    /// Held for look-ups only.
    connections: Mutex<Connections>,
}

/// A connected home.
struct Home {
    peer: Arc<Peer>,
    dialer: Arc<Dialer>,
}

impl Homes {
    /// A client that fails all requests until [`Homes::open`].
    pub(crate) fn new(bounds: HomesBounds) -> Self {
        Self(Arc::new(HomesInner {
            bounds,
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
        let unsound = |error: &dyn fmt::Display| {
            let path = &request.path;
            let detail = format!("{path}: an item that cannot be asked for: {error}");
            Failure::new(FailureKind::Io, detail)
        };
        if let Some(fault) = request.fault() {
            return Err(unsound(&fault));
        }
        let message = Request::Item(request.clone());
        let body = message::encode_question(0, &message).map_err(|error| unsound(&error))?;
        let mut restarted = false;
        loop {
            let home = self.connection(rank).await?;
            let in_flight = home.peer.begin_request();
            let mut silent = in_flight.peer().silent();
            let exchange = home.exchange(&message, request.len, body.clone());
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
}

impl Home {
    /// Sends one request, whose encoding is `body`, and reads its answer of `len` bytes.
    async fn exchange(
        &self,
        request: &Request,
        len: u64,
        body: Bytes,
    ) -> Result<ItemAnswer, AnswerError> {
        let (counters, timeout) = (&self.dialer.counters, self.dialer.request_timeout);
        let begun = Instant::now();
        let (mut reader, writer) = open_stream(&self.peer.connection, body, timeout).await?;
        writer.finish();
        counters.items_asked.increment();
        reader.set_meter(counters.item_bytes_received.clone());
        reader.peek().await?;
        counters.home_latency.observe(begun.elapsed());
        let head = expect_body(&mut reader, FrameKind::Head, "head").await?;
        let head: Head = message::decode("head", &head)?;
        head.check(request)?;
        match head {
            Head::Item {
                cached,
                charged,
                admitted,
            } => {
                let RangeAnswer { bytes, hash } = read_verified(&mut reader, len).await?;
                counters.blocks_verified.increment();
                Ok(ItemAnswer::Bytes {
                    bytes,
                    hash,
                    cached,
                    charged,
                    admitted,
                })
            }
            Head::Unpaid { cost } => {
                reader.finish()?;
                Ok(ItemAnswer::Unpaid { cost })
            }
            _ => Err(WireError::Impossible("an answer to another question").into()),
        }
    }
}

impl fmt::Debug for Homes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Homes({} connected)", self.connected())
    }
}
