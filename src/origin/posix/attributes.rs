//! Converts the result of `statx` to [`Attributes`], and makes versions.
//!
//! | kind | version is made of | reason |
//! | --- | --- | --- |
//! | directory | inode, birth time where known | stays while entries come and go, differs once replaced |
//! | symlink | target, ctime | the target is the content |
//! | other | size, mtime ns, ctime ns, inode | every write changes one of them |
//!
//! Each version also includes the filesystem ([`super::filesystem`]). A ctime before 1980 is not a real
//! time: files of such a filesystem, or of an image that was made without times, have versions of
//! [`Standing::Launch`].

use super::Shared;
use super::filesystem::{Filesystem, Filesystems, MOUNT_MASK, MountKey};
use crate::origin::now_ns;
use crate::origin::settling::{FileTimes, ObservedAt};
use bytes::Bytes;
use copperfs_overlay::{Attributes, FileKind, ItemPath, Standing, Timestamp, Version, granularity};
use rustix::fd::AsFd;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Statx, StatxFlags, StatxTimestamp, makedev, openat,
    readlinkat, statx,
};
use rustix::io::Errno;
use std::time::Instant;

/// All fields that applications see, the birth time for a directory's version, and the mount.
const MASK: StatxFlags = StatxFlags::BASIC_STATS
    .union(StatxFlags::BTIME)
    .union(MOUNT_MASK);

/// 1980-01-01. An older ctime is not a real time: images without times have 0, and FAT counts from this
/// date.
const FIRST_CTIME_SECONDS: i64 = 315_532_800;

/// `AT_STATX_FORCE_SYNC`: a network filesystem sends a request to its server. Other filesystems are always
/// accurate and ignore it.
const FORCE_SYNC: AtFlags = AtFlags::from_bits_retain(0x2000);

/// `statx` of `name` in `dir`, never following a link and never mounting anything. The empty name is
/// `dir` itself. A network filesystem's client may answer from its cache.
pub(super) fn status(dir: impl AsFd, name: &[u8]) -> Result<Statx, Errno> {
    status_with(dir, name, AtFlags::empty())
}

/// Like [`status`], but from the filesystem's servers: the result proves that nothing has changed since.
pub(super) fn fresh_status(dir: impl AsFd, name: &[u8]) -> Result<Statx, Errno> {
    status_with(dir, name, FORCE_SYNC)
}

fn status_with(dir: impl AsFd, name: &[u8], sync: AtFlags) -> Result<Statx, Errno> {
    let flags = sync | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    statx(dir, name, flags, MASK)
}

/// The filesystem that holds `name` in `dir`, whose status is `status_of_name`.
pub(super) fn filesystem_of(
    filesystems: &Filesystems,
    dir: impl AsFd,
    name: &[u8],
    status_of_name: &Statx,
) -> Result<Filesystem, Errno> {
    filesystems.of(status_of_name, || {
        // The directory is on the same filesystem, unless `name` is a mount point. Its descriptor is at hand,
        // while this process may not be allowed to open the file.
        let same = name.is_empty() || {
            let mount = MountKey::of(&status(&dir, b"")?);
            mount == MountKey::of(status_of_name)
        };
        if same {
            return rustix::io::fcntl_dupfd_cloexec(&dir, 0);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&dir, name, flags, Mode::empty())
    })
}

/// The times that show a file's age.
pub(super) fn times(status: &Statx) -> FileTimes {
    FileTimes {
        newest_ns: nanoseconds(&status.stx_mtime).max(nanoseconds(&status.stx_ctime)),
        granularity: granularity(status.stx_ctime.tv_nsec),
    }
}

/// Attributes of `path`, which is `name` in `dir`, including the target of a link. If the times show that the file is
/// old, this costs one `statx`.
pub(super) fn attributes(
    shared: &Shared,
    path: &ItemPath,
    dir: impl AsFd,
    name: &[u8],
) -> Result<Attributes, Errno> {
    let settling = &shared.settling;
    let mut status = status(&dir, name)?;
    let mut observed = None;
    if kind(&status) == Some(FileKind::File) && !settling.is_old(times(&status), now_ns()) {
        // A young file: its state may change without a new time, so it is observed on the server.
        let requested = Instant::now();
        status = fresh_status(&dir, name)?;
        let answered = Instant::now();
        observed = Some(ObservedAt {
            requested,
            answered,
        });
    }
    let filesystem = filesystem_of(&shared.filesystems, &dir, name, &status)?;
    let kind = kind(&status).ok_or(Errno::OPNOTSUPP)?;
    let link_target = match kind {
        FileKind::Symlink => Some(readlinkat(&dir, name, Vec::new())?.into_bytes()),
        _ => None,
    };
    let (version, size) = match &link_target {
        Some(target) => {
            let version = link_version(&status, target, &filesystem);
            (version, target.len() as u64)
        }
        None => (version(&status, &filesystem), status.stx_size),
    };
    let mut standing = standing(&status, &filesystem);
    if let Some(at) = observed.filter(|_| kind == FileKind::File) {
        let granularity = times(&status).granularity;
        let unsettled = settling.observe(path.as_bytes(), &version, granularity, at);
        standing = unsettled.map_or(standing, Standing::Unsettled);
    }
    Ok(Attributes {
        kind,
        mode: status.stx_mode & 0o7777,
        uid: status.stx_uid,
        gid: status.stx_gid,
        links: status.stx_nlink,
        device: match kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                makedev(status.stx_rdev_major, status.stx_rdev_minor)
            }
            _ => 0,
        },
        size,
        blocks: status.stx_blocks,
        block_size: status.stx_blksize,
        atime: timestamp(&status.stx_atime),
        mtime: timestamp(&status.stx_mtime),
        ctime: timestamp(&status.stx_ctime),
        version: version.standing_as(standing),
        link_target: link_target.map(Bytes::from),
        content: None,
    })
}

/// The type of a file, if copperfs knows it.
pub(super) fn kind(status: &Statx) -> Option<FileKind> {
    kind_of(FileType::from_raw_mode(status.stx_mode.into()))
}

/// Like [`kind`], for the type of a directory entry.
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

/// The version of any file except a symlink; the caller sets its standing.
pub(super) fn version(status: &Statx, filesystem: &Filesystem) -> Version {
    let (seed, inode) = (&filesystem.seed[..], &status.stx_ino.to_le_bytes()[..]);
    if kind(status) == Some(FileKind::Directory) {
        let birth = time_bytes(&status.stx_btime);
        let knows_birth = StatxFlags::from_bits_retain(status.stx_mask).contains(StatxFlags::BTIME);
        let birth = if knows_birth { &birth[..] } else { b"" };
        return Version::of(&[seed, b"d", inode, birth].concat());
    }
    let (size, mtime) = (status.stx_size.to_le_bytes(), time_bytes(&status.stx_mtime));
    let identity = [seed, b"f", &size, &mtime, inode].concat();
    Version::of(&identity).changed_at(&time_bytes(&status.stx_ctime))
}

fn link_version(status: &Statx, target: &[u8], filesystem: &Filesystem) -> Version {
    let ctime = time_bytes(&status.stx_ctime);
    Version::of(&[&filesystem.seed[..], b"l", &ctime, target].concat())
}

/// How far the origin's records can be trusted: at most as far as the filesystem is identified, and only
/// for this launch if there is no usable ctime, which every change moves. (A file's mtime can be set to any
/// value; a directory's version includes no time.)
fn standing(status: &Statx, filesystem: &Filesystem) -> Standing {
    let is_directory = kind(status) == Some(FileKind::Directory);
    if !is_directory && status.stx_ctime.tv_sec < FIRST_CTIME_SECONDS {
        return Standing::Launch;
    }
    filesystem.standing
}

fn time_bytes(time: &StatxTimestamp) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&time.tv_sec.to_le_bytes());
    bytes[8..].copy_from_slice(&time.tv_nsec.to_le_bytes());
    bytes
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
