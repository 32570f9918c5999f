//! Asks the kernel to drop inodes when the backend has no room for more.
//!
//! An inode of the backend lives as long as the kernel references it, and the kernel keeps inodes until it
//! needs memory itself. So the backend selects inodes to drop ([`Backend::prunable`]), and the notifier
//! thread sends their numbers to the kernel in batches.
//!
//! Linux 6.18 and later have a message for this (FUSE_NOTIFY_PRUNE), which leaves inodes in use as they
//! are. On older kernels the names of files are invalidated: an open file stays usable, and `/proc` shows
//! it as deleted. Directories are kept there, because a process could no longer find the name of its working
//! directory; the kernel drops them when it needs the memory.

use crate::backend::Backend;
use crate::device::{Device, PRUNE_MAX};
use rustix::io::Errno;

/// Drops one batch, on the notifier thread. Returns `false` if there was none. `by_name`: the kernel does not
/// support PRUNE, or [`crate::MountOptions::prune_by_name`] is set.
pub(crate) fn prune_batch(device: &Device, backend: &dyn Backend, by_name: &mut bool) -> bool {
    let inos = backend.prunable(PRUNE_MAX);
    if inos.is_empty() {
        return false;
    }
    if !*by_name {
        match device.prune(&inos) {
            // After the end of the mount the kernel holds nothing to drop.
            Ok(()) | Err(Errno::NODEV | Errno::NOTCONN) => return true,
            // The kernel does not know the message. This batch is pruned by name below.
            Err(Errno::INVAL) => *by_name = true,
            Err(errno) => {
                tracing::debug!(%errno, "the kernel refused to drop inodes");
                return true;
            }
        }
    }
    for ino in inos {
        if let Some((parent, name)) = backend.file_entry(ino)
            && let Err(errno) = device.invalidate_entry(parent, &name)
        {
            tracing::debug!(%errno, "the kernel refused to drop a name");
        }
    }
    true
}
