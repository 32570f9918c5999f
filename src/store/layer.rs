//! A store in front of a source of files: blocks that are here come from here, the others from the
//! source, and blocks from the source are kept, except for those of unsettled versions, which no later
//! request can ask for.

use super::Store;
use super::catalog::Place;
use super::job::Put;
use crate::num::to_usize;
use crate::read::FileRef;
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BLOCK_BYTES, BlockPart, BundleItem, BundleRequest, BundleStream, ContentHash,
    Cursor, Failure, FailureKind, Files, FilesystemUsage, ItemPath, Leased, Listed, Listing,
    ListingDigest, RangeAnswer, RangeRequest, ReadRequest, ReadStream, StatAnswers, Version,
    XattrList,
};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Blocks read from the disk ahead of the one that is handed on.
const DISK_AHEAD: usize = 4;
/// Small files read from the disk at the same time for one bundle.
const BUNDLE_AHEAD: usize = 8;

/// See the module.
#[derive(Clone)]
pub struct Stored {
    store: Store,
    source: Arc<dyn Files>,
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl Stored {
    /// `store` in front of `source`.
    #[must_use]
    pub fn new(store: Store, source: Arc<dyn Files>) -> Self {
        Self { store, source }
    }
}

impl Files for Stored {
    fn list(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'static, Result<Listing, Failure>> {
        self.source.list(path, cursor, limit)
    }

    fn list_parts(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
        known: Option<ListingDigest>,
    ) -> BoxFuture<'static, Result<Listed, Failure>> {
        self.source.list_parts(path, cursor, limit, known)
    }

    fn stat(
        &self,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> BoxFuture<'static, Result<Leased<StatAnswers>, Failure>> {
        self.source.stat(parent, names)
    }

    fn stat_again(
        &self,
        parent: ItemPath,
        name: Bytes,
        denied: Version,
    ) -> BoxFuture<'static, Result<Leased<Attributes>, Failure>> {
        self.source.stat_again(parent, name, denied)
    }

    fn read(&self, request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>> {
        if request.through || !request.version.is_settled() {
            return self.source.read(request);
        }
        let blocks = request.first_block..request.first_block.saturating_add(request.block_count);
        let file = FileRef::new(request.path, request.version, request.size, request.content);
        let mut feed = Feed {
            moment: self.store.moment(),
            layer: self.clone(),
            blocks,
            file,
            ahead: VecDeque::new(),
            passing: None,
            refused: None,
            found: None,
            due: None,
            failed: false,
        };
        async move {
            // A source that refuses is refused at once, not in mid-stream.
            let first = feed.next().await;
            let Some(first) = first.transpose()? else {
                return Ok(stream::empty().boxed());
            };
            let rest = stream::unfold(feed, |mut feed| async move {
                let part = feed.next().await?;
                Some((part, feed))
            });
            Ok(stream::iter([Ok(first)]).chain(rest).boxed())
        }
        .boxed()
    }

    fn read_range(
        &self,
        request: RangeRequest,
    ) -> BoxFuture<'static, Result<RangeAnswer, Failure>> {
        let this = self.clone();
        async move {
            if let Some(fault) = request.fault() {
                let detail = format!("{}: {fault}", request.path);
                return Err(Failure::new(FailureKind::Corrupt, detail));
            }
            if !request.version.is_settled() {
                return this.source.read_range(request).await;
            }
            if let Some(bytes) = this.cut(&request).await {
                return Ok(RangeAnswer::of(bytes));
            }
            let moment = this.store.moment();
            let failure = match this.source.read_range(request.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let (path, content) = (request.path.clone(), request.content);
            let file = FileRef::new(path, request.version, request.size, content);
            match this
                .elsewhere(&file, request.block(), moment, &failure)
                .await
            {
                Some((block, _)) => Ok(RangeAnswer::of(cut_of(&request, &block))),
                None => Err(failure),
            }
        }
        .boxed()
    }

    fn find(&self, hash: ContentHash, len: u64) -> BoxFuture<'static, Result<Bytes, Failure>> {
        let this = self.clone();
        async move {
            match this.store.by_hash(hash, len).await {
                Some(bytes) => Ok(bytes),
                None => this.source.find(hash, len).await,
            }
        }
        .boxed()
    }

    fn bundle(&self, request: BundleRequest) -> BoxFuture<'static, Result<BundleStream, Failure>> {
        let this = self.clone();
        async move { this.give_bundle(request).await }.boxed()
    }

    fn xattrs(&self, path: ItemPath) -> BoxFuture<'static, Result<Leased<XattrList>, Failure>> {
        self.source.xattrs(path)
    }

    fn usage(&self, path: ItemPath) -> BoxFuture<'static, Result<FilesystemUsage, Failure>> {
        self.source.usage(path)
    }
}

/// A run of blocks on its way to one asker.
struct Feed {
    layer: Stored,
    file: FileRef,
    /// When it was asked for.
    moment: u64,
    /// What is still to be given.
    blocks: Range<u64>,
    /// Blocks that are being read from the disk, in order from `blocks.start` on.
    ahead: VecDeque<(ContentHash, JoinHandle<Option<Bytes>>)>,
    /// The source's answer for the next blocks, up to this one.
    passing: Option<(ReadStream, u64, Vec<Bytes>)>,
    /// Why the source gives nothing of this version any more.
    refused: Option<Failure>,
    /// A block that came from elsewhere; its hash is due after it.
    found: Option<Bytes>,
    /// The bytes of a block are given, and its hash is due.
    due: Option<ContentHash>,
    failed: bool,
}

impl Feed {
    async fn next(&mut self) -> Option<Result<BlockPart, Failure>> {
        loop {
            if self.failed || self.blocks.is_empty() {
                return None;
            }
            if let Some(bytes) = self.found.take() {
                return Some(Ok(BlockPart::Bytes(bytes)));
            }
            if let Some(hash) = self.due.take() {
                self.blocks.start += 1;
                return Some(Ok(BlockPart::End(hash)));
            }
            if self.passing.is_some() {
                match self.pass_on().await {
                    Some(part) => return Some(part),
                    None => continue,
                }
            }
            self.read_ahead();
            let from_disk = match self.ahead.pop_front() {
                Some((hash, reading)) => reading.await.ok().flatten().map(|bytes| (hash, bytes)),
                None => None,
            };
            if let Some((hash, bytes)) = from_disk {
                self.due = Some(hash);
                return Some(Ok(BlockPart::Bytes(bytes)));
            }
            let asked = match self.refused.take() {
                Some(failure) => Err(failure),
                None => self.ask_source().await,
            };
            if let Err(failure) = asked
                && let Err(failure) = self.find_elsewhere(failure).await
            {
                return Some(Err(failure));
            }
        }
    }

    fn find(&self, index: u64) -> Option<Place> {
        self.layer.store.find(&self.file, index)
    }

    /// Starts to read the next blocks that are on the disk.
    fn read_ahead(&mut self) {
        while self.ahead.len() < DISK_AHEAD {
            let next = self.blocks.start + self.ahead.len() as u64;
            if next >= self.blocks.end {
                return;
            }
            let Some(place) = self.find(next) else {
                return;
            };
            let (store, hash) = (self.layer.store.clone(), place.hash);
            let reading = tokio::spawn(async move { store.load(place).await });
            self.ahead.push_back((hash, reading));
        }
    }

    /// Asks the source for the next blocks, up to the first one that is on the disk.
    async fn ask_source(&mut self) -> Result<(), Failure> {
        let start = self.blocks.start;
        // The next one itself is not here, or turned out to be damaged. What was read ahead behind it is
        // read again when its turn comes.
        self.ahead.clear();
        let missing = (start + 1..self.blocks.end).find(|index| self.find(*index).is_some());
        let end = missing.unwrap_or(self.blocks.end);
        for _ in start..end {
            self.layer.store.0.shared.counters.misses.increment();
        }
        let request = ReadRequest {
            path: self.file.path.clone(),
            version: self.file.version,
            size: self.file.size,
            first_block: start,
            block_count: end - start,
            content: self.file.content,
            through: false,
        };
        let stream = self.layer.source.read(request).await?;
        self.passing = Some((stream, end, Vec::new()));
        Ok(())
    }

    /// Hands on what the source gives, and keeps each block once it is complete. `None`: the source has
    /// given what it was asked for.
    async fn pass_on(&mut self) -> Option<Result<BlockPart, Failure>> {
        let (stream, end, pieces) = self.passing.as_mut()?;
        if self.blocks.start >= *end {
            self.passing = None;
            return None;
        }
        match stream.next().await {
            Some(Ok(BlockPart::Bytes(bytes))) => {
                pieces.push(bytes.clone());
                Some(Ok(BlockPart::Bytes(bytes)))
            }
            Some(Ok(BlockPart::Restart)) => {
                pieces.clear();
                Some(Ok(BlockPart::Restart))
            }
            Some(Ok(BlockPart::End(hash))) => {
                let put = Put {
                    file: self.file.id(),
                    moment: self.moment,
                    index: self.blocks.start,
                    hash,
                    pieces: std::mem::take(pieces),
                };
                self.blocks.start += 1;
                self.layer.store.keep(put).await;
                Some(Ok(BlockPart::End(hash)))
            }
            Some(Err(failure)) => {
                let void = !pieces.is_empty();
                match self.find_elsewhere(failure).await {
                    Ok(()) => void.then_some(Ok(BlockPart::Restart)),
                    Err(failure) => Some(Err(failure)),
                }
            }
            None => {
                self.failed = true;
                None
            }
        }
    }

    /// The next block from elsewhere, after the source's `failure`, which is given back if nobody has
    /// it: then nothing more comes.
    async fn find_elsewhere(&mut self, failure: Failure) -> Result<(), Failure> {
        self.passing = None;
        let (layer, index) = (&self.layer, self.blocks.start);
        let found = layer.elsewhere(&self.file, index, self.moment, &failure);
        let Some((bytes, hash)) = found.await else {
            self.failed = true;
            return Err(failure);
        };
        self.refused = Some(failure);
        (self.found, self.due) = (Some(bytes), Some(hash));
        Ok(())
    }
}

impl Stored {
    /// The bytes of a range whose block is here. The whole block is read: only so can it be checked.
    async fn cut(&self, range: &RangeRequest) -> Option<Bytes> {
        let file = FileRef::new(range.path.clone(), range.version, range.size, range.content);
        let place = self.store.find(&file, range.block())?;
        let block = self.store.load(place).await?;
        Some(cut_of(range, &block))
    }

    /// Block `index` of `file` by its hash, where the source's `failure` says that storage has this
    /// version no more and the store has once seen it. It is kept again.
    async fn elsewhere(
        &self,
        file: &FileRef,
        index: u64,
        moment: u64,
        failure: &Failure,
    ) -> Option<(Bytes, ContentHash)> {
        if !matches!(failure.kind, FailureKind::Stale | FailureKind::NotFound) {
            return None;
        }
        let hash = self.store.0.shared.catalog.hash_of(file, index)?;
        let len = ReadRequest::block_len(file.size, index);
        let bytes = self.source.find(hash, len).await.ok()?;
        tracing::info!(path = %file.path, index, "an old block came from another node, by its hash");
        let put = Put {
            file: file.id(),
            moment,
            index,
            hash,
            pieces: vec![bytes.clone()],
        };
        self.store.keep(put).await;
        Some((bytes, hash))
    }

    /// The files that are here from here, the others from the source, in the request's order.
    async fn give_bundle(self, request: BundleRequest) -> Result<BundleStream, Failure> {
        let moment = self.store.moment();
        let mut here = Vec::new();
        let mut elsewhere = Vec::new();
        let mut asked = BundleRequest {
            directory: request.directory.clone(),
            files: Vec::new(),
        };
        for (index, file) in request.files.into_iter().enumerate() {
            let Ok(path) = request.directory.join(&file.name) else {
                continue;
            };
            let known = FileRef::new(path, file.version, file.size, file.content);
            match self.store.find(&known, 0) {
                Some(place) => here.push((index, file, place)),
                None => {
                    elsewhere.push((index, known));
                    asked.files.push(file);
                }
            }
        }
        let misses = &self.store.0.shared.counters.misses;
        misses.add_len(elsewhere.len());
        if here.is_empty() {
            return self.kept(asked, elsewhere, moment).await;
        }
        let store = self.store.clone();
        let from_disk = stream::iter(here)
            .map(move |(index, _, place)| {
                let (store, hash) = (store.clone(), place.hash);
                async move {
                    let bytes = store.load(place).await?;
                    Some(Ok(BundleItem { index, bytes, hash }))
                }
            })
            .buffered(BUNDLE_AHEAD)
            // What is damaged is left out: who needs it asks for it by itself.
            .filter_map(std::future::ready)
            .boxed();
        if asked.files.is_empty() {
            return Ok(from_disk);
        }
        let from_source = self.kept(asked, elsewhere, moment).await?;
        Ok(merged(from_disk, from_source))
    }

    /// A bundle of the source, whose items are kept; `files` says what each item is.
    async fn kept(
        self,
        asked: BundleRequest,
        files: Vec<(usize, FileRef)>,
        moment: u64,
    ) -> Result<BundleStream, Failure> {
        let items = self.source.bundle(asked).await?;
        let files = Arc::new(files);
        let kept = items.then(move |item| {
            let (store, files) = (self.store.clone(), Arc::clone(&files));
            async move {
                let mut item = item?;
                if let Some((index, file)) = files.get(item.index) {
                    item.index = *index;
                    if !file.version.is_settled() {
                        return Ok(item);
                    }
                    let put = Put {
                        file: file.id(),
                        moment,
                        index: 0,
                        hash: item.hash,
                        pieces: vec![item.bytes.clone()],
                    };
                    store.keep(put).await;
                }
                Ok(item)
            }
        });
        Ok(kept.boxed())
    }
}

/// The bytes of `range` in its block, which is whole.
fn cut_of(range: &RangeRequest, block: &Bytes) -> Bytes {
    let from = to_usize(range.offset % BLOCK_BYTES);
    block.slice(from..from + to_usize(range.len))
}

/// Two bundles' items, in the order of their indices.
fn merged(left: BundleStream, right: BundleStream) -> BundleStream {
    let both = (left.peekable(), right.peekable());
    stream::unfold(both, |(mut left, mut right)| async move {
        let from_left = {
            let (first, second) = tokio::join!(
                std::pin::Pin::new(&mut left).peek(),
                std::pin::Pin::new(&mut right).peek()
            );
            match (first, second) {
                (Some(Ok(first)), Some(Ok(second))) => first.index < second.index,
                (Some(_), None | Some(Ok(_))) => true,
                _ => false,
            }
        };
        let item = if from_left {
            left.next().await
        } else {
            right.next().await
        };
        item.map(|item| (item, (left, right)))
    })
    .boxed()
}
