//! Questions to the whole tree.

use crate::support::{SOON, TestTree, fake_parent, path, within};
use crate::waiting::{until, until_some};
use bytes::Bytes;
use copperfs_overlay::FailureKind;
use std::time::{Duration, Instant};

fn ranks(reports: &[Bytes]) -> Vec<usize> {
    reports
        .iter()
        .map(|report| {
            let text = std::str::from_utf8(report).unwrap();
            text.trim_start_matches("{\"rank\":")
                .trim_end_matches('}')
                .parse()
                .unwrap()
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_gets_every_report_in_rank_order() {
    let tree = TestTree::start(13, 3).await;
    for rank in [0, 1, 5, 12] {
        let all = within(10, tree.node(rank).cluster_reports()).await;
        assert_eq!(ranks(&all.reports), (0..13).collect::<Vec<_>>());
        assert!(all.missing.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_child_is_reported_missing_and_its_subtree_answers_elsewhere() {
    let mut tree = TestTree::start(7, 2).await;
    within(1, tree.nodes[2].take().unwrap().shutdown()).await;
    until(SOON, "the grandchildren are at the root", || {
        tree.node(0).children(0) == ["node1", "node5", "node6"]
    })
    .await;
    let start = Instant::now();
    for rank in [4, 6] {
        let all = within(10, tree.node(rank).cluster_reports()).await;
        assert_eq!(ranks(&all.reports), [0, 1, 3, 4, 5, 6]);
        assert_eq!(all.missing, ["node2"]);
        let done = within(10, tree.node(rank).clear_cluster(path("x"))).await;
        assert_eq!((done.cleared, done.missing), (6, vec!["node2".to_owned()]));
    }
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "nobody waits for the dead"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_its_parent_answers_for_its_subtree() {
    let mut tree = TestTree::plan(7, 2, Duration::from_secs(2));
    tree.start_all().await;
    within(1, tree.nodes[0].take().unwrap().shutdown()).await;
    // A busy machine may have sent node 4 to the root, which it comes back from now.
    let all = until_some(SOON, "the subtree is together", async || {
        let all = within(5, tree.node(3).cluster_reports()).await;
        (ranks(&all.reports) == [1, 3, 4]).then_some(all)
    })
    .await;
    assert_eq!(all.missing, ["node0", "node2", "node5", "node6"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_silent_parent_answers_for_its_subtree() {
    let mut tree = TestTree::plan(7, 2, Duration::from_secs(1));
    let (endpoint, task) = fake_parent(&tree.secret, tree.address(0), false, Vec::new);
    for rank in [1, 3, 4] {
        tree.start_node(rank);
        tree.connected(rank).await;
    }
    until(SOON, "both children are there", || {
        tree.node(1).children(0).len() == 2
    })
    .await;
    let start = Instant::now();
    let all = within(5, tree.node(1).cluster_reports()).await;
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(ranks(&all.reports), [1, 3, 4]);
    assert_eq!(all.missing, ["node0", "node2", "node5", "node6"]);
    endpoint.close(0u32.into(), b"");
    task.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clear_reaches_every_node_after_its_parent() {
    let tree = TestTree::start(15, 2).await;
    let done = within(10, tree.node(14).clear_cluster(path("some/where"))).await;
    assert_eq!(
        (done.cleared, done.failed.len(), done.missing.len()),
        (15, 0, 0)
    );
    let order = tree.cleared();
    assert_eq!(order.len(), 15);
    for rank in 1..15 {
        let at = |rank| order.iter().position(|&cleared| cleared == rank).unwrap();
        assert!(at((rank - 1) / 2) < at(rank), "{order:?}");
    }
    let refused = within(10, tree.node(0).clear_cluster(path("refused"))).await;
    assert_eq!((refused.cleared, refused.failed.len()), (0, 15));
    assert_eq!(refused.failed[7].0, "node7");
    assert_eq!(refused.failed[7].1.kind, FailureKind::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_node_is_reported_missing_and_its_children_answer() {
    let timeout = Duration::from_secs(5);
    let mut tree = TestTree::plan(7, 2, timeout);
    for rank in 0..7 {
        tree.start_node_as(rank, |service| service.clear_hangs = rank == 2);
    }
    for rank in 1..7 {
        tree.connected(rank).await;
    }
    let start = Instant::now();
    let done = within(30, tree.node(3).clear_cluster(path(""))).await;
    // The hanging node costs one timeout.
    assert!(start.elapsed() < 2 * timeout, "{:?}", start.elapsed());
    assert_eq!((done.cleared, done.missing.len()), (6, 0));
    assert_eq!(done.failed[0].0, "node2");
    assert_eq!(done.failed[0].1.kind, FailureKind::Unavailable);
}

/// Only what the children depend on is done before they are asked: an application that waits for storage
/// on one node does not delay the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_clear_while_their_parent_withdraws() {
    let (tell, told) = tokio::sync::watch::channel(false);
    let mut tree = TestTree::plan(7, 2, Duration::from_secs(60));
    for rank in 0..7 {
        let waits = (rank < 3).then(|| told.clone());
        tree.start_node_as(rank, |service| service.withdraw_waits = waits);
    }
    for rank in 1..7 {
        tree.connected(rank).await;
    }
    let clearing = tree.node(3).clear_cluster(path(""));
    let releasing = async {
        until(SOON, "seven nodes have cleared", || {
            tree.cleared().len() == 7
        })
        .await;
        tell.send_replace(true);
    };
    let (done, ()) = within(30, async { tokio::join!(clearing, releasing) }).await;
    assert_eq!(
        (done.cleared, done.failed.len(), done.missing.len()),
        (7, 0, 0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_that_is_too_long_is_missing() {
    let mut tree = TestTree::plan(3, 2, Duration::from_secs(5));
    for rank in 0..3 {
        tree.start_node_as(rank, |service| {
            if rank == 1 {
                service.report = Bytes::from(vec![b' '; (64 << 10) + 1]);
            }
        });
    }
    for rank in 1..3 {
        tree.connected(rank).await;
    }
    let all = within(5, tree.node(2).cluster_reports()).await;
    assert_eq!(ranks(&all.reports), [0, 2]);
    assert_eq!(all.missing, ["node1"]);
}
