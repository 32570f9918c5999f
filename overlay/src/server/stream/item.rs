//! Answers to readers of items.

use super::{Answer, Requester, encode};
use crate::exchange::AnswerError;
use crate::model::{BlockPart, Failure, FailureKind, ItemAnswer, ItemRequest};
use crate::wire::{FrameHeader, FrameKind, Head, message};

impl Answer<'_> {
    /// Waits for room for the item's bytes, and only then requests them from the service.
    pub(super) async fn item(&mut self, request: ItemRequest) -> Result<(), AnswerError> {
        let Requester::Reader(_, own_room) = self.requester else {
            let detail = "who asks for items is a reader";
            return Err(Failure::new(FailureKind::PermissionDenied, detail).into());
        };
        let (service, counters) = (&self.shared.service, self.shared.counters());
        let (path, len) = (request.path.clone(), request.len);
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
                let head = message::encode("head", &head)?;
                let mut frames = vec![FrameHeader::bytes(FrameKind::Head, head.len())?, head];
                frames.extend(encode(vec![BlockPart::Bytes(bytes), BlockPart::End(hash)])?);
                self.writer.chunks(&mut frames).await?
            }
            ItemAnswer::Unpaid { cost } => {
                let head = Head::Unpaid { cost };
                self.writer.message(FrameKind::Head, &head).await?
            }
        };
        counters.item_bytes_sent.add(sent);
        Ok(())
    }
}
