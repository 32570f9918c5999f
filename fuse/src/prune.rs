//! Telling the kernel to drop inodes, where the backend has no room for more.
//!
//! An inode of the backend lives as long as the kernel holds it, and the kernel keeps what it has looked
//! up until it wants for memory itself. So the backend says which inodes are to go
//! ([`Backend::prunable`]), and the notifier thread tells the kernel, in batches.
//!
//! Since 6.18 there is a message for it (FUSE_NOTIFY_PRUNE): inodes in use stay as they are. Before, the
//! names of files are invalidated: an open file goes on, and is seen as deleted in `/proc`; directories
//! are left alone, because whoever works in one would find that it has no name any more. They go when
//! the kernel wants the memory.

use crate::backend::Backend;
use crate::device::{Device, PRUNE_MAX};
use rustix::io::Errno;
use std::sync::Arc;

/// The notifier thread's side of it.
pub(crate) struct Pruner {
    device: Arc<Device>,
    backend: Arc<dyn Backend>,
    /// The kernel has said that it knows no PRUNE, or is not to be asked.
    by_name: bool,
}

impl Pruner {
    pub(crate) fn new(device: Arc<Device>, backend: Arc<dyn Backend>, by_name: bool) -> Self {
        Self {
            device,
            backend,
            by_name,
        }
    }

    /// Drops one batch; `false` if there was none.
    pub(crate) fn prune_some(&mut self) -> bool {
        let inos = self.backend.prunable(PRUNE_MAX);
        if inos.is_empty() {
            return false;
        }
        if !self.by_name {
            match self.device.prune(&inos) {
                // The mount is gone, and what it held.
                Ok(()) | Err(Errno::NODEV | Errno::NOTCONN) => return true,
                Err(Errno::INVAL) => self.by_name = true,
                Err(errno) => {
                    tracing::debug!(%errno, "the kernel refused to drop inodes");
                    return true;
                }
            }
        }
        for ino in inos {
            if let Some((parent, name)) = self.backend.file_entry(ino)
                && let Err(errno) = self.device.invalidate_entry(parent, &name)
            {
                tracing::debug!(%errno, "the kernel refused to drop a name");
            }
        }
        true
    }
}
