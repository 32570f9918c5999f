//! Carries out a plan on one node, so that its kernel caches the files.
//!
//! A plan is a list of [`Step`]s: the accesses of a profile, or the contents of a directory. The node fetches
//! the data ahead of time (`src/node/warm.rs`), and [`touch`] accesses the mount as a program would, because
//! names, attributes and listings can enter the kernel's caches in no other way.

pub mod touch;

use crate::profile::Access;
use copperfs_overlay::ItemPath;
use serde::{Deserialize, Serialize};

/// One item of a plan. On the wire, it is a postcard item of a plan's pages (`docs/wire.md`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Step {
    /// The listing of a directory.
    List(ItemPath),
    /// A name and its attributes, and the target of a symlink.
    Stat(ItemPath),
    /// The absence of a name.
    Absent(ItemPath),
    /// The extended attributes of a file. The node caches them; the kernel does not.
    Xattrs(ItemPath),
    /// Bytes of a file.
    Read {
        /// The file.
        path: ItemPath,
        /// The first byte.
        offset: u64,
        /// The number of bytes; the read ends at the end of the file.
        len: u64,
    },
}

impl Step {
    /// The path that it touches.
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

    /// The number of bytes of file data.
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
