//! The read path as its children see it.

use super::blocks::{FileRef, Source};
use super::flight::{Flight, Progress};
use super::lease::least_for_child;
use super::room::{COPY_BYTES, Held};
use super::{Block, Found, ReadPath};
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BlockPart, BundleRequest, BundleStream, ContentHash, Cursor, Failure, FailureKind,
    Files, FilesystemUsage, ItemPath, Leased, Listed, Listing, ListingDigest, RangeAnswer,
    RangeRequest, ReadRequest, ReadStream, StatAnswers, Version, XattrList,
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

    fn stat_again(
        &self,
        parent: ItemPath,
        name: Bytes,
        denied: Version,
    ) -> BoxFuture<'static, Result<Leased<Attributes>, Failure>> {
        let this = self.clone();
        async move {
            let path = parent.join(&name).map_err(|invalid| {
                Failure::new(FailureKind::NameTooLong, format!("{parent}: {invalid}"))
            })?;
            this.attributes_unlike(&path, denied).await
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
            file: FileRef::asked(request.path, request.version, request.size, request.content),
            blocks,
            current: Current::Look(0),
            copied: None,
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
            // The content hash cannot be checked with a part of a block.
            let file = FileRef::new(request.path, request.version, request.size, None);
            let cut = this.pieces(&file, block, &range).await?;
            Ok(RangeAnswer::of(cut.bytes))
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
/// a slow child pins at most one block, and only while there is room for it.
struct Feed {
    path: ReadPath,
    file: FileRef,
    blocks: Range<u64>,
    current: Current,
    /// The hash of the block whose copies are being sent; the rest must come from a block with the same
    /// hash.
    copied: Option<ContentHash>,
    /// Flights of equal files elsewhere that failed.
    detours: u32,
}

enum Current {
    /// To be looked up; the number of its bytes that were sent.
    Look(usize),
    /// On its way here; so many bytes are forwarded since it began anew so often.
    Flying(Arc<Flight>, watch::Receiver<Progress>, (usize, u32)),
    /// A verified block that is being sent, and its room.
    Sending(Block, Held),
    /// All its bytes were sent.
    Sent(ContentHash),
    Failed,
}

type Part = Result<BlockPart, Failure>;

impl Feed {
    async fn next(&mut self) -> Option<Part> {
        loop {
            let current = std::mem::replace(&mut self.current, Current::Failed);
            let part = match current {
                Current::Failed => return None,
                Current::Look(_) if self.blocks.is_empty() => return None,
                Current::Look(sent) => self.look(sent),
                Current::Sending(block, _room) => Some(self.end(block.hash)),
                Current::Sent(hash) => Some(self.end(hash)),
                Current::Flying(flight, progress, sent) => self.fly(flight, progress, sent).await,
            };
            if part.is_some() {
                return part;
            }
        }
    }

    /// Looks the block up; `sent` of its bytes were sent.
    fn look(&mut self, sent: usize) -> Option<Part> {
        let wanted = || [self.blocks.clone(), 0..0];
        match self.path.source_of(&self.file, self.blocks.start, wanted) {
            Source::Cached(block) => Some(self.found(block, sent)),
            Source::Flying(flight) => {
                let progress = flight.watch();
                self.current = Current::Flying(flight, progress, (sent, 0));
                None
            }
        }
    }

    /// Sends a block that is here, and pins it meanwhile. Without room for that, sends a copy of a small
    /// part, and the block is looked up again for the next part.
    fn found(&mut self, block: Block, sent: usize) -> Part {
        let len = block.bytes.len();
        if sent > 0 && self.copied.is_some_and(|hash| hash != block.hash) {
            return self.restart();
        }
        if sent >= len {
            return self.end(block.hash);
        }
        if let Some(room) = self.path.0.room.hand_out_now(len as u64) {
            let rest = block.bytes.slice(sent..);
            self.current = Current::Sending(block, room);
            return Ok(BlockPart::Bytes(rest));
        }
        let end = len.min(sent + COPY_BYTES);
        self.copied = Some(block.hash);
        self.current = match end == len {
            true => Current::Sent(block.hash),
            false => Current::Look(end),
        };
        Ok(BlockPart::Bytes(Bytes::copy_from_slice(
            &block.bytes[sent..end],
        )))
    }

    fn end(&mut self, hash: ContentHash) -> Part {
        self.blocks.start += 1;
        self.current = Current::Look(0);
        self.copied = None;
        Ok(BlockPart::End(hash))
    }

    fn restart(&mut self) -> Part {
        self.current = Current::Look(0);
        self.copied = None;
        Ok(BlockPart::Restart)
    }

    /// Continues with a block whose fetch is in progress.
    async fn fly(
        &mut self,
        flight: Arc<Flight>,
        mut progress: watch::Receiver<Progress>,
        (sent, before): (usize, u32),
    ) -> Option<Part> {
        let now = progress.borrow_and_update().clone();
        match now {
            Progress::Done(block, restarts) => {
                if restarts != before && sent > 0 {
                    return Some(self.restart());
                }
                Some(self.found(block, sent))
            }
            Progress::Failed(_) if flight.is_elsewhere(&self.file, self.detours) => {
                self.detours += 1;
                self.current = Current::Look(0);
                (sent > 0).then(|| self.restart())
            }
            Progress::Failed(failure) => Some(Err(failure)),
            Progress::Filling(restarts) => {
                if restarts != before {
                    self.current = Current::Flying(flight, progress, (0, restarts));
                    return (sent > 0).then_some(Ok(BlockPart::Restart));
                }
                if let Some(bytes) = flight.forwardable(sent, restarts) {
                    let sent = sent + bytes.len();
                    self.current = Current::Flying(flight, progress, (sent, restarts));
                    return Some(Ok(BlockPart::Bytes(bytes)));
                }
                let wait = self.path.changed_soon(&self.file, &flight, &mut progress);
                if wait.await.is_err() {
                    let detail = "the fetch was given up";
                    return Some(Err(Failure::new(FailureKind::Unavailable, detail)));
                }
                self.current = Current::Flying(flight, progress, (sent, restarts));
                None
            }
        }
    }
}
