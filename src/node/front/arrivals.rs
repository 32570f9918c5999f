//! What bundles bring goes on into the kernel's page cache.
//!
//! The kernel takes pages only of inodes that it knows. Programs that open files by name without
//! listing their directory (a Python import its `__pycache__`) make one known at a time, by the very
//! look-up that the push wants to spare them. So the watchdog ([`crate::watchdog`]) lists such a directory
//! on this node's own mount when a bundle for it is asked for: the READDIRPLUS replies make all of it
//! known. Nobody waits for it, and what does not fit its queue is not listed.

use super::FrontInner;
use crate::node::watchdog::Lister;
use crate::read::{Arrivals, FileRef};
use copperfs_fuse as fuse;
use copperfs_overlay::ItemPath;
use fuse::Ino;
use std::sync::Weak;

/// Tells the mount what has arrived.
pub(super) struct PushArrivals {
    /// Not the front itself: it owns the read path, and that owns this.
    pub(super) front: Weak<FrontInner>,
    pub(super) push: fuse::Push,
    pub(super) lister: Option<Lister>,
}

impl PushArrivals {
    /// Those that the kernel may know.
    fn known<'a>(
        front: &FrontInner,
        files: &'a [FileRef],
    ) -> impl Iterator<Item = (&'a FileRef, Ino)> {
        let numbered = files
            .iter()
            .map(|file| (file, front.inodes.number_of_file(file)));
        numbered
            .filter(|&(_, number)| front.inodes.contains(number))
            .map(|(file, number)| (file, Ino(number)))
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
        let small = front.promises.push_file_max;
        let known: Vec<Ino> = Self::known(&front, files)
            .filter(|(file, _)| file.size <= small)
            .map(|(_, ino)| ino)
            .collect();
        if !known.is_empty() {
            self.push.offer(&known);
        }
    }
}
