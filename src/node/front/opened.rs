//! Open directories, also under leases.
//!
//! The kernel caches a listing without a time limit. So with leases the daemon sees every opendir, and its answer says
//! whether the kernel may still use its listing. After each renewal of the lease it may not, even if the directory has
//! not changed: the READDIRPLUS that follows renews the promises for all names at once, which would otherwise be looked
//! up one by one. Offsets are positions in one listing, so an open directory continues with the listing with which it
//! began.

use super::directory::Page;
use super::{Front, pending, report};
use crate::namespace::Inode;
use crate::namespace::handles::before_first;
use crate::read::Directory;
use copperfs_fuse as fuse;
use copperfs_overlay::FileKind;
use dashmap::DashMap;
use fuse::{Answer, DirPage, FsError, Ino, OpenDir, Response};
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
    /// Those of a daemon with `generation` predecessors, whose handles the kernel may still use.
    pub(super) fn after(generation: u32) -> Self {
        Self {
            last: AtomicU64::new(before_first(generation)),
            ..Self::default()
        }
    }

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
    fn directory_inode(&self, ino: Ino) -> Result<Arc<Inode>, FsError> {
        let inode = self.inode(ino)?;
        if inode.attributes.kind == FileKind::Directory {
            Ok(inode)
        } else {
            Err(FsError::NotADirectory)
        }
    }

    /// Answers an opendir from a listing whose lease has not ended.
    pub(super) fn open_directory(&self, ino: Ino) -> Response<OpenDir> {
        let inode = self.directory_inode(ino)?;
        self.parts.read.on_list(inode.path());
        if let Some(directory) = self.metadata().try_directory(inode.path()) {
            return Ok(Answer::Ready(self.opened_as(&inode, directory)));
        }
        let this = self.clone();
        pending(async move {
            let directory = this.metadata().directory(inode.path()).await;
            let directory = directory.map_err(|failure| report(inode.path(), &failure))?;
            Ok(this.opened_as(&inode, directory))
        })
    }

    fn opened_as(&self, inode: &Inode, directory: Arc<Directory>) -> OpenDir {
        let cached = self.inodes.listed_edition(inode.number);
        let keep = cached == Some(directory.edition());
        let handle = self.opened.open(directory);
        OpenDir { handle, keep }
    }

    /// Answers a readdir: after offset 0 from the listing with which the open directory began, if the kernel reported
    /// its opendir; otherwise from a listing whose lease has not ended.
    pub(super) fn list(&self, ino: Ino, handle: u64, offset: u64) -> Response<Arc<dyn DirPage>> {
        let inode = self.directory_inode(ino)?;
        let wanted = Page::entry_at(offset);
        // With leases, the opendir has reported it.
        if wanted == 0 && self.promises.lease.is_none() {
            self.parts.read.on_list(inode.path());
        }
        let begun = self.opened.page(handle).filter(|_| offset > 0);
        let known = begun.or_else(|| self.metadata().try_directory(inode.path()));
        if let Some(page) = known.as_ref().filter(|page| page.holds(wanted)) {
            let page = self.page_of(inode, handle, Arc::clone(page), 0, offset);
            return Ok(Answer::Ready(page));
        }
        let this = self.clone();
        pending(async move {
            let listed = async {
                let page = match known {
                    Some(page) => page,
                    None => this.metadata().directory(inode.path()).await?,
                };
                this.metadata().page_after(inode.path(), page, wanted).await
            };
            let listed = listed.await;
            let (first, page) = listed.map_err(|failure| report(inode.path(), &failure))?;
            Ok(this.page_of(inode, handle, page, first, offset))
        })
    }

    fn page_of(
        &self,
        inode: Arc<Inode>,
        handle: u64,
        directory: Arc<Directory>,
        first: usize,
        offset: u64,
    ) -> Arc<dyn DirPage> {
        if offset == 0 && self.promises.lease.is_some() {
            self.opened.rewind(handle, &directory);
            self.inodes.listed(inode.number, directory.edition());
        }
        if self.recorder.is_on() {
            self.recorder.listed(inode.path(), directory.entries.len());
        }
        Arc::new(Page {
            front: self.clone(),
            inode,
            directory,
            first,
            offset,
        })
    }
}
