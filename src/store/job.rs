//! The jobs of the writing thread.

use super::catalog::ContentEntry;
use super::record::{BlockOrigin, ContentId};
use crate::read::FileId;
use bytes::Bytes;
use copperfs_overlay::ContentHash;
use rustix::io::Errno;
use std::sync::mpsc;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// A verified block to keep.
pub(super) struct PutBlock {
    pub(super) origin: BlockOrigin,
    pub(super) hash: ContentHash,
    /// Its bytes, in order.
    pub(super) pieces: Vec<Bytes>,
}

impl PutBlock {
    pub(super) fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }
}

/// A complete file to keep for passthrough.
pub(super) struct PutWhole {
    pub(super) file: FileId,
    /// When it was requested.
    pub(super) moment: u64,
    pub(super) name: ContentHash,
    pub(super) entry: ContentEntry,
    /// The name of its temporary file.
    pub(super) temporary: String,
}

/// A job for the thread.
pub(super) enum Job {
    Put(PutBlock, OwnedSemaphorePermit),
    PutWhole(PutWhole, mpsc::SyncSender<()>),
    /// This many bytes are about to be written by another thread.
    MakeRoom(u64, mpsc::SyncSender<Result<(), Errno>>),
    /// Change the capacity to this many bytes, and evict what no longer fits. Answered after that.
    Resize(u64, mpsc::SyncSender<()>),
    /// Remove a condemned content file.
    Remove(ContentId),
    /// The sweep has found a content file that is not in the index.
    Adopt(ContentId, u64, Option<BlockOrigin>),
    /// The sweep has not found a content file that is in the index.
    Missing(ContentId),
    /// The sweep has ended.
    Swept,
    /// Answered after all jobs before it are done.
    Drained(oneshot::Sender<()>),
    Release(Vec<FileId>),
    /// Answered after all pending clears are recorded.
    Cleared(mpsc::SyncSender<()>),
    Flush(mpsc::SyncSender<()>),
    Stop,
}
