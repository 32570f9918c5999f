//! Answers to readers of items.

use super::{Answer, Requester, encode};
use crate::exchange::AnswerError;
use crate::model::{
    BlockPart, ContentHash, Failure, FailureKind, HeldAnswer, HeldRequest, ItemAnswer, ItemRequest,
};
use crate::wire::{FrameHeader, FrameKind, Head, message};
use bytes::Bytes;

impl Answer<'_> {
    /// Waits for room for the item's bytes, and only then requests them from the service.
    pub(super) async fn item(&mut self, request: ItemRequest) -> Result<(), AnswerError> {
        let Requester::Reader(_, own_room) = self.requester else {
            let detail = "who asks for items is a reader";
            return Err(Failure::new(FailureKind::PermissionDenied, detail).into());
        };
        let (service, counters) = (&self.shared.service, self.shared.counters());
        let (path, len) = (request.path.clone(), request.wanted.len);
        let cached = service.item_is_here(&request);
        let _permit = self.shared.readers.acquire(own_room, len, cached).await;
        let answer = service.item(request).await;
        counters.items_answered.increment();
        let sent = match answer? {
            ItemAnswer::Bytes { bytes, .. } if u64::try_from(bytes.len()) != Ok(len) => {
                let got = bytes.len();
                let detail = format!("{path}: {got} bytes where {len} are due");
                return Err(Failure::new(FailureKind::Io, detail).into());
            }
            ItemAnswer::Bytes {
                bytes,
                hash,
                cached,
                charged,
                admitted,
            } => {
                let head = Head::Item {
                    cached,
                    charged,
                    admitted,
                };
                self.head_and_bytes(&head, bytes, hash).await?
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
                let hash = ContentHash(*blake3::hash(&bits).as_bytes());
                self.head_and_bytes(&head, bits, hash).await?
            }
            None => self.writer.message(FrameKind::Head, &head).await?,
        };
        self.shared.counters().item_bytes_sent.add(sent);
        Ok(())
    }

    /// Sends an answer that is complete already. Returns the number of bytes sent.
    async fn head_and_bytes(
        &mut self,
        head: &Head,
        bytes: Bytes,
        hash: ContentHash,
    ) -> Result<u64, AnswerError> {
        let head = message::encode("head", head)?;
        let mut frames = vec![FrameHeader::bytes(FrameKind::Head, head.len())?, head];
        frames.extend(encode(vec![BlockPart::Bytes(bytes), BlockPart::End(hash)])?);
        Ok(self.writer.chunks(&mut frames).await?)
    }
}
