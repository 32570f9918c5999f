//! The client of the ioctl ABI: reads a mount's counters and clears its cache.
//!
//! Each call opens the path, checks that it is on a copperfs mount (by the mount's id in mountinfo, so that no
//! other driver ever gets one of these commands), and blocks until the daemon answers. Call from a thread
//! that may block.

use super::{
    AbiError, CLEAR, CLEAR_BYTES, CLUSTER_STATS, NODE_STATS, SOCKETS, SOCKETS_BYTES, STATS_BYTES,
    Sockets, decode_sockets, decode_stats, encode_clear,
};
use crate::mountinfo;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::ioctl::Opcode;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The path cannot be opened.
    #[error("cannot open {path}")]
    Open {
        /// The path.
        path: PathBuf,
        /// The failure.
        source: std::io::Error,
    },
    /// The path is on another filesystem.
    #[error(
        "{path} is not on a copperfs mount (it is on {fstype}): give the mount point, or a path below it"
    )]
    NotCopperfs {
        /// The path.
        path: PathBuf,
        /// Type of that filesystem.
        fstype: String,
    },
    /// The daemon is gone, and its mount remains.
    #[error("the daemon of {0} is gone and left its mount behind: `copperfs unmount` removes it")]
    Stale(PathBuf),
    /// The command is reserved to the mount's owner and root.
    #[error("only the owner of the mount at {0} and root may do this")]
    NotOwner(PathBuf),
    /// The daemon and this program have different ABI versions.
    #[error(
        "the daemon at {0} speaks another version of the ioctl interface; use the copperfs program that mounted it"
    )]
    OtherVersion(PathBuf),
    /// The answer of the daemon cannot be decoded.
    #[error("the answer of the daemon at {path} cannot be read")]
    Answer {
        /// The path.
        path: PathBuf,
        /// The decoding error.
        source: AbiError,
    },
    /// The daemon answered with an error, or mountinfo could not be read.
    #[error("{path} did not answer")]
    Io {
        /// The path.
        path: PathBuf,
        /// The failure.
        source: std::io::Error,
    },
    /// No origin covers the path to clear.
    #[error("no origin of {0} holds such a path")]
    NoOrigin(PathBuf),
    /// The path is too long for the ABI.
    #[error("the path to clear is longer than the interface allows")]
    PathTooLong(#[source] AbiError),
}

/// Returns the counters of the node that serves `mountpoint`, as lines of name and value.
///
/// # Errors
/// See [`ClientError`].
pub fn node_stats(mountpoint: &Path) -> Result<String, ClientError> {
    read::<NODE_STATS, STATS_BYTES, _>(mountpoint, decode_stats)
}

/// Returns the summed counters of all nodes, as lines of name and value. Waits for the slowest node that
/// answers.
///
/// # Errors
/// See [`ClientError`].
pub fn cluster_stats(mountpoint: &Path) -> Result<String, ClientError> {
    read::<CLUSTER_STATS, STATS_BYTES, _>(mountpoint, decode_stats)
}

/// Drops the cached state of `path` (relative to the mount; empty: everything) and below, on this node or
/// on all nodes. Returns whether anything of it was cached.
///
/// # Errors
/// See [`ClientError`].
pub fn clear(mountpoint: &Path, path: &[u8], cluster: bool) -> Result<bool, ClientError> {
    let mut argument = encode_clear(path, cluster).map_err(ClientError::PathTooLong)?;
    match call::<CLEAR, CLEAR_BYTES>(&open(mountpoint)?, &mut argument) {
        Ok(value) => Ok(value > 0),
        Err(Errno::NOENT) => Err(ClientError::NoOrigin(mountpoint.to_owned())),
        Err(errno) => Err(explain(mountpoint, errno)),
    }
}

/// Returns the addresses of the daemon's sockets.
///
/// # Errors
/// See [`ClientError`].
pub fn sockets(mountpoint: &Path) -> Result<Sockets, ClientError> {
    read::<SOCKETS, SOCKETS_BYTES, _>(mountpoint, decode_sockets)
}

/// Sends `COMMAND` and decodes the struct that it returns.
fn read<const COMMAND: Opcode, const BYTES: usize, T>(
    mountpoint: &Path,
    decode: impl FnOnce(&[u8]) -> Result<T, AbiError>,
) -> Result<T, ClientError> {
    let mut bytes = [0; BYTES];
    call::<COMMAND, BYTES>(&open(mountpoint)?, &mut bytes)
        .map_err(|errno| explain(mountpoint, errno))?;
    decode(&bytes).map_err(|source| ClientError::Answer {
        path: mountpoint.to_owned(),
        source,
    })
}

/// Opens `path` and checks that it is on a copperfs mount. If it is on an image over one, opens that mount instead.
fn open(path: &Path) -> Result<OwnedFd, ClientError> {
    let mounts = mountinfo::read().map_err(|source| ClientError::Io {
        path: path.to_owned(),
        source,
    })?;
    let (fd, id) = open_any(path)?;
    let of = |id| mounts.iter().find(move |mount| mount.id == id);
    let fstype = match of(id) {
        Some(mount) if mount.is_copperfs() => return Ok(fd),
        Some(image) if image.is_native() => {
            let below = mountinfo::around(&mounts, &image.mountpoint).unwrap_or(path);
            let (fd, id) = open_any(mountinfo::uncovered(&mounts, below))?;
            match of(id) {
                Some(mount) if mount.is_copperfs() => return Ok(fd),
                _ => &image.fstype,
            }
        }
        Some(other) => &other.fstype,
        None => "an unknown filesystem",
    };
    Err(ClientError::NotCopperfs {
        path: path.to_owned(),
        fstype: fstype.to_owned(),
    })
}

/// Opens `path`, and returns the number of its mount.
fn open_any(path: &Path) -> Result<(OwnedFd, u64), ClientError> {
    let io = |errno: Errno| explain(path, errno);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOTCONN => io(errno),
        _ => ClientError::Open {
            path: path.to_owned(),
            source: errno.into(),
        },
    })?;
    let statx = rustix::fs::statx(
        &fd,
        c"",
        AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC,
        StatxFlags::MNT_ID,
    )
    .map_err(io)?;
    Ok((fd, statx.stx_mnt_id))
}

fn explain(path: &Path, errno: Errno) -> ClientError {
    let path = path.to_owned();
    match errno {
        Errno::NOTCONN | Errno::CONNABORTED => ClientError::Stale(path),
        Errno::PERM => ClientError::NotOwner(path),
        Errno::NOTTY | Errno::NOSYS => ClientError::OtherVersion(path),
        errno => ClientError::Io {
            path,
            source: errno.into(),
        },
    }
}

/// Sends `COMMAND` with its struct. Returns the value that ioctl(2) returned.
#[expect(unsafe_code, reason = "ioctl(2) has no safe form")]
fn call<const COMMAND: Opcode, const BYTES: usize>(
    fd: &OwnedFd,
    argument: &mut [u8; BYTES],
) -> Result<i32, Errno> {
    // SAFETY: `fd` is on a copperfs mount, which `open` checked. FUSE handles such a command by its number
    // alone (restricted ioctl): it copies exactly the number of bytes in the number's size field, out or in.
    // The command numbers are made from the types that are passed here, byte arrays of that size, for which
    // every content is valid. If the daemon sends fewer bytes, FUSE fails the call.
    unsafe { rustix::ioctl::ioctl(fd, Call::<COMMAND, BYTES>(argument)) }
}

/// Like rustix's `Updater`, but it returns the value that ioctl(2) returned.
struct Call<'a, const COMMAND: Opcode, const BYTES: usize>(&'a mut [u8; BYTES]);

#[expect(unsafe_code, reason = "ioctl(2) has no safe form")]
// SAFETY: The kernel may write to the argument, whose size matches the command's number, and the output is
// not read through the pointer.
unsafe impl<const COMMAND: Opcode, const BYTES: usize> rustix::ioctl::Ioctl
    for Call<'_, COMMAND, BYTES>
{
    type Output = i32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        COMMAND
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        self.0.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(
        out: rustix::ioctl::IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<i32> {
        Ok(out)
    }
}
