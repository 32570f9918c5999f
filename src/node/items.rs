//! Files of datasets, as the data mount opens and reads them.

use crate::read::{Cut, FileRef};
use copperfs_overlay::{ContentHash, Failure, ItemPath};
use futures_util::future::BoxFuture;
use std::sync::Arc;

/// An open file of a dataset. Dropped when it is closed, and with the mount.
pub(crate) trait OpenItem: Send + Sync {
    /// The bytes of `file` from `offset`, if they are in memory: `size` of them, within the file. Called on
    /// a FUSE thread, so it never waits. `file` is the open file, perhaps in a newer version.
    fn read_now(&self, file: &FileRef, offset: u64, size: u32) -> Option<Cut>;

    /// The same, waited for. Dropped (cancelled) when the reader is killed.
    fn read(
        &self,
        file: &FileRef,
        offset: u64,
        size: u32,
    ) -> BoxFuture<'static, Result<Cut, Failure>>;

    /// The hash of a run of bytes of `file` that [`OpenItem::read`] returned earlier.
    fn hash(
        &self,
        file: &FileRef,
        offset: u64,
        len: u64,
    ) -> BoxFuture<'static, Result<ContentHash, Failure>>;
}

/// Knows which files belong to datasets.
pub(crate) trait Items: Send + Sync {
    /// Opens the file at `path` for thread `pid` (in this node's pid namespace; 0 if it is outside). Called
    /// on a FUSE thread, so it does no I/O.
    fn open(&self, pid: u32, path: &ItemPath, file: &FileRef) -> ItemOpening;
}

/// How a dataset answers an open.
pub(crate) enum ItemOpening {
    /// The file is in no dataset.
    None,
    /// The open is complete.
    Ready(Arc<dyn OpenItem>),
    /// The reader must be looked up first. Dropped (cancelled) when the reader is killed.
    Later(BoxFuture<'static, Arc<dyn OpenItem>>),
}
