//! Carrying out a plan on one node, all the way into its kernel.
//!
//! A plan is a list of [`Step`]s: what a profile names, or what lies below a directory. The node
//! fetches what they need ahead of time (`src/node/warm.rs`), and [`touch`] does to the mount what a
//! program would do: that is the only way for names, attributes and listings to get into the kernel.

pub mod touch;

use crate::profile::Access;
use copperfs_overlay::ItemPath;
use serde::{Deserialize, Serialize};

/// One thing to have at hand, as it travels: a postcard item of a plan's pages (`docs/wire.md`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Step {
    /// The listing of a directory.
    List(ItemPath),
    /// A name and its attributes; the text of a symlink.
    Stat(ItemPath),
    /// That there is no such name.
    Absent(ItemPath),
    /// The extended attributes of a file: kept by the node, the kernel keeps none.
    Xattrs(ItemPath),
    /// Bytes of a file.
    Read {
        /// The file.
        path: ItemPath,
        /// From where, in bytes.
        offset: u64,
        /// How many, as far as there are so many.
        len: u64,
    },
}

impl Step {
    /// What it touches.
    #[must_use]
    pub fn path(&self) -> &ItemPath {
        match self {
            Self::List(path)
            | Self::Stat(path)
            | Self::Absent(path)
            | Self::Xattrs(path)
            | Self::Read { path, .. } => path,
        }
    }

    /// The bytes of files that it is about.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Read { len, .. } => *len,
            Self::List(_) | Self::Stat(_) | Self::Absent(_) | Self::Xattrs(_) => 0,
        }
    }
}

impl From<Access> for Step {
    fn from(access: Access) -> Self {
        match access {
            Access::List { path, .. } => Self::List(path),
            Access::Stat { path } => Self::Stat(path),
            Access::Absent { path } => Self::Absent(path),
            Access::Xattrs { path } => Self::Xattrs(path),
            Access::Read {
                path, offset, len, ..
            } => Self::Read { path, offset, len },
        }
    }
}
