//! Reads each block from storage once, even if several requests need it and reach storage on different paths.
//!
//! Purpose: wraps a root's storage. A bundle, a single request that does not wait for the bundle, the read
//! paths of several positions in the root order, and a request that bypasses the tree may all ask for the
//! same block. Each request claims the block ([`super::claims`]) before it reads it. It then looks in the
//! node's caches first, so that a block that another request has read meanwhile is not read again. A claim
//! is dropped after its bytes have been passed on and cached: the claim of a stream when its consumer asks
//! for the next part, the claim of a range when its bytes are dropped.
//!
//! A single request takes over a file that a bundle has not begun; the bundle leaves that file out, also if the file
//! has left the cache in memory by then, because the store may still have it.
//!
//! Invariants
//! - A request that holds claims waits only for storage, so no two requests wait for each other. A request
//!   takes further claims only if they are free.
//! - A claim ends with its holder, even if the holder is cancelled; the waiting requests then continue.
//! - No request waits longer than `read_timeout` for a claim and the answer together.
//!
//! What it does not do: it caches nothing. It does not cover requests that bypass the caches of the nodes
//! ([`ReadRequest::through`]); homes of datasets have flights of their own. Ranges are not combined into
//! blocks: bytes that were read as ranges are read again with their block.

use super::claims::{BlockClaim, BlockClaims, BlockKey, ClaimFile, ClaimedStream, FileClaim};
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, BundleFile, BundleRequest, BundleStream, ContentHash, Failure, Files,
    FilesFuture, FilesystemUsage, ItemPath, Leased, ListRequest, Listed, RangeAnswer, RangeRequest,
    ReadRequest, ReadStream, StatAnswers, StatRequest, XattrList,
};
use dashmap::DashMap;
use futures_util::{FutureExt, StreamExt, stream};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Storage, as [`CoalescedStorage`] uses it.
pub trait Storage: Files {
    /// Like [`Files::bundle`], but claims each file before it is read.
    ///
    /// # Errors
    /// The directory cannot be reached.
    fn claimed_bundle(
        &self,
        request: BundleRequest,
        claim: ClaimFile,
    ) -> Result<ClaimedStream, Failure>;

    /// The failure of a read of `path` that got no answer within `read_timeout`. It counts as a fault of that
    /// storage.
    fn timed_out(&self, path: &ItemPath, read_timeout: Duration) -> Failure;
}

/// The node's in-memory cache of data from storage.
pub trait BlockCache: Send + Sync + 'static {
    /// Block `index` of the requested file, and its hash.
    fn block(&self, request: &ReadRequest, index: u64) -> Option<(Bytes, ContentHash)>;

    /// All bytes of a range.
    fn range(&self, request: &RangeRequest) -> Option<Bytes>;
}

/// Storage with coalesced reads. See the module. Cheap to clone.
#[derive(Clone)]
pub struct CoalescedStorage(Arc<Shared>);

struct Shared {
    storage: Arc<dyn Storage>,
    /// Set late, because the read path that owns the cache is built on top of this storage.
    cache: OnceLock<Arc<dyn BlockCache>>,
    claims: Arc<BlockClaims>,
    /// Files that a bundle has not begun, with the number of that bundle. Bounded by the running bundles of
    /// the read path.
    planned: DashMap<BlockKey, u64>,
    bundles: AtomicU64,
    read_timeout: Duration,
}

impl CoalescedStorage {
    /// Wraps `storage`. A request waits at most `read_timeout` for the read of another request.
    #[must_use]
    pub fn new(storage: Arc<dyn Storage>, read_timeout: Duration) -> Self {
        Self(Arc::new(Shared {
            storage,
            cache: OnceLock::new(),
            claims: Arc::default(),
            planned: DashMap::new(),
            bundles: AtomicU64::new(0),
            read_timeout,
        }))
    }

    /// Sets the cache in which requests look before they read.
    pub fn set_cache(&self, cache: Arc<dyn BlockCache>) {
        if self.0.cache.set(cache).is_err() {
            tracing::warn!("the cache of the storage was set twice");
        }
    }
}

impl Shared {
    fn cached(&self, request: &ReadRequest, index: u64) -> Option<(Bytes, ContentHash)> {
        self.cache.get()?.block(request, index)
    }

    /// Claims `block`, or `range` of it. If the request had to wait, also returns the deadline for its
    /// answer, which includes that wait.
    async fn claim(
        &self,
        block: &BlockKey,
        range: Option<&Range<u64>>,
    ) -> Result<(BlockClaim, Option<Instant>), Failure> {
        if let Some(claim) = self.claims.try_claim(block, range) {
            return Ok((claim, None));
        }
        let deadline = Instant::now() + self.read_timeout;
        match timeout_at(deadline, self.claims.claim(block, range)).await {
            Ok(claim) => Ok((claim, Some(deadline))),
            Err(_elapsed) => Err(self.storage.timed_out(&block.path, self.read_timeout)),
        }
    }

    /// The output of `answer`, or a failure at `deadline` if there is one.
    async fn before<T>(
        &self,
        deadline: Option<Instant>,
        path: &ItemPath,
        answer: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let Some(deadline) = deadline else {
            return answer.await;
        };
        let answered = timeout_at(deadline, answer).await;
        answered.unwrap_or_else(|_elapsed| Err(self.storage.timed_out(path, self.read_timeout)))
    }

    async fn read_range(&self, request: RangeRequest) -> Result<RangeAnswer, Failure> {
        if request.fault().is_some() {
            return self.storage.read_range(request).await;
        }
        let block = BlockKey {
            path: request.path.clone(),
            version: request.version,
            index: request.block(),
        };
        let range = request.offset..request.offset + request.len;
        let (claim, deadline) = self.claim(&block, Some(&range)).await?;
        if let Some(bytes) = self.cache.get().and_then(|cache| cache.range(&request)) {
            return Ok(RangeAnswer::of(bytes));
        }
        let reading = self.storage.read_range(request);
        let mut answer = self.before(deadline, &block.path, reading).await?;
        answer.bytes = Bytes::from_owner(ClaimedBytes {
            bytes: answer.bytes,
            _claim: claim,
        });
        Ok(answer)
    }
}

/// Bytes that hold their claim until they are dropped.
struct ClaimedBytes {
    bytes: Bytes,
    _claim: BlockClaim,
}

impl AsRef<[u8]> for ClaimedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn key_of(request: &ReadRequest, index: u64) -> BlockKey {
    BlockKey {
        path: request.path.clone(),
        version: request.version,
        index,
    }
}

/// The answer to one request: runs of blocks that it reads itself, and blocks that other requests have read
/// before it could claim them.
struct Reading {
    shared: Arc<Shared>,
    /// The blocks that are left; the first one is the next to return.
    request: ReadRequest,
    /// The current stream from storage, and the claims on the blocks that it returns.
    stream: Option<(ReadStream, VecDeque<BlockClaim>)>,
    /// The claim on the last block, held until the next part is requested.
    returned: Option<BlockClaim>,
    /// The hash of a cached block whose bytes were returned; it is returned next.
    cached_hash: Option<ContentHash>,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<BlockPart>, Failure> {
        // By now the consumer has cached the last block.
        self.returned = None;
        if let Some(hash) = self.cached_hash.take() {
            self.advance();
            return Ok(Some(BlockPart::End(hash)));
        }
        if self.stream.is_none() && self.request.block_count > 0 {
            let cached = self.begin().await?;
            if cached.is_some() {
                return Ok(cached);
            }
        }
        let Some((parts, claims)) = &mut self.stream else {
            return Ok(None);
        };
        let part = parts.next().await.transpose()?;
        if let Some(BlockPart::End(_)) = part {
            self.returned = claims.pop_front();
            if claims.is_empty() {
                self.stream = None;
            }
            self.advance();
        }
        Ok(part)
    }

    fn advance(&mut self) {
        self.request.first_block += 1;
        self.request.block_count -= 1;
    }

    /// Claims the next block. Returns its bytes if they are cached by then. Otherwise requests it from
    /// storage, together with the following blocks that are free and not cached.
    async fn begin(&mut self) -> Result<Option<BlockPart>, Failure> {
        let shared = Arc::clone(&self.shared);
        let first = self.request.first_block;
        let block = key_of(&self.request, first);
        if first == 0 {
            // A bundle that has not begun this file leaves it to this request.
            shared.planned.remove(&block);
        }
        let (claim, deadline) = shared.claim(&block, None).await?;
        if let Some((bytes, hash)) = shared.cached(&self.request, first) {
            self.cached_hash = Some(hash);
            return Ok(Some(BlockPart::Bytes(bytes)));
        }
        let mut claims = VecDeque::from([claim]);
        for index in first + 1..first + self.request.block_count {
            // Waiting here, with claims in hand, could deadlock with another request.
            let Some(claim) = shared.claims.try_claim(&key_of(&self.request, index), None) else {
                break;
            };
            if shared.cached(&self.request, index).is_some() {
                break;
            }
            claims.push_back(claim);
        }
        let run = ReadRequest {
            block_count: claims.len() as u64,
            ..self.request.clone()
        };
        let reading = shared.storage.read(run);
        let parts = shared.before(deadline, &self.request.path, reading).await?;
        self.stream = Some((parts, claims));
        Ok(None)
    }
}

/// The files that one bundle still has to read.
struct PlannedBundle {
    shared: Arc<Shared>,
    number: u64,
    /// `None` for an invalid name.
    files: Vec<Option<ReadRequest>>,
}

impl PlannedBundle {
    fn new(shared: &Arc<Shared>, request: &BundleRequest) -> Self {
        let whole = |file: &BundleFile| {
            Some(ReadRequest {
                path: request.directory.join(&file.name).ok()?,
                version: file.version,
                size: file.size,
                first_block: 0,
                block_count: 1,
                content: file.content,
                through: false,
            })
        };
        let files: Vec<_> = request.files.iter().map(whole).collect();
        let number = shared.bundles.fetch_add(1, Ordering::Relaxed);
        for file in files.iter().flatten() {
            shared.planned.insert(key_of(file, 0), number);
        }
        Self {
            shared: Arc::clone(shared),
            number,
            files,
        }
    }

    /// Removes `file` from the plan. Returns whether the plan still contained it: another request may have
    /// taken it over, or a later bundle may have planned it.
    fn take_out(&self, file: &ReadRequest) -> bool {
        let is_own = |_: &BlockKey, number: &u64| *number == self.number;
        let planned = &self.shared.planned;
        planned.remove_if(&key_of(file, 0), is_own).is_some()
    }

    fn claim(&self, index: usize) -> Option<FileClaim> {
        let file = self.files.get(index)?.as_ref()?;
        if !self.take_out(file) {
            return None;
        }
        let claim = self.shared.claims.try_claim(&key_of(file, 0), None)?;
        let is_cached = self.shared.cached(file, 0).is_some();
        (!is_cached).then(|| FileClaim {
            _block: Some(claim),
        })
    }
}

impl Drop for PlannedBundle {
    fn drop(&mut self) {
        for file in self.files.iter().flatten() {
            self.take_out(file);
        }
    }
}

impl Files for CoalescedStorage {
    fn list(&self, request: ListRequest) -> FilesFuture<Listed> {
        self.0.storage.list(request)
    }

    fn stat(&self, request: StatRequest) -> FilesFuture<Leased<StatAnswers>> {
        self.0.storage.stat(request)
    }

    fn read(&self, mut request: ReadRequest) -> FilesFuture<ReadStream> {
        let blocks = request.size.div_ceil(BLOCK_BYTES);
        // A file with an unsettled version must be read in one piece.
        let in_one_piece = !request.version.is_settled() && blocks > 1;
        if request.through || in_one_piece || request.first_block >= blocks {
            return self.0.storage.read(request);
        }
        request.block_count = request.block_count.min(blocks - request.first_block);
        let mut reading = Reading {
            shared: Arc::clone(&self.0),
            request,
            stream: None,
            returned: None,
            cached_hash: None,
        };
        async move {
            // The first block is begun here, so that a refusal by storage is returned before the stream
            // starts.
            let first = reading.begin().await?;
            let rest = stream::try_unfold(reading, |mut reading| async move {
                Ok(reading.next().await?.map(|part| (part, reading)))
            });
            Ok(stream::iter(first.map(Ok)).chain(rest).boxed())
        }
        .boxed()
    }

    fn forget(&self, path: &ItemPath) {
        self.0.storage.forget(path);
    }

    fn read_range(&self, request: RangeRequest) -> FilesFuture<RangeAnswer> {
        let shared = Arc::clone(&self.0);
        async move { shared.read_range(request).await }.boxed()
    }

    fn find(&self, hash: ContentHash, len: u64) -> FilesFuture<Bytes> {
        self.0.storage.find(hash, len)
    }

    fn bundle(&self, request: BundleRequest) -> FilesFuture<BundleStream> {
        let plan = PlannedBundle::new(&self.0, &request);
        let claim: ClaimFile = Arc::new(move |index| plan.claim(index));
        let items = self.0.storage.claimed_bundle(request, claim);
        // The claim on an item is dropped when the next one is requested: by then the item is cached.
        let claimed = items.map(|items| {
            stream::unfold((items, None), |(mut items, returned)| async move {
                drop(returned);
                let (item, claim) = items.next().await?;
                Some((Ok(item), (items, Some(claim))))
            })
            .boxed()
        });
        std::future::ready(claimed).boxed()
    }

    fn xattrs(&self, path: ItemPath) -> FilesFuture<Leased<XattrList>> {
        self.0.storage.xattrs(path)
    }

    fn usage(&self, path: ItemPath) -> FilesFuture<FilesystemUsage> {
        self.0.storage.usage(path)
    }
}

#[cfg(test)]
mod tests;
