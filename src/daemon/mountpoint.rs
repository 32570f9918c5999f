//! What is at a mount point, told without ever waiting for a daemon that does not answer.
//!
//! What is mounted is `copperfs_fuse`'s knowledge; here is what the program adds: paths as mountinfo
//! shows them, a question with a bound, and the mounts below a directory.

use copperfs_fuse::mountinfo::{self, COPPERFS_FSTYPE};
use copperfs_fuse::{MountState, UnmountError, detach, mount_state};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Mounts on top of each other that are taken away at most.
const LAYERS_MAX: usize = 16;

/// Why a mount cannot be made at a path: what is in the way, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum InTheWay {
    /// There is nothing.
    #[error("there is no such directory; mkdir -p {}", .0.display())]
    Missing(PathBuf),
    /// There is a file.
    #[error("it is not a directory; give an empty one")]
    NotADirectory,
    /// Its entries would be hidden.
    #[error("the directory is not empty, and a mount would hide what is in it; give an empty one")]
    NotEmpty,
    /// It cannot be looked at.
    #[error("{0}")]
    Unreadable(io::Error),
    /// A copperfs that answers.
    #[error("a copperfs is already mounted there; copperfs unmount {} takes it away", .0.display())]
    Live(PathBuf),
    /// A copperfs that is alive and does not answer.
    #[error(
        "a copperfs is mounted there whose daemon does not answer; copperfs unmount {} ends it",
        .0.display()
    )]
    Unresponsive(PathBuf),
    /// Another filesystem.
    #[error("a {0} filesystem is mounted there; give an empty directory")]
    Foreign(String),
    /// What a dead daemon left.
    #[error(
        "the mount of a daemon that is gone is there and cannot be taken away: {source}; as its owner \
         or root: fusermount3 -uz {}",
        path.display()
    )]
    Stale {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: UnmountError,
    },
}

/// Checks that a mount can be made at `path`, and takes away what killed daemons left there.
///
/// # Errors
/// What is in the way.
pub fn make_way(path: &Path) -> Result<(), InTheWay> {
    let mut state = mount_state(path).map_err(InTheWay::Unreadable)?;
    for _ in 0..LAYERS_MAX {
        match state {
            MountState::NotMounted => break,
            MountState::Live => return Err(InTheWay::Live(path.to_owned())),
            MountState::Unresponsive => return Err(InTheWay::Unresponsive(path.to_owned())),
            MountState::Foreign { fstype } => return Err(InTheWay::Foreign(fstype)),
            MountState::Stale => {
                tracing::warn!(mount = %path.display(), "taking away the mount of a dead daemon");
                detach(path).map_err(|source| InTheWay::Stale {
                    path: path.to_owned(),
                    source,
                })?;
                state = mount_state(path).map_err(InTheWay::Unreadable)?;
            }
        }
    }
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(InTheWay::Missing(path.to_owned()));
        }
        Err(error) => return Err(InTheWay::Unreadable(error)),
        Ok(meta) if !meta.is_dir() => return Err(InTheWay::NotADirectory),
        Ok(_) => {}
    }
    match fs::read_dir(path).map(|mut entries| entries.next().is_some()) {
        Ok(false) => Ok(()),
        Ok(true) => Err(InTheWay::NotEmpty),
        // Searchable but not listable: whether it is empty is not ours to know.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(InTheWay::Unreadable(error)),
    }
}

/// Takes away every copperfs mount at `path`, in use or not.
///
/// # Errors
/// This user may not.
pub fn detach_all(path: &Path) -> Result<(), UnmountError> {
    for _ in 0..LAYERS_MAX {
        if !is_copperfs(path) {
            break;
        }
        detach(path)?;
    }
    Ok(())
}

/// Whether a copperfs, alive or not, is mounted at `path` ([`canonical`]).
#[must_use]
pub fn is_copperfs(path: &Path) -> bool {
    kind_at(path).is_some_and(|kind| kind == COPPERFS_FSTYPE)
}

/// Type of the filesystem that is mounted at exactly `path`, if one is.
#[must_use]
pub fn kind_at(path: &Path) -> Option<String> {
    let mounts = mountinfo::read().ok()?;
    mountinfo::at(&mounts, path).map(|mount| mount.fstype.clone())
}

/// The mount points of copperfs at `path` and below, `/m/9` before `/m/10`.
///
/// # Errors
/// `/proc` is not there.
pub fn copperfs_below(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = mountinfo::read()?
        .into_iter()
        .filter(|mount| mount.fstype == COPPERFS_FSTYPE && mount.mountpoint.starts_with(path))
        .map(|mount| mount.mountpoint)
        .collect();
    found.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
    found.dedup();
    Ok(found)
}

/// Runs `ask`, which may hang in the kernel, on a thread that is left behind after `timeout`.
///
/// # Errors
/// `TimedOut`, or no thread could be had.
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

/// `path` absolute and without symlinks, as mountinfo shows it. A dead mount at `path` itself is not
/// touched.
#[must_use]
pub fn canonical(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return fs::canonicalize(&absolute).unwrap_or(absolute);
    };
    if name.as_bytes() == b".." {
        return fs::canonicalize(&absolute).unwrap_or(absolute);
    }
    let joined = fs::canonicalize(parent).map_or_else(|_| absolute.clone(), |dir| dir.join(name));
    if kind_at(&joined).is_some() {
        return joined;
    }
    // A link to a mount point stands for it; its target is resolved in the same careful way, once.
    match fs::read_link(&joined) {
        Ok(target) => {
            let target = joined.parent().unwrap_or(Path::new("/")).join(target);
            if kind_at(&target).is_some() {
                target
            } else {
                fs::canonicalize(&target).unwrap_or(joined)
            }
        }
        Err(_) => joined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_is_said() {
        let dir = tempfile::tempdir().unwrap();
        make_way(dir.path()).unwrap();
        let said = |path: &Path| make_way(path).unwrap_err().to_string();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(said(dir.path()).contains("is not empty"));
        assert!(said(&file).contains("is not a directory"));
        assert!(said(&dir.path().join("gone")).contains("mkdir -p"));
        assert!(said(Path::new("/proc")).contains("a proc filesystem is mounted there"));
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
