//! The read path as its children see it.

use super::blocks::{FileRef, Source};
use super::flight::{Flight, Progress};
use super::lease::least_for_child;
use super::{Block, Found, ReadPath};
use bytes::Bytes;
use copperfs_overlay::{
    BlockPart, BundleRequest, BundleStream, Cursor, Failure, FailureKind, Files, FilesystemUsage,
    ItemPath, Leased, Listed, Listing, ListingDigest, RangeAnswer, RangeRequest, ReadRequest,
    ReadStream, StatAnswers, XattrList,
};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::watch;

impl Files for ReadPath {
    fn list(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'static, Result<Listing, Failure>> {
        let parts = self.list_parts(path, cursor, limit, None);
        async move { parts.await?.stream()?.collect().await }.boxed()
    }

    fn list_parts(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
        known: Option<ListingDigest>,
    ) -> BoxFuture<'static, Result<Listed, Failure>> {
        if cursor.is_some() {
            // A later page of a large directory: every node pages for itself.
            return self.0.source.list_parts(path, cursor, limit, known);
        }
        let this = self.clone();
        async move { this.list_for_child(path, limit, known).await }.boxed()
    }

    fn stat(
        &self,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> BoxFuture<'static, Result<Leased<StatAnswers>, Failure>> {
        let this = self.clone();
        async move {
            let found = this.find_all(&parent, &names).await?;
            let lease = found.lease;
            let found = names.iter().zip(found.value);
            let answers = found.map(|(name, found)| match found? {
                Found::Attributes(attributes) => Ok(attributes),
                Found::Absent => {
                    let path = parent.join(name).unwrap_or_else(|_| parent.clone());
                    Err(Failure::not_found(&path))
                }
            });
            Ok(Leased {
                value: answers.collect(),
                lease,
            })
        }
        .boxed()
    }

    fn read(&self, request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>> {
        if request.through {
            return self.0.source.read(request);
        }
        let blocks = request.first_block..request.first_block.saturating_add(request.block_count);
        let feed = Feed {
            path: self.clone(),
            file: FileRef::new(request.path, request.version, request.size, request.content),
            blocks,
            current: Current::None,
            detours: 0,
        };
        let parts = stream::unfold(feed, |mut feed| async move {
            let part = feed.next().await?;
            Some((part, feed))
        });
        std::future::ready(Ok(parts.boxed())).boxed()
    }

    fn read_range(
        &self,
        request: RangeRequest,
    ) -> BoxFuture<'static, Result<RangeAnswer, Failure>> {
        let this = self.clone();
        async move {
            if let Some(fault) = request.fault() {
                return Err(Failure::new(FailureKind::Corrupt, fault));
            }
            let block = request.block();
            let range = request.offset..request.offset + request.len;
            let file = FileRef::new(request.path, request.version, request.size, request.content);
            let bytes = this.pieces(&file, block, &range).await?;
            Ok(RangeAnswer::of(bytes))
        }
        .boxed()
    }

    fn bundle(&self, request: BundleRequest) -> BoxFuture<'static, Result<BundleStream, Failure>> {
        std::future::ready(Ok(self.give_bundle(request))).boxed()
    }

    fn xattrs(&self, path: ItemPath) -> BoxFuture<'static, Result<Leased<XattrList>, Failure>> {
        let this = self.clone();
        async move {
            let least = least_for_child(this.0.options.lease);
            let list = this.leased_xattrs(&path, least).await?;
            Ok(list.map(|list| list.as_ref().clone()))
        }
        .boxed()
    }

    fn usage(&self, path: ItemPath) -> BoxFuture<'static, Result<FilesystemUsage, Failure>> {
        let this = self.clone();
        async move { this.usage(&path).await }.boxed()
    }
}

/// A run of blocks on its way to one child. It looks for each block only when it comes to it, so that
/// a slow child pins no more than one block.
struct Feed {
    path: ReadPath,
    file: FileRef,
    blocks: Range<u64>,
    current: Current,
    /// Flights of equal files elsewhere that failed.
    detours: u32,
}

enum Current {
    None,
    /// On its way here; so many bytes are forwarded since it began anew so often.
    Flying(Arc<Flight>, watch::Receiver<Progress>, (usize, u32)),
    /// The rest of a verified block.
    Rest(Block, usize),
    Failed,
}

impl Feed {
    /// The next block, from its beginning.
    fn look(&self) -> Current {
        let wanted = || [self.blocks.clone(), 0..0];
        match self.path.source_of(&self.file, self.blocks.start, wanted) {
            Source::Cached(block) => Current::Rest(block, 0),
            Source::Flying(flight) => {
                let progress = flight.watch();
                Current::Flying(flight, progress, (0, 0))
            }
        }
    }

    async fn next(&mut self) -> Option<Result<BlockPart, Failure>> {
        loop {
            match &mut self.current {
                Current::Failed => return None,
                Current::None => {
                    if self.blocks.is_empty() {
                        return None;
                    }
                    self.current = self.look();
                }
                Current::Rest(block, sent) => {
                    if *sent < block.bytes.len() {
                        let bytes = block.bytes.slice(*sent..);
                        *sent = block.bytes.len();
                        return Some(Ok(BlockPart::Bytes(bytes)));
                    }
                    let hash = block.hash;
                    self.current = Current::None;
                    self.blocks.start += 1;
                    return Some(Ok(BlockPart::End(hash)));
                }
                Current::Flying(flight, progress, sent) => {
                    let now = progress.borrow_and_update().clone();
                    match now {
                        Progress::Done(block, restarts) => {
                            let (forwarded, before) = *sent;
                            let void = restarts != before && forwarded > 0;
                            self.current = Current::Rest(block, if void { 0 } else { forwarded });
                            if void {
                                return Some(Ok(BlockPart::Restart));
                            }
                        }
                        Progress::Failed(_) if flight.is_elsewhere(&self.file, self.detours) => {
                            let void = sent.0 > 0;
                            self.detours += 1;
                            self.current = Current::None;
                            if void {
                                return Some(Ok(BlockPart::Restart));
                            }
                        }
                        Progress::Failed(failure) => {
                            self.current = Current::Failed;
                            return Some(Err(failure));
                        }
                        Progress::Filling(restarts) => {
                            let (forwarded, before) = *sent;
                            if restarts != before {
                                *sent = (0, restarts);
                                if forwarded > 0 {
                                    return Some(Ok(BlockPart::Restart));
                                }
                            }
                            if let Some(bytes) = flight.forwardable(sent.0, restarts) {
                                sent.0 += bytes.len();
                                return Some(Ok(BlockPart::Bytes(bytes)));
                            }
                            let wait = self.path.changed_soon(&self.file, flight, progress);
                            if wait.await.is_err() {
                                self.current = Current::Failed;
                                let detail = "the fetch was given up";
                                return Some(Err(Failure::new(FailureKind::Unavailable, detail)));
                            }
                        }
                    }
                }
            }
        }
    }
}
