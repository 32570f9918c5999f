//! The records of the index. Their postcard form is part of the on-disk format.

use super::content_id::{BlockOrigin, ContentId, ContentKind};
use copperfs_overlay::{ContentHash, ItemPath};
use serde::{Deserialize, Serialize};

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
        file: [u8; 16],
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
    Gone {
        /// It was a whole file.
        whole: bool,
        name: ContentHash,
    },
    /// The blocks below `path` that were requested up to the moment `until` are invalid.
    Cleared { path: ItemPath, until: u64 },
}

impl Record {
    pub(super) fn gone(content: &ContentId) -> Self {
        Self::Gone {
            whole: content.kind == ContentKind::Whole,
            name: content.name,
        }
    }
}
