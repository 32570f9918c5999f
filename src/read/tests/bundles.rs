//! Small files that travel together.

use super::*;
use std::time::Duration;

/// `count` files of `size` bytes, `f0000` and on.
fn directory(count: usize, size: usize) -> Source {
    let names: Vec<String> = (0..count).map(|i| format!("f{i:04}")).collect();
    let files: Vec<(&str, usize)> = names.iter().map(|name| (&name[..], size)).collect();
    Source::new(&files)
}

async fn read(path: &ReadPath, source: &Source, name: &str) {
    let f = file(path, name).await;
    let wanted = source.content(name);
    let size = small(f.size);
    if let Some(bytes) = path.try_bytes(&f, 0, size) {
        path.on_hit(&f, &ReadAhead::default(), 0, size);
        assert_eq!(bytes, wanted);
    } else {
        let bytes = path
            .bytes(&f, &ReadAhead::default(), 0, size)
            .await
            .unwrap();
        assert_eq!(bytes, wanted);
    }
    settle().await;
}

fn requests(source: &Source) -> (usize, usize) {
    (source.reads.lock().len(), source.bundles.lock().len())
}

#[tokio::test]
async fn the_second_read_of_a_small_directory_brings_the_rest_in_one_request() {
    let (path, source) = read_path(directory(100, 1000), options());
    read(&path, &source, "f0000").await;
    assert_eq!(requests(&source), (1, 0), "one file says nothing");
    for i in 1..100 {
        read(&path, &source, &format!("f{i:04}")).await;
    }
    assert_eq!(requests(&source), (1, 1));
    let stats = path.stats().bundles;
    assert_eq!((stats.requests, stats.files), (1, 99));
    assert_eq!(
        stats.useful_bytes, 98_000,
        "the second would have been read anyway"
    );
    assert_eq!(stats.wasted_bytes, 0);
}

#[tokio::test]
async fn turned_off_nothing_is_brought_unasked() {
    let options = ReadOptions {
        bundles: false,
        ..options()
    };
    let (path, source) = read_path(directory(60, 1000), options);
    for i in 0..60 {
        read(&path, &source, &format!("f{i:04}")).await;
    }
    assert_eq!(requests(&source), (60, 0));
    assert_eq!(path.stats().bundles, BundleStats::default());
}

fn wide() -> ReadOptions {
    ReadOptions {
        listing_entries_max: 5000,
        sizes: ReadSizes {
            listings_bytes: 64 << 20,
            ..options().sizes
        },
        ..options()
    }
}

/// A large directory is prefetched in growing windows for a reader in order.
#[tokio::test]
async fn a_large_directory_is_prefetched_in_windows_for_a_reader_in_order() {
    let (path, source) = read_path(directory(2000, 1000), wide());
    for i in 0..600 {
        read(&path, &source, &format!("f{i:04}")).await;
    }
    let (reads, bundles) = requests(&source);
    assert!(
        reads <= 8 && bundles <= 12,
        "{reads} reads, {bundles} bundles"
    );
    let asked: usize = source.bundles.lock().iter().map(|b| b.files.len()).sum();
    assert!(asked <= 2000, "{asked} files asked for: some twice");

    let (path, source) = read_path(directory(2000, 1000), wide());
    for i in 0..7 {
        read(&path, &source, &format!("f{:04}", i * 37 % 2000)).await;
    }
    assert_eq!(requests(&source), (7, 0), "a few picks say nothing");
}

/// For a reader in no order the whole directory is prefetched, each file once.
#[tokio::test]
async fn a_large_directory_is_prefetched_for_a_reader_in_no_order() {
    let (path, source) = read_path(directory(2000, 1000), wide());
    for i in 0..2000 {
        read(&path, &source, &format!("f{:04}", i * 37 % 2000)).await;
    }
    assert_eq!(requests(&source), (7, 1));
    let stats = path.stats().bundles;
    assert_eq!((stats.files, stats.wasted_bytes), (1993, 0));
    assert_eq!(path.ahead.usefulness.shuffled_unread(), 0);
}

/// Prefetching for a reader in no order grows with the number of files read, and is bounded by the cache.
#[tokio::test]
async fn prefetching_for_a_reader_in_no_order_is_bounded() {
    let size = 100_000;
    let (path, source) = read_path(directory(1000, size), wide());
    let mut brought = Vec::new();
    for i in 0..150 {
        read(&path, &source, &format!("f{:04}", i * 37 % 1000)).await;
        let stats = path.stats().bundles;
        let unproven = path.ahead.usefulness.shuffled_unread();
        let bound = path.data.cache().capacity_bytes() / 4;
        assert!(unproven <= bound, "{unproven} of {bound}");
        brought.push(stats.useful_bytes + stats.wasted_bytes);
    }
    assert_eq!(brought[6], 0);
    assert!((1..=8 << 20).contains(&brought[7]), "{}", brought[7]);
    assert!(brought[15] > brought[7] && brought[149] > brought[63]);
}

/// A file that readers wait for and that comes late in a bundle is requested separately, once.
#[tokio::test]
async fn a_reader_overtakes_a_slow_bundle() {
    let (path, source) = read_path(directory(30, 1000), options());
    source.bundle_hangs.store(3, Ordering::Relaxed);
    for name in ["f0000", "f0001"] {
        read(&path, &source, name).await;
    }
    assert_eq!(requests(&source), (1, 1));
    let before = tokio::time::Instant::now();
    let readers: Vec<_> = ["f0020"; 3]
        .map(|name| {
            let path = path.clone();
            tokio::spawn(async move {
                let f = file(&path, name).await;
                path.bytes(&f, &ReadAhead::default(), 0, 1000).await
            })
        })
        .into();
    for reader in readers {
        assert_eq!(reader.await.unwrap().unwrap(), source.content("f0020"));
    }
    assert!(
        before.elapsed() < Duration::from_millis(900),
        "the bundle was waited for: {:?}",
        before.elapsed()
    );
    assert_eq!(requests(&source), (2, 1));
    // The bundle is not cancelled, since its source may be reading for it; other bundles may start.
    let stalled = || path.data.bundles_in_progress() == (0, 1);
    until(SOON, "the bundle makes way", stalled).await;
    assert_eq!(path.data.in_progress(), 25, "three came, and one by itself");
    assert_eq!(requests(&source), (2, 1), "nobody wanted the others");
}

/// A program that picks two files of every directory causes a few bundles, and then none.
#[tokio::test]
async fn waste_is_bounded() {
    let size = 200_000;
    let (path, source) = read_path(directory(20, size), options());
    // The same directory, cleared each time, stands for one after the other.
    for round in 0..10 {
        for name in ["f0003", "f0011"] {
            read(&path, &source, name).await;
        }
        path.clear(&ItemPath::root());
        settle().await;
        let stats = path.stats().bundles;
        assert!(
            stats.wasted_bytes <= (8 << 20) + 20 * size as u64 + stats.useful_bytes / 5,
            "round {round}: {stats:?}"
        );
    }
    let (_, bundles) = requests(&source);
    assert!((1..=4).contains(&bundles), "{bundles} bundles");
}

/// Readers join a file of a bundle in progress; it is not requested again.
#[tokio::test]
async fn readers_join_a_bundle_under_way() {
    let (path, source) = read_path(directory(30, 1000), options());
    read(&path, &source, "f0000").await;
    source.gate.forget_permits(OPEN_GATE);
    let reader = |name: &'static str| {
        let path = path.clone();
        tokio::spawn(async move {
            let f = file(&path, name).await;
            path.bytes(&f, &ReadAhead::default(), 0, 1000).await
        })
    };
    let first = reader("f0001");
    settle().await;
    let others: Vec<_> = ["f0001", "f0017", "f0017", "f0029"].map(reader).into();
    settle().await;
    source.gate.add_permits(OPEN_GATE);
    assert_eq!(first.await.unwrap().unwrap(), source.content("f0001"));
    for other in others {
        assert!(other.await.unwrap().is_ok());
    }
    assert_eq!(requests(&source), (1, 1));
}

/// A bundle that breaks off, or that a source does not support, causes no error for a reader.
#[tokio::test]
async fn files_that_a_bundle_does_not_bring_are_requested_separately() {
    let (path, source) = read_path(directory(30, 1000), options());
    source.bundle_breaks.store(5, Ordering::Relaxed);
    for i in 0..30 {
        read(&path, &source, &format!("f{i:04}")).await;
    }
    assert!(path.data.in_progress() == 0, "no flight is left over");
    assert_eq!(path.stats().data.entries, 30);
}

/// A changed file is never returned under its old version, and its old bytes never under the new one.
#[tokio::test]
async fn a_changed_file_in_a_bundle_is_stale_and_never_wrong() {
    let (path, source) = read_path(directory(10, 1000), options());
    let old = file(&path, "f0005").await;
    source.change("f0005", vec![7; 1000]);
    for i in [0, 1, 2] {
        read(&path, &source, &format!("f{i:04}")).await;
    }
    let failure = path
        .bytes(&old, &ReadAhead::default(), 0, 1000)
        .await
        .unwrap_err();
    assert_eq!(failure.kind, FailureKind::Stale);
    path.clear(&ItemPath::root());
    read(&path, &source, "f0005").await;
}

/// A source that hangs in the middle of a bundle delays only readers that would wait for it in any case.
#[tokio::test]
async fn a_bundle_that_hangs_does_not_hang_its_files() {
    let (path, source) = read_path(directory(30, 1000), options());
    source.bundle_hangs.store(3, Ordering::Relaxed);
    let before = tokio::time::Instant::now();
    for i in 0..30 {
        read(&path, &source, &format!("f{i:04}")).await;
    }
    assert!(
        before.elapsed() <= Duration::from_secs(3),
        "{:?}",
        before.elapsed()
    );
}

/// A chain: the leaf's bundle is one request on each edge, and what a node in between has is not
/// asked for again.
#[tokio::test]
async fn a_bundle_is_one_request_on_each_edge_of_a_chain() {
    let (root, source) = read_path(directory(50, 1000), options());
    read(&root, &source, "f0030").await;
    let middle = alone(&options(), Arc::new(root.clone()));
    let leaf = alone(&options(), Arc::new(middle.clone()));
    for i in 0..50 {
        read(&leaf, &source, &format!("f{i:04}")).await;
    }
    let (reads, bundles) = requests(&source);
    assert_eq!((reads, bundles), (2, 1), "f0030 and f0000 by themselves");
    assert_eq!(source.bundles.lock()[0].files.len(), 48);
    assert_eq!(
        middle.stats().bundles.files,
        0,
        "the child's decision is the child's account"
    );
    assert_eq!(middle.stats().data.entries, 50);
    assert!(middle.data.in_progress() + leaf.data.in_progress() == 0);
}

/// A caller that knows what will be read names the files.
#[tokio::test]
async fn named_files_are_prefetched() {
    let (path, source) = read_path(directory(30, 1000), options());
    let names = ["f0007", "f0002", "absent"].map(|name| Bytes::from_static(name.as_bytes()));
    assert_eq!(path.prefetch(&ItemPath::root(), &names).await.unwrap(), 2);
    settle().await;
    assert_eq!(path.prefetch(&ItemPath::root(), &names).await.unwrap(), 0);
    assert_eq!(path.stats().data.entries, 2);
    assert_eq!(requests(&source), (0, 1));
}
