//! A node's place in the tree, alive: its listening end, its link to the parent, its children.
//!
//! [`Overlay::start`] puts the parts together; what they do is in [`crate::parent`], `server` and
//! `cluster`. Every task belongs to the [`Overlay`] and ends with it.

use crate::cluster::{ClusterClear, ClusterReports, Operation};
use crate::counters::{Counters, Meters};
use crate::files::Files;
use crate::identity::{IdentityError, Secret};
use crate::item::{Failure, ItemPath};
use crate::parent::{Parent, link};
use crate::server::Refusals;
use crate::transport::{Transport, close};
use crate::tree::Tree;
use crate::{cluster, server};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use quinn::{Connection, VarInt};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// How long [`Overlay::shutdown`] waits for the last packets.
const SHUTDOWN_PATIENCE: Duration = Duration::from_millis(500);
/// Longest member list.
const MEMBERS_MAX: usize = 1 << 20;

/// What a node answers: files to its children, and about itself to the cluster.
pub trait Service: Files {
    /// This node's report, opaque here (JSON), at most 64 KiB. Must be cheap and must not block.
    fn report(&self) -> Bytes;

    /// Drops what this node caches of `path` and below.
    ///
    /// # Errors
    /// Whatever stops the node from doing so.
    fn clear(&self, path: ItemPath) -> BoxFuture<'static, Result<(), Failure>>;
}

/// One node of the member list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its name, unique in the list, at most 255 bytes.
    pub name: String,
    /// Where it listens: `host:port`. Looked up at every attempt to connect.
    pub address: String,
}

/// Where a node stands and how it behaves. All nodes have the same `members`, `arity` and `secret`.
#[derive(Clone, Debug)]
pub struct OverlayConfig {
    /// The ordered member list; the first is the root.
    pub members: Vec<Member>,
    /// This node's place in it.
    pub rank: usize,
    /// Most children of a node, at least 1.
    pub arity: usize,
    /// Address to bind, for listening and connecting; its IP picks the network. Port 0: any.
    pub listen: SocketAddr,
    /// The job's secret.
    pub secret: Secret,
    /// How long a request waits for a connection and for each next byte of its answer.
    pub request_timeout: Duration,
    /// How long one attempt to connect to the parent may take.
    pub connect_timeout: Duration,
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
    pub(crate) members: Vec<Member>,
    pub(crate) tree: Tree,
    pub(crate) rank: usize,
    pub(crate) request_timeout: Duration,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) parent: Option<Parent>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) refusals: Refusals,
    /// Connected children by rank: at most arity of them. Held for look-ups only.
    children: Mutex<HashMap<usize, Connection>>,
}

impl Shared {
    /// Registers a child's connection; gives the one that it replaces.
    pub(crate) fn add_child(&self, rank: usize, connection: Connection) -> Option<Connection> {
        self.lock_children().insert(rank, connection)
    }

    /// Forgets a child's connection, unless another has taken its place.
    pub(crate) fn remove_child(&self, rank: usize, connection: &Connection) {
        let mut children = self.lock_children();
        if children
            .get(&rank)
            .is_some_and(|held| held.stable_id() == connection.stable_id())
        {
            children.remove(&rank);
        }
    }

    /// The connected children.
    pub(crate) fn connected_children(&self) -> Vec<(usize, Connection)> {
        self.lock_children()
            .iter()
            .map(|(&rank, held)| (rank, held.clone()))
            .collect()
    }

    fn lock_children(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Connection>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
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
    /// Takes this node's place in the tree. Returns once it listens; the parent is connected to in
    /// the background ([`Parent::first_connected`]). A list of one node needs no network. Must be
    /// called within a tokio runtime with I/O and time, which then runs the node's tasks.
    ///
    /// # Errors
    /// `Config`, `Listen`; faults of the cryptographic library.
    #[expect(
        clippy::unused_async,
        reason = "callers hold a runtime; binding may come to wait"
    )]
    pub async fn start(
        config: OverlayConfig,
        service: Arc<dyn Service>,
    ) -> Result<Self, OverlayError> {
        Self::start_with(config, |_parent| service)
    }

    /// As [`Overlay::start`], for a service that itself asks the parent: `service` is called once,
    /// with the parent's stub, before anything is served.
    ///
    /// # Errors
    /// As [`Overlay::start`].
    pub fn start_with(
        config: OverlayConfig,
        service: impl FnOnce(Option<Parent>) -> Arc<dyn Service>,
    ) -> Result<Self, OverlayError> {
        let tree = check(&config)?;
        let serves = !tree.children(config.rank).is_empty();
        let name = config
            .members
            .get(config.rank)
            .map_or("", |member| &member.name);
        let transport = if tree.len() > 1 {
            Some(Transport::bind(
                config.listen,
                &config.secret,
                name,
                serves,
            )?)
        } else {
            None
        };
        let meters = Arc::new(Meters::default());
        let parent = tree
            .parent(config.rank)
            .and_then(|rank| config.members.get(rank))
            .map(|member| Parent::new(member.clone(), config.request_timeout, Arc::clone(&meters)));
        let shared = Arc::new(Shared {
            service: service(parent.clone()),
            members: config.members,
            tree,
            rank: config.rank,
            request_timeout: config.request_timeout,
            parent,
            meters,
            refusals: Refusals::default(),
            children: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        if let Some(transport) = &transport {
            if serves {
                tasks.spawn(server::accept(
                    Arc::clone(&shared),
                    transport.endpoint.clone(),
                ));
            }
            if shared.parent.is_some() {
                let connector = link::Connector {
                    shared: Arc::clone(&shared),
                    endpoint: transport.endpoint.clone(),
                    client: transport.client.clone(),
                    local_addr: transport.local_addr,
                    connect_timeout: config.connect_timeout,
                };
                tasks.spawn(connector.run());
            }
        }
        Ok(Self {
            shared,
            transport,
            tasks: Mutex::new(tasks),
        })
    }

    /// The stub towards this node's parent; `None` at the root.
    #[must_use]
    pub fn parent(&self) -> Option<Parent> {
        self.shared.parent.clone()
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

    /// The names of the children that are connected now, in rank order.
    #[must_use]
    pub fn children(&self) -> Vec<String> {
        let mut ranks: Vec<usize> = self
            .shared
            .connected_children()
            .into_iter()
            .map(|(rank, _)| rank)
            .collect();
        ranks.sort_unstable();
        ranks
            .into_iter()
            .filter_map(|rank| self.shared.members.get(rank))
            .map(|member| member.name.clone())
            .collect()
    }

    /// The reports of all nodes, in rank order; nodes that did not answer within the request
    /// time-out are named.
    pub async fn cluster_reports(&self) -> ClusterReports {
        cluster::reports(&self.shared).await
    }

    /// Clears `path` on all nodes, the root first and every node before its children, so that no
    /// node fills itself again from one that has not cleared yet.
    pub async fn clear_cluster(&self, path: ItemPath) -> ClusterClear {
        cluster::clear(&self.shared, Operation::Clear(path)).await
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
        if let Some(parent) = &self.shared.parent {
            parent.stop();
        }
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

fn check(config: &OverlayConfig) -> Result<Tree, OverlayError> {
    let members = &config.members;
    let refuse = |text: String| Err(OverlayError::Config(text));
    let Some(tree) = Tree::new(members.len(), config.arity) else {
        return refuse("the member list is empty, or the arity is 0".into());
    };
    if members.len() > MEMBERS_MAX {
        return refuse(format!("more than {MEMBERS_MAX} members"));
    }
    if !tree.contains(config.rank) {
        return refuse(format!(
            "rank {} is not in the list of {} members (ranks begin at 0)",
            config.rank,
            members.len()
        ));
    }
    let mut names = HashSet::new();
    for member in members {
        if member.name.is_empty() || member.name.len() > 255 {
            return refuse(format!(
                "a member's name has 1 to 255 bytes: {:?}",
                member.name
            ));
        }
        if !names.insert(&member.name) {
            return refuse(format!("member {} is listed twice", member.name));
        }
    }
    if config.request_timeout.is_zero() || config.connect_timeout.is_zero() {
        return refuse("a time-out of 0 leaves no time for any answer".into());
    }
    Ok(tree)
}
