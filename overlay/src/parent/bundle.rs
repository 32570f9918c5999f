//! Bundles from the parent: each file is checked against its hash when it is complete.

use super::{Parent, trimmed, unexpected};
use crate::files::{BundleItem, BundleRequest, BundleStream};
use crate::item::{Failure, FailureKind};
use crate::transport::stream::{FrameReader, StreamError};
use crate::wire::{BundleDecoder, FrameHeader, FrameKind, Request, message};
use bytes::Bytes;
use futures_util::{StreamExt, stream};

/// Opens the stream: waits for the first frame, so that a refusal is the outer failure.
pub(super) async fn open(parent: Parent, request: BundleRequest) -> Result<BundleStream, Failure> {
    let decoder = BundleDecoder::new(&request);
    let (mut reader, header) = parent.ask(&Request::Bundle(request)).await?;
    if header.kind == FrameKind::Failure {
        return Err(parent.inner.remote_failure(&mut reader, header).await);
    }
    let files = Files {
        reader,
        parent,
        decoder,
        pending: Some(header),
        frame_left: 0,
        piece: Bytes::new(),
    };
    Ok(stream::unfold(Some(files), step).boxed())
}

/// One answer in progress.
struct Files {
    reader: FrameReader,
    parent: Parent,
    decoder: BundleDecoder,
    /// A header that was read already.
    pending: Option<FrameHeader>,
    /// Bytes left in the current frame, behind `piece`.
    frame_left: usize,
    piece: Bytes,
}

enum Broken {
    Stream(StreamError),
    Said(Failure),
}

impl<E: Into<StreamError>> From<E> for Broken {
    fn from(error: E) -> Self {
        Self::Stream(error.into())
    }
}

async fn step(state: Option<Files>) -> Option<(Result<BundleItem, Failure>, Option<Files>)> {
    let mut files = state?;
    match files.next().await {
        Ok(Some(item)) => Some((Ok(item), Some(files))),
        Ok(None) => None,
        Err(Broken::Said(failure)) => Some((Err(failure), None)),
        Err(Broken::Stream(error)) => Some((Err(files.parent.inner.failure(&error)), None)),
    }
}

impl Files {
    async fn next(&mut self) -> Result<Option<BundleItem>, Broken> {
        loop {
            while !self.piece.is_empty() {
                if let Some(item) = self.decoder.take(&mut self.piece)? {
                    return verified(item).map(Some);
                }
            }
            if self.frame_left > 0 {
                let piece = self.reader.piece(self.frame_left).await?;
                self.piece = piece.ok_or(StreamError::Truncated)?;
                self.frame_left -= self.piece.len();
                continue;
            }
            let header = match self.pending.take() {
                Some(header) => header,
                None => self.reader.header().await?.ok_or(StreamError::Truncated)?,
            };
            match header.kind {
                FrameKind::Bundle => {
                    self.frame_left = usize::try_from(header.len).unwrap_or(usize::MAX);
                }
                FrameKind::Done if self.decoder.is_between_files() => {
                    self.reader.finish()?;
                    return Ok(None);
                }
                FrameKind::Done => return Err(StreamError::Truncated.into()),
                FrameKind::Failure => {
                    let body = self.reader.body(header).await?;
                    return Err(Broken::Said(trimmed(message::decode("failure", &body)?)));
                }
                got => return Err(unexpected(got, "bundle or done").into()),
            }
        }
    }
}

fn verified(item: BundleItem) -> Result<BundleItem, Broken> {
    if *blake3::hash(&item.bytes).as_bytes() == item.hash.0 {
        return Ok(item);
    }
    let detail = "the bytes of a file in a bundle do not match its hash";
    Err(Broken::Said(Failure::new(FailureKind::Corrupt, detail)))
}
