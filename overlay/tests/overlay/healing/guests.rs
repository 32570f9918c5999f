//! Nodes that are not in the list.

use super::cable::{Cabled, right};
use crate::support::{SOON, path, whole, within};
use crate::waiting::until;
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, Files, Membership, NodeIdentity, Overlay, OverlayConfig, Service, Upstream,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;

struct Guest(Upstream, String);

impl Service for Guest {
    fn files(&self, attempt: u8) -> Arc<dyn Files> {
        Arc::new(self.0.at(attempt))
    }

    fn report(&self) -> Bytes {
        Bytes::from(self.1.clone())
    }

    fn clear(
        &self,
        _path: copperfs_overlay::ItemPath,
    ) -> BoxFuture<'static, Result<bool, copperfs_overlay::Failure>> {
        std::future::ready(Ok(true)).boxed()
    }

    fn origins(
        &self,
    ) -> BoxFuture<
        'static,
        Result<Vec<copperfs_overlay::OriginFingerprint>, copperfs_overlay::Failure>,
    > {
        std::future::ready(Ok(Vec::new())).boxed()
    }
}

fn join(cabled: &Cabled, name: &str) -> Overlay {
    let tree = &cabled.tree;
    let identity = NodeIdentity::Guest(name.to_owned());
    let config = OverlayConfig {
        arity: tree.arity,
        roots: tree.roots.clone(),
        request_timeout: tree.timeout,
        ..OverlayConfig::new(tree.members.clone(), identity, tree.secret.clone())
    };
    let service = |upstream| Arc::new(Guest(upstream, name.to_owned())) as Arc<dyn Service>;
    Overlay::start(config, None, service).unwrap()
}

/// The first ancestor of a guest.
fn host(cabled: &Cabled, name: &str) -> usize {
    let (tree, identity) = (&cabled.tree, NodeIdentity::Guest(name.to_owned()));
    let membership = Membership::new(
        tree.members.clone(),
        tree.arity,
        tree.roots.clone(),
        identity,
    );
    membership.unwrap().ancestors(0)[0]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_joins_reads_is_reported_and_leaves() {
    let cabled = Cabled::start(5, 2, vec![0, 2]).await;
    let guest = join(&cabled, "late");
    let files = guest.upstream().clone();
    within(10, files.first_connected()).await;
    let parts = files.read(whole("file", 2 * BLOCK_BYTES)).await.unwrap();
    assert_eq!(within(10, right(parts)).await, Ok(0));
    assert_eq!(
        files
            .list_page(path("dir"), None, 9)
            .await
            .unwrap()
            .entries
            .len(),
        3
    );
    let above = host(&cabled, "late");
    assert!(
        cabled
            .tree
            .node(above)
            .children(0)
            .contains(&"late".to_owned())
    );
    let all = within(10, cabled.tree.node(1).cluster_reports()).await;
    assert_eq!((all.reports.len(), all.missing.len()), (6, 0));
    assert_eq!(all.reports[5], "late");
    let all = within(10, guest.cluster_reports()).await;
    assert_eq!((all.reports.len(), all.missing.len()), (6, 0));
    let done = within(10, guest.clear_cluster(path("x"))).await;
    assert_eq!((done.cleared, done.missing.len()), (6, 0));
    within(2, guest.shutdown()).await;
    drop(guest);
    until(SOON, "the guest is gone", || {
        !cabled
            .tree
            .node(above)
            .children(0)
            .contains(&"late".to_owned())
    })
    .await;
    let all = within(10, cabled.tree.node(1).cluster_reports()).await;
    assert_eq!((all.reports.len(), all.missing.len()), (5, 0));
}

/// A member without listed children accepts 32 others; further ones go to the next ancestor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_node_sends_guests_to_the_next_ancestor() {
    const MOST: usize = 32;
    let cabled = Cabled::start(3, 1, vec![0]).await;
    let names = (0..).map(|i| format!("guest{i}"));
    let names: Vec<String> = names
        .filter(|name| host(&cabled, name) == 2)
        .take(MOST + 1)
        .collect();
    let guests: Vec<Overlay> = names.iter().map(|name| join(&cabled, name)).collect();
    for guest in &guests {
        within(20, guest.upstream().first_connected()).await;
    }
    // Above it are its own child, the root's, and the guest.
    let children = |rank: usize| cabled.tree.node(rank).children(0).len();
    until(SOON, "node 2 is full, and one guest is above it", || {
        children(2) == MOST && children(1) + children(0) == 2 + 1
    })
    .await;
    for guest in &guests {
        let listing = guest.upstream().list_page(path("dir"), None, 9);
        assert!(within(10, listing).await.is_ok());
    }
}
