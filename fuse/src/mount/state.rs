//! What is mounted at a path, without getting stuck on it; and how to get rid of it.

use super::UnmountError;
use super::fusermount;
use crate::mountinfo::{self, COPPERFS_FSTYPE};
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

/// What is mounted at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MountState {
    /// Nothing.
    NotMounted,
    /// A copperfs that answers (or that does not let this user ask).
    Live,
    /// A copperfs whose daemon is gone: every access fails with ENOTCONN.
    Stale,
    /// A copperfs whose daemon is there and did not answer within two seconds.
    Unresponsive,
    /// Another filesystem.
    Foreign {
        /// Its type.
        fstype: String,
    },
}

/// What is mounted exactly at `path`; a path that does not exist has nothing mounted. Blocks for two
/// seconds at most.
///
/// # Errors
/// mountinfo or the way to `path` cannot be read.
pub fn mount_state(path: &Path) -> io::Result<MountState> {
    let path = resolve(path)?;
    let mounts = mountinfo::read()?;
    match mountinfo::at(&mounts, &path) {
        None => Ok(MountState::NotMounted),
        Some(mount) if mount.fstype != COPPERFS_FSTYPE => Ok(MountState::Foreign {
            fstype: mount.fstype.clone(),
        }),
        Some(_) => probe(path),
    }
}

/// Asks with `statfs`: the one question that the kernel never answers from its cache. In a thread of
/// its own, which stays behind if the daemon never answers.
fn probe(path: PathBuf) -> io::Result<MountState> {
    let (answer, answered) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("copperfs-probe".to_owned())
        .spawn(move || {
            let result = rustix::fs::statfs(&path).map(|_| ());
            // Nobody waits any more: nothing to tell.
            answer.send(result).unwrap_or(());
        })?;
    match answered.recv_timeout(PROBE_TIMEOUT) {
        Ok(Err(Errno::NOTCONN | Errno::CONNABORTED)) => Ok(MountState::Stale),
        Ok(_) => Ok(MountState::Live),
        Err(_) => Ok(MountState::Unresponsive),
    }
}

/// Takes the topmost mount at `path` away at once, also if it is in use or its daemon is gone. What
/// is still open there stays open.
///
/// # Errors
/// See [`UnmountError`].
pub fn detach(path: &Path) -> Result<(), UnmountError> {
    let path = resolve(path).map_err(|source| UnmountError::Examine {
        path: path.to_owned(),
        source,
    })?;
    match rustix::mount::unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => fusermount::unmount(&path, true),
        Err(errno) => Err(UnmountError::Unmount {
            path,
            source: errno.into(),
        }),
    }
}

/// Unmounts the topmost mount at `path` (absolute, without symlinks) if nothing uses it.
///
/// # Errors
/// See [`UnmountError`]; [`UnmountError::Busy`] if it is in use.
pub fn unmount_idle(path: &Path) -> Result<(), UnmountError> {
    let busy = || UnmountError::Busy {
        path: path.to_owned(),
    };
    match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(busy()),
        Err(Errno::PERM) => fusermount::unmount(path, false).map_err(|error| match error {
            UnmountError::Fusermount { message, .. } if message.contains("busy") => busy(),
            other => other,
        }),
        Err(errno) => Err(UnmountError::Unmount {
            path: path.to_owned(),
            source: errno.into(),
        }),
    }
}

/// Whether the topmost mount at `path` (absolute, without symlinks) is in use, by the kernel's own count.
/// `None`: this user may not ask. Nothing is unmounted, and the filesystem itself is not asked.
///
/// # Errors
/// Nothing is mounted there.
pub fn is_busy(path: &Path) -> Result<Option<bool>, UnmountError> {
    // The first of the two calls that MNT_EXPIRE needs (umount(2)) marks an idle mount and unmounts
    // nothing. The second would unmount it, so a mark that another call of this function left is removed
    // first.
    unmark(path);
    let asked = rustix::mount::unmount(path, UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW);
    unmark(path);
    match asked {
        Err(Errno::AGAIN) => Ok(Some(false)),
        Err(Errno::BUSY) => Ok(Some(true)),
        Err(Errno::PERM) => Ok(None),
        Err(errno) => Err(UnmountError::Unmount {
            path: path.to_owned(),
            source: errno.into(),
        }),
        // Two such calls at the same moment both found the mount idle.
        Ok(()) => Ok(Some(false)),
    }
}

/// Removes the mark of MNT_EXPIRE: the kernel clears it whenever a use of the mount ends.
fn unmark(path: &Path) {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    drop(rustix::fs::open(path, flags, rustix::fs::Mode::empty()));
}

/// `path`, absolute and without symlinks, found without touching what is mounted there.
///
/// # Errors
/// mountinfo or the way to `path` cannot be read; a loop of links.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mounts = mountinfo::read()?;
    let mut path = std::path::absolute(path)?;
    for _ in 0..LINKS_MAX {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            // `/` or a path that ends in `..`.
            return path.canonicalize();
        };
        let parent = match parent.canonicalize() {
            Ok(parent) => parent,
            // Its absence is found, and explained, by whoever needs the directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(error) => return Err(error),
        };
        let candidate = parent.join(name);
        if mountinfo::at(&mounts, &candidate).is_some() {
            return Ok(candidate);
        }
        match std::fs::read_link(&candidate) {
            Ok(target) => path = parent.join(target),
            // Not a link, or not there.
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
    fn what_is_not_ours_is_told_apart() {
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
