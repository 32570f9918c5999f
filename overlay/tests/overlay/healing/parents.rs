//! A parent that dies, leaves, is cut off, or is slow: real QUIC, and readers that check every byte.

use super::cable::{Cabled, Reader};
use crate::support::{SOON, path, within};
use crate::waiting::until;
use bytes::Bytes;
use copperfs_overlay::{FailureKind, Files, LinkStatus, Orphan, WarmProgress};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// Twice the silence that counts as death while requests are in flight, and a second.
const STALL_MAX: Duration = Duration::from_secs(3);
/// Work that a loaded machine adds to it.
const SLACK: Duration = Duration::from_millis(500);

async fn all_make_progress(readers: impl IntoIterator<Item = &Reader>) {
    for reader in readers {
        reader.makes_progress().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_is_cut_off_costs_time_and_nothing_else() {
    let cabled = Cabled::start(7, 2, vec![0]).await;
    let readers = [5, 6].map(|rank| Reader::start(&cabled.tree.parent(rank)));
    let bystander = Reader::start(&cabled.tree.parent(3));
    all_make_progress(readers.iter().chain([&bystander])).await;
    cabled.cables[2].pull();
    let moved = cabled.moved(5, 0).await.max(cabled.moved(6, 0).await);
    all_make_progress(readers.iter().chain([&bystander])).await;
    let bystander = bystander.end().await;
    for reader in readers {
        let took = reader.end().await;
        println!("moved after {moved:?}, longest answer {:?}", took.longest);
        took.is_within(STALL_MAX + SLACK, &bystander);
    }
    assert!(cabled.tree.node(5).counters().replays.get() > 0);
    // After a while the root drops the connection of the node that is cut off, too.
    let mut children = cabled.tree.node(0).children(0);
    children.retain(|name| name != "node2");
    assert_eq!(children, ["node1", "node5", "node6"]);
    // Once its cable is back it is home again, and still without an error.
    let reader = Reader::start(&cabled.tree.parent(5));
    cabled.cables[2].plug();
    let back = cabled.home(5).await.max(cabled.home(6).await);
    println!("home after {back:?}");
    reader.end().await;
    let link = &cabled.tree.parent(5).links()[0];
    assert_eq!((link.failovers, link.returns), (1, 1));
}

#[test]
fn a_parent_that_is_killed_costs_time_and_nothing_else() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (here, other) = (runtime(), runtime());
    let mut cabled = Cabled::plan(4, 1, vec![0]);
    other.block_on(async { cabled.start_node(2, |_| {}) });
    here.block_on(async {
        for rank in [0, 1, 3] {
            cabled.start_node(rank, |_| {});
        }
        cabled.tree.connected(2).await;
        cabled.tree.connected(3).await;
        let reader = Reader::start(&cabled.tree.parent(3));
        reader.makes_progress().await;
        // Its tasks end with the runtime: as after SIGKILL, no farewell is sent.
        other.shutdown_background();
        let killed = cabled.tree.nodes[2].take();
        // The grandparent or the root, whichever answers first; then the nearer one.
        let moved = cabled.moved(3, 1).await;
        drop(killed);
        reader.makes_progress().await;
        let took = reader.end().await;
        println!(
            "at the grandparent after {moved:?}, longest answer {:?}",
            took.longest
        );
        until(SOON, "the address is free", || {
            std::net::UdpSocket::bind(cabled.tree.address(2)).is_ok()
        })
        .await;
        cabled.start_node(2, |_| {});
        cabled.home(3).await;
        drop(cabled);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_leaves_is_hardly_noticed() {
    let mut cabled = Cabled::start(7, 2, vec![0]).await;
    for _ in 0..2 {
        let readers = [5, 6].map(|rank| Reader::start(&cabled.tree.parent(rank)));
        let bystander = Reader::start(&cabled.tree.parent(3));
        all_make_progress(readers.iter().chain([&bystander])).await;
        let leaving = cabled.tree.nodes[2].take().unwrap();
        within(10, leaving.shutdown()).await;
        drop(leaving);
        cabled.moved(5, 0).await;
        cabled.moved(6, 0).await;
        until(SOON, "the address is free", || {
            std::net::UdpSocket::bind(cabled.tree.address(2)).is_ok()
        })
        .await;
        cabled.start_node(2, |_| {});
        cabled.home(5).await;
        cabled.home(6).await;
        let bystander = bystander.end().await;
        for reader in readers {
            // The lost connection was noticed without waiting for the peer timeout.
            reader
                .end()
                .await
                .is_within(Duration::from_secs(2), &bystander);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_of_the_inner_nodes_may_be_cut_off_at_once() {
    let mut cabled = Cabled::plan(15, 2, vec![0]);
    // Fifteen nodes in one process, and each request crosses up to four of them while they move: a machine
    // that is busy with much else needs more than the usual time.
    cabled.tree.timeout = Duration::from_secs(60);
    cabled.start_all().await;
    let readers: Vec<Reader> = (7..15)
        .map(|rank| Reader::start(&cabled.tree.parent(rank)))
        .collect();
    all_make_progress(&readers).await;
    for rank in [1, 3, 5] {
        cabled.cables[rank].pull();
    }
    // Longer than every silence that counts as death: nodes have moved, or try to.
    tokio::time::sleep(Duration::from_secs(5)).await;
    for rank in [1, 3, 5] {
        cabled.cables[rank].plug();
    }
    for rank in 1..15 {
        cabled.home(rank).await;
    }
    for reader in readers {
        println!("{:?}", reader.end().await);
    }
}

/// A child of the root has no other ancestor: requests in flight wait until the root is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_root_may_be_away_for_a_while() {
    let cabled = Cabled::start(3, 1, vec![0]).await;
    let reader = Reader::start(&cabled.tree.parent(2));
    reader.makes_progress().await;
    cabled.cables[0].pull();
    let gone = Instant::now();
    let stranded = || matches!(cabled.tree.status(1), LinkStatus::Stranded { .. });
    until(SOON, "node 1 is stranded", stranded).await;
    println!("stranded after {:?}", gone.elapsed());
    cabled.cables[0].plug();
    cabled.home(1).await;
    cabled.home(2).await;
    reader.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_cut_off_follows_its_policy() {
    for orphan in [Orphan::Wait, Orphan::Origin, Orphan::Error] {
        let mut cabled = Cabled::plan(2, 2, vec![0]);
        cabled.start_node(0, |_| {});
        let config = cabled.config(1, |config| config.orphan = orphan);
        // As one that could read storage itself.
        cabled.tree.roots = vec![0, 1];
        let node = cabled.tree.try_start(1, config, |_| {}).unwrap();
        cabled.tree.nodes[1] = Some(node);
        cabled.tree.connected(1).await;
        let files = cabled.tree.parent(1);
        assert!(files.list_page(path("dir"), None, 1).await.is_ok());
        cabled.cables[0].pull();
        let begun = Instant::now();
        let asked = tokio::spawn(files.list_page(path("dir"), None, 1));
        if orphan == Orphan::Wait {
            until(SOON, "node 1 is stranded", || {
                matches!(cabled.tree.status(1), LinkStatus::Stranded { .. })
            })
            .await;
            assert!(!asked.is_finished());
            cabled.cables[0].plug();
            assert!(within(10, asked).await.unwrap().is_ok());
            continue;
        }
        let answer = within(10, asked).await.unwrap();
        // Well before the timeout of the request itself.
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{:?}",
            begun.elapsed()
        );
        match orphan {
            Orphan::Origin => assert!(answer.is_ok()),
            _ => assert_eq!(answer.unwrap_err().kind, FailureKind::Unavailable),
        }
    }
}

/// The short version of a job that uses every core: no node moves.
#[test]
fn busy_cpus_move_no_node() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        for _ in 0..2 * cores {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(async {
                let cabled = Cabled::start(7, 2, vec![0, 3]).await;
                let readers = [4, 5, 6].map(|rank| Reader::start(&cabled.tree.parent(rank)));
                // Gives nodes time for a move, which would be wrong.
                tokio::time::sleep(Duration::from_secs(6)).await;
                for reader in readers {
                    println!("{:?}", reader.end().await);
                }
                for rank in 0..7 {
                    for link in cabled.tree.parent(rank).links() {
                        assert_eq!(link.failovers, 0, "node {rank} moved");
                        assert_eq!(link.status, LinkStatus::Connected(link.home));
                    }
                }
            });
        }));
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
}

/// Storage may take its time: a parent that waits for it is not silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_waits_for_storage_is_not_given_up() {
    let cabled = Cabled::start(3, 1, vec![0]).await;
    let files = cabled.tree.parent(2);
    let asked = tokio::spawn(files.list_page(path("hang"), None, 1));
    // Longer than a child waits for a silent parent.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!asked.is_finished());
    for rank in [1, 2] {
        let link = &cabled.tree.parent(rank).links()[0];
        assert_eq!(link.status, LinkStatus::Connected(rank - 1));
        assert_eq!((link.failovers, link.returns), (0, 0));
        assert_eq!(cabled.tree.node(rank).counters().replays.get(), 0);
    }
    asked.abort();
}

/// The parent is alive and its child reaches it, but only the child reaches the root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranded_parent_releases_its_children() {
    let cabled = Cabled::start(3, 1, vec![0]).await;
    let reader = Reader::start(&cabled.tree.parent(2));
    reader.makes_progress().await;
    cabled.cables[1].avoid(cabled.tree.address(0));
    let moved = cabled.moved(2, 0).await;
    println!("moved after {moved:?}");
    // Gives node 2 time for a return, which would be wrong.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        cabled.above(2),
        [Some(0)],
        "does not go back to one that is cut off"
    );
    let took = reader.end().await;
    println!("{took:?}");
    cabled.cables[1].plug();
    cabled.home(1).await;
    cabled.home(2).await;
}

/// A node that has carried out a plan as far as it has come asks its parent for nothing. The rest of the
/// plan is due all the same, so it notices that its parent is gone, and is given the plan by another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_continues_below_a_parent_that_is_cut_off() {
    let cabled = Cabled::start(4, 2, vec![0]).await;
    let (pages, plan) = mpsc::channel(4);
    let progress = watch::Sender::new(WarmProgress::default());
    let warming = cabled.tree.node(0).warm_cluster(plan, &progress);
    let cutting = async {
        pages.send(Bytes::from_static(b"page")).await.unwrap();
        until(SOON, "all nodes take part", || progress.borrow().nodes == 4).await;
        cabled.cables[1].pull();
        let moved = cabled.moved(3, 0).await;
        // Without a watch it would move when the plan's own streams end, after 15 s.
        assert!(moved < Duration::from_secs(10), "moved after {moved:?}");
        until(SOON, "the plan reaches it again", || {
            progress.borrow().nodes == 3
        })
        .await;
        drop(pages);
    };
    let (outcome, ()) = within(60, async { tokio::join!(warming, cutting) }).await;
    assert_eq!(
        (outcome.warmed, outcome.missing),
        (3, vec!["node1".to_owned()])
    );
}
