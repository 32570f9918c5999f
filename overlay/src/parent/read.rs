//! Reading blocks from the parent: parts are passed on as they arrive, never gathered.

use super::{Parent, trimmed, unexpected};
use crate::files::{ReadRequest, ReadStream};
use crate::item::{BlockPart, ContentHash, Failure};
use crate::transport::stream::{FrameReader, StreamError};
use crate::wire::{FrameHeader, FrameKind, Request, WireError, message};
use futures_util::{StreamExt, stream};

/// Opens a stream over the blocks of `request`: waits for the first frame, so that a refusal is the
/// outer failure.
pub(super) async fn open(parent: Parent, request: ReadRequest) -> Result<ReadStream, Failure> {
    let question = Request::Read(request);
    let (mut reader, header) = parent.ask(&question).await?;
    let Request::Read(request) = question else {
        return Err(parent.inner.failure(&super::wrong_head()));
    };
    if header.kind == FrameKind::Failure {
        return Err(parent.inner.remote_failure(&mut reader, header).await);
    }
    let blocks = Blocks {
        block_left: ReadRequest::block_len(request.size, request.first_block),
        block: request.first_block,
        blocks_left: request.block_count,
        size: request.size,
        pending: Some(header),
        frame_left: 0,
        reader,
        parent,
    };
    Ok(stream::unfold(Some(blocks), step).boxed())
}

/// One answer in progress.
struct Blocks {
    reader: FrameReader,
    parent: Parent,
    /// A header that was read already.
    pending: Option<FrameHeader>,
    /// Bytes left in the current data frame.
    frame_left: usize,
    /// Bytes of the current block that no frame has announced yet.
    block_left: u64,
    /// Index of the current block.
    block: u64,
    /// Blocks left, the current one included.
    blocks_left: u64,
    /// Size of the file.
    size: u64,
}

enum Broken {
    Stream(StreamError),
    Remote(Failure),
}

impl<E: Into<StreamError>> From<E> for Broken {
    fn from(error: E) -> Self {
        Self::Stream(error.into())
    }
}

async fn step(state: Option<Blocks>) -> Option<(Result<BlockPart, Failure>, Option<Blocks>)> {
    let mut blocks = state?;
    match blocks.next().await {
        Ok(Some(part)) => Some((Ok(part), Some(blocks))),
        Ok(None) => None,
        Err(Broken::Remote(failure)) => Some((Err(failure), None)),
        Err(Broken::Stream(error)) => Some((Err(blocks.parent.inner.failure(&error)), None)),
    }
}

impl Blocks {
    async fn next(&mut self) -> Result<Option<BlockPart>, Broken> {
        loop {
            if self.frame_left > 0 {
                let piece = self.reader.piece(self.frame_left).await?;
                let piece = piece.ok_or(StreamError::Truncated)?;
                self.frame_left = self.frame_left.saturating_sub(piece.len());
                return Ok(Some(BlockPart::Bytes(piece)));
            }
            if self.blocks_left == 0 {
                self.reader.finish()?;
                return Ok(None);
            }
            let header = match self.pending.take() {
                Some(header) => header,
                None => self.reader.header().await?.ok_or(StreamError::Truncated)?,
            };
            match header.kind {
                FrameKind::Data => self.begin_data(header)?,
                FrameKind::End => return self.end(header).await.map(Some),
                FrameKind::Failure => {
                    let body = self.reader.body(header).await?;
                    return Err(Broken::Remote(trimmed(message::decode("failure", &body)?)));
                }
                got => return Err(unexpected(got, "data or end").into()),
            }
        }
    }

    fn begin_data(&mut self, header: FrameHeader) -> Result<(), WireError> {
        let len = u64::from(header.len);
        match self.block_left.checked_sub(len) {
            Some(left) if len > 0 => {
                self.block_left = left;
                self.frame_left = usize::try_from(len).unwrap_or(usize::MAX);
                Ok(())
            }
            _ => Err(WireError::Impossible("data that does not fit its block")),
        }
    }

    async fn end(&mut self, header: FrameHeader) -> Result<BlockPart, Broken> {
        if self.block_left > 0 {
            return Err(WireError::Impossible("a block that ends before its last byte").into());
        }
        let body = self.reader.body(header).await?;
        let hash = <[u8; 32]>::try_from(&body[..])
            .map_err(|_other_length| WireError::Malformed { what: "hash" })?;
        self.block += 1;
        self.blocks_left -= 1;
        self.block_left = ReadRequest::block_len(self.size, self.block);
        Ok(BlockPart::End(ContentHash(hash)))
    }
}
