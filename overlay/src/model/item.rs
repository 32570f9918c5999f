//! The vocabulary of what travels: versions, attributes, listings, blocks and failures.
//!
//! These types are shared by every layer from the origin to the FUSE front. They are plain values:
//! no I/O, no clock. Their serde form is part of the wire format (`docs/wire.md`).

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
    /// Named pipe: shown, not opened.
    Fifo,
    /// Socket: shown, not opened.
    Socket,
    /// Character device: shown, not opened.
    CharDevice,
    /// Block device: shown, not opened.
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

/// The attributes of one file, as its origin gives them.
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
    /// Last access, last modification, last status change.
    pub atime: Timestamp,
    /// Last modification.
    pub mtime: Timestamp,
    /// Last status change.
    pub ctime: Timestamp,
    /// Which state of the file this is. A directory's version identifies the directory itself (it
    /// stays the same when entries come and go, and differs after the directory was replaced).
    pub version: Version,
    /// What a symlink points to; `None` for everything else.
    pub link_target: Option<Bytes>,
    /// The BLAKE3 hash of all bytes of a regular file in this version, where an index knows it. Files
    /// of equal content are then one file to every cache, whatever their paths.
    pub content: Option<ContentHash>,
}

impl Attributes {
    /// How close together two writes may be without a difference in the origin's times. If a second look at
    /// the file, at least this much later, finds the same state, the version has settled.
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
    /// Type, known without attributes.
    pub kind: FileKind,
    /// Attributes, where they came along cheaply.
    pub attributes: Option<Attributes>,
}

/// Where the next page of a large directory begins. Opaque to everyone but the origin that made it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Cursor(pub Bytes);

/// A directory, or one page of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Listing {
    /// Attributes of the directory itself.
    pub directory: Attributes,
    /// The entries in the origin's order, without `.` and `..`, each name once.
    pub entries: Vec<Entry>,
    /// Where to go on; `None` when the directory ends here.
    pub next: Option<Cursor>,
}

/// Extended attributes: name and value.
pub type XattrList = Vec<(Bytes, Bytes)>;

/// What `statfs` tells about a filesystem. Units: `block_size` bytes for blocks.
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

/// A piece of a stream of blocks.
#[derive(Clone, Debug)]
pub enum BlockPart {
    /// The next bytes of the current block.
    Bytes(Bytes),
    /// The current block is complete and verified, and this is its hash, made where the origin was
    /// read.
    End(ContentHash),
    /// What was given of the current block is void: it begins anew.
    Restart,
}

/// Why something could not be answered, in terms of what the asker can do about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum FailureKind {
    /// There is no such file. Cacheable: it is an answer, not a fault.
    NotFound,
    /// A component is not a directory.
    NotADirectory,
    /// A directory was asked for bytes.
    IsADirectory,
    /// The origin refuses the daemon's user. For a listing: look names up one by one instead.
    PermissionDenied,
    /// The file changed: the version asked for is gone. Ask for attributes again.
    Stale,
    /// Too many symlinks, or one that leaves the origin.
    SymlinkLoop,
    /// The name is too long for the origin.
    NameTooLong,
    /// Not supported by this origin (extended attributes of an object store, say).
    Unsupported,
    /// Nobody answered in time, or the connection is gone. Retrying later may help.
    Unavailable,
    /// A peer answered something that cannot be true, and nobody else had better: a wrong hash, a
    /// malformed frame.
    Corrupt,
    /// Any other fault of the origin, after its retries.
    Io,
}

/// A request that was not answered as wished: the kind says what to do, the detail what happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{detail}")]
pub struct Failure {
    /// What the asker can do about it.
    pub kind: FailureKind,
    /// For people: what failed, on what, and why. At most [`Failure::DETAIL_BYTES_MAX`].
    pub detail: String,
}

impl Failure {
    /// The longest detail that is kept.
    pub const DETAIL_BYTES_MAX: usize = 1024;

    /// A failure with its explanation, cut to [`Failure::DETAIL_BYTES_MAX`].
    #[must_use]
    pub fn new(kind: FailureKind, detail: impl Into<String>) -> Self {
        let mut detail: String = detail.into();
        if detail.len() > Self::DETAIL_BYTES_MAX {
            let mut end = Self::DETAIL_BYTES_MAX;
            while !detail.is_char_boundary(end) {
                end -= 1;
            }
            detail.truncate(end);
        }
        Self { kind, detail }
    }

    /// `path` does not exist.
    #[must_use]
    pub fn not_found(path: &ItemPath) -> Self {
        Self::new(
            FailureKind::NotFound,
            format!("{path}: no such file or directory"),
        )
    }
}

/// What a root serves below one prefix, in short: equal on roots that see the same storage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OriginFingerprint {
    /// The prefix in the namespace.
    pub prefix: ItemPath,
    /// A hash of what lies there.
    pub fingerprint: [u8; 16],
}
