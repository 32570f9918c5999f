//! A minimal cache like that of the product's read path: whole files, fetched once for all requesters and cached by
//! path; and the storage below it, which counts its requests.

use crate::support::whole_of;
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, ContentHash, Failure, FailureKind, Files, FilesystemUsage, ItemPath,
    ReadRequest, ReadStream, Upstream, XattrList,
};
use futures_util::future::{BoxFuture, Shared};
use futures_util::{FutureExt, StreamExt, stream};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

type Fetched = Result<Bytes, Failure>;
type Flights = Mutex<HashMap<ItemPath, Shared<BoxFuture<'static, Fetched>>>>;

/// File number `which`, and its size.
pub(super) fn item(which: usize) -> (ItemPath, u64) {
    let path = format!("lus/dir{}/file{which}", which % 5);
    let size = 1 + u64::try_from(which).unwrap() * 7919;
    (ItemPath::parse(path.as_bytes()).unwrap(), size)
}

/// The content of a file, different for each.
pub(super) fn pattern(path: &ItemPath, size: u64) -> Bytes {
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(path.as_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes.into()
}

/// See the module.
pub(super) struct Keeper {
    upstream: Upstream,
    kept: Mutex<HashMap<ItemPath, Bytes>>,
    /// One set for each attempt, so that no two nodes wait for each other.
    flights: Vec<Flights>,
}

impl Keeper {
    pub(super) fn new(upstream: &Upstream, trees: usize) -> Self {
        Self {
            upstream: upstream.clone(),
            kept: Mutex::default(),
            flights: (0..trees).map(|_| Mutex::default()).collect(),
        }
    }

    pub(super) fn view(self: &Arc<Self>, attempt: u8) -> Arc<dyn Files> {
        let keeper = Arc::clone(self);
        Arc::new(View { keeper, attempt })
    }

    pub(super) fn forget(&self, which: usize) {
        self.kept.lock().unwrap().remove(&item(which).0);
    }

    pub(super) async fn whole(self: &Arc<Self>, path: ItemPath, size: u64) -> Fetched {
        self.get(path, size, 0).await
    }

    async fn get(self: &Arc<Self>, path: ItemPath, size: u64, attempt: u8) -> Fetched {
        if let Some(kept) = self.kept.lock().unwrap().get(&path) {
            return Ok(kept.clone());
        }
        let flight = {
            let mut flights = self.flights[usize::from(attempt)].lock().unwrap();
            let flight = flights.entry(path.clone()).or_insert_with(|| {
                let keeper = Arc::clone(self);
                // A request that has begun is completed and cached, even if its requester is gone.
                let fetching = tokio::spawn(keeper.fetch(path, size, attempt));
                fetching.map(Result::unwrap).boxed().shared()
            });
            flight.clone()
        };
        flight.await
    }

    async fn fetch(self: Arc<Self>, path: ItemPath, size: u64, attempt: u8) -> Fetched {
        let from = self.upstream.at(attempt);
        let outcome = collect(&from, whole_of(path.clone(), size)).await;
        if let Ok(bytes) = &outcome {
            let mut kept = self.kept.lock().unwrap();
            kept.insert(path.clone(), bytes.clone());
        }
        self.flights[usize::from(attempt)]
            .lock()
            .unwrap()
            .remove(&path);
        outcome
    }
}

/// Assembles the bytes of a read from its parts.
pub(super) async fn collect(files: &dyn Files, request: ReadRequest) -> Fetched {
    let mut parts = files.read(request).await?;
    let (mut whole, mut block) = (Vec::new(), Vec::new());
    while let Some(part) = parts.next().await {
        match part? {
            BlockPart::Bytes(bytes) => block.extend_from_slice(&bytes),
            BlockPart::Restart => block.clear(),
            BlockPart::End(_) => whole.append(&mut block),
        }
    }
    assert!(block.is_empty(), "bytes without an end");
    Ok(whole.into())
}

/// The cache for requests at one attempt.
struct View {
    keeper: Arc<Keeper>,
    attempt: u8,
}

/// `bytes`, which begin at a block, as a stream of parts.
fn parts(bytes: &Bytes) -> ReadStream {
    let block = usize::try_from(BLOCK_BYTES).unwrap();
    let parts: Vec<_> = (0..bytes.len().div_ceil(block))
        .flat_map(|at| {
            let piece = bytes.slice(at * block..bytes.len().min((at + 1) * block));
            let hash = ContentHash(blake3::hash(&piece).into());
            [Ok(BlockPart::Bytes(piece)), Ok(BlockPart::End(hash))]
        })
        .collect();
    stream::iter(parts).boxed()
}

fn unsupported<T: Send + 'static>() -> BoxFuture<'static, Result<T, Failure>> {
    let failure = Failure::new(FailureKind::Unsupported, "not in this test");
    std::future::ready(Err(failure)).boxed()
}

/// Requests that this test does not make.
macro_rules! only_read {
    () => {
        fn list(
            &self,
            _request: copperfs_overlay::ListRequest,
        ) -> BoxFuture<'static, Result<copperfs_overlay::Listed, Failure>> {
            unsupported()
        }

        fn stat(
            &self,
            _request: copperfs_overlay::StatRequest,
        ) -> BoxFuture<
            'static,
            Result<copperfs_overlay::Leased<copperfs_overlay::StatAnswers>, Failure>,
        > {
            unsupported()
        }

        fn xattrs(
            &self,
            _path: ItemPath,
        ) -> BoxFuture<'static, Result<copperfs_overlay::Leased<XattrList>, Failure>> {
            unsupported()
        }

        fn usage(&self, _path: ItemPath) -> BoxFuture<'static, Result<FilesystemUsage, Failure>> {
            unsupported()
        }
    };
}

impl Files for View {
    only_read!();

    fn read(&self, request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>> {
        let (keeper, attempt) = (Arc::clone(&self.keeper), self.attempt);
        async move {
            Ok(parts(
                &keeper.get(request.path, request.size, attempt).await?,
            ))
        }
        .boxed()
    }
}

/// The requests to storage, over all roots.
#[derive(Default)]
pub(super) struct Reads {
    counts: Mutex<HashMap<String, u64>>,
}

impl Reads {
    pub(super) fn storage(self: Arc<Self>) -> Storage {
        Storage(self)
    }

    pub(super) fn counts(&self) -> HashMap<String, u64> {
        self.counts.lock().unwrap().clone()
    }
}

/// Every path is a file of the requested size.
pub(super) struct Storage(Arc<Reads>);

impl Files for Storage {
    only_read!();

    fn read(&self, request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>> {
        let mut counts = self.0.counts.lock().unwrap();
        *counts.entry(request.path.to_string()).or_default() += 1;
        drop(counts);
        std::future::ready(Ok(parts(&pattern(&request.path, request.size)))).boxed()
    }
}
