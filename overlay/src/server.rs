//! The server side of a node: accepts its children and readers, and refuses all others.
//!
//! TLS has proven that a peer belongs to the job before any code here sees it. The hello then proves that this
//! node is an ancestor of the peer by the same arithmetic. Connections without a hello are limited
//! ([`admission`]). Each child has one connection, and quinn bounds its streams. [`stream`] answers each
//! stream.

mod admission;
mod stream;

use crate::connected::RoomForItems;
use crate::membership::{HelloError, Membership};
use crate::peer::explain;
use crate::shared::Shared;
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::transport::{LANES_MAX, STREAMS_OF_CHILD, close, more_streams};
use crate::wire::message::{self, NodeId};
use crate::wire::{FrameKind, Hello, WireError};
use bytes::Bytes;
use quinn::{Connection, ConnectionError, Endpoint, Incoming};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

pub(crate) use admission::Admission;
use admission::{Decision, PendingConnection};
use stream::{RequestSlots, Requester};

/// Limits a peer's handshake, and its hello after that.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Accepts connections at `endpoint`, of this node's `lane`, until it is dropped. All endpoints of a node share `admission`.
pub(crate) async fn accept(
    shared: Arc<Shared>,
    endpoint: Endpoint,
    lane: usize,
    admission: Arc<Admission>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // Finished tasks first, so that their results do not pile up.
            biased;
            Some(_done) = connections.join_next() => {}
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { return };
                let peer = incoming.remote_address();
                match admission.decide(peer.ip(), incoming.remote_address_validated()) {
                    Decision::Accept(pending) => {
                        let shared = Arc::clone(&shared);
                        connections.spawn(handle_connection(shared, incoming, lane, pending));
                    }
                    // Cannot fail: quinn can send a Retry to any address that is not validated.
                    Decision::Validate => drop(incoming.retry()),
                    Decision::Refuse => {
                        shared.refusals.log(peer, "too many connections without a hello");
                        incoming.refuse();
                    }
                }
            }
        }
    }
}

/// Handles one connection, from its first packet to its end.
async fn handle_connection(
    shared: Arc<Shared>,
    incoming: Incoming,
    lane: usize,
    pending: PendingConnection,
) {
    let remote = incoming.remote_address();
    let connection = match timeout(HELLO_TIMEOUT, incoming).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return log_lost(&shared, remote, &error),
        Err(_elapsed) => return shared.refusals.log(remote, "no handshake in time"),
    };
    pending.validated();
    let outcome = timeout(HELLO_TIMEOUT, receive_hello(&shared, &connection)).await;
    let error = match outcome.unwrap_or(Err(IntroductionError::Timeout)) {
        Ok(peer) => {
            // The slot is for connections before their hello.
            drop(pending);
            return serve_peer(shared, peer, lane, connection).await;
        }
        Err(error) => error,
    };
    let code = match &error {
        IntroductionError::Stream(StreamError::Lost(error)) => {
            return log_lost(&shared, remote, error);
        }
        IntroductionError::Timeout | IntroductionError::Stream(_) => close::PROTOCOL,
        IntroductionError::Refused(_) => close::REFUSED,
    };
    let reason = error.to_string();
    connection.close(code.into(), reason.as_bytes());
    shared.refusals.log(remote, &reason);
}

/// Logs a connection that ended before its hello. A child that begins several handshakes drops all but the
/// first, which is no reason for a warning.
fn log_lost(shared: &Shared, peer: SocketAddr, error: &ConnectionError) {
    match error {
        ConnectionError::ApplicationClosed(_) | ConnectionError::LocallyClosed => {
            tracing::debug!(%peer, %error, "a peer left before its hello");
        }
        error => shared.refusals.log(peer, &explain(peer, error)),
    }
}

/// Why a connection did not get past its hello.
#[derive(Debug, thiserror::Error)]
enum IntroductionError {
    #[error("no hello in time")]
    Timeout,
    #[error("a hello was due: {0}")]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Refused(#[from] HelloError),
}

/// A peer that was admitted.
struct Admitted {
    id: NodeId,
    relation: Relation,
}

#[derive(Clone, Copy)]
enum Relation {
    /// A child in the tree of its first hello.
    Child { tree: usize },
    /// A reader of items, with the number of its own lane.
    Reader { lane: u8 },
}

/// Receives the first hello and answers it.
async fn receive_hello(
    shared: &Shared,
    connection: &Connection,
) -> Result<Admitted, IntroductionError> {
    if connection.peer_identity().is_none() {
        return Err(HelloError("no certificate".into()).into());
    }
    let (send, recv) = connection.accept_bi().await.map_err(StreamError::Lost)?;
    let mut reader = FrameReader::new(recv, HELLO_TIMEOUT);
    let got = reader.header().await?.kind;
    if got != FrameKind::Hello {
        return Err(StreamError::from(WireError::unexpected(got, "hello")).into());
    }
    let body = reader.body().await?;
    let hello: Hello = message::decode("hello", &body).map_err(StreamError::from)?;
    let id = admit(shared, &hello, connection, None)?;
    let mut writer = FrameWriter::new(send, HELLO_TIMEOUT);
    let tree = usize::from(hello.tree);
    send_welcome(shared, tree, &mut writer).await?;
    writer.finish();
    let relation = match hello.reader {
        true => Relation::Reader { lane: hello.lane },
        false => Relation::Child { tree },
    };
    Ok(Admitted { id, relation })
}

/// Registers the peer that sent `hello` over `connection`, which is that of `known` if it has had a hello.
pub(crate) fn admit(
    shared: &Shared,
    hello: &Hello,
    connection: &Connection,
    known: Option<&NodeId>,
) -> Result<NodeId, HelloError> {
    let membership = &shared.membership;
    let id = membership.check(hello)?;
    // Comes first: a registration would replace the other node's connection.
    if known.is_some_and(|known| *known != id) {
        return Err(HelloError("another node's hello".into()));
    }
    let (admitted, plural) = match hello.reader {
        true if usize::from(hello.lane) >= LANES_MAX => {
            return Err(HelloError(format!("there is no lane {}", hello.lane)));
        }
        true => {
            let reader = (id.clone(), hello.lane);
            let admitted = shared.readers.connected.add(&reader, connection);
            (admitted, "readers")
        }
        false => {
            let tree = usize::from(hello.tree);
            // A listed child is always accepted.
            let count_max = match membership.is_own_child(tree, &id) {
                true => usize::MAX,
                false => children_max(membership),
            };
            let admitted = shared.children.add(&id, tree, connection, count_max);
            (admitted, "children")
        }
    };
    match admitted {
        true => Ok(id),
        false => {
            let own = membership.name();
            let reason = format!("{own} has as many {plural} as it can take");
            Err(HelloError(reason))
        }
    }
}

/// The number of children beyond which only listed ones are accepted. It leaves room for the children of children
/// that died. A root, the last resort of every node, has room for many more.
fn children_max(membership: &Membership) -> usize {
    let forest = membership.forest();
    let is_root = membership.rank().is_some_and(|own| forest.is_root(own));
    let floor = if is_root { 512 } else { 32 };
    forest.arity().saturating_mul(8).max(floor)
}

/// Accepts a child in `tree`, and tells it whether this node has a parent there or is the root.
pub(crate) async fn send_welcome(
    shared: &Shared,
    tree: usize,
    writer: &mut FrameWriter,
) -> Result<(), StreamError> {
    let link = shared.upstream.parent_link(tree);
    let attached = link.is_none_or(|link| link.is_connected());
    let body = Bytes::copy_from_slice(&[u8::from(attached)]);
    writer.frame(FrameKind::Welcome, body).await.map(drop)
}

/// A registered child or reader. Dropping it removes the peer from its list.
struct Registration {
    shared: Arc<Shared>,
    peer: Admitted,
    connection: Connection,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let (id, shared) = (&self.peer.id, &self.shared);
        match self.peer.relation {
            Relation::Child { .. } => shared.children.remove(id, &self.connection),
            Relation::Reader { lane } => {
                let connected = &shared.readers.connected;
                connected.remove(&(id.clone(), lane), &self.connection);
            }
        }
    }
}

/// Serves a child, or a reader of items on this node's `lane`, until its connection ends.
async fn serve_peer(shared: Arc<Shared>, peer: Admitted, lane: usize, connection: Connection) {
    let name = shared.membership.name_of(&peer.id).to_owned();
    let (address, relation) = (connection.remote_address(), peer.relation);
    let requester = match relation {
        Relation::Child { tree } => {
            tracing::info!(child = %name, tree, %address, "child connected");
            Requester::Child(peer.id.clone(), connection.clone())
        }
        Relation::Reader { .. } => {
            tracing::debug!(peer = %name, %address, lane, "a reader of items connected");
            Requester::Reader(peer.id.clone(), RoomForItems::of_reader(), lane)
        }
    };
    let registration = Registration {
        shared: Arc::clone(&shared),
        peer,
        connection,
    };
    let error = serve_streams(shared, &registration.connection, requester).await;
    let reason = explain(address, &error);
    match relation {
        Relation::Child { .. } => tracing::info!(child = %name, reason, "child gone"),
        Relation::Reader { .. } => {
            tracing::debug!(peer = %name, reason, "a reader of items gone");
        }
    }
}

/// Answers the streams of one connection. Returns the reason of its end.
async fn serve_streams(
    shared: Arc<Shared>,
    connection: &Connection,
    requester: Requester,
) -> ConnectionError {
    let slots = Arc::new(RequestSlots::new(requester));
    let mut streams = JoinSet::new();
    let mut allowed = STREAMS_OF_CHILD;
    loop {
        tokio::select! {
            biased;
            Some(_done) = streams.join_next() => {}
            incoming = connection.accept_bi() => match incoming {
                Ok((send, recv)) => {
                    let (shared, slots) = (Arc::clone(&shared), Arc::clone(&slots));
                    streams.spawn(stream::answer(shared, slots, send, recv));
                    // An ancestor may never open enough streams for this.
                    if let Some(more) = more_streams(allowed, streams.len()) {
                        connection.set_max_concurrent_bi_streams(more.into());
                        allowed = more;
                    }
                }
                Err(error) => return error,
            },
        }
    }
}

/// Answers the requests of an ancestor about this node's subtree, until its connection ends.
pub(crate) async fn answer_ancestor(shared: Arc<Shared>, connection: Connection) {
    let _closed = serve_streams(shared, &connection, Requester::Ancestor).await;
}
