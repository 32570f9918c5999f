//! Leases, and listings that outlive their process.

use super::*;
use copperfs_overlay::{FilesFuture, ListRequest, Listed, ListingPart, StatRequest};
use std::time::Instant;

/// An edge of the tree: forwards questions and counts the answers.
struct Edge {
    files: Arc<dyn Files>,
    counts: Arc<Counts>,
}

#[derive(Default, Debug)]
struct Counts {
    unchanged: AtomicU64,
    listings: AtomicU64,
    entries: Arc<AtomicU64>,
    stats: Mutex<Vec<usize>>,
    xattrs: AtomicU64,
}

impl Counts {
    fn listed(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.listings), count(&self.unchanged))
    }
}

impl Files for Edge {
    fn list(&self, request: ListRequest) -> FilesFuture<Listed> {
        let listed = self.files.list(request);
        let counts = Arc::clone(&self.counts);
        async move {
            Ok(match listed.await? {
                Listed::Unchanged { lease } => {
                    counts.unchanged.fetch_add(1, Ordering::Relaxed);
                    Listed::Unchanged { lease }
                }
                Listed::Listing(mut listing) => {
                    counts.listings.fetch_add(1, Ordering::Relaxed);
                    let entries = Arc::clone(&counts.entries);
                    let parts = listing.parts.inspect(move |part| {
                        if let Ok(ListingPart::Entries(more)) = part {
                            entries.fetch_add(more.len() as u64, Ordering::Relaxed);
                        }
                    });
                    listing.parts = parts.boxed();
                    Listed::Listing(listing)
                }
            })
        }
        .boxed()
    }

    fn stat(&self, request: StatRequest) -> FilesFuture<Leased<StatAnswers>> {
        self.counts.stats.lock().push(request.names.len());
        self.files.stat(request)
    }

    fn read(&self, request: ReadRequest) -> FilesFuture<ReadStream> {
        self.files.read(request)
    }

    fn xattrs(&self, path: ItemPath) -> FilesFuture<Leased<XattrList>> {
        self.counts.xattrs.fetch_add(1, Ordering::Relaxed);
        self.files.xattrs(path)
    }

    fn usage(&self, path: ItemPath) -> FilesFuture<FilesystemUsage> {
        self.files.usage(path)
    }
}

/// A chain of read paths, the root last, each with the edge above it.
fn chain(
    source: &Arc<Source>,
    options: &ReadOptions,
    depth: usize,
) -> Vec<(ReadPath, Arc<Counts>)> {
    let mut files: Arc<dyn Files> = Arc::new(Shared(Arc::clone(source)));
    let mut chain = Vec::new();
    for _ in 0..depth {
        let counts = Arc::new(Counts::default());
        let edge = Edge {
            files,
            counts: Arc::clone(&counts),
        };
        let path = alone(options, Arc::new(edge));
        files = Arc::new(path.clone());
        chain.push((path, counts));
    }
    chain.reverse();
    chain
}

fn leased(lease: Duration) -> ReadOptions {
    ReadOptions {
        lease: Some(lease),
        ..options()
    }
}

/// Long enough for a chain to answer within its sixteenth, on a busy machine.
const LEASE: Duration = Duration::from_millis(1500);

async fn until_over(path: &ReadPath) {
    until(SOON, "the lease is over", || {
        path.metadata().try_directory(&ItemPath::root()).is_none()
    })
    .await;
}

fn size_of(found: Option<Leased<LookupOutcome>>) -> Option<u64> {
    match found?.value {
        LookupOutcome::Attributes(attributes) => Some(attributes.size),
        LookupOutcome::Absent => None,
    }
}

/// What has not changed costs one answer without entries on each edge, whichever node asks; what has is seen
/// after the lease, and not before.
#[tokio::test]
async fn a_lease_is_renewed_by_one_small_answer_on_each_edge() {
    let source = Arc::new(Source::new(&[("a", 1), ("b", 2)]));
    let nodes = chain(&source, &leased(LEASE), 3);
    let (leaf, root) = (&nodes[0].0, ItemPath::root());
    let first = leaf.metadata().directory(&root).await.unwrap();
    for (node, counts) in &nodes {
        assert_eq!(counts.listed(), (1, 0));
        assert!(
            node.metadata()
                .try_look_up(&root, b"a")
                .unwrap()
                .lease
                .unwrap()
                <= LEASE
        );
    }
    let root_lease = nodes[2]
        .0
        .metadata()
        .try_look_up(&root, b"a")
        .unwrap()
        .lease;
    let leaf_lease = leaf.metadata().try_look_up(&root, b"a").unwrap().lease;
    // Each node rounds its own down to a millisecond.
    let rounded = root_lease.map(|lease| lease + Duration::from_millis(1));
    assert!(leaf_lease <= rounded, "{leaf_lease:?} {root_lease:?}");

    until_over(leaf).await;
    assert!(leaf.metadata().try_look_up(&root, b"a").is_none());
    let asking = (0..20).map(|_| leaf.metadata().look_up(&root, b"a"));
    for found in futures_util::future::join_all(asking).await {
        assert_eq!(size_of(found.ok()), Some(1));
    }
    let again = leaf.metadata().try_directory(&root).unwrap();
    assert!(Arc::ptr_eq(&first, &again), "what was known is kept");
    for (_, counts) in &nodes {
        assert_eq!(counts.listed(), (1, 1));
        assert_eq!(counts.stats.lock().len(), 0);
    }

    source.change("a", vec![7; 5]);
    assert_eq!(
        size_of(leaf.metadata().try_look_up(&root, b"a")),
        Some(1),
        "on its lease"
    );
    until_over(leaf).await;
    assert_eq!(
        size_of(leaf.metadata().look_up(&root, b"a").await.ok()),
        Some(5)
    );
    for (_, counts) in &nodes {
        assert_eq!(counts.listed(), (2, 1));
    }
}

/// At any depth: metadata in use was true at the source one lease ago, or later.
#[tokio::test]
async fn nothing_is_used_for_longer_than_one_lease() {
    let source = Arc::new(Source::new(&[("a", 1)]));
    let lease = Duration::from_millis(200);
    let nodes = chain(&source, &leased(lease), 4);
    let root = ItemPath::root();
    let mut changed = Vec::new();
    for size in 1..8 {
        source.change("a", vec![0; size]);
        changed.push((Instant::now(), size as u64));
        let begun = Instant::now();
        while begun.elapsed() < lease / 2 {
            // Those in the middle ask as well, out of step.
            for (node, _) in &nodes {
                let before = Instant::now();
                let seen = size_of(node.metadata().look_up(&root, b"a").await.ok()).unwrap();
                let oldest = changed
                    .iter()
                    .filter(|(at, _)| *at + lease <= before)
                    .map(|(_, size)| *size)
                    .next_back();
                assert!(oldest.is_none_or(|oldest| seen >= oldest), "{seen}");
            }
            tokio::time::sleep(Duration::from_millis(7)).await;
        }
    }
}

/// A name that is not there, and extended attributes, end as well.
#[tokio::test]
async fn absence_and_extended_attributes_have_leases() {
    let source = Arc::new(Source::new(&[("a", 1)]));
    let nodes = chain(&source, &leased(LEASE), 2);
    let (leaf, counts) = &nodes[0];
    let (root, a) = (ItemPath::root(), ItemPath::parse(b"a").unwrap());
    assert!(matches!(
        leaf.find_name(&root, b"new").await,
        Ok(LookupOutcome::Absent)
    ));
    leaf.metadata().xattrs(&a).await.unwrap();
    assert!(leaf.metadata().try_xattrs(&a).is_some());
    source.files.lock().insert(b"new".to_vec(), (vec![1; 3], 0));
    until_over(leaf).await;
    assert_eq!(
        size_of(leaf.metadata().look_up(&root, b"new").await.ok()),
        Some(3)
    );
    until(SOON, "their lease is over", || {
        leaf.metadata().try_xattrs(&a).is_none()
    })
    .await;
    leaf.metadata().xattrs(&a).await.unwrap();
    assert_eq!(counts.xattrs.load(Ordering::Relaxed), 2);
}

/// Names that were looked up in a large directory are renewed together, and the directory is not
/// listed for them.
#[tokio::test]
async fn names_in_a_large_directory_are_renewed_in_one_batch() {
    let names: Vec<String> = (0..1200).map(|i| format!("f{i:04}")).collect();
    let files: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let mut source = Source::new(&files);
    source.eager = false;
    let source = Arc::new(source);
    let nodes = chain(&source, &leased(LEASE), 2);
    let ((leaf, counts), root) = (&nodes[0], ItemPath::root());
    let wanted: [&[u8]; 4] = [b"f0900", b"f1100", b"f0017", b"none"];
    for name in wanted {
        leaf.find_name(&root, name).await.unwrap();
    }
    assert_eq!(*counts.stats.lock(), [1, 1, 1, 1]);
    let listed = counts.listed();
    until(SOON, "the leases are over", || {
        let mut names = wanted.iter();
        names.all(|name| leaf.metadata().try_look_up(&root, name).is_none())
    })
    .await;
    source.change("f1100", vec![0; 9]);
    assert_eq!(
        size_of(leaf.metadata().look_up(&root, b"f0900").await.ok()),
        Some(1)
    );
    assert_eq!(
        size_of(leaf.metadata().try_look_up(&root, b"f1100")),
        Some(9)
    );
    assert!(leaf.metadata().try_look_up(&root, b"none").is_some());
    assert_eq!(*counts.stats.lock(), [1, 1, 1, 1, 4]);
    assert_eq!(counts.listed(), listed, "no listing for it");
}

/// In a later launch, an unchanged listing is asked about once and not sent again.
#[tokio::test]
async fn a_listing_of_an_earlier_launch_is_asked_about_once() {
    let names: Vec<String> = (0..500).map(|i| format!("f{i:04}")).collect();
    let files: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let (source, dir) = (Arc::new(Source::new(&files)), tempfile::tempdir().unwrap());
    let root = ItemPath::root();
    let parent = chain(&source, &options(), 1).remove(0).0;
    let launch = || {
        let counts = Arc::new(Counts::default());
        let edge = Edge {
            files: Arc::new(parent.clone()),
            counts: Arc::clone(&counts),
        };
        let options = ReadOptions {
            metadata_dir: Some(dir.path().to_owned()),
            ..options()
        };
        (alone(&options, Arc::new(edge)), counts)
    };
    let kept = async |node: &ReadPath| {
        until(SOON, "it is written", || node.stats().persisted.kept > 0).await;
    };
    let (node, counts) = launch();
    node.find_name(&root, b"f0001").await.unwrap();
    assert_eq!(counts.listed(), (1, 0));
    kept(&node).await;
    drop(node);

    let (node, counts) = launch();
    for name in ["f0001", "f0499", "none"] {
        node.find_name(&root, name.as_bytes()).await.unwrap();
    }
    assert_eq!(counts.listed(), (0, 1), "once");
    assert_eq!(counts.entries.load(Ordering::Relaxed), 0);
    assert_eq!(
        node.metadata()
            .directory(&root)
            .await
            .unwrap()
            .entries
            .len(),
        500
    );
    drop(node);

    source.change("f0001", vec![0; 9]);
    parent.clear(&root);
    let (node, counts) = launch();
    assert_eq!(
        size_of(node.metadata().look_up(&root, b"f0001").await.ok()),
        Some(9)
    );
    assert_eq!(counts.listed(), (1, 0));
    kept(&node).await;
    node.clear(&root);
    let empty = || std::fs::read_dir(dir.path()).unwrap().count() == 0;
    until(SOON, "it is removed", empty).await;
}
