//! A store on a real directory, in front of a source in memory that counts its requests.

mod elsewhere;

use super::*;
use crate::read::FileRef;
use crate::testing::{noise, path, unasked};
use crate::waiting::eventually;
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, BundleFile, BundleItem, BundleRequest, BundleStream, Failure,
    FailureKind, Files, RangeRequest, ReadRequest, ReadStream, Version,
};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

#[derive(Default)]
struct Source {
    files: BTreeMap<ItemPath, Vec<u8>>,
    reads: Mutex<Vec<ReadRequest>>,
    bundled: Mutex<Vec<usize>>,
}

impl Source {
    fn of(files: &[(&str, u64, u64)]) -> Arc<Self> {
        let files = files
            .iter()
            .map(|&(name, seed, len)| (path(name), noise(seed.to_le_bytes(), len)))
            .collect();
        Arc::new(Self {
            files,
            ..Self::default()
        })
    }

    fn blocks_read(&self) -> u64 {
        let reads = self.reads.lock();
        reads.iter().map(|request| request.block_count).sum()
    }
}

struct Counted(Arc<Source>);

impl Files for Counted {
    unasked!(list, stat, xattrs, usage);

    fn read(&self, request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>> {
        self.0.reads.lock().push(request.clone());
        let whole = Bytes::from(self.0.files[&request.path].clone());
        let blocks = request.first_block..request.first_block + request.block_count;
        let parts = blocks.flat_map(move |index| {
            let len = ReadRequest::block_len(request.size, index);
            let start = usize::try_from(index * BLOCK_BYTES).unwrap();
            let block = whole.slice(start..start + usize::try_from(len).unwrap());
            let hash = ContentHash(*blake3::hash(&block).as_bytes());
            let middle = block.len() / 3;
            let (first, second) = (block.slice(..middle), block.slice(middle..));
            // Bytes before a restart must not be kept.
            [
                BlockPart::Bytes(second.clone()),
                BlockPart::Restart,
                BlockPart::Bytes(first),
                BlockPart::Bytes(second),
                BlockPart::End(hash),
            ]
        });
        std::future::ready(Ok(stream::iter(parts.map(Ok)).boxed())).boxed()
    }

    fn bundle(&self, request: BundleRequest) -> BoxFuture<'static, Result<BundleStream, Failure>> {
        self.0.bundled.lock().push(request.files.len());
        let items: Vec<_> = request
            .files
            .iter()
            .enumerate()
            .map(|(index, file)| {
                let path = request.directory.join(&file.name).unwrap();
                let bytes = Bytes::from(self.0.files[&path].clone());
                let hash = ContentHash(*blake3::hash(&bytes).as_bytes());
                Ok(BundleItem { index, bytes, hash })
            })
            .collect();
        std::future::ready(Ok(stream::iter(items).boxed())).boxed()
    }
}

fn options(directory: &Path, bytes: u64) -> StoreOptions {
    StoreOptions {
        directory: directory.to_owned(),
        capacity: Size::Bytes(bytes),
        reserve_percent: 1,
        policy: EvictionPolicy::Lru,
        // Tests count repeated fetches, so a busy machine must not count as a hanging disk.
        disk_timeout: Duration::from_secs(60),
    }
}

fn open(directory: &Path) -> Store {
    Store::open(&options(directory, 1 << 30)).unwrap()
}

fn layer(store: &Store, source: &Arc<Source>) -> StoreLayer {
    StoreLayer::new(store.clone(), Arc::new(Counted(Arc::clone(source))))
}

fn request(name: &str, size: u64, blocks: std::ops::Range<u64>) -> ReadRequest {
    ReadRequest {
        path: path(name),
        version: Version::from_data([7; 16]),
        size,
        first_block: blocks.start,
        block_count: blocks.end - blocks.start,
        content: None,
        through: false,
    }
}

/// Reads like a read path, and checks every hash.
async fn read(files: &StoreLayer, request: ReadRequest) -> Vec<u8> {
    let mut parts = files.read(request).await.unwrap();
    let (mut whole, mut block) = (Vec::new(), Vec::new());
    while let Some(part) = parts.next().await {
        match part.unwrap() {
            BlockPart::Bytes(bytes) => block.extend_from_slice(&bytes),
            BlockPart::Restart => block.clear(),
            BlockPart::End(hash) => {
                assert_eq!(blake3::hash(&block).as_bytes(), &hash.0);
                whole.append(&mut block);
            }
        }
    }
    assert!(block.is_empty(), "a block without its hash");
    whole
}

async fn whole(files: &StoreLayer, source: &Source, name: &str) {
    let expected = &source.files[&path(name)];
    let size = expected.len() as u64;
    let got = read(files, request(name, size, 0..size.div_ceil(BLOCK_BYTES))).await;
    assert!(got == *expected, "wrong bytes of {name}");
}

/// All content files below a store's directory.
fn contents(directory: &Path) -> Vec<PathBuf> {
    let fans = std::fs::read_dir(directory.join("content")).unwrap();
    fans.flat_map(|fan| std::fs::read_dir(fan.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .collect()
}

/// Waits for the comparison of index and directory, which ends with the writer's queue empty.
fn settled(store: &Store, done: impl Fn(&Store) -> bool) {
    let what = fmt::from_fn(|f| write!(f, "the store settles: {:?}", store.stats()));
    eventually(Duration::from_secs(5), what, || {
        // First, so that all that was queued is written even if the condition holds at once.
        store.flush();
        done(store)
    });
}

/// A typo, or a disk that is not mounted, must not fill the disk below.
#[test]
fn a_directory_and_the_one_above_it_are_made_and_no_more() {
    let scratch = tempfile::tempdir().unwrap();
    let near = scratch.path().join("job/0");
    assert!(Store::open(&options(&near, 1 << 20)).is_ok());
    let far = scratch.path().join("disk/job/0");
    let error = Store::open(&options(&far, 1 << 20)).err().unwrap();
    assert!(
        error.to_string().contains("cannot make the store"),
        "{error}"
    );
    assert!(!scratch.path().join("disk").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_read_from_the_disk_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let source = Source::of(&[("/a", 1, 5 * BLOCK_BYTES + 17), ("/b", 2, 100)]);
    let store = open(directory.path());
    for name in ["/a", "/b", "/a", "/b"] {
        whole(&layer(&store, &source), &source, name).await;
        store.flush();
    }
    assert_eq!(source.blocks_read(), 7);
    drop(store);
    let store = open(directory.path());
    whole(&layer(&store, &source), &source, "/a").await;
    whole(&layer(&store, &source), &source, "/b").await;
    assert_eq!(source.blocks_read(), 7, "nothing was fetched again");
    assert_eq!((store.stats().hits, store.stats().damaged), (7, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_missing_runs_are_requested() {
    let directory = tempfile::tempdir().unwrap();
    let size = 10 * BLOCK_BYTES;
    let source = Source::of(&[("/a", 1, size)]);
    let store = open(directory.path());
    let files = layer(&store, &source);
    for blocks in [2..4, 7..8] {
        read(&files, request("/a", size, blocks)).await;
    }
    store.flush();
    whole(&files, &source, "/a").await;
    let reads = source.reads.lock().clone();
    let runs: Vec<_> = reads
        .iter()
        .map(|r| (r.first_block, r.block_count))
        .collect();
    assert_eq!(runs, [(2, 2), (7, 1), (0, 2), (4, 3), (8, 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_that_bypass_the_store_are_neither_kept_nor_looked_up() {
    let directory = tempfile::tempdir().unwrap();
    let size = 3 * BLOCK_BYTES;
    let source = Source::of(&[("/a", 1, size)]);
    let store = open(directory.path());
    let files = layer(&store, &source);
    read(&files, request("/a", size, 1..2)).await;
    store.flush();
    let through = ReadRequest {
        through: true,
        ..request("/a", size, 0..3)
    };
    for _ in 0..2 {
        let got = read(&files, through.clone()).await;
        assert!(got == source.files[&path("/a")], "wrong bytes");
    }
    store.flush();
    assert_eq!(source.reads.lock()[1..], [through.clone(), through]);
    let stats = store.stats();
    assert_eq!((stats.hits, stats.misses), (0, 1));
    assert_eq!(contents(directory.path()).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_is_cut_from_a_stored_block() {
    let directory = tempfile::tempdir().unwrap();
    let size = 2 * BLOCK_BYTES;
    let source = Source::of(&[("/a", 1, size)]);
    let store = open(directory.path());
    let files = layer(&store, &source);
    read(&files, request("/a", size, 1..2)).await;
    store.flush();
    for (offset, asked) in [(BLOCK_BYTES + 8192, 1), (8192, 2)] {
        let range = RangeRequest {
            path: path("/a"),
            version: Version::from_data([7; 16]),
            size,
            offset,
            len: 4096,
            content: None,
        };
        let answer = files.read_range(range).await.unwrap();
        let start = usize::try_from(offset).unwrap();
        assert!(answer.bytes == source.files[&path("/a")][start..start + 4096]);
        assert_eq!(source.blocks_read(), asked);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_blocks_are_stored_once() {
    let directory = tempfile::tempdir().unwrap();
    let source = Source::of(&[("/a", 1, 3 * BLOCK_BYTES), ("/b", 1, 3 * BLOCK_BYTES)]);
    let store = open(directory.path());
    whole(&layer(&store, &source), &source, "/a").await;
    whole(&layer(&store, &source), &source, "/b").await;
    store.flush();
    assert_eq!((store.stats().entries, store.stats().shared), (3, 3));
    assert_eq!(contents(directory.path()).len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_content_is_detected_counted_and_fetched_again() {
    let directory = tempfile::tempdir().unwrap();
    let source = Source::of(&[("/a", 1, 30 * BLOCK_BYTES)]);
    let store = open(directory.path());
    whole(&layer(&store, &source), &source, "/a").await;
    drop(store);
    let files = contents(directory.path());
    for (number, file) in files.iter().enumerate() {
        match number % 10 {
            0 => {
                let mut bytes = std::fs::read(file).unwrap();
                bytes[12345] ^= 0x10;
                std::fs::write(file, bytes).unwrap();
            }
            1 => std::fs::write(file, b"torn").unwrap(),
            2 => std::fs::remove_file(file).unwrap(),
            _ => {}
        }
    }
    let store = open(directory.path());
    let before = source.blocks_read();
    whole(&layer(&store, &source), &source, "/a").await;
    assert_eq!(source.blocks_read() - before, 9);
    // The sweep may have noticed removed files before they were read.
    let damaged = store.stats().damaged;
    assert!((6..=9).contains(&damaged), "{damaged}");
    store.flush();
    whole(&layer(&store, &source), &source, "/a").await;
    assert_eq!(
        source.blocks_read() - before,
        9,
        "fetched blocks are kept again"
    );
}

/// The sweep sees a content file that a reader finds damaged, and reports it before or after the reader
/// does. In both orders it is not adopted again, so the block is fetched once and held from then on.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_content_is_not_adopted_again() {
    for first in ["sweep", "reader"] {
        let directory = tempfile::tempdir().unwrap();
        let source = Source::of(&[("/a", 1, BLOCK_BYTES)]);
        let store = open(directory.path());
        let files = layer(&store, &source);
        whole(&files, &source, "/a").await;
        settled(&store, |store| *store.shared.swept.borrow());
        std::fs::write(&contents(directory.path())[0], b"torn").unwrap();

        let file = FileRef::new(path("/a"), Version::from_data([7; 16]), BLOCK_BYTES, None);
        let block = store.shared.catalog.find(&file, 0).unwrap();
        let origin = BlockOrigin::new(file.id(), store.shared.catalog.moment(), 0);
        let adopt = job::Job::Adopt(block.content, 4, Some(origin));
        let jobs = &store.writer.jobs;
        assert!(store.shared.catalog.condemn(block.content, block.serial));
        if first == "sweep" {
            jobs.send(adopt).unwrap();
            store.writer.remove(block.content);
        } else {
            store.writer.remove(block.content);
            jobs.send(adopt).unwrap();
        }
        store.flush();
        assert_eq!(contents(directory.path()).len(), 0, "{first} first");
        assert_eq!(store.stats().entries, 0, "{first} first");
        whole(&files, &source, "/a").await;
        store.flush();
        whole(&files, &source, "/a").await;
        assert_eq!(source.blocks_read(), 2, "{first} first");
    }
}

/// Two readers look a block up before either has read it. The content of the second one may have been
/// replaced by then.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_content_is_counted_once_and_its_replacement_stays() {
    let directory = tempfile::tempdir().unwrap();
    let source = Source::of(&[("/a", 1, BLOCK_BYTES)]);
    let store = open(directory.path());
    let files = layer(&store, &source);
    whole(&files, &source, "/a").await;
    store.flush();
    std::fs::write(&contents(directory.path())[0], b"torn").unwrap();

    let file = FileRef::new(path("/a"), Version::from_data([7; 16]), BLOCK_BYTES, None);
    let block = store.shared.catalog.find(&file, 0).unwrap();
    let (first, second) = tokio::join!(store.load(block.clone()), store.load(block.clone()));
    assert_eq!((first, second), (None, None));
    assert_eq!(store.stats().damaged, 1);
    whole(&files, &source, "/a").await;
    store.flush();

    std::fs::write(&contents(directory.path())[0], b"torn").unwrap();
    assert_eq!(store.load(block).await, None);
    assert_eq!(store.stats().damaged, 1);
    assert_eq!(store.stats().entries, 1, "the replacement was dropped");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_index_is_restored_from_the_content() {
    let directory = tempfile::tempdir().unwrap();
    let source = Source::of(&[("/a", 1, 9 * BLOCK_BYTES), ("/b", 2, 77)]);
    let store = open(directory.path());
    whole(&layer(&store, &source), &source, "/a").await;
    whole(&layer(&store, &source), &source, "/b").await;
    drop(store);
    std::fs::remove_file(directory.path().join("index.log")).unwrap();
    let store = open(directory.path());
    settled(&store, |store| store.stats().entries == 10);
    whole(&layer(&store, &source), &source, "/a").await;
    whole(&layer(&store, &source), &source, "/b").await;
    assert_eq!(source.blocks_read(), 10, "nothing was fetched again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_index_loses_only_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let source = Source::of(&[("/a", 1, 9 * BLOCK_BYTES)]);
    let store = open(directory.path());
    whole(&layer(&store, &source), &source, "/a").await;
    drop(store);
    let index = directory.path().join("index.log");
    let bytes = std::fs::read(&index).unwrap();
    for cut in [0, 3, 16, 20, bytes.len() / 2, bytes.len() - 1] {
        let mut torn = bytes[..cut].to_vec();
        torn.extend_from_slice(&[0xAA; 100]);
        std::fs::write(&index, torn).unwrap();
        let store = open(directory.path());
        whole(&layer(&store, &source), &source, "/a").await;
        assert_eq!(store.stats().damaged, 0, "cut at {cut}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_stays_within_its_capacity() {
    let directory = tempfile::tempdir().unwrap();
    let source = Source::of(&[("/a", 1, 40 * BLOCK_BYTES)]);
    let store = Store::open(&options(directory.path(), 16 * BLOCK_BYTES)).unwrap();
    for _ in 0..3 {
        whole(&layer(&store, &source), &source, "/a").await;
        store.flush();
    }
    let stats = store.stats();
    assert!(
        stats.bytes <= 16 * BLOCK_BYTES && stats.evictions > 0,
        "{stats:?}"
    );
    assert!(contents(directory.path()).len() <= 16);
    drop(store);
    let smaller = Store::open(&options(directory.path(), 5 * BLOCK_BYTES)).unwrap();
    assert!(smaller.stats().bytes <= 5 * BLOCK_BYTES);
    assert!(contents(directory.path()).len() <= 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clear_outlives_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let source = Source::of(&[("/x/a", 1, 100), ("/y/b", 2, 100)]);
    let store = open(directory.path());
    for name in ["/x/a", "/y/b"] {
        whole(&layer(&store, &source), &source, name).await;
    }
    store.flush();
    store.clear(&path("/x"));
    drop(store);
    let store = open(directory.path());
    for name in ["/x/a", "/y/b"] {
        whole(&layer(&store, &source), &source, name).await;
    }
    assert_eq!(
        source.blocks_read(),
        3,
        "only cleared content is fetched again"
    );
    store.flush();
    whole(&layer(&store, &source), &source, "/x/a").await;
    assert_eq!(source.blocks_read(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn bundles_request_only_missing_files_and_keep_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let names = ["/d/0", "/d/1", "/d/2", "/d/3", "/d/4"];
    let files: Vec<_> = (0..)
        .zip(names)
        .map(|(seed, name)| (name, seed, 1000))
        .collect();
    let source = Source::of(&files);
    let store = open(directory.path());
    let layer = layer(&store, &source);
    for name in ["/d/1", "/d/3"] {
        whole(&layer, &source, name).await;
    }
    store.flush();
    let wanted = names.map(|name| BundleFile {
        name: Bytes::copy_from_slice(&name.as_bytes()[3..]),
        version: Version::from_data([7; 16]),
        size: 1000,
        content: None,
    });
    for asked in [3, 0] {
        source.bundled.lock().clear();
        let request = BundleRequest {
            directory: path("/d"),
            files: wanted.to_vec(),
        };
        let mut items = layer.bundle(request).await.unwrap();
        for (index, name) in names.iter().enumerate() {
            let item = items.next().await.unwrap().unwrap();
            assert_eq!(item.index, index);
            assert!(item.bytes == source.files[&path(name)]);
        }
        assert!(items.next().await.is_none());
        assert_eq!(source.bundled.lock().iter().sum::<usize>(), asked);
        store.flush();
    }
}

/// Before the kernel gets a file, it is read back and compared with the hashes of the written blocks:
/// tested with a byte changed while the file was in `tmp`, and with a byte missing.
#[test]
fn a_whole_file_is_verified_before_the_kernel_gets_it() {
    let size = BLOCK_BYTES + 9;
    let file = FileRef::new(path("/a"), Version::from_data([7; 16]), size, None);
    let bytes = Bytes::from(noise(1_u64.to_le_bytes(), size));
    let blocks = [bytes.slice(..1 << 20), bytes.slice(1 << 20..)];
    let written = |directory: &Path, store: &Store| {
        let mut writer = store.begin_whole(size).unwrap();
        for block in &blocks {
            let hash = ContentHash(*blake3::hash(block).as_bytes());
            writer.append(block, hash).unwrap();
        }
        let temporary = std::fs::read_dir(directory.join("tmp")).unwrap();
        let temporary = temporary.map(|entry| entry.unwrap().path());
        let temporary = temporary
            .max_by_key(|path| path.metadata().unwrap().len())
            .unwrap();
        (writer, temporary)
    };
    for torn in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        let (writer, temporary) = written(directory.path(), &store);
        let mut damaged = std::fs::read(&temporary).unwrap();
        assert_eq!(damaged, bytes);
        match torn {
            true => damaged.truncate(1 << 20),
            false => damaged[5] ^= 1,
        }
        std::fs::write(&temporary, damaged).unwrap();
        assert!(writer.finish(&file).is_err());
        store.flush();
        assert!(matches!(store.whole(&file), Whole::Absent));
        assert!(!temporary.exists(), "nothing is left");
        let (writer, _) = written(directory.path(), &store);
        writer.finish(&file).unwrap();
        let Whole::Ready(ready) = store.whole(&file) else {
            panic!("written whole")
        };
        assert_eq!(ready.blocks.len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_file_replaces_its_blocks_and_is_verified_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let size = 4 * BLOCK_BYTES + 9;
    let source = Source::of(&[("/a", 1, size)]);
    let file = FileRef::new(path("/a"), Version::from_data([7; 16]), size, None);
    let bytes = Bytes::from(source.files[&path("/a")].clone());
    let store = open(directory.path());
    whole(&layer(&store, &source), &source, "/a").await;
    assert!(matches!(store.whole(&file), Whole::Absent));
    let mut writer = store.begin_whole(size).unwrap();
    for start in (0..bytes.len()).step_by(1 << 20) {
        let end = bytes.len().min(start + (1 << 20));
        let block = bytes.slice(start..end);
        let hash = ContentHash(*blake3::hash(&block).as_bytes());
        writer.append(&block, hash).unwrap();
    }
    writer.finish(&file).unwrap();
    assert!(matches!(store.whole(&file), Whole::Ready(_)));
    assert_eq!(
        contents(directory.path()).len(),
        0,
        "it replaces its blocks"
    );
    whole(&layer(&store, &source), &source, "/a").await;
    assert_eq!(source.blocks_read(), 5);
    drop(store);

    let store = open(directory.path());
    assert!(matches!(store.whole(&file), Whole::Unverified));
    assert!(store.verify_whole(&file).is_some());
    assert!(matches!(store.whole(&file), Whole::Ready(_)));
    drop(store);

    let wholes = std::fs::read_dir(directory.path().join("whole")).unwrap();
    let held = wholes.map(|entry| entry.unwrap().path()).next().unwrap();
    let mut damaged = std::fs::read(&held).unwrap();
    damaged[3 << 20] ^= 1;
    std::fs::write(&held, damaged).unwrap();
    let store = open(directory.path());
    assert!(
        store.verify_whole(&file).is_none(),
        "never handed to the kernel"
    );
    assert!(matches!(store.whole(&file), Whole::Absent));
    whole(&layer(&store, &source), &source, "/a").await;
    assert_eq!(source.blocks_read(), 10);
}

#[test]
fn a_second_daemon_and_foreign_directories_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let held = open(directory.path());
    let refused = Store::open(&options(directory.path(), 1 << 30))
        .err()
        .unwrap();
    let text = refused.to_string();
    assert!(
        text.contains(&format!("process {}", std::process::id())),
        "{text}"
    );
    drop(held);
    open(directory.path());

    let foreign = tempfile::tempdir().unwrap();
    std::fs::write(foreign.path().join("thesis.tex"), "precious").unwrap();
    let refused = Store::open(&options(foreign.path(), 1 << 30))
        .err()
        .unwrap();
    assert!(matches!(refused, StoreError::Foreign(_)), "{refused}");
    assert_eq!(std::fs::read_dir(foreign.path()).unwrap().count(), 1);

    let shared = tempfile::tempdir().unwrap();
    let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(shared.path(), open_to_all).unwrap();
    let refused = Store::open(&options(shared.path(), 1 << 30)).err().unwrap();
    assert!(matches!(refused, StoreError::NotOwned(_)), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_format_is_discarded_and_a_newer_one_refused() {
    let directory = tempfile::tempdir().unwrap();
    let source = Source::of(&[("/a", 1, 100)]);
    let store = open(directory.path());
    whole(&layer(&store, &source), &source, "/a").await;
    drop(store);
    let identity = directory.path().join("copperfs-store");
    std::fs::write(&identity, "copperfs store\nformat 99\n").unwrap();
    let refused = Store::open(&options(directory.path(), 1 << 30))
        .err()
        .unwrap();
    assert!(
        matches!(refused, StoreError::Newer { found: 99, .. }),
        "{refused}"
    );
    std::fs::write(&identity, "copperfs store\nformat 0\n").unwrap();
    let store = open(directory.path());
    assert_eq!(store.stats().entries, 0);
    assert_eq!(contents(directory.path()).len(), 0);
    whole(&layer(&store, &source), &source, "/a").await;
    assert_eq!(source.blocks_read(), 2);
}
