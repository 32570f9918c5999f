//! Old versions that storage no longer has.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// When storage reports that a version is gone.
#[derive(Clone, Copy, Debug)]
enum Gone {
    AtOnce,
    /// After some bytes, which are not those of the old version.
    InMidStream,
}

/// A source whose files are replaced at some moment, and nodes that still have some blocks of them.
struct Replaced {
    source: Arc<Source>,
    gone: Mutex<Option<(Gone, FailureKind)>>,
    others: Mutex<Vec<Bytes>>,
    asked: AtomicU64,
}

impl Replaced {
    fn failure(&self) -> Option<(Gone, Failure)> {
        let (gone, kind) = (*self.gone.lock())?;
        Some((gone, Failure::new(kind, "another version")))
    }
}

struct Tree(Arc<Replaced>);

impl Files for Tree {
    unasked!(list, stat, xattrs, usage);

    fn read(&self, request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>> {
        let Some((gone, failure)) = self.0.failure() else {
            return Counted(Arc::clone(&self.0.source)).read(request);
        };
        self.0.source.reads.lock().push(request);
        let answer: Result<ReadStream, Failure> = match gone {
            Gone::AtOnce => Err(failure),
            Gone::InMidStream => {
                let new = BlockPart::Bytes(Bytes::from_static(b"new bytes"));
                Ok(stream::iter([Ok(new), Err(failure)]).boxed())
            }
        };
        std::future::ready(answer).boxed()
    }

    fn find(&self, hash: ContentHash, len: u64) -> BoxFuture<'static, Result<Bytes, Failure>> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        let others = self.0.others.lock();
        let found = others
            .iter()
            .find(|block| *blake3::hash(block).as_bytes() == hash.0 && block.len() as u64 == len);
        let missing = || Failure::new(FailureKind::NotFound, "nobody has it");
        std::future::ready(found.cloned().ok_or_else(missing)).boxed()
    }
}

const SIZE: u64 = 2 * BLOCK_BYTES + 10_000;

fn replaced() -> Arc<Replaced> {
    Arc::new(Replaced {
        source: Source::of(&[("a", 1, SIZE), ("other", 2, 16 * BLOCK_BYTES)]),
        gone: Mutex::default(),
        others: Mutex::default(),
        asked: AtomicU64::new(0),
    })
}

/// A small store in which all blocks of `a` were evicted by other files.
async fn evicted(directory: &Path, tree: &Arc<Replaced>) -> (Store, StoreLayer) {
    let store = Store::open(&options(directory, 4 * BLOCK_BYTES + 65_536)).unwrap();
    let files = StoreLayer::new(store.clone(), Arc::new(Tree(Arc::clone(tree))));
    whole(&files, &tree.source, "a").await;
    whole(&files, &tree.source, "other").await;
    store.flush();
    let known = FileRef::new(path("a"), Version::from_data([7; 16]), SIZE, None);
    for index in 0..3 {
        assert!(
            store.shared.catalog.find(&known, index).is_none(),
            "{index} is still here"
        );
    }
    (store, files)
}

fn blocks_of(tree: &Replaced) -> Vec<Bytes> {
    let whole = Bytes::from(tree.source.files[&path("a")].clone());
    (0..3)
        .map(|index| {
            let from = usize::try_from(index * BLOCK_BYTES).unwrap();
            let len = usize::try_from(ReadRequest::block_len(SIZE, index)).unwrap();
            whole.slice(from..from + len)
        })
        .collect()
}

async fn failure_of(files: &StoreLayer, request: ReadRequest) -> (u32, FailureKind) {
    let mut parts = match files.read(request).await {
        Ok(parts) => parts,
        Err(failure) => return (0, failure.kind),
    };
    let mut ends = 0;
    while let Some(part) = parts.next().await {
        match part {
            Ok(BlockPart::End(_)) => ends += 1,
            Ok(_) => {}
            Err(failure) => {
                assert!(parts.next().await.is_none(), "something after a failure");
                return (ends, failure.kind);
            }
        }
    }
    panic!("this must fail");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_version_comes_from_other_nodes_by_hash() {
    for (gone, kind) in [
        (Gone::AtOnce, FailureKind::Stale),
        (Gone::InMidStream, FailureKind::Stale),
        (Gone::AtOnce, FailureKind::NotFound),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let tree = replaced();
        let (store, files) = evicted(directory.path(), &tree).await;
        *tree.gone.lock() = Some((gone, kind));
        *tree.others.lock() = blocks_of(&tree);
        let before = tree.source.reads.lock().len();
        whole(&files, &tree.source, "a").await;
        let reads = tree.source.reads.lock().len() - before;
        assert_eq!(reads, 1, "{gone:?}: the source refuses a version once");
        assert_eq!(tree.asked.load(Ordering::SeqCst), 3, "{gone:?}");
        // The blocks are kept again, so there are no further requests.
        store.flush();
        whole(&files, &tree.source, "a").await;
        assert_eq!(tree.asked.load(Ordering::SeqCst), 3, "{gone:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_blocks_fail_with_the_failure_of_the_source() {
    for gone in [Gone::AtOnce, Gone::InMidStream] {
        let directory = tempfile::tempdir().unwrap();
        let tree = replaced();
        let (_store, files) = evicted(directory.path(), &tree).await;
        *tree.gone.lock() = Some((gone, FailureKind::Stale));
        *tree.others.lock() = blocks_of(&tree)[..1].to_vec();
        let got = failure_of(&files, request("a", SIZE, 0..3)).await;
        assert_eq!(got, (1, FailureKind::Stale), "{gone:?}");
        // If storage is only unreachable, other nodes get no request.
        let asked = tree.asked.load(Ordering::SeqCst);
        *tree.gone.lock() = Some((gone, FailureKind::Unavailable));
        let got = failure_of(&files, request("a", SIZE, 1..3)).await;
        assert_eq!(got, (0, FailureKind::Unavailable), "{gone:?}");
        // Without known hashes, nothing can be requested from other nodes.
        *tree.gone.lock() = Some((gone, FailureKind::Stale));
        let mut never = request("a", SIZE, 1..3);
        never.version = Version::from_data([8; 16]);
        assert_eq!(failure_of(&files, never).await, (0, FailureKind::Stale));
        assert_eq!(tree.asked.load(Ordering::SeqCst), asked, "{gone:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_of_an_old_version_comes_from_other_nodes_by_hash() {
    let directory = tempfile::tempdir().unwrap();
    let tree = replaced();
    let (store, files) = evicted(directory.path(), &tree).await;
    *tree.gone.lock() = Some((Gone::AtOnce, FailureKind::Stale));
    let range = RangeRequest {
        path: path("a"),
        version: Version::from_data([7; 16]),
        size: SIZE,
        offset: BLOCK_BYTES + 8192,
        len: 4096,
        content: None,
    };
    let found = files.read_range(range.clone()).await;
    assert_eq!(found.unwrap_err().kind, FailureKind::Stale);
    *tree.others.lock() = blocks_of(&tree);
    let found = files.read_range(range).await.unwrap();
    let from = usize::try_from(BLOCK_BYTES + 8192).unwrap();
    assert!(found.bytes == tree.source.files[&path("a")][from..from + 4096]);
    // A clear invalidates the hashes: later requests get only the current version from storage.
    store.clear(&path("a"));
    store.flush();
    let asked = tree.asked.load(Ordering::SeqCst);
    let got = failure_of(&files, request("a", SIZE, 0..1)).await;
    assert_eq!(got, (0, FailureKind::Stale));
    assert_eq!(tree.asked.load(Ordering::SeqCst), asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_requested_by_hash_come_from_the_store_first() {
    let directory = tempfile::tempdir().unwrap();
    let tree = replaced();
    let store = open(directory.path());
    let files = StoreLayer::new(store.clone(), Arc::new(Tree(Arc::clone(&tree))));
    whole(&files, &tree.source, "a").await;
    store.flush();
    let block = blocks_of(&tree)[2].clone();
    let hash = ContentHash(*blake3::hash(&block).as_bytes());
    let found = files.find(hash, block.len() as u64).await;
    assert!(found.unwrap() == block);
    assert_eq!(tree.asked.load(Ordering::SeqCst), 0);
    let found = files.find(ContentHash([3; 32]), 7).await;
    assert_eq!(found.unwrap_err().kind, FailureKind::NotFound);
    assert_eq!(tree.asked.load(Ordering::SeqCst), 1);
}
