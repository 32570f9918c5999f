//! Cutting a FUSE connection that outlives its mount point, through the fusectl filesystem.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::io;
use std::os::fd::OwnedFd;

/// Aborts connection `minor`: everybody inside gets ENOTCONN, and the daemon's threads end.
///
/// # Errors
/// fusectl is not mounted and may not be, or the connection is gone.
pub(super) fn abort(minor: u32) -> io::Result<()> {
    let usual = format!("/sys/fs/fuse/connections/{minor}/abort");
    match std::fs::write(&usual, "1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(abort_privately(minor)?),
        result => result,
    }
}

/// The same where nobody has mounted fusectl: a mount of it that no other process ever sees. Needs
/// CAP_SYS_ADMIN.
fn abort_privately(minor: u32) -> Result<(), Errno> {
    let fusectl = fusectl()?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&fusectl, format!("{minor}/abort"), flags, Mode::empty())?;
    rustix::io::write(&file, b"1").map(|_| ())
}

fn fusectl() -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let (flags, attributes) = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
    rustix::mount::fsmount(&context, flags, attributes)
}
