//! The codec of an index; `docs/index-format.md` is the specification. Pure: converts bytes to values.
//!
//! A header of fixed size, blocks of entries, of directory records, and of hashes of parts, a tail. The header has the position
//! of the tail, and the tail those of the blocks; a directory's record has the position of its entries.
//! Everything has a checksum, and every length is checked before memory is allocated for it.

// With paths, so that fuzz/ can include this module without changes.
#[path = "format/codec.rs"]
mod codec;
#[path = "format/layout.rs"]
mod layout;
#[path = "format/primitive.rs"]
mod primitive;
#[cfg(test)]
mod tests;

pub use codec::{Decoder, Encoder, IndexedEntry, parts};
pub use layout::{BlockLocation, DirectoryRecord, EntryRange, HEADER_BYTES, Header, Tail, Totals};

/// The first bytes of every index.
pub const MAGIC: [u8; 8] = *b"CPFSIDX\n";
/// The version of the format that is written and read.
pub const FORMAT: u32 = 4;
/// A block is closed at this size, because a look-up reads and unpacks a whole block.
pub const BLOCK_RAW_TARGET: usize = 64 << 10;
/// Like [`BLOCK_RAW_TARGET`], for blocks of directory records: a look-up decodes them one by one.
pub const DIRECTORIES_RAW_TARGET: usize = 16 << 10;
/// The number of hashes in a block of parts, but for the last one. Fixed, so that a part's number determines its block.
pub const BLOCK_PARTS: u64 = (BLOCK_RAW_TARGET / PART_HASH_BYTES) as u64;
/// The size of the hash of a part.
pub const PART_HASH_BYTES: usize = 32;
/// The maximum size of an unpacked block: the target and the largest entry or record.
pub const BLOCK_RAW_MAX: usize = BLOCK_RAW_TARGET + ENTRY_BYTES_MAX;
/// The maximum size of one entry or record: a name or path, a link's target, attributes, extended attributes.
pub const ENTRY_BYTES_MAX: usize = 4096 + 4096 + 512 + XATTRS_BYTES_MAX;
/// The maximum size of the extended attributes of a file. More are not recorded.
pub const XATTRS_BYTES_MAX: usize = 4096;
/// The maximum size of an unpacked tail: some hundred million entries.
pub const TAIL_RAW_MAX: usize = 64 << 20;
/// The maximum size of a link's target.
pub const TARGET_BYTES_MAX: usize = 4096;
/// The maximum size of the URI in an index.
pub const URI_BYTES_MAX: usize = 4096;

/// Why bytes are not a complete index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The first bytes differ.
    #[error("it is not an index; make one with copperfs index build")]
    NotAnIndex,
    /// Another version of copperfs made it.
    #[error(
        "it has format {0}, and this copperfs reads format {FORMAT}; make it again with copperfs index build --force"
    )]
    Version(u32),
    /// It is shorter or longer than its header says.
    #[error("it has {found} of its {expected} bytes: a copy that was cut off? Copy it again")]
    Torn {
        /// The length in its header.
        expected: u64,
        /// Its actual length.
        found: u64,
    },
    /// Its content is invalid.
    #[error(
        "it is damaged ({0}); copy it again, or make it again with copperfs index build --force"
    )]
    Damaged(&'static str),
}

/// The first half of a BLAKE3 hash.
pub type Checksum = [u8; 16];

/// The checksum of `bytes`.
#[must_use]
pub fn checksum(bytes: &[u8]) -> Checksum {
    let mut short = [0; 16];
    short.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    short
}

/// `raw` in its stored form: compressed if that makes it shorter.
#[must_use]
pub fn pack(raw: &[u8]) -> Vec<u8> {
    let packed = lz4_flex::block::compress(raw);
    if packed.len() < raw.len() {
        packed
    } else {
        raw.to_vec()
    }
}

/// Decodes the stored form of `raw_len` bytes.
///
/// # Errors
/// `Damaged` if the checksum or the length differs.
pub fn unpack(stored: &[u8], raw_len: usize, sum: &Checksum) -> Result<Vec<u8>, FormatError> {
    if checksum(stored) != *sum {
        return Err(FormatError::Damaged("a block's checksum"));
    }
    if stored.len() == raw_len {
        return Ok(stored.to_vec());
    }
    let mut raw = vec![0; raw_len];
    match lz4_flex::block::decompress_into(stored, &mut raw) {
        Ok(got) if got == raw_len => Ok(raw),
        _ => Err(FormatError::Damaged("a block's length")),
    }
}
