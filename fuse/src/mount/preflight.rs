//! Checks of a mount point before anything is mounted on it.

use super::state::{self, MountState};
use super::{MountError, MountOptions};
use crate::policy::OpenMode;
use rustix::thread::CapabilitySet;
use std::io;
use std::path::{Path, PathBuf};

/// Stacked stale mounts that are removed at most.
const LAYERS_MAX: usize = 16;

/// Checks everything that can be known before the mount. Returns the mount point without symlinks.
pub(super) fn check(options: &MountOptions) -> Result<PathBuf, MountError> {
    // Registering a backing file takes CAP_SYS_ADMIN.
    let may_pass_through = || {
        rustix::thread::capabilities(None)
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
    };
    if options.open == OpenMode::Passthrough && !may_pass_through() {
        return Err(MountError::PassthroughNeedsPrivilege);
    }
    prepare_mountpoint(&options.mountpoint)
}

/// Checks that a mount can be made at `path`, and removes the stale mounts that copperfs daemons left there
/// when they died. Returns the path without symlinks. [`mount`](super::mount) does this too; call it to
/// learn of a problem earlier. Blocks for a few seconds at most.
///
/// # Errors
/// The reason why nothing can be mounted there. See [`MountError`].
pub fn prepare_mountpoint(path: &Path) -> Result<PathBuf, MountError> {
    let path = state::resolve(path).map_err(|source| MountError::Examine {
        path: path.to_owned(),
        source,
    })?;
    remove_stale(path.clone())?;
    check_directory(path.clone())?;
    Ok(path)
}

fn remove_stale(path: PathBuf) -> Result<(), MountError> {
    // Several daemons may have died here, so their mounts may be stacked.
    for _ in 0..LAYERS_MAX {
        match state::mount_state(&path) {
            Ok(MountState::NotMounted) => return Ok(()),
            Ok(MountState::Live) => return Err(MountError::AlreadyMounted(path)),
            Ok(MountState::Unresponsive) => return Err(MountError::Unresponsive(path)),
            Ok(MountState::Foreign { fstype }) => return Err(MountError::Foreign { path, fstype }),
            Ok(MountState::Stale) => {
                tracing::warn!(path = %path.display(), "taking away the mount of a dead daemon");
                if let Err(source) = state::detach(&path) {
                    return Err(MountError::Stale { path, source });
                }
            }
            Err(source) => return Err(MountError::Examine { path, source }),
        }
    }
    Err(MountError::AlreadyMounted(path))
}

/// Checks that `path` is an empty directory: a mount would hide its files.
fn check_directory(path: PathBuf) -> Result<(), MountError> {
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::Missing(path));
        }
        Err(source) => return Err(MountError::Examine { path, source }),
        Ok(metadata) if !metadata.is_dir() => return Err(MountError::NotADirectory(path)),
        Ok(_) => {}
    }
    match std::fs::read_dir(&path).map(|mut entries| entries.next().is_some()) {
        Ok(false) => Ok(()),
        Ok(true) => Err(MountError::NotEmpty(path)),
        // The user cannot see the files of a directory that may not be listed.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(source) => Err(MountError::Examine { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn unusable_mount_points_are_explained() {
        let dir = tempfile::tempdir().unwrap();
        prepare_mountpoint(dir.path()).unwrap();
        let refusal = |path: &Path| prepare_mountpoint(path).unwrap_err().to_string();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(refusal(dir.path()).contains("is not empty"));
        assert!(refusal(&file).contains("is not a directory"));
        assert!(refusal(&dir.path().join("gone")).contains("mkdir -p"));
        assert!(refusal(Path::new("/proc")).contains("a proc filesystem is mounted there"));
    }
}
