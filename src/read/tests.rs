//! The read path in front of a source in memory that counts, delays, corrupts and fails on request.

use super::*;
use crate::testing::{SOON, attributes, noise, unasked};
use crate::waiting::until;
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BLOCK_BYTES, BlockPart, BundleItem, BundleRequest, BundleStream, ContentHash,
    Cursor, Entry, FailureKind, FileKind, FilesFuture, FilesystemUsage, Leased, ListRequest,
    Listed, Listing, RangeAnswer, RangeRequest, ReadRequest, ReadStream, Standing, StatAnswers,
    StatRequest, Version, XattrList,
};
use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Semaphore;

/// Content, and which state of the file it is.
type Content = (Vec<u8>, u8);

struct Source {
    files: Mutex<BTreeMap<Vec<u8>, Content>>,
    /// Attributes come along with listings.
    eager: bool,
    listable: bool,
    /// The content hashes of these files, as from an index, in state 0.
    indexed: BTreeMap<Vec<u8>, ContentHash>,
    reads: Mutex<Vec<ReadRequest>>,
    ranges: Mutex<Vec<RangeRequest>>,
    bundles: Mutex<Vec<BundleRequest>>,
    /// Files after which a bundle breaks off, or hangs.
    bundle_breaks: AtomicU64,
    bundle_hangs: AtomicU64,
    /// As through other nodes, which still use a look at a young file: only a question that denies that look
    /// is answered by storage.
    young: bool,
    /// Requests of one block do not return.
    single_hangs: AtomicBool,
    stats: Mutex<Vec<Vec<Bytes>>>,
    lists: AtomicU64,
    taken_back: AtomicU64,
    usages: AtomicU64,
    /// One permit lets one chunk or one listing through.
    gate: Semaphore,
    /// Streams that have returned some of their blocks and not all, and the maximum number of them at a
    /// time.
    begun: Arc<AtomicU64>,
    begun_most: Arc<AtomicU64>,
}

const OPEN_GATE: usize = 1 << 20;

/// Names of one length have the same content.
fn content(name: &str, len: usize) -> Vec<u8> {
    noise(name.len().to_le_bytes(), len as u64)
}

impl Source {
    fn new(files: &[(&str, usize)]) -> Self {
        let files = files
            .iter()
            .map(|&(name, len)| (name.as_bytes().to_vec(), (content(name, len), 0)))
            .collect();
        Self {
            files: Mutex::new(files),
            eager: true,
            listable: true,
            indexed: BTreeMap::new(),
            reads: Mutex::default(),
            ranges: Mutex::default(),
            bundles: Mutex::default(),
            bundle_breaks: AtomicU64::new(u64::MAX),
            bundle_hangs: AtomicU64::new(u64::MAX),
            young: false,
            single_hangs: AtomicBool::new(false),
            stats: Mutex::default(),
            lists: AtomicU64::new(0),
            taken_back: AtomicU64::new(0),
            usages: AtomicU64::new(0),
            gate: Semaphore::new(OPEN_GATE),
            begun: Arc::default(),
            begun_most: Arc::default(),
        }
    }

    fn attributes(&self, name: &[u8]) -> Result<Attributes, Failure> {
        let files = self.files.lock();
        let (kind, size, state) = match files.get(name) {
            _ if name.is_empty() => (FileKind::Directory, 0, 0),
            Some((content, state)) => (FileKind::File, content.len() as u64, *state),
            None => return Err(Failure::new(FailureKind::NotFound, "no such file")),
        };
        let mut attributes = attributes(kind, size, state);
        attributes.content = self.indexed.get(name).copied();
        if self.young {
            attributes.version = attributes.version.standing_as(Standing::Unsettled(1));
        }
        Ok(attributes)
    }

    fn change(&self, name: &str, content: Vec<u8>) {
        let mut files = self.files.lock();
        let state = files[name.as_bytes()].1 + 1;
        files.insert(name.as_bytes().to_vec(), (content, state));
    }

    /// Blocks that were asked for, in all reads.
    fn blocks_read(&self) -> u64 {
        let reads = self.reads.lock();
        reads.iter().map(|read| read.block_count).sum()
    }

    fn content(&self, name: &str) -> Vec<u8> {
        self.files.lock()[name.as_bytes()].0.clone()
    }
}

struct Shared(Arc<Source>);

impl Files for Shared {
    fn list(&self, request: ListRequest) -> FilesFuture<Listed> {
        let ListRequest {
            path,
            cursor,
            limit,
            known,
        } = request;
        let source = Arc::clone(&self.0);
        async move {
            source.lists.fetch_add(1, Ordering::Relaxed);
            let _permit = source.gate.acquire().await.unwrap();
            if !path.is_root() {
                return Err(Failure::not_found(&path));
            }
            if !source.listable {
                return Err(Failure::new(
                    FailureKind::PermissionDenied,
                    "may not be listed",
                ));
            }
            let names: Vec<Vec<u8>> = source.files.lock().keys().cloned().collect();
            let start = cursor.map_or(0, |at| std::str::from_utf8(&at.0).unwrap().parse().unwrap());
            let end = names.len().min(start + limit);
            let entries = names[start..end].iter().map(|name| Entry {
                name: name.clone().into(),
                kind: FileKind::File,
                attributes: source.eager.then(|| source.attributes(name).unwrap()),
            });
            let listing = Listing {
                directory: source.attributes(b"").unwrap(),
                entries: entries.collect(),
                next: (end < names.len()).then(|| Cursor(end.to_string().into())),
            };
            Ok(Listed::new(listing, known))
        }
        .boxed()
    }

    fn stat(&self, request: StatRequest) -> FilesFuture<Leased<StatAnswers>> {
        let StatRequest { names, denied, .. } = request;
        let source = Arc::clone(&self.0);
        async move {
            let mut answers: StatAnswers =
                names.iter().map(|name| source.attributes(name)).collect();
            source.stats.lock().push(names);
            for attributes in answers.iter_mut().flatten() {
                if Some(attributes.version) == denied {
                    attributes.version = attributes.version.standing_as(Standing::Lasting);
                }
            }
            Ok(Leased::lasting(answers))
        }
        .boxed()
    }

    fn read(&self, request: ReadRequest) -> FilesFuture<ReadStream> {
        let source = Arc::clone(&self.0);
        source.reads.lock().push(request.clone());
        async move {
            if request.block_count == 1 && source.single_hangs.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if source.attributes(request.path.as_bytes())?.version != request.version {
                return Err(Failure::new(FailureKind::Stale, "changed"));
            }
            let content = source.files.lock()[request.path.as_bytes()].0.clone();
            let mut parts = Vec::new();
            for index in request.first_block..request.first_block + request.block_count {
                let start = usize::try_from(index * BLOCK_BYTES).unwrap();
                let end = content
                    .len()
                    .min(start + usize::try_from(BLOCK_BYTES).unwrap());
                let block = content[start..end].to_vec();
                let hash = ContentHash(*blake3::hash(&block).as_bytes());
                let taken_back =
                    source
                        .taken_back
                        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                            left.checked_sub(1)
                        });
                if taken_back.is_ok() {
                    let wrong: Vec<u8> = block.iter().map(|byte| byte ^ 1).collect();
                    for chunk in wrong[..wrong.len() - 1].chunks(100_000) {
                        parts.push(Ok(BlockPart::Bytes(Bytes::copy_from_slice(chunk))));
                    }
                    parts.push(Ok(BlockPart::Restart));
                }
                for chunk in block.chunks(100_000) {
                    parts.push(Ok(BlockPart::Bytes(Bytes::copy_from_slice(chunk))));
                }
                parts.push(Ok(BlockPart::End(hash)));
            }
            let last = parts.len() - 1;
            let gated = stream::iter(parts).enumerate().then(move |(nth, part)| {
                let source = Arc::clone(&source);
                async move {
                    // As from storage, the blocks do not come all at once.
                    tokio::task::yield_now().await;
                    if nth == 0 {
                        let begun = source.begun.fetch_add(1, Ordering::Relaxed) + 1;
                        source.begun_most.fetch_max(begun, Ordering::Relaxed);
                    }
                    if nth == last {
                        source.begun.fetch_sub(1, Ordering::Relaxed);
                    }
                    let permit = source.gate.acquire().await.unwrap();
                    if source.gate.available_permits() < OPEN_GATE / 2 {
                        permit.forget();
                    }
                    part
                }
            });
            Ok(gated.boxed())
        }
        .boxed()
    }

    fn read_range(&self, request: RangeRequest) -> FilesFuture<RangeAnswer> {
        let source = Arc::clone(&self.0);
        assert_eq!(request.fault(), None);
        source.ranges.lock().push(request.clone());
        async move {
            let _permit = source.gate.acquire().await.unwrap();
            if source.attributes(request.path.as_bytes())?.version != request.version {
                return Err(Failure::new(FailureKind::Stale, "changed"));
            }
            let files = source.files.lock();
            let start = usize::try_from(request.offset).unwrap();
            let end = start + usize::try_from(request.len).unwrap();
            let bytes = &files[request.path.as_bytes()].0[start..end];
            Ok(RangeAnswer::of(Bytes::copy_from_slice(bytes)))
        }
        .boxed()
    }

    fn bundle(&self, request: BundleRequest) -> FilesFuture<BundleStream> {
        let source = Arc::clone(&self.0);
        source.bundles.lock().push(request.clone());
        let items =
            stream::iter(request.files.into_iter().enumerate()).then(move |(index, file)| {
                let source = Arc::clone(&source);
                async move {
                    let permit = source.gate.acquire().await.unwrap();
                    if source.gate.available_permits() < OPEN_GATE / 2 {
                        permit.forget();
                    }
                    if index as u64 >= source.bundle_breaks.load(Ordering::Relaxed) {
                        return Some(Err(Failure::new(FailureKind::Unavailable, "cut")));
                    }
                    if index as u64 >= source.bundle_hangs.load(Ordering::Relaxed) {
                        std::future::pending::<()>().await;
                    }
                    let state = Version::from_data([source.files.lock()[&file.name[..]].1; 16]);
                    if state != file.version {
                        return None;
                    }
                    let bytes = Bytes::from(source.files.lock()[&file.name[..]].0.clone());
                    let hash = ContentHash(*blake3::hash(&bytes).as_bytes());
                    Some(Ok(BundleItem { index, bytes, hash }))
                }
            });
        let items = items.filter_map(std::future::ready).boxed();
        std::future::ready(Ok(items)).boxed()
    }

    fn xattrs(&self, _path: ItemPath) -> FilesFuture<Leased<XattrList>> {
        let list = vec![("user.a".into(), "1".into())];
        std::future::ready(Ok(Leased::lasting(list))).boxed()
    }

    fn usage(&self, _path: ItemPath) -> FilesFuture<FilesystemUsage> {
        let source = Arc::clone(&self.0);
        async move {
            source.usages.fetch_add(1, Ordering::Relaxed);
            let _permit = source.gate.acquire().await.unwrap();
            Ok(FilesystemUsage::default())
        }
        .boxed()
    }
}

/// Gives the tasks of this test's only thread their turns until all of them wait.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// The sizes of [`options`], but for the memory for file data.
fn with_data(data_bytes: u64) -> ReadSizes {
    ReadSizes {
        data_bytes,
        ..options().sizes
    }
}

fn options() -> ReadOptions {
    ReadOptions {
        policy: EvictionPolicy::S3Fifo,
        sizes: ReadSizes {
            data_bytes: 256 << 20,
            attributes_bytes: 1 << 20,
            listings_bytes: 1 << 20,
        },
        whole_file_max: 8 << 20,
        bypass_above: None,
        stripes: false,
        bundles: true,
        listing_entries_max: 1000,
        lease: None,
        metadata_dir: None,
    }
}

/// A read path in front of one source.
fn alone(options: &ReadOptions, source: Arc<dyn Files>) -> ReadPath {
    let runtime = tokio::runtime::Handle::current();
    ReadPath::views(options, vec![source], None, &runtime).swap_remove(0)
}

#[allow(clippy::needless_pass_by_value, reason = "tests make them on the spot")]
fn read_path(source: Source, options: ReadOptions) -> (ReadPath, Arc<Source>) {
    let source = Arc::new(source);
    let files = Arc::new(Shared(Arc::clone(&source)));
    (alone(&options, files), source)
}

/// Bytes alone, without the parts from which they were cut.
impl ReadPath {
    async fn bytes(
        &self,
        file: &FileRef,
        ahead: &ReadAhead,
        offset: u64,
        size: u32,
    ) -> Result<Bytes, Failure> {
        Ok(self.read(file, ahead, offset, size).await?.bytes)
    }

    fn try_bytes(&self, file: &FileRef, offset: u64, size: u32) -> Option<Bytes> {
        Some(self.data().try_read(file, offset, size)?.bytes)
    }

    async fn find_name(&self, parent: &ItemPath, name: &[u8]) -> Result<LookupOutcome, Failure> {
        Ok(self.metadata().look_up(parent, name).await?.value)
    }
}

async fn file(path: &ReadPath, name: &str) -> FileRef {
    let LookupOutcome::Attributes(found) = path
        .find_name(&ItemPath::root(), name.as_bytes())
        .await
        .unwrap()
    else {
        panic!("{name} not found");
    };
    FileRef::of(ItemPath::parse(name.as_bytes()).unwrap(), &found)
}

fn small(len: u64) -> u32 {
    u32::try_from(len).unwrap()
}

#[tokio::test]
async fn a_small_file_is_fetched_whole_by_one_request_and_read_from_memory_afterwards() {
    let (path, source) = read_path(Source::new(&[("f", 3_500_000)]), options());
    let f = file(&path, "f").await;
    assert_eq!(path.try_bytes(&f, 0, 10), None);
    let first = path
        .bytes(&f, &ReadAhead::default(), 0, 1000)
        .await
        .unwrap();
    assert_eq!(first, &source.content("f")[..1000]);
    // Across a block's edge, to the end, and beyond it.
    let middle = path
        .bytes(&f, &ReadAhead::default(), BLOCK_BYTES - 5, 10)
        .await
        .unwrap();
    assert_eq!(middle, &source.content("f")[1_048_571..1_048_581]);
    let last = path
        .bytes(&f, &ReadAhead::default(), 3_499_000, 5000)
        .await
        .unwrap();
    assert_eq!(last, &source.content("f")[3_499_000..]);
    assert_eq!(path.try_bytes(&f, 3_500_000, 10), Some(Bytes::new()));
    assert_eq!(
        path.try_bytes(&f, 0, 1000).as_deref(),
        Some(&source.content("f")[..1000])
    );
    assert_eq!(source.reads.lock().len(), 1);
    assert_eq!(path.stats().data.bytes, 3_500_000);
}

#[tokio::test]
async fn with_several_roots_each_stripe_is_asked_for_by_itself() {
    let options = ReadOptions {
        stripes: true,
        ..options()
    };
    let (path, source) = read_path(Source::new(&[("f", 9_500_000)]), options);
    let f = file(&path, "f").await;
    let bytes = path
        .bytes(&f, &ReadAhead::default(), 0, 9_500_000)
        .await
        .unwrap();
    assert_eq!(bytes, source.content("f"));
    let mut asked: Vec<_> = source
        .reads
        .lock()
        .iter()
        .map(|read| (read.first_block, read.block_count))
        .collect();
    asked.sort_unstable();
    assert_eq!(asked, [(0, 4), (4, 4), (8, 2)]);
}

#[tokio::test]
async fn many_readers_cost_one_request() {
    let (path, source) = read_path(Source::new(&[("f", 2_000_000)]), options());
    let f = file(&path, "f").await;
    let readers = (0..50_u64).map(|i| {
        let (path, f) = (path.clone(), f.clone());
        tokio::spawn(async move { path.bytes(&f, &ReadAhead::default(), i * 30_000, 40).await })
    });
    for (i, reader) in readers.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(
            reader.await.unwrap().unwrap(),
            &source.content("f")[i * 30_000..i * 30_000 + 40]
        );
    }
    assert_eq!(source.reads.lock().len(), 1);
}

#[tokio::test]
async fn bytes_before_a_restart_are_never_returned() {
    let source = Source::new(&[("f", 2_500_000)]);
    source.taken_back.store(2, Ordering::Relaxed);
    let (path, source) = read_path(source, options());
    let f = file(&path, "f").await;
    let bytes = path
        .bytes(&f, &ReadAhead::default(), 0, 2_500_000)
        .await
        .unwrap();
    assert_eq!(bytes, source.content("f"));
    assert_eq!(source.reads.lock().len(), 1);
}

#[tokio::test]
async fn a_changed_file_is_stale_under_its_old_version_and_new_after_a_look_up() {
    let (path, source) = read_path(Source::new(&[("f", 10)]), options());
    let old = file(&path, "f").await;
    source.change("f", b"something else".to_vec());
    let failure = path
        .bytes(&old, &ReadAhead::default(), 0, 10)
        .await
        .unwrap_err();
    assert_eq!(failure.kind, FailureKind::Stale);
    let new = file(&path, "f").await;
    assert_ne!(new.id(), old.id());
    let bytes = path
        .bytes(&new, &ReadAhead::default(), 0, 100)
        .await
        .unwrap();
    assert_eq!(&bytes[..], b"something else");
}

#[tokio::test]
async fn bytes_that_are_here_outlive_a_change_under_their_own_version() {
    let (path, source) = read_path(Source::new(&[("f", 10)]), options());
    let old = file(&path, "f").await;
    let before = path
        .bytes(&old, &ReadAhead::default(), 0, 10)
        .await
        .unwrap();
    source.change("f", b"something else".to_vec());
    assert_eq!(path.try_bytes(&old, 0, 10), Some(before));
}

#[tokio::test]
async fn a_failed_read_is_not_cached() {
    let (path, source) = read_path(Source::new(&[("f", 10)]), options());
    let f = file(&path, "f").await;
    let kept = source.files.lock().remove(&b"f"[..]).unwrap();
    assert!(path.bytes(&f, &ReadAhead::default(), 0, 10).await.is_err());
    source.files.lock().insert(b"f".to_vec(), kept);
    assert!(path.bytes(&f, &ReadAhead::default(), 0, 10).await.is_ok());
}

#[tokio::test]
async fn one_listing_answers_for_every_name_there_is_or_is_not() {
    let (path, source) = read_path(Source::new(&[("a", 1), ("b", 2)]), options());
    let root = ItemPath::root();
    let lookups = (0..20).map(|_| {
        let path = path.clone();
        tokio::spawn(async move { path.find_name(&ItemPath::root(), b"nothing").await })
    });
    for lookup in lookups.collect::<Vec<_>>() {
        assert!(matches!(lookup.await.unwrap(), Ok(LookupOutcome::Absent)));
    }
    assert!(
        matches!(path.metadata().try_look_up(&root, b"b"), Some(Leased { value: LookupOutcome::Attributes(a), .. }) if a.size == 2)
    );
    assert!(matches!(
        path.metadata().try_look_up(&root, b"c").map(|it| it.value),
        Some(LookupOutcome::Absent)
    ));
    assert_eq!(source.lists.load(Ordering::Relaxed), 1);
    assert_eq!(source.stats.lock().len(), 0);
}

#[tokio::test]
async fn attributes_that_did_not_come_along_are_asked_for_in_growing_batches() {
    let names: Vec<String> = (0..900).map(|i| format!("f{i:04}")).collect();
    let files: Vec<(&str, usize)> = names.iter().map(|name| (&name[..], 1)).collect();
    let source = Source {
        eager: false,
        ..Source::new(&files)
    };
    let (path, source) = read_path(source, options());
    for name in &names {
        file(&path, name).await;
    }
    let batches: Vec<usize> = source.stats.lock().iter().map(Vec::len).collect();
    assert_eq!(
        batches.iter().sum::<usize>(),
        900,
        "each name once: {batches:?}"
    );
    assert!(batches.len() < 12, "{batches:?}");
    assert_eq!(batches[0], 1, "one look-up must not stat its neighbours");
}

#[tokio::test]
async fn a_large_directory_is_paged_and_looked_up_by_name() {
    let names: Vec<String> = (0..2500).map(|i| format!("f{i:04}")).collect();
    let files: Vec<(&str, usize)> = names.iter().map(|name| (&name[..], 1)).collect();
    let (path, source) = read_path(Source::new(&files), options());
    let root = ItemPath::root();
    let mut seen = Vec::new();
    loop {
        let (first, page) = path.page_with(&root, seen.len()).await.unwrap();
        if first + page.entries.len() == seen.len() {
            break;
        }
        assert_eq!(first, seen.len());
        seen.extend(page.entries.iter().map(|entry| entry.name.clone()));
    }
    assert_eq!(
        seen,
        names
            .iter()
            .map(|name| Bytes::from(name.clone()))
            .collect::<Vec<_>>()
    );
    assert!(matches!(
        path.find_name(&root, b"f2400").await,
        Ok(LookupOutcome::Attributes(_))
    ));
    assert!(matches!(
        path.find_name(&root, b"nothing").await,
        Ok(LookupOutcome::Absent)
    ));
    let asked = source.stats.lock().len();
    assert!(matches!(
        path.metadata()
            .try_look_up(&root, b"nothing")
            .map(|it| it.value),
        Some(LookupOutcome::Absent)
    ));
    assert_eq!(source.stats.lock().len(), asked, "absence is remembered");
}

#[tokio::test]
async fn a_directory_that_may_only_be_searched_is_searched() {
    let source = Source {
        listable: false,
        ..Source::new(&[("a", 1)])
    };
    let (path, _source) = read_path(source, options());
    let root = ItemPath::root();
    assert!(matches!(
        path.find_name(&root, b"a").await,
        Ok(LookupOutcome::Attributes(_))
    ));
    assert!(matches!(
        path.find_name(&root, b"b").await,
        Ok(LookupOutcome::Absent)
    ));
    let failure = path.page_with(&root, 0).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::PermissionDenied);
}

#[tokio::test]
async fn clear_drops_caches_and_voids_requests_in_progress() {
    let (path, source) = read_path(Source::new(&[("a", 1)]), options());
    let root = ItemPath::root();
    let closed = source
        .gate
        .acquire_many(u32::try_from(OPEN_GATE).unwrap())
        .await
        .unwrap();
    let early = tokio::spawn({
        let path = path.clone();
        async move { path.find_name(&ItemPath::root(), b"b").await }
    });
    until(SOON, "the directory is being listed", || {
        source.lists.load(Ordering::Relaxed) > 0
    })
    .await;
    path.clear(&root);
    source.files.lock().insert(b"b".to_vec(), (vec![1], 0));
    drop(closed);
    early.await.unwrap().unwrap();
    assert!(matches!(
        path.find_name(&root, b"b").await,
        Ok(LookupOutcome::Attributes(_))
    ));
    assert_eq!(source.lists.load(Ordering::Relaxed), 2);
    let f = file(&path, "a").await;
    path.bytes(&f, &ReadAhead::default(), 0, 1).await.unwrap();
    path.clear(&ItemPath::parse(b"a").unwrap());
    assert_eq!(path.try_bytes(&f, 0, 1), None);
    assert_eq!(path.stats().data.bytes, 0);
}

async fn collect(mut stream: ReadStream) -> Result<(Vec<u8>, usize), Failure> {
    let (mut bytes, mut blocks, mut block) = (Vec::new(), 0, Vec::new());
    while let Some(part) = stream.next().await {
        match part? {
            BlockPart::Bytes(chunk) => block.extend_from_slice(&chunk),
            BlockPart::Restart => block.clear(),
            BlockPart::End(hash) => {
                assert_eq!(hash.0, *blake3::hash(&block).as_bytes());
                bytes.append(&mut block);
                blocks += 1;
            }
        }
    }
    Ok((bytes, blocks))
}

fn whole(f: &FileRef) -> ReadRequest {
    ReadRequest {
        path: f.path.clone(),
        version: f.version,
        size: f.size,
        first_block: 0,
        block_count: f.size.div_ceil(BLOCK_BYTES),
        content: f.content,
        through: false,
    }
}

#[tokio::test]
async fn a_chain_of_nodes_reads_each_block_once_and_forwards_before_it_is_complete() {
    let (root, source) = read_path(Source::new(&[("f", 3_000_000)]), options());
    let middle = alone(&options(), Arc::new(root.clone()));
    let leaf = alone(&options(), Arc::new(middle.clone()));
    let f = file(&leaf, "f").await;
    let children = (0..4).map(|_| {
        let (leaf, f) = (leaf.clone(), f.clone());
        tokio::spawn(async move { collect(Files::read(&leaf, whole(&f)).await?).await })
    });
    for child in children.collect::<Vec<_>>() {
        let (bytes, blocks) = child.await.unwrap().unwrap();
        assert_eq!((bytes, blocks), (source.content("f"), 3));
    }
    assert_eq!(source.reads.lock().len(), 1);
    assert_eq!(source.lists.load(Ordering::Relaxed), 1);

    // Cut-through: with the source stopped in the middle of a block, a child has its beginning.
    let (path, source) = read_path(Source::new(&[("f", 1_000_000)]), options());
    let f = file(&path, "f").await;
    source.gate.forget_permits(OPEN_GATE - 3);
    let mut stream = Files::read(&path, whole(&f)).await.unwrap();
    let mut arrived = 0;
    while arrived < 300_000 {
        match stream.next().await.unwrap().unwrap() {
            BlockPart::Bytes(bytes) => arrived += bytes.len(),
            BlockPart::End(_) | BlockPart::Restart => panic!("a block that is not here cannot end"),
        }
    }
    source.gate.add_permits(OPEN_GATE);
    let (rest, blocks) = {
        let (mut bytes, mut blocks) = (arrived, 0);
        while let Some(part) = stream.next().await {
            match part.unwrap() {
                BlockPart::Bytes(chunk) => bytes += chunk.len(),
                BlockPart::End(_) => blocks += 1,
                BlockPart::Restart => panic!("nothing was wrong"),
            }
        }
        (bytes, blocks)
    };
    assert_eq!((rest, blocks), (1_000_000, 1));
}

#[tokio::test]
async fn reads_through_a_chain_are_not_cached_on_the_way() {
    let (root, source) = read_path(Source::new(&[("f", 3_000_000)]), options());
    let middle = alone(&options(), Arc::new(root.clone()));
    let leaf = alone(&options(), Arc::new(middle.clone()));
    let f = file(&leaf, "f").await;
    let through = || ReadRequest {
        through: true,
        ..whole(&f)
    };
    for times in 1..=2 {
        let (bytes, blocks) = collect(Files::read(&leaf, through()).await.unwrap())
            .await
            .unwrap();
        assert_eq!((bytes, blocks), (source.content("f"), 3));
        for path in [&leaf, &middle, &root] {
            assert_eq!(path.stats().data.bytes, 0);
        }
        let reads = source.reads.lock().clone();
        assert_eq!(reads, vec![through(); times]);
    }
    // The two share nothing, and neither delays the other: the source lets as much through as both need.
    source.gate.forget_permits(OPEN_GATE);
    let first = Files::read(&leaf, through()).await.unwrap();
    let second = Files::read(&leaf, through()).await.unwrap();
    assert_eq!(source.reads.lock().len(), 4);
    source.gate.add_permits(OPEN_GATE);
    let (first, second) = tokio::join!(collect(first), collect(second));
    assert_eq!(first.unwrap(), second.unwrap());
    // Who wants it kept has it fetched once more.
    let (bytes, _) = collect(Files::read(&leaf, whole(&f)).await.unwrap())
        .await
        .unwrap();
    assert_eq!(bytes, source.content("f"));
    assert_eq!(source.reads.lock().len(), 5);
    assert!(leaf.stats().data.bytes > 0);
}

#[tokio::test]
async fn a_restart_is_forwarded() {
    let source = Source::new(&[("f", 500_000)]);
    source.taken_back.store(1, Ordering::Relaxed);
    let (path, source) = read_path(source, options());
    let f = file(&path, "f").await;
    source.gate.forget_permits(OPEN_GATE - 2);
    let mut early = Files::read(&path, whole(&f)).await.unwrap();
    let part = early.next().await.unwrap().unwrap();
    assert!(matches!(part, BlockPart::Bytes(bytes) if bytes[0] != source.content("f")[0]));
    source.gate.add_permits(OPEN_GATE);
    let (bytes, blocks) = collect(early).await.unwrap();
    assert_eq!((bytes, blocks), (source.content("f"), 1));
}

#[tokio::test]
async fn a_file_larger_than_the_cache_is_read_all_the_same() {
    let options = ReadOptions {
        sizes: with_data(2 << 20),
        ..options()
    };
    let (path, source) = read_path(Source::new(&[("f", 6_000_000)]), options);
    let f = file(&path, "f").await;
    let (bytes, _) = collect(Files::read(&path, whole(&f)).await.unwrap())
        .await
        .unwrap();
    assert_eq!(bytes, source.content("f"));
    let bytes = path
        .bytes(&f, &ReadAhead::default(), 4_000_000, small(1 << 20))
        .await
        .unwrap();
    assert_eq!(bytes, &source.content("f")[4_000_000..5_048_576]);
    assert!(path.stats().data.bytes <= 2 << 20);
}

#[tokio::test]
async fn extended_attributes_are_asked_for_once() {
    let (path, _source) = read_path(Source::new(&[("f", 1)]), options());
    let f = ItemPath::parse(b"f").unwrap();
    assert!(path.metadata().try_xattrs(&f).is_none());
    assert_eq!(path.metadata().xattrs(&f).await.unwrap().len(), 1);
    assert!(path.metadata().try_xattrs(&f).is_some());
}

mod bounds;
mod bundles;
mod contents;
mod leases;
mod ranges;
mod renewed;
mod siblings;
mod urgent;
mod usage;
