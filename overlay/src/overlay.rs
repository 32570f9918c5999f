//! A running node: its endpoint, its links to parents, its children.
//!
//! [`Overlay::start`] wires the parts together: [`crate::upstream`], `server` and `cluster`. Every task belongs
//! to the [`Overlay`] and ends with it.

use crate::cluster::warm::WarmOutcome;
use crate::cluster::{self, ClusterClear, ClusterReports};
use crate::counters::Counters;
use crate::error::OverlayError;
use crate::homes::{Homes, HomesBounds};
use crate::identity::Secret;
use crate::membership::{Member, Membership, NodeIdentity};
use crate::model::{Files, ItemPath};
use crate::parent_selector::FailoverTimes;
use crate::peer::{Dialer, Liveness};
use crate::plan::WarmProgress;
use crate::server::{self, AncestorRequests};
use crate::service::Service;
use crate::shared::Shared;
use crate::transport::{KernelNetwork, Network, Transport, close};
use crate::upstream::{LinkReport, Orphan, Upstream, UpstreamConfig};
use crate::wire::message::NodeId;
use bytes::Bytes;
use copperfs_metrics::{Kind, Registry, Unit};
use copperfs_topology::digest;
use parking_lot::Mutex;
use quinn::VarInt;
use std::fmt;
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

/// The configuration of a node. All nodes have the same `members`, `arity`, `roots` and `secret`.
#[derive(Clone)]
pub struct OverlayConfig {
    /// The ordered member list.
    pub members: Vec<Member>,
    /// This node's position in it.
    pub identity: NodeIdentity,
    /// Most children of a node in one tree, at least 1.
    pub arity: usize,
    /// The roots, by rank: one tree for each.
    pub roots: Vec<usize>,
    /// Address to bind, for listening and connecting. Its IP selects the network. Port 0: any.
    pub listen: SocketAddr,
    /// The job's secret.
    pub secret: Secret,
    /// How long a request waits for a connection and for each next byte of its answer.
    pub request_timeout: Duration,
    /// Limits one attempt to connect to an ancestor.
    pub connect_timeout: Duration,
    /// When an ancestor counts as dead.
    pub liveness: Liveness,
    /// When this node moves from one ancestor to another.
    pub failover: FailoverTimes,
    /// The policy while no root can be reached.
    pub orphan: Orphan,
    /// Limits of the connections to homes of items.
    pub homes: HomesBounds,
    /// The network that carries datagrams.
    pub network: Arc<dyn Network>,
}

impl OverlayConfig {
    /// A node on loopback with arity 4, the default timeouts, and the first member as the only root.
    #[must_use]
    pub fn new(members: Vec<Member>, identity: NodeIdentity, secret: Secret) -> Self {
        Self {
            members,
            identity,
            arity: 4,
            roots: vec![0],
            listen: ([127, 0, 0, 1], 0).into(),
            secret,
            request_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(2),
            liveness: Liveness::default(),
            failover: FailoverTimes::default(),
            orphan: Orphan::default(),
            homes: HomesBounds::default(),
            network: Arc::new(KernelNetwork),
        }
    }
}

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

/// A node with a bound address that neither serves nor connects yet.
pub struct BoundOverlay {
    upstream: Upstream,
    /// `None` for a node alone.
    transport: Option<Transport>,
    /// Members may get guests, and children that have lost their parents. Guests and a node alone get none.
    serves: bool,
    network: Arc<dyn Network>,
    liveness: Liveness,
    failover: FailoverTimes,
    request_timeout: Duration,
    connect_timeout: Duration,
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
        let membership = Arc::clone(self.upstream.membership());
        let shared = Shared::new(membership, self.request_timeout, service, self.upstream);
        let shared = Arc::new(shared);
        let mut tasks = JoinSet::new();
        if let Some(transport) = &self.transport {
            if self.serves {
                let endpoint = transport.endpoint.clone();
                tasks.spawn(server::accept(Arc::clone(&shared), endpoint));
                tasks.spawn(release_children(Arc::clone(&shared)));
            }
            let dialer = Arc::new(Dialer {
                membership: Arc::clone(&shared.membership),
                liveness: self.liveness,
                connect_timeout: self.connect_timeout,
                request_timeout: self.request_timeout,
                counters: Arc::clone(shared.upstream.counters()),
                incoming: Arc::new(AncestorRequests(Arc::clone(&shared))),
                transport: transport.clone(),
                network: self.network,
                ancestors: Mutex::default(),
            });
            let homes = shared.upstream.homes();
            homes.open(Arc::clone(&dialer));
            tasks.spawn(homes.clone().sweep());
            let seed = digest(shared.membership.name().as_bytes());
            for (tree, link) in (0_u64..).zip(shared.upstream.parent_links()) {
                let (link, dialer) = (Arc::clone(link), Arc::clone(&dialer));
                tasks.spawn(link.maintain(dialer, self.failover, seed.wrapping_add(tree)));
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
    /// `storage` is read if this node is a root or, with [`Orphan::Origin`], cut off.
    ///
    /// # Errors
    /// See [`OverlayError`].
    pub fn bind(
        config: OverlayConfig,
        storage: Option<Arc<dyn Files>>,
    ) -> Result<BoundOverlay, OverlayError> {
        if config.request_timeout.is_zero() || config.connect_timeout.is_zero() {
            return Err(OverlayError::ZeroTimeout);
        }
        let OverlayConfig {
            members,
            arity,
            roots,
            identity,
            ..
        } = config;
        let membership = Membership::new(members, arity, roots, identity)?;
        let is_member = membership.rank().is_some();
        let is_alone = is_member && membership.members().len() == 1;
        let serves = is_member && !is_alone;
        let transport = match is_alone {
            true => None,
            false => {
                let (network, name) = (&*config.network, membership.name());
                let (listen, secret) = (config.listen, &config.secret);
                Some(Transport::bind(network, listen, secret, name, serves)?)
            }
        };
        let upstream = Upstream::new(
            Arc::new(membership),
            storage,
            UpstreamConfig {
                orphan: config.orphan,
                request_timeout: config.request_timeout,
                liveness: config.liveness,
            },
            Homes::new(config.homes),
            Arc::new(Counters::default()),
        );
        Ok(BoundOverlay {
            upstream,
            transport,
            serves,
            network: config.network,
            liveness: config.liveness,
            failover: config.failover,
            request_timeout: config.request_timeout,
            connect_timeout: config.connect_timeout,
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
        self.transport
            .as_ref()
            .map(|transport| transport.local_addr)
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
        let children = self.shared.children.in_tree(tree).into_iter();
        let mut children: Vec<NodeId> = children.map(|(id, _)| id).collect();
        children.sort_unstable();
        let membership = self.membership();
        let names = children.iter().map(|id| membership.name_of(id).to_owned());
        names.collect()
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
            let idle = transport.endpoint.wait_idle();
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
            transport
                .endpoint
                .close(VarInt::from_u32(close::LEAVING), b"the node leaves");
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
