//! The names of content files, the places of blocks in them, and the records of the index, which refer to
//! both. The postcard form of the records is part of the on-disk format. Pure.

use crate::read::FileId;
use copperfs_overlay::{ContentHash, ItemPath};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The directory of content files with one block, in a subdirectory for the first byte of their names.
pub(super) const CONTENT: &str = "content";
/// The directory of whole files.
pub(super) const WHOLE: &str = "whole";

/// The content of one content file. The records of the index have its number, 0 or 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(super) enum ContentKind {
    /// One block; the name is its hash.
    Block,
    /// All blocks of a file, in order; the name is the hash of their hashes.
    Whole,
}

/// The name of a content file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
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

    /// The path of its file below the store's directory.
    pub(super) fn path(&self) -> String {
        let name = self.to_string();
        match self.kind {
            ContentKind::Block => format!("{CONTENT}/{}/{}", &name[..2], &name[2..]),
            ContentKind::Whole => format!("{WHOLE}/{name}"),
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct BlockOrigin {
    pub(super) file: FileId,
    /// When it was requested, in the time of the catalog.
    pub(super) moment: u64,
    pub(super) index: u64,
}

impl BlockOrigin {
    pub(super) fn new(file: FileId, moment: u64, index: u64) -> Self {
        Self {
            file,
            moment,
            index,
        }
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

/// One record of the index.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Record {
    /// A content file with one block exists.
    Content {
        /// Its name.
        hash: ContentHash,
        /// Its size in bytes.
        len: u32,
    },
    /// A block of a file version has this hash.
    Block {
        origin: BlockOrigin,
        hash: ContentHash,
    },
    /// A content file with all blocks of a file version exists.
    Whole {
        file: FileId,
        /// When it was requested.
        moment: u64,
        /// The name of the content file.
        name: ContentHash,
        /// Its size in bytes.
        len: u64,
        /// The hashes of its blocks, in order.
        blocks: Vec<ContentHash>,
    },
    /// A content file was removed.
    Gone(ContentId),
    /// Blocks were cleared.
    Cleared(Clear),
}

/// The blocks below `path` that were requested up to the moment `until` are invalid.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Clear {
    pub(super) path: ItemPath,
    pub(super) until: u64,
}
