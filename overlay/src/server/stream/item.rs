//! Answering readers of items.

use super::{Answer, Asker, encode};
use crate::model::{BlockPart, Failure, FailureKind, ItemAnswer, ItemRequest};
use crate::transport::stream::StreamError;
use crate::wire::{FrameHeader, FrameKind, Head, message};
use bytes::Bytes;
use std::sync::Arc;

impl Answer<'_> {
    /// Answers a reader when there is room for the bytes: none are asked for before.
    pub(super) async fn item(
        &mut self,
        from: &Asker,
        request: ItemRequest,
    ) -> Result<(), StreamError> {
        let Asker::Reader(_, own) = from else {
            let detail = "who asks for items is a reader";
            let failure = Failure::new(FailureKind::PermissionDenied, detail);
            return self.failure(&failure).await;
        };
        let service = Arc::clone(&self.shared.service);
        let (path, len) = (request.path.clone(), request.len);
        let here = service.item_is_here(&request);
        let _room = self.shared.readers.room(own, len, here).await;
        let answer = service.item(request).await;
        let meters = &self.shared.meters;
        meters.items_answered.increment();
        let sent = match answer {
            Ok(ItemAnswer::Bytes { bytes, .. }) if u64::try_from(bytes.len()) != Ok(len) => {
                let got = bytes.len();
                let detail = format!("{path}: {got} bytes where {len} are due");
                return self.failure(&Failure::new(FailureKind::Io, detail)).await;
            }
            Ok(ItemAnswer::Bytes {
                bytes,
                hash,
                cached,
                charged,
                admitted,
            }) => {
                let head = Head::Item {
                    cached,
                    charged,
                    admitted,
                };
                let head = message::encode("head", &head)?;
                let header = FrameHeader::new(FrameKind::Head, head.len())?.encode();
                let mut frames = vec![Bytes::copy_from_slice(&header), head];
                let parts = vec![BlockPart::Bytes(bytes), BlockPart::End(hash)];
                frames.append(&mut encode(parts)?);
                self.writer.chunks(&mut frames).await?
            }
            Ok(ItemAnswer::Unpaid { cost }) => {
                let head = Head::Unpaid { cost };
                self.writer.message(FrameKind::Head, &head).await?
            }
            Err(failure) => return self.failure(&failure).await,
        };
        meters.item_bytes_sent.add(sent);
        Ok(())
    }
}
