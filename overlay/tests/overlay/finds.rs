//! Bytes by their hash, from the caches of those above.

use crate::support::{SOON, TestTree, hash_of, kind, within};
use crate::waiting::until;
use bytes::Bytes;
use copperfs_overlay::{BLOCK_BYTES, FailureKind, Files};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A chain of four in which rank 1 answers as `finds` says.
async fn chain(finds: crate::support::FindAnswer) -> TestTree {
    let mut tree = TestTree::plan(4, 1, Duration::from_secs(20));
    for rank in [0, 2, 3] {
        tree.start_node(rank);
    }
    tree.start_node_as(1, |service| service.finds = finds);
    for rank in 0..4 {
        tree.connected(rank).await;
    }
    tree
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_is_found_two_hops_up() {
    use crate::support::FindAnswer;
    let bytes = Bytes::from(vec![9; 1 << 20]);
    let tree = chain(FindAnswer::Holds(bytes.clone())).await;
    let leaf = tree.parent(3);
    let found = within(10, leaf.find(hash_of(&bytes), BLOCK_BYTES)).await;
    assert_eq!(found.unwrap(), bytes);
    // Checked on each hop.
    for rank in [2, 3] {
        assert_eq!(
            tree.node(rank).counters().blocks_verified.get(),
            1,
            "{rank}"
        );
    }
    // Other bytes, and another length of these, are with nobody: asked all the way to the root, and
    // no further.
    for (hash, len) in [
        (hash_of(b"other"), BLOCK_BYTES),
        (hash_of(&bytes), BLOCK_BYTES - 1),
    ] {
        let found = within(10, leaf.find(hash, len)).await;
        assert_eq!(kind(found), FailureKind::NotFound);
    }
    assert_eq!(tree.node(1).counters().upstream_requests.get(), 2);
    assert_eq!(tree.seen[0].produced.load(Ordering::SeqCst), 0);
    // Invalid requests are not sent.
    let before = tree.node(3).counters().upstream_requests.get();
    for len in [0, BLOCK_BYTES + 1] {
        let found = within(10, leaf.find(hash_of(b"other"), len)).await;
        assert_eq!(kind(found), FailureKind::NotFound);
    }
    assert_eq!(tree.node(3).counters().upstream_requests.get(), before);
    // A root has no node above it.
    let found = within(10, tree.parent(0).find(hash_of(&bytes), BLOCK_BYTES)).await;
    assert_eq!(kind(found), FailureKind::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_are_refused_and_counted() {
    let tree = chain(crate::support::FindAnswer::Corrupt(Bytes::from_static(
        b"wrong",
    )))
    .await;
    let found = within(10, tree.parent(3).find(hash_of(b"right"), 5)).await;
    assert_eq!(kind(found), FailureKind::NotFound);
    let wrong = |rank| tree.node(rank).counters().wrong_blocks.get();
    assert_eq!((wrong(2), wrong(3)), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_tree_does_not_block_a_find() {
    let tree = chain(crate::support::FindAnswer::Hangs).await;
    let begun = Instant::now();
    // More than have a turn at once.
    let leaf = tree.parent(3);
    let asked: Vec<_> = (0..10_u8)
        .map(|number| tokio::spawn(leaf.find(hash_of(&[number]), 1)))
        .collect();
    for one in asked {
        let found = within(10, one).await.unwrap();
        assert_eq!(kind(found), FailureKind::NotFound);
    }
    assert!(
        begun.elapsed() >= Duration::from_secs(1),
        "nobody was asked"
    );
    // No request is left in flight.
    until(SOON, "nothing is asked any more", || tree.alive() == 0).await;
    assert_eq!(tree.node(3).counters().wrong_blocks.get(), 0);
}
