//! The filesystem that the FUSE front serves, as a trait, and the types of its answers.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// An inode number. 1 is the root of the mount. A number belongs to one version of one file and is never
/// reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory of the mount.
    pub const ROOT: Self = Self(1);
}

/// The answer to a request: a ready one, which is sent on the FUSE thread itself, or a future.
///
/// A future is polled once on the FUSE thread, because a hop through the async runtime costs more than an answer from
/// memory. So it must do nothing there that takes longer than 0.1 ms. If it is not ready then, the front spawns it, and
/// drops (cancels) it when the reader is killed.
#[must_use]
#[expect(missing_debug_implementations, reason = "futures have none")]
pub enum Answer<T> {
    /// The answer is ready.
    Ready(T),
    /// The reader waits, for [`crate::MountOptions::request_timeout`] at most.
    Pending(BoxFuture<'static, Result<T, FsError>>),
    /// The reader waits without a limit: the user has asked for the operation that takes this long.
    Unbounded(BoxFuture<'static, Result<T, FsError>>),
}

/// An answer, or the error that is known at once.
pub type Response<T> = Result<Answer<T>, FsError>;

impl<T: Send + 'static> Answer<T> {
    /// Asks `next` after a success, at once if this answer is ready. A future that becomes part of another
    /// one is subject to the time limit of the first.
    pub(crate) fn and_then<U: Send + 'static>(
        self,
        next: impl FnOnce(T) -> Response<U> + Send + 'static,
    ) -> Response<U> {
        match self {
            Self::Ready(value) => next(value),
            Self::Pending(future) => Ok(Answer::Pending(Box::pin(async move {
                next(future.await?)?.resolve().await
            }))),
            Self::Unbounded(future) => Ok(Answer::Unbounded(Box::pin(async move {
                next(future.await?)?.resolve().await
            }))),
        }
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// The request fails.
    pub async fn resolve(self) -> Result<T, FsError> {
        match self {
            Self::Ready(value) => Ok(value),
            Self::Pending(future) | Self::Unbounded(future) => future.await,
        }
    }
}

/// Why a request failed. `errno.rs` maps each variant to its errno.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum FsError {
    /// No such name, or the inode is no longer known.
    #[error("no such file or directory")]
    NotFound,
    /// Not a directory.
    #[error("not a directory")]
    NotADirectory,
    /// Is a directory.
    #[error("is a directory")]
    IsADirectory,
    /// The origin denies access.
    #[error("permission denied")]
    PermissionDenied,
    /// The operation is reserved to the mount's owner and root.
    #[error("operation not permitted")]
    NotOwner,
    /// The file changed at the origin, and its old bytes are gone.
    #[error("stale file handle")]
    Stale,
    /// A symlink loop, or a link that leaves the origin.
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// The name is too long.
    #[error("file name too long")]
    NameTooLong,
    /// Not a symlink, an invalid offset, or an invalid ioctl argument.
    #[error("invalid argument")]
    InvalidArgument,
    /// No such extended attribute.
    #[error("no data available")]
    NoAttribute,
    /// Not supported here.
    #[error("operation not supported")]
    Unsupported,
    /// `SEEK_DATA`/`SEEK_HOLE` beyond the end.
    #[error("no such device or address")]
    BeyondEnd,
    /// A special file (fifo, socket, device), which is listed but cannot be opened.
    #[error("no such device")]
    SpecialFile,
    /// The parent or origin failed or did not answer in time, after all retries.
    #[error("input/output error")]
    Io,
    /// The reader was killed while it waited. The front reports it when it drops a future; backends never
    /// return it.
    #[error("interrupted")]
    Interrupted,
}

/// Type of a file: the kernel's number for it, which is `d_type`, and the upper four bits of `st_mode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum FileKind {
    /// Regular file.
    #[default]
    File = 0o10,
    /// Directory.
    Directory = 0o04,
    /// Symbolic link.
    Symlink = 0o12,
    /// Named pipe.
    Fifo = 0o01,
    /// Socket.
    Socket = 0o14,
    /// Character device.
    CharDevice = 0o02,
    /// Block device.
    BlockDevice = 0o06,
}

/// A point in time: seconds since 1970 (may be negative) and nanoseconds below 1e9.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timestamp {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds.
    pub nanoseconds: u32,
}

/// Attributes for the kernel. The default has every field zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Type.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub links: u32,
    /// Device number of a device file.
    pub device: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Preferred I/O size in bytes.
    pub block_size: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last modification.
    pub mtime: Timestamp,
    /// Last status change.
    pub ctime: Timestamp,
    /// How long the kernel may cache these attributes, and the name under which they were looked up.
    pub ttl: Duration,
}

/// The result of a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The name exists, with these attributes. The kernel now holds one more reference to its inode, until
    /// `forget`.
    Found(Attr),
    /// The name does not exist.
    Absent {
        /// How long the kernel may cache this.
        ttl: Duration,
    },
}

/// One entry of a directory page.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// Name.
    pub name: Bytes,
    /// Type.
    pub kind: FileKind,
    /// The inode number to report in `d_ino`, never 0.
    pub ino: Ino,
    /// Whether attributes are ready, so that a READDIRPLUS reply may carry them.
    pub plus: bool,
}

/// An opened file, on mounts that report opens to the backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Opened {
    /// Passed to each [`Backend::read`] of this open and to [`Backend::release`].
    pub handle: u64,
    /// If set, every read of this open is a READ, and the kernel drops the file's cached pages. Mappings
    /// still use the page cache. If not set, reads use the page cache, and cached pages stay. Only
    /// `tracked` mounts honour it.
    pub direct: bool,
}

/// An opened directory, on mounts that report opendir to the backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenDir {
    /// Passed to each [`Backend::readdir`] of this open and to [`Backend::releasedir`].
    pub handle: u64,
    /// Whether the kernel may keep the listing that it has cached, if it has one.
    pub keep: bool,
}

/// Consecutive directory entries, beginning at the requested offset, including `.` and `..`.
pub trait DirPage: Send + Sync {
    /// Returns the entry at `index` of this page, or `None` after its last one. The entry's directory offset
    /// (which the kernel passes back to continue after it) is the page's first offset + `index` + 1.
    fn entry(&self, index: usize) -> Option<DirEntry>;

    /// Takes a reference to entry `index` for the kernel, as a look-up does. Returns its attributes. Called
    /// only for entries with `plus` set, and never for `.` and `..`. Returns `None`, and takes no reference, if
    /// the attributes are no longer ready.
    ///
    /// A READDIRPLUS reply still carries an entry without attributes, as name, type and `d_ino` with node
    /// id 0, and the kernel looks the name up when a program needs it. So a page may mix both kinds, and a
    /// listing never waits for attributes that no program uses. If the reply has no room for an entry, its
    /// reference is returned with [`Backend::forget`].
    fn look_up(&self, index: usize) -> Option<Attr>;
}

/// The maximum age of the cluster's counters. Counting them costs a message to every node, and any user of
/// the mount may ask for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatsAge {
    /// Counted after the request. For the mount's owner and root.
    New,
    /// Up to about a second old. For all other users.
    Recent,
}

/// A local file with the whole content of an inode, for passthrough.
pub type Backing = Arc<OwnedFd>;

/// Filesystem usage for `statfs`; blocks in units of `block_size` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Total blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Blocks free to unprivileged users.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Block size in bytes.
    pub block_size: u32,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// A filesystem. The methods are called on FUSE threads, several at a time, and must not block.
pub trait Backend: Send + Sync + 'static {
    /// Finds `name` (255 bytes at most) in directory `parent`. [`Lookup::Found`] gives the kernel one
    /// reference to the inode.
    fn lookup(&self, parent: Ino, name: &OsStr) -> Response<Lookup>;

    /// Called before a reply that gives the kernel references. They are known to a successor of the daemon when this
    /// returns.
    fn commit(&self) {}

    /// The kernel has dropped `count` references to `ino`.
    fn forget(&self, ino: Ino, count: u64);

    /// Returns the attributes of an inode.
    fn getattr(&self, ino: Ino) -> Response<Attr>;

    /// Returns the target of a symlink.
    fn readlink(&self, ino: Ino) -> Response<Bytes>;

    /// Called for each open, on `tracked` and `passthrough` mounts only. `thread` is the id of the thread that
    /// opens, in the daemon's pid namespace; 0 if it is outside that namespace. Resources that the reads of
    /// this open need are ready when this answers.
    fn open(&self, thread: u32, ino: Ino) -> Response<Opened>;

    /// Called after the last close of an [`open`](Self::open), when all of its reads are answered. Not
    /// called for files that are open when the mount ends.
    fn release(&self, ino: Ino, handle: u64);

    /// Returns a local file with all bytes of `ino`, on `passthrough` mounts, if the file is worth one.
    /// `Ready(None)` starts or continues the transfer of the bytes to this node; the file is then opened
    /// with `DIRECT_IO`. Not called while `ino` is open.
    fn backing(&self, ino: Ino) -> Response<Option<Backing>>;

    /// Returns up to `size` bytes from `offset`, and fewer only at the end of the file. `handle` is 0 on
    /// mounts that do not report opens.
    fn read(&self, ino: Ino, handle: u64, offset: u64, size: u32) -> Response<Bytes>;

    /// Called for each opendir, if [`crate::MountOptions::track_opendir`] is set.
    fn opendir(&self, _ino: Ino) -> Response<OpenDir> {
        Ok(Answer::Ready(OpenDir {
            handle: 0,
            keep: false,
        }))
    }

    /// Called after the last close of an [`opendir`](Self::opendir).
    fn releasedir(&self, _handle: u64) {}

    /// Returns a page of directory `ino` from `offset` (0: the beginning). A page may end before the
    /// directory does; an empty page is the end of the directory. `handle` is 0 on mounts that do not report
    /// opendir.
    fn readdir(&self, ino: Ino, handle: u64, offset: u64) -> Response<Arc<dyn DirPage>>;

    /// Returns the filesystem's usage.
    fn statfs(&self, ino: Ino) -> Response<Usage>;

    /// Returns the value of extended attribute `name`.
    fn getxattr(&self, ino: Ino, name: &OsStr) -> Response<Bytes>;

    /// Returns the names of the extended attributes, each followed by a NUL byte.
    fn listxattr(&self, ino: Ino) -> Response<Bytes>;

    /// Returns the offset of the next hole, or of the next data if `hole` is false, at or after `offset`.
    fn lseek(&self, ino: Ino, offset: u64, hole: bool) -> Response<u64>;

    /// Returns the bytes to store into the page cache for those of `inos` that are small, complete on this
    /// node, and not pushed since the kernel learned of them. Each returned inode counts as pushed from
    /// then on. Called on the notifier thread.
    fn pushable(&self, inos: &[Ino]) -> Vec<(Ino, Bytes)>;

    /// Returns up to `count` inodes that the kernel should drop because the backend needs the memory; empty
    /// if there is room. Called on the notifier thread after [`Notifier::prune`](crate::Notifier::prune),
    /// until it returns none.
    fn prunable(&self, _count: usize) -> Vec<Ino> {
        Vec::new()
    }

    /// Returns the parent directory and the name of `ino`, if it is a file. Called for inodes to be dropped
    /// on kernels that can only invalidate names.
    fn file_entry(&self, _ino: Ino) -> Option<(Ino, Bytes)> {
        None
    }

    /// Returns this node's counters as lines of name and value, for ioctl.
    fn node_stats(&self) -> String;

    /// Returns the summed counters of all nodes, at most as old as `age`, as lines of name and value, for
    /// ioctl.
    fn cluster_stats(&self, age: StatsAge) -> Response<String>;

    /// Returns the addresses of the daemon's sockets.
    fn sockets(&self) -> crate::ioctl::Sockets;

    /// Drops the cached state of `path` (relative to the mount, without leading slash; empty: everything)
    /// and below, on this node or on all nodes. Returns whether anything was cached. `NotFound`: no origin
    /// covers the path. The front has checked that the caller is the mount's owner or root.
    fn clear(&self, path: Bytes, cluster: bool) -> Response<bool>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_chain_of_answers_is_ready_if_every_answer_is() {
        let double = |number: u32| Ok(Answer::Ready(number * 2));
        let ready = Answer::Ready(2).and_then(double);
        assert!(matches!(ready, Ok(Answer::Ready(4))));
        let failed = Err(FsError::Stale).and_then(|answer: Answer<u32>| answer.and_then(double));
        assert!(matches!(failed, Err(FsError::Stale)));
        let pending = Answer::Pending(Box::pin(async { Ok(3) })).and_then(double);
        let Ok(Answer::Pending(future)) = pending else {
            panic!("not pending");
        };
        assert_eq!(future.await, Ok(6));
    }
}
