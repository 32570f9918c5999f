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
use crate::namespace::Inode;
use crate::num::to_usize;
use crate::read::{FileRef, ReadAhead, ReturnedParts};
use copperfs_fuse as fuse;
use copperfs_overlay::{BLOCK_BYTES, ContentHash, Failure, FailureKind};
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

/// The outcome of the comparison with one version.
enum Compared {
    Equal,
    Other,
    /// Storage has denied that version too.
    Gone,
}

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
            return Err(self.stale(&inode).await);
        }
        let account = inode.given.freeze();
        let mut denied = inode.file.version;
        for _ in 0..ROUNDS_MAX {
            if account.is_full() {
                break;
            }
            let now = match denied.is_settled() {
                true => {
                    self.read
                        .metadata()
                        .attributes_unlike(inode.path(), denied)
                        .await
                }
                // Storage denies it because it is about to settle, or has settled.
                false => {
                    self.read
                        .metadata()
                        .settled_attributes_of(inode.path(), &denied)
                        .await
                }
            };
            let now = match now {
                Ok(now) => now.value,
                Err(failure) => return Err(self.put_back(&inode, account, &failure).await),
            };
            if now.version == denied {
                let detail = "storage reports this version, but denies reads of it";
                let failure = Failure::new(FailureKind::Stale, detail);
                return Err(self.put_back(&inode, account, &failure).await);
            }
            if !inode.may_become(&now) {
                break;
            }
            let file = FileRef::of(inode.path().clone(), &now);
            match self.compare_with(&file, &account, &source).await {
                Ok(Compared::Equal) => {
                    tracing::debug!(path = %inode.path(), from = ?inode.file.version, to = ?now.version, "only its status changed");
                    let next = self.inodes.move_on(&inode, now, account);
                    if let Some(notifier) = self.notifier.get() {
                        notifier.invalidate_attributes(Ino(inode.number)).await;
                    }
                    return next.ok_or(FsError::Stale);
                }
                Ok(Compared::Other) => break,
                Ok(Compared::Gone) => denied = now.version,
                Err(failure) => return Err(self.put_back(&inode, account, &failure).await),
            }
        }
        inode.given.die();
        tracing::debug!(path = %inode.path(), from = ?inode.file.version, "the file is another one now: its readers get ESTALE");
        Err(self.stale(&inode).await)
    }

    /// Restores the inode after a comparison that could not be made.
    async fn put_back(&self, inode: &Inode, account: ReturnedParts, failure: &Failure) -> FsError {
        let same = self
            .inodes
            .move_on(inode, inode.attributes.clone(), account);
        drop(same);
        self.refuse(inode, failure).await
    }

    async fn compare_with(
        &self,
        file: &FileRef,
        account: &ReturnedParts,
        source: &Source,
    ) -> Result<Compared, Failure> {
        let agrees = async {
            let blocks = match source {
                // All of the file was returned as one item.
                Source::Item(item) if file.size <= BLOCK_BYTES => {
                    let first = account.blocks().next();
                    match first {
                        Some(index) => {
                            let hash = item.hash(file, 0, file.size).await?;
                            account.agrees(index, &hash)
                        }
                        None => true,
                    }
                }
                _ => self.read.data().has_returned(file, account).await?,
            };
            Ok(blocks && self.runs_agree(file, account, source).await?)
        };
        match agrees.await {
            Ok(true) => Ok(Compared::Equal),
            Ok(false) => Ok(Compared::Other),
            Err(failure) if is_denied(&failure) => Ok(Compared::Gone),
            Err(failure) => Err(failure),
        }
    }

    async fn runs_agree(
        &self,
        file: &FileRef,
        account: &ReturnedParts,
        source: &Source,
    ) -> Result<bool, Failure> {
        let runs: Vec<_> = account.runs().collect();
        for (offset, len) in runs {
            let hash = match source {
                Source::Item(item) => item.hash(file, offset, len).await?,
                Source::Path => {
                    let size = u32::try_from(len).unwrap_or(u32::MAX);
                    let ahead = ReadAhead::default();
                    let cut = self.read.read(file, &ahead, offset, size).await?;
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
