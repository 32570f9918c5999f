//! A POSIX directory as an origin: Lustre, NFS, a local disk.
//!
//! Every path is resolved by `openat2` beneath the root's descriptor, without magic links and without
//! following any symbolic link: the reader's kernel resolves links, component by component. So a path that
//! arrives here contains no link, unless a component was replaced meanwhile.
//!
//! Blocking calls run on their own threads (`threads`), at most `posix_concurrency` at a time (`calls`). A
//! call that does not return keeps its thread but releases its place. Its path is recorded as hanging
//! (`hanging`), and further requests about that path wait without a thread. So a dead mount below the origin
//! costs one thread per path and not one per request.
//!
//! Special files are listed and never opened.

mod attributes;
mod bundle;
mod calls;
mod filesystem;
mod hanging;
mod listing;
mod read;
mod root;
mod stat;
mod threads;
mod xattrs;

pub use hanging::HangingCalls;
pub use threads::POSIX_THREADS;

use super::error::OriginError;
use super::exclusion::Exclusion;
use super::failure::Cause;
use super::options::OriginOptions;
use super::settling::SettlingTable;
use super::{
    Answer, ByteRange, ByteStream, ClaimFile, ClaimedStream, HashedStream, Origin, StatAnswers,
    with_hash,
};
use bytes::Bytes;
use calls::AverageDuration;
use copperfs_overlay::{
    BundleRequest, Cursor, Failure, FilesystemUsage, ItemPath, Listing, XattrList,
};
use filesystem::Filesystems;
use hanging::HangingTable;
use root::Root;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Access, AtFlags, Mode, OFlags, ResolveFlags, accessat, fstatvfs, open, openat2};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use threads::Threads;
use tokio::sync::Semaphore;

/// Resolution never leaves the origin, and follows neither symbolic nor magic links.
const CONFINED: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_SYMLINKS);

/// Attempts of a resolution while the kernel asks for another one, because of a concurrent rename.
const RESOLVE_ATTEMPTS: usize = 16;

/// A directory of this host as an origin. Cheap to clone.
#[derive(Clone)]
pub struct PosixOrigin {
    shared: Arc<Shared>,
}

struct Shared {
    root: Root,
    /// The known mounts below the root.
    filesystems: Filesystems,
    /// The URI, for messages.
    label: Arc<str>,
    exclusion: Arc<Exclusion>,
    /// Places for concurrent calls …
    places: Arc<Semaphore>,
    /// … and their number.
    concurrency: usize,
    threads: Arc<Threads>,
    /// The average duration of a call.
    average: AverageDuration,
    hanging: HangingTable,
    /// The kernel has refused `O_NOATIME`, which is the owner's right. It is not tried again, because a
    /// refused open costs a second one.
    noatime_refused: AtomicBool,
    /// Decides which states of young files have settled.
    settling: SettlingTable,
    listing_attributes_max: usize,
    listing_attributes_timeout: Duration,
    hang_timeout: Duration,
}

impl PosixOrigin {
    /// Opens directory `root`.
    ///
    /// # Errors
    /// It is missing, no directory or not accessible, or the kernel lacks `openat2` or `/proc`.
    pub fn open(root: &Path, options: &OriginOptions) -> Result<Self, OriginError> {
        Self::open_excluding(root, options, Arc::new(Exclusion::default()))
    }

    pub(crate) fn open_excluding(
        root: &Path,
        options: &OriginOptions,
        exclusion: Arc<Exclusion>,
    ) -> Result<Self, OriginError> {
        let label: Arc<str> = format!("file://{}", root.display()).into();
        let dir = match options.opens_later {
            true => None,
            false => Some(examined(root, &label)?),
        };
        // The directory's path as in the mount table. Makes no call into a filesystem.
        let host_path = dir
            .as_ref()
            .and_then(|dir| std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).ok());
        let host_path = host_path.unwrap_or_else(|| root.to_owned());
        let concurrency = options.posix_concurrency.max(1);
        Ok(Self {
            shared: Arc::new(Shared {
                root: Root::new(root, dir).map_err(|errno| cannot_open(&label, errno))?,
                filesystems: Filesystems::of_origin(uri_of(root)),
                exclusion,
                places: Arc::new(Semaphore::new(concurrency)),
                concurrency,
                threads: Arc::default(),
                average: AverageDuration::default(),
                hanging: HangingTable::new(Arc::clone(&options.hanging), host_path),
                noatime_refused: AtomicBool::new(false),
                settling: SettlingTable::new(options.clock_skew),
                listing_attributes_max: options.listing_attributes_max,
                listing_attributes_timeout: options.listing_attributes_timeout,
                hang_timeout: options.hang_timeout,
                label,
            }),
        })
    }
}

fn cannot_open(label: &str, errno: Errno) -> OriginError {
    let hint = match errno {
        Errno::NOENT => "check the path, and that the filesystem is mounted on this node",
        Errno::NOTDIR => "name a directory",
        Errno::ACCESS | Errno::PERM => "run copperfs as a user who may enter the directory",
        Errno::NOTCONN | Errno::STALE => {
            "what is mounted there is dead: unmount and mount it again"
        }
        _ => "try to list it with ls as the same user",
    };
    OriginError::Directory {
        uri: label.to_owned(),
        source: errno.into(),
        hint,
    }
}

/// The error for a refused `openat2` of the origin's own directory. Three errors are about the call: the
/// kernel lacks it, a seccomp filter forbids it, or the kernel does not support its flags. All others are
/// about the directory.
/// Opens the directory `root`, and checks that it and this kernel can be used.
fn examined(root: &Path, label: &str) -> Result<OwnedFd, OriginError> {
    let failed = |errno| cannot_open(label, errno);
    // The administrator may use links in the path of the root, so this is a plain open.
    let fd = root::open(root).map_err(failed)?;
    // The features of the kernel on which every later resolution relies.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    openat2(&fd, ".", flags, Mode::empty(), CONFINED)
        .map_err(|errno| openat2_refused(label, errno))?;
    open("/proc/self/fd", flags, Mode::empty()).map_err(|errno| OriginError::Kernel {
        call: "/proc/self/fd",
        source: errno.into(),
        hint: "mount /proc",
    })?;
    accessat(&fd, ".", Access::EXEC_OK, AtFlags::EACCESS).map_err(failed)?;
    Ok(fd)
}

fn openat2_refused(label: &str, errno: Errno) -> OriginError {
    match errno {
        Errno::NOSYS | Errno::PERM | Errno::INVAL => OriginError::Kernel {
            call: "openat2",
            source: errno.into(),
            hint: "Linux 5.6 or newer is needed; in a container, its seccomp profile must allow openat2",
        },
        _ => cannot_open(label, errno),
    }
}

impl Shared {
    /// Opens `path` beneath the root.
    fn open_at(&self, path: &ItemPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let name: &[u8] = match path.as_bytes() {
            b"" => b".",
            name => name,
        };
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let root = self.root.dir()?;
        let mut result = Err(Errno::AGAIN);
        for _ in 0..RESOLVE_ATTEMPTS {
            result = openat2(&root, name, flags, Mode::empty(), CONFINED);
            if !matches!(result, Err(Errno::AGAIN | Errno::INTR)) {
                break;
            }
        }
        result
    }

    fn failure(&self, action: &str, path: &ItemPath, cause: impl Into<Cause>) -> Failure {
        cause.into().failure(&self.label, action, path)
    }
}

impl Origin for PosixOrigin {
    fn list(&self, dir: ItemPath, cursor: Option<Cursor>, limit: usize) -> Answer<Listing> {
        Box::pin(listing::list(Arc::clone(&self.shared), dir, cursor, limit))
    }

    fn stat(&self, parent: ItemPath, names: Vec<Bytes>) -> Answer<StatAnswers> {
        Box::pin(stat::stat(Arc::clone(&self.shared), parent, names))
    }

    fn hanging(&self) -> Option<HangingCalls> {
        self.shared.hanging.report()
    }

    fn open(&self, range: ByteRange) -> Answer<ByteStream> {
        let identity = std::convert::identity;
        Box::pin(read::pieces(Arc::clone(&self.shared), range, identity))
    }

    fn blocks(&self, range: &ByteRange) -> Option<Answer<HashedStream>> {
        let (shared, range) = (Arc::clone(&self.shared), range.clone());
        Some(Box::pin(read::pieces(shared, range, with_hash)))
    }

    fn bundle(&self, request: BundleRequest, claim: ClaimFile) -> ClaimedStream {
        bundle::stream(Arc::clone(&self.shared), request, claim)
    }

    fn xattrs(&self, path: ItemPath) -> Answer<XattrList> {
        let shared = Arc::clone(&self.shared);
        Box::pin(shared.run(xattrs::ACTION, path, |shared, path| {
            xattrs::all(shared, path)
        }))
    }

    fn usage(&self, path: ItemPath) -> Answer<FilesystemUsage> {
        const ACTION: &str = "read the usage of";
        let shared = Arc::clone(&self.shared);
        Box::pin(shared.run(ACTION, path, |shared, path| {
            let usage = shared
                .open_at(path, OFlags::PATH)
                .and_then(|fd| fstatvfs(&fd))
                .map_err(|errno| shared.failure(ACTION, path, errno))?;
            Ok(FilesystemUsage {
                blocks: usage.f_blocks,
                blocks_free: usage.f_bfree,
                blocks_available: usage.f_bavail,
                files: usage.f_files,
                files_free: usage.f_ffree,
                block_size: u32::try_from(usage.f_frsize).unwrap_or(4096),
                name_max: u32::try_from(usage.f_namemax).unwrap_or(255),
            })
        }))
    }
}

/// The canonical form of a directory's URI: without repeated slashes and dots.
pub(crate) fn uri_of(root: &Path) -> String {
    let plain: PathBuf = root.components().collect();
    format!("file://{}", plain.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_about_the_call_blame_the_kernel() {
        for errno in [Errno::NOSYS, Errno::PERM, Errno::INVAL] {
            let error = openat2_refused("file:///a", errno);
            assert!(matches!(error, OriginError::Kernel { .. }), "{errno:?}");
        }
        for errno in [
            Errno::ACCESS,
            Errno::NOTCONN,
            Errno::STALE,
            Errno::IO,
            Errno::MFILE,
            Errno::NOMEM,
        ] {
            let error = openat2_refused("file:///a", errno);
            assert!(matches!(error, OriginError::Directory { .. }), "{errno:?}");
        }
    }
}
