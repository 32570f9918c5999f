//! Blocks from an ancestor: released as they arrive, never gathered, and verified.
//!
//! The last [`HELD_BACK_BYTES`] of a block are held back until the hash of the whole block has been compared
//! with its trailer, which was made where the origin was read. So a complete block with a wrong hash convicts
//! its sender, and no honest node is blamed for forwarding one. The block is then requested again, from
//! another ancestor if there is one. After a lost connection the read continues on another one, with the
//! block that was in progress. In both cases [`BlockPart::Restart`] takes back the released part of the
//! block: bytes of two senders never share one hash.

use super::{RemoteAnswer, Response, Retries, Route, Upstream};
use crate::exchange::{AnswerError, read_failure, read_hash};
use crate::model::{BlockPart, ContentHash, Failure, ReadRequest, ReadStream, STRIPE_BLOCKS};
use crate::wire::{FrameKind, Request, WireError, ensure};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use std::collections::VecDeque;

/// Bytes of a block that are held back until its hash has been verified.
const HELD_BACK_BYTES: usize = 64 << 10;
/// BLAKE3 is several times faster over long runs than packet by packet.
const HASH_RUN_BYTES: usize = 128 << 10;
/// Restarts of one block that its sender may announce.
const RESTARTS_MAX: u32 = 64;

/// Opens a stream over the blocks of `request`. Waits for the first frame, so that a refusal is returned at
/// once.
pub(super) async fn open(upstream: Upstream, request: ReadRequest) -> Result<ReadStream, Failure> {
    let mut answer = match send(&upstream, &request).await? {
        Response::Storage(storage) => return storage.read(request).await,
        Response::Remote(answer) => answer,
    };
    answer.refused().await?;
    let blocks = Blocks {
        upstream,
        source: Source::Remote(answer),
        assembly: Assembly::new(request),
        retries: Retries::default(),
    };
    let parts = stream::try_unfold(blocks, async |mut blocks| {
        Ok(blocks.next_part().await?.map(|part| (part, blocks)))
    });
    Ok(parts.boxed())
}

/// Sends `request` to the root of the stripe in which it begins.
async fn send(
    upstream: &Upstream,
    request: &ReadRequest,
) -> Result<Response<RemoteAnswer>, Failure> {
    let message = Request::Read(request.clone());
    upstream.request(route(request), &message).await
}

fn route(request: &ReadRequest) -> Route<'_> {
    Route::Stripe(&request.path, request.first_block / STRIPE_BLOCKS)
}

/// One read in progress.
struct Blocks {
    upstream: Upstream,
    source: Source,
    assembly: Assembly,
    retries: Retries,
}

enum Source {
    Remote(RemoteAnswer),
    /// This node's own storage, after the node was cut off from all roots.
    Storage(ReadStream),
}

impl Blocks {
    /// Returns the next part, from another source if need be; `None` after the last.
    async fn next_part(&mut self) -> Result<Option<BlockPart>, Failure> {
        loop {
            if let Some(part) = self.assembly.ready.pop_front() {
                return Ok(Some(part));
            }
            let answer = match &mut self.source {
                Source::Remote(answer) => answer,
                // Needs no verification, and is not replaced by another source.
                Source::Storage(parts) => return parts.next().await.transpose(),
            };
            match self.assembly.receive(answer).await {
                Ok(Received::Bytes) => {}
                Ok(Received::Block) => {
                    self.upstream.inner.counters.blocks_verified.increment();
                    self.retries.corrupt = 0;
                }
                Ok(Received::End) => return Ok(None),
                Err(error) => {
                    let route = route(&self.assembly.request);
                    self.upstream
                        .prepare_retry(route, answer, error, &mut self.retries)
                        .await?;
                    self.request_rest().await?;
                }
            }
        }
    }

    /// Requests the current block and those after it again.
    async fn request_rest(&mut self) -> Result<(), Failure> {
        // The released part of the block is unverified, and the next source's hash would not cover it.
        self.assembly.restart();
        let request = &self.assembly.request;
        self.source = match send(&self.upstream, request).await? {
            Response::Storage(storage) => Source::Storage(storage.read(request.clone()).await?),
            Response::Remote(answer) => Source::Remote(answer),
        };
        Ok(())
    }
}

/// The progress of one call of [`Assembly::receive`].
enum Received {
    /// A part of a block, or a restart of it.
    Bytes,
    /// The end of a block, which is verified.
    Block,
    /// The end of the last block.
    End,
}

/// Assembles frames into verified blocks.
struct Assembly {
    /// What is left to read; `first_block` is the current block.
    request: ReadRequest,
    /// Bytes of the current block that no frame has announced yet.
    unannounced: u64,
    /// A part of the current block was released.
    released: bool,
    unverified: Unverified,
    /// Released parts.
    ready: VecDeque<BlockPart>,
    /// Restarts of the current block that its sender has announced.
    restarts: u32,
}

impl Assembly {
    fn new(request: ReadRequest) -> Self {
        Self {
            unannounced: ReadRequest::block_len(request.size, request.first_block),
            request,
            released: false,
            unverified: Unverified::default(),
            ready: VecDeque::new(),
            restarts: 0,
        }
    }

    /// Reads the next piece of `answer`.
    async fn receive(&mut self, answer: &mut RemoteAnswer) -> Result<Received, AnswerError> {
        let reader = &mut answer.reader;
        if reader.body_left() > 0 {
            self.unverified.push(reader.body_piece().await?);
            while let Some(bytes) = self.unverified.release() {
                self.release(bytes);
            }
            return Ok(Received::Bytes);
        }
        if self.request.block_count == 0 {
            reader.finish()?;
            return Ok(Received::End);
        }
        let header = reader.header().await?;
        match header.kind {
            FrameKind::Data => {
                let left = self.unannounced.checked_sub(header.len.into());
                let left = left.filter(|_| header.len > 0);
                let wrong = WireError::Impossible("data that does not fit its block");
                self.unannounced = left.ok_or(wrong)?;
                Ok(Received::Bytes)
            }
            FrameKind::End => {
                let hash = read_hash(reader).await?;
                self.verify(hash)?;
                Ok(Received::Block)
            }
            FrameKind::Restart if self.restarts < RESTARTS_MAX => {
                self.restarts += 1;
                self.restart();
                Ok(Received::Bytes)
            }
            got => Err(read_failure(reader, got, "data or end").await),
        }
    }

    fn release(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.released = true;
            self.ready.push_back(BlockPart::Bytes(bytes));
        }
    }

    /// Ends the current block if `hash` is its hash.
    fn verify(&mut self, hash: ContentHash) -> Result<(), WireError> {
        let complete = self.unannounced == 0;
        ensure(complete, "a block that ends before its last byte")?;
        let rest = self.unverified.verify(hash).ok_or(WireError::WrongHash)?;
        for bytes in rest {
            self.release(bytes);
        }
        self.ready.push_back(BlockPart::End(hash));
        self.request.first_block += 1;
        self.request.block_count = self.request.block_count.saturating_sub(1);
        self.restarts = 0;
        self.begin_block();
        Ok(())
    }

    fn begin_block(&mut self) {
        self.unannounced = ReadRequest::block_len(self.request.size, self.request.first_block);
        self.unverified.reset();
        self.released = false;
    }

    /// Takes back the released part of the current block.
    fn restart(&mut self) {
        if self.released {
            self.ready.push_back(BlockPart::Restart);
        }
        self.begin_block();
    }
}

/// The bytes of a block that were received and not released yet, and the hash of all received bytes.
#[derive(Default)]
struct Unverified {
    hasher: blake3::Hasher,
    /// Bytes held back, oldest first.
    held: VecDeque<Bytes>,
    held_bytes: usize,
    /// Bytes not hashed yet. Packets are short; a long run of them is hashed at vector speed.
    run: Vec<u8>,
}

impl Unverified {
    /// Adds received bytes.
    fn push(&mut self, bytes: Bytes) {
        if bytes.len() >= HASH_RUN_BYTES && self.run.is_empty() {
            self.hasher.update(&bytes);
        } else {
            self.run.extend_from_slice(&bytes);
            if self.run.len() >= HASH_RUN_BYTES {
                self.hash_run();
            }
        }
        self.held_bytes += bytes.len();
        self.held.push_back(bytes);
    }

    fn hash_run(&mut self) {
        self.hasher.update(&self.run);
        self.run.clear();
    }

    /// Returns the oldest bytes, if enough bytes remain held back.
    fn release(&mut self) -> Option<Bytes> {
        let first = self.held.front()?.len();
        if self.held_bytes - first < HELD_BACK_BYTES {
            return None;
        }
        self.held_bytes -= first;
        self.held.pop_front()
    }

    /// Returns the rest of the block if `hash` is the hash of the whole block.
    fn verify(&mut self, hash: ContentHash) -> Option<VecDeque<Bytes>> {
        self.hash_run();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_never_released_whole_before_it_is_verified() {
        let block = Bytes::from(vec![7; 1 << 20]);
        let mut unverified = Unverified::default();
        let mut released = 0;
        for piece in block.chunks(1200) {
            unverified.push(Bytes::copy_from_slice(piece));
            while let Some(bytes) = unverified.release() {
                released += bytes.len();
            }
        }
        assert!(released <= block.len() - HELD_BACK_BYTES);
        assert!(
            released > block.len() - HELD_BACK_BYTES - 1200,
            "{released}"
        );
        let hash = ContentHash(blake3::hash(&block).into());
        let rest = unverified.verify(hash).unwrap();
        assert_eq!(
            released + rest.iter().map(Bytes::len).sum::<usize>(),
            block.len()
        );
    }

    #[test]
    fn wrong_bytes_fail_verification() {
        let mut unverified = Unverified::default();
        unverified.push(Bytes::from_static(b"wrong"));
        assert!(
            unverified
                .verify(ContentHash(blake3::hash(b"right").into()))
                .is_none()
        );
    }
}
