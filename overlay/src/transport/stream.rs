//! Frames on a QUIC stream: reading with bounds and time-outs, writing with a reset on drop.

use crate::wire::{FrameHeader, FrameKind, HEADER_BYTES, WireError, message};
use bytes::{Buf, Bytes, BytesMut};
use copperfs_metrics::Counter;
use futures_util::FutureExt;
use quinn::{ConnectionError, ReadError, RecvStream, SendStream, VarInt, WriteError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::timeout;

/// Chunks taken from quinn at a time.
const CHUNKS: usize = 16;
/// Code of a reset or stopped stream: whoever sent it has lost interest or cannot go on.
const CANCELLED: VarInt = VarInt::from_u32(1);

/// Why a stream ended before its time.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    /// Nothing moved for so long.
    #[error("no answer for {0:?}")]
    Silent(Duration),
    /// The connection is gone.
    #[error("the connection is lost: {0}")]
    Lost(ConnectionError),
    /// The peer has given the stream up.
    #[error("the answer was broken off")]
    Cancelled,
    /// The peer ended the stream in mid-frame or mid-answer.
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

/// Reads frames. Each step fails after `patience` without a byte. Dropping it before the end tells
/// the peer to stop.
#[derive(Debug)]
pub(crate) struct FrameReader {
    stream: RecvStream,
    chunks: VecDeque<Bytes>,
    patience: Duration,
    meter: Option<Counter>,
}

impl FrameReader {
    pub(crate) fn new(stream: RecvStream, patience: Duration) -> Self {
        Self {
            stream,
            chunks: VecDeque::with_capacity(CHUNKS),
            patience,
            meter: None,
        }
    }

    /// Adds every byte taken from the stream to `meter`.
    pub(crate) fn metered(mut self, meter: Counter) -> Self {
        self.meter = Some(meter);
        self
    }

    /// From now on each step fails only after `patience` without a byte.
    pub(crate) fn be_patient(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// The next frame's header, or `None` where the stream ends between frames.
    pub(crate) async fn header(&mut self) -> Result<Option<FrameHeader>, StreamError> {
        let mut header = [0; HEADER_BYTES];
        let mut filled = 0;
        while filled < HEADER_BYTES {
            match self.piece(HEADER_BYTES - filled).await? {
                Some(piece) => {
                    header[filled..filled + piece.len()].copy_from_slice(&piece);
                    filled += piece.len();
                }
                None if filled == 0 => return Ok(None),
                None => return Err(StreamError::Truncated),
            }
        }
        Ok(Some(FrameHeader::parse(header)?))
    }

    /// A whole body. Memory is taken as bytes arrive, not as announced.
    pub(crate) async fn body(&mut self, header: FrameHeader) -> Result<Bytes, StreamError> {
        let len = usize::try_from(header.len).unwrap_or(usize::MAX);
        if len == 0 {
            return Ok(Bytes::new());
        }
        let first = self.piece(len).await?.ok_or(StreamError::Truncated)?;
        if first.len() == len {
            return Ok(first);
        }
        let mut body = BytesMut::from(&first[..]);
        while body.len() < len {
            let piece = self
                .piece(len - body.len())
                .await?
                .ok_or(StreamError::Truncated)?;
            body.extend_from_slice(&piece);
        }
        Ok(body.freeze())
    }

    /// A whole frame.
    pub(crate) async fn frame(&mut self) -> Result<Option<(FrameKind, Bytes)>, StreamError> {
        let Some(header) = self.header().await? else {
            return Ok(None);
        };
        Ok(Some((header.kind, self.body(header).await?)))
    }

    /// A whole frame of `kind`, decoded.
    pub(crate) async fn expect<T: DeserializeOwned>(
        &mut self,
        kind: FrameKind,
        wanted: &'static str,
    ) -> Result<T, StreamError> {
        let header = self.header().await?.ok_or(StreamError::Truncated)?;
        if header.kind != kind {
            return Err(WireError::Unexpected {
                got: header.kind,
                wanted,
            }
            .into());
        }
        Ok(message::decode(wanted, &self.body(header).await?)?)
    }

    /// The next bytes, at least one and at most `max`; `None` at the end of the stream.
    pub(crate) async fn piece(&mut self, max: usize) -> Result<Option<Bytes>, StreamError> {
        if self.chunks.is_empty() {
            let mut taken: [Bytes; CHUNKS] = Default::default();
            let reading = timeout(self.patience, self.stream.read_chunks(&mut taken));
            match reading.await {
                Err(_elapsed) => return Err(StreamError::Silent(self.patience)),
                Ok(result) => {
                    let Some(count) = result? else {
                        return Ok(None);
                    };
                    for chunk in taken
                        .into_iter()
                        .take(count)
                        .filter(|chunk| !chunk.is_empty())
                    {
                        if let Some(meter) = &self.meter {
                            meter.add_len(chunk.len());
                        }
                        self.chunks.push_back(chunk);
                    }
                }
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

    /// After the last frame of an answer: takes note of the end if it is here already, so that no
    /// needless STOP_SENDING is sent.
    ///
    /// # Errors
    /// Bytes behind the last frame.
    pub(crate) fn finish(&mut self) -> Result<(), StreamError> {
        const MORE: StreamError =
            StreamError::Wire(WireError::Impossible("bytes behind the end of the answer"));
        if !self.chunks.is_empty() {
            return Err(MORE);
        }
        match self.stream.read_chunk(1, true).now_or_never() {
            Some(Ok(Some(_chunk))) => Err(MORE),
            _ => Ok(()),
        }
    }
}

/// Writes frames. Unless finished, dropping it resets the stream, so that a cut answer never looks
/// like a complete one.
#[derive(Debug)]
pub(crate) struct FrameWriter {
    stream: SendStream,
    patience: Duration,
    finished: bool,
}

impl FrameWriter {
    /// `patience`: how long the peer may take no byte.
    pub(crate) fn new(stream: SendStream, patience: Duration) -> Self {
        Self {
            stream,
            patience,
            finished: false,
        }
    }

    /// What is written goes before what other streams of the connection have to send.
    pub(crate) fn precede(&self) {
        // A stream that is closed already has no turn.
        let _closed = self.stream.set_priority(1);
    }

    /// Resolves when the peer no longer wants to read, or the connection is gone.
    pub(crate) fn abandoned(&self) -> impl Future<Output = ()> + Send + Sync + 'static {
        self.stream.stopped().map(|_code_or_loss| ())
    }

    /// Sends one frame with `body`; gives the bytes sent.
    pub(crate) async fn frame(&mut self, kind: FrameKind, body: Bytes) -> Result<u64, StreamError> {
        let header = FrameHeader::new(kind, body.len())?.encode();
        self.chunks(&mut [Bytes::copy_from_slice(&header), body])
            .await
    }

    /// Sends one frame with the postcard form of `value`.
    pub(crate) async fn message<T: Serialize>(
        &mut self,
        kind: FrameKind,
        value: &T,
    ) -> Result<u64, StreamError> {
        self.frame(kind, message::encode("message", value)?).await
    }

    /// Sends bytes that are frames already.
    pub(crate) async fn chunks(&mut self, chunks: &mut [Bytes]) -> Result<u64, StreamError> {
        let total: usize = chunks.iter().map(Bytes::len).sum();
        match timeout(self.patience, self.stream.write_all_chunks(chunks)).await {
            Err(_elapsed) => Err(StreamError::Silent(self.patience)),
            Ok(result) => {
                result?;
                Ok(u64::try_from(total).unwrap_or(u64::MAX))
            }
        }
    }

    /// Ends the stream properly.
    pub(crate) fn finish(mut self) {
        self.finished = true;
        // A stream that is closed already needs no end.
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
