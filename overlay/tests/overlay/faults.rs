//! Parents that are dead, late or silent; readers that go away or do not read.

use crate::support::{SOON, TestTree, drain, kind, path, raw_child, whole, within};
use crate::waiting::{until, until_some};
use copperfs_overlay::wire::{Request, message};
use copperfs_overlay::{BLOCK_BYTES, FailureKind, Files, LinkStatus};
use futures_util::StreamExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_request_cancels_it_at_the_root() {
    let tree = TestTree::start(4, 1).await;
    let parent = tree.parent(3);
    let asking = tokio::spawn(parent.list_page(path("hang"), None, 1));
    until(SOON, "the root is asked", || {
        tree.seen[0].alive.load(Ordering::SeqCst) == 1
    })
    .await;
    asking.abort();
    until(SOON, "nothing is asked any more", || tree.alive() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_stream_cancels_it_at_the_root() {
    let tree = TestTree::start(4, 1).await;
    let mut parts = tree
        .parent(3)
        .read(whole("file", 1024 * BLOCK_BYTES))
        .await
        .unwrap();
    assert!(parts.next().await.unwrap().is_ok());
    assert_eq!(tree.seen[0].alive.load(Ordering::SeqCst), 1);
    drop(parts);
    until(SOON, "nothing is asked any more", || tree.alive() == 0).await;
    // The tree still answers.
    assert!(tree.parent(3).list_page(path("dir"), None, 1).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_never_started_is_unavailable_in_time() {
    let mut tree = TestTree::plan(2, 2, SHORT);
    tree.start_node(1);
    let start = Instant::now();
    let failure = tree
        .parent(1)
        .list_page(path("dir"), None, 1)
        .await
        .unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unavailable);
    assert!(failure.detail.contains("node0"), "{failure}");
    assert!(
        start.elapsed() >= SHORT / 2 && start.elapsed() < 3 * SHORT,
        "{:?}",
        start.elapsed()
    );
    assert!(matches!(tree.status(1), LinkStatus::Connecting { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_parent_is_unavailable_in_time() {
    let mut tree = TestTree::plan(2, 2, SHORT);
    tree.start_all().await;
    let start = Instant::now();
    assert_eq!(
        kind(tree.parent(1).list_page(path("hang"), None, 1).await),
        FailureKind::Unavailable
    );
    assert_eq!(
        kind(tree.parent(1).read(whole("hang", 1)).await),
        FailureKind::Unavailable
    );
    assert!(start.elapsed() < 4 * SHORT, "{:?}", start.elapsed());
    // The cancellation has reached the parent: no request is left in flight there.
    until(SOON, "nothing is asked any more", || tree.alive() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_starts_late_answers_requests_that_wait() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(10));
    tree.start_node(1);
    let asking = tokio::spawn(tree.parent(1).list_page(path("dir"), None, 1));
    // Leaves time for an answer, which must not arrive.
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(!asking.is_finished());
    tree.start_node(0);
    assert!(within(5, asking).await.unwrap().is_ok());
    assert_eq!(tree.status(1), LinkStatus::Connected(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_left_is_unavailable_until_it_is_back() {
    let mut tree = TestTree::plan(3, 1, Duration::from_secs(2));
    tree.start_all().await;
    let mut parts = tree
        .parent(1)
        .read(whole("file", 1024 * BLOCK_BYTES))
        .await
        .unwrap();
    let first = parts.next().await.unwrap();
    assert!(first.is_ok());
    within(1, tree.nodes[0].take().unwrap().shutdown()).await;
    // With the first part: the block may end before the parent does, and is verified then.
    let parts = futures_util::stream::iter([first]).chain(parts).boxed();
    let (_, end) = within(5, drain(parts)).await;
    assert_eq!(kind(end), FailureKind::Unavailable);
    assert_eq!(
        kind(tree.parent(1).list_page(path("dir"), None, 1).await),
        FailureKind::Unavailable
    );
    tree.start_node(0);
    assert!(
        within(5, tree.parent(2).list_page(path("dir"), None, 1))
            .await
            .is_ok()
    );
}

#[test]
fn a_restarted_parent_resets_old_connections_at_once() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (here, first) = (runtime(), runtime());
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(5));
    first.block_on(async { tree.start_node(0) });
    here.block_on(async {
        tree.start_node(1);
        tree.connected(1).await;
    });
    // Its tasks end with the runtime: as after SIGKILL, no farewell is sent.
    first.shutdown_background();
    drop(tree.nodes[0].take());
    here.block_on(async {
        // Its socket goes when its last task does.
        until(SOON, "the address is free", || {
            std::net::UdpSocket::bind(tree.address(0)).is_ok()
        })
        .await;
        tree.start_node(0);
        let start = Instant::now();
        assert!(tree.parent(1).list_page(path("dir"), None, 1).await.is_ok());
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "{:?}",
            start.elapsed()
        );
        drop(tree);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_hanging_requests_do_not_block_the_next() {
    let tree = TestTree::start(3, 1).await;
    let parent = tree.parent(2);
    let mut hanging = tokio::task::JoinSet::new();
    for _ in 0..500 {
        hanging.spawn(parent.list_page(path("hang"), None, 1));
    }
    until(SOON, "500 requests hang", || tree.alive() == 500).await;
    assert!(
        within(1, parent.list_page(path("dir"), None, 1))
            .await
            .is_ok()
    );
    drop(hanging);
    until(SOON, "nothing is asked any more", || tree.alive() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_costs_its_parent_no_memory_and_its_siblings_no_time() {
    let tree = TestTree::start(3, 2).await;
    let stalled = tree
        .parent(1)
        .read(whole("file", 64 * BLOCK_BYTES))
        .await
        .unwrap();
    let mut parts = Vec::new();
    for _ in 0..4 {
        parts.push(
            tree.parent(1)
                .read(whole("file", 64 * BLOCK_BYTES))
                .await
                .unwrap(),
        );
    }
    let produced = || tree.seen[0].produced.load(Ordering::SeqCst);
    // Whatever flow control lets through has come; then nothing more is made.
    let mut before = 0;
    until_some(SOON, "nothing more is made", async || {
        // A stream that makes nothing for this long stands still; there is no event for that.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let last = std::mem::replace(&mut before, produced());
        (last == before).then_some(())
    })
    .await;
    assert!(before <= 5 * 4 * BLOCK_BYTES, "{before}");
    // The same connection and another child are served meanwhile.
    assert!(
        within(5, tree.parent(1).list_page(path("dir"), None, 1))
            .await
            .is_ok()
    );
    let quick = tree
        .parent(2)
        .read(whole("file", 4 * BLOCK_BYTES))
        .await
        .unwrap();
    assert_eq!(within(10, drain(quick)).await, (4 * BLOCK_BYTES, Ok(())));
    // And once it reads, all of it comes.
    assert_eq!(within(30, drain(stalled)).await, (64 * BLOCK_BYTES, Ok(())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_that_never_reads_its_answers_is_bounded() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(5));
    tree.start_node(0);
    let (_endpoint, connection) = raw_child(&tree, 1).await;
    let request = Request::Read(whole("file", 1024 * BLOCK_BYTES));
    let body = message::encode_question(0, &request).unwrap();
    let mut streams = Vec::new();
    for _ in 0..200 {
        let (mut send, recv) = within(5, connection.open_bi()).await.unwrap();
        let bytes = crate::support::frame(copperfs_overlay::wire::FrameKind::Request, &body);
        send.write_all(&bytes).await.unwrap();
        send.finish().unwrap();
        streams.push(recv);
    }
    until(SOON, "200 requests hang", || tree.alive() == 200).await;
    // Gives the root time to make more than the bound.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let produced = tree.seen[0].produced.load(Ordering::SeqCst);
    // One batch for each stream, and the bytes in the windows.
    assert!(produced <= 200 * (512 << 10) + (32 << 20), "{produced}");
    connection.close(0u32.into(), b"");
    until(SOON, "nothing is asked any more", || tree.alive() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_is_bounded_with_requests_in_progress() {
    let mut tree = TestTree::start(3, 1).await;
    let asking = tokio::spawn(tree.parent(2).list_page(path("hang"), None, 1));
    until(SOON, "one request hangs", || tree.alive() == 1).await;
    let middle = tree.nodes[1].take().unwrap();
    within(1, middle.shutdown()).await;
    assert_eq!(middle.upstream().links()[0].status, LinkStatus::Stopped);
    drop(middle);
    // Whoever asked through it asks elsewhere.
    until(SOON, "it asks the root", || {
        tree.status(2) == LinkStatus::Connected(0) && tree.alive() == 1
    })
    .await;
    asking.abort();
    until(SOON, "nothing is asked any more", || tree.alive() == 0).await;
}
