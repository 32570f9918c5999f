//! What bundles bring goes on into the kernel's page cache.
//!
//! The kernel takes pages only of inodes that it knows. Programs that open files by name without
//! listing their directory (a Python import its `__pycache__`) make one known at a time, by the very
//! look-up that the push wants to spare them. So a thread of this node lists such a directory on its
//! own mount when a bundle for it is asked for: the READDIRPLUS replies make all of it known.
//!
//! That thread may wait for the mount's own FUSE threads and for nothing else, nobody waits for it,
//! and what does not fit its queue is not listed. It holds no descriptor but that of the directory
//! that it is reading, so that it keeps nobody from unmounting for longer than that takes.

use super::front::FrontInner;
use crate::namespace::InodeTable;
use crate::read::{Arrivals, FileRef};
use copperfs_fuse as fuse;
use copperfs_overlay::ItemPath;
use fuse::Ino;
use rustix::fs::{Mode, OFlags, RawDir, ResolveFlags, open, openat2};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Weak;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Directories that wait to be listed; more are not.
const QUEUE_MAX: usize = 64;

/// Read at a time; the kernel asks for as much.
const LISTED_BYTES: usize = 128 << 10;

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
            .map(|file| (file, InodeTable::number_of_file(file)));
        numbered
            .filter(|&(_, number)| front.inodes.get(number).is_some())
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

/// The thread that lists directories on this node's own mount. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Lister {
    queue: SyncSender<ItemPath>,
}

impl Lister {
    /// Starts the thread; `None`, and a word in the log, if there cannot be one.
    pub(super) fn start(mountpoint: &Path) -> Option<Self> {
        let (queue, paths) = sync_channel(QUEUE_MAX);
        let mountpoint = mountpoint.to_owned();
        std::thread::Builder::new()
            .name("copperfs-list".to_owned())
            .spawn(move || run(&mountpoint, &paths))
            .inspect_err(|error| tracing::warn!(%error, "no thread for listing ahead"))
            .ok()
            .map(|_ends_with_its_queue| Self { queue })
    }

    fn list(&self, directory: &ItemPath) {
        if self.queue.try_send(directory.clone()).is_err() {
            tracing::trace!(%directory, "not listed ahead");
        }
    }
}

fn run(mountpoint: &Path, paths: &Receiver<ItemPath>) {
    while let Ok(path) = paths.recv() {
        if let Err(errno) = list(mountpoint, &path) {
            tracing::debug!(%path, %errno, "not listed ahead");
        }
    }
}

/// Reads a directory of the mount to its end. Nothing outside of the mount is touched: no link is
/// followed and no other mount entered.
fn list(mountpoint: &Path, path: &ItemPath) -> Result<(), rustix::io::Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let top = open(mountpoint, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let below = OsStr::from_bytes(if path.is_root() {
        b"."
    } else {
        path.as_bytes()
    });
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let directory = openat2(&top, below, flags, Mode::empty(), inside)?;
    drop(top);
    let mut room = Vec::with_capacity(LISTED_BYTES);
    let mut entries = RawDir::new(directory, room.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        entry?;
    }
    Ok(())
}
