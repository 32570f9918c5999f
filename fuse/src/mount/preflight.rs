//! What must be true of a mount point before anything is mounted on it.

use super::state::{self, MountState};
use super::{MountError, MountOptions};
use crate::policy::OpenMode;
use rustix::thread::CapabilitySet;
use std::io;
use std::path::{Path, PathBuf};

/// Mounts on top of each other that are taken away at most.
const LAYERS_MAX: usize = 16;

/// Whether a mount point that is not empty is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NonEmpty {
    /// Refuse: the files there would be hidden.
    #[default]
    Refuse,
    /// Accept, and hide them.
    Accept,
}

/// Checks everything that can be known beforehand; gives the mount point without symlinks. The stale
/// mount of a copperfs daemon that died is removed.
pub(super) fn check(options: &MountOptions) -> Result<PathBuf, MountError> {
    if options.open == OpenMode::Passthrough && !may_pass_through() {
        return Err(MountError::PassthroughNeedsPrivilege);
    }
    make_way(&options.mountpoint, options.non_empty)
}

/// Checks that a mount can be made at `path`, and takes away the stale mounts that copperfs daemons
/// left there when they died. Gives the path without symlinks. [`mount`](super::mount) does it too;
/// this is for those who want to know earlier. Blocks for some seconds at most.
///
/// # Errors
/// What is in the way, and what to do about it.
pub fn make_way(path: &Path, non_empty: NonEmpty) -> Result<PathBuf, MountError> {
    let examine = |source| MountError::Examine {
        path: path.to_owned(),
        source,
    };
    let path = state::resolve(path).map_err(examine)?;
    clear_stale(&path)?;
    check_directory(&path, non_empty)?;
    Ok(path)
}

fn clear_stale(path: &Path) -> Result<(), MountError> {
    let path = path.to_owned();
    // Several daemons may have died here, one on top of the other.
    for _ in 0..LAYERS_MAX {
        match state::mount_state(&path) {
            Ok(MountState::NotMounted) => return Ok(()),
            Ok(MountState::Live) => return Err(MountError::AlreadyMounted { path }),
            Ok(MountState::Unresponsive) => return Err(MountError::Unresponsive { path }),
            Ok(MountState::Foreign { fstype }) => return Err(MountError::Foreign { path, fstype }),
            Ok(MountState::Stale) => {
                tracing::warn!(path = %path.display(), "taking away the mount of a dead daemon");
                state::detach(&path).map_err(|source| MountError::Stale {
                    path: path.clone(),
                    source,
                })?;
            }
            Err(source) => return Err(MountError::Examine { path, source }),
        }
    }
    Err(MountError::AlreadyMounted { path })
}

fn check_directory(path: &Path, non_empty: NonEmpty) -> Result<(), MountError> {
    let path = path.to_owned();
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::Missing { path });
        }
        Err(source) => return Err(MountError::Examine { path, source }),
        Ok(metadata) if !metadata.is_dir() => return Err(MountError::NotADirectory { path }),
        Ok(_) => {}
    }
    if non_empty == NonEmpty::Accept {
        return Ok(());
    }
    match std::fs::read_dir(&path).map(|mut entries| entries.next().is_some()) {
        Ok(false) => Ok(()),
        Ok(true) => Err(MountError::NotEmpty { path }),
        // A mount point that may not be listed hides nothing from us.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(source) => Err(MountError::Examine { path, source }),
    }
}

/// Backing files are registered with CAP_SYS_ADMIN only.
fn may_pass_through() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_in_the_way_is_said() {
        let dir = tempfile::tempdir().unwrap();
        make_way(dir.path(), NonEmpty::Refuse).unwrap();
        let said = |path: &Path| make_way(path, NonEmpty::Refuse).unwrap_err().to_string();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(said(dir.path()).contains("is not empty"));
        assert!(said(&file).contains("is not a directory"));
        assert!(said(&dir.path().join("gone")).contains("mkdir -p"));
        assert!(said(Path::new("/proc")).contains("a proc filesystem is mounted there"));
    }
}
