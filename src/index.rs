//! Indexes: a tree's names and attributes, optionally its files' contents, in one file.
//!
//! Purpose: `copperfs index` walks a tree once ([`walk`]) and writes what it found as a compact file
//! ([`write`](mod@write)); a mount with `--index` answers for that tree's names from the file ([`serve`]) and asks
//! storage for bytes only. `docs/index-format.md` specifies the file, [`format`](mod@format) is its codec.
//!
//! What it does not do: it reads no data but to hash it, and keeps no more of an index in memory than a
//! few decoded blocks ([`read`]).
//!
//! Invariants: what is written is the origin's own truth; what is excluded and how links are shown is
//! decided where it is served. Nothing in a file can panic here or take more memory than the bounds
//! say. A torn or foreign file is refused with what to do about it.

pub mod format;
pub mod partial;
pub mod read;
pub mod serve;
pub mod walk;
pub mod write;

pub use format::{FormatError, Totals};
pub use read::{Bytestore, Index, LocalFile};
pub use serve::{Indexed, IndexedFiles, Rules};

use copperfs_overlay::{Failure, ItemPath};
use std::io;
use std::path::PathBuf;

/// Why an index cannot be made or used. Says what failed, why, and what to try.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The bytes are not those of a whole index of this version.
    #[error("{name}: {source}")]
    Format {
        /// The file.
        name: String,
        /// What is wrong with it.
        source: FormatError,
    },
    /// A local file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was to be done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The index could not be read through the tree.
    #[error("cannot read the index {name}: {failure}")]
    Read {
        /// The file.
        name: String,
        /// What happened.
        failure: Failure,
    },
    /// A file of this name exists, and may not be replaced.
    #[error(
        "{} already exists: give another name, or use --force to replace it when the new index is complete",
        .0.display()
    )]
    Exists(PathBuf),
    /// An index was begun here before.
    #[error(
        "{} is left of an index that was not finished: go on with --resume, or remove it to begin anew",
        .0.display()
    )]
    Begun(PathBuf),
    /// What is to be resumed was begun otherwise.
    #[error(
        "{} was begun for {was}, not for {wanted}: give the same URI and --hash, or remove it to begin anew",
        path.display()
    )]
    Other {
        /// The partial file.
        path: PathBuf,
        /// What it was begun for.
        was: String,
        /// What is asked for now.
        wanted: String,
    },
    /// Another process writes it.
    #[error("{} is being written by another copperfs index", .0.display())]
    Busy(PathBuf),
    /// The top of the tree cannot be listed.
    #[error("cannot list the top of {uri}: {failure}")]
    Top {
        /// The tree.
        uri: String,
        /// Why not.
        failure: Failure,
    },
    /// Too many directories fail.
    #[error(
        "more than {max} directories could not be listed, the last one because: {last}. What is done is kept; go on with --resume when the cause is gone"
    )]
    TooManyFailures {
        /// How many are borne.
        max: usize,
        /// The last failure.
        last: Failure,
    },
    /// A part of the walk died.
    #[error("a part of the walk died: {0}")]
    Task(#[from] tokio::task::JoinError),
}

#[cfg(test)]
mod tests;

/// A prefix whose names come from an index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexSpec {
    /// Where it answers.
    pub prefix: ItemPath,
    /// Its file.
    pub file: IndexFile,
    /// What is served at the prefix, and should have been indexed.
    pub uri: String,
}

/// Where an index is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IndexFile {
    /// A file of the roots' hosts.
    Local(PathBuf),
    /// A file of the namespace: every node reads it through the tree.
    Tree(ItemPath),
}
