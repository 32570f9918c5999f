//! One request and its answer on a stream: the part that all requesters have in common.

use crate::model::{BLOCK_BYTES, BlockPart, ContentHash, Failure, RangeAnswer};
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::wire::{FrameHeader, FrameKind, Request, WireError, message};
use bytes::{Bytes, BytesMut};
use quinn::Connection;
use std::time::Duration;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    /// The stream broke. The answer may be had over another connection.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The other side has answered with a failure.
    #[error(transparent)]
    Failure(#[from] Failure),
}

impl From<WireError> for AnswerError {
    fn from(error: WireError) -> Self {
        Self::Stream(error.into())
    }
}

/// Opens a stream, which begins with `request` at position `attempt` of its item's root order. `timeout` limits each read
/// and write.
pub(crate) async fn open_stream(
    connection: &Connection,
    attempt: u8,
    request: &Request,
    timeout: Duration,
) -> Result<(FrameReader, FrameWriter), StreamError> {
    let body = message::encode_question(attempt, request)?;
    let (send, recv) = connection.open_bi().await.map_err(StreamError::Lost)?;
    let mut writer = FrameWriter::new(send, timeout);
    writer.frame(FrameKind::Request, body).await?;
    Ok((FrameReader::new(recv, timeout), writer))
}

/// Reads the frame of kind `got` that came where `wanted` was due. Returns the failure that it holds, or a
/// breach of the protocol.
pub(crate) async fn read_failure(
    reader: &mut FrameReader,
    got: FrameKind,
    wanted: &'static str,
) -> AnswerError {
    if got != FrameKind::Failure {
        return WireError::unexpected(got, wanted).into();
    }
    let body = reader.body().await;
    match body.and_then(|body| Ok(message::decode::<Failure>("failure", &body)?)) {
        // `Failure::new` cuts the peer's text to its limit.
        Ok(failure) => Failure::new(failure.kind, failure.detail).into(),
        Err(error) => error.into(),
    }
}

/// Returns the body of the next frame, which must be of `kind`.
pub(crate) async fn expect_body(
    reader: &mut FrameReader,
    kind: FrameKind,
    wanted: &'static str,
) -> Result<Bytes, AnswerError> {
    match reader.header().await?.kind {
        got if got == kind => Ok(reader.body().await?),
        got => Err(read_failure(reader, got, wanted).await),
    }
}

/// Reads the hash that ends a block or a range.
pub(crate) async fn read_hash(reader: &mut FrameReader) -> Result<ContentHash, StreamError> {
    let hash = <[u8; 32]>::try_from(&reader.body().await?[..])
        .map_err(|_other_length| WireError::Malformed { what: "hash" })?;
    Ok(ContentHash(hash))
}

/// Reads an answer of `len` bytes and verifies its hash.
pub(crate) async fn read_verified(
    reader: &mut FrameReader,
    len: u64,
) -> Result<RangeAnswer, AnswerError> {
    let answer = read_part(reader, len).await?;
    // Bytes after the hash would not be verified.
    reader.finish()?;
    Ok(answer)
}

/// The same for a part of an answer, behind which others come.
pub(crate) async fn read_part(
    reader: &mut FrameReader,
    len: u64,
) -> Result<RangeAnswer, AnswerError> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    // An answer that comes as one piece is not copied.
    let mut whole = Bytes::new();
    let mut joined = BytesMut::new();
    loop {
        let header = reader.header().await?;
        let received = whole.len() + joined.len();
        match header.kind {
            FrameKind::Data => {
                let more = reader.body_left();
                if more == 0 || more > len - received {
                    return Err(WireError::Impossible("data that does not fit its range").into());
                }
                while reader.body_left() > 0 {
                    let piece = reader.body_piece().await?;
                    if piece.len() == len {
                        whole = piece;
                        continue;
                    }
                    // The requester bounded `len`, and the peer has begun to send.
                    if joined.is_empty() {
                        joined.reserve(len);
                    }
                    joined.extend_from_slice(&piece);
                }
            }
            FrameKind::End if received == len => {
                let hash = read_hash(reader).await?;
                if whole.is_empty() {
                    whole = joined.freeze();
                }
                if *blake3::hash(&whole).as_bytes() != hash.0 {
                    return Err(WireError::WrongHash.into());
                }
                return Ok(RangeAnswer { bytes: whole, hash });
            }
            FrameKind::End => {
                return Err(WireError::Impossible("a range that ends before its last byte").into());
            }
            got => return Err(read_failure(reader, got, "data or end").await),
        }
    }
}

/// Encodes parts of an answer or of an item. Neighbouring bytes share a frame.
pub(crate) fn encode_parts(parts: Vec<BlockPart>) -> Result<Vec<Bytes>, WireError> {
    let data_max = usize::try_from(BLOCK_BYTES).unwrap_or(usize::MAX);
    let mut frames = Vec::with_capacity(parts.len() + 2);
    let mut run: Vec<Bytes> = Vec::new();
    let mut run_bytes = 0;
    let close = |run: &mut Vec<Bytes>, run_bytes: &mut usize, frames: &mut Vec<Bytes>| {
        if *run_bytes > 0 {
            frames.push(FrameHeader::bytes(FrameKind::Data, *run_bytes)?);
            frames.append(run);
            *run_bytes = 0;
        }
        Ok::<(), WireError>(())
    };
    for part in parts {
        match part {
            BlockPart::Bytes(mut piece) => {
                while !piece.is_empty() {
                    let fits = piece.split_to(piece.len().min(data_max - run_bytes));
                    run_bytes += fits.len();
                    run.push(fits);
                    if run_bytes == data_max {
                        close(&mut run, &mut run_bytes, &mut frames)?;
                    }
                }
            }
            BlockPart::Restart => {
                close(&mut run, &mut run_bytes, &mut frames)?;
                frames.push(FrameHeader::bytes(FrameKind::Restart, 0)?);
            }
            BlockPart::End(hash) => {
                close(&mut run, &mut run_bytes, &mut frames)?;
                let header = FrameHeader::new(FrameKind::End, hash.0.len())?.encode();
                frames.push([&header[..], &hash.0].concat().into());
            }
        }
    }
    close(&mut run, &mut run_bytes, &mut frames)?;
    Ok(frames)
}
