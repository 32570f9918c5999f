//! Converts the backend's attributes to fuser's types.

use crate::backend::{Attr, FileKind, Timestamp};
use fuser::{FileAttr, FileType, INodeNo};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: attr.mode & 0o7777,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.device,
        blksize: attr.block_size,
        flags: 0,
    }
}

pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// Times before 1970 are kept. A time outside the range of `SystemTime` becomes 1970 and not -1: programs
/// read -1 as "unknown" (Python then ignores its compiled modules).
fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let base = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    base.and_then(|base| base.checked_add(Duration::from_nanos(time.nanoseconds.into())))
        .unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, nanoseconds: u32) -> SystemTime {
        system_time(Timestamp {
            seconds,
            nanoseconds,
        })
    }

    #[test]
    fn times_before_1970_add_their_nanoseconds() {
        assert_eq!(at(0, 5), UNIX_EPOCH + Duration::from_nanos(5));
        assert_eq!(at(-1, 0), UNIX_EPOCH - Duration::from_secs(1));
        assert_eq!(
            at(-2, 800_000_000),
            UNIX_EPOCH - Duration::from_millis(1200)
        );
        assert_eq!(at(i64::MAX, 999_999_999), at(i64::MAX, 999_999_999));
        assert!(at(i64::MIN, 0) <= UNIX_EPOCH);
    }
}
