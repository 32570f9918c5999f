//! Decides for each open of a passthrough mount whether its reads bypass the daemon.
//!
//! The kernel accepts one backing id per inode at a time. It also refuses (EIO to the program) a
//! passthrough open of an inode that a process has mapped shared through a DIRECT_IO open, and it does
//! not report mappings. So an inode keeps its read path until its last release. A file that was still
//! arriving at its first open bypasses the daemon from the first open after that release.

use crate::backend::{Backing, Ino};
use crate::reply::cached_file;
use fuser::{BackingId, FileHandle, FopenFlags, ReplyOpen};
use parking_lot::Mutex;
use std::collections::HashMap;

/// An inode with at least one open handle.
#[derive(Debug)]
struct OpenInode {
    /// The registered local file that serves the reads, and its descriptor, held so that the file's owner
    /// sees it in use. `None`: every read is a READ, and the page cache keeps nothing of the file.
    backing: Option<(BackingId, Backing)>,
    count: u64,
}

/// The open inodes of a mount.
#[derive(Debug, Default)]
pub(crate) struct PassthroughOpens {
    /// Guards the table, and that one backing id is made per inode: the lock is held during that ioctl,
    /// which does not wait. Bounded by the number of files that programs have open.
    inodes: Mutex<HashMap<Ino, OpenInode>>,
}

impl PassthroughOpens {
    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.inodes.lock().contains_key(&ino)
    }

    /// Opens `ino` with the read path that it has. If it is not open yet, its reads go to `backing`,
    /// provided that there is one and the kernel accepts it.
    pub(crate) fn open(&self, ino: Ino, backing: Option<Backing>, reply: ReplyOpen) {
        let mut inodes = self.inodes.lock();
        let inode = inodes.entry(ino).or_insert_with(|| OpenInode {
            backing: backing.and_then(|file| match reply.open_backing(&file) {
                Ok(id) => Some((id, file)),
                Err(error) => {
                    tracing::warn!(%error, "the kernel refuses a backing file; reading through the daemon");
                    None
                }
            }),
            count: 0,
        });
        inode.count += 1;
        match &inode.backing {
            // No KEEP_CACHE: together with passthrough it makes every open fail with EIO.
            Some((id, _)) => {
                reply.opened_passthrough(FileHandle(0), FopenFlags::FOPEN_NOFLUSH, id);
            }
            None => reply.opened(FileHandle(0), cached_file(true)),
        }
    }

    /// Records that one open of `ino` was released.
    pub(crate) fn release(&self, ino: Ino) {
        let mut inodes = self.inodes.lock();
        if let Some(inode) = inodes.get_mut(&ino) {
            inode.count -= 1;
            if inode.count == 0 {
                inodes.remove(&ino);
            }
        }
    }
}
