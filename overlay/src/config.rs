//! The configuration of a node.

use crate::identity::Secret;
use crate::membership::{Member, NodeIdentity};
use crate::parent_selector::FailoverTimes;
use crate::transport::{KernelNetwork, Network};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

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
    /// The job's secret. A running node does not keep it.
    pub secret: Secret,
    /// How long a request waits for a connection and for each next byte of its answer.
    pub request_timeout: Duration,
    /// Limits one attempt to connect to an ancestor.
    pub connect_timeout: Duration,
    /// A peer that sends no packet for this long, while requests are in flight, is silent: it is dead, and not slow.
    pub silence: Duration,
    /// When this node moves from one ancestor to another.
    pub failover: FailoverTimes,
    /// The policy while no root can be reached.
    pub orphan: Orphan,
    /// Limits of the connections to homes of items.
    pub homes: HomesBounds,
    /// The network that carries datagrams. With `lanes` its first sockets are those of
    /// [`transport::bind`](crate::transport::bind).
    pub network: Arc<dyn Network>,
    /// The runtimes of this node's lanes, at most [`LANES_MAX`](crate::transport::LANES_MAX). Each has one thread. It
    /// requests items of datasets from their homes, for the requests that it polls, and answers other nodes that request
    /// them, over connections and sockets of its own. Without lanes the runtime of the node does all of that.
    pub lanes: Vec<Handle>,
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
            silence: Duration::from_secs(1),
            failover: FailoverTimes::default(),
            orphan: Orphan::default(),
            homes: HomesBounds {
                // Enough for a cluster of this size. quinn takes 39 KiB for an idle connection, so all of them
                // take 10 MiB.
                connections_max: 256,
                // Longer than a job computes between two reads.
                idle: Duration::from_secs(60),
            },
            network: Arc::new(KernelNetwork),
            lanes: Vec::new(),
        }
    }
}

/// The policy of a node that can reach no root of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Orphan {
    /// Requests wait until a root can be reached again, at most the request timeout.
    #[default]
    Wait,
    /// The node reads storage itself, if it can.
    Origin,
    /// Requests fail at once.
    Error,
}

/// Limits of a node's connections to homes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HomesBounds {
    /// Most connections of one lane, at least 1. When all are in use, the longest idle one is closed for a new one.
    pub connections_max: usize,
    /// A connection without requests for this long is closed.
    pub idle: Duration,
}
