//! A POSIX directory as an origin: Lustre, NFS, a local disk.
//!
//! Every path is resolved by `openat2` beneath the root's descriptor, without magic links and without
//! following any symbolic link: the reader's kernel resolves links, component by component, so a path
//! that arrives here has none, and one that has has changed.
//!
//! Blocking calls run on their own threads (`threads`), at most `posix_concurrency` at a time (`calls`). A
//! call that does not return keeps its thread but releases its place. Its path is recorded as hanging
//! (`hanging`), and further requests about that path wait without a thread, so that a dead mount below the
//! origin costs one thread per path and not one per request.
//!
//! Special files are shown and never opened.

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

use super::error::OriginError;
use super::exclusion::Exclusion;
use super::failure::failure_of_errno;
use super::options::OriginOptions;
use super::sightings::Sightings;
use super::{ByteRange, ByteStream, HashedStream, Origin, StatAnswers, TurnStream, Turns};
use bytes::Bytes;
use calls::Usual;
use copperfs_overlay::{
    BundleRequest, Cursor, Failure, FilesystemUsage, ItemPath, Listing, XattrList,
};
use filesystem::Filesystems;
use futures_util::future::BoxFuture;
use hanging::Hanging;
use root::Root;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags, fstatvfs, open, openat2};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use threads::Threads;
use tokio::sync::Semaphore;

/// Never out of the origin, never through `/proc/self/fd` and its like, never along a link.
const CONFINED: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_SYMLINKS);

/// How often a resolution that the kernel asks to repeat is repeated.
const RESOLVE_ATTEMPTS: usize = 16;

/// A directory of this host as an origin. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PosixOrigin {
    shared: Arc<Shared>,
}

#[derive(Debug)]
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
    at_a_time: usize,
    threads: Threads,
    usual: Usual,
    hanging: Hanging,
    /// Set once the kernel refused `O_NOATIME` (it is the owner's right): not tried again, since a
    /// refused open costs a second one.
    atime_only: AtomicBool,
    /// Decides which states of young files have settled.
    sightings: Sightings,
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
        // Links in the root's own path are the administrator's business: plain open.
        let fd = root::open(root).map_err(|errno| cannot_open(&label, errno))?;
        check_kernel(&label, &fd)?;
        rustix::fs::accessat(
            &fd,
            ".",
            rustix::fs::Access::EXEC_OK,
            rustix::fs::AtFlags::EACCESS,
        )
        .map_err(|errno| cannot_open(&label, errno))?;
        let place = place_of(&fd, root);
        Ok(Self {
            shared: Arc::new(Shared {
                root: Root::new(root, fd).map_err(|errno| cannot_open(&label, errno))?,
                filesystems: Filesystems::of_origin(uri_of(root)),
                label,
                exclusion,
                places: Arc::new(Semaphore::new(options.posix_concurrency.max(1))),
                at_a_time: options.posix_concurrency.max(1),
                threads: Threads::default(),
                usual: Usual::default(),
                hanging: Hanging::new(Arc::clone(&options.hanging), place),
                atime_only: AtomicBool::new(false),
                sightings: Sightings::new(options.clock_skew),
                listing_attributes_max: options.listing_attributes_max,
                listing_attributes_timeout: options.listing_attributes_timeout,
                hang_timeout: options.hang_timeout,
            }),
        })
    }
}

/// The directory's path for the mount table. No filesystem is asked.
fn place_of(directory: &OwnedFd, named: &Path) -> PathBuf {
    let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
    std::fs::read_link(link).unwrap_or_else(|_| named.to_owned())
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

/// Tries what every later resolution relies on.
fn check_kernel(label: &str, root: &OwnedFd) -> Result<(), OriginError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    openat2(root, ".", flags, Mode::empty(), CONFINED)
        .map_err(|errno| openat2_refused(label, errno))?;
    open("/proc/self/fd", flags, Mode::empty()).map_err(|errno| OriginError::Kernel {
        call: "/proc/self/fd",
        source: errno.into(),
        hint: "mount /proc",
    })?;
    Ok(())
}

/// The error for a refused `openat2` of the origin's own directory. Three errors are about the call: the
/// kernel lacks it, a seccomp filter forbids it, or the kernel does not support its flags. All others are
/// about the directory.
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
        let name = if path.is_root() {
            &b"."[..]
        } else {
            path.as_bytes()
        };
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let root = self.root.now();
        let mut result = Err(Errno::AGAIN);
        for _ in 0..RESOLVE_ATTEMPTS {
            result = openat2(&root, name, flags, Mode::empty(), CONFINED);
            if !matches!(result, Err(Errno::AGAIN | Errno::INTR)) {
                break;
            }
        }
        result
    }

    /// Switches to the directory that the root's path leads to now, if another filesystem was mounted
    /// there.
    fn follow_root(&self) {
        self.root.follow(&self.label);
    }

    fn failure(&self, action: &str, path: &ItemPath, errno: Errno) -> Failure {
        failure_of_errno(&self.label, action, path, errno)
    }
}

impl Origin for PosixOrigin {
    fn list(
        &self,
        dir: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'static, Result<Listing, Failure>> {
        Box::pin(listing::list(Arc::clone(&self.shared), dir, cursor, limit))
    }

    fn stat(
        &self,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> BoxFuture<'static, Result<StatAnswers, Failure>> {
        Box::pin(stat::stat(Arc::clone(&self.shared), parent, names))
    }

    fn hanging(&self) -> Option<HangingCalls> {
        self.shared.hanging.report()
    }

    fn open(&self, range: ByteRange) -> BoxFuture<'static, Result<ByteStream, Failure>> {
        Box::pin(read::open(Arc::clone(&self.shared), range))
    }

    fn blocks(
        &self,
        range: &ByteRange,
    ) -> Option<BoxFuture<'static, Result<HashedStream, Failure>>> {
        let reading = read::blocks(Arc::clone(&self.shared), range.clone());
        Some(Box::pin(reading))
    }

    fn bundle(&self, request: BundleRequest, turns: Arc<dyn Turns>) -> TurnStream {
        bundle::stream(Arc::clone(&self.shared), request, turns)
    }

    fn xattrs(&self, path: ItemPath) -> BoxFuture<'static, Result<XattrList, Failure>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(
            shared.run("read the extended attributes of", path, |shared, path| {
                xattrs::all(shared, path)
            }),
        )
    }

    fn usage(&self, path: ItemPath) -> BoxFuture<'static, Result<FilesystemUsage, Failure>> {
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

/// The directory's real path, for matching link targets and mount points.
pub(crate) fn real_path(root: &Path) -> PathBuf {
    std::fs::canonicalize(root).unwrap_or_else(|_| root.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error about the directory does not blame the kernel.
    #[test]
    fn only_errors_of_the_call_itself_blame_the_kernel() {
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
