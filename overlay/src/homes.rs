//! Items from their homes: bytes that one node keeps for all others.
//!
//! A declared dataset's items have one home each. Who reads an item asks its home straight, over a
//! connection of its own that is made when it is needed ([`Homes`]), and not by way of a tree. What a
//! dataset is, which node is whose home, and what reading the origin costs, is the business of whoever
//! asks and of the [`Service`](crate::Service) that answers; this module moves the bytes, bounded, and
//! checks them where they arrive.

mod pool;

use crate::exchange::{take, trimmed, unexpected};
use crate::model::{Failure, FailureKind, ItemAnswer, ItemRequest, RangeAnswer};
use crate::peer::{Dialer, Peer};
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::wire::{FrameKind, Head, Request, WireError, message};
use bytes::Bytes;
use pool::Pool;
use quinn::ConnectionError;
use std::sync::Arc;
use std::time::Instant;

pub use pool::HomesBounds;

/// This node's way to the homes of items. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Homes {
    pool: Arc<Pool>,
}

impl Homes {
    /// Not yet open: every question fails.
    pub(crate) fn new(bounds: HomesBounds) -> Self {
        let pool = Arc::new(Pool::new(bounds));
        Self { pool }
    }

    /// From now on connections are made.
    pub(crate) fn open(&self, dialer: Arc<Dialer>) {
        self.pool.open(dialer);
    }

    /// Closes all connections, for good.
    pub(crate) fn stop(&self) {
        self.pool.stop();
    }

    /// Closes connections that nobody uses; runs until it is dropped.
    pub(crate) async fn sweep(self) {
        self.pool.sweep().await;
    }

    /// The homes to which this node has a connection now.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.pool.connected()
    }

    /// Asks the member at `rank`, over a connection that is made when there is none. Asking oneself is
    /// the caller's business. Dropping the future cancels what the home does for it.
    ///
    /// # Errors
    /// `Unavailable` when the home cannot be reached, within about a second also when it is gone
    /// without a word, and at once for a while thereafter; `Corrupt` when its answer cannot be true;
    /// what the home failed with.
    pub async fn item(&self, rank: usize, request: ItemRequest) -> Result<ItemAnswer, Failure> {
        let unsound = |error: &dyn std::fmt::Display| {
            let detail = format!(
                "{}: an item that cannot be asked for: {error}",
                request.path
            );
            Failure::new(FailureKind::Io, detail)
        };
        if let Some(fault) = request.fault() {
            return Err(unsound(&fault));
        }
        let question = Request::Item(request.clone());
        let body = message::encode_question(0, &question).map_err(|error| unsound(&error))?;
        let mut restarted = false;
        loop {
            let home = self.pool.home(rank).await?;
            match home.ask(&question, request.len, body.clone()).await {
                Ok(answer) => return answer,
                // It has begun anew since this connection was made, and is there.
                Err(StreamError::Lost(ConnectionError::Reset)) if !restarted => {
                    restarted = true;
                    self.pool.lost(&home);
                }
                Err(error) => return Err(self.pool.failed(&home, &error)),
            }
        }
    }
}

/// A home, connected, and what one question to it needs.
struct Home {
    peer: Arc<Peer>,
    dialer: Arc<Dialer>,
}

impl Home {
    /// One question, and its answer if the home gives one.
    async fn ask(
        &self,
        question: &Request,
        len: u64,
        body: Bytes,
    ) -> Result<Result<ItemAnswer, Failure>, StreamError> {
        let _asking = self.peer.asking();
        let mut silent = self.peer.silent();
        let exchange = self.exchange(question, len, body);
        tokio::select! {
            biased;
            answer = exchange => answer,
            Ok(_) = silent.wait_for(|silent| *silent) => {
                Err(StreamError::Lost(ConnectionError::TimedOut))
            }
        }
    }

    async fn exchange(
        &self,
        question: &Request,
        len: u64,
        body: Bytes,
    ) -> Result<Result<ItemAnswer, Failure>, StreamError> {
        let (meters, patience) = (self.dialer.meters(), self.dialer.request_timeout());
        let begun = Instant::now();
        let opening = self.peer.connection.open_bi();
        let (send, recv) = opening.await.map_err(StreamError::Lost)?;
        meters.items_asked.increment();
        let meter = meters.item_bytes_received.clone();
        let mut reader = FrameReader::new(recv, patience).metered(meter);
        let mut writer = FrameWriter::new(send, patience);
        writer.frame(FrameKind::Request, body).await?;
        writer.finish();
        let (kind, body) = reader.frame().await?.ok_or(StreamError::Truncated)?;
        meters.home.observe(begun.elapsed());
        match kind {
            FrameKind::Head => {}
            FrameKind::Failure => return Ok(Err(trimmed(message::decode("failure", &body)?))),
            got => return Err(unexpected(got, "head")),
        }
        let head: Head = message::decode("head", &body)?;
        head.check(question)?;
        let (cached, charged, admitted) = match head {
            Head::Item {
                cached,
                charged,
                admitted,
            } => (cached, charged, admitted),
            Head::Unpaid { cost } => {
                reader.finish()?;
                return Ok(Ok(ItemAnswer::Unpaid { cost }));
            }
            _ => return Err(WireError::Impossible("an answer to another question").into()),
        };
        let header = reader.header().await?.ok_or(StreamError::Truncated)?;
        let taken = take(&mut reader, header, len).await?;
        Ok(taken.map(|RangeAnswer { bytes, hash }| {
            meters.blocks_verified.increment();
            ItemAnswer::Bytes {
                bytes,
                hash,
                cached,
                charged,
                admitted,
            }
        }))
    }
}
