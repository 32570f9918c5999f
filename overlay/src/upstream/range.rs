//! Ranges from an ancestor: short, so each is taken whole, checked against its hash, and only then
//! given out.
//!
//! A wrong one is counted against whoever sent it and asked for again, elsewhere if there is anybody
//! else; so is one whose connection is lost.

use super::{ANOTHER, Asked, REPLAYS_MAX, Route, Upstream, again, impossible, trimmed, unexpected};
use crate::files::{RangeAnswer, RangeRequest, STRIPE_BLOCKS};
use crate::item::{ContentHash, Failure};
use crate::transport::stream::{FrameReader, StreamError};
use crate::wire::{FrameHeader, FrameKind, Request, WireError, message};
use bytes::{Bytes, BytesMut};
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// How often one range is asked for again after it arrived wrong.
const WRONG_MAX: u32 = 4;

/// The bytes of `request`, verified.
pub(super) async fn read(
    upstream: Upstream,
    request: RangeRequest,
) -> Result<RangeAnswer, Failure> {
    let question = Request::ReadRange(request);
    let Request::ReadRange(request) = &question else {
        return Err(impossible(ANOTHER));
    };
    let route = Route::Stripe(&request.path, request.block() / STRIPE_BLOCKS);
    let inner = &upstream.inner;
    let (mut replays, mut resets, mut wrong) = (0, 0, 0);
    loop {
        let mut answer = match upstream.ask(&route, &question).await? {
            Asked::Storage(storage) => return storage.read_range(request.clone()).await,
            Asked::Answer(answer) => answer,
        };
        let taken = take(&mut answer.reader, answer.header, request.len).await;
        let error = match taken {
            Ok(Ok(answer)) => {
                inner.meters.blocks_verified.fetch_add(1, Ordering::Relaxed);
                return Ok(answer);
            }
            Ok(Err(failure)) => return Err(failure),
            Err(error) => error,
        };
        let peer = answer.asking.peer();
        match &error {
            StreamError::Wire(WireError::WrongHash) if wrong < WRONG_MAX => {
                wrong += 1;
                inner.meters.wrong_blocks.fetch_add(1, Ordering::Relaxed);
                let (path, offset) = (&request.path, request.offset);
                tracing::warn!(peer = %peer.label, %path, offset, "a range's hash is wrong; asking again");
                peer.lied();
            }
            error if replays < REPLAYS_MAX && again(error, &mut resets) => {
                replays += 1;
                inner.meters.replays.fetch_add(1, Ordering::Relaxed);
            }
            error => return Err(inner.failure(peer, error)),
        }
        let deadline = Instant::now() + inner.patience;
        upstream.moved(&route, peer, &error, deadline).await;
    }
}

/// An answer of `due` bytes that begins with `header`, verified, or the failure in its place. Memory is
/// taken once the first of them have come, for as many as were asked for.
pub(crate) async fn take(
    reader: &mut FrameReader,
    mut header: FrameHeader,
    due: u64,
) -> Result<Result<RangeAnswer, Failure>, StreamError> {
    let due = usize::try_from(due).unwrap_or(usize::MAX);
    let mut whole = Bytes::new();
    let mut joined = BytesMut::new();
    loop {
        let got = whole.len() + joined.len();
        match header.kind {
            FrameKind::Data => {
                let mut more = usize::try_from(header.len).unwrap_or(usize::MAX);
                if more == 0 || more > due - got {
                    return Err(WireError::Impossible("data that does not fit its range").into());
                }
                while more > 0 {
                    let piece = reader.piece(more).await?.ok_or(StreamError::Truncated)?;
                    more = more.saturating_sub(piece.len());
                    if piece.len() == due {
                        whole = piece;
                    } else {
                        if joined.is_empty() {
                            joined.reserve(due);
                        }
                        joined.extend_from_slice(&piece);
                    }
                }
            }
            FrameKind::End if got == due => {
                let body = reader.body(header).await?;
                let hash = <[u8; 32]>::try_from(&body[..])
                    .map_err(|_other_length| WireError::Malformed { what: "hash" })?;
                if whole.is_empty() {
                    whole = joined.freeze();
                }
                if *blake3::hash(&whole).as_bytes() != hash {
                    return Err(WireError::WrongHash.into());
                }
                reader.finish()?;
                let (bytes, hash) = (whole, ContentHash(hash));
                return Ok(Ok(RangeAnswer { bytes, hash }));
            }
            FrameKind::End => {
                return Err(WireError::Impossible("a range that ends before its last byte").into());
            }
            FrameKind::Failure => {
                let body = reader.body(header).await?;
                return Ok(Err(trimmed(message::decode("failure", &body)?)));
            }
            got => return Err(unexpected(got, "data or end")),
        }
        header = reader.header().await?.ok_or(StreamError::Truncated)?;
    }
}
