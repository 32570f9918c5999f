//! Storage that a root node reads: POSIX directories and object stores.
//!
//! Purpose: one trait, [`Origin`], for every kind of storage, and [`Origins`], which serves several of
//! them side by side under path prefixes as one [`copperfs_overlay::Files`]. [`CoalescedStorage`] wraps the
//! origins, so that the node reads no block again that it still caches.
//!
//! What it does not do: it caches nothing, and its only retries are those of a single request to an object
//! store. Everything else is up to the read path.
//!
//! Invariants
//! - Bytes of two versions never mix: each piece of a [`ByteStream`] was verified, after it was read, to be
//!   of the requested version, or the stream ends with `Stale`. Data is never short and never padded.
//! - No path and no link leads out of the origin's root or to an excluded path.
//! - No answer of storage causes a panic. Every failure names the origin, the path, the cause and a remedy,
//!   and no credential.

mod bundle;
mod claims;
mod coalesced;
mod counters;
mod error;
mod exclusion;
mod failure;
mod hanging_bound;
mod mount_watch;
mod object;
mod options;
mod posix;
mod router;
mod settling;

pub use claims::{BlockClaim, ClaimFile, ClaimedStream, FileClaim, claim_any};
pub use coalesced::{BlockCache, CoalescedStorage, Storage};
pub use counters::{OriginCounters, StorePressure};
pub use error::OriginError;
pub use error::redacted;
pub use hanging_bound::HangingBound;
pub use object::ObjectOrigin;
pub use object::permission_options;
pub use options::{OriginOptions, OriginSpec, Retries, SymlinkPolicy};
pub use posix::{HangingCalls, POSIX_THREADS, PosixOrigin};
pub use router::{Finding, NamespaceRules, Origins, Outcome, Renewal};

use bytes::{Bytes, BytesMut};
use copperfs_overlay::{
    Attributes, BundleRequest, ContentHash, Cursor, Failure, FailureKind, FileKind,
    FilesystemUsage, ItemPath, Listing, Timestamp, Version, XattrList,
};
use failure::Cause;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use std::time::SystemTime;

/// A run of bytes of one version of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ByteRange {
    /// The file, relative to the origin.
    pub path: ItemPath,
    /// The requested version.
    pub version: Version,
    /// Size of that version in bytes.
    pub size: u64,
    /// The first requested byte.
    pub offset: u64,
    /// The number of requested bytes; `offset + length` is at most `size`.
    pub length: u64,
}

/// Exactly the bytes of a [`ByteRange`] in order, in pieces of any size. The stream ends after an error.
/// Dropping it ends the read.
pub type ByteStream = BoxStream<'static, Result<Bytes, Failure>>;

/// Whole blocks in order, each with its hash. The last block of a file may be shorter. Dropping the stream
/// ends the read.
pub type HashedStream = BoxStream<'static, Result<(Bytes, ContentHash), Failure>>;

/// One answer per name, in the order of the names.
pub type StatAnswers = Vec<Result<Attributes, Failure>>;

/// The answer of storage to a request.
pub type Answer<T> = BoxFuture<'static, Result<T, Failure>>;

/// Storage below one root. Paths are relative to that root. All calls may be cancelled by dropping the
/// future; a system call that is already running ends on its own thread, and its result is dropped.
pub trait Origin: Send + Sync + 'static {
    /// The entries of directory `dir` from `cursor`, at most `limit` of them.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`; `PermissionDenied` if names may only be looked up one by one;
    /// `Stale` for a cursor of a directory that was replaced; faults.
    fn list(&self, dir: ItemPath, cursor: Option<Cursor>, limit: usize) -> Answer<Listing>;

    /// Attributes of `names` in directory `parent`; the empty name is the directory itself.
    ///
    /// # Errors
    /// The outer failure is about the directory, an inner one about one name.
    fn stat(&self, parent: ItemPath, names: Vec<Bytes>) -> Answer<StatAnswers>;

    /// Opens the file, once, and streams the range.
    ///
    /// # Errors
    /// `Stale` if the file is of another version or gone, also in mid-stream; `IsADirectory`;
    /// `Unsupported` for special files and links; faults.
    fn open(&self, range: ByteRange) -> Answer<ByteStream>;

    /// The blocks of a range that begins at a block, each with its hash. Returns `None` if hashing the
    /// stream of [`Origin::open`] is as fast.
    ///
    /// # Errors
    /// As [`Origin::open`].
    fn blocks(&self, _range: &ByteRange) -> Option<Answer<HashedStream>> {
        None
    }

    /// The calls into this storage that hang, for operators.
    fn hanging(&self) -> Option<HangingCalls> {
        None
    }

    /// The whole content of small files of one directory, in the order in which their reads complete. Each
    /// file is read only if `claim` grants it.
    fn bundle(&self, request: BundleRequest, claim: ClaimFile) -> ClaimedStream;

    /// All extended attributes of `path`.
    ///
    /// # Errors
    /// `Unsupported` if the storage has none; faults.
    fn xattrs(&self, path: ItemPath) -> Answer<XattrList>;

    /// Usage of the filesystem that holds `path`.
    ///
    /// # Errors
    /// Faults.
    fn usage(&self, path: ItemPath) -> Answer<FilesystemUsage>;
}

/// The time of this host's clock, in nanoseconds since 1970.
fn now_ns() -> i128 {
    match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i128::try_from(since.as_nanos()).unwrap_or(i128::MAX),
        Err(before) => -i128::try_from(before.duration().as_nanos()).unwrap_or(i128::MAX),
    }
}

/// The path of `name` in directory `parent`; the empty name is the directory itself. A name that no file can
/// have is reported as missing, or as too long.
fn child_of(parent: &ItemPath, name: &[u8]) -> Result<ItemPath, Cause> {
    if name.is_empty() {
        return Ok(parent.clone());
    }
    parent.join(name).map_err(|invalid| {
        let kind = if name.len() > ItemPath::NAME_BYTES_MAX {
            FailureKind::NameTooLong
        } else {
            FailureKind::NotFound
        };
        Cause::new(kind, invalid.to_string())
    })
}

/// Attributes of a directory that no storage has. Constant, so that it never seems to change.
pub(crate) fn placeholder_directory() -> Attributes {
    let epoch = Timestamp {
        seconds: 0,
        nanoseconds: 0,
    };
    Attributes {
        kind: FileKind::Directory,
        mode: 0o555,
        uid: 0,
        gid: 0,
        // 1 for directories too: "unknown" to find, which would otherwise skip subdirectories.
        links: 1,
        device: 0,
        size: 0,
        blocks: 0,
        block_size: 4096,
        atime: epoch,
        mtime: epoch,
        ctime: epoch,
        version: Version::from_data([0; 16]),
        link_target: None,
        content: None,
    }
}

/// [`placeholder_directory`] with this process's user and group as its owners.
fn own_directory() -> Attributes {
    Attributes {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..placeholder_directory()
    }
}

/// All of `bytes` in one piece. Any other number of bytes than `length` is a fault of the origin.
async fn collected(mut bytes: ByteStream, length: u64, path: &ItemPath) -> Result<Bytes, Failure> {
    let mut whole = Bytes::new();
    while let Some(piece) = bytes.next().await.transpose()? {
        // Most ranges arrive in one piece, which is not copied.
        if whole.is_empty() {
            whole = piece;
        } else {
            let mut joined = BytesMut::from(whole);
            joined.extend_from_slice(&piece);
            whole = joined.freeze();
        }
        // Checked in each round, so that an endless stream is not collected in memory.
        if whole.len() as u64 > length {
            break;
        }
    }
    if whole.len() as u64 == length {
        return Ok(whole);
    }
    Err(wrong_data(
        "another number of bytes than the range has",
        path,
    ))
}

/// The failure for an origin that returned wrong data.
fn wrong_data(cause: &'static str, path: &ItemPath) -> Failure {
    Cause::new(FailureKind::Io, cause).failure("data", "read", path)
}

/// `bytes` with their hash.
fn with_hash(bytes: Bytes) -> (Bytes, ContentHash) {
    let hash = ContentHash(*blake3::hash(&bytes).as_bytes());
    (bytes, hash)
}

/// The first half of a hash.
fn truncated(hasher: &blake3::Hasher) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    short
}
