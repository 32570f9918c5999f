//! Mounts an image.
//!
//! The metadata lies in a filesystem in memory (ramfs) that is mounted nowhere, so no process but this one can reach it,
//! and it goes with the image. It must not be tmpfs, whose files the kernel refuses here.

use copperfs_fuse::mountinfo::NATIVE_NAME;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// How far the kernel reads around a page of a large file that a program needs.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadAhead {
    /// Far: the kernel makes pages in large units, which give mapped files their speed.
    Long,
    /// As far as on a FUSE mount, where profiles are recorded. A start then brings little more through the tree than its
    /// profile names.
    Short,
}

impl ReadAhead {
    fn kib(self) -> &'static str {
        match self {
            Self::Long => "2048",
            Self::Short => "512",
        }
    }
}

/// Why an image is not mounted.
#[derive(Debug, thiserror::Error)]
pub(super) enum EroFsError {
    /// This process may not mount.
    #[error("mounting an image needs CAP_SYS_ADMIN in the first user namespace")]
    NotPermitted,
    /// There is no EROFS.
    #[error("this kernel has no EROFS (modprobe erofs, or CONFIG_EROFS_FS)")]
    NoEroFs,
    /// It mounts only block devices.
    #[error(
        "this kernel mounts no EROFS images from files (Linux 6.12, CONFIG_EROFS_FS_BACKED_BY_FILE), or not over \
         this mount"
    )]
    NotFromFiles,
    /// Another step failed.
    #[error("cannot {step}: {source}")]
    Step {
        /// The step.
        step: &'static str,
        /// Its failure.
        source: io::Error,
    },
}

fn step(step: &'static str) -> impl Fn(Errno) -> EroFsError {
    move |errno| match errno {
        Errno::PERM => EroFsError::NotPermitted,
        Errno::NODEV => EroFsError::NoEroFs,
        Errno::NOTBLK => EroFsError::NotFromFiles,
        errno => EroFsError::Step {
            step,
            source: errno.into(),
        },
    }
}

/// Mounts the image with `metadata` and the contents on the devices `contents` over the directory `target`, for reading, without devices
/// and set-user-id programs.
///
/// # Errors
/// See [`EroFsError`]. Nothing is mounted.
pub(super) fn mount(
    metadata: &[u8],
    contents: &[BorrowedFd<'_>],
    read_ahead: ReadAhead,
    target: BorrowedFd<'_>,
) -> Result<(), EroFsError> {
    let memory = in_memory(metadata)?;
    let source = format!("/proc/self/fd/{}/{NATIVE_NAME}", memory.as_raw_fd());
    let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(step("open EROFS"))?;
    let configure = || {
        fsconfig_set_string(&context, "source", source)?;
        for content in contents {
            let device = format!("/proc/self/fd/{}", content.as_raw_fd());
            fsconfig_set_string(&context, "device", device)?;
        }
        fsconfig_set_flag(&context, "ro")
    };
    configure().map_err(step("configure EROFS"))?;
    let before = backing_devices();
    fsconfig_create(&context).map_err(step("mount the image"))?;
    // Their numbers count mounts, and nothing tells which one this image has. Another one that came at the same moment
    // gets the same read-ahead.
    for name in backing_devices().difference(&before) {
        let path = Path::new(BACKING_DEVICES).join(name).join("read_ahead_kb");
        if let Err(error) = std::fs::write(&path, read_ahead.kib()) {
            tracing::debug!(%error, path = %path.display(), "the read-ahead of an image stays as it is");
        }
    }
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    let image = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes);
    attach(image.map_err(step("mount the image"))?.as_fd(), target)
}

/// Mounts the filesystem of the directory `top` over the directory `target`, too.
///
/// # Errors
/// As [`mount`].
pub(super) fn bind(top: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), EroFsError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let copy = open_tree(top, "", flags).map_err(step("mount the copperfs a second time"))?;
    attach(copy.as_fd(), target)
}

/// Moves the mount `mount` over the directory `target`.
fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), EroFsError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags).map_err(step("attach the mount"))
}

/// A filesystem in memory with one file.
fn in_memory(metadata: &[u8]) -> Result<OwnedFd, EroFsError> {
    let failed = step("keep the image's metadata in memory");
    let context = fsopen("ramfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(&failed)?;
    fsconfig_create(&context).map_err(&failed)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let memory = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(&failed)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(&memory, NATIVE_NAME, flags, Mode::RUSR).map_err(&failed)?;
    File::from(file)
        .write_all(metadata)
        .map_err(|source| EroFsError::Step {
            step: "keep the image's metadata in memory",
            source,
        })?;
    Ok(memory)
}

const BACKING_DEVICES: &str = "/sys/class/bdi";

/// The names of the kernel's entries for images.
fn backing_devices() -> BTreeSet<String> {
    let entries = std::fs::read_dir(BACKING_DEVICES).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with("erofs-")).collect()
}
