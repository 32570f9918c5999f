//! Attributes, listings, blocks and failures, which all layers from the origin to the FUSE front share.
//!
//! Plain values: no I/O, no clock. Their serde forms are part of the wire format (`docs/wire.md`).

use super::version::Version;
use bytes::Bytes;
use copperfs_topology::ItemPath;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The BLAKE3 hash of a block's bytes, or of a whole file's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ContentHash(pub [u8; 32]);

/// Type of a directory entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe. Listed, but cannot be opened.
    Fifo,
    /// Socket. Listed, but cannot be opened.
    Socket,
    /// Character device. Listed, but cannot be opened.
    CharDevice,
    /// Block device. Listed, but cannot be opened.
    BlockDevice,
}

/// A point in time, as `timespec`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Timestamp {
    /// Seconds since 1970-01-01T00:00:00Z; may be negative.
    pub seconds: i64,
    /// Nanoseconds within the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// The attributes of one file, as its origin reports them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attributes {
    /// Type.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky bits (`07777`).
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links at the origin.
    pub links: u32,
    /// Device number of a device file (`makedev` encoding), 0 otherwise.
    pub device: u64,
    /// Size in bytes; of a symlink the length of `link_target`.
    pub size: u64,
    /// Allocated 512-byte units.
    pub blocks: u64,
    /// Preferred I/O size in bytes.
    pub block_size: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last modification.
    pub mtime: Timestamp,
    /// Last status change.
    pub ctime: Timestamp,
    /// Identifies this state of the file. The version of a directory identifies the directory itself: it stays the same
    /// when entries come and go, and changes when the directory is replaced.
    pub version: Version,
    /// The target of a symlink; `None` for all other kinds.
    pub link_target: Option<Bytes>,
    /// The BLAKE3 hash of all bytes of a regular file in this version, if an index has it. Caches then treat files with
    /// equal content as one file, whatever their paths.
    pub content: Option<ContentHash>,
}

impl Attributes {
    /// Returns the longest interval between two writes that the origin's times may not show. If a second look at the
    /// file, at least this much later, finds the same state, the version has settled.
    #[must_use]
    pub fn granularity(&self) -> Duration {
        granularity(self.ctime.nanoseconds)
    }
}

/// Estimates the granularity of an origin's times from the `nanoseconds` of one status change time. Whole
/// seconds are taken as the two-second times of FAT. Any fraction shows times at least as fine as a tick of
/// the kernel's clock, which is at most 10 ms; 100 ms leave a margin for differences between CPUs and
/// servers.
#[must_use]
pub const fn granularity(nanoseconds: u32) -> Duration {
    if nanoseconds == 0 {
        Duration::from_secs(2)
    } else {
        Duration::from_millis(100)
    }
}

/// One name in a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Name, without slash.
    pub name: Bytes,
    /// Type, which needs no attributes.
    pub kind: FileKind,
    /// Attributes, if they were cheap to get.
    pub attributes: Option<Attributes>,
}

/// The beginning of the next page of a large directory. Opaque to all but the origin that made it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Cursor(pub Bytes);

/// A directory, or one page of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Listing {
    /// Attributes of the directory itself.
    pub directory: Attributes,
    /// The entries in the origin's order, without `.` and `..`, each name once.
    pub entries: Vec<Entry>,
    /// Where the next page begins; `None` at the end of the directory.
    pub next: Option<Cursor>,
}

/// Extended attributes: name and value.
pub type XattrList = Vec<(Bytes, Bytes)>;

/// The answer of `statfs` for a filesystem. Blocks have `block_size` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FilesystemUsage {
    /// Total data blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Blocks free to unprivileged users.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Bytes in a block.
    pub block_size: u32,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// A part of a stream of blocks.
#[derive(Clone, Debug)]
pub enum BlockPart {
    /// The next bytes of the current block.
    Bytes(Bytes),
    /// The current block is complete and verified. This is its hash, made by the node that read the origin.
    End(ContentHash),
    /// Takes back the bytes of the current block, which begins again.
    Restart,
}

/// The kind of a failure, by the possible reactions of the requester.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum FailureKind {
    /// There is no such file. This is a cacheable answer, not a fault.
    NotFound,
    /// A component is not a directory.
    NotADirectory,
    /// The file is a directory, which has no bytes.
    IsADirectory,
    /// The origin refuses the daemon's user. If it was a listing: look up names one by one instead.
    PermissionDenied,
    /// The file has changed, and the requested version is gone. Request its attributes again.
    Stale,
    /// Too many symlinks, or one that leaves the origin.
    SymlinkLoop,
    /// The name is too long for the origin.
    NameTooLong,
    /// Not supported by this origin, such as extended attributes of an object store.
    Unsupported,
    /// No answer came in time, or the connection is gone. A later retry may help.
    Unavailable,
    /// The answers of all peers were invalid: a wrong hash, a malformed frame.
    Corrupt,
    /// Any other fault of the origin, after its retries.
    Io,
}

/// The failure of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{detail}")]
pub struct Failure {
    /// Tells how the requester can react.
    pub kind: FailureKind,
    /// A message for users: the operation, its object, and the reason. At most [`Failure::DETAIL_BYTES_MAX`] bytes.
    pub detail: String,
}

impl Failure {
    /// Longest detail in bytes.
    pub const DETAIL_BYTES_MAX: usize = 1024;

    /// A failure with `detail`, cut to [`Failure::DETAIL_BYTES_MAX`] bytes.
    #[must_use]
    pub fn new(kind: FailureKind, detail: impl Into<String>) -> Self {
        let mut detail: String = detail.into();
        detail.truncate(detail.floor_char_boundary(Self::DETAIL_BYTES_MAX));
        Self { kind, detail }
    }

    /// The failure for a `path` that does not exist.
    #[must_use]
    pub fn not_found(path: &ItemPath) -> Self {
        Self::new(
            FailureKind::NotFound,
            format!("{path}: no such file or directory"),
        )
    }
}

/// Identifies the storage that a root serves below one prefix. Equal on roots that serve the same storage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OriginFingerprint {
    /// The prefix in the namespace.
    pub prefix: ItemPath,
    /// A hash of the storage.
    pub fingerprint: [u8; 16],
}
