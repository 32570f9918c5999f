//! A store's directory: whose it is, which format it has, and where things lie in it.

use super::unit::{Kind, Unit};
use parking_lot::RwLock;
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, flock, fstat, mkdirat, open, openat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Version of what lies on disk, as `docs/format.md` describes it.
pub(super) const FORMAT: u32 = 1;

/// The file that makes a directory a store. It is locked by the daemon that uses it.
const IDENTITY: &str = "copperfs-store";
const TITLE: &str = "copperfs store";
/// More of the identity file than this is never read.
const IDENTITY_BYTES_MAX: usize = 256;

const INDEX: &str = "index.log";
const CONTENT: &str = "content";
const WHOLE: &str = "whole";
const TEMPORARY: &str = "tmp";
const METADATA: &str = "meta";

/// Content files lie in as many directories as a byte has values: some thousand in each of a large
/// store.
pub(super) const FANS: u16 = 256;

/// Why a store cannot be used. The message says what to try.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Something about the directory failed.
    #[error("cannot {action} the store {}: {source}. Name a directory of a local disk that this user may write", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The directory holds something else.
    #[error("{} is not empty and holds no store of copperfs: nothing in it is touched. Name an empty or a new directory", .0.display())]
    Foreign(PathBuf),
    /// Others could put things into it.
    #[error("{} belongs to another user, or others may write to it: a store must be this user's own (chmod 700)", .0.display())]
    NotOwned(PathBuf),
    /// Another daemon has it.
    #[error("the store {} is in use by {holder}. Give each mount of this node a directory of its own", .path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// Who has it.
        holder: String,
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
    /// What went wrong when `action` was tried on the store at `path`.
    pub(super) fn on(path: &Path, action: &'static str) -> impl Fn(Errno) -> Self + Copy {
        move |errno| Self::Io {
            action,
            path: path.to_owned(),
            source: errno.into(),
        }
    }
}

/// An open and locked store directory.
pub(super) struct Directory {
    path: PathBuf,
    /// Replaced when the directory was taken away and made again; held for a look only.
    opened: RwLock<Arc<Opened>>,
    names: AtomicU64,
}

/// The directories, so that what they hold is found whatever happens to the path.
struct Opened {
    root: OwnedFd,
    content: OwnedFd,
    whole: OwnedFd,
    temporary: OwnedFd,
    /// Holds the lock.
    identity: Arc<OwnedFd>,
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
}

impl Directory {
    /// Opens, makes or takes over `path`.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = |action| StoreError::on(path, action);
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed("make")(errno)),
        }
        let root = open(path, directory_flags(), Mode::empty()).map_err(failed("open"))?;
        let status = fstat(&root).map_err(failed("look at"))?;
        let foreign = status.st_uid != rustix::process::geteuid().as_raw();
        if foreign || status.st_mode & 0o022 != 0 {
            return Err(StoreError::NotOwned(path.to_owned()));
        }
        let identity = Arc::new(claim(path, &root)?);
        let opened = Opened::make(root, identity).map_err(failed("make a directory of"))?;
        // What another process was writing when it ended.
        remove_files(&path.join(TEMPORARY)).map_err(|error| failed("clean")(errno_of(&error)))?;
        Ok(Self {
            path: path.to_owned(),
            opened: RwLock::new(Arc::new(opened)),
            names: AtomicU64::new(0),
        })
    }

    /// Makes again what somebody has removed while it was in use: what is in the directory, or the
    /// directory itself where there is one again at its path. Says whether anything was made; content
    /// and index may be gone then.
    ///
    /// Not on another filesystem: where the disk was unmounted, its mount point is not the store.
    pub(super) fn restore(&self) -> Result<bool, StoreError> {
        let failed = StoreError::on(&self.path, "restore");
        let before = self.opened();
        let was = fstat(&before.root).map_err(failed)?;
        let root = open(&self.path, directory_flags(), Mode::empty()).map_err(failed)?;
        let now = fstat(&root).map_err(failed)?;
        if now.st_dev != was.st_dev {
            return Err(failed(Errno::XDEV));
        }
        let same_root = now.st_ino == was.st_ino;
        if same_root && before.is_whole() {
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
            // Ours, whatever else is left in it.
            Arc::new(identify(&root).map_err(failed)?)
        };
        let opened = Opened::make(root, identity).map_err(failed)?;
        *self.opened.write() = Arc::new(opened);
        Ok(true)
    }

    fn opened(&self) -> Arc<Opened> {
        let opened = self.opened.read();
        Arc::clone(&opened)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// So many per cent of the whole filesystem, in bytes.
    pub(super) fn share(&self, percent: f64) -> Result<u64, StoreError> {
        let usage = self
            .usage()
            .map_err(StoreError::on(&self.path, "see the size of"))?;
        let total = usage.f_blocks.saturating_mul(usage.f_frsize);
        Ok(copperfs_policy::amounts::share(total, percent))
    }

    pub(super) fn metadata(&self) -> PathBuf {
        self.path.join(METADATA)
    }

    /// What its filesystem has room for.
    pub(super) fn usage(&self) -> Result<rustix::fs::StatVfs, Errno> {
        rustix::fs::fstatvfs(&self.opened().root)
    }

    /// Opens the index, to read it and to add to it.
    pub(super) fn open_index(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        openat(&self.opened().root, INDEX, flags, mode)
    }

    pub(super) fn content_fan(&self, fan: u16) -> PathBuf {
        self.path.join(CONTENT).join(format!("{fan:02x}"))
    }

    pub(super) fn wholes(&self) -> PathBuf {
        self.path.join(WHOLE)
    }

    /// Opens a content file for reading.
    pub(super) fn open_content(&self, unit: &Unit) -> Result<OwnedFd, Errno> {
        let opened = self.opened();
        let (directory, name) = opened.place(unit);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        openat(directory, name, flags, Mode::empty())
    }

    /// A new file to be written, and its name for [`Directory::publish`].
    pub(super) fn create(&self) -> Result<(OwnedFd, String), Errno> {
        let name = self.names.fetch_add(1, Ordering::Relaxed).to_string();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = openat(&self.opened().temporary, &name, flags, mode)?;
        Ok((file, name))
    }

    /// Opens a written file for reading only.
    pub(super) fn open_temporary(&self, temporary: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        openat(&self.opened().temporary, temporary, flags, Mode::empty())
    }

    /// Gives a written file its place; from here on it is never written again.
    pub(super) fn publish(&self, temporary: &str, unit: &Unit) -> Result<(), Errno> {
        let opened = self.opened();
        let (directory, name) = opened.place(unit);
        rustix::fs::renameat(&opened.temporary, temporary, directory, name)
    }

    /// Puts a written file in place of the index.
    pub(super) fn publish_index(&self, temporary: &str) -> Result<(), Errno> {
        let opened = self.opened();
        rustix::fs::renameat(&opened.temporary, temporary, &opened.root, INDEX)
    }

    /// Gives up a file that was being written.
    pub(super) fn discard(&self, temporary: &str) {
        unlinkat(&self.opened().temporary, temporary, AtFlags::empty()).ok();
    }

    /// Removes a content file. Who has it open keeps its bytes.
    pub(super) fn remove(&self, unit: &Unit) {
        let opened = self.opened();
        let (directory, name) = opened.place(unit);
        unlinkat(directory, name, AtFlags::empty()).ok();
    }

    /// Whether a content file is there.
    pub(super) fn exists(&self, unit: &Unit) -> bool {
        let opened = self.opened();
        let (directory, name) = opened.place(unit);
        rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }
}

impl Opened {
    /// Makes what is missing below `root`.
    fn make(root: OwnedFd, identity: Arc<OwnedFd>) -> Result<Self, Errno> {
        for name in [CONTENT, WHOLE, TEMPORARY, METADATA] {
            make(&root, name)?;
        }
        let below = |name: &str| openat(&root, name, directory_flags(), Mode::empty());
        let content = below(CONTENT)?;
        for fan in 0..FANS {
            make(&content, &format!("{fan:02x}"))?;
        }
        Ok(Self {
            content,
            whole: below(WHOLE)?,
            temporary: below(TEMPORARY)?,
            root,
            identity,
        })
    }

    /// Nothing was removed of what [`Opened::make`] makes.
    fn is_whole(&self) -> bool {
        let kept = [&self.content, &self.whole, &self.temporary, &self.identity];
        let fan = |fan: u16| {
            let status = rustix::fs::statat(
                &self.content,
                format!("{fan:02x}"),
                AtFlags::SYMLINK_NOFOLLOW,
            );
            status.is_ok()
        };
        kept.into_iter().all(has_links) && (0..FANS).all(fan)
    }

    /// The directory and name of a content file.
    fn place(&self, unit: &Unit) -> (&OwnedFd, String) {
        let name = unit.to_string();
        match unit.kind {
            Kind::Block => (&self.content, format!("{}/{}", &name[..2], &name[2..])),
            Kind::Whole => (&self.whole, name),
        }
    }
}

/// Whether any name leads to what is open here.
fn has_links(file: &OwnedFd) -> bool {
    fstat(file).is_ok_and(|status| status.st_nlink > 0)
}

fn make(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    match mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Removes the files of a directory, and directories of an older format that were put there.
fn remove_files(path: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(path)?.flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => std::fs::remove_dir_all(entry.path()),
            _ => std::fs::remove_file(entry.path()),
        }?;
    }
    Ok(())
}

pub(super) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Locks the directory and makes sure that it is a store of this format.
fn claim(path: &Path, root: &OwnedFd) -> Result<OwnedFd, StoreError> {
    let failed = |action| StoreError::on(path, action);
    let identity = match openat(root, IDENTITY, IDENTITY_FLAGS, Mode::empty()) {
        Ok(identity) => identity,
        Err(Errno::NOENT) => {
            let mut entries =
                std::fs::read_dir(path).map_err(|error| failed("look into")(errno_of(&error)))?;
            // A filesystem of its own has a directory for what it finds after a crash.
            if entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "lost+found")) {
                return Err(StoreError::Foreign(path.to_owned()));
            }
            create_identity(root).map_err(failed("write to"))?
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
        Err(Errno::WOULDBLOCK) => {
            return Err(StoreError::InUse {
                path: path.to_owned(),
                holder: holder.map_or_else(|| "another daemon".into(), |holder| process(&holder)),
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
        // An older format, or an identity that was torn: the content cannot be trusted to be where this
        // release looks for it.
        Some(_) | None if !text.is_empty() => {
            tracing::info!(store = %path.display(), "a store of an older format: its content is discarded");
            set_aside(path)
                .map_err(|error| failed("discard the old content of")(errno_of(&error)))?;
        }
        _ => {}
    }
    sign(&identity).map_err(failed("write to"))?;
    Ok(identity)
}

const IDENTITY_FLAGS: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

fn create_identity(root: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = IDENTITY_FLAGS | OFlags::CREATE;
    openat(root, IDENTITY, flags, Mode::RUSR | Mode::WUSR)
}

/// Says in the identity file what this is, and whose.
fn sign(identity: &OwnedFd) -> Result<(), Errno> {
    let (pid, namespace) = (std::process::id(), pid_namespace());
    let text = format!("{TITLE}\nformat {FORMAT}\npid {pid} {namespace}\n");
    rustix::fs::ftruncate(identity, 0)?;
    pwrite(identity, text.as_bytes(), 0)?;
    Ok(())
}

/// The pid namespace of this process, as the kernel names it.
fn pid_namespace() -> String {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.display().to_string()
}

/// Describes the process that an identity file names by its number and pid namespace. The lock proves that
/// it is alive; its number is meaningless in another namespace.
fn process(holder: &str) -> String {
    match holder.split_once(' ') {
        Some((pid, namespace)) if namespace != pid_namespace() => {
            format!("process {pid} of another pid namespace")
        }
        Some((pid, _)) => format!("process {pid}"),
        None => format!("process {holder}"),
    }
}

/// A new and locked identity file for a store that has lost its own.
fn identify(root: &OwnedFd) -> Result<OwnedFd, Errno> {
    let identity = create_identity(root)?;
    flock(&identity, FlockOperation::NonBlockingLockExclusive)?;
    sign(&identity)?;
    Ok(identity)
}

/// Moves everything but the identity to where it is removed.
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
