//! A running node: its endpoint, its links to parents, its children.
//!
//! [`Overlay::start`] wires the parts together: [`crate::upstream`], `server` and `cluster`. Every task belongs
//! to the [`Overlay`] and ends with it.

use crate::cluster::warm::WarmOutcome;
use crate::cluster::{self, ClusterClear, ClusterReports};
use crate::config::OverlayConfig;
use crate::counters::Counters;
use crate::error::OverlayError;
use crate::homes::Homes;
use crate::membership::Membership;
use crate::model::{Files, ItemPath};
use crate::peer::Dialer;
use crate::plan::WarmProgress;
use crate::server::{self, Admission};
use crate::service::Service;
use crate::shared::Shared;
use crate::transport::{Transport, close};
use crate::upstream::{LinkReport, Upstream};
use bytes::Bytes;
use copperfs_metrics::{Kind, Registry, Unit};
use copperfs_topology::digest;
use futures_util::FutureExt;
use futures_util::future::join_all;
use parking_lot::Mutex;
use quinn::{Endpoint, VarInt};
use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// How long a node is cut off before it releases its children.
const RELEASE_AFTER: Duration = Duration::from_secs(1);
/// Interval at which a node that is cut off releases its children.
const RELEASE_INTERVAL: Duration = Duration::from_secs(5);
/// How long [`Overlay::shutdown`] waits for the last packets.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// Closes the connections of children while this node is cut off, because another ancestor may serve them. A
/// child that finds none comes back.
async fn release_children(shared: Arc<Shared>) {
    loop {
        shared.upstream.cut_off().await;
        // A root that only restarts is back by then.
        let restored = tokio::time::timeout(RELEASE_AFTER, shared.upstream.restored());
        if restored.await.is_err() {
            shared.children.release();
            tokio::time::sleep(RELEASE_INTERVAL).await;
        }
    }
}

/// Accepts connections at all endpoints, each on its own runtime.
fn accept(shared: &Arc<Shared>, transport: &Transport, tasks: &mut JoinSet<()>) {
    let admission = Arc::<Admission>::default();
    let accept = |endpoint: &Endpoint, lane| {
        let (shared, admission) = (Arc::clone(shared), Arc::clone(&admission));
        server::accept(shared, endpoint.clone(), lane, admission)
    };
    tasks.spawn(accept(&transport.endpoint, 0));
    for (number, lane) in transport.lanes.iter().enumerate() {
        if let Some(endpoint) = &lane.accepting {
            tasks.spawn_on(accept(endpoint, number), &lane.runtime);
        }
    }
}

/// A node with a bound address that neither serves nor connects yet.
pub struct BoundOverlay {
    config: Arc<OverlayConfig>,
    upstream: Upstream,
    /// `None` for a node alone.
    transport: Option<Transport>,
}

impl BoundOverlay {
    /// The client for the other nodes. Its requests wait until [`BoundOverlay::serve`] is called.
    #[must_use]
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Answers requests with `service` from now on, and connects to ancestors in the background
    /// ([`Upstream::first_connected`]). Must be called within a tokio runtime with I/O and time, which then runs the
    /// node's tasks.
    #[must_use]
    pub fn serve(self, service: Arc<dyn Service>) -> Overlay {
        let config = self.config;
        let limits = (config.request_timeout, config.lanes.len());
        let shared = Arc::new(Shared::new(limits, service, self.upstream));
        let mut tasks = JoinSet::new();
        if let Some(transport) = &self.transport {
            // Members may get guests, and children that have lost their parents. Guests get none.
            if shared.membership.rank().is_some() {
                accept(&shared, transport, &mut tasks);
                tasks.spawn(release_children(Arc::clone(&shared)));
            }
            let answering = Arc::clone(&shared);
            let dialer = Arc::new(Dialer {
                membership: Arc::clone(&shared.membership),
                answer_ancestor: Box::new(move |connection| {
                    server::answer_ancestor(Arc::clone(&answering), connection).boxed()
                }),
                transport: transport.clone(),
                ancestors: Mutex::default(),
                config: Arc::clone(&config),
            });
            let homes = shared.upstream.homes();
            homes.open(&dialer);
            tasks.spawn(homes.clone().sweep());
            let seed = digest(shared.membership.name().as_bytes());
            for (tree, link) in (0_u64..).zip(shared.upstream.parent_links()) {
                let (link, dialer) = (Arc::clone(link), Arc::clone(&dialer));
                tasks.spawn(link.maintain(dialer, config.failover, seed.wrapping_add(tree)));
            }
        }
        Overlay {
            shared,
            transport: self.transport,
            tasks: Mutex::new(tasks),
        }
    }
}

/// A running node. Dropping it closes its connections and ends its tasks; [`Overlay::shutdown`] also waits until
/// its peers have been told.
pub struct Overlay {
    shared: Arc<Shared>,
    transport: Option<Transport>,
    /// The accept loop, the links to parents, and their helpers.
    tasks: Mutex<JoinSet<()>>,
}

impl Overlay {
    /// Starts this node: [`Overlay::bind`], and then [`BoundOverlay::serve`] with the service that `service` makes
    /// from the client for the other nodes.
    ///
    /// # Errors
    /// See [`OverlayError`].
    pub fn start(
        config: OverlayConfig,
        storage: Option<Arc<dyn Files>>,
        service: impl FnOnce(Upstream) -> Arc<dyn Service>,
    ) -> Result<Self, OverlayError> {
        let bound = Self::bind(config, storage)?;
        let service = service(bound.upstream.clone());
        Ok(bound.serve(service))
    }

    /// Binds the node's address. The result has the client for the other nodes, with which the caller makes its
    /// service. A list of one node needs no network.
    ///
    /// `storage` is read if this node is a root or, with [`crate::Orphan::Origin`], cut off.
    ///
    /// # Errors
    /// See [`OverlayError`].
    pub fn bind(
        mut config: OverlayConfig,
        storage: Option<Arc<dyn Files>>,
    ) -> Result<BoundOverlay, OverlayError> {
        if config.request_timeout.is_zero() || config.connect_timeout.is_zero() {
            return Err(OverlayError::ZeroTimeout);
        }
        // The configuration is kept while the node runs, but not the secret, and only the membership has the list and
        // the roots.
        let secret = config.secret.take();
        let (members, roots) = (mem::take(&mut config.members), mem::take(&mut config.roots));
        let membership = Membership::new(members, config.arity, roots, config.identity.clone())?;
        let is_member = membership.rank().is_some();
        let transport = match is_member && membership.members().len() == 1 {
            true => None,
            false => {
                let (network, name) = (&*config.network, membership.name());
                let (listen, lanes) = (config.listen, &config.lanes);
                let bound = Transport::bind(network, listen, &secret, name, is_member, lanes);
                Some(bound?)
            }
        };
        let config = Arc::new(config);
        Ok(BoundOverlay {
            upstream: Upstream::new(Arc::new(membership), storage, Arc::clone(&config)),
            transport,
            config,
        })
    }

    /// The client for the other nodes.
    #[must_use]
    pub fn upstream(&self) -> &Upstream {
        &self.shared.upstream
    }

    /// The client for the homes of items.
    #[must_use]
    pub fn homes(&self) -> &Homes {
        self.shared.upstream.homes()
    }

    /// The cluster and this node's position in it.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        &self.shared.membership
    }

    /// The bound address; `None` for a node alone.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        Some(self.transport.as_ref()?.local_addr)
    }

    /// Declares the counters of this node's traffic in `registry`.
    pub fn declare(&self, registry: &Registry) {
        self.counters().declare(registry);
        let healing = registry.scope("healing");
        let moves = |count: fn(&LinkReport) -> u64| {
            let upstream = self.upstream().clone();
            move || upstream.links().iter().map(count).sum()
        };
        let help = "Moves to another ancestor than the parent, in all trees.";
        let failovers = moves(|link| link.failovers);
        healing.computed("failovers", Kind::Counter, Unit::Count, help, failovers);
        let help = "Moves back to the parent, in all trees.";
        let returns = moves(|link| link.returns);
        healing.computed("returns", Kind::Counter, Unit::Count, help, returns);
    }

    /// The counters of this node's traffic.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.upstream().counters()
    }

    /// The names of the connected children in `tree`, members in rank order first.
    #[must_use]
    pub fn children(&self, tree: usize) -> Vec<String> {
        let children: BTreeMap<_, _> = self.shared.children.in_tree(tree).into_iter().collect();
        let names = children.keys().map(|id| self.membership().name_of(id));
        names.map(str::to_owned).collect()
    }

    /// Returns the reports of all nodes, and the names of those that did not answer within the request timeout.
    pub async fn cluster_reports(&self) -> ClusterReports {
        cluster::reports(&self.shared).await
    }

    /// Clears `path` on all nodes: tree after tree, each from its root down, every node before its children. The
    /// items of a tree come down that tree only, so no node refills its caches from one that has not cleared yet.
    pub async fn clear_cluster(&self, path: ItemPath) -> ClusterClear {
        cluster::clear(&self.shared, path).await
    }

    /// Has every node carry out the plan whose pages come over `pages`, which is closed after the last page.
    /// Reports the progress over `progress`. Dropping the future stops all nodes.
    pub async fn warm_cluster(
        &self,
        pages: mpsc::Receiver<Bytes>,
        progress: &watch::Sender<WarmProgress>,
    ) -> WarmOutcome {
        cluster::warm::warm(&self.shared, pages, progress).await
    }

    /// Leaves the cluster: requests in progress fail, peers are told. Ends within a second, whatever they do.
    pub async fn shutdown(&self) {
        self.stop();
        if let Some(transport) = &self.transport {
            let idle = join_all(transport.endpoints().map(Endpoint::wait_idle));
            // Peers that cannot be told notice by themselves.
            let _elapsed = tokio::time::timeout(SHUTDOWN_TIMEOUT, idle).await;
        }
    }

    fn stop(&self) {
        // First, so that failures of requests in progress are not sent as answers.
        self.shared.leaving.store(true, Ordering::Release);
        self.shared.upstream.stop();
        self.shared.upstream.homes().stop();
        if let Some(transport) = &self.transport {
            for endpoint in transport.endpoints() {
                endpoint.close(VarInt::from_u32(close::LEAVING), b"the node leaves");
            }
        }
        self.tasks.lock().abort_all();
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Overlay({})", self.membership().name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Secret;
    use crate::membership::{Member, NodeIdentity};

    #[test]
    fn a_running_node_does_not_keep_the_secret() {
        let secret = Secret::generate().unwrap();
        let alone = Member {
            name: "alone".into(),
            address: "127.0.0.1:1".into(),
        };
        let identity = NodeIdentity::Member(0);
        let config = OverlayConfig::new(vec![alone], identity, secret.clone());
        let bound = Overlay::bind(config, None).unwrap();
        assert_ne!(bound.config.secret, secret);
    }
}
