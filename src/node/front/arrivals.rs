//! Pushes prefetched files into the kernel's page cache.
//!
//! The kernel accepts pages only of inodes that it knows. A program that opens files by name without listing their
//! directory (a Python import its `__pycache__`) makes one inode known at a time, by a look-up that the push is meant to
//! avoid. So when a bundle of a directory is requested, the watchdog ([`crate::watchdog`]) lists that directory on this
//! node's own mount. The READDIRPLUS replies make all its inodes known. No request waits for it, and a directory that
//! does not fit into its queue is not listed.

use super::FrontInner;
use crate::node::watchdog::WatchdogLine;
use crate::read::{Arrivals, FileRef};
use copperfs_fuse as fuse;
use copperfs_overlay::ItemPath;
use fuse::Ino;
use std::sync::{Arc, Weak};

/// Passes arrived files on to the mount.
pub(super) struct PushArrivals {
    /// Weak, because the front owns the read path, which owns this.
    pub(super) front: Weak<FrontInner>,
    pub(super) push: Arc<fuse::Push>,
    pub(super) lister: Option<WatchdogLine>,
}

impl PushArrivals {
    /// The inodes of the files that the kernel may know.
    fn known<'a>(
        front: &FrontInner,
        files: &'a [FileRef],
    ) -> impl Iterator<Item = (&'a FileRef, Ino)> {
        files.iter().filter_map(|file| {
            let number = front.inodes.number_of(&file.path, file.version);
            front.inodes.contains(number).then_some((file, Ino(number)))
        })
    }
}

impl Arrivals for PushArrivals {
    fn expected(&self, directory: &ItemPath, files: &[FileRef]) {
        if let (Some(front), Some(lister)) = (self.front.upgrade(), &self.lister)
            && Self::known(&front, files).count() * 2 < files.len()
        {
            lister.list(directory);
        }
    }

    fn arrived(&self, files: &[FileRef]) {
        let Some(front) = self.front.upgrade() else {
            return;
        };
        let small = front.push_file_max();
        let known: Vec<Ino> = Self::known(&front, files)
            .filter(|(file, _)| file.size <= small)
            .map(|(_, ino)| ino)
            .collect();
        if !known.is_empty() {
            self.push.offer(&known);
        }
    }
}
