//! A store in front of a source of files: blocks that the store has come from the store, the others from the
//! source. Blocks from the source are kept, except for those of unsettled versions, which no later request can
//! ask for.

use super::Store;
use super::record::{BlockLocation, BlockOrigin};
use crate::num::to_usize;
use crate::read::FileRef;
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, BundleItem, BundleRequest, BundleStream, ContentHash, Failure,
    FailureKind, Files, FilesFuture, FilesystemUsage, ItemPath, Leased, ListRequest, Listed,
    RangeAnswer, RangeRequest, ReadRequest, ReadStream, StatAnswers, StatRequest, XattrList,
};
use futures_util::{FutureExt, StreamExt, stream};
use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Blocks read from the disk ahead of the returned one.
const READ_AHEAD_BLOCKS: usize = 4;
/// Small files read from the disk at the same time for one bundle.
const BUNDLE_CONCURRENCY: usize = 8;

/// See the module.
#[derive(Clone)]
pub struct StoreLayer {
    store: Store,
    source: Arc<dyn Files>,
}

impl Files for StoreLayer {
    fn list(&self, request: ListRequest) -> FilesFuture<Listed> {
        self.source.list(request)
    }

    fn stat(&self, request: StatRequest) -> FilesFuture<Leased<StatAnswers>> {
        self.source.stat(request)
    }

    fn read(&self, request: ReadRequest) -> FilesFuture<ReadStream> {
        if request.through || !request.version.is_settled() {
            return self.source.read(request);
        }
        let blocks = request.first_block..request.first_block.saturating_add(request.block_count);
        let file = FileRef::new(request.path, request.version, request.size, request.content);
        let mut reading = BlockReader {
            moment: self.store.shared.catalog.moment(),
            layer: self.clone(),
            blocks,
            file,
            prefetched: VecDeque::new(),
            ready: VecDeque::new(),
            source: None,
            refused: None,
        };
        async move {
            // The first part is read here, so that a refusal by the source is returned before the stream
            // starts.
            let Some(first) = reading.next().await? else {
                return Ok(stream::empty().boxed());
            };
            let rest = stream::try_unfold(reading, |mut reading| async move {
                Ok(reading.next().await?.map(|part| (part, reading)))
            });
            Ok(stream::iter([Ok(first)]).chain(rest).boxed())
        }
        .boxed()
    }

    fn read_range(&self, request: RangeRequest) -> FilesFuture<RangeAnswer> {
        self.clone().range(request).boxed()
    }

    fn find(&self, hash: ContentHash, len: u64) -> FilesFuture<Bytes> {
        let this = self.clone();
        async move {
            match this.store.by_hash(hash, len).await {
                Some(bytes) => Ok(bytes),
                None => this.source.find(hash, len).await,
            }
        }
        .boxed()
    }

    fn bundle(&self, request: BundleRequest) -> FilesFuture<BundleStream> {
        self.clone().stored_bundle(request).boxed()
    }

    fn xattrs(&self, path: ItemPath) -> FilesFuture<Leased<XattrList>> {
        self.source.xattrs(path)
    }

    fn usage(&self, path: ItemPath) -> FilesFuture<FilesystemUsage> {
        self.source.usage(path)
    }
}

/// The answer to one request for a run of blocks.
struct BlockReader {
    layer: StoreLayer,
    file: FileRef,
    /// When the blocks were requested.
    moment: u64,
    /// The blocks that are left; the first one is the next to return.
    blocks: Range<u64>,
    /// Blocks that are being read from the disk, in order from `blocks.start` on.
    prefetched: VecDeque<(ContentHash, JoinHandle<Option<Bytes>>)>,
    /// A block from the disk or from another node, to be returned next.
    ready: VecDeque<BlockPart>,
    /// The source's answer for the next blocks.
    source: Option<SourceRun>,
    /// The source has refused this version, so it gets no further request.
    refused: Option<Failure>,
}

/// The source's answer for some blocks.
struct SourceRun {
    parts: ReadStream,
    /// The first block after the run.
    end: u64,
    /// The bytes of the current block so far.
    pieces: Vec<Bytes>,
}

impl BlockReader {
    async fn next(&mut self) -> Result<Option<BlockPart>, Failure> {
        loop {
            if self.blocks.is_empty() {
                return Ok(None);
            }
            if let Some(part) = self.ready.pop_front() {
                if matches!(part, BlockPart::End(_)) {
                    self.blocks.start += 1;
                }
                return Ok(Some(part));
            }
            self.source.take_if(|run| self.blocks.start >= run.end);
            if self.source.is_some() {
                return self.next_of_source().await;
            }
            self.read_ahead();
            let from_disk = match self.prefetched.pop_front() {
                Some((hash, reading)) => reading.await.ok().flatten().map(|bytes| (bytes, hash)),
                None => None,
            };
            if let Some((bytes, hash)) = from_disk {
                self.ready = [BlockPart::Bytes(bytes), BlockPart::End(hash)].into();
                continue;
            }
            let requested = match self.refused.take() {
                Some(failure) => Err(failure),
                None => self.request_from_source().await,
            };
            if let Err(failure) = requested {
                self.find_elsewhere(failure).await?;
            }
        }
    }

    fn find(&self, index: u64) -> Option<BlockLocation> {
        self.layer.store.shared.catalog.find(&self.file, index)
    }

    /// Starts to read the next blocks that the store has.
    fn read_ahead(&mut self) {
        while self.prefetched.len() < READ_AHEAD_BLOCKS {
            let next = self.blocks.start + self.prefetched.len() as u64;
            if next >= self.blocks.end {
                return;
            }
            let Some(block) = self.find(next) else {
                return;
            };
            let (store, hash) = (self.layer.store.clone(), block.hash);
            let reading = tokio::spawn(async move { store.load(block).await });
            self.prefetched.push_back((hash, reading));
        }
    }

    /// Requests the next blocks from the source, up to the first one that the store has.
    async fn request_from_source(&mut self) -> Result<(), Failure> {
        let start = self.blocks.start;
        // The next block is missing or damaged. The prefetched ones after it are read again later, because
        // `prefetched` always begins with the next block.
        self.prefetched.clear();
        let held = (start + 1..self.blocks.end).find(|index| self.find(*index).is_some());
        let end = held.unwrap_or(self.blocks.end);
        let misses = &self.layer.store.shared.counters.misses;
        misses.add_len(to_usize(end - start));
        let request = ReadRequest {
            path: self.file.path.clone(),
            version: self.file.version,
            size: self.file.size,
            first_block: start,
            block_count: end - start,
            content: self.file.content,
            through: false,
        };
        self.source = Some(SourceRun {
            parts: self.layer.source.read(request).await?,
            end,
            pieces: Vec::new(),
        });
        Ok(())
    }

    /// The next part from the source. Keeps each block once it is complete.
    async fn next_of_source(&mut self) -> Result<Option<BlockPart>, Failure> {
        let Some(run) = &mut self.source else {
            return Ok(None);
        };
        match run.parts.next().await {
            Some(Ok(part)) => {
                match &part {
                    BlockPart::Bytes(bytes) => run.pieces.push(bytes.clone()),
                    BlockPart::Restart => run.pieces.clear(),
                    BlockPart::End(hash) => {
                        let pieces = std::mem::take(&mut run.pieces);
                        let index = self.blocks.start;
                        let origin = BlockOrigin::new(self.file.id(), self.moment, index);
                        // If it is not kept, the next read of the block is a miss.
                        self.layer.store.keep(origin, *hash, pieces).await;
                        self.blocks.start += 1;
                    }
                }
                Ok(Some(part))
            }
            // The consumer has bytes of the new version, which must not precede those of the old one.
            Some(Err(failure)) => {
                let restart = !run.pieces.is_empty();
                self.find_elsewhere(failure).await?;
                if restart {
                    return Ok(Some(BlockPart::Restart));
                }
                Ok(self.ready.pop_front())
            }
            // The source ended early, and so does this answer.
            None => Ok(None),
        }
    }

    /// Gets the next block from other nodes, after the source's `failure`.
    ///
    /// # Errors
    /// `failure`, if no node has the block.
    async fn find_elsewhere(&mut self, failure: Failure) -> Result<(), Failure> {
        self.source = None;
        let (layer, index) = (&self.layer, self.blocks.start);
        let found = layer.elsewhere(&self.file, index, self.moment, &failure);
        let Some((bytes, hash)) = found.await else {
            return Err(failure);
        };
        self.refused = Some(failure);
        self.ready = [BlockPart::Bytes(bytes), BlockPart::End(hash)].into();
        Ok(())
    }
}

impl StoreLayer {
    /// Puts `store` in front of `source`.
    #[must_use]
    pub fn new(store: Store, source: Arc<dyn Files>) -> Self {
        Self { store, source }
    }

    async fn range(self, request: RangeRequest) -> Result<RangeAnswer, Failure> {
        if let Some(fault) = request.fault() {
            let detail = format!("{}: {fault}", request.path);
            return Err(Failure::new(FailureKind::Corrupt, detail));
        }
        if !request.version.is_settled() {
            return self.source.read_range(request).await;
        }
        let path = request.path.clone();
        let file = FileRef::new(path, request.version, request.size, request.content);
        let index = request.block();
        // The whole block is read, because only a whole block can be verified.
        if let Some(block) = self.store.shared.catalog.find(&file, index)
            && let Some(bytes) = self.store.load(block).await
        {
            return Ok(RangeAnswer::of(cut(&request, &bytes)));
        }
        let moment = self.store.shared.catalog.moment();
        let failure = match self.source.read_range(request.clone()).await {
            Ok(answer) => return Ok(answer),
            Err(failure) => failure,
        };
        match self.elsewhere(&file, index, moment, &failure).await {
            Some((bytes, _)) => Ok(RangeAnswer::of(cut(&request, &bytes))),
            None => Err(failure),
        }
    }

    /// Block `index` of `file` from other nodes, by its hash, if the source's `failure` means that storage no
    /// longer has this version, and the store has had the block once. It is kept again.
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
        let hash = self.store.shared.catalog.hash_of(file, index)?;
        let len = ReadRequest::block_len(file.size, index);
        let bytes = self.source.find(hash, len).await.ok()?;
        tracing::info!(path = %file.path, index, "an old block came from another node, by its hash");
        let origin = BlockOrigin::new(file.id(), moment, index);
        self.store.keep(origin, hash, vec![bytes.clone()]).await;
        Some((bytes, hash))
    }

    /// The files of a bundle in the request's order, from the store and from the source.
    async fn stored_bundle(self, request: BundleRequest) -> Result<BundleStream, Failure> {
        let moment = self.store.shared.catalog.moment();
        let mut held = Vec::new();
        let mut missing = Vec::new();
        let mut missing_request = BundleRequest {
            directory: request.directory.clone(),
            files: Vec::new(),
        };
        for (index, file) in request.files.into_iter().enumerate() {
            // An invalid name is left out, like a file that cannot be read.
            let Ok(path) = request.directory.join(&file.name) else {
                continue;
            };
            let known = FileRef::new(path, file.version, file.size, file.content);
            match self.store.shared.catalog.find(&known, 0) {
                Some(block) => held.push((index, block)),
                None => {
                    missing.push((index, known));
                    missing_request.files.push(file);
                }
            }
        }
        self.store.shared.counters.misses.add_len(missing.len());
        if held.is_empty() {
            return self.source_bundle(missing_request, missing, moment).await;
        }
        let store = self.store.clone();
        let from_disk = stream::iter(held)
            .map(move |(index, block)| {
                let (store, hash) = (store.clone(), block.hash);
                async move {
                    let bytes = store.load(block).await?;
                    Some(Ok(BundleItem { index, bytes, hash }))
                }
            })
            .buffered(BUNDLE_CONCURRENCY)
            // Damaged files are left out. Their readers request them separately.
            .filter_map(std::future::ready)
            .boxed();
        if missing_request.files.is_empty() {
            return Ok(from_disk);
        }
        let from_source = self.source_bundle(missing_request, missing, moment).await?;
        Ok(merged(from_disk, from_source))
    }

    /// A bundle of the source. Its items are kept. `files` has the original index of each file of `request`.
    async fn source_bundle(
        self,
        request: BundleRequest,
        files: Vec<(usize, FileRef)>,
        moment: u64,
    ) -> Result<BundleStream, Failure> {
        let items = self.source.bundle(request).await?;
        let files = Arc::new(files);
        let kept = items.then(move |item| {
            let (layer, files) = (self.clone(), Arc::clone(&files));
            async move {
                let mut item = item?;
                if let Some((index, file)) = files.get(item.index) {
                    item.index = *index;
                    if file.version.is_settled() {
                        let origin = BlockOrigin::new(file.id(), moment, 0);
                        let pieces = vec![item.bytes.clone()];
                        layer.store.keep(origin, item.hash, pieces).await;
                    }
                }
                Ok(item)
            }
        });
        Ok(kept.boxed())
    }
}

/// The bytes of `range` in its block.
fn cut(range: &RangeRequest, block: &Bytes) -> Bytes {
    let from = to_usize(range.offset % BLOCK_BYTES);
    block.slice(from..from + to_usize(range.len))
}

/// The items of two bundles in the order of their indices.
fn merged(left: BundleStream, right: BundleStream) -> BundleStream {
    let both = (left.peekable(), right.peekable());
    stream::unfold(both, |(mut left, mut right)| async move {
        let (first, second) = tokio::join!(Pin::new(&mut left).peek(), Pin::new(&mut right).peek());
        let is_left_next = match (first, second) {
            (Some(Ok(first)), Some(Ok(second))) => first.index < second.index,
            (Some(_), None | Some(Ok(_))) => true,
            _ => false,
        };
        let next = if is_left_next { &mut left } else { &mut right };
        let item = next.next().await?;
        Some((item, (left, right)))
    })
    .boxed()
}
