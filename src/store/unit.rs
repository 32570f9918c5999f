//! Content files, as they are named.

use copperfs_overlay::ContentHash;
use std::fmt;

/// What one content file holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Kind {
    /// One block; the name is its hash.
    Block,
    /// All blocks of a file, in order; the name is the hash of their hashes.
    Whole,
}

/// A content file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Unit {
    pub(super) kind: Kind,
    pub(super) name: ContentHash,
}

impl Unit {
    pub(super) fn block(hash: ContentHash) -> Self {
        Self {
            kind: Kind::Block,
            name: hash,
        }
    }

    pub(super) fn whole(name: ContentHash) -> Self {
        Self {
            kind: Kind::Whole,
            name,
        }
    }
}

/// The name in hexadecimal.
impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name
            .0
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
