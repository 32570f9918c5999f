//! Ranges from an ancestor: short, so each is taken whole, checked against its hash, and only then
//! given out.
//!
//! A wrong one is counted against whoever sent it and asked for again, elsewhere if there is anybody
//! else; so is one whose connection is lost.

use super::{ANOTHER, Asked, REPLAYS_MAX, Route, Upstream, again, impossible};
use crate::exchange::take;
use crate::model::{Failure, RangeAnswer, RangeRequest, STRIPE_BLOCKS};
use crate::transport::stream::StreamError;
use crate::wire::{Request, WireError};
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
                inner.meters.blocks_verified.increment();
                return Ok(answer);
            }
            Ok(Err(failure)) => return Err(failure),
            Err(error) => error,
        };
        let peer = answer.asking.peer();
        match &error {
            StreamError::Wire(WireError::WrongHash) if wrong < WRONG_MAX => {
                wrong += 1;
                inner.meters.wrong_blocks.increment();
                let (path, offset) = (&request.path, request.offset);
                tracing::warn!(peer = %peer.label, %path, offset, "a range's hash is wrong; asking again");
                peer.lied();
            }
            error if replays < REPLAYS_MAX && again(error, &mut resets) => {
                replays += 1;
                inner.meters.replays.increment();
            }
            error => return Err(inner.failure(peer, error)),
        }
        let deadline = Instant::now() + inner.patience;
        upstream.moved(&route, peer, &error, deadline).await;
    }
}
