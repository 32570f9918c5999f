//! A node's place among the others, alive: its listening end, its holds in the trees, its children.
//!
//! [`Overlay::start`] puts the parts together; what they do is in [`crate::upstream`], `server` and
//! `cluster`. Every task belongs to the [`Overlay`] and ends with it.

use crate::ascent::Patience;
use crate::cluster::warm::WarmOutcome;
use crate::cluster::{self, ClusterClear, ClusterReports, Operation};
use crate::counters::{Counters, Meters};
use crate::error::OverlayError;
use crate::homes::{Homes, HomesBounds};
use crate::identity::Secret;
use crate::membership::{Member, Membership, NodeIdentity};
use crate::model::{Files, ItemPath};
use crate::peer::{Dialer, Liveness, Manners};
use crate::plan::WarmProgress;
use crate::server::{self, FromAncestors};
use crate::service::Service;
use crate::shared::Shared;
use crate::transport::{KernelNetwork, Network, Transport, close};
use crate::upstream::climb::Climber;
use crate::upstream::{LinkReport, Orphan, Upstream};
use crate::wire::message::NodeId;
use bytes::Bytes;
use copperfs_metrics::{Kind, Registry, Unit};
use copperfs_topology::digest;
use parking_lot::Mutex;
use quinn::VarInt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// How long a node is cut off before its children are concerned.
const RELEASE_AFTER: Duration = Duration::from_secs(1);
/// How often a node that is cut off sends its children to look for somebody better.
const RELEASE_INTERVAL: Duration = Duration::from_secs(5);
/// How long [`Overlay::shutdown`] waits for the last packets.
const SHUTDOWN_PATIENCE: Duration = Duration::from_millis(500);

/// Where a node stands and how it behaves. All nodes have the same `members`, `arity`, `roots` and
/// `secret`.
#[derive(Clone, Debug)]
pub struct OverlayConfig {
    /// The ordered member list.
    pub members: Vec<Member>,
    /// This node's place in it.
    pub identity: NodeIdentity,
    /// Most children of a node in one tree, at least 1.
    pub arity: usize,
    /// The roots, by rank: one tree for each.
    pub roots: Vec<usize>,
    /// Address to bind, for listening and connecting; its IP picks the network. Port 0: any.
    pub listen: SocketAddr,
    /// The job's secret.
    pub secret: Secret,
    /// How long a request waits for a connection and for each next byte of its answer.
    pub request_timeout: Duration,
    /// How long one attempt to connect to an ancestor may take.
    pub connect_timeout: Duration,
    /// When an ancestor counts as dead.
    pub liveness: Liveness,
    /// How patient this node is with ancestors that are away.
    pub patience: Patience,
    /// What to do when no root can be reached.
    pub orphan: Orphan,
    /// How many connections to homes of items this node keeps.
    pub homes: HomesBounds,
    /// Where datagrams travel.
    pub network: Arc<dyn Network>,
}

impl OverlayConfig {
    /// A node of `members` at `identity` with one root, the first, arity 4, and the default time-outs, on
    /// loopback.
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
            patience: Patience::default(),
            orphan: Orphan::default(),
            homes: HomesBounds::default(),
            network: Arc::new(KernelNetwork),
        }
    }
}

/// While this node is cut off: its children may not be, and wait here in vain. Those who find nobody
/// else come back.
async fn release(shared: Arc<Shared>) {
    loop {
        shared.upstream.cut_off().await;
        // A root that only restarts is back by then.
        let again = tokio::time::timeout(RELEASE_AFTER, shared.upstream.restored());
        if again.await.is_err() {
            shared.children.release();
            tokio::time::sleep(RELEASE_INTERVAL).await;
        }
    }
}

/// A running node of the tree. Dropping it closes its connections and ends its tasks;
/// [`Overlay::shutdown`] also waits until neighbours have been told.
#[derive(Debug)]
pub struct Overlay {
    shared: Arc<Shared>,
    transport: Option<Transport>,
    /// The accept loop and the link to the parent.
    tasks: Mutex<JoinSet<()>>,
}

impl Overlay {
    /// Takes this node's place in the trees. Returns once it listens; ancestors are connected to in
    /// the background ([`Upstream::first_connected`]). A list of one node needs no network. Must be
    /// called within a tokio runtime with I/O and time, which then runs the node's tasks.
    ///
    /// `storage` is what this node asks as a root, and, with [`Orphan::Origin`], when it is cut off;
    /// `service` is called once, with the stub towards the others, before anything is served.
    ///
    /// # Errors
    /// `Config`, `Listen`; faults of the cryptographic library.
    pub fn start(
        config: OverlayConfig,
        storage: Option<Arc<dyn Files>>,
        service: impl FnOnce(Upstream) -> Arc<dyn Service>,
    ) -> Result<Self, OverlayError> {
        if config.request_timeout.is_zero() || config.connect_timeout.is_zero() {
            let text = "a time-out of 0 leaves no time for any answer";
            return Err(OverlayError::Config(text.into()));
        }
        let membership =
            Membership::new(config.members, config.arity, config.roots, config.identity)
                .map(Arc::new)
                .map_err(OverlayError::Config)?;
        let alone = membership.rank().is_some() && membership.members().len() == 1;
        // Any member may take in a guest, and one that has lost its parent.
        let serves = membership.rank().is_some() && !alone;
        let transport = if alone {
            None
        } else {
            let (network, name) = (&*config.network, membership.name());
            Some(Transport::bind(
                network,
                config.listen,
                &config.secret,
                name,
                serves,
            )?)
        };
        let meters = Arc::new(Meters::default());
        let upstream = Upstream::new(
            Arc::clone(&membership),
            storage,
            (config.orphan, config.request_timeout, config.liveness),
            Homes::new(config.homes),
            Arc::clone(&meters),
        );
        let patience = (config.request_timeout, config.liveness);
        let service = service(upstream.clone());
        let shared = Arc::new(Shared::new(membership, patience, service, upstream, meters));
        let mut tasks = JoinSet::new();
        if let Some(transport) = &transport {
            if serves {
                let endpoint = transport.endpoint.clone();
                tasks.spawn(server::accept(Arc::clone(&shared), endpoint));
                tasks.spawn(release(Arc::clone(&shared)));
            }
            let manners = Manners {
                membership: Arc::clone(&shared.membership),
                liveness: shared.liveness,
                connect_timeout: config.connect_timeout,
                request_timeout: shared.request_timeout,
                meters: Arc::clone(&shared.meters),
                incoming: Arc::new(FromAncestors(Arc::clone(&shared))),
            };
            let dialer = Arc::new(Dialer::new(manners, transport, config.network));
            shared.upstream.homes().open(Arc::clone(&dialer));
            tasks.spawn(shared.upstream.homes().clone().sweep());
            let seed = digest(shared.membership.name().as_bytes());
            for (hold, tree) in shared.upstream.holds().zip(0_u64..) {
                let climber = Climber {
                    hold: Arc::clone(hold),
                    dialer: Arc::clone(&dialer),
                    patience: config.patience,
                    seed: seed.wrapping_add(tree),
                };
                tasks.spawn(climber.run());
            }
        }
        Ok(Self {
            shared,
            transport,
            tasks: Mutex::new(tasks),
        })
    }

    /// The stub towards the others.
    #[must_use]
    pub fn upstream(&self) -> &Upstream {
        &self.shared.upstream
    }

    /// The way to the homes of items.
    #[must_use]
    pub fn homes(&self) -> &Homes {
        self.shared.upstream.homes()
    }

    /// Who is in the cluster.
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
        self.shared.meters.declare(registry);
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

    /// How many requests and bytes went up and down.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.meters.snapshot()
    }

    /// The names of the children that are connected now in `tree`, members in rank order first.
    #[must_use]
    pub fn children(&self, tree: usize) -> Vec<String> {
        let mut children: Vec<NodeId> = self
            .shared
            .children
            .in_tree(tree)
            .into_iter()
            .map(|(id, _)| id)
            .collect();
        children.sort_unstable();
        let membership = &self.shared.membership;
        children
            .iter()
            .map(|id| membership.name_of(id).to_owned())
            .collect()
    }

    /// The reports of all nodes, in rank order; nodes that did not answer within the request
    /// time-out are named.
    pub async fn cluster_reports(&self) -> ClusterReports {
        cluster::reports(&self.shared).await
    }

    /// Clears `path` on all nodes: tree after tree, each from its root down, every node before its
    /// children. What lies in a tree comes down that tree only, so no node fills itself again from one
    /// that has not cleared yet.
    pub async fn clear_cluster(&self, path: ItemPath) -> ClusterClear {
        cluster::clear(&self.shared, Operation::Clear(path)).await
    }

    /// Has every node carry out the plan whose pages come over `pages`, which is closed behind the
    /// last, and says over `progress` how far they are. Dropping the future stops all of them.
    pub async fn warm_cluster(
        &self,
        pages: mpsc::Receiver<Bytes>,
        progress: &watch::Sender<WarmProgress>,
    ) -> WarmOutcome {
        cluster::warm::warm(&self.shared, pages, progress).await
    }

    /// Leaves the tree: requests in progress fail, neighbours are told. Ends within a second,
    /// whatever they do.
    pub async fn shutdown(&self) {
        self.stop();
        if let Some(transport) = &self.transport {
            let idle = transport.endpoint.wait_idle();
            // Neighbours that cannot be told notice by themselves.
            let _elapsed = tokio::time::timeout(SHUTDOWN_PATIENCE, idle).await;
        }
    }

    fn stop(&self) {
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
