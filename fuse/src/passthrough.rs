//! Opens of a passthrough mount: which bypass the daemon, and which may not yet.
//!
//! The kernel wants one backing id per inode at a time, and it refuses (EIO to the program) a
//! passthrough open of an inode that somebody has mapped shared through a DIRECT_IO open. It does not
//! tell us of mappings. So an inode keeps the way in which it is open until its last release: a file
//! that was still arriving at its first open bypasses the daemon from the next open after that.

use crate::backend::{Backing, Ino};
use fuser::{BackingId, FileHandle, FopenFlags, ReplyOpen};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug)]
enum Way {
    /// Every read is a READ; nothing of it stays in the page cache.
    Direct,
    /// Reads go to the local file.
    Through(Arc<BackingId>),
}

#[derive(Debug)]
struct Open {
    way: Way,
    /// The local file, held so that its owner sees it in use.
    _held: Option<Backing>,
    count: u64,
}

/// The inodes that are open.
#[derive(Debug, Default)]
pub(crate) struct Opens {
    /// Guards the table, and that one backing id is made per inode: it is held over that ioctl, which
    /// does not wait. Bounded by what programs have open.
    open: Mutex<HashMap<Ino, Open>>,
}

impl Opens {
    /// Opens `ino` as it is open already; gives the reply back if it is not.
    pub(crate) fn join(&self, ino: Ino, reply: ReplyOpen) -> Option<ReplyOpen> {
        let mut open = self.open.lock();
        let Some(entry) = open.get_mut(&ino) else {
            return Some(reply);
        };
        entry.count += 1;
        // Sent under the lock: a release of this open can only come after it.
        send(&entry.way, reply);
        None
    }

    /// Opens `ino`, through `backing` if there is one and the kernel takes it.
    pub(crate) fn open(&self, ino: Ino, backing: Option<&Backing>, reply: ReplyOpen) {
        let Some(reply) = self.join(ino, reply) else {
            return;
        };
        let mut open = self.open.lock();
        let entry = open.entry(ino).or_insert_with(|| {
            let id = backing.and_then(|fd| {
                reply
                    .open_backing(fd)
                    .inspect_err(|error| {
                        tracing::warn!(%error, "the kernel refuses a backing file; reading through the daemon");
                    })
                    .ok()
            });
            Open {
                _held: backing.filter(|_| id.is_some()).cloned(),
                way: id.map_or(Way::Direct, |id| Way::Through(Arc::new(id))),
                count: 0,
            }
        });
        entry.count += 1;
        send(&entry.way, reply);
    }

    /// One open of `ino` is over.
    pub(crate) fn release(&self, ino: Ino) {
        let mut open = self.open.lock();
        if let Some(entry) = open.get_mut(&ino) {
            entry.count -= 1;
            if entry.count == 0 {
                open.remove(&ino);
            }
        }
    }
}

fn send(way: &Way, reply: ReplyOpen) {
    match way {
        // No KEEP_CACHE here: together with passthrough every open fails with EIO.
        Way::Through(id) => {
            reply.opened_passthrough(FileHandle(0), FopenFlags::FOPEN_NOFLUSH, id);
        }
        Way::Direct => reply.opened(
            FileHandle(0),
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH,
        ),
    }
}
