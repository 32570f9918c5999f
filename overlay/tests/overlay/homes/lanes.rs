//! Nodes with lanes.

use super::{home, request};
use crate::support::{CustomAnswers, LOOPBACK, SOON, TestTree, within};
use crate::waiting::until_some;
use copperfs_overlay::transport::{self, Bound, KernelNetwork};
use copperfs_overlay::{Homes, ItemAnswer, NodeIdentity, Overlay, OverlayConfig};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};

/// Runtimes of one thread each.
struct Lanes(Vec<Runtime>);

impl Lanes {
    fn start(count: usize) -> Self {
        let lane = |number| {
            let mut builder = Builder::new_multi_thread();
            let named = builder
                .worker_threads(1)
                .thread_name(format!("lane{number}"));
            named.enable_all().build().unwrap()
        };
        Self((0..count).map(lane).collect())
    }

    fn handles(&self) -> Vec<Handle> {
        self.0.iter().map(|lane| lane.handle().clone()).collect()
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Runtime::shutdown_background);
    }
}

/// Starts node `rank` with these lanes, when its address is free.
async fn start(tree: &mut TestTree, rank: usize, lanes: &Lanes, answers: &CustomAnswers) {
    let node = until_some(SOON, "its address is free", async || {
        let config = tree.config(rank);
        let sockets = transport::bind(config.listen, lanes.0.len()).ok()?;
        let config = OverlayConfig {
            network: Arc::new(Bound::new(sockets, Arc::new(KernelNetwork))),
            lanes: lanes.handles(),
            ..config
        };
        let answers = answers.clone();
        let node = tree.try_start(rank, config, |service| service.answers = answers);
        Some(node.unwrap())
    });
    tree.nodes[rank] = Some(node.await);
}

/// Requests an item from `home` on `lane`.
async fn read(homes: &Homes, lane: &Handle, home: usize) {
    let homes = homes.clone();
    let reading = async move { homes.item(home, request("file", 0, 5000, 5000)).await };
    let answer = within(10, lane.spawn(reading)).await.unwrap();
    assert!(matches!(answer, Ok(ItemAnswer::Bytes { .. })), "{answer:?}");
}

fn asked(node: &Overlay) -> Vec<u64> {
    let lanes = node.counters().lanes();
    lanes.iter().map(|lane| lane.asked.get()).collect()
}

fn answered(node: &Overlay) -> Vec<u64> {
    let lanes = node.counters().lanes();
    let mut answered: Vec<u64> = lanes.iter().map(|lane| lane.answered.get()).collect();
    answered.sort_unstable();
    answered
}

/// A home that records the threads on which it answers.
fn recording(threads: &Arc<Mutex<Vec<String>>>) -> CustomAnswers {
    let threads = Arc::clone(threads);
    CustomAnswers::default().items(move |request| {
        let current = thread::current().name().unwrap_or_default().to_owned();
        threads.lock().unwrap().push(current);
        async move {
            let bytes = super::bytes_of(&request);
            Ok(ItemAnswer::Bytes {
                blocks: request.hashed(&bytes),
                cached: true,
                charged: 0,
                admitted: 0,
            })
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_lane_has_connections_of_its_own_to_lanes_of_the_home() {
    let mut tree = TestTree::plan(3, 2, Duration::from_secs(20));
    let (of_home, of_reader) = (Lanes::start(3), Lanes::start(2));
    let threads = Arc::default();
    start(&mut tree, 0, &of_home, &recording(&threads)).await;
    start(&mut tree, 1, &of_reader, &home()).await;
    start(&mut tree, 2, &Lanes::start(0), &home()).await;
    for rank in [1, 2] {
        tree.connected(rank).await;
    }
    let homes = tree.node(1).homes().clone();
    for (lane, count) in of_reader.handles().iter().zip([4, 6]) {
        for _ in 0..count {
            read(&homes, lane, 0).await;
        }
    }
    assert_eq!(homes.connected(), 2);
    assert_eq!(asked(tree.node(1)), [4, 6]);
    // Two lanes of the home, each by the thread of the lane.
    assert_eq!(answered(tree.node(0)), [0, 4, 6]);
    let mut met: Vec<String> = threads.lock().unwrap().drain(..).collect();
    met.sort_unstable();
    met.dedup();
    assert!(
        met.len() == 2 && met.iter().all(|name| name.starts_with("lane")),
        "{met:?}"
    );
    // A node without lanes, too, and a thread that is no lane.
    let current = Handle::current();
    read(&tree.node(2).homes().clone(), &current, 0).await;
    read(&homes, &current, 2).await;
    // By the lane of its hash.
    assert!([[5, 6], [4, 7]].contains(&asked(tree.node(1)).try_into().unwrap()));
    assert_eq!(asked(tree.node(2)), [1]);
    // The tree does not need the lanes.
    assert_eq!(tree.node(0).children(0).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_may_have_lanes() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(20));
    let (of_home, of_guest) = (Lanes::start(2), Lanes::start(3));
    start(&mut tree, 0, &of_home, &home()).await;
    let config = OverlayConfig {
        identity: NodeIdentity::Guest("late".into()),
        listen: LOOPBACK.parse().unwrap(),
        lanes: of_guest.handles(),
        ..tree.config(1)
    };
    let guest = tree.try_start(1, config, |_| {}).unwrap();
    within(10, guest.upstream().first_connected()).await;
    for lane in of_guest.handles() {
        read(guest.homes(), &lane, 0).await;
    }
    assert_eq!(guest.homes().connected(), 3);
    assert_eq!(answered(tree.node(0)), [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_may_come_back_with_another_number_of_lanes() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(20));
    let of_reader = Lanes::start(4);
    start(&mut tree, 1, &of_reader, &home()).await;
    for count in [2, 5, 0, 3] {
        let of_home = Lanes::start(count);
        start(&mut tree, 0, &of_home, &home()).await;
        tree.connected(1).await;
        let homes = tree.node(1).homes().clone();
        for lane in of_reader.handles() {
            // What was lost with the home is left alone for a second.
            until_some(SOON, "the home is back", async || {
                let homes = homes.clone();
                let reading = async move { homes.item(0, request("file", 0, 9, 9)).await };
                lane.spawn(reading).await.unwrap().ok()
            })
            .await;
        }
        assert_eq!(homes.connected(), 4, "{count}");
        drop(tree.nodes[0].take());
    }
}
