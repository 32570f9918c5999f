//! The directory of one mount's own files: pid, log, control socket, and what a launch left there.
//!
//! Nobody but the owner may look inside, and nothing is trusted that somebody else could have put
//! there: `/tmp` is everybody's.

use rustix::fs::{FlockOperation, flock};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A log that is longer than this when a daemon starts is put aside as `log.1`.
const LOG_BYTES_KEPT: u64 = 8 << 20;

/// The directory and log of a mount that ended are kept for so long.
const LOG_AGE_KEPT: Duration = Duration::from_secs(7 * 86400);

/// Directories that are looked at when one daemon starts.
const SWEPT_MAX: usize = 1000;

/// The file that says which launch started the daemon, if one did.
pub const LAUNCH_FILE: &str = "launch";

/// The file that says where the daemon's data mount is, if it has one.
const DATA_MOUNT_FILE: &str = "data-mount";

/// The directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    /// It is not safe.
    #[error(
        "the runtime directory {} {why}. Remove it, or name another with --runtime-dir",
        path.display()
    )]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// It cannot be made or written.
    #[error("cannot use the runtime directory {}: {source}", path.display())]
    Io {
        /// The directory or a file in it.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another daemon of this mount point runs.
    #[error("a daemon for this mount point already runs (pid {pid}): copperfs unmount ends it")]
    Running {
        /// Its process id; 0 if it has not written it yet.
        pid: u32,
    },
}

/// Makes `path` and its parent if need be and checks that both are this user's alone.
///
/// # Errors
/// Another owner, access for others, no directory, no right to make it.
pub fn prepare(path: &Path) -> Result<(), RuntimeDirError> {
    // The base belongs to copperfs too, unless the user has chosen the place himself.
    let base = path.parent().filter(|base| is_base(base));
    for dir in base.into_iter().chain([path]) {
        let io_error = |source| RuntimeDirError::Io {
            path: dir.to_owned(),
            source,
        };
        match DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io_error(error)),
        }
        check(dir)?;
    }
    Ok(())
}

/// Whether a directory holds one directory per mount and is this program's, by its name.
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
    let unsafe_because = |why: String| {
        Err(RuntimeDirError::Unsafe {
            path: dir.to_owned(),
            why,
        })
    };
    // Not following links: whoever made the link could change it later.
    let meta = fs::symlink_metadata(dir).map_err(|source| RuntimeDirError::Io {
        path: dir.to_owned(),
        source,
    })?;
    let own = rustix::process::geteuid().as_raw();
    if !meta.is_dir() {
        unsafe_because("is not a directory".into())
    } else if meta.uid() != own {
        unsafe_because(format!("belongs to user {}, not to user {own}", meta.uid()))
    } else if meta.mode() & 0o077 != 0 {
        unsafe_because(format!(
            "is open to others (mode {:04o})",
            meta.mode() & 0o7777
        ))
    } else {
        Ok(())
    }
}

/// Writes `bytes` to a new file `name` in `dir`, readable by its owner only, in place of an old one.
///
/// # Errors
/// It cannot be written.
pub fn write_private(dir: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf, RuntimeDirError> {
    let path = dir.join(name);
    let fresh = dir.join(format!(".{name}.new"));
    let write = || {
        let _absent = fs::remove_file(&fresh);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(bytes)?;
        fs::rename(&fresh, &path)
    };
    write().map_err(|source| RuntimeDirError::Io {
        path: path.clone(),
        source,
    })?;
    Ok(path)
}

/// Notes where the data mount is, for whoever has to take it away after the daemon was killed; `None`:
/// there is none.
///
/// # Errors
/// It cannot be written.
pub fn note_data_mount(dir: &Path, mount: Option<&Path>) -> Result<(), RuntimeDirError> {
    if let Some(mount) = mount {
        let bytes = mount.as_os_str().as_encoded_bytes();
        return write_private(dir, DATA_MOUNT_FILE, bytes).map(drop);
    }
    let path = dir.join(DATA_MOUNT_FILE);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(RuntimeDirError::Io { path, source })
        }
        _ => Ok(()),
    }
}

/// Where the data mount of the daemon of `dir` is, or was when it was killed.
#[must_use]
pub fn noted_data_mount(dir: &Path) -> Option<PathBuf> {
    let bytes = fs::read(dir.join(DATA_MOUNT_FILE)).ok()?;
    let path = PathBuf::from(OsString::from_vec(bytes));
    path.is_absolute().then_some(path)
}

/// Removes the directories of mounts that ended long ago from `base`, which holds one per mount. Best
/// effort: what is in doubt stays.
pub fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for dir in entries
        .take(SWEPT_MAX)
        .filter_map(|entry| Some(entry.ok()?.path()))
    {
        let pid_file = dir.join("pid");
        let old = fs::metadata(&pid_file)
            .and_then(|meta| meta.modified())
            .is_ok_and(|time| time.elapsed().is_ok_and(|age| age > LOG_AGE_KEPT));
        if old && check(&dir).is_ok() && PidFile::lock(&dir).is_ok() {
            tracing::debug!(dir = %dir.display(), "removed, long ended");
            let _stays_if_it_fails = fs::remove_dir_all(&dir);
        }
    }
}

/// Opens the log at `path` for appending; a long one is put aside first.
///
/// # Errors
/// It cannot be opened.
pub fn open_log(path: &Path) -> Result<File, RuntimeDirError> {
    if fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() > LOG_BYTES_KEPT) {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".1");
        let _kept_if_it_fails = fs::rename(path, aside);
    }
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| RuntimeDirError::Io {
            path: path.to_owned(),
            source,
        })
}

/// The pid file, locked while the daemon lives: the lock, not the number, says that it does.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// Takes the lock in `dir` and writes this process's id.
    ///
    /// # Errors
    /// Another daemon has it.
    pub fn lock(dir: &Path) -> Result<Self, RuntimeDirError> {
        let path = dir.join("pid");
        let io_error = |source: io::Error| RuntimeDirError::Io {
            path: path.clone(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io_error)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let pid = read_pid(&mut file).unwrap_or(0);
                return Err(RuntimeDirError::Running { pid });
            }
            Err(error) => return Err(io_error(error.into())),
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(io_error)?;
        Ok(Self { path, file })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Emptied, not removed: a second daemon may already wait for the lock on this very file.
        let _best_effort = self.file.set_len(0);
        tracing::debug!(path = %self.path.display(), "pid file given up");
    }
}

/// The id of the daemon that holds the lock in `dir`, if one does.
#[must_use]
pub fn running(dir: &Path) -> Option<u32> {
    let mut file = File::open(dir.join("pid")).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => read_pid(&mut file),
        _ => None,
    }
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
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
        assert_eq!(running(dir.path()), None);
        let held = PidFile::lock(dir.path()).unwrap();
        assert_eq!(running(dir.path()), Some(std::process::id()));
        let second = PidFile::lock(dir.path());
        assert!(
            matches!(second, Err(RuntimeDirError::Running { pid }) if pid == std::process::id())
        );
        drop(held);
        assert_eq!(running(dir.path()), None);
    }

    #[test]
    fn only_what_ended_long_ago_is_swept() {
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
        assert_eq!(noted_data_mount(dir.path()), None);
        note_data_mount(dir.path(), None).unwrap();
        let path = PathBuf::from(OsString::from_vec(b"/d/\xff\n".to_vec()));
        note_data_mount(dir.path(), Some(&path)).unwrap();
        assert_eq!(noted_data_mount(dir.path()), Some(path));
        note_data_mount(dir.path(), None).unwrap();
        assert_eq!(noted_data_mount(dir.path()), None);
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
