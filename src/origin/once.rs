//! Reads each block from storage once, however many requests ask for it, and by whatever path.
//!
//! Purpose: wraps a root's storage. A bundle, a single request that does not wait for the bundle, the read
//! paths of several positions in the root order, and a request that bypasses the tree may all ask for the
//! same block. Each request takes the block's *turn* before it reads. With the turn, it first looks in the
//! node's caches, so that a block that another request has read meanwhile is not read again. A turn ends
//! after its bytes have been passed on and cached: the turn of a stream ends when its consumer asks for the
//! next part, the turn of a range when its bytes are dropped.
//!
//! A single request takes over a file that a bundle has not begun; the bundle leaves that file out.
//!
//! Invariants
//! - A request that holds turns waits only for storage, so no two requests wait for each other. A request
//!   takes further turns only if they are free.
//! - A turn ends with its holder, even if the holder is cancelled; the waiting requests then continue.
//! - No request waits longer than `patience` for a turn and the answer together.
//!
//! What it does not do: it caches nothing. It does not cover requests that pass *through* the nodes on the
//! way without being cached (homes of datasets have their own flights). Ranges are not combined into
//! blocks: bytes that were read as ranges are read again with their block.

use super::turns::{Turn, TurnStream, Turns};
use super::under_way::{Held, UnderWay, Unit};
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, BundleFile, BundleRequest, BundleStream, ContentHash, Cursor, Failure,
    Files, FilesystemUsage, ItemPath, Leased, Listed, Listing, ListingDigest, RangeAnswer,
    RangeRequest, ReadRequest, ReadStream, StatAnswers, XattrList,
};
use dashmap::DashMap;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Storage, as [`Once`] uses it.
pub trait Storage: Files {
    /// Like [`Files::bundle`], with a turn for each file.
    ///
    /// # Errors
    /// The directory cannot be reached.
    fn bundle_in_turn(
        &self,
        request: BundleRequest,
        turns: Arc<dyn Turns>,
    ) -> Result<TurnStream, Failure>;

    /// The failure of a read of `path` that got no answer within `patience`. It counts as a fault of that
    /// storage.
    fn too_slow(&self, path: &ItemPath, patience: Duration) -> Failure;
}

/// The node's in-memory cache of data from storage.
pub trait Kept: Send + Sync + 'static {
    /// Block `index` of the requested file, and its hash.
    fn block(&self, request: &ReadRequest, index: u64) -> Option<(Bytes, ContentHash)>;

    /// All bytes of a range.
    fn range(&self, request: &RangeRequest) -> Option<Bytes>;
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Once(Arc<Inner>);

struct Inner {
    storage: Arc<dyn Storage>,
    kept: OnceLock<Arc<dyn Kept>>,
    under_way: Arc<UnderWay>,
    /// Files that a bundle has not begun, with the number of that bundle. Bounded by the running bundles of
    /// the read path.
    planned: DashMap<Unit, u64>,
    plans: AtomicU64,
    patience: Duration,
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once")
            .field("under_way", &self.0.under_way)
            .field("planned", &self.0.planned.len())
            .finish_non_exhaustive()
    }
}

impl Once {
    /// Wraps `storage`. A request waits for another's read for at most `patience`.
    #[must_use]
    pub fn new(storage: Arc<dyn Storage>, patience: Duration) -> Self {
        Self(Arc::new(Inner {
            storage,
            kept: OnceLock::new(),
            under_way: Arc::default(),
            planned: DashMap::new(),
            plans: AtomicU64::new(0),
            patience,
        }))
    }

    /// Sets the cache in which requests look before they read.
    pub fn connect(&self, kept: Arc<dyn Kept>) {
        if self.0.kept.set(kept).is_err() {
            tracing::warn!("storage was connected twice");
        }
    }
}

impl Inner {
    fn kept(&self, request: &ReadRequest, index: u64) -> Option<(Bytes, ContentHash)> {
        self.kept.get()?.block(request, index)
    }

    /// Takes the turn of `unit`, or of `range` of it. If the request had to wait, also returns the deadline
    /// for its answer, which includes that wait.
    async fn turn(
        &self,
        unit: &Unit,
        range: Option<&std::ops::Range<u64>>,
    ) -> Result<(Held, Option<Instant>), Failure> {
        if let Some(held) = self.under_way.take(unit, range) {
            return Ok((held, None));
        }
        let deadline = Instant::now() + self.patience;
        match timeout_at(deadline, self.under_way.wait(unit, range)).await {
            Ok(held) => Ok((held, Some(deadline))),
            Err(_elapsed) => Err(self.too_slow(&unit.path)),
        }
    }

    fn too_slow(&self, path: &ItemPath) -> Failure {
        self.storage.too_slow(path, self.patience)
    }

    /// The output of `answer`, or a failure at `deadline` if there is one.
    async fn by<T>(
        &self,
        deadline: Option<Instant>,
        path: &ItemPath,
        answer: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        match deadline {
            None => answer.await,
            Some(deadline) => match timeout_at(deadline, answer).await {
                Ok(answer) => answer,
                Err(_elapsed) => Err(self.too_slow(path)),
            },
        }
    }

    async fn read_range(&self, request: RangeRequest) -> Result<RangeAnswer, Failure> {
        if request.fault().is_some() {
            return self.storage.read_range(request).await;
        }
        let unit = Unit {
            path: request.path.clone(),
            version: request.version,
            index: request.block(),
        };
        let range = request.offset..request.offset + request.len;
        let (held, deadline) = self.turn(&unit, Some(&range)).await?;
        if let Some(bytes) = self.kept.get().and_then(|kept| kept.range(&request)) {
            return Ok(RangeAnswer::of(bytes));
        }
        let reading = self.storage.read_range(request);
        let mut answer = self.by(deadline, &unit.path, reading).await?;
        let bytes = answer.bytes;
        answer.bytes = Bytes::from_owner(Guarded { bytes, _held: held });
        Ok(answer)
    }
}

/// Bytes that hold their turn until they are dropped.
struct Guarded {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Guarded {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A run of blocks for one request: stretches that it reads itself, and blocks that others have read before
/// its turn.
struct Reading {
    once: Arc<Inner>,
    /// The blocks that are left; the first one is the next to return.
    request: ReadRequest,
    /// The current stream from storage, and the turns of the blocks that it brings.
    passing: Option<(ReadStream, VecDeque<Held>)>,
    /// The turn of the last block, held until the next part is requested.
    handed_on: Option<Held>,
    /// The hash of a cached block whose bytes were returned; it is returned next.
    due: Option<ContentHash>,
    failed: bool,
}

impl Reading {
    async fn next(&mut self) -> Option<Result<BlockPart, Failure>> {
        if self.failed {
            return None;
        }
        self.handed_on = None;
        if let Some(hash) = self.due.take() {
            self.pass_block();
            return Some(Ok(BlockPart::End(hash)));
        }
        if self.passing.is_none() {
            if self.request.block_count == 0 {
                return None;
            }
            match self.begin().await {
                Ok(None) => {}
                Ok(Some(part)) => return Some(Ok(part)),
                Err(failure) => return self.fail(failure),
            }
        }
        let (parts, turns) = self.passing.as_mut()?;
        match parts.next().await {
            Some(Ok(BlockPart::End(hash))) => {
                self.handed_on = turns.pop_front();
                if turns.is_empty() {
                    self.passing = None;
                }
                self.pass_block();
                Some(Ok(BlockPart::End(hash)))
            }
            Some(Err(failure)) => self.fail(failure),
            part => part,
        }
    }

    fn pass_block(&mut self) {
        self.request.first_block += 1;
        self.request.block_count -= 1;
    }

    fn fail<T>(&mut self, failure: Failure) -> Option<Result<T, Failure>> {
        self.failed = true;
        self.passing = None;
        Some(Err(failure))
    }

    fn unit(&self, index: u64) -> Unit {
        Unit {
            path: self.request.path.clone(),
            version: self.request.version,
            index,
        }
    }

    /// Takes the next block's turn. Returns its bytes if they are cached by then. Otherwise requests it
    /// from storage, together with the following blocks that are free and not cached.
    async fn begin(&mut self) -> Result<Option<BlockPart>, Failure> {
        let once = Arc::clone(&self.once);
        let first = self.request.first_block;
        let unit = self.unit(first);
        if first == 0 {
            once.planned.remove(&unit);
        }
        let (held, deadline) = once.turn(&unit, None).await?;
        if let Some((bytes, hash)) = once.kept(&self.request, first) {
            self.due = Some(hash);
            return Ok(Some(BlockPart::Bytes(bytes)));
        }
        let mut turns = VecDeque::from([held]);
        for index in first + 1..first + self.request.block_count {
            let Some(held) = once.under_way.take(&self.unit(index), None) else {
                break;
            };
            if once.kept(&self.request, index).is_some() {
                break;
            }
            turns.push_back(held);
        }
        let stretch = ReadRequest {
            block_count: turns.len() as u64,
            ..self.request.clone()
        };
        let reading = once.storage.read(stretch);
        let parts = once.by(deadline, &self.request.path, reading).await?;
        self.passing = Some((parts, turns));
        Ok(None)
    }
}

/// The files of one bundle that it still has to read.
struct Plan {
    once: Arc<Inner>,
    number: u64,
    /// `None` for an invalid name.
    files: Vec<Option<ReadRequest>>,
}

impl Plan {
    fn new(once: &Arc<Inner>, request: &BundleRequest) -> Self {
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
        let number = once.plans.fetch_add(1, Ordering::Relaxed);
        for file in files.iter().flatten() {
            once.planned.insert(unit_of(file), number);
        }
        let once = Arc::clone(once);
        Self {
            once,
            number,
            files,
        }
    }

    /// Removes `file` from the plan. Returns whether the plan still contained it.
    fn take_out(&self, file: &ReadRequest) -> bool {
        let mine = |_: &Unit, number: &u64| *number == self.number;
        self.once.planned.remove_if(&unit_of(file), mine).is_some()
    }
}

impl Turns for Plan {
    fn begin(&self, index: usize) -> Option<Turn> {
        let file = self.files.get(index)?.as_ref()?;
        if !self.take_out(file) {
            return None;
        }
        let held = self.once.under_way.take(&unit_of(file), None)?;
        match self.once.kept(file, 0) {
            Some(_here) => None,
            None => Some(held.into()),
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        for file in self.files.iter().flatten() {
            self.take_out(file);
        }
    }
}

fn unit_of(file: &ReadRequest) -> Unit {
    Unit {
        path: file.path.clone(),
        version: file.version,
        index: file.first_block,
    }
}

impl Files for Once {
    fn list(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'static, Result<Listing, Failure>> {
        self.0.storage.list(path, cursor, limit)
    }

    fn list_parts(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
        known: Option<ListingDigest>,
    ) -> BoxFuture<'static, Result<Listed, Failure>> {
        self.0.storage.list_parts(path, cursor, limit, known)
    }

    fn stat(
        &self,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> BoxFuture<'static, Result<Leased<StatAnswers>, Failure>> {
        self.0.storage.stat(parent, names)
    }

    fn read(&self, mut request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>> {
        let blocks = request.size.div_ceil(BLOCK_BYTES);
        // A file with an unsettled version must be read in one piece.
        let in_one_piece = !request.version.is_settled() && blocks > 1;
        if request.through || in_one_piece || request.first_block >= blocks {
            return self.0.storage.read(request);
        }
        request.block_count = request.block_count.min(blocks - request.first_block);
        let mut reading = Reading {
            once: Arc::clone(&self.0),
            request,
            passing: None,
            handed_on: None,
            due: None,
            failed: false,
        };
        async move {
            // The first block is begun here, so that a refusal by storage is returned before the stream
            // starts.
            let first = reading.begin().await?;
            let rest = stream::unfold(reading, |mut reading| async move {
                let part = reading.next().await?;
                Some((part, reading))
            });
            Ok(match first {
                Some(kept) => stream::iter([Ok(kept)]).chain(rest).boxed(),
                None => rest.boxed(),
            })
        }
        .boxed()
    }

    fn forget(&self, path: &ItemPath) {
        self.0.storage.forget(path);
    }

    fn read_range(
        &self,
        request: RangeRequest,
    ) -> BoxFuture<'static, Result<RangeAnswer, Failure>> {
        let inner = Arc::clone(&self.0);
        async move { inner.read_range(request).await }.boxed()
    }

    fn find(&self, hash: ContentHash, len: u64) -> BoxFuture<'static, Result<Bytes, Failure>> {
        self.0.storage.find(hash, len)
    }

    fn bundle(&self, request: BundleRequest) -> BoxFuture<'static, Result<BundleStream, Failure>> {
        let plan: Arc<dyn Turns> = Arc::new(Plan::new(&self.0, &request));
        let items = self.0.storage.bundle_in_turn(request, plan);
        // The turn of an item ends when the next one is requested: by then the item is cached.
        let in_turn = items.map(|items| {
            stream::unfold((items, None), |(mut items, handed_on)| async move {
                drop(handed_on);
                let (item, turn) = items.next().await?;
                Some((Ok(item), (items, Some(turn))))
            })
            .boxed()
        });
        std::future::ready(in_turn).boxed()
    }

    fn xattrs(&self, path: ItemPath) -> BoxFuture<'static, Result<Leased<XattrList>, Failure>> {
        self.0.storage.xattrs(path)
    }

    fn usage(&self, path: ItemPath) -> BoxFuture<'static, Result<FilesystemUsage, Failure>> {
        self.0.storage.usage(path)
    }
}

#[cfg(test)]
mod tests;
