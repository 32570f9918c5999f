//! Datagrams that an attacker on the network has recorded, and sends again.

use crate::support::{LOOPBACK, SOON, TestTree, path, within};
use crate::waiting::until;
use copperfs_overlay::Files;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::UdpSocket;

/// Forwards datagrams between a child and its parent, and records those of the child.
struct Tap {
    address: SocketAddr,
    towards_parent: Arc<UdpSocket>,
    recorded: Arc<Mutex<Vec<Vec<u8>>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Tap {
    async fn new(parent: SocketAddr) -> Self {
        let towards_child = UdpSocket::bind(LOOPBACK).await.unwrap();
        let towards_parent = Arc::new(UdpSocket::bind(LOOPBACK).await.unwrap());
        towards_parent.connect(parent).await.unwrap();
        let address = towards_child.local_addr().unwrap();
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let (kept, outside) = (Arc::clone(&recorded), Arc::clone(&towards_parent));
        let task = tokio::spawn(async move {
            let (mut up, mut down) = (vec![0; 65536], vec![0; 65536]);
            let mut child = None;
            loop {
                tokio::select! {
                    Ok((len, from)) = towards_child.recv_from(&mut up) => {
                        child = Some(from);
                        kept.lock().unwrap().push(up[..len].to_vec());
                        let _lost = outside.send(&up[..len]).await;
                    }
                    Ok(len) = outside.recv(&mut down) => if let Some(child) = child {
                        let _lost = towards_child.send_to(&down[..len], child).await;
                    }
                }
            }
        });
        Self {
            address,
            towards_parent,
            recorded,
            task,
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replayed_connection_has_no_effect() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(5));
    tree.start_node(0);
    let tap = Tap::new(tree.address(0)).await;
    let mut config = tree.config(1);
    config.members[0].address = tap.address.to_string();
    tree.nodes[1] = Some(tree.try_start(1, config, |_| {}).unwrap());
    tree.connected(1).await;
    let (child, dir) = (tree.parent(1), path("dir"));
    child.list_page(dir.clone(), None, 10).await.unwrap();
    tree.node(1).clear_cluster(path("x")).await;
    let answered = || tree.node(0).counters().downstream_requests.get();
    let before = answered();
    let (cleared, recorded) = (tree.cleared(), tap.recorded.lock().unwrap().clone());
    assert!(recorded.len() > 4, "{} datagrams", recorded.len());

    let stranger = UdpSocket::bind(LOOPBACK).await.unwrap();
    stranger.connect(tree.address(0)).await.unwrap();
    for _ in 0..3 {
        for datagram in &recorded {
            tap.towards_parent.send(datagram).await.unwrap();
            stranger.send(datagram).await.unwrap();
            // In halves and with one bit changed, too.
            let _refused = stranger.send(&datagram[..datagram.len() / 2]).await;
            let mut changed = datagram.clone();
            changed[datagram.len() - 1] ^= 1;
            let _refused = tap.towards_parent.send(&changed).await;
        }
        // Datagrams that were sent before arrive before this request.
        within(5, child.list_page(dir.clone(), None, 10))
            .await
            .unwrap();
    }
    assert_eq!(answered(), before + 3);
    assert_eq!(tree.cleared(), cleared);
    assert_eq!(tree.node(0).children(0), ["node1"]);

    // With the connection gone its packets mean nothing at all.
    tree.nodes[1] = None;
    until(SOON, "the child is gone", || {
        tree.node(0).children(0).is_empty()
    })
    .await;
    for datagram in &recorded {
        stranger.send(datagram).await.unwrap();
    }
    // Leaves time for an answer, which must not arrive.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(tree.node(0).children(0).is_empty());
    assert_eq!(
        tree.node(0).counters().downstream_requests.get(),
        before + 3
    );
}
