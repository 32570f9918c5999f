//! Recorded first packets of handshakes, sent again by the thousand.

use crate::support::{LOOPBACK, SOON, TestTree, raw_client, within};
use crate::waiting::until;
use copperfs_overlay::identity::Identity;
use copperfs_overlay::{Files, Secret, wire};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;

/// Recorded datagrams: several times as many handshakes as a node has places.
const RECORDED: usize = 1500;
/// Datagrams sent again per second.
const PER_SECOND: u128 = 1000;

/// The first datagrams of members of the job, as an observer on the network records them.
async fn recorded(secret: &Secret) -> Vec<Vec<u8>> {
    let sink = UdpSocket::bind(LOOPBACK).await.unwrap();
    let address = sink.local_addr().unwrap();
    let identity = Identity::new(secret).unwrap();
    let client = raw_client(identity.client(&[wire::ALPN]).unwrap());
    let (mut datagrams, mut dialing) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; 65536];
    while datagrams.len() < RECORDED {
        dialing.push(client.connect(address, Identity::NAME).unwrap());
        let len = within(5, sink.recv(&mut buffer)).await.unwrap();
        datagrams.push(buffer[..len].to_vec());
        if dialing.len() == 32 {
            // No peer answers them, so they would be sent again and again.
            dialing.clear();
        }
    }
    datagrams
}

/// Sends recorded packets until it is dropped.
struct Flood {
    sent: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Flood {
    /// Sends to `target`, from a port of each of `sources`.
    async fn start(target: SocketAddr, sources: &[IpAddr], datagrams: Vec<Vec<u8>>) -> Self {
        let mut sockets = Vec::new();
        for &source in sources {
            let socket = UdpSocket::bind((source, 0)).await.unwrap();
            socket.connect(target).await.unwrap();
            sockets.push(socket);
        }
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        let task = tokio::spawn(async move {
            let start = Instant::now();
            let mut datagrams = datagrams.iter().cycle();
            let mut sockets = sockets.iter().cycle();
            loop {
                let due = start.elapsed().as_millis() * PER_SECOND / 1000;
                while u128::from(count.load(Ordering::Relaxed)) < due {
                    let socket = sockets.next().unwrap();
                    let _lost = socket.send(datagrams.next().unwrap()).await;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        Self { sent, task }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Nodes join and heal during a flood of recorded first packets from `sources`.
async fn nodes_come_and_heal(sources: &[IpAddr]) {
    // Node 1 is a child of the root, nodes 3 and 4 are its children.
    let mut tree = TestTree::plan(7, 2, Duration::from_secs(20));
    let datagrams = recorded(&tree.secret).await;
    for rank in [0, 1, 3, 4] {
        tree.start_node(rank);
        tree.connected(rank).await;
    }
    let flood = Flood::start(tree.address(0), sources, datagrams).await;
    // Many times as many as the node has places.
    until(SOON, "the flood has begun", || flood.sent() >= 1000).await;

    // This takes tenths of a second on an idle machine. The check is that it happens during the flood; if
    // places were a matter of luck, each step would take minutes.
    let begun = Instant::now();
    for rank in [2, 5, 6] {
        tree.start_node(rank);
        tree.connected(rank).await;
    }
    let joined = begun.elapsed();

    // The children of the stopped node find their way to the root.
    let begun = Instant::now();
    drop(tree.nodes[1].take());
    for rank in [3, 4] {
        let child = tree.parent(rank);
        let asked = child.list_page(crate::support::path("dir"), None, 3);
        assert_eq!(within(20, asked).await.unwrap().entries.len(), 3);
    }
    let healed = begun.elapsed();
    let children = tree.node(0).children(0);
    assert_eq!(children, ["node2", "node3", "node4"]);
    println!(
        "joined after {joined:?}, healed after {healed:?}, {} packets",
        flood.sent()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_first_packets_of_one_address_lock_no_child_out() {
    nodes_come_and_heal(&[IpAddr::from([127, 0, 0, 1])]).await;
}

/// A sender of recordings can use any source address at no cost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_first_packets_of_many_addresses_lock_no_child_out() {
    let sources: Vec<IpAddr> = (1..=40).map(|n| IpAddr::from([127, 0, 1, n])).collect();
    nodes_come_and_heal(&sources).await;
}
