//! What the FUSE front needs answered.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// An inode number. 1 is the root of the mount. A number belongs to one version of one file and is
/// never given to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory of the mount.
    pub const ROOT: Self = Self(1);
}

/// Either an answer at hand, given on the FUSE thread itself, or a future that waits elsewhere.
///
/// A hit must be `Ready`: a hop through the async runtime costs 30 % of cold small reads. A `Pending`
/// future is spawned by the front; it is dropped (cancelled) when the reader is killed.
#[must_use]
pub enum Answer<T> {
    /// At hand.
    Ready(Result<T, FsError>),
    /// To be waited for, for [`crate::MountOptions::request_timeout`] at most.
    Pending(BoxFuture<'static, Result<T, FsError>>),
    /// To be waited for without a limit: the user has asked for the operation that waits.
    Unbounded(BoxFuture<'static, Result<T, FsError>>),
}

impl<T> std::fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ready(Ok(_)) => "Ready(Ok)",
            Self::Ready(Err(_)) => "Ready(Err)",
            Self::Pending(_) => "Pending",
            Self::Unbounded(_) => "Unbounded",
        })
    }
}

/// Why a request fails, in the front's own terms; `errno.rs` has the number for each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum FsError {
    /// No such name, or an inode that is no longer known.
    #[error("no such file or directory")]
    NotFound,
    /// Not a directory.
    #[error("not a directory")]
    NotADirectory,
    /// Is a directory.
    #[error("is a directory")]
    IsADirectory,
    /// The origin refuses.
    #[error("permission denied")]
    PermissionDenied,
    /// Only the mount's owner or root may.
    #[error("operation not permitted")]
    NotOwner,
    /// The file changed at the origin and its old bytes are gone.
    #[error("stale file handle")]
    Stale,
    /// Symlink loop, or a link that leaves the origin.
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// Name too long.
    #[error("file name too long")]
    NameTooLong,
    /// Not a symlink, an offset that makes no sense, an unknown ioctl argument.
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
    /// A special file (fifo, socket, device): shown, not opened.
    #[error("no such device")]
    SpecialFile,
    /// The parent or origin did not answer in time, or failed: after all retries.
    #[error("input/output error")]
    Io,
    /// The reader was killed while it waited. Given by the front itself when it drops a `Pending`
    /// future; a backend has no use for it.
    #[error("interrupted")]
    Interrupted,
}

/// Type of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

/// A point in time: seconds since 1970 (may be negative) and nanoseconds below 1e9.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timestamp {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds.
    pub nanoseconds: u32,
}

/// Attributes for the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    /// How long the kernel may use these attributes unasked.
    pub ttl: Duration,
}

/// What a look-up found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The name exists. The kernel now holds one reference more on its inode, until `forget`.
    Found {
        /// Attributes of the file.
        attr: Attr,
        /// How long the kernel may use the name unasked.
        entry_ttl: Duration,
    },
    /// The name does not exist, and the kernel may remember that for so long.
    Absent {
        /// How long.
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
    /// A number for `d_ino`, never 0.
    pub ino: Ino,
    /// Whether attributes are at hand, so that READDIRPLUS may carry the entry.
    pub plus: bool,
}

/// A file that was opened, where opens are seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Opened {
    /// Given back with each [`Backend::read`] of this open and with [`Backend::release`].
    pub handle: u64,
    /// Every read of this open is a READ, and what the page cache holds of the file is dropped. On
    /// `tracked` mounts only; mappings still go through the page cache. Not set: the page cache is
    /// used, and what it holds stays.
    pub direct: bool,
}

/// A directory that was opened, where opens of directories are seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenDir {
    /// Given back with each [`Backend::readdir`] of this open and with [`Backend::releasedir`].
    pub handle: u64,
    /// The kernel may go on using the listing that it has cached, if it has one.
    pub keep: bool,
}

/// A run of directory entries, from the offset that was asked for. `.` and `..` are part of it.
pub trait DirPage: Send + Sync {
    /// The entry at `index` of this page, or `None` at its end. Its directory offset (what the kernel
    /// passes back to go on behind it) is the page's first offset + `index` + 1.
    fn entry(&self, index: usize) -> Option<DirEntry>;

    /// Takes a reference on entry `index` for the kernel, as a look-up does, and gives what to tell
    /// it: attributes, and how long the name may be used. Asked only for entries with `plus` set,
    /// never for `.` and `..`. `None`: attributes are not at hand after all, and no reference was
    /// taken.
    ///
    /// An entry without attributes still travels in a READDIRPLUS reply, as name, type and `d_ino`
    /// with node id 0 ("look it up if you care"): so a page may mix both kinds, a listing never waits
    /// for attributes, and nobody is asked to `stat` what nobody looks at. A reference that was taken
    /// and found no room in the reply is given back by [`Backend::forget`].
    fn look_up(&self, index: usize) -> Option<(Attr, Duration)>;
}

/// Who asks: for permission checks of ioctl, for attribution, and to notice that the reader died.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reader {
    /// Thread id as the daemon's pid namespace sees it; 0 if it lies outside of it.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
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

/// A real file that holds the whole content of an inode, for passthrough.
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

/// Answers the FUSE front. Methods are called on FUSE threads, several at a time: they never block.
pub trait Backend: Send + Sync + 'static {
    /// Finds `name` (255 bytes at most) in directory `parent`. A `Found` counts as one kernel reference on the inode.
    fn lookup(&self, reader: Reader, parent: Ino, name: &OsStr) -> Answer<Lookup>;

    /// The kernel drops `count` references on `ino`.
    fn forget(&self, ino: Ino, count: u64);

    /// Attributes of an inode.
    fn getattr(&self, ino: Ino) -> Answer<Attr>;

    /// Target of a symlink.
    fn readlink(&self, ino: Ino) -> Answer<Bytes>;

    /// Called for each open where opens are seen (`tracked` and `passthrough` mounts). What stays
    /// ready for the reads of this open is ready when this answers.
    fn open(&self, reader: Reader, ino: Ino) -> Answer<Opened>;

    /// The last close of an open that was seen, behind the answers to all of its reads. What is open
    /// when the mount ends is not released one by one.
    fn release(&self, ino: Ino, handle: u64);

    /// For a `passthrough` mount: a file that holds all of `ino`'s bytes, if it is worth one and at
    /// hand. `Ready(Ok(None))` starts or continues bringing the bytes here and opens the file
    /// `DIRECT_IO` this time.
    fn backing(&self, ino: Ino) -> Answer<Option<Backing>>;

    /// Up to `size` bytes from `offset`, for the open `handle` (0 where opens are not seen); fewer
    /// only at the end of the file.
    fn read(&self, reader: Reader, ino: Ino, handle: u64, offset: u64, size: u32) -> Answer<Bytes>;

    /// Called for each opendir where they are seen ([`crate::MountOptions::see_directories`]).
    fn opendir(&self, ino: Ino) -> Answer<OpenDir> {
        let _one_like_another = ino;
        Answer::Ready(Ok(OpenDir {
            handle: 0,
            keep: false,
        }))
    }

    /// The last close of an opendir that was seen.
    fn releasedir(&self, handle: u64) {
        let _nothing_kept = handle;
    }

    /// A page of directory `ino`, opened as `handle` (0 where that is not seen), from `offset` (0: the
    /// beginning). An empty page is the end of the
    /// directory; a page may be shorter than the rest of it. `plus`: attributes are welcome where
    /// they are at hand; they are not worth a wait.
    fn readdir(&self, ino: Ino, handle: u64, offset: u64, plus: bool) -> Answer<Arc<dyn DirPage>>;

    /// Filesystem usage.
    fn statfs(&self, ino: Ino) -> Answer<Usage>;

    /// Value of extended attribute `name`.
    fn getxattr(&self, ino: Ino, name: &OsStr) -> Answer<Bytes>;

    /// Names of the extended attributes, each ended by a NUL byte.
    fn listxattr(&self, ino: Ino) -> Answer<Bytes>;

    /// Next data (`hole` = false) or hole at or behind `offset`.
    fn lseek(&self, ino: Ino, offset: u64, hole: bool) -> Answer<u64>;

    /// After a READDIRPLUS reply that carried `inos`: the bytes of those that are small, whole on
    /// this node and not yet pushed since the kernel learned of them, to be stored into the page
    /// cache. Called on the notifier thread. Each returned inode counts as pushed from then on.
    fn pushable(&self, inos: &[Ino]) -> Vec<(Ino, Bytes)>;

    /// Returns up to `count` inodes that the kernel should drop because the backend needs the memory; empty
    /// if there is room. Called on the notifier thread after [`Notifier::prune`](crate::Notifier::prune),
    /// until it returns none.
    fn prunable(&self, count: usize) -> Vec<Ino> {
        let _room_for_all = count;
        Vec::new()
    }

    /// The parent directory and the name of `ino`, if it is a file. Called for inodes to be dropped on
    /// kernels that can only invalidate names.
    fn file_entry(&self, ino: Ino) -> Option<(Ino, Bytes)> {
        let _unknown = ino;
        None
    }

    /// This node's counters as lines of name and value, for ioctl.
    fn node_stats(&self) -> String;

    /// The counters of all nodes, summed, no older than `age` says, as lines of name and value, for ioctl.
    fn cluster_stats(&self, age: StatsAge) -> Answer<String>;

    /// Where the daemon takes commands; `None` while it is starting.
    fn sockets(&self) -> Option<crate::ioctl::Sockets>;

    /// Drops the cached state of `path` (relative to the mount, without leading slash; empty: everything)
    /// and below, on this node or on all nodes. Returns whether anything was cached. `NotFound`: no origin
    /// covers the path. The front has checked that the caller is the mount's owner or root.
    fn clear(&self, path: Bytes, cluster: bool) -> Answer<bool>;
}
