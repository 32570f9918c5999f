//! The codec of a manifest; `docs/manifest-format.md` is the specification. Pure: converts bytes to values.
//!
//! A header of fixed size, one array for each property of entries and files, and a checksum of everything. The
//! counts in the header determine where each array lies, so a reader can map them without decoding. A manifest
//! comes from a user: every length is checked before memory is allocated for it, and every rule of the format
//! before anything is used.

// With paths, so that fuzz/ can include this module without changes.
#[path = "format/check.rs"]
mod check;
#[path = "format/encode.rs"]
mod encode;
#[path = "format/header.rs"]
mod header;
#[path = "format/lookup.rs"]
mod lookup;
#[path = "format/sections.rs"]
mod sections;
#[cfg(test)]
mod tests;
#[path = "format/view.rs"]
mod view;

pub use encode::Encoder;
pub use header::{Counts, Header};
pub use view::{Freshness, Manifest};

use copperfs_overlay::{ContentHash, Version};

/// The first bytes of every manifest.
pub const MAGIC: [u8; 8] = *b"CPFSMAN\n";
/// The version of the format that is written and read.
pub const FORMAT: u32 = 1;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 256;
/// Bytes of the checksum at the end.
pub const TRAILER_BYTES: usize = 32;
/// Sections begin at multiples of this, so that a mapped array is aligned for any processor.
pub const SECTION_ALIGN: u64 = 64;
/// A longer entry also has a hash for each part of this size, so that a part can be verified alone: it is an item.
pub use copperfs_overlay::ITEM_BYTES_MAX as PART_BYTES;
pub use copperfs_overlay::parts_of;
/// Bytes of a file's version.
pub const VERSION_BYTES: usize = 32;
/// The maximum size of a manifest that is read: a hundred million entries. A manifest is kept in memory, so a
/// larger one is refused before it is read.
pub const MANIFEST_BYTES_MAX: u64 = 16 << 30;

/// Why bytes are not a manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The first bytes differ.
    #[error("it is not a manifest; make one with copperfs dataset manifest PATH -o FILE")]
    NotAManifest,
    /// Another version of copperfs made it.
    #[error(
        "it has format {0}, and this copperfs reads format {FORMAT}; make it again with copperfs dataset manifest"
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
    /// Its bytes have changed since it was made.
    #[error("it is damaged ({0}); copy it again, or make it again with copperfs dataset manifest")]
    Damaged(&'static str),
    /// It has no entries.
    #[error("it has no entries; name a dataset with at least one file")]
    Empty,
    /// It has more entries, files, parts or bytes than a manifest may have.
    #[error("it has {count} {counted}, more than the {max} of a manifest; divide the dataset")]
    TooLarge {
        /// The counted things.
        counted: &'static str,
        /// Their number.
        count: u64,
        /// The maximum.
        max: u64,
    },
    /// Its bytes are those that were written, but they break a rule of the format.
    #[error("{item} {number} {fault}; make the manifest again with copperfs dataset manifest")]
    Invalid {
        /// The kind of the item that breaks it: an entry, a file, the header.
        item: &'static str,
        /// The number of the item, from 0.
        number: u64,
        /// The broken rule.
        fault: &'static str,
    },
}

/// One entry of a dataset: consecutive bytes of a file, which a job reads as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The BLAKE3 hash of its bytes.
    pub hash: ContentHash,
    /// The number of its file in the manifest.
    pub file: u32,
    /// Its first byte in the file.
    pub offset: u64,
    /// Its length in bytes; 0 only for the one entry of an empty file.
    pub length: u64,
}

/// Returns the stored form of a settled version: the bytes of [`Version::to_bytes`] without the last one, which
/// is 0 for every settled version.
fn stored_version(version: &Version) -> [u8; VERSION_BYTES] {
    let mut stored = [0; VERSION_BYTES];
    stored.copy_from_slice(&version.to_bytes()[..VERSION_BYTES]);
    stored
}

/// Decodes [`stored_version`]. Returns `None` for any other bytes, and for an unsettled version.
fn version_of(stored: &[u8; VERSION_BYTES]) -> Option<Version> {
    let mut bytes = [0; Version::BYTES];
    bytes[..VERSION_BYTES].copy_from_slice(stored);
    Version::from_bytes(&bytes).filter(Version::is_settled)
}

/// A position in memory. Positions in a manifest were compared with its length before, which is in memory.
fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// A number of an entry or a file, which the limits keep within 32 bits.
fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
