//! Answers to readers of items.

use super::{Answer, Requester};
use crate::connected::{RoomFor, RoomForItems};
use crate::exchange::{AnswerError, encode_parts, expect_body, read_verified};
use crate::model::{
    BlockPart, ContentHash, Failure, FailureKind, HeldAnswer, HeldRequest, ITEM_BYTES_MAX,
    Insertion, ItemAnswer, ItemRequest, RangeAnswer,
};
use crate::wire::{FrameHeader, FrameKind, Head, STEERING_BYTES_MAX, message};
use bytes::Bytes;

impl Answer<'_> {
    /// Waits for room for the item's bytes, and only then requests them from the service.
    pub(super) async fn item(&mut self, request: ItemRequest) -> Result<(), AnswerError> {
        let room = room_of(self.requester)?;
        let (service, counters) = (&self.shared.service, self.shared.counters());
        let (path, len) = (request.path.clone(), request.wanted.len);
        let due: Vec<u64> = request.blocks().map(|block| block.len).collect();
        let purpose = match service.item_is_here(&request) {
            true => RoomFor::Cached,
            false => RoomFor::Uncached,
        };
        let _permit = self.shared.readers.acquire(room, purpose, len).await;
        let answer = service.item(request).await;
        counters.item_answered(room.1);
        let sent = match answer? {
            ItemAnswer::Bytes { blocks, .. } if !has_lengths(&blocks, &due) => {
                let got: usize = blocks.iter().map(|block| block.bytes.len()).sum();
                let detail = format!("{path}: {got} bytes where {len} are due, or other blocks");
                return Err(Failure::new(FailureKind::Io, detail).into());
            }
            ItemAnswer::Bytes {
                blocks,
                cached,
                charged,
                admitted,
            } => {
                let head = Head::Item {
                    cached,
                    charged,
                    admitted,
                };
                self.head_and_blocks(&head, blocks).await?
            }
            ItemAnswer::Unpaid { cost } => {
                let head = Head::Unpaid { cost };
                self.writer.message(FrameKind::Head, &head).await?
            }
        };
        counters.item_bytes_sent.add(sent);
        Ok(())
    }

    /// Tells a reader which items are held.
    pub(super) async fn held(&mut self, request: HeldRequest) -> Result<(), AnswerError> {
        let HeldAnswer { state, bits } = self.shared.service.held(request).await?;
        let len = bits.as_ref().map(Bytes::len);
        let bytes = len.map(|len| u32::try_from(len).unwrap_or(u32::MAX));
        let head = Head::Held { state, bytes };
        let sent = match bits {
            Some(bits) => {
                self.head_and_blocks(&head, vec![RangeAnswer::of(bits)])
                    .await?
            }
            None => self.writer.message(FrameKind::Head, &head).await?,
        };
        self.shared.counters().item_bytes_sent.add(sent);
        Ok(())
    }

    /// Gives an item to a reader that knows its hash.
    pub(super) async fn content(&mut self, hash: ContentHash) -> Result<(), AnswerError> {
        let room = room_of(self.requester)?;
        let (service, counters) = (&self.shared.service, self.shared.counters());
        // The length is known only to the service, which has the bytes.
        let _permit = (self.shared.readers)
            .acquire(room, RoomFor::Cached, ITEM_BYTES_MAX)
            .await;
        let found = service.content(hash).await?;
        counters.item_answered(room.1);
        let bytes = found.as_ref().map(|bytes| bytes.len() as u64);
        let head = Head::Content { bytes };
        let sent = match found {
            Some(bytes) => {
                let whole = RangeAnswer { bytes, hash };
                self.head_and_blocks(&head, vec![whole]).await?
            }
            None => self.writer.message(FrameKind::Head, &head).await?,
        };
        counters.item_bytes_sent.add(sent);
        Ok(())
    }

    /// Receives an item from a reader, with room for its bytes.
    pub(super) async fn insert(&mut self, hash: ContentHash, len: u64) -> Result<(), AnswerError> {
        let room = room_of(self.requester)?;
        let readers = &self.shared.readers;
        let _permit = readers.acquire(room, RoomFor::Uncached, len).await;
        let found = read_verified(self.reader, len).await?;
        let insertion = match found.hash == hash {
            true => self.shared.service.insert(hash, found.bytes).await?,
            false => Insertion::Refused,
        };
        let head = Head::Inserted(insertion);
        self.writer.message(FrameKind::Head, &head).await?;
        Ok(())
    }

    /// Has the service answer a message of another member.
    pub(super) async fn answer_message(&mut self) -> Result<(), AnswerError> {
        let room = room_of(self.requester)?;
        let most = STEERING_BYTES_MAX as u64;
        let readers = &self.shared.readers;
        let _permit = readers.acquire(room, RoomFor::Cached, most).await;
        let message = expect_body(self.reader, FrameKind::Steering, "steering").await?;
        let answer = self.shared.service.message(message).await?;
        self.answer_frame(answer).await
    }

    /// Sends an answer that is complete already. Returns the number of bytes sent.
    async fn head_and_blocks(
        &mut self,
        head: &Head,
        blocks: Vec<RangeAnswer>,
    ) -> Result<u64, AnswerError> {
        let head = message::encode("head", head)?;
        let mut frames = vec![FrameHeader::bytes(FrameKind::Head, head.len())?, head];
        let parts = blocks.into_iter().flat_map(|block| {
            let RangeAnswer { bytes, hash } = block;
            [BlockPart::Bytes(bytes), BlockPart::End(hash)]
        });
        frames.extend(encode_parts(parts.collect())?);
        Ok(self.writer.chunks(&mut frames).await?)
    }
}

fn has_lengths(blocks: &[RangeAnswer], due: &[u64]) -> bool {
    let lengths = blocks.iter().map(|block| block.bytes.len() as u64);
    lengths.eq(due.iter().copied())
}

/// Returns the room of a reader, and the lane that serves it.
fn room_of(requester: &Requester) -> Result<(&RoomForItems, usize), AnswerError> {
    match requester {
        Requester::Reader(_, own, lane) => Ok((own, *lane)),
        _ => {
            let detail = "only a reader may request items";
            Err(Failure::new(FailureKind::PermissionDenied, detail).into())
        }
    }
}
