//! Mounting and unmounting.
//!
//! This module mounts, and passes the finished descriptor to fuser. fuser's own mounting opens `/dev/fuse`
//! itself and fails where only the setuid helper may do so. It cannot end a session that another mount
//! namespace still holds, and it reports little about why a mount failed.
//!
//! A mount ends in this order: the mount point is removed (lazily if it is in use), a session that is still
//! alive then is aborted, pending requests are cancelled, and the notifier stops. Nothing waits for DESTROY,
//! which never comes from a mount that another namespace holds.

mod abort;
mod descriptors;
mod error;
mod fusermount;
mod preflight;
mod readahead;
mod session;
mod state;

pub use abort::{Abort, abort};
pub use error::{MountError, UnmountError};
pub use preflight::prepare_mountpoint;
pub use session::Mount;
pub use state::{MountState, MountUse, detach, mount_state, mount_use, resolve, unmount_idle};

use crate::backend::Backend;
use crate::counters::Counters;
use crate::policy::{OpenMode, ReaddirPlus};
use crate::push::PushLimits;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Options of a mount, which is always `ro,nosuid,nodev,default_permissions`.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// An existing, empty directory.
    pub mountpoint: PathBuf,
    /// Which opens are reported to the backend.
    pub open: OpenMode,
    /// Whether other users may access the mount.
    pub allow_other: bool,
    /// When listings carry attributes.
    pub readdir_plus: ReaddirPlus,
    /// Whether the kernel enforces POSIX ACLs; for mounts that several users share.
    pub posix_acl: bool,
    /// FUSE threads, at least 1. They never wait for an answer.
    pub threads: usize,
    /// Whether every opendir and closedir is a message. For a backend whose listings change without
    /// invalidations: at each opendir it decides whether the kernel may use the cached listing.
    pub track_opendir: bool,
    /// Background requests (read-ahead) in the daemon at most. Below 1024, hanging misses slow hits.
    pub max_background: u16,
    /// How long a request waits for its answer before it fails with EIO. Requests to all nodes
    /// (cluster-wide statistics, `clear`) wait twice as long.
    pub request_timeout: Duration,
    /// Limits of the push into the page cache.
    pub push: PushLimits,
    /// Free inodes by invalidating names, as kernels older than 6.18 require, even if the kernel supports
    /// pruning by inode.
    pub prune_by_name: bool,
    /// The counters to use; keep a clone to read them.
    pub counters: Arc<Counters>,
}

impl MountOptions {
    /// Returns the default options for `mountpoint`.
    #[must_use]
    pub fn new(mountpoint: impl Into<PathBuf>) -> Self {
        Self {
            mountpoint: mountpoint.into(),
            open: OpenMode::default(),
            allow_other: false,
            readdir_plus: ReaddirPlus::default(),
            posix_acl: false,
            threads: 2,
            track_opendir: false,
            max_background: 4096,
            request_timeout: Duration::from_secs(30),
            push: PushLimits::default(),
            prune_by_name: false,
            counters: Arc::default(),
        }
    }
}

/// Mounts `backend`. Returns after the INIT handshake, when the mount answers requests.
///
/// Futures of the backend run on `runtime`. Blocks for the time of a mount (about 10 ms with fusermount3);
/// call it from a thread that may block.
///
/// # Errors
/// See [`MountError`]. After an error nothing stays mounted.
pub fn mount(
    backend: Arc<dyn Backend>,
    options: MountOptions,
    runtime: &Handle,
) -> Result<Mount, MountError> {
    let mountpoint = preflight::check(&options)?;
    let connection = fusermount::connect(&mountpoint, &options)?;
    let method = connection.method;
    Mount::start(backend, options, runtime, mountpoint.clone(), connection).inspect_err(|_| {
        if let Err(error) = fusermount::disconnect(&mountpoint, method) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "cannot undo a mount"
            );
        }
    })
}
