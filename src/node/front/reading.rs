//! Answers READs: at once with bytes in memory, otherwise by a future.

use super::continued::{ROUNDS_MAX, is_denied};
use super::{Front, Source};
use crate::dataset::reader::OpenDatasetFile;
use crate::namespace::Inode;
use crate::read::{Cut, FileRef, Noted};
use bytes::Bytes;
use copperfs_fuse as fuse;
use copperfs_overlay::{Failure, FailureKind, ItemPath};
use fuse::{Answer, FsError, Ino};
use std::ops::Range;
use std::sync::Arc;

impl Front {
    /// Returns bytes of `item` that are in this node's memory, if the inode has the version that was opened.
    pub(super) fn try_item(
        &self,
        ino: Ino,
        item: &OpenDatasetFile,
        offset: u64,
        size: u32,
    ) -> Option<Bytes> {
        let given = self.inodes.ledger(ino.0, item.version())?;
        let cut = item.try_read(offset, size)?;
        (given.note(cut.parts.iter()) == Noted::Yes).then_some(cut.bytes)
    }

    /// Whether the listing of `directory` is in this node's memory.
    pub(in crate::node) fn knows_listing(&self, directory: &ItemPath) -> bool {
        self.parts
            .read
            .metadata()
            .peek_directory(directory)
            .is_some()
    }

    /// Lists `directory`, so that the read path can prefetch its files. A failure is not one of the reader: its file may be
    /// readable all the same.
    pub(in crate::node) async fn list_ahead(&self, directory: &ItemPath) {
        if let Err(failure) = self.parts.read.metadata().directory(directory).await {
            tracing::debug!(path = %directory, %failure, "not listed before a read");
        }
    }

    /// Requests files of `directory` together that are about to be read one by one.
    pub(in crate::node) async fn fetch_together(&self, directory: &ItemPath, names: &[Bytes]) {
        if let Err(failure) = self.parts.read.prefetch(directory, names).await {
            tracing::debug!(path = %directory, %failure, "not requested together");
        }
    }

    /// Requests blocks of files in this order before their reader does.
    pub(in crate::node) fn fetch_ahead(&self, blocks: Vec<(FileRef, Range<u64>)>) {
        self.parts.read.fetch_ahead(blocks);
    }

    /// Returns bytes of `inode` that the read path has in memory.
    pub(super) fn try_data(&self, inode: &Inode, offset: u64, size: u32) -> Option<Bytes> {
        let read = &self.parts.read;
        let cut = read.data().try_read(&inode.file, offset, size)?;
        (self.note(inode, &cut) == Noted::Yes).then(|| {
            read.on_hit(&inode.file, &inode.ahead, offset, size);
            cut.bytes
        })
    }

    /// Answers a READ of `inode` from `source`, under the file's current version.
    pub(super) fn read_from(
        &self,
        source: Source,
        inode: Arc<Inode>,
        offset: u64,
        size: u32,
    ) -> Answer<Bytes> {
        let (this, of_item) = (self.clone(), source.is_some());
        let reading = Box::pin(async move { this.read_on(source, inode, offset, size).await });
        // An item may wait for its job's tokens without a limit. Every other step has its own time limit.
        if of_item {
            Answer::Unbounded(reading)
        } else {
            Answer::Pending(reading)
        }
    }

    async fn read_on(
        &self,
        source: Source,
        mut inode: Arc<Inode>,
        offset: u64,
        size: u32,
    ) -> Result<Bytes, FsError> {
        for _ in 0..ROUNDS_MAX {
            if source.is_some() && !inode.file.version.is_settled() {
                // Homes keep nothing of an unsettled version.
                inode = self.go_on(&inode, source.clone()).await?;
                continue;
            }
            let cut = match &source {
                None => {
                    let reading = &self.parts.read;
                    reading.read(&inode.file, &inode.ahead, offset, size).await
                }
                Some(item) => item.read(&inode.file, offset, size).await,
            };
            match cut {
                Ok(cut) => match self.note(&inode, &cut) {
                    Noted::Yes => return Ok(cut.bytes),
                    Noted::Differs => {
                        let detail =
                            "the bytes differ from those returned before under the same version";
                        let failure = Failure::new(FailureKind::Stale, detail);
                        tracing::warn!(path = %inode.path(), %failure, "a file changed, but its version did not");
                        return Err(self.refuse(&inode, &failure));
                    }
                    Noted::Frozen => {}
                },
                Err(failure) if is_denied(&failure) => {}
                Err(failure) => return Err(self.refuse(&inode, &failure)),
            }
            inode = self.go_on(&inode, source.clone()).await?;
        }
        Err(self.stale(&inode))
    }

    /// Notes that bytes are about to be returned.
    fn note(&self, inode: &Inode, cut: &Cut) -> Noted {
        let noted = inode.given.note(cut.parts.iter());
        self.inodes.tell_returned(inode, cut.parts.iter());
        noted
    }
}
