//! Manifests: the entries of a dataset in dataset order, each with the hash of its bytes, in one file.
//!
//! Purpose: `copperfs dataset manifest` finds the files of a dataset ([`names`]), decides on its entries
//! ([`plan`]), reads storage once ([`hash`]) and writes the result ([`write`](mod@write)). Nodes and clients
//! open it ([`Manifest`]): a process with the hash of an entry has read the entry, or was given its manifest.
//! `docs/manifest-format.md` specifies the file, [`format`](mod@format) is its codec.
//!
//! What it does not do: it keeps no bytes of a dataset, and knows no cache, no chunk and no job.
//!
//! Invariants: a manifest has one state of each of its files, and the version of that state; storage is never
//! read again for an entry whose hash is in the journal ([`journal`]) or in an index. No content of a manifest,
//! a journal or a list causes a panic or takes more memory than the bounds allow.

pub mod format;
pub mod hash;
pub mod items;
pub mod journal;
pub mod list;
pub mod make;
pub mod names;
pub mod plan;
pub mod write;

pub use format::{Entry, FormatError, Freshness, Manifest};

use crate::index::IndexError;
use crate::num::to_usize;
use bytes::Bytes;
use copperfs_overlay::{Failure, FailureKind, ItemPath};
use format::{HEADER_BYTES, Header, MANIFEST_BYTES_MAX};
use list::ListFault;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Why a manifest cannot be made or opened. The message has the action, the cause and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The file is not a complete manifest of this format.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
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
    /// The disk of the output is full.
    #[error(
        "cannot {action} {}: {source}. Free some space and run the same command again: what is done is kept",
        path.display()
    )]
    DiskFull {
        /// The attempted action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The directory of the output does not exist.
    #[error("cannot write {}: its directory does not exist; make it, or give another name", .0.display())]
    NoDirectory(PathBuf),
    /// Another process writes the same manifest.
    #[error("{} is being written by another copperfs dataset manifest", .0.display())]
    Busy(PathBuf),
    /// The unfinished manifest is of another dataset.
    #[error(
        "{} was begun for {was}, not for {wanted}: give another -o, or remove it to begin again",
        path.display()
    )]
    Other {
        /// The journal.
        path: PathBuf,
        /// Its dataset.
        was: String,
        /// The requested dataset.
        wanted: String,
    },
    /// The dataset has no file.
    #[error("{uri} has no file, and a manifest needs at least one entry; check the path")]
    Empty {
        /// The dataset.
        uri: String,
    },
    /// The dataset is too large for one manifest.
    #[error("{uri} cannot have a manifest: {source}")]
    TooLarge {
        /// The dataset.
        uri: String,
        /// The cause.
        source: FormatError,
    },
    /// A line of a list is wrong.
    #[error("{}:{line}: {fault}", list.display())]
    List {
        /// The list.
        list: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The cause.
        fault: ListFault,
    },
    /// An order leaves out files of the dataset.
    #[error(
        "{} leaves out {count} files of the dataset, {first} for one: an order names every file once; add them, \
         or name what is wanted with --entries", list.display()
    )]
    Missing {
        /// The list.
        list: PathBuf,
        /// The number of the missing files.
        count: usize,
        /// The first of them by path.
        first: ItemPath,
    },
    /// The index of the dataset cannot be read.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The index is of another tree.
    #[error(
        "the index {index} is of {of}, and {uri} is not below it: give the index of the dataset"
    )]
    OtherTree {
        /// The index.
        index: String,
        /// The tree.
        of: String,
        /// The dataset.
        uri: String,
    },
    /// The index lacks a directory of the dataset.
    #[error(
        "the index {index} has no listing of {path}: make it again with copperfs index update, or leave out --index"
    )]
    NotIndexed {
        /// The index.
        index: String,
        /// The directory.
        path: ItemPath,
    },
    /// A directory cannot be listed, or a file cannot be looked at.
    #[error(
        "cannot list {path}: {failure}. A manifest has all files of its dataset: make it readable first"
    )]
    Listing {
        /// The path, relative to the dataset's root.
        path: ItemPath,
        /// The cause.
        failure: Failure,
    },
    /// A file is written to all the time.
    #[error(
        "{path} changes all the time: run the command again when nothing writes to the dataset"
    )]
    Unsettled {
        /// The path, relative to the dataset's root.
        path: ItemPath,
    },
    /// Files cannot be read, or change while they are read.
    #[error(
        "{}so there is no new manifest yet. What is done is kept: {}, and run the same command again",
        lines(failures), remedy(failures, *indexed)
    )]
    Unreadable {
        /// The files, relative to the dataset's root, with the causes; not empty.
        failures: Vec<(ItemPath, Failure)>,
        /// Whether names and versions come from an index.
        indexed: bool,
    },
    /// An entry was neither read nor reported as unreadable. This is a bug.
    #[error("entry {number} has no hash after all files were read; run the same command again")]
    NoHash {
        /// The entry.
        number: usize,
    },
    /// A task that reads files panicked.
    #[error("a part of the reading died: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// A line for each failure.
fn lines(failures: &[(ItemPath, Failure)]) -> String {
    let lines = failures.iter().map(|(path, failure)| {
        let action = match failure.kind {
            FailureKind::Stale => "changed before its hash was complete",
            _ => "cannot be read",
        };
        format!("{path} {action}: {failure}\n")
    });
    lines.collect()
}

/// The advice for `failures`.
fn remedy(failures: &[(ItemPath, Failure)], indexed: bool) -> &'static str {
    let has_changed = |failure: &Failure| failure.kind == FailureKind::Stale;
    match failures.iter().any(|(_, failure)| has_changed(failure)) {
        true if indexed => "make the index again with copperfs index update",
        true => "wait until nothing writes to the dataset",
        false => "make the files readable",
    }
}

/// Makes the error of `action` on the file at `path`.
fn io_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> ManifestError + Copy {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    move |source| {
        let path = path.to_owned();
        match source.kind() {
            StorageFull | QuotaExceeded => ManifestError::DiskFull {
                action,
                path,
                source,
            },
            _ => ManifestError::Io {
                action,
                path,
                source,
            },
        }
    }
}

/// `path` with `suffix` after its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

impl Manifest {
    /// Opens the manifest in the file at `path`. The header is checked before memory for the whole is allocated.
    ///
    /// # Errors
    /// It cannot be read, or is not a complete manifest.
    pub fn open(path: &Path) -> Result<Self, ManifestError> {
        let failed = io_error("read the manifest", path);
        let wrong = |source| ManifestError::Format {
            path: path.to_owned(),
            source,
        };
        let mut file = File::open(path).map_err(failed)?;
        let status = file.metadata().map_err(failed)?;
        if !status.is_file() {
            return Err(failed(io::Error::other("it is no file")));
        }
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        let mut head = (&mut file).take(HEADER_BYTES as u64);
        head.read_to_end(&mut bytes).map_err(failed)?;
        let header = Header::decode(&bytes, status.len()).map_err(wrong)?;
        // At most MANIFEST_BYTES_MAX, which the header's check enforces.
        let left = header.file_bytes.min(MANIFEST_BYTES_MAX) - bytes.len() as u64;
        bytes.reserve_exact(to_usize(left));
        file.take(left).read_to_end(&mut bytes).map_err(failed)?;
        Self::from_bytes(Bytes::from(bytes)).map_err(wrong)
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
