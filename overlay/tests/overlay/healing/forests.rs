//! Several roots: the root of each item, the substitutes for a dead root, and the cost of disagreement.

use super::cable::{Cabled, HEALED, Reader, right};
use crate::support::{path, whole, within};
use crate::waiting::{until, until_some};
use copperfs_overlay::{BLOCK_BYTES, Files, Forest, ItemPath, Orphan};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes that each root's storage has yielded.
fn produced(cabled: &Cabled) -> Vec<u64> {
    let seen = |root: &usize| cabled.tree.seen[*root].produced.load(Ordering::SeqCst);
    cabled.tree.roots.iter().map(seen).collect()
}

/// A name whose item's trees are these, in this order.
fn name_of(cabled: &Cabled, order: &[usize]) -> String {
    let placement = cabled.tree.node(0).membership().placement().clone();
    let is_so = |path: &ItemPath| {
        let mut found = order.iter().enumerate();
        found.all(|(at, tree)| placement.tree(path, u8::try_from(at).unwrap()) == Some(*tree))
    };
    let mut names = (0..1000).map(|i| format!("file{i}"));
    names.find(|name| is_so(&path(name))).unwrap()
}

async fn read(cabled: &Cabled, rank: usize, name: &str) {
    let files = cabled.tree.parent(rank);
    let parts = files.read(whole(name, BLOCK_BYTES)).await.unwrap();
    assert_eq!(within(20, right(parts)).await, Ok(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_item_is_read_by_its_root_only() {
    for count in [2, 3] {
        let cabled = Cabled::start(7, 3, Forest::spread(7, count)).await;
        for tree in 0..count {
            let name = name_of(&cabled, &[tree]);
            for rank in 0..7 {
                let before = produced(&cabled);
                read(&cabled, rank, &name).await;
                let mut expected = before;
                expected[tree] += BLOCK_BYTES;
                assert_eq!(produced(&cabled), expected, "{name} at {rank}");
            }
        }
        for tree in 0..count {
            let root = cabled.tree.roots[tree];
            for rank in (0..7).filter(|&rank| rank != root) {
                let found = cabled.tree.parent(rank).origins(tree).await.unwrap();
                assert_eq!(found[0].fingerprint, [7; 16]);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_roots_items_go_to_the_next_and_come_back() {
    let cabled = Cabled::start(9, 3, Forest::spread(9, 3)).await;
    let name = name_of(&cabled, &[1, 2, 0]);
    let other = name_of(&cabled, &[0]);
    let readers = [4, 7].map(|rank| Reader::start(&cabled.tree.parent(rank)));
    read(&cabled, 8, &name).await;
    cabled.cables[3].pull();
    // The root goes on with requests that arrived before. A root that makes nothing for this long has done
    // them; there is no event for that.
    let mut made = produced(&cabled)[1];
    until_some(HEALED, "the dead root makes nothing more", async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let last = std::mem::replace(&mut made, produced(&cabled)[1]);
        (last == made).then_some(())
    })
    .await;
    let begun = Instant::now();
    for rank in [1, 2, 5, 8] {
        let before = produced(&cabled)[1];
        let files = cabled.tree.parent(rank);
        let parts = files.read(whole(&name, BLOCK_BYTES)).await.unwrap();
        within(20, right(parts)).await.unwrap();
        assert_eq!(produced(&cabled)[1], before);
    }
    println!("the next root answers after {:?}", begun.elapsed());
    let before = begun.elapsed();
    read(&cabled, 8, &other).await;
    println!("another root's item takes {:?}", begun.elapsed() - before);
    for reader in readers {
        println!("{:?}", reader.end().await);
    }
    cabled.cables[3].plug();
    for rank in 0..9 {
        cabled.home(rank).await;
    }
    let before = produced(&cabled)[1];
    read(&cabled, 8, &name).await;
    assert_eq!(produced(&cabled)[1], before + BLOCK_BYTES);
}

/// One node cannot reach a root that all others can: they disagree on which nodes are alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disagreement_costs_a_second_read_of_storage_and_no_wrong_byte() {
    let cabled = Cabled::start(6, 3, vec![0, 3]).await;
    let name = name_of(&cabled, &[0, 1]);
    // Cut off from root 0 and from all its ancestors in that tree.
    for above in cabled.tree.node(5).membership().ancestors(0) {
        let address = cabled.tree.address(above);
        cabled.cables[5].avoid(address);
    }
    let reads = [1, 2, 4, 5].map(|rank| {
        let files = cabled.tree.parent(rank);
        let request = whole(&name, BLOCK_BYTES);
        tokio::spawn(async move { right(files.read(request).await.unwrap()).await })
    });
    for read in reads {
        within(20, read).await.unwrap().unwrap();
    }
    // Nodes of this test cache nothing, so the requests to storage can be counted.
    assert_eq!(produced(&cabled)[0], 3 * BLOCK_BYTES);
    assert_eq!(produced(&cabled)[1], BLOCK_BYTES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cluster_answers_without_one_root() {
    let cabled = Cabled::start(9, 3, vec![0, 4]).await;
    // A root, and an inner node of the other tree; readers notice.
    let readers = [3, 7, 8].map(|rank| Reader::start(&cabled.tree.parent(rank)));
    cabled.cables[0].pull();
    // Longer than every silence that counts as death: readers meet the dead root and go around it.
    tokio::time::sleep(Duration::from_secs(5)).await;
    for reader in readers {
        reader.end().await;
    }
    for rank in [7, 8] {
        let begun = Instant::now();
        let all = within(30, cabled.tree.node(rank).cluster_reports()).await;
        assert_eq!(all.missing, ["node0"]);
        assert_eq!(all.reports.len(), 8);
        println!("reports after {:?}", begun.elapsed());
        let done = within(60, cabled.tree.node(rank).clear_cluster(path("x"))).await;
        println!("cleared after {:?}: {done:?}", begun.elapsed());
        assert_eq!((done.cleared, done.failed.len()), (8, 0));
        assert_eq!(done.missing, ["node0"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_few() {
    for (len, arity, roots) in [(15, 2, 1), (15, 2, 2), (15, 4, 3), (16, 4, 4)] {
        let cabled = Cabled::start(len, arity, Forest::spread(len, roots)).await;
        let count = |rank: usize| {
            let up: BTreeSet<usize> = cabled.above(rank).into_iter().flatten().collect();
            let down = (0..roots).flat_map(|tree| cabled.tree.node(rank).children(tree));
            let down: BTreeSet<String> = down.collect();
            up.len() + down.len()
        };
        for rank in 0..len {
            // A node that started late was replaced meanwhile: its children return to it.
            let most = arity + roots + 1;
            let what = format!("node {rank} of {len} has at most {most} connections");
            until(HEALED, what, || count(rank) <= most).await;
        }
    }
}

/// No root is left: each node follows its policy, and no read returns wrong bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_root_nodes_wait_for_one() {
    let mut cabled = Cabled::plan(3, 2, vec![0, 1]);
    for rank in 0..3 {
        cabled.start_node(rank, |config| config.orphan = Orphan::Wait);
    }
    cabled.home(2).await;
    cabled.cables[0].pull();
    cabled.cables[1].pull();
    let files = cabled.tree.parent(2);
    let asked = tokio::spawn(files.list_page(path("dir"), None, 1));
    // Leaves time for an answer, which must not arrive.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!asked.is_finished());
    // Whichever comes back first answers.
    cabled.cables[1].plug();
    assert!(within(10, asked).await.unwrap().is_ok());
}
