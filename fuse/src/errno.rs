//! Maps failures to the errno that applications see. No other module decides on an errno of a failure.

use crate::backend::FsError;
use fuser::Errno;

/// Returns the errno for `error`. The match is exhaustive so that a new failure needs a decision here.
pub(crate) fn errno(error: FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::ENOENT,
        FsError::NotADirectory => Errno::ENOTDIR,
        FsError::IsADirectory => Errno::EISDIR,
        // As from open(2) at the origin. EPERM would suggest that root may.
        FsError::PermissionDenied => Errno::EACCES,
        // Reserved to the owner, as with chmod(2), independent of mode bits.
        FsError::NotOwner => Errno::EPERM,
        // After ESTALE the kernel repeats a path walk once, so a changed file is found under its new inode.
        // Only programs that have the old inode open see the error.
        FsError::Stale => Errno::ESTALE,
        FsError::SymlinkLoop => Errno::ELOOP,
        FsError::NameTooLong => Errno::ENAMETOOLONG,
        FsError::InvalidArgument => Errno::EINVAL,
        // As from getxattr(2). Linux has no ENOATTR.
        FsError::NoAttribute => Errno::ENODATA,
        // Not ENOSYS: the kernel would never send this operation again on the whole mount.
        FsError::Unsupported => Errno::EOPNOTSUPP,
        // As from lseek(2) for SEEK_DATA or SEEK_HOLE beyond the end.
        FsError::BeyondEnd => Errno::ENXIO,
        // The file exists, but its device, socket or pipe is on another node.
        FsError::SpecialFile => Errno::ENODEV,
        // Not ETIMEDOUT or EAGAIN: programs retry those at once, and all retries have failed already.
        FsError::Io => Errno::EIO,
        // The caller is being killed and does not see this.
        FsError::Interrupted => Errno::EINTR,
    }
}

impl FsError {
    /// The number of the errno that applications see for this failure.
    #[must_use]
    pub fn raw_os_error(self) -> i32 {
        errno(self).code()
    }
}

/// The answer to requests that would change the filesystem.
pub(crate) const READ_ONLY: Errno = Errno::EROFS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_its_errno() {
        let table = [
            (FsError::NotFound, 2),
            (FsError::NotADirectory, 20),
            (FsError::IsADirectory, 21),
            (FsError::PermissionDenied, 13),
            (FsError::NotOwner, 1),
            (FsError::Stale, 116),
            (FsError::SymlinkLoop, 40),
            (FsError::NameTooLong, 36),
            (FsError::InvalidArgument, 22),
            (FsError::NoAttribute, 61),
            (FsError::Unsupported, 95),
            (FsError::BeyondEnd, 6),
            (FsError::SpecialFile, 19),
            (FsError::Io, 5),
            (FsError::Interrupted, 4),
        ];
        for (error, number) in table {
            assert_eq!(errno(error).code(), number, "{error:?}");
        }
        assert_eq!(READ_ONLY.code(), 30);
    }
}
