//! The names of content files, and the places of blocks in them. Pure.

use crate::read::FileId;
use copperfs_overlay::ContentHash;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The content of one content file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum ContentKind {
    /// One block; the name is its hash.
    Block,
    /// All blocks of a file, in order; the name is the hash of their hashes.
    Whole,
}

/// The name of a content file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct ContentId {
    pub(super) kind: ContentKind,
    pub(super) name: ContentHash,
}

impl ContentId {
    pub(super) fn block(hash: ContentHash) -> Self {
        Self {
            kind: ContentKind::Block,
            name: hash,
        }
    }

    pub(super) fn whole(name: ContentHash) -> Self {
        Self {
            kind: ContentKind::Whole,
            name,
        }
    }
}

/// The name in hexadecimal.
impl fmt::Display for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        blake3::Hash::from_bytes(self.name.0).fmt(f)
    }
}

/// The block of a file version for which a content file was written. It is stored with the content file, so
/// that a lost index can be restored from the files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct BlockOrigin {
    file: [u8; 16],
    /// When it was requested, in the time of the catalog.
    pub(super) moment: u64,
    pub(super) index: u64,
}

impl BlockOrigin {
    pub(super) fn new(file: FileId, moment: u64, index: u64) -> Self {
        Self {
            file: *file.as_bytes(),
            moment,
            index,
        }
    }

    pub(super) fn file(&self) -> FileId {
        FileId::of(self.file)
    }
}

/// Where the bytes of a block are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct BlockLocation {
    pub(super) content: ContentId,
    /// Where they begin in that file.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Their hash.
    pub(super) hash: ContentHash,
    /// Distinguishes that file from earlier and later ones of the same name.
    pub(super) serial: u64,
}
