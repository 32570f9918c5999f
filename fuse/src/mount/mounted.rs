//! A mounted filesystem, and its end.

use super::abort::Abort;
use super::session::Session;
use super::state::{disconnect, mount_state};
use super::{Inherited, MountError, MountOptions, MountState, UnmountError, readahead};
use crate::backend::Backend;
use crate::mountinfo;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// How long a session may take to notice that its mount is gone. A session that is still alive then is
/// held by an open file after a lazy unmount, or by another mount namespace.
const END_TIMEOUT: Duration = Duration::from_millis(300);
/// How long an aborted session may take to end.
const ABORT_TIMEOUT: Duration = Duration::from_millis(1000);

/// A mounted filesystem, whose [`Session`] this dereferences to. Dropping it unmounts, as [`Mount::unmount`] does.
#[derive(Debug)]
pub struct Mount {
    session: Session,
    mountpoint: PathBuf,
    /// Device number of the mount; its minor number is the number of the FUSE connection.
    device: Option<(u32, u32)>,
    unmounted: bool,
}

impl Mount {
    /// Serves the mount at `mountpoint`. After an error the caller unmounts.
    pub(super) fn start(
        backend: Arc<dyn Backend>,
        options: MountOptions,
        runtime: &Handle,
        mountpoint: PathBuf,
        fuse: &OwnedFd,
        inherited: Option<&Inherited>,
    ) -> Result<Self, MountError> {
        let session = Session::start(backend, options, runtime, fuse, inherited)?;
        let mounts = mountinfo::read().unwrap_or_default();
        let device = mountinfo::at(&mounts, &mountpoint).map(|entry| entry.device);
        if let Some(device) = device {
            readahead::raise(device);
        }
        Ok(Self {
            session,
            mountpoint,
            device,
            unmounted: false,
        })
    }

    /// Returns the mount point: absolute, without symlinks.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Returns the number of the FUSE connection, for [`Abort::of`]; `None` if it could not be found.
    #[must_use]
    pub fn connection(&self) -> Option<u32> {
        self.device.map(|(_, minor)| minor)
    }

    /// Unmounts, lazily if the mount is in use. Pending requests are answered EINTR.
    ///
    /// Blocks for less than 2 s, plus the time of fusermount3. Ends the daemon's side even if the mount is
    /// still held: readers in another mount namespace get ENOTCONN.
    ///
    /// # Errors
    /// The mount point could not be removed. The daemon's side has ended all the same.
    pub fn unmount(mut self) -> Result<(), UnmountError> {
        self.unmount_once()
    }

    fn unmount_once(&mut self) -> Result<(), UnmountError> {
        if std::mem::replace(&mut self.unmounted, true) {
            return Ok(());
        }
        let result = if self.is_mounted() {
            disconnect(&self.mountpoint)
        } else {
            Ok(())
        };
        if !self.wait_closed(END_TIMEOUT) {
            // Aborting the connection makes every reader get ENOTCONN or ECONNABORTED.
            if let Some(connection) = self.connection()
                && let Err(error) = Abort::of(connection).and_then(|connection| connection.cut())
            {
                tracing::debug!(%error, "cannot abort the FUSE connection");
            }
            if !self.wait_closed(ABORT_TIMEOUT) {
                // Without fusectl nothing can end threads that wait in the kernel, except the end of
                // the process.
                tracing::warn!("the FUSE session is held by somebody and cannot be aborted");
            }
        }
        self.session.stop();
        result
    }

    /// Whether the filesystem at the mount point is still this session's. A user may have unmounted it by
    /// hand, and mounted another one.
    fn is_mounted(&self) -> bool {
        if self.wait_closed(Duration::ZERO) {
            // The device number may be in use by another mount now, so it proves nothing. A mount whose
            // connection has ended is recognized by its error.
            return matches!(mount_state(&self.mountpoint), Ok(MountState::Stale));
        }
        let Ok(mounts) = mountinfo::read() else {
            return true;
        };
        mountinfo::at(&mounts, &self.mountpoint)
            .is_some_and(|mount| self.device.is_none_or(|device| device == mount.device))
    }
}

impl Deref for Mount {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.unmount_once() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "unmounting failed"
            );
        }
    }
}
