//! What the catalog must know again after a restart, one thing at a time.

use super::unit::Unit;
use copperfs_overlay::{ContentHash, ItemPath};
use serde::{Deserialize, Serialize};

/// One thing to know again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Record {
    /// A content file with one block exists.
    Content {
        /// Its name.
        hash: ContentHash,
        /// Bytes in it.
        len: u32,
    },
    /// A block of a file version.
    Block {
        /// Which version of which file.
        file: [u8; 16],
        /// When it was asked for.
        moment: u64,
        /// Which block.
        index: u64,
        /// Its bytes.
        hash: ContentHash,
    },
    /// A content file with all blocks of a file version.
    Whole {
        /// Which version of which file.
        file: [u8; 16],
        /// When it was asked for.
        moment: u64,
        /// The content file's name.
        name: ContentHash,
        /// Bytes in it.
        len: u64,
        /// The hashes of its blocks, in order.
        blocks: Vec<ContentHash>,
    },
    /// A content file is gone.
    Gone {
        /// It held a whole file.
        whole: bool,
        /// Its name.
        name: ContentHash,
    },
    /// What was asked for is void.
    Cleared {
        /// From here down.
        path: ItemPath,
        /// Up to this moment.
        until: u64,
    },
}

impl Record {
    pub(super) fn gone(unit: &Unit) -> Self {
        Self::Gone {
            whole: *unit == Unit::whole(unit.name),
            name: unit.name,
        }
    }
}
