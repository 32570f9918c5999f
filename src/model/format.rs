//! The encoding of decisions, reports and commands between nodes: a format number, then postcard
//! compressed with LZ4.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The format number, in the first two bytes of every encoded value.
const FORMAT: u16 = 8;
/// The maximum decoded length in bytes. Bounds how much memory a peer can make this node allocate.
const DECODED_MAX: usize = 16 << 20;

/// Why bytes from another node cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Another version of copperfs wrote them.
    #[error("format {0} is not known here: do all nodes run the same copperfs?")]
    Version(u16),
    /// They end within the header.
    #[error("not readable: too short")]
    Truncated,
    /// They announce more than `DECODED_MAX` bytes.
    #[error("not readable: too large")]
    TooLarge,
    /// They are no LZ4 block of the announced length.
    #[error("not readable: {0}")]
    Compression(#[from] lz4_flex::block::DecompressError),
    /// They encode another type.
    #[error("not readable: {0}")]
    Encoding(#[from] postcard::Error),
}

/// Encodes a frame, a command, or a reply.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Postcard fails only on sequences without a known length, which these types do not have.
    let plain = postcard::to_stdvec(value).unwrap_or_default();
    let mut bytes = FORMAT.to_le_bytes().to_vec();
    bytes.extend(lz4_flex::compress_prepend_size(&plain));
    bytes
}

/// Returns whether [`decode`] accepts as many bytes as `encoded` decompresses to.
pub(crate) fn is_decodable(encoded: &[u8]) -> bool {
    let len = encoded.get(2..).and_then(<[u8]>::first_chunk);
    len.is_some_and(|len| u32::from_le_bytes(*len) as usize <= DECODED_MAX)
}

/// Decodes the output of [`encode`], which may come from any peer.
///
/// # Errors
/// See [`FormatError`].
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FormatError> {
    let (format, rest) = bytes
        .split_first_chunk::<2>()
        .ok_or(FormatError::Truncated)?;
    let format = u16::from_le_bytes(*format);
    if format != FORMAT {
        return Err(FormatError::Version(format));
    }
    let (len, block) = rest
        .split_first_chunk::<4>()
        .ok_or(FormatError::Truncated)?;
    let len = crate::num::to_usize(u64::from(u32::from_le_bytes(*len)));
    if len > DECODED_MAX {
        return Err(FormatError::TooLarge);
    }
    Ok(postcard::from_bytes(&lz4_flex::decompress(block, len)?)?)
}
