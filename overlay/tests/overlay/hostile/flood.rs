//! Ten thousand connections.

use super::load::{during, quietly, resident};
use crate::log;
use crate::support::{TestTree, raw_client, within};
use copperfs_overlay::identity::Identity;
use copperfs_overlay::{Secret, wire};
use futures_util::StreamExt;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const CONNECTIONS: usize = 10_000;
const AT_ONCE: usize = 500;
/// The parameters of the flood, in its working directory.
const ADDRESS_FILE: &str = "flood-address";
/// The result of the flood: the number of connections that were made, even if only for a moment.
const DONE_FILE: &str = "flood-done";
const SECRET_FILE: &str = "flood-secret";

/// The flood's own process, so that its memory is not the node's. Started by the test below.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the other half of ten_thousand_connections_do_not_delay_a_child"]
async fn flood() {
    let Ok(address) = std::fs::read_to_string(ADDRESS_FILE) else {
        return;
    };
    let address: SocketAddr = address.parse().unwrap();
    // Every second one is a member of the job, and could say hello.
    let member = Secret::read_file(Path::new(SECRET_FILE)).unwrap();
    let endpoints = [member, Secret::generate().unwrap()].map(|secret| {
        let identity = Identity::new(&secret).unwrap();
        raw_client(identity.client(&[wire::ALPN]).unwrap())
    });
    let mut open = Vec::new();
    let mut attempts = futures_util::stream::iter(0..CONNECTIONS)
        .map(|number| {
            let connecting = endpoints[number % 2]
                .connect(address, Identity::NAME)
                .unwrap();
            tokio::time::timeout(Duration::from_secs(10), connecting)
        })
        .buffer_unordered(AT_ONCE);
    while let Some(outcome) = attempts.next().await {
        // Held as long as the node lets it.
        open.extend(outcome.into_iter().flatten());
    }
    std::fs::write(DONE_FILE, format!("{}", open.len())).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_connections_do_not_delay_a_child() {
    log::keep();
    let dir = tempfile::tempdir().unwrap();
    let secret_file = dir.path().join(SECRET_FILE);
    let secret = Secret::write_new(&secret_file).unwrap();
    let mode = std::fs::metadata(&secret_file)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut tree = TestTree::plan(4, 4, Duration::from_secs(10));
    tree.secret = secret;
    tree.start_node(0);
    tree.start_node(1);
    tree.connected(1).await;
    let child = tree.parent(1);
    std::fs::write(
        dir.path().join(ADDRESS_FILE),
        tree.members[0].address.as_bytes(),
    )
    .unwrap();
    let quiet = quietly(&child, 200).await;
    let memory = resident();

    let flood = async {
        let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "hostile::flood::flood", "--ignored"])
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        let ended = command.status().await.unwrap();
        assert!(ended.success());
    };
    let bounded = async {
        tokio::time::timeout(Duration::from_secs(90), flood)
            .await
            .unwrap();
    };
    let noticed = during(&child, bounded).await;
    let made = std::fs::read_to_string(dir.path().join(DONE_FILE)).unwrap();
    let made: usize = made.parse().unwrap();
    assert!((1..1000).contains(&made), "{made} connections were made");
    noticed.is_no_worse_than(&quiet);
    let grown = resident().saturating_sub(memory);
    assert!(grown < 64 << 20, "{} MiB", grown >> 20);
    assert_eq!(tree.node(0).children(0), ["node1"]);
    // Once for each reason, as all come from one address.
    let full = log::lines("too many connections");
    assert_eq!(full.len(), 1, "{full:?}");
    let logged = log::lines("refused a peer");
    assert!(logged.len() < 10, "{} lines", logged.len());
    // The slots are free again once the connections are gone.
    tree.start_node(2);
    within(20, tree.parent(2).first_connected()).await;
}
