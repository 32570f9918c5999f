//! Forces every situation in which the same bytes may be requested twice: storage answers reads one at a
//! time, when the test permits it.

use super::*;
use crate::cache::EvictionPolicy;
use crate::read::{FileRef, ReadAhead, ReadOptions, ReadPath, ReadSizes, ResidentData};
use crate::testing::{SOON, attributes, noise, path, unasked};
use crate::waiting::until;
use copperfs_overlay::{
    Attributes, BundleItem, Entry, FailureKind, FileKind, FilesFuture, ListRequest, Listed,
    Listing, RANGE_ALIGN, Version,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Semaphore;

const SIZE: usize = 3 * 1024 * 1024 + 5;

/// Files for which each read of a block, a range or a bundle's file is counted and waits for a permit.
struct Slow {
    files: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The reads begun, in order: name, start and end.
    begun: Mutex<Vec<(Vec<u8>, u64, u64)>>,
    ended: AtomicU64,
    permits: Semaphore,
    fails: AtomicU64,
}

impl Slow {
    fn new(files: impl IntoIterator<Item = (String, usize)>) -> Arc<Self> {
        let files = files.into_iter().map(|(name, len)| {
            let content = noise(&name, len as u64);
            (name.into_bytes(), content)
        });
        Arc::new(Self {
            files: files.collect(),
            begun: Mutex::default(),
            ended: AtomicU64::new(0),
            permits: Semaphore::new(0),
            fails: AtomicU64::new(0),
        })
    }

    fn attributes(&self, name: &[u8]) -> Attributes {
        let size = self.files.get(name).map_or(0, |bytes| bytes.len() as u64);
        let kind = match name.is_empty() {
            true => FileKind::Directory,
            false => FileKind::File,
        };
        attributes(kind, size, 7)
    }

    /// Reads the bytes from `start` to `end` after a permit.
    async fn slowly(&self, name: &[u8], start: u64, end: u64) -> Result<Bytes, Failure> {
        self.begun.lock().push((name.to_vec(), start, end));
        self.permits.acquire().await.unwrap().forget();
        self.ended.fetch_add(1, Ordering::SeqCst);
        let failing = self
            .fails
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        if failing.is_ok() {
            return Err(Failure::new(FailureKind::Io, "as told"));
        }
        let (start, end) = (
            usize::try_from(start).unwrap(),
            usize::try_from(end).unwrap(),
        );
        Ok(Bytes::copy_from_slice(&self.files[name][start..end]))
    }

    fn begun(&self) -> usize {
        self.begun.lock().len()
    }

    /// Fails if two reads overlapped.
    #[track_caller]
    fn read_nothing_twice(&self) {
        let begun = self.begun.lock().clone();
        for (at, (name, start, end)) in begun.iter().enumerate() {
            for (other, from, to) in &begun[..at] {
                let common = name == other && start < to && from < end;
                assert!(!common, "{} was read twice: {begun:?}", name.escape_ascii());
            }
        }
    }
}

struct SlowStorage(Arc<Slow>);

/// Listings contain all attributes, so no other metadata is requested.
impl Files for SlowStorage {
    fn list(&self, request: ListRequest) -> FilesFuture<Listed> {
        let entry = |name: &Vec<u8>| Entry {
            name: name.clone().into(),
            kind: FileKind::File,
            attributes: Some(self.0.attributes(name)),
        };
        let listing = Listing {
            directory: self.0.attributes(b""),
            entries: self.0.files.keys().map(entry).collect(),
            next: None,
        };
        std::future::ready(Ok(Listed::new(listing, request.known))).boxed()
    }

    unasked!(stat, xattrs, usage);

    fn read(&self, request: ReadRequest) -> FilesFuture<ReadStream> {
        let slow = Arc::clone(&self.0);
        let blocks = request.first_block..request.first_block + request.block_count;
        let parts = stream::iter(blocks).then(move |index| {
            let (slow, path, size) = (Arc::clone(&slow), request.path.clone(), request.size);
            async move {
                let (start, len) = (index * BLOCK_BYTES, ReadRequest::block_len(size, index));
                match slow.slowly(path.as_bytes(), start, start + len).await {
                    Ok(bytes) => {
                        let hash = ContentHash(*blake3::hash(&bytes).as_bytes());
                        vec![Ok(BlockPart::Bytes(bytes)), Ok(BlockPart::End(hash))]
                    }
                    Err(failure) => vec![Err(failure)],
                }
            }
        });
        std::future::ready(Ok(parts.flat_map(stream::iter).boxed())).boxed()
    }

    fn read_range(&self, request: RangeRequest) -> FilesFuture<RangeAnswer> {
        let slow = Arc::clone(&self.0);
        async move {
            let end = request.offset + request.len;
            let name = request.path.as_bytes();
            Ok(RangeAnswer::of(
                slow.slowly(name, request.offset, end).await?,
            ))
        }
        .boxed()
    }
}

impl Storage for SlowStorage {
    /// Reads one file at a time.
    fn claimed_bundle(
        &self,
        request: BundleRequest,
        claim: ClaimFile,
    ) -> Result<ClaimedStream, Failure> {
        let slow = Arc::clone(&self.0);
        let files = stream::iter(request.files.into_iter().enumerate());
        let items = files.then(move |(index, file)| {
            let (slow, claim) = (Arc::clone(&slow), Arc::clone(&claim));
            async move {
                let claim = claim(index)?;
                let bytes = slow.slowly(&file.name, 0, file.size).await.ok()?;
                let hash = ContentHash(*blake3::hash(&bytes).as_bytes());
                Some((BundleItem { index, bytes, hash }, claim))
            }
        });
        Ok(items.filter_map(std::future::ready).boxed())
    }

    fn timed_out(&self, path: &ItemPath, read_timeout: Duration) -> Failure {
        let detail = format!("{path}: no answer within {read_timeout:?}");
        Failure::new(FailureKind::Unavailable, detail)
    }
}

struct Cached(ResidentData);

impl BlockCache for Cached {
    fn block(&self, request: &ReadRequest, index: u64) -> Option<(Bytes, ContentHash)> {
        let file = FileRef::new(request.path.clone(), request.version, request.size, None);
        self.0.block(&file, index)
    }

    fn range(&self, request: &RangeRequest) -> Option<Bytes> {
        let file = FileRef::new(request.path.clone(), request.version, request.size, None);
        let range = request.offset..request.offset + request.len;
        self.0.range(&file, request.block(), &range)
    }
}

/// A root with slow storage, and read paths for two positions.
struct Root {
    slow: Arc<Slow>,
    views: Vec<ReadPath>,
}

impl Root {
    fn new(files: impl IntoIterator<Item = (String, usize)>, whole_file_max: u64) -> Self {
        let slow = Slow::new(files);
        let storage = CoalescedStorage::new(
            Arc::new(SlowStorage(Arc::clone(&slow))),
            Duration::from_secs(30),
        );
        let options = ReadOptions {
            policy: EvictionPolicy::S3Fifo,
            sizes: ReadSizes {
                data_bytes: 256 << 20,
                attributes_bytes: 1 << 20,
                listings_bytes: 1 << 20,
            },
            whole_file_max,
            bypass_above: None,
            stripes: true,
            bundles: true,
            listing_entries_max: 1000,
            lease: None,
            metadata_dir: None,
        };
        let sources = (0..2).map(|_| Arc::new(storage.clone()) as Arc<dyn Files>);
        let runtime = tokio::runtime::Handle::current();
        let views = ReadPath::views(&options, sources.collect(), None, &runtime);
        storage.set_cache(Arc::new(Cached(views[0].data().resident())));
        Self { slow, views }
    }

    /// A root with `count` small files `f00`, `f01` …
    fn small(count: usize) -> Self {
        Self::new((0..count).map(|i| (format!("f{i:02}"), 1000)), 8 << 20)
    }

    /// A root with one file of three blocks and five bytes.
    fn large(whole_file_max: u64) -> Self {
        Self::new([("large".to_owned(), SIZE)], whole_file_max)
    }

    fn file(&self, name: &str) -> FileRef {
        FileRef::of(path(name), &self.slow.attributes(name.as_bytes()))
    }

    /// Reads through one of the views in a task that checks the result.
    fn reader(
        &self,
        view: usize,
        name: &str,
        offset: u64,
        len: u32,
    ) -> tokio::task::JoinHandle<Result<(), Failure>> {
        let (path, file) = (self.views[view].clone(), self.file(name));
        let slow = Arc::clone(&self.slow);
        tokio::spawn(async move {
            let ahead = ReadAhead::default();
            let bytes = path.read(&file, &ahead, offset, len).await?.bytes;
            let start = usize::try_from(offset).unwrap();
            let content = &slow.files[file.path.as_bytes()][start..start + bytes.len()];
            assert!(bytes == content, "other bytes");
            Ok(())
        })
    }

    /// A child's request for a whole file, as a stream that the test polls.
    async fn child(&self, view: usize, name: &str) -> ReadStream {
        let file = self.file(name);
        let request = ReadRequest {
            block_count: file.size.div_ceil(BLOCK_BYTES),
            path: file.path,
            version: file.version,
            size: file.size,
            first_block: 0,
            content: None,
            through: false,
        };
        Files::read(&self.views[view], request).await.unwrap()
    }

    /// Starts a bundle with the small files of the directory, in the order of their names.
    async fn bring(&self, view: usize) {
        let names = self.slow.files.keys().cloned().map(Bytes::from);
        let names: Vec<Bytes> = names.collect();
        let brought = self.views[view].prefetch(&ItemPath::root(), &names).await;
        brought.unwrap();
    }

    /// Waits until storage has begun `count` reads, and checks that it begins no more.
    async fn has_begun(&self, count: usize) {
        let what = format!("{count} reads have begun");
        until(SOON, what, || self.slow.begun() >= count).await;
        self.settle().await;
        assert_eq!(self.slow.begun(), count);
    }

    /// Waits longer than all delays after which a request is repeated. The paused clock advances only while
    /// all tasks are idle.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_secs(3)).await;
    }

    fn release(&self, reads: usize) {
        self.slow.permits.add_permits(reads);
    }

    fn release_all(&self) {
        self.release(Semaphore::MAX_PERMITS / 2);
    }

    /// Checks that storage has read `count` files in the end, none of them twice, and that all are cached.
    async fn has_read_each_once(&self, count: usize) {
        self.settle().await;
        assert_eq!(self.slow.begun(), count);
        self.slow.read_nothing_twice();
        self.read_all_again().await;
    }

    async fn read_all_again(&self) {
        let before = self.slow.begun();
        for name in self.slow.files.keys() {
            let name = String::from_utf8(name.clone()).unwrap();
            for view in 0..self.views.len() {
                self.reader(view, &name, 0, 1000).await.unwrap().unwrap();
            }
        }
        assert_eq!(
            self.slow.begun(),
            before,
            "bytes that were read were not cached"
        );
    }
}

/// A file that a reader requests while a bundle reads it is read once for both.
#[tokio::test(start_paused = true)]
async fn a_file_that_a_bundle_is_reading_is_not_read_again() {
    let root = Root::small(8);
    root.bring(0).await;
    root.has_begun(1).await;
    let readers: Vec<_> = (0..2)
        .map(|view| root.reader(view, "f00", 0, 1000))
        .collect();
    // By now the readers' delay for the bundle has passed, and they request the files separately.
    root.has_begun(1).await;
    root.release(1);
    for reader in readers {
        reader.await.unwrap().unwrap();
    }
    root.release_all();
    root.has_read_each_once(8).await;
}

/// A file that a bundle has not begun is read for the reader, and the bundle leaves it out.
#[tokio::test(start_paused = true)]
async fn a_file_that_a_bundle_has_not_begun_is_read_for_its_reader() {
    let root = Root::small(8);
    root.bring(0).await;
    root.has_begun(1).await;
    let readers: Vec<_> = (0..2)
        .map(|view| root.reader(view, "f05", 0, 1000))
        .collect();
    // The bundle hangs in its first file; the reader's separate read is the second.
    root.has_begun(2).await;
    assert_eq!(root.slow.begun.lock()[1].0, b"f05");
    root.release_all();
    for reader in readers {
        reader.await.unwrap().unwrap();
    }
    root.has_read_each_once(8).await;
}

/// A bundle that hangs for long is not cancelled, and its file is not read a second time meanwhile.
#[tokio::test(start_paused = true)]
async fn a_file_in_a_hanging_bundle_is_not_read_again() {
    let root = Root::small(4);
    root.bring(0).await;
    root.has_begun(1).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let reader = root.reader(0, "f00", 0, 1000);
    let other = root.reader(1, "f03", 0, 1000);
    root.has_begun(2).await;
    root.release_all();
    reader.await.unwrap().unwrap();
    other.await.unwrap().unwrap();
    root.has_read_each_once(4).await;
}

/// A file that a single request has read is not read again for a bundle, even if it is no longer cached in memory: the
/// store may have it.
#[tokio::test(start_paused = true)]
async fn a_bundle_leaves_out_a_file_that_was_read_and_left_the_cache() {
    let root = Root::small(3);
    root.release_all();
    // Without a cache in memory.
    let storage = Arc::new(SlowStorage(Arc::clone(&root.slow)));
    let storage = CoalescedStorage::new(storage, SOON);
    let files = root.slow.files.keys().map(|name| {
        let attributes = root.slow.attributes(name);
        BundleFile {
            name: name.clone().into(),
            version: attributes.version,
            size: attributes.size,
            content: None,
        }
    });
    let request = BundleRequest {
        directory: ItemPath::root(),
        files: files.collect(),
    };
    let bundle = Files::bundle(&storage, request).await.unwrap();
    let file = root.file("f01");
    let request = ReadRequest {
        path: file.path,
        version: file.version,
        size: file.size,
        first_block: 0,
        block_count: 1,
        content: None,
        through: false,
    };
    let parts = Files::read(&storage, request).await.unwrap();
    assert_eq!(parts.collect::<Vec<_>>().await.len(), 2);
    let items = bundle.map(|item| item.unwrap().index);
    assert_eq!(items.collect::<Vec<_>>().await, [0, 2]);
    root.slow.read_nothing_twice();
    assert!(storage.0.planned.is_empty() && storage.0.claims.is_empty());
}

/// Two bundles with the same files, as two children of two trees request them.
#[tokio::test(start_paused = true)]
async fn two_bundles_share_their_files() {
    let root = Root::small(8);
    root.bring(0).await;
    root.bring(1).await;
    let readers: Vec<_> = (0..8)
        .map(|i| root.reader(i % 2, &format!("f{i:02}"), 0, 1000))
        .collect();
    for _ in 0..8 {
        root.settle().await;
        root.release(1);
    }
    for reader in readers {
        reader.await.unwrap().unwrap();
    }
    root.has_read_each_once(8).await;
}

/// Several positions of the root order, with readers and children: each block is read once.
#[tokio::test(start_paused = true)]
async fn a_block_is_read_once_for_all_positions() {
    let root = Root::large(8 << 20);
    let mut readers = vec![root.reader(0, "large", 0, 1000)];
    root.has_begun(1).await;
    // A reader of the file's end, before the first block has arrived.
    readers.push(root.reader(1, "large", 3 << 20, 5));
    let mut child = root.child(1, "large").await;
    let streaming = tokio::spawn(async move {
        let mut ends = 0;
        while let Some(part) = child.next().await {
            ends += usize::from(matches!(part.unwrap(), BlockPart::End(_)));
        }
        ends
    });
    for _ in 0..6 {
        root.settle().await;
        root.release(1);
    }
    for reader in readers {
        reader.await.unwrap().unwrap();
    }
    assert_eq!(streaming.await.unwrap(), 4);
    assert_eq!(root.slow.begun(), 4);
    root.slow.read_nothing_twice();
}

/// Ranges of one block read from two positions, and a range of a block that is being read.
#[tokio::test(start_paused = true)]
async fn a_range_is_read_once_for_all_positions() {
    let root = Root::large(0);
    let part = u32::try_from(4 * RANGE_ALIGN).unwrap();
    let at = 1 << 19;
    let readers: Vec<_> = (0..2)
        .map(|view| root.reader(view, "large", at, part))
        .collect();
    root.has_begun(1).await;
    root.release(1);
    for reader in readers {
        reader.await.unwrap().unwrap();
    }
    assert_eq!(root.slow.begun(), 1);

    // A whole block, and then a range of it.
    let block = root.reader(0, "large", 1 << 20, 1 << 20);
    root.has_begun(2).await;
    let within = root.reader(1, "large", (1 << 20) + 8192, part);
    root.has_begun(2).await;
    root.release(1);
    block.await.unwrap().unwrap();
    within.await.unwrap().unwrap();
    root.has_begun(2).await;
    root.slow.read_nothing_twice();
}

/// When readers and children disconnect, later ones find the bytes that were read for them.
#[tokio::test(start_paused = true)]
async fn reads_of_cancelled_requests_serve_later_ones() {
    let root = Root::large(8 << 20);
    let reader = root.reader(0, "large", 0, 1000);
    let child = root.child(1, "large").await;
    root.has_begun(1).await;
    reader.abort();
    drop(child);
    root.settle().await;
    let next = root.reader(1, "large", 0, 1000);
    let mut again = root.child(0, "large").await;
    root.release_all();
    next.await.unwrap().unwrap();
    while let Some(part) = again.next().await {
        part.unwrap();
    }
    assert_eq!(root.slow.begun(), 4);
    root.slow.read_nothing_twice();
}

/// A failed read does not prevent other requests from reading: each failure costs one read.
#[tokio::test(start_paused = true)]
async fn after_a_failure_the_next_request_reads() {
    let root = Root::small(1);
    root.slow.fails.store(1, Ordering::SeqCst);
    let first = root.reader(0, "f00", 0, 1000);
    root.has_begun(1).await;
    let second = root.reader(1, "f00", 0, 1000);
    root.has_begun(1).await;
    root.release(2);
    assert_eq!(first.await.unwrap().unwrap_err().kind, FailureKind::Io);
    second.await.unwrap().unwrap();
    assert_eq!(root.slow.begun(), 2);
    root.read_all_again().await;
}

/// A request that waits for another's read of hanging storage gets an error in time.
#[tokio::test(start_paused = true)]
async fn waiting_for_a_claim_times_out() {
    let root = Root::small(1);
    let leader = root.reader(0, "f00", 0, 1000);
    root.has_begun(1).await;
    let before = Instant::now();
    let failure = root.reader(1, "f00", 0, 1000).await.unwrap().unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unavailable);
    assert!(failure.detail.contains("no answer within"), "{failure}");
    assert!(before.elapsed() <= Duration::from_secs(31));
    root.release(1);
    leader.await.unwrap().unwrap();
}

/// Claims are taken and released, and leave no state behind.
#[tokio::test]
async fn dropped_claims_leave_nothing_behind() {
    let claims = Arc::new(BlockClaims::default());
    let block = BlockKey {
        path: ItemPath::root(),
        version: Version::from_data([1; 16]),
        index: 0,
    };
    let part = 0..4096;
    let claim = claims.try_claim(&block, Some(&part)).unwrap();
    assert!(claims.try_claim(&block, Some(&(4095..5000))).is_none());
    let beside = claims.try_claim(&block, Some(&(4096..5000))).unwrap();
    // Bytes that were read as ranges are read again with the block.
    let whole = claims.try_claim(&block, None).unwrap();
    assert!(claims.try_claim(&block, None).is_none());
    assert!(claims.try_claim(&block, Some(&(8192..9000))).is_none());
    drop((claim, beside));
    assert!(claims.try_claim(&block, None).is_none());
    let waiting = {
        let (claims, block) = (Arc::clone(&claims), block.clone());
        tokio::spawn(async move { drop(claims.claim(&block, None).await) })
    };
    tokio::task::yield_now().await;
    drop(whole);
    waiting.await.unwrap();
    assert!(claims.is_empty());
}
