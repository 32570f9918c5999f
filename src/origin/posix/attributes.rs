//! From `statx` to [`Attributes`], and what a version is made of.
//!
//! | kind | version is made of | why |
//! | --- | --- | --- |
//! | directory | inode, birth time where known | stays while entries come and go, differs once replaced |
//! | symlink | target, ctime | the target is the content |
//! | other | size, mtime ns, ctime ns, inode | the design's rule |

use crate::origin::now_ns;
use crate::origin::sightings::{Moment, Sightings, Times};
use bytes::Bytes;
use copperfs_overlay::{Attributes, FileKind, ItemPath, Standing, Timestamp, Version, granularity};
use rustix::fd::AsFd;
use rustix::fs::{
    AtFlags, FileType, Statx, StatxFlags, StatxTimestamp, makedev, readlinkat, statx,
};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Everything an application sees, and birth time for a directory's version.
const MASK: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// `AT_STATX_FORCE_SYNC`: a network filesystem asks its server. Others tell their own truth anyway, at
/// no cost.
const FORCE_SYNC: AtFlags = AtFlags::from_bits_retain(0x2000);

/// `statx` of `name` in `dir`, never following a link and never mounting anything. The empty name is
/// `dir` itself. The answer may be what a network filesystem's client has kept for some time.
pub(super) fn status(dir: impl AsFd, name: &[u8]) -> Result<Statx, Errno> {
    status_with(dir, name, AtFlags::empty())
}

/// As [`status`], as the filesystem's servers tell it now: evidence that nothing has changed.
pub(super) fn status_now(dir: impl AsFd, name: &[u8]) -> Result<Statx, Errno> {
    status_with(dir, name, FORCE_SYNC)
}

fn status_with(dir: impl AsFd, name: &[u8], how: AtFlags) -> Result<Statx, Errno> {
    let flags = how | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    if name.is_empty() {
        return statx(dir, c"", flags | AtFlags::EMPTY_PATH, MASK);
    }
    statx(dir, name, flags, MASK)
}

/// A look at `path`, which is `name` in `dir`: its status, and how far its version can be trusted. A file
/// that is old by its times costs one `statx`.
fn look(
    sightings: &Sightings,
    path: &ItemPath,
    dir: impl AsFd,
    name: &[u8],
) -> Result<(Statx, Standing), Errno> {
    let found = status(&dir, name)?;
    if kind(&found) != Some(FileKind::File) || sightings.is_old(times(&found), now_ns()) {
        return Ok((found, Standing::Lasting));
    }
    let asked = Instant::now();
    let found = status_now(&dir, name)?;
    let answered = Instant::now();
    if kind(&found) != Some(FileKind::File) {
        return Ok((found, Standing::Lasting));
    }
    let at = Moment { asked, answered };
    let look = sightings.look(
        path.as_bytes(),
        &version(&found),
        granularity_of(&found),
        at,
    );
    Ok((found, look.map_or(Standing::Lasting, Standing::Unsettled)))
}

/// How old a file is.
pub(super) fn times(status: &Statx) -> Times {
    Times {
        newest_ns: nanoseconds(&status.stx_mtime).max(nanoseconds(&status.stx_ctime)),
        granularity: granularity_of(status),
    }
}

pub(super) fn granularity_of(status: &Statx) -> Duration {
    granularity(status.stx_ctime.tv_nsec)
}

/// Attributes of `path`, which is `name` in `dir`, with the target of a link.
pub(super) fn attributes(
    sightings: &Sightings,
    path: &ItemPath,
    dir: impl AsFd,
    name: &[u8],
) -> Result<Attributes, Errno> {
    let (status, standing) = look(sightings, path, &dir, name)?;
    let target = match kind(&status) {
        Some(FileKind::Symlink) => {
            let target = readlinkat(&dir, name, Vec::new())?;
            Some(Bytes::from(target.into_bytes()))
        }
        _ => None,
    };
    convert(&status, target, standing).ok_or(Errno::OPNOTSUPP)
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

fn convert(status: &Statx, link_target: Option<Bytes>, standing: Standing) -> Option<Attributes> {
    let kind = kind(status)?;
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
        version: version.standing_as(standing),
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
