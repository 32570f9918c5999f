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
mod error;
mod fusermount;
mod handshake;
mod preflight;
mod readahead;
mod session;
mod state;

pub use abort::{Abort, abort};
pub use error::{MountError, UnmountError};
pub use handshake::Handshake;
pub use preflight::prepare_mountpoint;
pub use session::Mount;
pub use state::{MountState, MountUse, detach, mount_state, mount_use, resolve, unmount_idle};

use crate::backend::Backend;
pub use crate::policy::MountOptions;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::runtime::Handle;

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
    let fuse = fusermount::connect(&mountpoint, &options)?;
    Mount::start(backend, options, runtime, mountpoint.clone(), &fuse, None).inspect_err(|_| {
        if let Err(error) = state::disconnect(&mountpoint) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "cannot undo a mount"
            );
        }
    })
}

/// Serves the mount of an earlier daemon, which has died or hands it over: `connection` is its open file, and `made` its
/// handshake. Returns when the mount answers requests; [`Mount::resend`] gets those that the earlier daemon had in hand.
///
/// # Errors
/// The kernel's features cannot be the same as before, or there are no threads. After an error the connection is as
/// before.
pub fn take_over(
    backend: Arc<dyn Backend>,
    options: MountOptions,
    runtime: &Handle,
    connection: &OwnedFd,
    made: &Handshake,
) -> Result<Mount, MountError> {
    let mountpoint = options.mountpoint.clone();
    Mount::start(
        backend,
        options,
        runtime,
        mountpoint,
        connection,
        Some(made),
    )
}
