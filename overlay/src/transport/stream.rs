//! Frames on a QUIC stream: bounded reads with a timeout, and writes that reset the stream when dropped.

use crate::wire::{FrameHeader, FrameKind, HEADER_BYTES, WireError, ensure, message};
use bytes::{Buf, Bytes, BytesMut};
use copperfs_metrics::Counter;
use futures_util::FutureExt;
use quinn::{ConnectionError, ReadError, RecvStream, SendStream, VarInt, WriteError};
use serde::Serialize;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::timeout;

/// Chunks taken from quinn at a time.
const CHUNKS: usize = 16;
/// Application code of a reset or stopped stream: the sender has lost interest or cannot continue.
const CANCELLED: VarInt = VarInt::from_u32(1);

/// Why a stream ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    /// No byte moved within the timeout.
    #[error("no answer for {0:?}")]
    Silent(Duration),
    /// The connection has ended.
    #[error("the connection is lost: {0}")]
    Lost(#[source] ConnectionError),
    /// The peer has reset or stopped the stream.
    #[error("the answer was broken off")]
    Cancelled,
    /// The peer ended the stream within a frame or before the end of an answer.
    #[error("the answer ended early")]
    Truncated,
    /// The peer broke the protocol.
    #[error("{0}")]
    Wire(#[from] WireError),
}

impl From<ReadError> for StreamError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::ConnectionLost(error) => Self::Lost(error),
            _ => Self::Cancelled,
        }
    }
}

impl From<WriteError> for StreamError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::ConnectionLost(error) => Self::Lost(error),
            _ => Self::Cancelled,
        }
    }
}

/// Reads frames. Dropping the reader before the end of the stream tells the peer to stop.
#[derive(Debug)]
pub(crate) struct FrameReader {
    stream: RecvStream,
    chunks: VecDeque<Bytes>,
    /// How long each read waits for the next byte.
    pub(crate) timeout: Duration,
    /// Counts every byte that is taken from the stream.
    pub(crate) meter: Option<Counter>,
    /// A header that [`FrameReader::peek`] has read.
    peeked: Option<FrameHeader>,
    /// Bytes of the current frame's body that were not returned yet.
    body_left: usize,
}

impl FrameReader {
    pub(crate) fn new(stream: RecvStream, timeout: Duration) -> Self {
        Self {
            stream,
            chunks: VecDeque::with_capacity(CHUNKS),
            timeout,
            meter: None,
            peeked: None,
            body_left: 0,
        }
    }

    /// Returns the next frame's header, and leaves it to the next call of [`FrameReader::header`].
    pub(crate) async fn peek(&mut self) -> Result<FrameHeader, StreamError> {
        let header = self.header().await?;
        // The body begins once `header` has returned this one.
        self.body_left = 0;
        self.peeked = Some(header);
        Ok(header)
    }

    /// Returns the next frame's header. The body of the frame before it must have been read.
    pub(crate) async fn header(&mut self) -> Result<FrameHeader, StreamError> {
        self.header_or_end().await?.ok_or(StreamError::Truncated)
    }

    /// Like [`FrameReader::header`]; returns `None` if the stream ends between two frames.
    async fn header_or_end(&mut self) -> Result<Option<FrameHeader>, StreamError> {
        if let Some(header) = self.peeked.take() {
            self.body_left = usize::try_from(header.len).unwrap_or(usize::MAX);
            return Ok(Some(header));
        }
        let mut bytes = [0; HEADER_BYTES];
        let mut filled = 0;
        while filled < HEADER_BYTES {
            match self.piece(HEADER_BYTES - filled).await? {
                Some(piece) => {
                    bytes[filled..filled + piece.len()].copy_from_slice(&piece);
                    filled += piece.len();
                }
                None if filled == 0 => return Ok(None),
                None => return Err(StreamError::Truncated),
            }
        }
        let header = FrameHeader::parse(bytes)?;
        self.body_left = usize::try_from(header.len).unwrap_or(usize::MAX);
        Ok(Some(header))
    }

    /// Bytes of the current frame's body that were not returned yet.
    pub(crate) fn body_left(&self) -> usize {
        self.body_left
    }

    /// Returns the next bytes of the current frame's body, which must not be complete.
    pub(crate) async fn body_piece(&mut self) -> Result<Bytes, StreamError> {
        let piece = self.piece(self.body_left).await?;
        let piece = piece.ok_or(StreamError::Truncated)?;
        self.body_left -= piece.len();
        Ok(piece)
    }

    /// Returns the rest of the current frame's body.
    pub(crate) async fn body(&mut self) -> Result<Bytes, StreamError> {
        if self.body_left == 0 {
            return Ok(Bytes::new());
        }
        let first = self.body_piece().await?;
        if self.body_left == 0 {
            return Ok(first);
        }
        // Memory grows with the bytes that arrive, not with the announced length.
        let mut body = BytesMut::from(&first[..]);
        while self.body_left > 0 {
            body.extend_from_slice(&self.body_piece().await?);
        }
        Ok(body.freeze())
    }

    /// Returns the next frame.
    pub(crate) async fn frame(&mut self) -> Result<(FrameKind, Bytes), StreamError> {
        self.frame_or_end().await?.ok_or(StreamError::Truncated)
    }

    /// Returns the next frame, or `None` if the stream ends between two frames.
    pub(crate) async fn frame_or_end(&mut self) -> Result<Option<(FrameKind, Bytes)>, StreamError> {
        match self.header_or_end().await? {
            Some(header) => Ok(Some((header.kind, self.body().await?))),
            None => Ok(None),
        }
    }

    /// Returns the next bytes of the stream, at least one and at most `max`; `None` at its end.
    async fn piece(&mut self, max: usize) -> Result<Option<Bytes>, StreamError> {
        if self.chunks.is_empty() {
            let mut received: [Bytes; CHUNKS] = Default::default();
            let reading = timeout(self.timeout, self.stream.read_chunks(&mut received));
            let silent = |_elapsed| StreamError::Silent(self.timeout);
            let Some(count) = reading.await.map_err(silent)?? else {
                return Ok(None);
            };
            let received = received.into_iter().take(count);
            for chunk in received.filter(|chunk| !chunk.is_empty()) {
                if let Some(meter) = &self.meter {
                    meter.add_len(chunk.len());
                }
                self.chunks.push_back(chunk);
            }
        }
        let Some(chunk) = self.chunks.front_mut() else {
            return Err(StreamError::Truncated);
        };
        let piece = chunk.split_to(chunk.len().min(max));
        if !chunk.has_remaining() {
            self.chunks.pop_front();
        }
        Ok(Some(piece))
    }

    /// Consumes the end of the stream after the last frame of an answer, if it has arrived, so that no
    /// needless STOP_SENDING is sent.
    ///
    /// # Errors
    /// Bytes after the last frame.
    pub(crate) fn finish(&mut self) -> Result<(), StreamError> {
        let mut more = || self.stream.read_chunk(1, true).now_or_never();
        let ended = self.chunks.is_empty() && !matches!(more(), Some(Ok(Some(_))));
        Ok(ensure(ended, "bytes behind the end of the answer")?)
    }
}

/// Writes frames. Unless it is finished, dropping it resets the stream, so that a cut answer never looks
/// like a complete one.
#[derive(Debug)]
pub(crate) struct FrameWriter {
    stream: SendStream,
    timeout: Duration,
    finished: bool,
}

impl FrameWriter {
    /// `timeout` limits each write. It expires when the peer does not read.
    pub(crate) fn new(stream: SendStream, timeout: Duration) -> Self {
        Self {
            stream,
            timeout,
            finished: false,
        }
    }

    /// Sends this stream's bytes before those of the connection's other streams.
    pub(crate) fn prioritize(&self) {
        // A closed stream has no priority to set.
        let _closed = self.stream.set_priority(1);
    }

    /// Resolves when the peer has stopped the stream, or the connection has ended.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + Sync + 'static {
        self.stream.stopped().map(|_code_or_loss| ())
    }

    /// Sends one frame. Returns the number of bytes sent.
    pub(crate) async fn frame(&mut self, kind: FrameKind, body: Bytes) -> Result<u64, StreamError> {
        let header = FrameHeader::bytes(kind, body.len())?;
        self.chunks(&mut [header, body]).await
    }

    /// Sends one frame with the postcard form of `value`. Returns the number of bytes sent.
    pub(crate) async fn message<T: Serialize>(
        &mut self,
        kind: FrameKind,
        value: &T,
    ) -> Result<u64, StreamError> {
        self.frame(kind, message::encode("message", value)?).await
    }

    /// Sends `chunks`, which are whole frames. Returns the number of bytes sent.
    pub(crate) async fn chunks(&mut self, chunks: &mut [Bytes]) -> Result<u64, StreamError> {
        let total: usize = chunks.iter().map(Bytes::len).sum();
        timeout(self.timeout, self.stream.write_all_chunks(chunks))
            .await
            .map_err(|_elapsed| StreamError::Silent(self.timeout))??;
        Ok(u64::try_from(total).unwrap_or(u64::MAX))
    }

    /// Ends the stream properly.
    pub(crate) fn finish(mut self) {
        self.finished = true;
        // A closed stream needs no end.
        let _closed = self.stream.finish();
    }
}

impl Drop for FrameWriter {
    fn drop(&mut self) {
        if !self.finished {
            let _closed = self.stream.reset(CANCELLED);
        }
    }
}
