//! Trees that work.

use crate::support::{SOON, TestTree, attributes, drain, kind, path, whole, within};
use crate::waiting::until;
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, Cursor, Entry, FailureKind, FileKind, Files, ItemPath, LISTING_ENTRIES_MAX,
    NodeIdentity, OverlayError,
};
use futures_util::StreamExt;
use futures_util::future::join_all;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_of_a_tree_gets_every_kind_of_answer() {
    for (len, arity) in [(7, 2), (31, 2), (15, 4)] {
        // All nodes read at once, which a busy machine may take half a minute for.
        let mut tree = TestTree::plan(len, arity, Duration::from_secs(120));
        tree.start_all().await;
        let asking = (1..len).map(async |rank| {
            let parent = tree.parent(rank);
            let listing = parent.list_page(path("dir"), None, 100).await.unwrap();
            assert_eq!(listing.entries.len(), 3);
            assert_eq!(listing.directory, attributes(FileKind::Directory, 4096));
            assert_eq!(listing.next, None);
            let names = vec![
                Bytes::new(),
                Bytes::from_static(b"absent"),
                Bytes::from_static(b"x"),
            ];
            let found = parent.stat_names(path("dir"), names).await.unwrap().value;
            assert_eq!(found[0].as_ref().unwrap().size, 0);
            assert_eq!(kind(found[1].clone()), FailureKind::NotFound);
            assert_eq!(found[2].as_ref().unwrap().size, 1);
            let size = 2 * BLOCK_BYTES + 17;
            let parts = parent.read(whole("file", size)).await.unwrap();
            assert_eq!(drain(parts).await, (size, Ok(())));
            let attributes = parent.xattrs(path("dir")).await.unwrap().value;
            assert_eq!(attributes[1].1.len(), 64 << 10);
            assert_eq!(parent.usage(path("")).await.unwrap().blocks, 1 << 40);
        });
        within(180, join_all(asking)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_arrive_as_they_were_sent() {
    let tree = TestTree::start(4, 1).await;
    let parent = tree.parent(3);
    let absent = parent
        .list_page(path("absent"), None, 10)
        .await
        .unwrap_err();
    assert_eq!(absent.kind, FailureKind::NotFound);
    assert_eq!(absent.detail, "/absent: no such file or directory");
    assert_eq!(
        kind(parent.xattrs(ItemPath::root()).await),
        FailureKind::Unsupported
    );
    assert_eq!(
        kind(parent.read(whole("absent", 10)).await),
        FailureKind::NotFound
    );
    // A node on the way may have held back the bytes before the failure.
    let end = match parent.read(whole("fails", 10 * BLOCK_BYTES)).await {
        Ok(parts) => drain(parts).await.1,
        Err(failure) => Err(failure),
    };
    assert_eq!(kind(end), FailureKind::Stale);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_of_100_000_entries_travels_whole() {
    let tree = TestTree::start(7, 2).await;
    let parent = tree.parent(6);
    let listing = within(
        60,
        parent.list_page(path("huge/100000"), None, LISTING_ENTRIES_MAX),
    );
    let listing = listing.await.unwrap();
    assert_eq!(listing.entries.len(), 100_000);
    assert_eq!(listing.next, None);
    let last: &Entry = listing.entries.last().unwrap();
    assert_eq!(&last.name[..], "entry-099999-\u{e9}\n".as_bytes());
    assert_eq!(last.attributes, Some(attributes(FileKind::File, 99_999)));
    // Less than a tenth of the unpacked size. (An unoptimised build compresses so slowly that the parent
    // may count as silent on a busy machine; then another node is asked, too.)
    let counters = tree.node(6).counters();
    let most = (1 + counters.replays.get()) * (4 << 20);
    assert!(
        counters.upstream_bytes_received.get() < most,
        "{counters:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_directory_is_paged_by_cursor() {
    let tree = TestTree::start(2, 2).await;
    let parent = tree.parent(1);
    let first = parent
        .list_page(path("huge/200000"), None, LISTING_ENTRIES_MAX)
        .await
        .unwrap();
    assert_eq!(first.entries.len(), LISTING_ENTRIES_MAX);
    assert_eq!(first.next, Some(Cursor(Bytes::from_static(b"100000"))));
    let page = parent
        .list_page(path("huge/200000"), first.next, 7)
        .await
        .unwrap();
    assert_eq!(page.entries.len(), 7);
    assert_eq!(
        &page.entries[0].name[..],
        "entry-100000-\u{e9}\n".as_bytes()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_64_mib_stream_arrives_verified_through_two_hops() {
    let tree = TestTree::start(7, 2).await;
    let size = 64 << 20;
    let parts = tree.parent(5).read(whole("file", size)).await.unwrap();
    assert_eq!(within(60, drain(parts)).await, (size, Ok(())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_may_begin_in_mid_file_and_end_before_its_end() {
    let tree = TestTree::start(2, 2).await;
    let mut request = whole("file", 5 * BLOCK_BYTES + 1);
    (request.first_block, request.block_count) = (4, 2);
    let parts = tree.parent(1).read(request.clone()).await.unwrap();
    assert_eq!(drain(parts).await, (BLOCK_BYTES + 1, Ok(())));
    request.block_count = 3;
    assert_eq!(kind(tree.parent(1).read(request).await), FailureKind::Io);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_bytes_pass_before_the_block_is_complete() {
    // Two hops, and a leaf that takes one part and then looks how much the root has made so far.
    let tree = TestTree::start(3, 1).await;
    let size = 1024 * BLOCK_BYTES;
    let mut parts = tree.parent(2).read(whole("file", size)).await.unwrap();
    assert!(parts.next().await.unwrap().is_ok());
    let produced = tree.seen[0]
        .produced
        .load(std::sync::atomic::Ordering::SeqCst);
    assert!(produced < 64 * BLOCK_BYTES, "{produced}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_concurrent_requests_all_end() {
    let tree = TestTree::start(3, 2).await;
    let asking = (0..2000).map(async |i| {
        let parent = tree.parent(1 + i % 2);
        parent
            .list_page(path("dir"), None, 1 + i % 3)
            .await
            .unwrap()
            .entries
            .len()
    });
    let counts = within(60, join_all(asking)).await;
    assert_eq!(
        counts.iter().sum::<usize>(),
        (0..2000).map(|i| 1 + i % 3).sum::<usize>()
    );
    let (root, leaf) = (tree.node(0).counters(), tree.node(1).counters());
    assert_eq!(root.downstream_requests.get(), 2000);
    assert_eq!(leaf.upstream_requests.get(), 1000);
    assert_eq!(
        (root.upstream_requests.get(), leaf.downstream_requests.get()),
        (0, 0)
    );
    assert!(root.downstream_bytes_sent.get() > leaf.upstream_bytes_received.get());
    assert!(leaf.upstream_bytes_received.get() > 0);
}

#[tokio::test]
async fn a_node_alone_needs_no_network() {
    let plan = TestTree::plan(1, 2, Duration::from_secs(1));
    // Its port is taken, and it does not care.
    let _holder = std::net::UdpSocket::bind(plan.address(0)).unwrap();
    let node = plan.try_start(0, plan.config(0), |_| {}).unwrap();
    assert!(node.upstream().links().is_empty());
    assert_eq!(node.local_addr(), None);
    let all = node.cluster_reports().await;
    assert_eq!(
        (all.reports, all.missing),
        (vec![Bytes::from_static(b"{\"rank\":0}")], vec![])
    );
    assert_eq!(node.clear_cluster(ItemPath::root()).await.cleared, 1);
    within(1, node.shutdown()).await;
}

#[tokio::test]
async fn a_taken_port_is_reported_with_a_remedy() {
    let plan = TestTree::plan(2, 2, Duration::from_secs(1));
    let _holder = std::net::UdpSocket::bind(plan.address(0)).unwrap();
    let error = plan.try_start(0, plan.config(0), |_| {}).unwrap_err();
    assert!(matches!(error, OverlayError::Listen { .. }));
    let text = error.to_string();
    assert!(
        text.contains(&plan.members[0].address) && text.contains("--listen"),
        "{text}"
    );
}

#[tokio::test]
async fn invalid_configurations_are_refused() {
    let plan = TestTree::plan(2, 2, Duration::from_secs(1));
    let mut cases = Vec::new();
    let mut case = |change: &dyn Fn(&mut copperfs_overlay::OverlayConfig)| {
        let mut config = plan.config(0);
        change(&mut config);
        cases.push(config);
    };
    case(&|config| config.members.clear());
    case(&|config| config.arity = 0);
    case(&|config| config.identity = NodeIdentity::Member(2));
    case(&|config| config.identity = NodeIdentity::Guest("node1".into()));
    case(&|config| config.roots.clear());
    case(&|config| config.roots = vec![1, 1]);
    case(&|config| config.roots = vec![2]);
    case(&|config| config.members[1].name = "node0".into());
    case(&|config| config.members[1].name = String::new());
    case(&|config| config.request_timeout = Duration::ZERO);
    for config in cases {
        let error = plan.try_start(0, config, |_| {}).unwrap_err();
        let refused = matches!(
            error,
            OverlayError::Membership(_) | OverlayError::ZeroTimeout
        );
        assert!(refused, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_are_listed_by_name_until_they_leave() {
    let mut tree = TestTree::start(3, 2).await;
    assert_eq!(tree.node(0).children(0), ["node1", "node2"]);
    let leaving = tree.nodes[1].take().unwrap();
    within(1, leaving.shutdown()).await;
    until(SOON, "node 1 is gone", || {
        tree.node(0).children(0) == ["node2"]
    })
    .await;
}
