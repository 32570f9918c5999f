//! Open directories and attributes under leases.
//!
//! The kernel caches a listing without a time limit. So with leases the daemon sees every opendir, and its answer says
//! whether the kernel may still use its listing. After each renewal of the lease it may not, even if the directory has
//! not changed: the READDIRPLUS that follows renews the promises for all names at once, which would otherwise be looked
//! up one by one. Offsets are positions in one listing, so an open directory continues with the listing with which it
//! began.

use super::directory::Page;
use super::{Front, pending, report};
use crate::namespace::Inode;
use crate::read::Directory;
use copperfs_fuse as fuse;
use copperfs_overlay::{Attributes, FailureKind, FileKind, Leased};
use dashmap::DashMap;
use fuse::{Answer, Attr, FsError, Ino, OpenDir};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The maximum number of open directories whose listings are kept. Beyond it a directory that changes while it is read
/// may skip a name.
const OPEN_MAX: usize = 16_384;

/// The first page of each directory that is open, by handle; 0 is no handle.
#[derive(Default)]
pub(super) struct OpenDirectories {
    pages: DashMap<u64, Arc<Directory>>,
    last: AtomicU64,
}

impl OpenDirectories {
    fn open(&self, directory: Arc<Directory>) -> u64 {
        if self.pages.len() >= OPEN_MAX {
            return 0;
        }
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        drop(self.pages.insert(handle, directory));
        handle
    }

    /// Restarts the open directory with this listing.
    fn rewind(&self, handle: u64, directory: &Arc<Directory>) {
        if let Some(mut page) = self.pages.get_mut(&handle) {
            *page = Arc::clone(directory);
        }
    }

    fn page(&self, handle: u64) -> Option<Arc<Directory>> {
        self.pages.get(&handle).map(|page| Arc::clone(&page))
    }

    pub(super) fn close(&self, handle: u64) {
        drop(self.pages.remove(&handle));
    }
}

impl Front {
    pub(super) fn directory_inode(&self, ino: Ino) -> Result<Arc<Inode>, FsError> {
        let inode = self.inode(ino)?;
        if inode.attributes.kind == FileKind::Directory {
            Ok(inode)
        } else {
            Err(FsError::NotADirectory)
        }
    }

    /// Answers an opendir from a listing whose lease has not ended.
    pub(super) fn open_directory(&self, ino: Ino) -> Answer<OpenDir> {
        let inode = match self.directory_inode(ino) {
            Ok(inode) => inode,
            Err(error) => return Answer::Ready(Err(error)),
        };
        self.read.on_list(inode.path());
        if let Some(directory) = self.read.metadata().try_directory(inode.path()) {
            return Answer::Ready(Ok(self.opened_as(&inode, directory)));
        }
        let this = self.clone();
        pending(async move {
            match this.read.metadata().directory(inode.path()).await {
                Ok(directory) => Ok(this.opened_as(&inode, directory)),
                Err(failure) => Err(report(inode.path(), &failure)),
            }
        })
    }

    fn opened_as(&self, inode: &Inode, directory: Arc<Directory>) -> OpenDir {
        let cached = self.inodes.listed_edition(inode.number);
        let keep = cached == Some(directory.edition());
        let handle = self.opened.open(directory);
        OpenDir { handle, keep }
    }

    /// Answers a readdir: at offset 0 from a listing whose lease has not ended, after that from the same listing.
    pub(super) fn list_opened(
        &self,
        inode: Arc<Inode>,
        handle: u64,
        offset: u64,
    ) -> Answer<Arc<dyn fuse::DirPage>> {
        let begun = self.opened.page(handle).filter(|_| offset > 0);
        let wanted = Page::entry_at(offset);
        if let Some(page) = begun
            .clone()
            .or_else(|| self.read.metadata().try_directory(inode.path()))
            && page.holds(wanted)
        {
            let page = self.page_of(inode, handle, page, 0, offset);
            return Answer::Ready(Ok(page));
        }
        let this = self.clone();
        pending(async move {
            let listed = async {
                let page = match begun {
                    Some(page) => page,
                    None => this.read.metadata().directory(inode.path()).await?,
                };
                this.read
                    .metadata()
                    .page_after(inode.path(), page, wanted)
                    .await
            };
            match listed.await {
                Ok((first, page)) => Ok(this.page_of(inode, handle, page, first, offset)),
                Err(failure) => Err(report(inode.path(), &failure)),
            }
        })
    }

    fn page_of(
        &self,
        inode: Arc<Inode>,
        handle: u64,
        page: Arc<Directory>,
        first: usize,
        offset: u64,
    ) -> Arc<dyn fuse::DirPage> {
        if offset == 0 {
            self.opened.rewind(handle, &page);
            self.inodes.listed(inode.number, page.edition());
        }
        self.recorder_sees(&inode, &page);
        Page::open(self.clone(), inode, page, first, offset)
    }

    /// The attributes of an inode under a lease that has not ended. The attributes of a version that no longer exists do
    /// not change.
    pub(super) fn leased_attr(&self, ino: Ino) -> Answer<Attr> {
        let inode = match self.inode(ino) {
            Ok(inode) => inode,
            Err(error) => return Answer::Ready(Err(error)),
        };
        if let Some(now) = self.read.metadata().try_attributes_of(inode.path()) {
            return Answer::Ready(Ok(self.renewed(&inode, now)));
        }
        let this = self.clone();
        pending(async move {
            match this.read.metadata().attributes_of(inode.path()).await {
                Ok(now) => Ok(this.renewed(&inode, now)),
                Err(failure)
                    if matches!(
                        failure.kind,
                        FailureKind::NotFound | FailureKind::NotADirectory
                    ) && inode.attributes.kind != FileKind::Directory =>
                {
                    Ok(this.attr(&inode, this.promises.lease))
                }
                Err(failure) => Err(this.refuse(&inode, &failure).await),
            }
        })
    }

    fn renewed(&self, inode: &Arc<Inode>, now: Leased<Attributes>) -> Attr {
        let renewed = self.inodes.renew(inode.number, now.value);
        let inode = renewed.as_ref().unwrap_or(inode);
        self.attr(inode, now.lease)
    }
}
