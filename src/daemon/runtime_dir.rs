//! The directory with the files of one mount: pid file, log, control socket, and the files of a launch.
//!
//! Only the owner may access it. A file that another user could have written is not trusted, because every
//! user may write to `/tmp`.

use crate::config::resolve::instance_name;
use crate::logging;
use crate::process::{self, Identity, Process};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the directory of a mount is kept after the daemon has ended.
const LOG_AGE_KEPT: Duration = Duration::from_secs(7 * 86400);

/// The maximum number of bytes read from a pid file, which holds three numbers.
const PID_FILE_BYTES_MAX: u64 = 64;

/// The maximum number of directories examined when a daemon starts.
const SWEPT_MAX: usize = 1000;

/// A hint for all commands that create such a directory. (Only `mount` has the option `--runtime-dir`.)
const ELSEWHERE: &str = "Set XDG_RUNTIME_DIR to a directory of your own, for this command and those \
                         that follow; mount also takes --runtime-dir";

/// The file with the id of the launch that started the daemon.
pub const LAUNCH_FILE: &str = "launch";

/// The file with the path of the daemon's software mount, for commands that are given the data mount. It stays
/// after the daemon ended.
pub const MOUNT_FILE: &str = "mount";

/// The file with the path of the daemon's data mount, for commands that remove it after the daemon was killed.
pub const DATA_MOUNT_FILE: &str = "data-mount";

/// The file with the path of the daemon's log. It stays after the daemon ended.
pub const LOG_FILE: &str = "log-file";

/// The files with the topmost directories that were made for the mount and the data mount.
pub const MADE_FILES: [&str; 2] = ["made", "made-data"];

/// The directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    /// It is not this user's alone.
    #[error("the runtime directory {} {why}", path.display())]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// The reason, and a hint for the user.
        why: String,
    },
    /// It cannot be created or written.
    #[error("cannot use the runtime directory {}: {source}", path.display())]
    Io {
        /// The directory or a file in it.
        path: PathBuf,
        /// The failure of the system call.
        source: io::Error,
    },
    /// The log cannot be opened.
    #[error("cannot open the log {}: {source}. --log-file names another one", path.display())]
    Log {
        /// The log.
        path: PathBuf,
        /// The failure of the system call.
        source: io::Error,
    },
    /// Another daemon of this mount point is running.
    #[error("a daemon for this mount point already runs ({0}): copperfs unmount ends it")]
    Running(Holder),
}

/// Where the software mount of the daemon with this runtime directory is mounted a second time, if an image lies over all
/// of it. All users may go there, as to the mount itself.
#[must_use]
pub fn hidden_top(runtime_dir: &Path) -> PathBuf {
    let name = instance_name(runtime_dir, "");
    Path::new("/run").join(format!("copperfs-{name}"))
}

/// Makes the error of a failed access to `path`.
fn io_error(path: &Path) -> impl Fn(io::Error) -> RuntimeDirError + '_ {
    move |source| RuntimeDirError::Io {
        path: path.to_owned(),
        source,
    }
}

/// Creates `path` and its parent if they are missing, and checks that both are this user's alone.
///
/// # Errors
/// It has another owner or is open to others, is not a directory, or cannot be created.
pub fn prepare(path: &Path) -> Result<(), RuntimeDirError> {
    // The parent belongs to copperfs too, unless the user has chosen the path.
    let base = path.parent().filter(|base| is_base(base));
    for dir in base.into_iter().chain([path]) {
        if let Err(error) = DirBuilder::new().mode(0o700).create(dir)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(io_error(dir)(error));
        }
        check(dir)?;
    }
    Ok(())
}

/// Whether the name of `dir` is that of a directory in which copperfs keeps its runtime directories.
#[must_use]
pub fn is_base(dir: &Path) -> bool {
    dir.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"copperfs"))
}

/// Checks that `dir` is a directory of this user, closed to others.
///
/// # Errors
/// It is not.
pub fn check(dir: &Path) -> Result<(), RuntimeDirError> {
    // Links are not followed, because the owner of the link could change it later.
    let meta = fs::symlink_metadata(dir).map_err(io_error(dir))?;
    let (owner, own) = (meta.uid(), rustix::process::geteuid().as_raw());
    let (mode, shown) = (meta.mode() & 0o7777, dir.display());
    let why = if !meta.is_dir() {
        format!("is not a directory. {ELSEWHERE}")
    } else if owner != own {
        format!("belongs to user {owner}, not to user {own}. {ELSEWHERE}")
    } else if mode & 0o077 != 0 {
        format!("is open to others (mode {mode:04o}): chmod 700 {shown}")
    } else {
        return Ok(());
    };
    let path = dir.to_owned();
    Err(RuntimeDirError::Unsafe { path, why })
}

/// Writes `bytes` to a new file `name` in `dir`, readable by its owner only, in place of an old one.
///
/// # Errors
/// It cannot be written.
pub fn write_private(dir: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf, RuntimeDirError> {
    let path = dir.join(name);
    let fresh = dir.join(format!(".{name}.new"));
    let write = || {
        // A crashed writer may have left the temporary file.
        let _absent = fs::remove_file(&fresh);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(bytes)?;
        fs::rename(&fresh, &path)
    };
    write().map_err(io_error(&path))?;
    Ok(path)
}

/// Records `path` in the file `name` of `dir`. `None` removes the record.
///
/// # Errors
/// It cannot be written.
pub fn note(dir: &Path, name: &str, mount: Option<&Path>) -> Result<(), RuntimeDirError> {
    let path = dir.join(name);
    if let Some(mount) = mount {
        let bytes = mount.as_os_str().as_encoded_bytes();
        // A successor finds it, and a full disk may have no room for another one.
        if fs::read(&path).is_ok_and(|known| known == bytes) {
            return Ok(());
        }
        return write_private(dir, name, bytes).map(drop);
    }
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(RuntimeDirError::Io { path, source })
        }
        _ => Ok(()),
    }
}

/// The runtime directories below `bases`.
pub fn all(bases: &[PathBuf]) -> impl Iterator<Item = PathBuf> + '_ {
    let entries = |base: &PathBuf| fs::read_dir(base).into_iter().flatten();
    let entries = bases.iter().flat_map(entries);
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}

/// The id of the launch that started the daemon of `dir`, if there is one.
#[must_use]
pub fn launch(dir: &Path) -> Option<String> {
    fs::read_to_string(dir.join(LAUNCH_FILE)).ok()
}

/// The path that is recorded in the file `name` of `dir`.
#[must_use]
pub fn noted(dir: &Path, name: &str) -> Option<PathBuf> {
    let bytes = fs::read(dir.join(name)).ok()?;
    let path = PathBuf::from(OsString::from_vec(bytes));
    path.is_absolute().then_some(path)
}

/// Removes the directories of mounts that ended long ago from `base`. Directories that cannot be checked are
/// kept.
pub fn sweep(base: &Path) {
    for dir in all(&[base.to_owned()]).take(SWEPT_MAX) {
        let time = fs::metadata(dir.join("pid")).and_then(|meta| meta.modified());
        let age = time.map(|time| time.elapsed().unwrap_or_default());
        let old = age.is_ok_and(|age| age > LOG_AGE_KEPT);
        // The lock proves that no daemon uses the directory.
        if old && check(&dir).is_ok() && PidFile::lock(&dir).is_ok() {
            tracing::debug!(dir = %dir.display(), "removed, long ended");
            let _stays_if_it_fails = fs::remove_dir_all(&dir);
        }
    }
}

/// Opens the log at `path` for appending. A long log is renamed first.
///
/// # Errors
/// It cannot be opened.
pub fn open_log(path: &Path) -> Result<File, RuntimeDirError> {
    logging::open(path).map_err(|source| RuntimeDirError::Log {
        path: path.to_owned(),
        source,
    })
}

/// The pid file. The daemon is alive while it is locked, whatever its content is.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// Takes the lock in `dir` and writes this process's id.
    ///
    /// # Errors
    /// Another daemon holds the lock.
    pub fn lock(dir: &Path) -> Result<Self, RuntimeDirError> {
        let path = dir.join("pid");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io_error(&path))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            Errno::WOULDBLOCK => RuntimeDirError::Running(Holder::read(&mut file)),
            errno => io_error(&path)(errno.into()),
        })?;
        Self { path, file }.written()
    }

    /// Goes on with the lock of a daemon that has died, whose open file is `lock`, and writes this process's id.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn adopt(dir: &Path, lock: OwnedFd) -> Result<Self, RuntimeDirError> {
        let (path, file) = (dir.join("pid"), File::from(lock));
        Self { path, file }.written()
    }

    /// Returns another descriptor of the locked file.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn file(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    fn written(mut self) -> Result<Self, RuntimeDirError> {
        // A number alone identifies no process, so such a daemon is never signalled by other commands.
        let number = || std::process::id().to_string();
        let own = Identity::own().map_or_else(number, |identity| identity.to_string());
        let (file, line) = (&mut self.file, format!("{own}\n"));
        // In place of the predecessor's, because a full disk has no room for more.
        file.rewind()
            .and_then(|()| file.write_all(line.as_bytes()))
            .and_then(|()| file.set_len(line.len() as u64))
            .map_err(io_error(&self.path))?;
        Ok(self)
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Emptied rather than removed, because another daemon may already have opened this file to lock it.
        let _best_effort = self.file.set_len(0);
        tracing::debug!(path = %self.path.display(), "pid file given up");
    }
}

/// The daemon that holds the lock of a runtime directory. It is alive, or was killed and hangs in the
/// kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its pid in its own pid namespace; `None` if it is not written yet.
    pid: Option<u32>,
    /// `None` if it is not written yet, or the daemon could not determine it.
    identity: Option<Identity>,
    /// The owner of the pid file.
    owner: u32,
}

impl Holder {
    fn read(file: &mut File) -> Self {
        let owner = file.metadata().map_or(u32::MAX, |meta| meta.uid());
        let mut text = String::new();
        let read = file.take(PID_FILE_BYTES_MAX).read_to_string(&mut text);
        let text = read.map(|_| text.trim()).unwrap_or_default();
        let number = text.split(' ').next();
        Self {
            pid: number.and_then(|number| number.parse().ok()),
            identity: Identity::parse(text),
            owner,
        }
    }

    /// Its process; `None` if it is in a pid namespace that is not visible from here.
    #[must_use]
    pub fn process(&self) -> Option<Process> {
        process::find(self.identity.as_ref()?, self.owner)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.process(), self.pid) {
            (Some(process), _) => write!(f, "pid {}", process.pid),
            (None, Some(pid)) => write!(f, "pid {pid} of another pid namespace"),
            (None, None) => f.write_str("it is just starting"),
        }
    }
}

/// Waits until no daemon holds the lock in `dir`, and no process that would start another one. Returns whether the last
/// daemon has ended in order. Blocking.
///
/// # Errors
/// There is no pid file.
pub fn wait_until_free(dir: &Path) -> Result<bool, RuntimeDirError> {
    let path = dir.join("pid");
    let file = File::open(&path).map_err(io_error(&path))?;
    rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockShared))
        .map_err(|errno| io_error(&path)(errno.into()))?;
    // A daemon that ends in order empties it.
    let length = file.metadata().map_err(io_error(&path))?.len();
    Ok(length == 0)
}

/// The daemon that holds the lock in `dir`, if there is one.
#[must_use]
pub fn holder(dir: &Path) -> Option<Holder> {
    let mut file = File::open(dir.join("pid")).ok()?;
    let locked = flock(&file, FlockOperation::NonBlockingLockShared);
    (locked == Err(Errno::WOULDBLOCK)).then(|| Holder::read(&mut file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_open_to_others_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("copperfs-0").join("mnt-1");
        prepare(&dir).unwrap();
        prepare(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o750)).unwrap();
        let error = prepare(&dir).unwrap_err().to_string();
        assert!(error.contains("is open to others (mode 0750)"), "{error}");
        let link = base.path().join("copperfs-link");
        std::os::unix::fs::symlink(base.path(), &link).unwrap();
        let error = prepare(&link.join("x")).unwrap_err().to_string();
        assert!(error.contains("is not a directory"), "{error}");
    }

    #[test]
    fn the_lock_says_whether_a_daemon_runs() {
        let dir = tempfile::tempdir().unwrap();
        let own = std::process::id();
        assert_eq!(holder(dir.path()), None);
        let held = PidFile::lock(dir.path()).unwrap();
        let found = holder(dir.path()).unwrap();
        assert_eq!(found.process().unwrap().pid, own);
        let second = PidFile::lock(dir.path()).unwrap_err().to_string();
        assert!(second.contains(&format!("(pid {own})")), "{second}");
        drop(held);
        assert_eq!(holder(dir.path()), None);
    }

    #[test]
    fn a_number_without_a_namespace_is_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        let held = PidFile::lock(dir.path()).unwrap();
        let own = Identity::own().unwrap();
        let elsewhere = Identity {
            namespace: own.namespace - 1,
            ..own
        };
        for text in [own.pid.to_string(), elsewhere.to_string()] {
            fs::write(&held.path, &text).unwrap();
            let found = holder(dir.path()).unwrap();
            assert!(found.process().is_none(), "{text}");
            assert!(
                found.to_string().contains("another pid namespace"),
                "{found}"
            );
        }
    }

    #[test]
    fn only_directories_of_long_ended_mounts_are_swept() {
        let base = tempfile::tempdir().unwrap();
        let make = |name: &str, age: Duration| {
            let dir = base.path().join(name);
            prepare(&dir).unwrap();
            let held = PidFile::lock(&dir).unwrap();
            let time = std::time::SystemTime::now() - age;
            held.file.set_modified(time).unwrap();
            (dir, held)
        };
        let (recent, lock) = make("recent", LOG_AGE_KEPT / 2);
        drop(lock);
        let (running, _lock) = make("running", LOG_AGE_KEPT * 2);
        let (old, lock) = make("old", LOG_AGE_KEPT * 2);
        drop(lock);
        let file = File::options().write(true).open(old.join("pid")).unwrap();
        let time = std::time::SystemTime::now() - LOG_AGE_KEPT * 2;
        file.set_modified(time).unwrap();
        sweep(base.path());
        assert!(recent.exists() && running.exists() && !old.exists());
    }

    #[test]
    fn the_data_mount_is_noted_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(noted(dir.path(), DATA_MOUNT_FILE), None);
        note(dir.path(), DATA_MOUNT_FILE, None).unwrap();
        let path = PathBuf::from(OsString::from_vec(b"/d/\xff\n".to_vec()));
        note(dir.path(), DATA_MOUNT_FILE, Some(&path)).unwrap();
        assert_eq!(noted(dir.path(), DATA_MOUNT_FILE), Some(path));
        note(dir.path(), DATA_MOUNT_FILE, None).unwrap();
        assert_eq!(noted(dir.path(), DATA_MOUNT_FILE), None);
    }

    #[test]
    fn private_files_replace_old_ones() {
        let dir = tempfile::tempdir().unwrap();
        write_private(dir.path(), "secret", b"one").unwrap();
        let path = write_private(dir.path(), "secret", b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }
}
