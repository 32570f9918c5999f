//! Bytes on their way to a reader, with the hashes of the blocks and pieces that they were cut from.
//!
//! A reader keeps what it was given, and the kernel keeps it in its page cache. The hashes are what is
//! left here of it: they tell later whether another version of the file begins with the same bytes
//! ([`super::Given`]).

use bytes::Bytes;
use copperfs_overlay::ContentHash;

/// Which bytes of a file a hash is of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Place {
    /// One block of [`BLOCK_BYTES`](copperfs_overlay::BLOCK_BYTES), the last of a file being shorter.
    Block(u64),
    /// One piece of [`RANGE_ALIGN`](copperfs_overlay::RANGE_ALIGN) bytes, counted from the file's
    /// beginning.
    Piece(u64),
    /// Any run of bytes.
    Run {
        /// The first of them.
        offset: u64,
        /// How many.
        len: u64,
    },
}

/// Verified bytes of a file that something was cut from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Which bytes.
    pub place: Place,
    /// The hash of all of them.
    pub hash: ContentHash,
}

/// The parts that an answer was cut from. One, the usual number, takes no allocation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    first: Option<Part>,
    rest: Vec<Part>,
}

impl Parts {
    /// Adds one.
    pub fn push(&mut self, part: Part) {
        if self.first.is_none() {
            self.first = Some(part);
        } else {
            self.rest.push(part);
        }
    }

    /// All of them, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Part> {
        self.first.iter().chain(&self.rest)
    }
}

impl FromIterator<Part> for Parts {
    fn from_iter<I: IntoIterator<Item = Part>>(parts: I) -> Self {
        let mut all = Self::default();
        parts.into_iter().for_each(|part| all.push(part));
        all
    }
}

/// Bytes for a reader.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cut {
    /// The bytes.
    pub bytes: Bytes,
    /// What they were cut from.
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

    /// Several cuts of one file, in order, as one.
    #[must_use]
    pub fn joined(mut cuts: Vec<Self>) -> Self {
        if cuts.len() == 1 {
            return cuts.swap_remove(0);
        }
        let mut parts = Parts::default();
        let mut bytes = Vec::with_capacity(cuts.iter().map(|cut| cut.bytes.len()).sum());
        for cut in cuts {
            bytes.extend_from_slice(&cut.bytes);
            cut.parts.iter().for_each(|part| parts.push(*part));
        }
        Self {
            bytes: bytes.into(),
            parts,
        }
    }
}
