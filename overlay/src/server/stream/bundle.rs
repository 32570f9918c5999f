//! Answering a bundle: files that are ready together share a write.
//!
//! Files are taken from the service only as fast as the peer takes them; one write's worth of them is
//! in memory at a time.

use super::Answer;
use crate::model::{BundleItem, BundleStream, Failure};
use crate::transport::stream::StreamError;
use crate::wire::bundle::{ITEM_HEAD_BYTES, put_head};
use crate::wire::{FrameHeader, FrameKind, WireError};
use bytes::{Bytes, BytesMut};
use futures_util::stream::Fuse;
use futures_util::{FutureExt, StreamExt};

/// Bytes of files that are gathered into one frame, if they are ready at once. With one file more it
/// stays below the frame's bound.
const BATCH_BYTES: usize = 256 << 10;

impl Answer<'_> {
    pub(super) async fn bundle(
        &mut self,
        items: Result<BundleStream, Failure>,
    ) -> Result<(), StreamError> {
        let mut items = match items {
            Ok(items) => items.fuse(),
            Err(failure) => return self.failure(&failure).await,
        };
        loop {
            let (batch, failure) = gather(&mut items).await;
            if batch.is_empty() && failure.is_none() {
                return self.frame(FrameKind::Done, Bytes::new()).await;
            }
            if !batch.is_empty() {
                let sent = self.writer.chunks(&mut encode(batch)?).await?;
                self.count(sent);
            }
            if let Some(failure) = failure {
                return self.failure(&failure).await;
            }
        }
    }
}

/// Waits for one file and takes those that are ready behind it. Nothing at all: the end.
async fn gather(items: &mut Fuse<BundleStream>) -> (Vec<BundleItem>, Option<Failure>) {
    let mut batch = Vec::new();
    let mut bytes = 0;
    let mut next = items.next().await;
    loop {
        match next {
            Some(Ok(item)) => {
                bytes += item.bytes.len();
                batch.push(item);
            }
            Some(Err(failure)) => return (batch, Some(failure)),
            None => return (batch, None),
        }
        if bytes >= BATCH_BYTES {
            return (batch, None);
        }
        match items.next().now_or_never() {
            Some(ready) => next = ready,
            None => return (batch, None),
        }
    }
}

/// One frame of whole files, their bytes not copied.
fn encode(batch: Vec<BundleItem>) -> Result<Vec<Bytes>, WireError> {
    let len = batch
        .iter()
        .map(|item| ITEM_HEAD_BYTES + item.bytes.len())
        .sum();
    let header = FrameHeader::new(FrameKind::Bundle, len)?.encode();
    let mut heads = BytesMut::with_capacity(header.len() + batch.len() * ITEM_HEAD_BYTES);
    heads.extend_from_slice(&header);
    let mut chunks = Vec::with_capacity(2 * batch.len());
    for item in batch {
        put_head(&mut heads, item.index, &item.hash);
        chunks.push(heads.split().freeze());
        chunks.push(item.bytes);
    }
    Ok(chunks)
}
