//! Reading blocks from an ancestor: parts are passed on as they arrive, never gathered, and verified.
//!
//! The last [`HELD_BACK_BYTES`] of a block are held back until the hash of all of it has been compared
//! with the trailer, which was made where the origin was read: so a completed wrong block convicts
//! its sender, and an honest forwarder is never blamed for one. A wrong block is counted against
//! whoever sent it and asked for again, elsewhere if there is anybody else. A connection that is lost
//! in mid-block is replaced by another one, on which the read goes on with that block. In both cases
//! what was passed on of the block is taken back by [`BlockPart::Restart`]: bytes of two senders are
//! never put together under the hash of one.

use super::{Answer, Asked, REPLAYS_MAX, Route, Upstream, again};
use crate::exchange::{trimmed, unexpected};
use crate::model::{BlockPart, ContentHash, Failure, ReadRequest, ReadStream, STRIPE_BLOCKS};
use crate::transport::stream::StreamError;
use crate::wire::{FrameHeader, FrameKind, Request, WireError, message};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use std::collections::VecDeque;
use tokio::time::Instant;

/// What is held back of a block until its hash has been checked.
const HELD_BACK_BYTES: usize = 64 << 10;
/// BLAKE3 is several times faster over long runs than packet by packet.
const HASH_RUN_BYTES: usize = 128 << 10;
/// How often one block is asked for again after it arrived wrong.
const WRONG_MAX: u32 = 4;
/// How often the sender of a block may take something back.
const RESTARTS_MAX: u32 = 64;

/// Opens a stream over the blocks of `request`: waits for the first frame, so that a refusal is the
/// outer failure.
pub(super) async fn open(upstream: Upstream, request: ReadRequest) -> Result<ReadStream, Failure> {
    let question = Request::Read(request);
    let asked = upstream.ask_read(&question).await?;
    let Request::Read(request) = question else {
        return Err(super::impossible(super::ANOTHER));
    };
    let mut answer = match asked {
        Asked::Storage(storage) => return storage.read(request).await,
        Asked::Answer(answer) => answer,
    };
    if answer.header.kind == FrameKind::Failure {
        return Err(match refusal(&mut answer).await {
            Ok(failure) => failure,
            Err(error) => upstream.inner.failure(answer.asking.peer(), &error),
        });
    }
    let blocks = Blocks {
        source: Source::peer(answer),
        left: ReadRequest::block_len(request.size, request.first_block),
        request,
        upstream,
        passed_on: false,
        unverified: Unverified::default(),
        ready: VecDeque::new(),
        replays: 0,
        resets: 0,
        wrong: 0,
        restarts: 0,
    };
    Ok(stream::unfold(Some(blocks), step).boxed())
}

async fn refusal(answer: &mut Answer) -> Result<Failure, StreamError> {
    let body = answer.reader.body(answer.header).await?;
    Ok(trimmed(message::decode("failure", &body)?))
}

/// By the root of the stripe in which the request begins.
fn route(request: &ReadRequest) -> Route<'_> {
    Route::Stripe(&request.path, request.first_block / STRIPE_BLOCKS)
}

impl Upstream {
    async fn ask_read(&self, question: &Request) -> Result<Asked, Failure> {
        let Request::Read(request) = question else {
            return Err(super::impossible(super::ANOTHER));
        };
        self.ask(&route(request), question).await
    }
}

/// One read in progress.
struct Blocks {
    upstream: Upstream,
    source: Source,
    /// What is left to be read: `first_block` is the current one.
    request: ReadRequest,
    /// Bytes of the current block that no frame has announced yet.
    left: u64,
    /// Something of the current block was passed on.
    passed_on: bool,
    unverified: Unverified,
    /// Parts that may be passed on now.
    ready: VecDeque<BlockPart>,
    replays: u32,
    resets: u32,
    wrong: u32,
    /// How often the sender has taken something back.
    restarts: u32,
}

enum Source {
    Peer {
        answer: Answer,
        /// A header that was read already.
        pending: Option<FrameHeader>,
        /// Bytes left in the current data frame.
        frame_left: usize,
    },
    /// This node's own storage, after it was cut off or became the one to read it.
    Storage(ReadStream),
}

impl Source {
    fn peer(answer: Answer) -> Self {
        Self::Peer {
            pending: Some(answer.header),
            answer,
            frame_left: 0,
        }
    }
}

/// What has come of a block and was not passed on, and the hash of all that has come.
#[derive(Default)]
struct Unverified {
    hasher: blake3::Hasher,
    /// Held back, oldest first.
    held: VecDeque<Bytes>,
    held_bytes: usize,
    /// Not yet hashed: packets are short, and one run of them is hashed at vector speed.
    run: Vec<u8>,
}

impl Unverified {
    /// Takes bytes in; those that may be passed on are then to be taken with [`Unverified::free`].
    fn push(&mut self, bytes: Bytes) {
        if bytes.len() >= HASH_RUN_BYTES && self.run.is_empty() {
            self.hasher.update(&bytes);
        } else {
            self.run.extend_from_slice(&bytes);
            if self.run.len() >= HASH_RUN_BYTES {
                self.hash();
            }
        }
        self.held_bytes += bytes.len();
        self.held.push_back(bytes);
    }

    fn hash(&mut self) {
        self.hasher.update(&self.run);
        self.run.clear();
    }

    /// The oldest bytes, if enough is held back behind them.
    fn free(&mut self) -> Option<Bytes> {
        let first = self.held.front()?.len();
        if self.held_bytes - first < HELD_BACK_BYTES {
            return None;
        }
        self.held_bytes -= first;
        self.held.pop_front()
    }

    /// The rest of the block, if `hash` is that of all of it.
    fn verify(&mut self, hash: ContentHash) -> Option<VecDeque<Bytes>> {
        self.hash();
        let right = *self.hasher.finalize().as_bytes() == hash.0;
        let held = std::mem::take(&mut self.held);
        self.reset();
        right.then_some(held)
    }

    fn reset(&mut self) {
        self.hasher.reset();
        self.held.clear();
        self.held_bytes = 0;
        self.run.clear();
    }
}

enum Broken {
    Stream(StreamError),
    Remote(Failure),
}

impl<E: Into<StreamError>> From<E> for Broken {
    fn from(error: E) -> Self {
        Self::Stream(error.into())
    }
}

async fn step(state: Option<Blocks>) -> Option<(Result<BlockPart, Failure>, Option<Blocks>)> {
    let mut blocks = state?;
    loop {
        if let Some(part) = blocks.ready.pop_front() {
            return Some((Ok(part), Some(blocks)));
        }
        let failure = match blocks.next().await {
            Ok(true) => continue,
            Ok(false) => return None,
            Err(Broken::Remote(failure)) => failure,
            Err(Broken::Stream(error)) => match blocks.resume(&error).await {
                Ok(()) => continue,
                Err(failure) => failure,
            },
        };
        return Some((Err(failure), None));
    }
}

impl Blocks {
    /// Moves on by one piece; `false` at the end of the last block.
    async fn next(&mut self) -> Result<bool, Broken> {
        let (answer, pending, frame_left) = match &mut self.source {
            Source::Storage(parts) => {
                return match parts.next().await {
                    Some(Ok(part)) => {
                        self.own(part);
                        Ok(true)
                    }
                    Some(Err(failure)) => Err(Broken::Remote(failure)),
                    None => Ok(false),
                };
            }
            Source::Peer {
                answer,
                pending,
                frame_left,
            } => (answer, pending, frame_left),
        };
        if *frame_left > 0 {
            let piece = answer.reader.piece(*frame_left).await?;
            let piece = piece.ok_or(StreamError::Truncated)?;
            *frame_left = frame_left.saturating_sub(piece.len());
            self.take(piece);
            return Ok(true);
        }
        if self.request.block_count == 0 {
            answer.reader.finish()?;
            return Ok(false);
        }
        let header = match pending.take() {
            Some(header) => header,
            None => answer
                .reader
                .header()
                .await?
                .ok_or(StreamError::Truncated)?,
        };
        match header.kind {
            FrameKind::Data => {
                let len = u64::from(header.len);
                match self.left.checked_sub(len) {
                    Some(left) if len > 0 => {
                        self.left = left;
                        *frame_left = usize::try_from(len).unwrap_or(usize::MAX);
                    }
                    _ => {
                        return Err(
                            WireError::Impossible("data that does not fit its block").into()
                        );
                    }
                }
            }
            FrameKind::End => {
                let body = answer.reader.body(header).await?;
                let hash = <[u8; 32]>::try_from(&body[..])
                    .map_err(|_other_length| WireError::Malformed { what: "hash" })?;
                self.end(ContentHash(hash))?;
            }
            FrameKind::Restart if self.restarts < RESTARTS_MAX => {
                self.restarts += 1;
                self.restart();
            }
            FrameKind::Failure => {
                let body = answer.reader.body(header).await?;
                return Err(Broken::Remote(trimmed(message::decode("failure", &body)?)));
            }
            got => return Err(unexpected(got, "data or end").into()),
        }
        Ok(true)
    }

    fn take(&mut self, piece: Bytes) {
        self.unverified.push(piece);
        while let Some(bytes) = self.unverified.free() {
            self.pass_on(bytes);
        }
    }

    fn pass_on(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.passed_on = true;
            self.ready.push_back(BlockPart::Bytes(bytes));
        }
    }

    /// The trailer of the current block has come.
    fn end(&mut self, hash: ContentHash) -> Result<(), Broken> {
        if self.left > 0 {
            return Err(WireError::Impossible("a block that ends before its last byte").into());
        }
        match self.unverified.verify(hash) {
            Some(rest) => {
                for bytes in rest {
                    self.pass_on(bytes);
                }
                let meters = &self.upstream.inner.meters;
                meters.blocks_verified.increment();
                self.ready.push_back(BlockPart::End(hash));
                self.request.first_block += 1;
                self.request.block_count -= 1;
                self.begin_block();
                (self.wrong, self.restarts) = (0, 0);
                Ok(())
            }
            None => Err(WireError::WrongHash.into()),
        }
    }

    fn begin_block(&mut self) {
        self.left = ReadRequest::block_len(self.request.size, self.request.first_block);
        self.unverified.reset();
        self.passed_on = false;
    }

    /// What was passed on of the current block is void.
    fn restart(&mut self) {
        if self.passed_on {
            self.ready.push_back(BlockPart::Restart);
        }
        self.begin_block();
    }

    /// A part from this node's own storage.
    fn own(&mut self, part: BlockPart) {
        match part {
            BlockPart::Bytes(bytes) => self.pass_on(bytes),
            BlockPart::Restart => self.restart(),
            BlockPart::End(hash) => {
                self.ready.push_back(BlockPart::End(hash));
                self.request.first_block += 1;
                self.request.block_count = self.request.block_count.saturating_sub(1);
                self.begin_block();
            }
        }
    }

    /// Goes on with another answer after `error`, where that may help.
    async fn resume(&mut self, error: &StreamError) -> Result<(), Failure> {
        let upstream = self.upstream.clone();
        let Source::Peer { answer, .. } = &self.source else {
            return Err(super::impossible("the end of a stream that has none"));
        };
        let peer = answer.asking.peer();
        let meters = &upstream.inner.meters;
        match error {
            error if self.replays < REPLAYS_MAX && again(error, &mut self.resets) => {
                self.replays += 1;
                meters.replays.increment();
                let deadline = Instant::now() + upstream.inner.patience;
                let route = route(&self.request);
                upstream.moved(&route, peer, error, deadline).await;
                // What was passed on of the block was never verified, and the next source's hash says
                // nothing about it.
                self.restart();
            }
            StreamError::Wire(WireError::WrongHash) if self.wrong < WRONG_MAX => {
                self.wrong += 1;
                meters.wrong_blocks.increment();
                let (path, index) = (&self.request.path, self.request.first_block);
                tracing::warn!(peer = %peer.label, %path, index, "a block's hash is wrong; asking again");
                peer.lied();
                let deadline = Instant::now() + upstream.inner.patience;
                let route = route(&self.request);
                upstream.moved(&route, peer, error, deadline).await;
                self.restart();
            }
            error => return Err(upstream.inner.failure(peer, error)),
        }
        let question = Request::Read(self.request.clone());
        self.source = match upstream.ask_read(&question).await? {
            Asked::Storage(storage) => Source::Storage(storage.read(self.request.clone()).await?),
            Asked::Answer(answer) => Source::peer(answer),
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_passed_on_whole_before_it_is_verified() {
        let block = Bytes::from(vec![7; 1 << 20]);
        let mut unverified = Unverified::default();
        let mut passed_on = 0;
        for piece in block.chunks(1200) {
            unverified.push(Bytes::copy_from_slice(piece));
            while let Some(free) = unverified.free() {
                passed_on += free.len();
            }
        }
        assert!(passed_on <= block.len() - HELD_BACK_BYTES);
        assert!(
            passed_on > block.len() - HELD_BACK_BYTES - 1200,
            "{passed_on}"
        );
        let hash = ContentHash(blake3::hash(&block).into());
        let rest = unverified.verify(hash).unwrap();
        assert_eq!(
            passed_on + rest.iter().map(Bytes::len).sum::<usize>(),
            block.len()
        );
    }

    #[test]
    fn one_wrong_bit_is_caught() {
        let mut unverified = Unverified::default();
        unverified.push(Bytes::from_static(b"wrong"));
        assert!(
            unverified
                .verify(ContentHash(blake3::hash(b"right").into()))
                .is_none()
        );
    }
}
