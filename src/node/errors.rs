//! What a failure of the read path means to the FUSE front.

use copperfs_fuse::FsError;
use copperfs_overlay::FailureKind;

/// The front's word for `kind`; `copperfs_fuse` has the errno for it.
pub(super) fn fs_error(kind: FailureKind) -> FsError {
    match kind {
        FailureKind::NotFound => FsError::NotFound,
        FailureKind::NotADirectory => FsError::NotADirectory,
        FailureKind::IsADirectory => FsError::IsADirectory,
        FailureKind::PermissionDenied => FsError::PermissionDenied,
        FailureKind::Stale => FsError::Stale,
        FailureKind::SymlinkLoop => FsError::SymlinkLoop,
        FailureKind::NameTooLong => FsError::NameTooLong,
        FailureKind::Unsupported => FsError::Unsupported,
        // After all retries there is nothing an application could do that copperfs has not done.
        FailureKind::Unavailable | FailureKind::Corrupt | FailureKind::Io => FsError::Io,
    }
}
