//! Errors of mounting and unmounting, with advice for users.

use std::io;
use std::path::PathBuf;

/// Why a mount failed, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel has no FUSE, or the container hides it.
    #[error(
        "there is no FUSE device /dev/fuse: load the module (`modprobe fuse`), or start the container with `--device /dev/fuse --cap-add SYS_ADMIN`"
    )]
    NoDevice,
    /// Users may not open the FUSE device.
    #[error(
        "/dev/fuse may not be opened by users here: let the administrator run `chmod 666 /dev/fuse` (udev's rule does it on most machines), or mount as root"
    )]
    DeviceRefused,
    /// The setuid helper is missing.
    #[error(
        "mounting needs root or the setuid program fusermount3, which is not in PATH: install the package `fuse3`"
    )]
    NoFusermount,
    /// The administrator has not permitted `allow_other`.
    #[error(
        "`allow_other` is not allowed to users here: add a line `user_allow_other` to /etc/fuse.conf, or mount without it"
    )]
    AllowOtherRefused,
    /// A daemon that takes a mount over would have other features than the kernel was told.
    #[error(
        "this program cannot go on with a mount of another one: it would agree on other features with the kernel; unmount, and mount again"
    )]
    OtherHandshake,
    /// Passthrough without CAP_SYS_ADMIN.
    #[error("`--open passthrough` needs CAP_SYS_ADMIN: mount as root, or use `--open tracked`")]
    PassthroughNeedsPrivilege,
    /// The mount point does not exist.
    #[error("cannot mount at {0}: there is no such directory; mkdir -p {0}")]
    Missing(PathBuf),
    /// The mount point is not a directory.
    #[error("cannot mount at {0}: it is not a directory; give an empty one")]
    NotADirectory(PathBuf),
    /// The mount point is not empty: a mount would hide its files.
    #[error(
        "cannot mount at {0}: the directory is not empty, and a mount would hide what is in it; give an empty one"
    )]
    NotEmpty(PathBuf),
    /// A copperfs with a live daemon is mounted there.
    #[error(
        "cannot mount at {0}: a copperfs is already mounted there; copperfs unmount {0} takes it away"
    )]
    AlreadyMounted(PathBuf),
    /// A copperfs is mounted there whose daemon runs but does not answer.
    #[error(
        "cannot mount at {0}: a copperfs is mounted there whose daemon does not answer; copperfs unmount {0} ends it"
    )]
    Unresponsive(PathBuf),
    /// The mount of a dead daemon is there and cannot be removed.
    #[error(
        "cannot mount at {path}: the mount of a daemon that is gone is there and cannot be taken away: {source}; as its owner or root: fusermount3 -uz {path}"
    )]
    Stale {
        /// The mount point.
        path: PathBuf,
        /// The failure.
        source: UnmountError,
    },
    /// Another filesystem is mounted there.
    #[error(
        "cannot mount at {path}: a {fstype} filesystem is mounted there; give an empty directory"
    )]
    Foreign {
        /// The mount point.
        path: PathBuf,
        /// Type of that filesystem.
        fstype: String,
    },
    /// The mount point cannot be examined.
    #[error("cannot examine mount point {path}")]
    Examine {
        /// The mount point.
        path: PathBuf,
        /// The failure.
        source: io::Error,
    },
    /// mount(2) failed.
    #[error("cannot mount at {path}")]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The failure.
        source: io::Error,
    },
    /// fusermount3 failed.
    #[error("fusermount3 cannot mount at {path}: {message}")]
    Fusermount {
        /// The mount point.
        path: PathBuf,
        /// Its error message.
        message: String,
    },
    /// The INIT handshake with the kernel failed.
    #[error("the kernel lacks what this mount needs")]
    Handshake(#[source] io::Error),
    /// Threads or descriptors are not available.
    #[error("cannot start the threads of the mount")]
    Start(#[source] io::Error),
}

/// Why an unmount failed.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// A process, another mount or the kernel uses the mount.
    #[error("{0} is in use")]
    Busy(PathBuf),
    /// umount2(2) failed.
    #[error("cannot unmount {path}")]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// The failure.
        source: io::Error,
    },
    /// fusermount3 failed.
    #[error("fusermount3 cannot unmount {path}: {message}")]
    Fusermount {
        /// The mount point.
        path: PathBuf,
        /// Its error message.
        message: String,
    },
    /// The path or mountinfo cannot be read.
    #[error("cannot examine {path}")]
    Examine {
        /// The mount point.
        path: PathBuf,
        /// The failure.
        source: io::Error,
    },
}
