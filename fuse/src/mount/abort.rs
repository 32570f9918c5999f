//! Cutting a FUSE connection, through the fusectl filesystem: everybody inside gets an error at once, and
//! what a daemon's threads wait for in the kernel ends.
//!
//! It is the only thing that frees a daemon which was killed while one of its threads waited for the
//! daemon's own mount (for a page that a READ in its hands holds, say): that thread cannot die, holds
//! the connection open, and waits for an answer that nobody is left to give.

use super::descriptors;
use crate::mountinfo::{self, COPPERFS_FSTYPE, MountEntry};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags};
use rustix::net::RecvFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// The means to cut one connection. It stays bound to that connection: when that has ended, and its
/// number was given to another, there is nothing left to cut.
#[derive(Debug)]
pub struct Abort(OwnedFd);

impl Abort {
    /// For connection `number` ([`Mount::connection`](crate::Mount::connection)). Where nobody has
    /// mounted fusectl it is mounted where no other process ever sees it, which needs CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// fusectl is not mounted and may not be, or the connection is gone or another user's.
    pub fn of(number: u32) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let usual = format!("/sys/fs/fuse/connections/{number}/abort");
        let file = match rustix::fs::open(usual, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                let inside = format!("{number}/abort");
                rustix::fs::openat(&fusectl()?, inside, flags, Mode::empty())
            }
            outcome => outcome,
        };
        Ok(Self(file?))
    }

    /// Hands it to the process at the other end of a Unix socket, with one byte. It may start later.
    ///
    /// # Errors
    /// The socket takes nothing.
    pub fn send(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(descriptors::send(socket, self.0.as_fd())?)
    }

    /// Takes one from the process at the other end of a Unix socket; waits for it. `None` if there is none.
    ///
    /// # Errors
    /// The socket fails.
    pub fn receive(socket: impl AsFd) -> io::Result<Option<Self>> {
        Ok(descriptors::receive(socket, RecvFlags::empty())?.map(Self))
    }

    /// Cuts it: everybody inside gets ENOTCONN or ECONNABORTED, and the daemon's threads end. A
    /// connection that has ended is fine.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn cut(&self) -> io::Result<()> {
        rustix::io::write(&self.0, b"1")?;
        Ok(())
    }
}

/// Cuts the connection of the topmost copperfs mount at `path` (absolute, without symlinks), without
/// touching the mount itself. None there is fine.
///
/// # Errors
/// This user may not.
pub fn abort(path: &Path) -> io::Result<()> {
    let Some(mount) = mounted(path)? else {
        return Ok(());
    };
    let means = Abort::of(mount.device.1);
    // A mount that ended before that has left its number to another.
    if mounted(path)?.as_ref() != Some(&mount) {
        return Ok(());
    }
    let refused = match means.and_then(|means| means.cut()) {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    // The other way, for those who may unmount and do not see fusectl: it cuts first, and fails then
    // if the mount is in use.
    let flags = UnmountFlags::FORCE | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(path, flags) {
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(_) => Err(refused),
    }
}

/// The topmost mount at `path`, if it is copperfs's.
fn mounted(path: &Path) -> io::Result<Option<MountEntry>> {
    let mounts = mountinfo::read()?;
    let mount = mountinfo::at(&mounts, path).filter(|mount| mount.fstype == COPPERFS_FSTYPE);
    Ok(mount.cloned())
}

fn fusectl() -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let (flags, attributes) = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
    rustix::mount::fsmount(&context, flags, attributes)
}
