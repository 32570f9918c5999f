//! Bytes for a reader, with the hashes of the blocks and pieces from which they were cut.
//!
//! A reader keeps the bytes that it received, and the kernel keeps them in its page cache. The daemon keeps
//! only their hashes. With these it can later decide whether another version of the file has the same bytes
//! ([`super::Returned`]).

use bytes::Bytes;
use copperfs_overlay::{BLOCK_BYTES, ContentHash, RANGE_ALIGN};

/// The bytes of a piece; the last piece of a file may be shorter.
pub(super) const PIECE_BYTES: u64 = RANGE_ALIGN;
/// The number of pieces of a block.
pub(super) const BLOCK_PIECES: usize = 256;
const _: () = assert!(BLOCK_PIECES as u64 * PIECE_BYTES == BLOCK_BYTES);

/// The bytes of a file that a hash covers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum PartRange {
    /// One block of [`BLOCK_BYTES`](copperfs_overlay::BLOCK_BYTES); the last block of a file may be
    /// shorter.
    Block(u64),
    /// One piece of [`RANGE_ALIGN`](copperfs_overlay::RANGE_ALIGN) bytes; its index counts from the file's
    /// beginning.
    Piece(u64),
    /// Any run of bytes.
    Run {
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
}

/// A range of a file's verified bytes, with its hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The range.
    pub range: PartRange,
    /// The hash of all its bytes.
    pub hash: ContentHash,
}

/// The parts from which an answer was cut. A single part, the usual case, needs no allocation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    first: Option<Part>,
    rest: Vec<Part>,
}

impl Parts {
    /// All parts, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Part> {
        self.first.iter().chain(&self.rest)
    }
}

impl FromIterator<Part> for Parts {
    fn from_iter<I: IntoIterator<Item = Part>>(parts: I) -> Self {
        let mut parts = parts.into_iter();
        Self {
            first: parts.next(),
            rest: parts.collect(),
        }
    }
}

/// Bytes for a reader.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cut {
    /// The bytes.
    pub bytes: Bytes,
    /// The parts from which they were cut.
    pub parts: Parts,
}

impl Cut {
    /// `bytes`, cut from `part`.
    #[must_use]
    pub fn of(bytes: Bytes, part: Part) -> Self {
        Self {
            bytes,
            parts: std::iter::once(part).collect(),
        }
    }

    /// Joins several cuts of one file, in order.
    #[must_use]
    pub fn joined(mut cuts: Vec<Self>) -> Self {
        if cuts.len() == 1 {
            return cuts.swap_remove(0);
        }
        let mut bytes = Vec::with_capacity(cuts.iter().map(|cut| cut.bytes.len()).sum());
        for cut in &cuts {
            bytes.extend_from_slice(&cut.bytes);
        }
        Self {
            bytes: bytes.into(),
            parts: cuts
                .iter()
                .flat_map(|cut| cut.parts.iter().copied())
                .collect(),
        }
    }
}
