//! Examines and removes the mount at a path, without blocking on a daemon that does not answer.

use super::UnmountError;
use super::fusermount;
use crate::mountinfo;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How long a mount may take to answer `statfs` before it counts as unresponsive.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Symlinks followed at most, as in the kernel.
const LINKS_MAX: usize = 40;

/// The topmost mount at a path, as far as copperfs is concerned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MountState {
    /// Nothing is mounted.
    NotMounted,
    /// A copperfs that answers, or that denies this user access.
    Live,
    /// A copperfs whose daemon is gone: every access fails with ENOTCONN.
    Stale,
    /// A copperfs whose daemon runs but did not answer within two seconds.
    Unresponsive,
    /// Another filesystem.
    Foreign {
        /// Its type.
        fstype: String,
    },
}

/// Returns what is mounted exactly at `path`. Nothing is mounted at a path that does not exist. Blocks for
/// two seconds at most.
///
/// # Errors
/// mountinfo or a directory of `path` cannot be read.
pub fn mount_state(path: &Path) -> io::Result<MountState> {
    let path = resolve(path)?;
    let mounts = mountinfo::read()?;
    match mountinfo::at(&mounts, &path) {
        None => Ok(MountState::NotMounted),
        Some(mount) if !mount.is_copperfs() => Ok(MountState::Foreign {
            fstype: mount.fstype.clone(),
        }),
        // An image over it would answer in its place.
        Some(_) => probe(mountinfo::uncovered(&mounts, &path).to_owned()),
    }
}

/// Sends a `statfs`, the one request that the kernel never answers from its cache. It runs in its own
/// thread, which is leaked if the daemon never answers.
fn probe(path: PathBuf) -> io::Result<MountState> {
    let (answer, answered) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("copperfs-probe".to_owned())
        .spawn(move || {
            let result = rustix::fs::statfs(&path).map(|_| ());
            // An error means that the probe has timed out, so the answer no longer matters.
            answer.send(result).unwrap_or(());
        })?;
    match answered.recv_timeout(PROBE_TIMEOUT) {
        Ok(Err(Errno::NOTCONN | Errno::CONNABORTED)) => Ok(MountState::Stale),
        Ok(_) => Ok(MountState::Live),
        Err(_) => Ok(MountState::Unresponsive),
    }
}

/// Removes the topmost mount at `path` at once, even if it is in use or its daemon is gone. Files that are
/// open there stay open.
///
/// # Errors
/// See [`UnmountError`].
pub fn detach(path: &Path) -> Result<(), UnmountError> {
    let path = resolve(path).map_err(|source| UnmountError::Examine {
        path: path.to_owned(),
        source,
    })?;
    unmount(&path, UnmountFlags::DETACH)
}

/// Unmounts the topmost mount at `path` (absolute, without symlinks) if nothing uses it.
///
/// # Errors
/// See [`UnmountError`]; [`UnmountError::Busy`] if it is in use.
pub fn unmount_idle(path: &Path) -> Result<(), UnmountError> {
    unmount(path, UnmountFlags::empty())
}

/// Unmounts the topmost mount at `path`, lazily if it is in use.
pub(super) fn disconnect(path: &Path) -> Result<(), UnmountError> {
    unmount_idle(path).or_else(|_| unmount(path, UnmountFlags::DETACH))
}

/// Unmounts with umount(2) if permitted, otherwise with the setuid helper.
fn unmount(path: &Path, flags: UnmountFlags) -> Result<(), UnmountError> {
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(UnmountError::Busy(path.to_owned())),
        Err(Errno::PERM) => fusermount::unmount(path, flags.contains(UnmountFlags::DETACH)),
        Err(errno) => Err(UnmountError::Unmount {
            path: path.to_owned(),
            source: errno.into(),
        }),
    }
}

/// Whether a mount is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MountUse {
    /// Nothing uses it.
    Idle,
    /// A process, another mount or the kernel uses it.
    Busy,
    /// This user may not find out.
    Unknown,
}

/// Returns whether the topmost mount at `path` (absolute, without symlinks) is in use, by the kernel's own
/// count. Unmounts nothing, and sends no request to the filesystem.
///
/// # Errors
/// Nothing is mounted there.
pub fn mount_use(path: &Path) -> Result<MountUse, UnmountError> {
    // The first of the two calls that MNT_EXPIRE needs (umount(2)) marks an idle mount and unmounts
    // nothing. The second would unmount it, so a mark that another call of this function left is removed
    // first.
    unmark(path);
    let result = rustix::mount::unmount(path, UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW);
    unmark(path);
    match result {
        // Success means that two such calls at the same moment both found the mount idle.
        Ok(()) | Err(Errno::AGAIN) => Ok(MountUse::Idle),
        Err(Errno::BUSY) => Ok(MountUse::Busy),
        Err(Errno::PERM) => Ok(MountUse::Unknown),
        Err(errno) => Err(UnmountError::Unmount {
            path: path.to_owned(),
            source: errno.into(),
        }),
    }
}

/// Removes the mark of MNT_EXPIRE, which the kernel clears when a use of the mount ends.
fn unmark(path: &Path) {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    drop(rustix::fs::open(path, flags, rustix::fs::Mode::empty()));
}

/// Returns `path` absolute and without symlinks, without a request to the filesystem mounted there.
///
/// # Errors
/// mountinfo or the way to `path` cannot be read, or its symlinks form a loop.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mounts = mountinfo::read()?;
    let mut path = std::path::absolute(path)?;
    for _ in 0..LINKS_MAX {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            // The path is `/` or ends in `..`.
            return path.canonicalize();
        };
        let parent = match parent.canonicalize() {
            Ok(parent) => parent,
            // The caller that needs the directory reports its absence.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(error) => return Err(error),
        };
        let candidate = parent.join(name);
        if mountinfo::at(&mounts, &candidate).is_some() {
            return Ok(candidate);
        }
        match std::fs::read_link(&candidate) {
            Ok(target) => path = parent.join(target),
            // Not a symlink, or it does not exist.
            Err(_) => return Ok(candidate),
        }
    }
    Err(Errno::LOOP.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_and_loops_end() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir(dir.join("real")).unwrap();
        symlink("real", dir.join("link")).unwrap();
        symlink("b", dir.join("a")).unwrap();
        symlink("a", dir.join("b")).unwrap();
        assert_eq!(resolve(&dir.join("link")).unwrap(), dir.join("real"));
        assert_eq!(resolve(&dir.join("link/")).unwrap(), dir.join("real"));
        assert!(resolve(&dir.join("a")).is_err());
        assert_eq!(resolve(&dir.join("none")).unwrap(), dir.join("none"));
        assert_eq!(resolve(Path::new("/")).unwrap(), Path::new("/"));
    }

    #[test]
    fn other_filesystems_are_recognized() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(mount_state(dir.path()).unwrap(), MountState::NotMounted);
        assert_eq!(
            mount_state(&dir.path().join("x/y")).unwrap(),
            MountState::NotMounted
        );
        assert!(matches!(
            mount_state(Path::new("/proc")).unwrap(),
            MountState::Foreign { fstype } if fstype == "proc"
        ));
    }
}
