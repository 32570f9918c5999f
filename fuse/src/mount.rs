//! Mounting and unmounting, and the life of one mount.
//!
//! We mount ourselves and hand fuser the finished descriptor, because fuser opens `/dev/fuse` itself
//! and gives up where only the setuid helper may, cannot be told to end a session that another mount
//! namespace still pins, and says little about why a mount failed.
//!
//! The order of an end: the mount point goes (normally, or lazily if it is in use), a session that is
//! still alive then is aborted, what waits is cancelled, the notifier stops. DESTROY is not waited
//! for: from a mount that another namespace holds it never comes.

mod abort;
mod descriptors;
mod fusermount;
mod preflight;
mod readahead;
mod session;
mod state;

pub use abort::{Abort, abort};
pub use preflight::{NonEmpty, make_way};
pub use state::{MountState, detach, is_busy, mount_state, resolve, unmount_idle};

use crate::backend::Backend;
use crate::counters::Counters;
use crate::notifier::Notifier;
use crate::policy::{OpenMode, ReaddirPlus};
use crate::push::{Push, PushLimits};
use session::Session;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// How to mount. Always `ro,nosuid,nodev,default_permissions`.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Where: an existing directory.
    pub mountpoint: PathBuf,
    /// What is shown as the source in `mount` and `df`; other characters than letters, digits and
    /// `-_.:/@+` become `_`.
    pub fsname: String,
    /// What an open costs, and who sees it.
    pub open: OpenMode,
    /// Whether users other than the one who mounts may enter.
    pub allow_other: bool,
    /// Whether a mount point that is not empty is accepted.
    pub non_empty: NonEmpty,
    /// When listings carry attributes.
    pub readdir_plus: ReaddirPlus,
    /// Whether the kernel enforces POSIX ACLs; for mounts shared by users.
    pub posix_acl: bool,
    /// FUSE threads, at least 1. They only answer what is at hand.
    pub threads: usize,
    /// Whether every opendir and closedir is a message, for a backend whose listings change without
    /// being invalidated: what the kernel has cached of a listing is then used only as long as the
    /// backend says so at each opendir.
    pub see_directories: bool,
    /// Background requests (read-ahead) in the daemon at most; below 1024 hanging misses slow hits.
    pub max_background: u16,
    /// How long a request may wait for its answer before it fails with EIO. Requests to all nodes
    /// (cluster-wide statistics, `clear`) may wait twice as long.
    pub request_timeout: Duration,
    /// How much is pushed into the page cache.
    pub push: PushLimits,
    /// Free inodes by invalidating names, as kernels older than 6.18 require, even if the kernel supports
    /// pruning by inode.
    pub prune_by_name: bool,
    /// The counters to use; keep a clone to read them.
    pub counters: Arc<Counters>,
}

impl MountOptions {
    /// The defaults, for `mountpoint`.
    #[must_use]
    pub fn new(mountpoint: impl Into<PathBuf>) -> Self {
        Self {
            mountpoint: mountpoint.into(),
            fsname: "copperfs".to_owned(),
            open: OpenMode::default(),
            allow_other: false,
            non_empty: NonEmpty::default(),
            readdir_plus: ReaddirPlus::default(),
            posix_acl: false,
            threads: 2,
            see_directories: false,
            max_background: 4096,
            request_timeout: Duration::from_secs(30),
            push: PushLimits::default(),
            prune_by_name: false,
            counters: Arc::default(),
        }
    }
}

/// Why a mount failed, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel has no FUSE, or the container does not show it.
    #[error(
        "there is no FUSE device /dev/fuse: load the module (`modprobe fuse`), or start the container with `--device /dev/fuse --cap-add SYS_ADMIN`"
    )]
    NoDevice,
    /// The FUSE device is closed to users.
    #[error(
        "/dev/fuse may not be opened by users here: let the administrator run `chmod 666 /dev/fuse` (udev's rule does it on most machines), or mount as root"
    )]
    DeviceRefused,
    /// The setuid helper is missing.
    #[error(
        "mounting needs root or the setuid program fusermount3, which is not in PATH: install the package `fuse3`"
    )]
    NoFusermount,
    /// `allow_other` without the administrator's leave.
    #[error(
        "`allow_other` is not allowed to users here: add a line `user_allow_other` to /etc/fuse.conf, or mount without it"
    )]
    AllowOtherRefused,
    /// Passthrough without privilege.
    #[error("`--open passthrough` needs CAP_SYS_ADMIN: mount as root, or use `--open tracked`")]
    PassthroughNeedsPrivilege,
    /// No such directory.
    #[error("cannot mount at {path}: there is no such directory; mkdir -p {path}")]
    Missing {
        /// The mount point.
        path: PathBuf,
    },
    /// Something else than a directory.
    #[error("cannot mount at {path}: it is not a directory; give an empty one")]
    NotADirectory {
        /// The mount point.
        path: PathBuf,
    },
    /// Files would be hidden.
    #[error(
        "cannot mount at {path}: the directory is not empty, and a mount would hide what is in it; give an empty one"
    )]
    NotEmpty {
        /// The mount point.
        path: PathBuf,
    },
    /// A copperfs is there and alive.
    #[error(
        "cannot mount at {path}: a copperfs is already mounted there; copperfs unmount {path} takes it away"
    )]
    AlreadyMounted {
        /// The mount point.
        path: PathBuf,
    },
    /// A copperfs is there, alive, and does not answer.
    #[error(
        "cannot mount at {path}: a copperfs is mounted there whose daemon does not answer; copperfs unmount {path} ends it"
    )]
    Unresponsive {
        /// The mount point.
        path: PathBuf,
    },
    /// A daemon died there.
    #[error(
        "cannot mount at {path}: the mount of a daemon that is gone is there and cannot be taken away: {source}; as its owner or root: fusermount3 -uz {path}"
    )]
    Stale {
        /// The mount point.
        path: PathBuf,
        /// Why not.
        source: UnmountError,
    },
    /// Another filesystem is mounted there.
    #[error(
        "cannot mount at {path}: a {fstype} filesystem is mounted there; give an empty directory"
    )]
    Foreign {
        /// The mount point.
        path: PathBuf,
        /// Its type.
        fstype: String,
    },
    /// The mount point cannot be examined.
    #[error("cannot examine mount point {path}")]
    Examine {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// mount(2) failed.
    #[error("cannot mount at {path}")]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// fusermount3 failed.
    #[error("fusermount3 cannot mount at {path}: {message}")]
    Fusermount {
        /// The mount point.
        path: PathBuf,
        /// What it said.
        message: String,
    },
    /// The kernel and we do not agree on INIT.
    #[error("the kernel lacks what this mount needs")]
    Handshake(#[source] io::Error),
    /// Threads or descriptors could not be had.
    #[error("cannot start the threads of the mount")]
    Start(#[source] io::Error),
}

/// Why an unmount failed.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// A process, another mount or the kernel uses the mount.
    #[error("{path} is in use")]
    Busy {
        /// The mount point.
        path: PathBuf,
    },
    /// umount2(2) failed.
    #[error("cannot unmount {path}")]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// fusermount3 failed.
    #[error("fusermount3 cannot unmount {path}: {message}")]
    Fusermount {
        /// The mount point.
        path: PathBuf,
        /// What it said.
        message: String,
    },
    /// The path or mountinfo cannot be read.
    #[error("cannot examine {path}")]
    Examine {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A mounted filesystem. Dropping it unmounts, as [`Mount::unmount`] does.
#[derive(Debug)]
pub struct Mount {
    session: Option<Session>,
    mountpoint: PathBuf,
    notifier: Notifier,
    push: Push,
    counters: Arc<Counters>,
}

/// Mounts `backend`. Returns when the kernel and the daemon have shaken hands: the mount answers.
///
/// `Pending` answers run on `runtime`. Blocks for as long as a mount takes (fusermount3: some 10 ms);
/// call it from a thread that may block.
///
/// # Errors
/// See [`MountError`]. Nothing stays mounted then.
pub fn mount(
    backend: Arc<dyn Backend>,
    options: MountOptions,
    runtime: &Handle,
) -> Result<Mount, MountError> {
    let mountpoint = preflight::check(&options)?;
    let connection = fusermount::connect(&mountpoint, &options)?;
    let (session, notifier, push) = Session::start(backend, &options, runtime, connection)?;
    Ok(Mount {
        session: Some(session),
        mountpoint,
        notifier,
        push,
        counters: options.counters,
    })
}

impl Mount {
    /// Where it is mounted: absolute, without symlinks.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The number of its FUSE connection, for [`Abort::of`]; `None` if it could not be found.
    #[must_use]
    pub fn connection(&self) -> Option<u32> {
        self.session.as_ref().and_then(Session::connection)
    }

    /// Tells the kernel what to forget.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Has bytes pushed that came after the kernel learned of their inode.
    #[must_use]
    pub fn push(&self) -> Push {
        self.push.clone()
    }

    /// What the kernel asked so far.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Completes when the session has ended, whoever ended it (`umount` by hand included). Does not
    /// borrow the mount; may be dropped.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let ended = self.session.as_ref().map(Session::ended);
        async move {
            if let Some(ended) = ended {
                ended.wait().await;
            }
        }
    }

    /// Waits at most `timeout` for the session's end, blocking; whether it has ended.
    pub fn wait_closed(&self, timeout: Duration) -> bool {
        self.session
            .as_ref()
            .is_none_or(|session| session.wait_ended(timeout))
    }

    /// Unmounts: normally, or lazily if the mount is in use. Requests that wait are answered EINTR.
    ///
    /// Blocks for a bounded time (below 2 s, plus fusermount3) and ends the daemon's side whatever
    /// holds the mount: readers in another mount namespace get ENOTCONN.
    ///
    /// # Errors
    /// The mount point could not be removed; the daemon's side has ended all the same.
    pub fn unmount(mut self) -> Result<(), UnmountError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), UnmountError> {
        match self.session.take() {
            Some(session) => session.end(),
            None => Ok(()),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "unmounting failed"
            );
        }
    }
}
