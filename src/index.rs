//! Indexes: a tree's names and attributes, optionally its files' contents, in one file.
//!
//! Purpose: `copperfs index` walks a tree once ([`walk`]) and writes the result to a compact file
//! ([`write`](mod@write)). A mount with `--index` takes the names of that tree from the file ([`serve`]), and
//! requests only bytes from storage. `docs/index-format.md` specifies the file, [`format`](mod@format) is its
//! codec.
//!
//! What it does not do: it reads no data except for hashes, and keeps no more of an index in memory than a few
//! decoded blocks ([`read`]).
//!
//! Invariants: an index has the origin's own names and links; exclusions and the form of links are decided
//! where it is served. No content of a file causes a panic or takes more memory than the bounds allow. A torn
//! or foreign file is refused, with a remedy.

pub mod content;
pub mod format;
pub mod partial;
pub mod read;
pub mod serve;
pub mod walk;
pub mod write;

pub use format::{FormatError, IndexedEntry, Totals};
pub use read::{Bytestore, Index, LocalFile};
pub use serve::{IndexedFiles, IndexedPrefix};

use copperfs_overlay::{Entry, Failure, ItemPath, XattrList};
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why an index cannot be made or used. The message has the action, the cause and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The file is not a complete index of this version.
    #[error("{name}: {source}")]
    Format {
        /// The file.
        name: String,
        /// The cause.
        source: FormatError,
    },
    /// A local file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The index could not be read through the tree.
    #[error("cannot read the index {name}: {failure}")]
    Read {
        /// The file.
        name: String,
        /// The cause.
        failure: Failure,
    },
    /// A file of this name exists, and may not be replaced.
    #[error(
        "{} already exists: give another name, or use --force to replace it when the new index is complete",
        .0.display()
    )]
    Exists(PathBuf),
    /// An unfinished index exists at this path.
    #[error(
        "{} is left of an index that was not finished: go on with --resume, or remove it to begin again",
        .0.display()
    )]
    Begun(PathBuf),
    /// A file at this path is not an unfinished index of this version.
    #[error("{} is not an unfinished index of this version: remove it to begin again", .0.display())]
    Foreign(PathBuf),
    /// The unfinished index has other parameters.
    #[error(
        "{} was begun for {was}, not for {wanted}: give the same URI and --hash, or remove it to begin again",
        path.display()
    )]
    Other {
        /// The partial file.
        path: PathBuf,
        /// Its parameters.
        was: String,
        /// The requested parameters.
        wanted: String,
    },
    /// Another process is writing it.
    #[error("{} is being written by another copperfs index", .0.display())]
    Busy(PathBuf),
    /// The top of the tree cannot be listed.
    #[error("cannot list the top of {uri}: {failure}")]
    Top {
        /// The tree.
        uri: String,
        /// The cause.
        failure: Failure,
    },
    /// Too many directories cannot be listed.
    #[error(
        "more than {max} directories could not be listed, the last one because: {last}. What is done is kept; go on with --resume when the cause is gone"
    )]
    TooManyFailures {
        /// The maximum number of failures.
        max: usize,
        /// The last failure.
        last: Failure,
    },
    /// A task of the walk panicked.
    #[error("a part of the walk died: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// An entry of a directory as the walk found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WalkedEntry {
    /// Its name, kind and attributes.
    pub entry: Entry,
    /// The BLAKE3 hash of each 4 MiB, if the hash of its content is known and it is longer than that. The last part
    /// may be shorter.
    pub parts: Vec<[u8; 32]>,
    /// Its extended attributes, in the order of their names; `None` if they are not known.
    pub xattrs: Option<XattrList>,
}

#[cfg(test)]
mod tests;

/// A prefix whose names come from an index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexSpec {
    /// The prefix.
    pub prefix: ItemPath,
    /// Its file.
    pub file: FileLocation,
    /// The URI that is served at the prefix, and should have been indexed.
    pub uri: String,
}

/// The location of an index, or of another file that nodes read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileLocation {
    /// A file on the hosts; an index on those of the roots.
    Local(PathBuf),
    /// A file of the namespace. Every node reads it through the tree.
    Tree(ItemPath),
}

impl fmt::Display for FileLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => path.display().fmt(formatter),
            Self::Tree(path) => path.fmt(formatter),
        }
    }
}
