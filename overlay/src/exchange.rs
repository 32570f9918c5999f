//! One question and its answer on a stream: what all askers do alike.

use crate::model::{ContentHash, Failure, RangeAnswer};
use crate::transport::stream::{FrameReader, StreamError};
use crate::wire::{FrameHeader, FrameKind, WireError, message};
use bytes::{Bytes, BytesMut};

/// An answer of `due` bytes that begins with `header`, verified, or the failure in its place. Memory is
/// taken once the first of them have come, for as many as were asked for.
pub(crate) async fn take(
    reader: &mut FrameReader,
    mut header: FrameHeader,
    due: u64,
) -> Result<Result<RangeAnswer, Failure>, StreamError> {
    let due = usize::try_from(due).unwrap_or(usize::MAX);
    let mut whole = Bytes::new();
    let mut joined = BytesMut::new();
    loop {
        let got = whole.len() + joined.len();
        match header.kind {
            FrameKind::Data => {
                let mut more = usize::try_from(header.len).unwrap_or(usize::MAX);
                if more == 0 || more > due - got {
                    return Err(WireError::Impossible("data that does not fit its range").into());
                }
                while more > 0 {
                    let piece = reader.piece(more).await?.ok_or(StreamError::Truncated)?;
                    more = more.saturating_sub(piece.len());
                    if piece.len() == due {
                        whole = piece;
                    } else {
                        if joined.is_empty() {
                            joined.reserve(due);
                        }
                        joined.extend_from_slice(&piece);
                    }
                }
            }
            FrameKind::End if got == due => {
                let body = reader.body(header).await?;
                let hash = <[u8; 32]>::try_from(&body[..])
                    .map_err(|_other_length| WireError::Malformed { what: "hash" })?;
                if whole.is_empty() {
                    whole = joined.freeze();
                }
                if *blake3::hash(&whole).as_bytes() != hash {
                    return Err(WireError::WrongHash.into());
                }
                reader.finish()?;
                let (bytes, hash) = (whole, ContentHash(hash));
                return Ok(Ok(RangeAnswer { bytes, hash }));
            }
            FrameKind::End => {
                return Err(WireError::Impossible("a range that ends before its last byte").into());
            }
            FrameKind::Failure => {
                let body = reader.body(header).await?;
                return Ok(Err(trimmed(message::decode("failure", &body)?)));
            }
            got => return Err(unexpected(got, "data or end")),
        }
        header = reader.header().await?.ok_or(StreamError::Truncated)?;
    }
}

pub(crate) fn unexpected(got: FrameKind, wanted: &'static str) -> StreamError {
    WireError::Unexpected { got, wanted }.into()
}

/// A failure from a peer, its text cut to what is kept.
pub(crate) fn trimmed(failure: Failure) -> Failure {
    Failure::new(failure.kind, failure.detail)
}
