//! What the writing thread is asked to do.

use super::catalog::Held;
use super::content::Origin;
use super::unit::Unit;
use crate::read::FileId;
use bytes::Bytes;
use copperfs_overlay::ContentHash;
use rustix::io::Errno;
use std::sync::mpsc;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// A verified block to keep.
#[derive(Debug)]
pub(super) struct Put {
    pub(super) file: FileId,
    /// When it was asked for.
    pub(super) moment: u64,
    pub(super) index: u64,
    pub(super) hash: ContentHash,
    /// Its bytes, in order.
    pub(super) pieces: Vec<Bytes>,
}

impl Put {
    pub(super) fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }
}

/// A finished file to keep for passthrough, and what it is.
#[derive(Debug)]
pub(super) struct PutWhole {
    pub(super) file: FileId,
    pub(super) moment: u64,
    pub(super) name: ContentHash,
    pub(super) held: Held,
    /// Where it was written.
    pub(super) temporary: String,
}

/// What the thread is asked to do.
pub(super) enum Job {
    Put(Put, OwnedSemaphorePermit),
    Whole(PutWhole, mpsc::SyncSender<()>),
    /// So many bytes are about to be written beside the queue.
    Room(u64, mpsc::SyncSender<Result<(), Errno>>),
    /// A content file that is not what it should be.
    Remove(Unit),
    /// A content file that the sweep found and the index does not know.
    Adopt(Unit, u64, Option<Origin>),
    /// A content file that the index knows and the sweep did not find.
    Missing(Unit),
    /// The sweep has ended.
    Swept,
    /// What was queued before is written, or refused.
    Written(oneshot::Sender<()>),
    /// These are not held any more.
    Release(Vec<FileId>),
    /// Answered after the clears in [`Aside`] are recorded.
    Cleared(mpsc::SyncSender<()>),
    Flush(mpsc::SyncSender<()>),
    Stop,
}
