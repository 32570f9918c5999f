//! The memory of an idle connection.

use crate::support::{TestTree, raw_client, within};
use copperfs_overlay::identity::Identity;
use copperfs_overlay::wire;
use std::sync::Arc;
use std::time::Duration;

const CHILDREN: usize = 300;
/// A side.
const BYTES_MAX: usize = 65 << 10;

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

/// Both sides are in this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_costs_little_memory() {
    let mut tree = TestTree::plan(CHILDREN + 1, CHILDREN, Duration::from_secs(10));
    tree.start_node(0);
    let tls = Identity::new(&tree.secret).unwrap().client(&[wire::ALPN]);
    let endpoint = raw_client(tls.unwrap());
    // With keep-alives, like a real child: on a busy machine the first connections would time out before
    // the last ones arrive.
    let mut alive = quinn::TransportConfig::default();
    alive.keep_alive_interval(Some(Duration::from_secs(2)));
    let tls = Identity::new(&tree.secret).unwrap().client(&[wire::ALPN]);
    let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls.unwrap()).unwrap();
    let mut config = quinn::ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(alive));
    let mut kept = Vec::new();
    let mut before = 0;
    for rank in 1..=CHILDREN {
        // The first connections allocate the memory that all share.
        if rank == CHILDREN / 3 {
            before = resident();
        }
        let connecting = endpoint
            .connect_with(config.clone(), tree.address(0), Identity::NAME)
            .unwrap();
        let connection = within(10, connecting).await.unwrap();
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        send.write_all(&tree.hello(rank)).await.unwrap();
        send.finish().unwrap();
        within(10, recv.read_to_end(64)).await.unwrap();
        kept.push(connection);
    }
    assert_eq!(tree.node(0).children(0).len(), CHILDREN);
    let each = resident().saturating_sub(before) / (CHILDREN - CHILDREN / 3 + 1);
    println!("{} KiB, both sides", each >> 10);
    assert!(each < 2 * BYTES_MAX, "{each} bytes");
}
