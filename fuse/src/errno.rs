//! Which errno an application sees for each failure: every such decision of the product is here.

use crate::backend::FsError;
use fuser::Errno;

/// The errno for `error`. The match is exhaustive on purpose: a new failure needs a decision here.
pub(crate) fn errno(error: FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::ENOENT,
        FsError::NotADirectory => Errno::ENOTDIR,
        FsError::IsADirectory => Errno::EISDIR,
        // What the origin's own open(2) says; EPERM would read as "root could".
        FsError::PermissionDenied => Errno::EACCES,
        // An operation reserved to the owner, as for chmod(2): not a matter of mode bits.
        FsError::NotOwner => Errno::EPERM,
        // The kernel answers ESTALE in a path walk with one fresh walk, so a changed file is found
        // under its new inode; only holders of the old one see the error.
        FsError::Stale => Errno::ESTALE,
        FsError::SymlinkLoop => Errno::ELOOP,
        FsError::NameTooLong => Errno::ENAMETOOLONG,
        FsError::InvalidArgument => Errno::EINVAL,
        // getxattr(2) on Linux; ENOATTR does not exist here.
        FsError::NoAttribute => Errno::ENODATA,
        // Never ENOSYS: the kernel would stop asking for this operation on the whole mount.
        FsError::Unsupported => Errno::EOPNOTSUPP,
        // lseek(2): SEEK_DATA or SEEK_HOLE beyond the end.
        FsError::BeyondEnd => Errno::ENXIO,
        // The file exists, what it stands for is on another node.
        FsError::SpecialFile => Errno::ENODEV,
        // Not ETIMEDOUT or EAGAIN: programs retry those at once, and the retries are behind us.
        FsError::Io => Errno::EIO,
        // The caller is being killed and does not see it.
        FsError::Interrupted => Errno::EINTR,
    }
}

/// The answer to everything that would change the filesystem.
pub(crate) const READ_ONLY: Errno = Errno::EROFS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_its_number() {
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
