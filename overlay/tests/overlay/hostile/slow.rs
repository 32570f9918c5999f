//! Slow loris: peers that begin much and finish nothing.

use super::load::{during, quietly, resident, root_and_child};
use crate::log;
use crate::support::{SOON, TestTree, raw_child, raw_member, within};
use crate::waiting::until;
use copperfs_overlay::wire::FrameKind;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Streams that a child may have open, less the one of its hello, which may not be gone yet.
const STREAMS: usize = 1000;
/// No other test of this process uses this name, so its log lines are from here.
const RANK: usize = 37;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_partial_requests_do_not_delay_a_child() {
    log::keep();
    let (mut tree, child) = root_and_child(40, 1).await;
    let quiet = quietly(&child, 200).await;
    let (memory, asked) = (
        resident(),
        tree.node(0).counters().downstream_requests.get(),
    );
    let (_endpoint, slow) = raw_child(&tree, RANK).await;
    // The header of a request of 200 bytes, and then a byte at a time.
    let begin = [200, 0, 0, 0, FrameKind::Request as u8];
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let (mut send, recv) = within(5, slow.open_bi()).await.unwrap();
        send.write_all(&begin).await.unwrap();
        streams.push((send, recv));
    }
    let drip = async {
        for _ in 0..15 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            for (send, _recv) in &mut streams {
                let _refused = send.write_all(&[1]).await;
            }
        }
    };
    let noticed = during(&child, drip).await;
    noticed.is_no_worse_than(&quiet);
    let grown = resident().saturating_sub(memory);
    assert!(
        grown < 64 << 20,
        "{} MiB for {STREAMS} streams",
        grown >> 20
    );
    // Nothing of it got as far as being asked.
    let answered = tree.node(0).counters().downstream_requests.get() - asked;
    assert_eq!(answered, u64::try_from(noticed.requests).unwrap());
    assert_eq!(tree.seen[0].alive.load(Ordering::SeqCst), 0);
    let logged = log::lines(&format!("Child(Member({RANK})"));
    assert!(logged.len() <= 1, "{logged:?}");
    // Others still come and go, and so does the slow one.
    tree.start_node(2);
    tree.connected(2).await;
    slow.close(0u32.into(), b"");
    until(SOON, "the slow one is gone and node 2 is there", || {
        tree.node(0).children(0) == ["node1", "node2"]
    })
    .await;
}

/// As many strangers as one address may have at a time, each of which sends its hello a byte at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_hellos_hold_their_slots_for_seconds_only() {
    log::keep();
    let (mut tree, child) = root_and_child(40, 1).await;
    let quiet = quietly(&child, 100).await;
    let mut slow = Vec::new();
    for _ in 0..32 {
        let (endpoint, connection) = raw_member(&tree.secret, tree.address(0)).await;
        let streams = connection.open_bi().await.unwrap();
        slow.push((endpoint, connection, streams));
    }
    let words = tree.hello(2);
    tree.start_node(3);
    let newcomer = tree.parent(3);
    let drip = async {
        for byte in words.chunks(1).take(12) {
            for (_, _, (send, _recv)) in &mut slow {
                let _closed = send.write_all(byte).await;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    during(&child, drip).await.is_no_worse_than(&quiet);
    let mut told = 0;
    for (_endpoint, connection, _streams) in &slow {
        match within(5, connection.closed()).await {
            // The packet with the reason was lost: see `refusal`.
            quinn::ConnectionError::Reset => {}
            error => {
                let error = error.to_string();
                assert!(error.contains("no hello in time"), "{error}");
                told += 1;
            }
        }
    }
    assert!(told > slow.len() / 2, "only {told} were told the reason");
    within(15, newcomer.first_connected()).await;
    // All come from one address, for one reason.
    let mut logged = log::lines("no hello in time");
    // Nodes of other tests may have met slow strangers of their own.
    let ports = slow
        .iter()
        .map(|(endpoint, ..)| endpoint.local_addr().unwrap().port());
    let peers: Vec<String> = ports.map(|port| format!(":{port} ")).collect();
    logged.retain(|line| peers.iter().any(|peer| line.contains(peer)));
    assert_eq!(logged.len(), 1, "{logged:?}");
}

/// A child that sends its first report a byte at a time holds up the others for as long as one that sends nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_report_in_drops_is_not_waited_for() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(30));
    tree.start_node(0);
    let (_endpoint, slow) = raw_child(&tree, 1).await;
    let drip = tokio::spawn(async move {
        let (mut send, _recv) = slow.accept_bi().await.unwrap();
        let begin = [200, 0, 0, 0, FrameKind::Report as u8];
        send.write_all(&begin).await.unwrap();
        while send.write_all(&[1]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    let reports = within(10, tree.node(0).cluster_reports()).await;
    assert_eq!(reports.missing, ["node1"]);
    within(5, drip).await.unwrap();
}
