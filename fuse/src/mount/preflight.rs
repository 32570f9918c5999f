//! What must be true of a mount point before anything is mounted on it.

use super::state::{self, MountState};
use super::{MountError, MountOptions, UnmountError};
use crate::policy::OpenMode;
use rustix::thread::CapabilitySet;
use std::io;
use std::path::{Path, PathBuf};

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
    let path = state::resolve(&options.mountpoint).map_err(|source| MountError::Examine {
        path: options.mountpoint.clone(),
        source,
    })?;
    check_mounts(&path)?;
    check_directory(&path, options.non_empty)?;
    Ok(path)
}

fn check_mounts(path: &Path) -> Result<(), MountError> {
    let path = path.to_owned();
    match state::mount_state(&path) {
        Ok(MountState::NotMounted) => Ok(()),
        Ok(MountState::Live | MountState::Unresponsive) => Err(MountError::AlreadyMounted { path }),
        Ok(MountState::Foreign { fstype }) => Err(MountError::Foreign { path, fstype }),
        Ok(MountState::Stale) => {
            tracing::info!(path = %path.display(), "removing the mount of a daemon that died");
            match state::detach(&path) {
                // Another mount may lie below it; one that is alive must not be covered.
                Ok(()) => match state::mount_state(&path) {
                    Ok(MountState::NotMounted) => Ok(()),
                    _ => Err(MountError::Stale { path }),
                },
                Err(UnmountError::Examine { path, source }) => {
                    Err(MountError::Examine { path, source })
                }
                Err(_) => Err(MountError::Stale { path }),
            }
        }
        Err(source) => Err(MountError::Examine { path, source }),
    }
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
