//! The bytes of an index: `docs/index-format.md` is the specification. Pure: bytes in, values out.
//!
//! A header of fixed size, blocks of entries, blocks of directory records, a tail. The header finds the
//! tail, the tail every block; a directory's record says where its entries are. Everything has a
//! checksum, and every length is checked before memory is taken for it.

// By path, so that fuzz/ can take this module in as it is.
#[path = "format/codec.rs"]
mod codec;
#[path = "format/layout.rs"]
mod layout;
#[path = "format/primitive.rs"]
mod primitive;
#[cfg(test)]
mod tests;

pub use codec::{DirectoryDecoder, DirectoryEncoder, EntryDecoder, EntryEncoder};
pub use layout::{BlockPlace, DirectoryRecord, HEADER_BYTES, Header, Place, Tail, Totals};

/// What every index begins with.
pub const MAGIC: [u8; 8] = *b"CPFSIDX\n";
/// The version of the format that is written and read.
pub const FORMAT: u32 = 2;
/// A block is closed once it holds so many bytes: what one look-up reads and unpacks.
pub const BLOCK_RAW_TARGET: usize = 64 << 10;
/// As [`BLOCK_RAW_TARGET`], of directory records: a look-up goes through them one by one.
pub const DIRECTORIES_RAW_TARGET: usize = 16 << 10;
/// Most bytes of a block when unpacked: the target and the largest entry or record.
pub const BLOCK_RAW_MAX: usize = BLOCK_RAW_TARGET + ENTRY_BYTES_MAX;
/// Most bytes of one entry or record: a name or path, a link's target, attributes.
pub const ENTRY_BYTES_MAX: usize = 4096 + 4096 + 512;
/// Most bytes of a tail when unpacked: some hundred million entries.
pub const TAIL_RAW_MAX: usize = 64 << 20;
/// Most bytes of a link's target.
pub const TARGET_BYTES_MAX: usize = 4096;
/// Most bytes of the URI that an index tells.
pub const URI_BYTES_MAX: usize = 4096;

/// Why bytes are not an index, or not a whole one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// It begins otherwise.
    #[error("it is not an index; make one with copperfs index URI -o FILE")]
    NotAnIndex,
    /// Another version of copperfs made it.
    #[error(
        "it has format {0}, and this copperfs reads format {FORMAT}; make it anew with copperfs index"
    )]
    Version(u32),
    /// It is shorter or longer than it says.
    #[error("it has {found} of its {expected} bytes: a copy that was cut off? Copy it again")]
    Torn {
        /// As it says.
        expected: u64,
        /// As it is.
        found: u64,
    },
    /// Something in it cannot be true.
    #[error("it is damaged ({0}); copy it again, or make it anew with copperfs index")]
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

/// `raw` as it is stored: packed where that shrinks it.
#[must_use]
pub fn pack(raw: &[u8]) -> Vec<u8> {
    let packed = lz4_flex::block::compress(raw);
    if packed.len() < raw.len() {
        packed
    } else {
        raw.to_vec()
    }
}

/// The `raw_len` bytes that are stored as `stored`.
///
/// # Errors
/// `Damaged`: another checksum, or not that many bytes.
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
