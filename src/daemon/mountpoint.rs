//! Examines mount points without waiting for a daemon that does not answer.
//!
//! Complements `copperfs_fuse` with paths in the form of mountinfo, calls with a time limit, and the mounts
//! below a directory.

use copperfs_fuse::mountinfo::{self, COPPERFS_FSTYPE};
use copperfs_fuse::{MountState, UnmountError, abort, detach, mount_state, resolve};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// The maximum number of stacked mounts that are removed.
const LAYERS_MAX: usize = 16;

/// Detaches every copperfs mount at `path`, even if it is in use.
///
/// # Errors
/// This user may not unmount it.
pub fn detach_all(path: &Path) -> Result<(), UnmountError> {
    for _ in 0..LAYERS_MAX {
        if !is_copperfs(path) {
            break;
        }
        detach(path)?;
    }
    Ok(())
}

/// Detaches the copperfs mounts at `path` whose daemons are gone. Failures are logged.
pub fn detach_stale(path: &Path) {
    for _ in 0..LAYERS_MAX {
        if !matches!(mount_state(path), Ok(MountState::Stale)) {
            break;
        }
        if let Err(error) = detach(path) {
            tracing::warn!(%error, path = %path.display(), "a dead daemon's mount stays behind");
            break;
        }
    }
}

/// Aborts the connection of the copperfs mount at `path`, if its daemon does not answer within two seconds.
/// Without that, an unmount could wait for the daemon forever. A failure is logged.
pub fn abort_unresponsive(path: &Path) {
    if matches!(mount_state(path), Ok(MountState::Unresponsive))
        && let Err(error) = abort(path)
    {
        tracing::warn!(%error, path = %path.display(), "a mount that does not answer cannot be cut off");
    }
}

/// Whether a copperfs is mounted at `path` ([`canonical`]), with or without a daemon.
#[must_use]
pub fn is_copperfs(path: &Path) -> bool {
    kind_at(path).is_some_and(|kind| kind == COPPERFS_FSTYPE)
}

/// The type of the filesystem whose mount point is `path`, if there is one.
#[must_use]
pub fn kind_at(path: &Path) -> Option<String> {
    let mounts = mountinfo::read().ok()?;
    mountinfo::at(&mounts, path).map(|mount| mount.fstype.clone())
}

/// The mount points of copperfs at `path` and below, `/m/9` before `/m/10`.
///
/// # Errors
/// `/proc` cannot be read.
pub fn copperfs_below(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = mountinfo::all_copperfs(&mountinfo::read()?)
        .filter(|mount| mount.mountpoint.starts_with(path))
        .map(|mount| mount.mountpoint.clone())
        .collect();
    found.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
    found.dedup();
    Ok(found)
}

/// Makes the directory `path`, and those above it that are missing. Returns the topmost one that was made.
///
/// # Errors
/// It cannot be made.
pub fn make(path: &Path) -> io::Result<Option<PathBuf>> {
    // A mount is not looked at: its daemon may be dead. A file in place of a directory is reported later.
    if kind_at(path).is_some() || path.exists() {
        return Ok(None);
    }
    let missing = path.ancestors().take_while(|dir| !dir.exists());
    let topmost = missing.last().map(Path::to_owned);
    std::fs::create_dir_all(path)?;
    Ok(topmost)
}

/// Removes the directories from `path` up to `topmost`, which [`make`] has made, unless something else is in them.
pub fn remove_made(path: &Path, topmost: &Path) {
    for dir in path.ancestors().take_while(|dir| dir.starts_with(topmost)) {
        if std::fs::remove_dir(dir).is_err() {
            break;
        }
    }
}

/// Runs `ask`, which may hang in the kernel, on a thread of its own. The thread is abandoned after `timeout`.
///
/// # Errors
/// `TimedOut`, or no thread could be started.
pub fn within<T: Send + 'static>(
    timeout: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("ask-mount".into())
        .spawn(move || sender.send(ask()))?;
    receiver.recv_timeout(timeout).map_err(|_late| {
        io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no answer within {timeout:?}"),
        )
    })
}

/// `path` absolute and without symlinks, as in mountinfo. Does not access a mount at `path` itself, whose daemon
/// may be dead.
#[must_use]
pub fn canonical(path: &Path) -> PathBuf {
    resolve(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_made_directories_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c");
        let made = make(&path).unwrap();
        assert_eq!(made, Some(dir.path().join("a")));
        assert_eq!(make(&path).unwrap(), None);
        fs::write(dir.path().join("a/file"), "").unwrap();
        remove_made(&path, &made.unwrap());
        assert!(!dir.path().join("a/b").exists() && dir.path().join("a/file").exists());
    }

    #[test]
    fn a_mount_that_never_answers_is_not_waited_for() {
        let (_open, closed) = mpsc::sync_channel::<()>(0);
        let error = within(Duration::from_millis(20), move || closed.recv()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn canonical_follows_directories_and_links() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir(real.join("d")).unwrap();
        std::os::unix::fs::symlink(real.join("d"), real.join("l")).unwrap();
        std::os::unix::fs::symlink("d", real.join("r")).unwrap();
        assert_eq!(canonical(&real.join("l")), real.join("d"));
        assert_eq!(canonical(&real.join("r")), real.join("d"));
        assert_eq!(canonical(&real.join("l/new")), real.join("d/new"));
        assert_eq!(canonical(&real.join("d/")), real.join("d"));
        assert_eq!(canonical(Path::new("/")), Path::new("/"));
    }
}
