//! Storage that a root node reads: POSIX directories and object stores.
//!
//! Purpose: one trait, [`Origin`], for every kind of storage, and [`Origins`], which stands several of
//! them side by side under path prefixes and answers for all of them as
//! [`copperfs_overlay::Files`].
//!
//! [`Once`] wraps the origins, so that the node reads nothing again that it still caches.
//!
//! What it does not do: it caches nothing and retries no more than one request to one store; that is
//! the read path's.
//!
//! Invariants
//! - Bytes of two versions never mix: each piece of a [`ByteStream`] was verified, after it was read,
//!   to be of the version asked for, or the stream ends with `Stale`. Data is never short and never
//!   padded.
//! - Nothing outside the origin's root is reached, whatever a path or a link says, and no excluded path.
//! - What the origin answers never panics; every failure names the origin, the path, the cause and what
//!   to try, and no credential.

mod bundle;
mod counters;
mod error;
mod exclusion;
mod failure;
mod hanging_bound;
mod object;
mod once;
mod options;
mod posix;
mod router;
mod sightings;
mod turns;
mod under_way;

pub use counters::{OriginCounters, OriginSnapshot};
pub use error::OriginError;
pub use error::redacted;
pub use failure::{failure_of_errno, failure_of_status};
pub use hanging_bound::HangingBound;
pub use object::{ObjectOrigin, ObjectTraits, VersionSource};
pub use once::{Kept, Once, Storage};
pub use options::{ObjectAttributes, OriginOptions, OriginSpec, Retries, SymlinkPolicy};
pub use posix::{HangingCalls, PosixOrigin};
pub use router::{Finding, NamespaceRules, Origins, Outcome};
pub use turns::{Alone, Turn, TurnStream, Turns};
pub use under_way::Held;

use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BundleRequest, ContentHash, Cursor, Failure, FilesystemUsage, ItemPath, Listing,
    Version, XattrList,
};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use std::sync::Arc;
use std::time::SystemTime;

/// A run of bytes of one version of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ByteRange {
    /// The file, relative to the origin.
    pub path: ItemPath,
    /// The version wanted.
    pub version: Version,
    /// Size of that version in bytes.
    pub size: u64,
    /// First byte wanted.
    pub offset: u64,
    /// Number of bytes wanted; `offset + length` is at most `size`.
    pub length: u64,
}

/// Exactly the bytes of a [`ByteRange`] in order, in pieces of any size; after an error nothing more
/// comes. Dropping the stream ends the read.
pub type ByteStream = BoxStream<'static, Result<Bytes, Failure>>;

/// Whole blocks in order, the last of a file shorter, each with its hash. Dropping the stream ends the
/// read.
pub type HashedStream = BoxStream<'static, Result<(Bytes, ContentHash), Failure>>;

/// One answer per name, in the order of the names.
pub type StatAnswers = Vec<Result<Attributes, Failure>>;

/// Storage below one root. Paths are relative to that root. All calls may be cancelled by dropping the
/// future; a system call already under way ends on its own thread, and its result is dropped.
pub trait Origin: Send + Sync + 'static {
    /// The entries of directory `dir` from `cursor`, at most `limit` of them.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`; `PermissionDenied` when names may only be looked up one by one;
    /// `Stale` for a cursor of a directory that has been replaced; faults.
    fn list(
        &self,
        dir: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'static, Result<Listing, Failure>>;

    /// Attributes of `names` in directory `parent`; the empty name is the directory itself.
    ///
    /// # Errors
    /// The outer failure is about the directory, an inner one about one name.
    fn stat(
        &self,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> BoxFuture<'static, Result<StatAnswers, Failure>>;

    /// Opens the file, once, and streams the range.
    ///
    /// # Errors
    /// `Stale` when the file is of another version or gone, also in mid-stream; `IsADirectory`;
    /// `Unsupported` for special files and links; faults.
    fn open(&self, range: ByteRange) -> BoxFuture<'static, Result<ByteStream, Failure>>;

    /// The blocks of a range that begins with one, each with its hash; `None` where they come no faster
    /// than by [`Origin::open`] and hashing what it streams.
    ///
    /// # Errors
    /// As [`Origin::open`].
    fn blocks(
        &self,
        _range: &ByteRange,
    ) -> Option<BoxFuture<'static, Result<HashedStream, Failure>>> {
        None
    }

    /// The calls into this storage that hang, for operators.
    fn hanging(&self) -> Option<HangingCalls> {
        None
    }

    /// The whole content of small files of one directory, in the order in which their reads complete. Files
    /// of another version, files that cannot be read, and files whose turn is not free are left out.
    fn bundle(&self, request: BundleRequest, turns: Arc<dyn Turns>) -> TurnStream {
        bundle::one_by_one(self, request, &turns)
    }

    /// All extended attributes of `path`.
    ///
    /// # Errors
    /// `Unsupported` where there are none; faults.
    fn xattrs(&self, path: ItemPath) -> BoxFuture<'static, Result<XattrList, Failure>>;

    /// Usage of the filesystem that holds `path`.
    ///
    /// # Errors
    /// Faults.
    fn usage(&self, path: ItemPath) -> BoxFuture<'static, Result<FilesystemUsage, Failure>>;
}

/// The time of this host's clock, in nanoseconds since 1970.
fn now_ns() -> i128 {
    match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i128::try_from(since.as_nanos()).unwrap_or(i128::MAX),
        Err(before) => -i128::try_from(before.duration().as_nanos()).unwrap_or(i128::MAX),
    }
}
