//! From `statx` to [`Attributes`], and what a version is made of.
//!
//! | kind | version is made of | why |
//! | --- | --- | --- |
//! | directory | inode, birth time where known | stays while entries come and go, differs once replaced |
//! | symlink | target, ctime | the target is the content |
//! | other | size, mtime ns, ctime ns, inode | the design's rule |

use bytes::Bytes;
use copperfs_overlay::{Attributes, FileKind, Timestamp, Version};
use rustix::fd::AsFd;
use rustix::fs::{
    AtFlags, FileType, Statx, StatxFlags, StatxTimestamp, makedev, readlinkat, statx,
};
use rustix::io::Errno;
use std::time::SystemTime;

/// A younger modification or change might be followed by another within one tick of the clock.
const PROVISIONAL_NS: i128 = 2_000_000_000;

/// Everything an application sees, and birth time for a directory's version.
const MASK: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// `statx` of `name` in `dir`, never following a link and never mounting anything. The empty name is
/// `dir` itself.
pub(super) fn status(dir: impl AsFd, name: &[u8]) -> Result<Statx, Errno> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    if name.is_empty() {
        return statx(dir, c"", flags | AtFlags::EMPTY_PATH, MASK);
    }
    statx(dir, name, flags, MASK)
}

/// Attributes of `name` in `dir`, with the target of a link.
pub(super) fn attributes(dir: impl AsFd, name: &[u8]) -> Result<Attributes, Errno> {
    let status = status(&dir, name)?;
    let target = match kind(&status) {
        Some(FileKind::Symlink) => {
            let target = readlinkat(&dir, name, Vec::new())?;
            Some(Bytes::from(target.into_bytes()))
        }
        _ => None,
    };
    convert(&status, target, now_ns()).ok_or(Errno::OPNOTSUPP)
}

/// Type of file, if it is one that copperfs knows.
pub(super) fn kind(status: &Statx) -> Option<FileKind> {
    kind_of(FileType::from_raw_mode(status.stx_mode.into()))
}

/// As [`kind`], of a directory entry's type.
pub(super) fn kind_of(file_type: FileType) -> Option<FileKind> {
    Some(match file_type {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}

/// Version of anything but a symlink.
pub(super) fn version(status: &Statx) -> Version {
    let mut identity = Vec::with_capacity(64);
    if kind(status) == Some(FileKind::Directory) {
        identity.push(b'd');
        identity.extend_from_slice(&status.stx_ino.to_le_bytes());
        if StatxFlags::from_bits_retain(status.stx_mask).contains(StatxFlags::BTIME) {
            push_time(&mut identity, &status.stx_btime);
        }
    } else {
        identity.push(b'f');
        identity.extend_from_slice(&status.stx_size.to_le_bytes());
        push_time(&mut identity, &status.stx_mtime);
        identity.extend_from_slice(&status.stx_ino.to_le_bytes());
        return Version::of(&identity).changed_at(&time_bytes(&status.stx_ctime));
    }
    Version::of(&identity)
}

fn link_version(status: &Statx, target: &[u8]) -> Version {
    let mut identity = vec![b'l'];
    push_time(&mut identity, &status.stx_ctime);
    identity.extend_from_slice(target);
    Version::of(&identity)
}

fn push_time(identity: &mut Vec<u8>, time: &StatxTimestamp) {
    identity.extend_from_slice(&time_bytes(time));
}

fn time_bytes(time: &StatxTimestamp) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&time.tv_sec.to_le_bytes());
    bytes[8..].copy_from_slice(&time.tv_nsec.to_le_bytes());
    bytes
}

fn convert(status: &Statx, link_target: Option<Bytes>, now_ns: i128) -> Option<Attributes> {
    let kind = kind(status)?;
    let young = |time: &StatxTimestamp| (now_ns - nanoseconds(time)).abs() < PROVISIONAL_NS;
    let device = match kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            makedev(status.stx_rdev_major, status.stx_rdev_minor)
        }
        _ => 0,
    };
    let (version, size) = match &link_target {
        Some(target) => (
            link_version(status, target),
            u64::try_from(target.len()).unwrap_or(u64::MAX),
        ),
        None => (version(status), status.stx_size),
    };
    Some(Attributes {
        kind,
        mode: status.stx_mode & 0o7777,
        uid: status.stx_uid,
        gid: status.stx_gid,
        links: status.stx_nlink,
        device,
        size,
        blocks: status.stx_blocks,
        block_size: status.stx_blksize,
        atime: timestamp(&status.stx_atime),
        mtime: timestamp(&status.stx_mtime),
        ctime: timestamp(&status.stx_ctime),
        version,
        // A time in the future says nothing about the past seconds; only the clock's vicinity counts.
        provisional: young(&status.stx_mtime) || young(&status.stx_ctime),
        link_target,
        content: None,
    })
}

/// `statx` counts nanoseconds upwards also before 1970, as [`Timestamp`] does.
fn timestamp(time: &StatxTimestamp) -> Timestamp {
    Timestamp {
        seconds: time.tv_sec,
        nanoseconds: time.tv_nsec.min(999_999_999),
    }
}

fn nanoseconds(time: &StatxTimestamp) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

fn now_ns() -> i128 {
    match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i128::try_from(since.as_nanos()).unwrap_or(i128::MAX),
        Err(before) => -i128::try_from(before.duration().as_nanos()).unwrap_or(i128::MAX),
    }
}
