//! Aborts a FUSE connection, through the fusectl filesystem. Every request in it fails at once, and the
//! daemon's threads stop waiting in the kernel.
//!
//! Only this frees a daemon that was killed while one of its threads waited for the daemon's own mount (for
//! example, for a page that a READ in progress has locked). That thread cannot exit, keeps the connection
//! open, and waits for an answer that no process will send.

use crate::descriptors;
use crate::mountinfo::{self, MountEntry};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// The permission to abort one connection. It stays bound to that connection, and does nothing after the
/// connection has ended, even if another one has its number.
#[derive(Debug)]
pub struct Abort(OwnedFd);

impl Abort {
    /// Opens connection `number` ([`Mount::connection`](crate::Mount::connection)). If fusectl is not
    /// mounted, it is mounted where no other process sees it, which needs CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// fusectl is not mounted and may not be, or the connection has ended or belongs to another user.
    pub fn of(number: u32) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let path = format!("/sys/fs/fuse/connections/{number}/abort");
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                let path = format!("{number}/abort");
                rustix::fs::openat(&fusectl()?, path, flags, Mode::empty())
            }
            result => result,
        };
        Ok(Self(file?))
    }

    /// Sends it to the process at the other end of a Unix socket, with one byte. That process may start
    /// later.
    ///
    /// # Errors
    /// The socket cannot be written.
    pub fn send(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(descriptors::send(socket, b'm', self.0.as_fd())?)
    }

    /// Receives one from the process at the other end of a Unix socket, blocking. Returns `None` if the
    /// next byte has none, or at the end of the stream.
    ///
    /// # Errors
    /// The socket cannot be read.
    pub fn receive(socket: impl AsFd) -> io::Result<Option<Self>> {
        Ok(descriptors::receive(socket)?.map(|(_, file)| Self(file)))
    }

    /// Aborts the connection: its requests fail with ENOTCONN or ECONNABORTED, and the daemon's threads
    /// end. Succeeds if the connection has ended already.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn cut(&self) -> io::Result<()> {
        rustix::io::write(&self.0, b"1")?;
        Ok(())
    }
}

/// Aborts the connection of the topmost copperfs mount at `path` (absolute, without symlinks). The mount
/// itself stays. Succeeds if there is none.
///
/// # Errors
/// This user may not abort it.
pub fn abort(path: &Path) -> io::Result<()> {
    let Some(mount) = copperfs_mount(path)? else {
        return Ok(());
    };
    let connection = Abort::of(mount.device.1);
    // If the mount has ended in the meantime, its number may belong to another connection now.
    if copperfs_mount(path)?.as_ref() != Some(&mount) {
        return Ok(());
    }
    let refused = match connection.and_then(|connection| connection.cut()) {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    // For a process that may unmount but has no access to fusectl: a forced unmount aborts the connection
    // first, and then fails if the mount is in use.
    let flags = UnmountFlags::FORCE | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(path, flags) {
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(_) => Err(refused),
    }
}

/// Returns the topmost mount at `path`, if it is a copperfs.
fn copperfs_mount(path: &Path) -> io::Result<Option<MountEntry>> {
    let mounts = mountinfo::read()?;
    let mount = mountinfo::at(&mounts, path).filter(|mount| mount.is_copperfs());
    Ok(mount.cloned())
}

fn fusectl() -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let (flags, attributes) = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
    rustix::mount::fsmount(&context, flags, attributes)
}
