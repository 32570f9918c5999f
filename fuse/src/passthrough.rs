//! Decides for each open of a passthrough mount whether its reads bypass the daemon.
//!
//! The kernel accepts one backing id per inode at a time. It also refuses (EIO to the program) a
//! passthrough open of an inode that a process has mapped shared through a DIRECT_IO open, and it does
//! not report mappings. So an inode keeps its read path until its last release, also across a take-over. A file that
//! was still arriving at its first open bypasses the daemon from the first open after that release.

use crate::backend::{Backing, Ino};
use crate::device::Device;
use crate::reply::cached_file;
use fuser::{FileHandle, FopenFlags, ReplyOpen};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// An open of a passthrough mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassthroughOpen {
    /// The inode.
    pub ino: Ino,
    /// Tells it from all other opens of the connection.
    pub handle: u64,
    /// The number under which the kernel knows the local file that serves the reads. `None`: every read is a READ.
    pub backing: Option<u32>,
}

/// Keeps the opens of a passthrough mount for a successor.
pub trait PassthroughRecord: fmt::Debug + Send + Sync + 'static {
    /// Notes an open, which the kernel learns of afterwards. May be called again for the same one.
    fn opened(&self, open: PassthroughOpen);

    /// Notes that an open was released.
    fn released(&self, handle: u64);
}

/// An inode with at least one open handle.
#[derive(Debug, Default)]
struct OpenInode {
    /// The number of the registered local file that serves the reads. `None`: every read is a READ, and the page cache
    /// keeps nothing of the file.
    backing: Option<u32>,
    /// Its descriptor, held so that the file's owner sees it in use. `None` if an earlier daemon has registered it.
    _file: Option<Backing>,
    handles: HashSet<u64>,
}

/// The open inodes of a mount.
#[derive(Debug)]
pub(crate) struct PassthroughOpens {
    /// Guards the table, and that one backing id is made per inode: the lock is held during that ioctl,
    /// which does not wait. Bounded by the number of files that programs have open.
    inodes: Mutex<HashMap<Ino, OpenInode>>,
    record: Option<Arc<dyn PassthroughRecord>>,
}

impl PassthroughOpens {
    /// Begins with the opens of an earlier daemon.
    pub(crate) fn new(
        inherited: &[PassthroughOpen],
        record: Option<Arc<dyn PassthroughRecord>>,
    ) -> Self {
        let mut inodes: HashMap<Ino, OpenInode> = HashMap::new();
        for open in inherited {
            let inode = inodes.entry(open.ino).or_default();
            inode.backing = open.backing;
            inode.handles.insert(open.handle);
        }
        Self {
            inodes: Mutex::new(inodes),
            record,
        }
    }

    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.inodes.lock().contains_key(&ino)
    }

    /// Opens `ino` as `handle` with the read path that it has. If it is not open yet, its reads go to `backing`,
    /// provided that there is one and the kernel accepts it.
    pub(crate) fn open(&self, ino: Ino, handle: u64, backing: Option<Backing>, reply: ReplyOpen) {
        let mut inodes = self.inodes.lock();
        let inode = inodes
            .entry(ino)
            .or_insert_with(|| match backing.map(|file| register(&reply, file)) {
                Some(Ok((id, file))) => OpenInode {
                    backing: Some(id),
                    _file: Some(file),
                    handles: HashSet::new(),
                },
                Some(Err(error)) => {
                    tracing::warn!(%error, "the kernel refuses a backing file; reading through the daemon");
                    OpenInode::default()
                }
                None => OpenInode::default(),
            });
        inode.handles.insert(handle);
        let backing = inode.backing;
        if let Some(record) = &self.record {
            record.opened(PassthroughOpen {
                ino,
                handle,
                backing,
            });
        }
        let handle = FileHandle(handle);
        let Some(id) = backing else {
            reply.opened(handle, cached_file(true));
            return;
        };
        // SAFETY: `id` is a number that the kernel gave out for this connection. This table alone closes it, after the last
        // release, and `into_raw` below takes it back from the wrapper before that would.
        #[expect(unsafe_code, reason = "see above")]
        let wrapped = unsafe { reply.wrap_backing(id) };
        // No KEEP_CACHE: together with passthrough it makes every open fail with EIO.
        reply.opened_passthrough(handle, FopenFlags::FOPEN_NOFLUSH, &wrapped);
        let _ours = wrapped.into_raw();
    }

    /// Records that one open of `ino` was released. `device` is the connection.
    pub(crate) fn release(&self, ino: Ino, handle: u64, device: &Device) {
        let mut inodes = self.inodes.lock();
        let Some(inode) = inodes.get_mut(&ino) else {
            return;
        };
        inode.handles.remove(&handle);
        let backing = inode.backing;
        let is_last = inode.handles.is_empty();
        if is_last {
            inodes.remove(&ino);
        }
        // First of all a successor must not use the number any more.
        if let Some(record) = &self.record {
            record.released(handle);
        }
        if let Some(id) = backing.filter(|_| is_last)
            && let Err(errno) = device.close_backing(id)
        {
            tracing::warn!(%errno, "the kernel keeps a backing file");
        }
    }
}

/// Registers `file` with the kernel. Returns its number there, and the file.
fn register(reply: &ReplyOpen, file: Backing) -> std::io::Result<(u32, Backing)> {
    let id = reply.open_backing(&file)?;
    Ok((id.into_raw(), file))
}
