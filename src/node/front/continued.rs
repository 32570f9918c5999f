//! Lets reads continue when only a file's status changed at the origin.
//!
//! `ln`, `chmod` and `chown` move a file's ctime, and so change its version; so does a tool that rewrites a
//! file and restores its mtime. Storage then denies the version that the kernel holds. This module requests
//! the attributes again. If size, mtime and inode are the same, it compares all bytes that were returned
//! under the old version with those of the new one. If they agree, the inode continues under the new
//! version: the same number, new attributes, and its page cache is kept. Otherwise the reader gets
//! `ESTALE`, and the inode stays as it was, with the data that the caches still hold of it.
//!
//! Rules
//! - At most one comparison per inode runs at a time, for all of its readers. It completes even if they are
//!   killed.
//! - While it runs, no further bytes of the file are returned (see [`crate::read::Returned`]).
//! - If the file changes again during a comparison, it is compared again, up to [`ROUNDS_MAX`] times.

use super::{Front, Source};
use crate::namespace::{Inode, may_become};
use crate::num::to_usize;
use crate::read::{FileRef, ReadAhead, ReturnedParts};
use copperfs_fuse as fuse;
use copperfs_overlay::{Attributes, BLOCK_BYTES, ContentHash, Failure, FailureKind};
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use fuse::{FsError, Ino};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::sync::Arc;

/// How many changes of the file one comparison follows, and how many new versions one read follows. After
/// that the reader gets `ESTALE`.
pub(super) const ROUNDS_MAX: usize = 8;

/// The inode under its new version, or the error if it cannot continue.
type Outcome = Result<Arc<Inode>, FsError>;
type Flight = Shared<BoxFuture<'static, Outcome>>;

/// The running comparisons, by inode. Bounded by the inodes that are being read.
#[derive(Default)]
pub(super) struct Continuing(DashMap<u64, Flight>);

impl Front {
    /// Returns the inode under the version that storage has now. Joins the running comparison, or starts
    /// one.
    pub(super) async fn go_on(&self, inode: &Arc<Inode>, source: Source) -> Outcome {
        let number = inode.number;
        let flight = match self.continuing.0.entry(number) {
            Entry::Occupied(flight) => flight.get().clone(),
            Entry::Vacant(vacant) => {
                let (this, inode) = (self.clone(), Arc::clone(inode));
                let flight = async move {
                    let outcome = this.compare(inode, source).await;
                    drop(this.continuing.0.remove(&number));
                    outcome
                };
                let flight = flight.boxed().shared();
                drop(vacant.insert(flight.clone()));
                // It must complete without its readers: otherwise the inode would stay frozen.
                drop(tokio::spawn(flight.clone()));
                flight
            }
        };
        flight.await
    }

    /// Runs one comparison. When it returns, the current ledger of the inode is not frozen, or the inode is
    /// dead.
    async fn compare(&self, inode: Arc<Inode>, source: Source) -> Outcome {
        let now = self.inode(Ino(inode.number))?;
        if !now.given.is(&inode.given) {
            // The inode has continued under a new version since this reader looked.
            return Ok(now);
        }
        let inode = now;
        if inode.given.is_dead() {
            return Err(self.stale(&inode));
        }
        let account = inode.given.freeze();
        match self.find_equal(&inode, &account, &source).await {
            Ok(Some(now)) => {
                tracing::debug!(path = %inode.path(), from = ?inode.file.version, to = ?now.version, "only its status changed");
                let next = self.inodes.move_on(&inode, now, account);
                self.invalidate_attributes_soon(Ino(inode.number));
                next.ok_or(FsError::Stale)
            }
            Ok(None) => {
                inode.given.die();
                tracing::debug!(path = %inode.path(), from = ?inode.file.version, "the file is another one now: its readers get ESTALE");
                Err(self.stale(&inode))
            }
            // The comparison could not be made, so the inode stays as it was.
            Err(failure) => {
                let unchanged = inode.attributes.clone();
                drop(self.inodes.move_on(&inode, unchanged, account));
                Err(self.refuse(&inode, &failure))
            }
        }
    }

    /// Returns the attributes that the file has now, if that version has all bytes of `account`.
    async fn find_equal(
        &self,
        inode: &Inode,
        account: &ReturnedParts,
        source: &Source,
    ) -> Result<Option<Attributes>, Failure> {
        let (metadata, path) = (self.metadata(), inode.path());
        let mut denied = inode.file.version;
        for _ in 0..ROUNDS_MAX {
            if account.is_full() {
                break;
            }
            let now = match denied.is_settled() {
                true => metadata.attributes_unlike(path, denied).await?.value,
                // Storage denies it because it is about to settle, or has settled.
                false => metadata.settled_attributes_of(path, &denied).await?.value,
            };
            if now.version == denied {
                let detail = "storage reports this version, but denies reads of it";
                return Err(Failure::new(FailureKind::Stale, detail));
            }
            if !may_become(&inode.attributes, &now) {
                break;
            }
            let file = FileRef::of(path.clone(), &now);
            match self.agrees(&file, account, source).await {
                Ok(true) => return Ok(Some(now)),
                Ok(false) => break,
                // Storage has denied that version too.
                Err(failure) if is_denied(&failure) => denied = now.version,
                Err(failure) => return Err(failure),
            }
        }
        Ok(None)
    }

    /// Whether `file` has all bytes of `account`.
    async fn agrees(
        &self,
        file: &FileRef,
        account: &ReturnedParts,
        source: &Source,
    ) -> Result<bool, Failure> {
        let read = &self.parts.read;
        let blocks_agree = match source {
            // All of the file was returned as one item.
            Some(item) if file.size <= BLOCK_BYTES => match account.blocks().next() {
                Some(index) => {
                    let hash = item.hash(file, 0, file.size).await?;
                    account.agrees(index, &hash)
                }
                None => true,
            },
            _ => read.data().has_returned(file, account).await?,
        };
        if !blocks_agree {
            return Ok(false);
        }
        let runs: Vec<_> = account.runs().collect();
        for (offset, len) in runs {
            let hash = match source {
                Some(item) => item.hash(file, offset, len).await?,
                None => {
                    let size = u32::try_from(len).unwrap_or(u32::MAX);
                    let ahead = ReadAhead::default();
                    let cut = read.read(file, &ahead, offset, size).await?;
                    if cut.bytes.len() != to_usize(len) {
                        return Ok(false);
                    }
                    ContentHash(*blake3::hash(&cut.bytes).as_bytes())
                }
            };
            if !account.run_agrees((offset, len), &hash) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether storage no longer has the requested version of the file.
pub(super) fn is_denied(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::Stale | FailureKind::NotFound)
}
