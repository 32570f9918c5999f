//! A store's directory: its owner, its format, and the paths in it.

use super::record::{CONTENT, WHOLE};
use crate::process::Process;
use parking_lot::RwLock;
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, flock, fstat, mkdirat, open, openat, renameat, statat,
    unlinkat,
};
use rustix::io::{Errno, pread, pwrite};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The version of the on-disk format, which `docs/format.md` describes.
pub(super) const FORMAT: u32 = 1;

/// The file that marks a directory as a store. The daemon that uses the store locks it.
const IDENTITY: &str = "copperfs-store";
const TITLE: &str = "copperfs store";
/// The maximum size of the identity file.
const IDENTITY_BYTES_MAX: usize = 256;

pub(super) const INDEX: &str = "index.log";
const TEMPORARY: &str = "tmp";
pub(super) const METADATA: &str = "meta";

/// The number of directories of content files, one for each value of a byte. In a large store each has some
/// thousand files.
pub(super) const FANS: u16 = 256;

/// Why a store cannot be used. The message says what to try.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Something about the directory failed.
    #[error("cannot {action} the store {}: {source}. Name a directory of a local disk that this user may write", .path.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The directory has other content.
    #[error("{} is not empty and holds no store of copperfs: nothing in it is touched. Name an empty or a new directory", .0.display())]
    Foreign(PathBuf),
    /// Other users could write to it.
    #[error("{} belongs to another user, or others may write to it: a store must be this user's own (chmod 700)", .0.display())]
    NotOwned(PathBuf),
    /// Another daemon uses it.
    #[error("the store {} is in use by {holder}. Give each mount of this node a directory of its own: --disk DIR/{{rank}}:SIZE", .path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process that uses it.
        holder: String,
    },
    /// It has too much to write.
    #[error("the store {} has too many blocks to write: try again", .path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// A later release made it.
    #[error("the store {} has format {found}, and this release knows format {FORMAT}: use the later release, or remove the directory", .path.display())]
    Newer {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
}

impl StoreError {
    /// Makes the error of `action` on the store at `path`.
    pub(super) fn on<E: Into<io::Error>>(
        path: &Path,
        action: &'static str,
    ) -> impl Fn(E) -> Self + Copy {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source: source.into(),
        }
    }
}

/// An open and locked store directory. Its methods take paths below it.
pub(super) struct Directory {
    pub(super) path: PathBuf,
    /// Replaced when the directory was removed and restored. Locked for a copy only.
    opened: RwLock<Arc<OpenDirectory>>,
    /// The number of the next temporary file.
    next_name: AtomicU64,
}

/// The open directory, so that its files are found even if the path changes.
struct OpenDirectory {
    root: OwnedFd,
    /// Holds the lock.
    identity: Arc<OwnedFd>,
}

const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

impl Directory {
    /// Opens the store at `path`, or creates it.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = |action| StoreError::on(path, action);
        make(path).map_err(failed("make"))?;
        let root = open(path, DIRECTORY_FLAGS, Mode::empty()).map_err(failed("open"))?;
        let status = fstat(&root).map_err(failed("look at"))?;
        let foreign = status.st_uid != rustix::process::geteuid().as_raw();
        if foreign || status.st_mode & 0o022 != 0 {
            return Err(StoreError::NotOwned(path.to_owned()));
        }
        let identity = Arc::new(claim(path, &root)?);
        create_directories(&root).map_err(failed("make a directory of"))?;
        // Files that another process was writing when it ended.
        remove_files(&path.join(TEMPORARY)).map_err(StoreError::on(path, "clean"))?;
        Ok(Self {
            path: path.to_owned(),
            opened: RwLock::new(Arc::new(OpenDirectory { root, identity })),
            next_name: AtomicU64::new(0),
        })
    }

    /// Restores directories that were removed while the store was in use: subdirectories, or all of them if
    /// there is a new directory at the store's path. Returns whether anything was restored; content and index
    /// may be lost then.
    ///
    /// Fails on another filesystem: if the disk was unmounted, its mount point is not the store.
    pub(super) fn restore(&self) -> Result<bool, StoreError> {
        let failed = StoreError::on(&self.path, "restore");
        let before = self.opened();
        let was = fstat(&before.root).map_err(failed)?;
        let root = open(&self.path, DIRECTORY_FLAGS, Mode::empty()).map_err(failed)?;
        let now = fstat(&root).map_err(failed)?;
        // The disk was unmounted: its mount point must not become a second store.
        if now.st_dev != was.st_dev {
            return Err(failed(Errno::XDEV));
        }
        let same_root = now.st_ino == was.st_ino;
        if same_root && before.is_complete() {
            return Ok(false);
        }
        if now.st_uid != was.st_uid || now.st_mode & 0o022 != 0 {
            return Err(StoreError::NotOwned(self.path.clone()));
        }
        let identity = if !same_root {
            Arc::new(claim(&self.path, &root)?)
        } else if has_links(&before.identity) {
            Arc::clone(&before.identity)
        } else {
            // The directory belongs to this store, even without its identity.
            Arc::new(recreate_identity(&root).map_err(failed)?)
        };
        create_directories(&root).map_err(failed)?;
        *self.opened.write() = Arc::new(OpenDirectory { root, identity });
        Ok(true)
    }

    fn opened(&self) -> Arc<OpenDirectory> {
        Arc::clone(&self.opened.read())
    }

    /// `percent` of the whole filesystem, in bytes.
    pub(super) fn share(&self, percent: f64) -> Result<u64, StoreError> {
        let usage = self
            .usage()
            .map_err(StoreError::on(&self.path, "see the size of"))?;
        let total = usage.f_blocks.saturating_mul(usage.f_frsize);
        Ok(copperfs_policy::amounts::share(total, percent))
    }

    /// The usage of its filesystem.
    pub(super) fn usage(&self) -> Result<rustix::fs::StatVfs, Errno> {
        rustix::fs::fstatvfs(&self.opened().root)
    }

    /// Opens the index for reading and appending.
    pub(super) fn open_index(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        openat(&self.opened().root, INDEX, flags, mode)
    }

    /// Opens a file for reading.
    pub(super) fn open_file(&self, path: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        openat(&self.opened().root, path, flags, Mode::empty())
    }

    /// Creates a temporary file. Returns it with its path for [`Directory::publish`].
    pub(super) fn create(&self) -> Result<(OwnedFd, String), Errno> {
        let number = self.next_name.fetch_add(1, Ordering::Relaxed);
        let path = format!("{TEMPORARY}/{number}");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = openat(&self.opened().root, &path, flags, mode)?;
        Ok((file, path))
    }

    /// Renames a temporary file into place. A content file is never written again from here on.
    pub(super) fn publish(&self, temporary: &str, path: &str) -> Result<(), Errno> {
        let root = &self.opened().root;
        renameat(root, temporary, root, path)
    }

    /// Removes a file. Processes that have it open can still read it.
    pub(super) fn remove(&self, path: &str) {
        unlinkat(&self.opened().root, path, AtFlags::empty()).ok();
    }

    /// Whether a file exists.
    pub(super) fn exists(&self, path: &str) -> bool {
        self.opened().has(path)
    }
}

impl OpenDirectory {
    fn has(&self, path: &str) -> bool {
        statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Whether all directories and the identity still exist.
    fn is_complete(&self) -> bool {
        self.has(WHOLE)
            && self.has(TEMPORARY)
            && has_links(&self.identity)
            && (0..FANS).all(|number| self.has(&fan(number)))
    }
}

/// The directory of the block files whose names begin with the byte `number`.
pub(super) fn fan(number: u16) -> String {
    format!("{CONTENT}/{number:02x}")
}

/// Creates the missing directories below `root`.
fn create_directories(root: &OwnedFd) -> Result<(), Errno> {
    let top = [CONTENT, WHOLE, TEMPORARY, METADATA].map(str::to_owned);
    for path in top.into_iter().chain((0..FANS).map(fan)) {
        match mkdirat(root, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    // What was there may be a file. Directories were made in `content`.
    for path in [WHOLE, TEMPORARY] {
        openat(root, path, DIRECTORY_FLAGS, Mode::empty())?;
    }
    Ok(())
}

/// Makes the directory `path`, and the one above it: local nodes have theirs in one directory. If more is missing, a disk
/// is probably not mounted, and the store would fill the disk below.
fn make(path: &Path) -> Result<(), Errno> {
    let mkdir = |path: &Path| match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    };
    match (mkdir(path), path.parent()) {
        (Err(Errno::NOENT), Some(parent)) => {
            mkdir(parent)?;
            mkdir(path)
        }
        (made, _) => made,
    }
}

/// Whether an open file still has a name.
fn has_links(file: &OwnedFd) -> bool {
    fstat(file).is_ok_and(|status| status.st_nlink > 0)
}

/// Removes the files of a directory, and directories of an older format that were moved there.
fn remove_files(path: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(path)?.flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => std::fs::remove_dir_all(entry.path()),
            _ => std::fs::remove_file(entry.path()),
        }?;
    }
    Ok(())
}

/// Locks the store for this process and makes sure that it has this format.
///
/// One process at a time: the directory itself is locked meanwhile. Otherwise a second process could find the store
/// locked by the first, but still signed by a daemon that is dead, and would use the store as well.
fn claim(path: &Path, root: &OwnedFd) -> Result<OwnedFd, StoreError> {
    let lock = |operation| rustix::io::retry_on_intr(|| flock(root, operation));
    lock(FlockOperation::LockExclusive).map_err(StoreError::on(path, "lock"))?;
    let claimed = claim_alone(path, root);
    let _closing_unlocks_too = lock(FlockOperation::Unlock);
    claimed
}

fn claim_alone(path: &Path, root: &OwnedFd) -> Result<OwnedFd, StoreError> {
    let failed = |action| StoreError::on(path, action);
    let identity = match openat(root, IDENTITY, IDENTITY_FLAGS, Mode::empty()) {
        Ok(identity) => identity,
        Err(Errno::NOENT) => {
            let entries = std::fs::read_dir(path);
            let mut entries = entries.map_err(StoreError::on(path, "look into"))?;
            // The top directory of a filesystem may have one for files that were recovered after a crash.
            if entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "lost+found")) {
                return Err(StoreError::Foreign(path.to_owned()));
            }
            open_new_identity(root).map_err(failed("write to"))?
        }
        Err(errno) => return Err(failed("open")(errno)),
    };
    let mut text = [0; IDENTITY_BYTES_MAX];
    let read = pread(&identity, &mut text, 0).map_err(failed("read"))?;
    let text = String::from_utf8_lossy(&text[..read]).into_owned();
    let mut lines = text.lines();
    let titled = lines.next() == Some(TITLE);
    let word = |line: Option<&str>, key: &str| Some(line?.strip_prefix(key)?.trim().to_owned());
    let format = word(lines.next(), "format").and_then(|number| number.parse::<u32>().ok());
    let holder = word(lines.next(), "pid");
    match flock(&identity, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) if holder.as_deref().is_some_and(is_dead) => {
            lock_later(&identity).map_err(StoreError::on(path, "lock"))?;
        }
        Err(Errno::WOULDBLOCK) => {
            return Err(StoreError::InUse {
                path: path.to_owned(),
                holder: holder.map_or_else(
                    || "another daemon".into(),
                    |holder| describe_process(&holder),
                ),
            });
        }
        Err(errno) => return Err(failed("lock")(errno)),
    }
    match format.filter(|_| titled) {
        Some(found) if found > FORMAT => {
            return Err(StoreError::Newer {
                path: path.to_owned(),
                found,
            });
        }
        Some(FORMAT) => {}
        // An older format, or a torn identity: the content may have another layout.
        Some(_) | None if !text.is_empty() => {
            tracing::info!(store = %path.display(), "a store of an older format: its content is discarded");
            set_aside(path).map_err(StoreError::on(path, "discard the old content of"))?;
        }
        _ => {}
    }
    sign(&identity).map_err(failed("write to"))?;
    Ok(identity)
}

const IDENTITY_FLAGS: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

fn open_new_identity(root: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = IDENTITY_FLAGS | OFlags::CREATE;
    openat(root, IDENTITY, flags, Mode::RUSR | Mode::WUSR)
}

/// Writes the format and this process to the identity file.
fn sign(identity: &OwnedFd) -> Result<(), Errno> {
    let (pid, namespace) = (std::process::id(), pid_namespace());
    let text = format!("{TITLE}\nformat {FORMAT}\npid {pid} {namespace}\n");
    // In place of the earlier text, because a full disk has no room for more.
    pwrite(identity, text.as_bytes(), 0)?;
    rustix::fs::ftruncate(identity, text.len() as u64)
}

/// The pid namespace of this process, as the kernel names it.
fn pid_namespace() -> String {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.display().to_string()
}

/// Whether the process that an identity file names is dead, although it holds the lock: it was killed, and one of its
/// threads hangs in the kernel. It uses the store no more.
fn is_dead(holder: &str) -> bool {
    let pid = match holder.split_once(' ') {
        Some((pid, namespace)) if namespace == pid_namespace() => pid.parse().ok(),
        _ => None,
    };
    let process = pid.and_then(|pid| Process::open(pid).ok().flatten());
    process.is_some_and(|process| process.is_dead())
}

/// Locks an identity file when the process has ended that holds the lock now.
fn lock_later(identity: &OwnedFd) -> io::Result<()> {
    // The lock belongs to the open file, of which this is another descriptor.
    let identity = identity.try_clone()?;
    let lock = move || {
        if let Err(error) = flock(&identity, FlockOperation::LockExclusive) {
            tracing::warn!(%error, "a store stays without its lock");
        }
    };
    let locking = std::thread::Builder::new().name("copperfs-lock".to_owned());
    locking.spawn(lock).map(|_ends_with_the_other_process| ())
}

/// Describes the process that an identity file names by its number and pid namespace. The lock proves that
/// it is alive; its number is meaningless in another namespace.
fn describe_process(holder: &str) -> String {
    match holder.split_once(' ') {
        Some((pid, namespace)) if namespace != pid_namespace() => {
            format!("process {pid} of another pid namespace")
        }
        Some((pid, _)) => format!("process {pid}"),
        None => format!("process {holder}"),
    }
}

/// Creates and locks an identity file for a store that has lost its own.
fn recreate_identity(root: &OwnedFd) -> Result<OwnedFd, Errno> {
    let identity = open_new_identity(root)?;
    flock(&identity, FlockOperation::NonBlockingLockExclusive)?;
    sign(&identity)?;
    Ok(identity)
}

/// Moves everything except the identity to the temporary directory, which is cleaned afterwards.
fn set_aside(path: &Path) -> io::Result<()> {
    let temporary = path.join(TEMPORARY);
    std::fs::create_dir_all(&temporary)?;
    for entry in std::fs::read_dir(path)?.flatten() {
        let name = entry.file_name();
        if name != IDENTITY && name != TEMPORARY && name != "lost+found" {
            std::fs::rename(entry.path(), temporary.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;
    use std::sync::Barrier;

    /// Processes that start together after a daemon has died: its name is still in the store.
    #[test]
    fn one_of_two_gets_the_store_of_a_dead_daemon() {
        // It ends at once, and is a zombie until this test waits for it.
        let mut dead = Command::new("true").spawn().unwrap();
        while !Process::open(dead.id()).unwrap().unwrap().is_dead() {
            std::thread::yield_now();
        }
        let signature = format!(
            "{TITLE}\nformat {FORMAT}\npid {} {}\n",
            dead.id(),
            pid_namespace()
        );
        for _ in 0..60 {
            let scratch = tempfile::tempdir().unwrap();
            let path = scratch.path();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
            std::fs::write(path.join(IDENTITY), &signature).unwrap();
            let together = Barrier::new(2);
            let open = || {
                together.wait();
                Directory::open(path)
            };
            let (one, two) = std::thread::scope(|scope| {
                let one = scope.spawn(open);
                (open(), one.join().unwrap())
            });
            let refused = [one.as_ref().err(), two.as_ref().err()];
            let refused: Vec<_> = refused.into_iter().flatten().collect();
            assert!(
                matches!(refused.as_slice(), [StoreError::InUse { .. }]),
                "{refused:?}"
            );
        }
        dead.wait().unwrap();
    }
}
