//! A node's place among the others, alive: its listening end, its holds in the trees, its children.
//!
//! [`Overlay::start`] puts the parts together; what they do is in [`crate::upstream`], `server` and
//! `cluster`. Every task belongs to the [`Overlay`] and ends with it.

use crate::ascent::Patience;
use crate::cluster::warm::{PlanReader, Tally, WarmOutcome, WarmProgress};
use crate::cluster::{ClusterClear, ClusterReports, Operation};
use crate::counters::{Counters, Meters};
use crate::files::Files;
use crate::homes::{Homes, HomesBounds, ItemAnswer, ItemRequest};
use crate::identity::{IdentityError, Secret};
use crate::item::{ContentHash, Failure, ItemPath};
use crate::placement::digest;
use crate::roster::{Member, Roster, Seat};
use crate::server::Refusals;
use crate::server::readers::Readers;
use crate::steering::{COMMANDS_AT_ONCE, LatestReceiver, LatestSender, Steered};
use crate::transport::{KernelNetwork, Network, Transport, close};
use crate::upstream::climb::Climber;
use crate::upstream::peer::{Dialer, Liveness};
use crate::upstream::{Orphan, Upstream};
use crate::wire::message::NodeId;
use crate::{cluster, homes, server, steering};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use quinn::{Connection, VarInt};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

/// How long a node is cut off before its children are concerned.
const RELEASE_AFTER: Duration = Duration::from_secs(1);
/// How often a node that is cut off sends its children to look for somebody better.
const RELEASE_INTERVAL: Duration = Duration::from_secs(5);
/// How long [`Overlay::shutdown`] waits for the last packets.
const SHUTDOWN_PATIENCE: Duration = Duration::from_millis(500);

/// What a root serves below one prefix, in short: equal on roots that see the same storage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OriginFingerprint {
    /// The prefix in the namespace.
    pub prefix: ItemPath,
    /// A hash of what lies there.
    pub fingerprint: [u8; 16],
}

/// What a node answers: files to its children, and about itself to the cluster.
pub trait Service: Send + Sync + 'static {
    /// What answers questions about files that come from position `attempt` of their items' root
    /// orders. What it asks of others must not come from an earlier position ([`Upstream::at`]), and
    /// must not wait for a question that does.
    fn files(&self, attempt: u8) -> Arc<dyn Files>;

    /// `len` bytes with this hash, verified, if this node itself holds them. Asks nobody else.
    fn find(&self, hash: ContentHash, len: u64) -> BoxFuture<'static, Option<Bytes>> {
        let _nothing_held = (hash, len);
        Box::pin(std::future::ready(None))
    }

    /// This node's report, opaque here (JSON), at most 64 KiB. Must be cheap and must not block.
    fn report(&self) -> Bytes;

    /// Drops the data and metadata that this node caches of `path` and below. Returns whether there was
    /// anything. The node's children are asked to do the same after it.
    ///
    /// # Errors
    /// Whatever stops the node from doing so.
    fn clear(&self, path: ItemPath) -> BoxFuture<'static, Result<bool, Failure>>;

    /// Takes `path` and below away from the applications on this node, after [`Service::clear`]. It may
    /// wait for requests that storage does not answer. No other node depends on it, so the children are
    /// asked meanwhile. The node has cleared `path` when both have returned.
    fn withdraw(&self, path: ItemPath) -> BoxFuture<'static, ()> {
        drop(path);
        Box::pin(std::future::ready(()))
    }

    /// What this node serves from storage, if it is a root.
    ///
    /// # Errors
    /// Storage does not answer.
    fn origins(&self) -> BoxFuture<'static, Result<Vec<OriginFingerprint>, Failure>>;

    /// Carries out a plan: brings here what its pages name, and counts in `tally` what it has done and
    /// what has failed. The pages are the service's own, opaque here. Returns when the plan has ended
    /// and is done; dropped when nobody waits for it any more.
    fn warm(&self, plan: PlanReader, tally: Tally) -> BoxFuture<'static, ()> {
        drop(plan);
        tally.failed("this node cannot be warmed");
        Box::pin(std::future::ready(()))
    }

    /// Whether [`Service::item`] would answer `request` without waiting for the origin. Such requests
    /// never wait behind those that do. Must be cheap and must not block.
    fn item_is_here(&self, request: &ItemRequest) -> bool {
        let _none_here = request;
        false
    }

    /// Bytes of an item whose home this node is. The answer has exactly [`ItemRequest::len`] bytes, or
    /// says what reading them costs. Dropped when nobody waits for it any more.
    ///
    /// # Errors
    /// `Unsupported` on a node that is nobody's home; what [`Files::read`] fails with.
    fn item(&self, request: ItemRequest) -> BoxFuture<'static, Result<ItemAnswer, Failure>> {
        drop(request);
        Box::pin(std::future::ready(Err(homes::no_home())))
    }

    /// A stream of `child`, a node that hangs from this one in `tree`: hears its frames and gives it
    /// new ones until the child is gone (`up` ends, and the future is dropped) or it returns, which
    /// ends the stream. Called anew for each stream; there is at most one for each child and tree.
    ///
    /// # Errors
    /// Whatever the child is to know; it then finds its stream ended.
    fn steer(
        &self,
        child: String,
        tree: usize,
        up: LatestReceiver,
        down: LatestSender,
    ) -> BoxFuture<'static, Result<(), Failure>> {
        drop((child, tree, up, down));
        Box::pin(std::future::ready(Err(steering::nobody())))
    }

    /// A command of at most 1 MiB from a node below this one in `tree`: answered with at most 1 MiB by
    /// who is in charge, passed on by everybody else ([`Upstream::command`]). Dropped when nobody
    /// waits for it any more.
    ///
    /// # Errors
    /// Whatever the asker is to know.
    fn command(&self, tree: usize, command: Bytes) -> BoxFuture<'static, Result<Bytes, Failure>> {
        drop((tree, command));
        Box::pin(std::future::ready(Err(steering::nobody())))
    }
}

/// Where a node stands and how it behaves. All nodes have the same `members`, `arity`, `roots` and
/// `secret`.
#[derive(Clone, Debug)]
pub struct OverlayConfig {
    /// The ordered member list.
    pub members: Vec<Member>,
    /// This node's place in it.
    pub seat: Seat,
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
    /// A node of `members` at `seat` with one root, the first, arity 4, and the default time-outs, on
    /// loopback.
    #[must_use]
    pub fn new(members: Vec<Member>, seat: Seat, secret: Secret) -> Self {
        Self {
            members,
            seat,
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

/// Why a node could not take its place.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// The configuration makes no sense.
    #[error("{0}")]
    Config(String),
    /// The address cannot be bound.
    #[error("cannot listen on {address} (UDP): {source}. {}", listen_hint(.source))]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// No certificate could be made.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The TLS library refuses its configuration.
    #[error("cannot set up TLS: {0}")]
    Tls(String),
}

fn listen_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "Another copperfs, or another program, holds the port: unmount the other one, or choose \
             another port with --listen"
        }
        io::ErrorKind::AddrNotAvailable => {
            "This machine has no such address: check --listen and --interface"
        }
        io::ErrorKind::PermissionDenied => {
            "Ports below 1024 are root's: choose another with --listen"
        }
        _ => "Check --listen and --interface",
    }
}

/// What all parts of a running node share.
pub(crate) struct Shared {
    pub(crate) roster: Arc<Roster>,
    pub(crate) request_timeout: Duration,
    pub(crate) liveness: Liveness,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) upstream: Upstream,
    pub(crate) meters: Arc<Meters>,
    pub(crate) refusals: Refusals,
    /// Places for plans that lie on this node.
    pub(crate) plans: Semaphore,
    /// This node is going: what fails from now on says nothing about what was asked.
    pub(crate) leaving: AtomicBool,
    /// Who reads items from this node.
    pub(crate) readers: Readers,
    /// Streams of steering from children.
    pub(crate) steered: Steered,
    /// Turns of children's commands.
    pub(crate) commands: Semaphore,
    /// Connected children: those by the list, and a bounded number of others. Held for look-ups only.
    children: Mutex<HashMap<NodeId, Child>>,
}

/// A connected child.
struct Child {
    connection: Connection,
    /// In which trees it hangs from this node.
    trees: BTreeSet<usize>,
}

/// A child that a node has no room for.
#[derive(Debug)]
pub(crate) struct Full;

impl Shared {
    fn new(
        roster: Arc<Roster>,
        (request_timeout, liveness): (Duration, Liveness),
        service: Arc<dyn Service>,
        upstream: Upstream,
        meters: Arc<Meters>,
    ) -> Self {
        Self {
            roster,
            request_timeout,
            liveness,
            service,
            upstream,
            meters,
            refusals: Refusals::default(),
            plans: Semaphore::new(cluster::warm::PLANS_MAX),
            leaving: AtomicBool::new(false),
            readers: Readers::default(),
            steered: Steered::default(),
            commands: Semaphore::new(COMMANDS_AT_ONCE),
            children: Mutex::default(),
        }
    }

    /// Takes in a child in `tree`; gives the connection that its new one replaces.
    pub(crate) fn add_child(
        &self,
        id: &NodeId,
        tree: usize,
        connection: &Connection,
    ) -> Result<Option<Connection>, Full> {
        let mut children = self.lock_children();
        if let Some(child) = children.get_mut(id) {
            if child.connection.stable_id() == connection.stable_id() {
                child.trees.insert(tree);
                return Ok(None);
            }
        } else if !self.roster.is_own_child(tree, id) && children.len() >= self.children_max() {
            return Err(Full);
        }
        let child = Child {
            connection: connection.clone(),
            trees: BTreeSet::from([tree]),
        };
        Ok(children.insert(id.clone(), child).map(|old| old.connection))
    }

    /// How many children a node may have before it takes in only its own: enough for those of its
    /// children that die, and at a root, which is everybody's last resort, for many more.
    fn children_max(&self) -> usize {
        let is_root = self
            .roster
            .rank()
            .is_some_and(|own| self.roster.forest().is_root(own));
        let floor = if is_root { 512 } else { 32 };
        self.roster.forest().arity().saturating_mul(8).max(floor)
    }

    /// Whether `id` hangs from this node in `tree`, over `connection`.
    pub(crate) fn is_child(&self, id: &NodeId, tree: usize, connection: &Connection) -> bool {
        self.lock_children().get(id).is_some_and(|child| {
            child.connection.stable_id() == connection.stable_id() && child.trees.contains(&tree)
        })
    }

    /// Forgets a child's connection, unless another has taken its place.
    pub(crate) fn remove_child(&self, id: &NodeId, connection: &Connection) {
        let mut children = self.lock_children();
        if children
            .get(id)
            .is_some_and(|held| held.connection.stable_id() == connection.stable_id())
        {
            children.remove(id);
        }
    }

    /// The connected children in `tree`.
    pub(crate) fn connected_children(&self, tree: usize) -> Vec<(NodeId, Connection)> {
        self.lock_children()
            .iter()
            .filter(|(_, held)| held.trees.contains(&tree))
            .map(|(id, held)| (id.clone(), held.connection.clone()))
            .collect()
    }

    /// Closes the connections of all children.
    fn release_children(&self) {
        for child in self.lock_children().values() {
            let reason = b"cut off from every root";
            child.connection.close(close::CUT_OFF.into(), reason);
        }
    }

    fn lock_children(&self) -> std::sync::MutexGuard<'_, HashMap<NodeId, Child>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("node", &self.roster.id())
            .finish_non_exhaustive()
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
            shared.release_children();
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
        let roster = Roster::new(config.members, config.arity, config.roots, config.seat)
            .map(Arc::new)
            .map_err(OverlayError::Config)?;
        let alone = roster.rank().is_some() && roster.members().len() == 1;
        // Any member may take in a guest, and one that has lost its parent.
        let serves = roster.rank().is_some() && !alone;
        let transport = if alone {
            None
        } else {
            let (network, name) = (&*config.network, roster.name());
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
            Arc::clone(&roster),
            storage,
            (config.orphan, config.request_timeout, config.liveness),
            Homes::new(config.homes),
            Arc::clone(&meters),
        );
        let patience = (config.request_timeout, config.liveness);
        let service = service(upstream.clone());
        let shared = Arc::new(Shared::new(roster, patience, service, upstream, meters));
        let mut tasks = JoinSet::new();
        if let Some(transport) = &transport {
            if serves {
                let endpoint = transport.endpoint.clone();
                tasks.spawn(server::accept(Arc::clone(&shared), endpoint));
                tasks.spawn(release(Arc::clone(&shared)));
            }
            let dialer = Arc::new(Dialer::new(
                Arc::clone(&shared),
                transport,
                config.network,
                config.connect_timeout,
            ));
            shared.upstream.homes().open(Arc::clone(&dialer));
            tasks.spawn(shared.upstream.homes().clone().sweep());
            let seed = digest(shared.roster.name().as_bytes());
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
    pub fn roster(&self) -> &Roster {
        &self.shared.roster
    }

    /// The bound address; `None` for a node alone.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.transport
            .as_ref()
            .map(|transport| transport.local_addr)
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
            .connected_children(tree)
            .into_iter()
            .map(|(id, _)| id)
            .collect();
        children.sort_unstable();
        let roster = &self.shared.roster;
        children
            .iter()
            .map(|id| roster.name_of(id).to_owned())
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
        self.tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .abort_all();
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        self.stop();
    }
}
