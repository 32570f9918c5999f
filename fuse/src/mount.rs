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
mod mounted;
mod preflight;
mod readahead;
mod session;
mod state;

pub use abort::{Abort, abort};
pub use error::{MountError, UnmountError};
pub use handshake::Handshake;
pub use mounted::Mount;
pub use preflight::prepare_mountpoint;
pub use readahead::raise as raise_read_ahead;
pub use session::Session;
pub use state::{MountState, MountUse, detach, mount_state, mount_use, resolve, unmount_idle};

use crate::backend::Backend;
use crate::device::Device;
use crate::in_hand;
use crate::passthrough::PassthroughOpen;
pub use crate::policy::MountOptions;
use std::ops::Range;
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

/// What an earlier daemon of a mount has left.
#[derive(Debug)]
pub struct Inherited {
    /// The open file of its connection.
    pub connection: OwnedFd,
    /// What was agreed with the kernel.
    pub handshake: Handshake,
    /// The last numbers that [`InHandRecord`](crate::InHandRecord) was told.
    pub in_hand: Range<u64>,
    /// The opens that [`PassthroughRecord`](crate::PassthroughRecord) was told of, without those that were released.
    pub opens: Vec<PassthroughOpen>,
}

impl Inherited {
    /// Has the kernel send the requests again that the earlier daemon had in hand. If it cannot, they fail with EIO.
    fn end_requests(&self, device: &Device, resend: bool) {
        if resend && device.resend().is_ok() {
            return;
        }
        match device.fail(in_hand::tried(&self.in_hand)) {
            Ok(0) => {}
            Ok(failed) => tracing::warn!(
                failed,
                "this kernel does not send requests again: those that the daemon before had in hand got EIO"
            ),
            Err(errno) => {
                tracing::error!(%errno, "requests that the daemon before had in hand get no answer");
            }
        }
    }
}

/// Serves the mount of an earlier daemon, which has died or hands it over. Returns when the mount answers requests. Those
/// that the earlier daemon had in hand are sent again by the kernel; before Linux 6.9 they have failed with EIO.
///
/// # Errors
/// The kernel's features cannot be the same as before, or there are no threads. After an error the connection is as
/// before.
pub fn take_over(
    backend: Arc<dyn Backend>,
    options: MountOptions,
    runtime: &Handle,
    inherited: &Inherited,
) -> Result<Mount, MountError> {
    let mountpoint = options.mountpoint.clone();
    Mount::start(
        backend,
        options,
        runtime,
        mountpoint,
        &inherited.connection,
        Some(inherited),
    )
}
