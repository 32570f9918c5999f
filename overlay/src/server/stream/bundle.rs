//! Answers to bundle requests: files that are ready together share a write.
//!
//! Files are taken from the service only as fast as the peer reads them. One write's worth of files is in
//! memory at a time.

use super::Answer;
use crate::exchange::AnswerError;
use crate::model::{BundleItem, BundleStream, Failure};
use crate::wire::bundle::{ITEM_HEAD_BYTES, put_head};
use crate::wire::{FrameHeader, FrameKind, WireError};
use bytes::{Bytes, BytesMut};
use futures_util::stream::Fuse;
use futures_util::{FutureExt, StreamExt};

/// Bytes of files that share one frame, if they are ready together. With one more file the frame stays within
/// its limit.
const BATCH_BYTES: usize = 256 << 10;

impl Answer<'_> {
    pub(super) async fn bundle(&mut self, items: BundleStream) -> Result<(), AnswerError> {
        let mut items = items.fuse();
        loop {
            let Batch { files, failure } = gather(&mut items).await;
            if files.is_empty() && failure.is_none() {
                return self.frame(FrameKind::Done, Bytes::new()).await;
            }
            if !files.is_empty() {
                self.chunks(encode(files)?).await?;
            }
            if let Some(failure) = failure {
                return Err(failure.into());
            }
        }
    }
}

/// Files that were ready together, and the failure after them, if one came. Empty at the end of the stream.
#[derive(Default)]
struct Batch {
    files: Vec<BundleItem>,
    failure: Option<Failure>,
}

/// Waits for one file, and takes those that are ready after it.
async fn gather(items: &mut Fuse<BundleStream>) -> Batch {
    let mut batch = Batch::default();
    let mut bytes = 0;
    let mut next = Some(items.next().await);
    // `next` is `None` when a further file is not ready.
    while let Some(item) = next {
        match item {
            Some(Ok(item)) => {
                bytes += item.bytes.len();
                batch.files.push(item);
            }
            Some(Err(failure)) => {
                batch.failure = Some(failure);
                break;
            }
            None => break,
        }
        if bytes >= BATCH_BYTES {
            break;
        }
        next = items.next().now_or_never();
    }
    batch
}

/// Encodes whole files as one frame, without copying their bytes.
fn encode(files: Vec<BundleItem>) -> Result<Vec<Bytes>, WireError> {
    let len = files
        .iter()
        .map(|file| ITEM_HEAD_BYTES + file.bytes.len())
        .sum();
    let header = FrameHeader::new(FrameKind::Bundle, len)?.encode();
    let mut heads = BytesMut::with_capacity(header.len() + files.len() * ITEM_HEAD_BYTES);
    heads.extend_from_slice(&header);
    let mut chunks = Vec::with_capacity(2 * files.len());
    for file in files {
        put_head(&mut heads, file.index, &file.hash);
        chunks.push(heads.split().freeze());
        chunks.push(file.bytes);
    }
    Ok(chunks)
}
