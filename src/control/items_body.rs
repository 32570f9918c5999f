//! The body of an answer with items, in frames.

use super::turns::Turn;
use bytes::{BufMut, Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// The length that stands for an item that is not given.
const ABSENT: u32 = u32::MAX;
/// Bytes of a frame. hyper buffers one at a time, so this much of an answer is in memory after its turn has ended.
const FRAME_BYTES: usize = 64 << 10;
/// How long a client may take to read an answer, because other clients wait for its turn: 64 MiB at 1 MiB/s, where
/// a local socket carries a thousand times that.
const READ_TIME_MAX: Duration = Duration::from_secs(60);

/// The client reads too slowly. Its connection is closed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the client has not read its answer within {} s", READ_TIME_MAX.as_secs())]
pub(super) struct SlowReader;

/// Items, each with its length in front (u32, little-endian), or [`ABSENT`]. Items are copied frame by frame, and
/// released when they have been copied. The turn ends with the body: when all of it is written, except perhaps the
/// last frame, or when the connection ends.
#[derive(Debug)]
pub(super) struct ItemsBody {
    items: std::vec::IntoIter<Option<Bytes>>,
    /// The rest of the item that is being sent.
    item: Bytes,
    bytes_left: u64,
    until: Instant,
    _turn: Turn,
}

impl ItemsBody {
    /// Must be called within a runtime.
    pub(super) fn new(items: Vec<Option<Bytes>>, turn: Turn) -> Self {
        let bytes = items.iter().map(|item| {
            let bytes = item.as_ref().map_or(0, |item| item.len() as u64);
            bytes + size_of::<u32>() as u64
        });
        Self {
            bytes_left: bytes.sum(),
            items: items.into_iter(),
            item: Bytes::new(),
            until: Instant::now() + READ_TIME_MAX,
            _turn: turn,
        }
    }

    /// Returns the next frame; an empty one at the end.
    fn frame(&mut self) -> Bytes {
        let bytes = self.bytes_left.min(FRAME_BYTES as u64);
        let mut frame = BytesMut::with_capacity(crate::num::to_usize(bytes));
        loop {
            let room = FRAME_BYTES - frame.len();
            let part = self.item.split_to(room.min(self.item.len()));
            frame.put(part);
            if !self.item.is_empty() || FRAME_BYTES - frame.len() < size_of::<u32>() {
                break;
            }
            let Some(next) = self.items.next() else { break };
            // An item has at most 4 MiB.
            let len = next.as_ref().and_then(|item| item.len().try_into().ok());
            frame.put_u32_le(len.unwrap_or(ABSENT));
            self.item = next.unwrap_or_default();
        }
        self.bytes_left -= frame.len() as u64;
        frame.freeze()
    }
}

impl Body for ItemsBody {
    type Data = Bytes;
    type Error = SlowReader;

    /// Is called when the client has taken the frames before. If the client takes nothing, the connection ends.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, SlowReader>>> {
        if self.is_end_stream() {
            return Poll::Ready(None);
        }
        if Instant::now() > self.until {
            return Poll::Ready(Some(Err(SlowReader)));
        }
        Poll::Ready(Some(Ok(Frame::data(self.frame()))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes_left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes_left)
    }
}

#[cfg(test)]
mod tests {
    use super::super::turns::Turns;
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn frames_are_the_items_with_their_lengths() {
        let turns = Turns::default();
        let item = |len: usize| Some(Bytes::from(vec![7; len]));
        // At, below and above the end of a frame, also with a length that would be cut.
        for lens in [
            vec![],
            vec![0],
            vec![FRAME_BYTES - 4],
            vec![FRAME_BYTES - 5, 3, FRAME_BYTES],
            vec![FRAME_BYTES - 3, 0, 0, 1],
            vec![3 * FRAME_BYTES + 1, 0],
        ] {
            let mut items: Vec<Option<Bytes>> = lens.iter().map(|len| item(*len)).collect();
            items.push(None);
            let mut due = Vec::new();
            for item in &items {
                let len = item
                    .as_ref()
                    .map_or(ABSENT, |item| item.len().try_into().unwrap());
                due.extend_from_slice(&len.to_le_bytes());
                due.extend_from_slice(item.as_deref().unwrap_or_default());
            }
            let mut body = ItemsBody::new(items, turns.wait(None).await.unwrap());
            assert_eq!(body.size_hint().exact(), Some(due.len() as u64));
            let mut found = Vec::new();
            while let Some(frame) = BodyExt::frame(&mut body).await {
                let frame = frame.unwrap().into_data().unwrap();
                assert!((1..=FRAME_BYTES).contains(&frame.len()), "{lens:?}");
                found.extend_from_slice(&frame);
            }
            assert_eq!(found, due, "{lens:?}");
        }
        assert_eq!(turns.in_use(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_loses_its_turn() {
        let turns = Turns::default();
        let items = vec![Some(Bytes::from(vec![7; 2 * FRAME_BYTES]))];
        let mut body = ItemsBody::new(items, turns.wait(None).await.unwrap());
        assert!(BodyExt::frame(&mut body).await.unwrap().is_ok());
        tokio::time::advance(READ_TIME_MAX + Duration::from_secs(1)).await;
        assert!(BodyExt::frame(&mut body).await.unwrap().is_err());
    }
}
