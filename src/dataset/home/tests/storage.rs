//! Storage in memory that counts reads, and delays or fails them on request.

use crate::testing::{noise, path, unasked};
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, ContentHash, Failure, FailureKind, Files, ItemPath, RangeAnswer,
    RangeRequest, ReadRequest, ReadStream, Version,
};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use tokio::sync::watch;

#[derive(Debug)]
pub(super) struct Storage {
    files: Mutex<BTreeMap<ItemPath, (Version, Bytes)>>,
    reads: AtomicU64,
    bytes_read: AtomicU64,
    /// Whether any read allowed nodes on the way to keep its blocks.
    kept: AtomicBool,
    short: AtomicBool,
    /// The failure of the next read.
    failure: Mutex<Option<FailureKind>>,
    held: watch::Sender<bool>,
}

fn content(name: &str, version: u8, len: u64) -> (Version, Bytes) {
    let bytes = noise([name.as_bytes(), &[version]].concat(), len);
    (Version::from_data([version; 16]), bytes.into())
}

impl Storage {
    pub(super) fn of(files: &[(&str, u64)]) -> Arc<Self> {
        let files = files
            .iter()
            .map(|&(name, len)| (path(name), content(name, 1, len)));
        Arc::new(Self {
            files: Mutex::new(files.collect()),
            reads: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            kept: AtomicBool::new(false),
            short: AtomicBool::new(false),
            failure: Mutex::default(),
            held: watch::channel(false).0,
        })
    }

    pub(super) fn files(self: &Arc<Self>) -> Arc<dyn Files> {
        Arc::new(Source(Arc::clone(self)))
    }

    pub(super) fn about(&self, path: &ItemPath) -> (Version, u64) {
        let files = self.files.lock();
        let (version, bytes) = &files[path];
        (*version, bytes.len() as u64)
    }

    pub(super) fn bytes(&self, path: &ItemPath, offset: u64, len: u64) -> Bytes {
        let files = self.files.lock();
        let from = usize::try_from(offset).unwrap();
        files[path]
            .1
            .slice(from..from + usize::try_from(len).unwrap())
    }

    pub(super) fn change(&self, name: &str, len: u64) {
        let changed = content(name, 2, len);
        self.files.lock().insert(path(name), changed);
    }

    /// Copies another file's bytes.
    pub(super) fn copy(&self, from: &str, to: &str) {
        let mut files = self.files.lock();
        let bytes = files[&path(from)].clone();
        files.insert(path(to), bytes);
    }

    pub(super) fn reads(&self) -> u64 {
        self.reads.load(SeqCst)
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read.load(SeqCst)
    }

    pub(super) fn only_through(&self) -> bool {
        !self.kept.load(SeqCst)
    }

    /// Delays reads until [`Storage::go_on`].
    pub(super) fn hold(&self) {
        self.held.send_replace(true);
    }

    pub(super) fn go_on(&self) {
        self.held.send_replace(false);
    }

    pub(super) fn fail(&self, kind: FailureKind) {
        *self.failure.lock() = Some(kind);
    }

    /// Omits the last byte of each block from now on.
    pub(super) fn shorten(&self) {
        self.short.store(true, SeqCst);
    }

    async fn begin(&self, path: &ItemPath, version: Version) -> Result<Bytes, Failure> {
        self.reads.fetch_add(1, SeqCst);
        let failure = self.failure.lock().take();
        let mut held = self.held.subscribe();
        held.wait_for(|held| !held).await.unwrap();
        if let Some(kind) = failure {
            return Err(Failure::new(kind, "made to fail"));
        }
        let files = self.files.lock();
        let Some((current, bytes)) = files.get(path) else {
            return Err(Failure::not_found(path));
        };
        if *current != version {
            return Err(Failure::new(FailureKind::Stale, "it changed"));
        }
        Ok(bytes.clone())
    }
}

struct Source(Arc<Storage>);

impl Files for Source {
    unasked!(list, stat, xattrs, usage);

    fn read(&self, request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>> {
        let storage = Arc::clone(&self.0);
        async move {
            let bytes = storage.begin(&request.path, request.version).await?;
            storage.kept.fetch_or(!request.through, SeqCst);
            let blocks = request.first_block..request.first_block + request.block_count;
            let mut parts = Vec::new();
            for index in blocks {
                let from = usize::try_from(index * BLOCK_BYTES).unwrap();
                let len = usize::try_from(ReadRequest::block_len(request.size, index)).unwrap();
                let block = bytes.slice(from..from + len);
                storage.bytes_read.fetch_add(block.len() as u64, SeqCst);
                let hash = ContentHash(*blake3::hash(&block).as_bytes());
                // Half of the block, a restart, and then all of it in two parts.
                parts.push(Ok(BlockPart::Bytes(block.slice(..len / 2))));
                parts.push(Ok(BlockPart::Restart));
                let short = usize::from(storage.short.load(SeqCst));
                parts.push(Ok(BlockPart::Bytes(block.slice(..len / 3))));
                parts.push(Ok(BlockPart::Bytes(block.slice(len / 3..len - short))));
                parts.push(Ok(BlockPart::End(hash)));
            }
            Ok(stream::iter(parts).boxed())
        }
        .boxed()
    }

    fn read_range(
        &self,
        request: RangeRequest,
    ) -> BoxFuture<'static, Result<RangeAnswer, Failure>> {
        let storage = Arc::clone(&self.0);
        async move {
            assert_eq!(request.fault(), None);
            let bytes = storage.begin(&request.path, request.version).await?;
            storage.bytes_read.fetch_add(request.len, SeqCst);
            let from = usize::try_from(request.offset).unwrap();
            let to = from + usize::try_from(request.len).unwrap();
            Ok(RangeAnswer::of(bytes.slice(from..to)))
        }
        .boxed()
    }
}
