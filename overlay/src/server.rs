//! The listening side: lets this node's children in, and nobody else.
//!
//! TLS has proven that a peer belongs to the job before a line here sees it; the hello proves that
//! this node is above it by the same arithmetic. Connections that have not said hello are few
//! ([`door`]); each child has one connection, and quinn bounds its streams. What a stream
//! asks is answered in [`stream`].

mod door;
mod stream;

use crate::peer::{IncomingStreams, explain};
use crate::readers::{Full, Rooms};
use crate::shared::Shared;
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::transport::{STREAMS_OF_CHILD, close, more_streams};
use crate::wire::message::NodeId;
use crate::wire::{FrameKind, Hello};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use quinn::{Connection, ConnectionError, Endpoint, Incoming};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

use door::{Door, Place, Verdict};
use stream::{Asker, Floor};

/// How long a peer may take for its handshake, and again for its hello.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// Accepts connections until it is dropped.
pub(crate) async fn accept(shared: Arc<Shared>, endpoint: Endpoint) {
    let door = Arc::new(Door::default());
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_done) = connections.join_next() => {}
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { return };
                let peer = incoming.remote_address();
                match door.knock(peer.ip(), incoming.remote_address_validated()) {
                    Verdict::Enter(place) => {
                        connections.spawn(welcome(Arc::clone(&shared), incoming, place));
                    }
                    // Cannot fail: quinn can send a Retry to any address that is not proven.
                    Verdict::Prove => drop(incoming.retry()),
                    Verdict::Refuse => {
                        shared.refusals.log(peer, "too many connections without a hello");
                        incoming.refuse();
                    }
                }
            }
        }
    }
}

/// One connection, from its first packet to its end.
async fn welcome(shared: Arc<Shared>, incoming: Incoming, mut place: Place) {
    let peer = incoming.remote_address();
    let connection = match timeout(INTRODUCTION, incoming).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return gone(&shared, peer, &error),
        Err(_elapsed) => return shared.refusals.log(peer, "no handshake in time"),
    };
    place.prove();
    let hello = match timeout(INTRODUCTION, hear(&shared, &connection)).await {
        Ok(Ok(child)) => Ok(child),
        Ok(Err(Unwelcome::Stream(StreamError::Lost(error)))) => return gone(&shared, peer, &error),
        Ok(Err(Unwelcome::Stream(error))) => {
            Err((close::PROTOCOL, format!("a hello was due: {error}")))
        }
        Ok(Err(Unwelcome::Stranger(reason))) => Err((close::REFUSED, reason)),
        Err(_elapsed) => Err((close::PROTOCOL, "no hello in time".into())),
    };
    match hello {
        Ok((id, tree)) => {
            drop(place);
            serve(shared, (id, tree), connection).await;
        }
        Err((code, reason)) => {
            connection.close(code.into(), reason.as_bytes());
            shared.refusals.log(peer, &reason);
        }
    }
}

/// A peer whose connection ended before its hello. A child that begins several handshakes drops all
/// but the first; everything else is worth a line.
fn gone(shared: &Shared, peer: SocketAddr, error: &ConnectionError) {
    match error {
        ConnectionError::ApplicationClosed(_) | ConnectionError::LocallyClosed => {
            tracing::debug!(%peer, %error, "a peer left before its hello");
        }
        error => shared.refusals.log(peer, &explain(peer, error)),
    }
}

enum Unwelcome {
    Stream(StreamError),
    Stranger(String),
}

impl From<StreamError> for Unwelcome {
    fn from(error: StreamError) -> Self {
        Self::Stream(error)
    }
}

/// Hears the first hello and answers it; gives who says it, and for which tree: a reader's for none.
async fn hear(
    shared: &Arc<Shared>,
    connection: &Connection,
) -> Result<(NodeId, Option<usize>), Unwelcome> {
    if connection.peer_identity().is_none() {
        return Err(Unwelcome::Stranger("no certificate".into()));
    }
    let (send, recv) = connection.accept_bi().await.map_err(StreamError::Lost)?;
    let mut reader = FrameReader::new(recv, INTRODUCTION);
    let hello: Hello = reader.expect(FrameKind::Hello, "hello").await?;
    let id = admit(shared, &hello, connection).map_err(Unwelcome::Stranger)?;
    let mut writer = FrameWriter::new(send, INTRODUCTION);
    greeting(shared, usize::from(hello.tree), &mut writer).await?;
    writer.finish();
    let tree = (!hello.reader).then_some(usize::from(hello.tree));
    Ok((id, tree))
}

/// Takes in whoever says `hello` over `connection`, or says why not.
pub(crate) fn admit(
    shared: &Shared,
    hello: &Hello,
    connection: &Connection,
) -> Result<NodeId, String> {
    let id = shared.membership.check(hello)?;
    let added = match hello.reader {
        true => shared.readers.add(&id, connection),
        false => shared
            .children
            .add(&id, usize::from(hello.tree), connection),
    };
    match added {
        Ok(Some(older)) => older.close(close::REPLACED.into(), b"connected anew"),
        Ok(None) => {}
        Err(Full) => {
            let of_what = if hello.reader { "readers" } else { "children" };
            return Err(format!(
                "{} has as many {of_what} as it can take",
                shared.membership.name()
            ));
        }
    }
    Ok(id)
}

/// Welcomes a child in `tree`, and says whether this node is of use there.
pub(crate) async fn greeting(
    shared: &Shared,
    tree: usize,
    writer: &mut FrameWriter,
) -> Result<(), StreamError> {
    let settled = shared
        .upstream
        .hold(tree)
        .is_none_or(|hold| hold.is_connected());
    let body = Bytes::copy_from_slice(&[u8::from(settled)]);
    writer.frame(FrameKind::Welcome, body).await.map(drop)
}

/// Takes a child or reader out of its list when its connection ends, however that comes about.
struct Registered {
    shared: Arc<Shared>,
    id: NodeId,
    /// In which tree it first hung from this node; a reader: none.
    tree: Option<usize>,
    connection: Connection,
}

impl Drop for Registered {
    fn drop(&mut self) {
        match self.tree {
            Some(_) => self.shared.children.remove(&self.id, &self.connection),
            None => self.shared.readers.remove(&self.id, &self.connection),
        }
    }
}

/// Answers the streams of a child, or of a reader (no tree), until its connection ends.
async fn serve(shared: Arc<Shared>, (id, tree): (NodeId, Option<usize>), connection: Connection) {
    let peer = shared.membership.name_of(&id).to_owned();
    let address = connection.remote_address();
    let asker = match tree {
        Some(tree) => {
            tracing::info!(child = %peer, tree, %address, "child connected");
            Asker::Child(id.clone(), connection.clone())
        }
        None => {
            tracing::debug!(%peer, %address, "a reader of items connected");
            Asker::Reader(id.clone(), Rooms::of_reader())
        }
    };
    let floor = Floor::new(asker);
    let registered = Registered {
        shared: Arc::clone(&shared),
        id,
        tree,
        connection,
    };
    let mut streams = JoinSet::new();
    let mut allowed = STREAMS_OF_CHILD;
    loop {
        tokio::select! {
            biased;
            Some(_done) = streams.join_next() => {}
            incoming = registered.connection.accept_bi() => match incoming {
                Ok((send, recv)) => {
                    let answer = stream::answer(Arc::clone(&shared), floor.clone(), send, recv);
                    streams.spawn(answer);
                    if let Some(more) = more_streams(allowed, streams.len()) {
                        registered.connection.set_max_concurrent_bi_streams(more.into());
                        allowed = more;
                    }
                }
                Err(error) => {
                    let reason = explain(address, &error);
                    match tree {
                        Some(_) => tracing::info!(child = %peer, reason, "child gone"),
                        None => tracing::debug!(%peer, reason, "a reader of items gone"),
                    }
                    return;
                }
            },
        }
    }
}

/// Answers what ancestors ask this node: about what lies below it.
pub(crate) struct FromAncestors(pub(crate) Arc<Shared>);

impl fmt::Debug for FromAncestors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromAncestors")
    }
}

impl IncomingStreams for FromAncestors {
    fn answer_all(&self, connection: Connection) -> BoxFuture<'static, ()> {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let floor = Floor::new(Asker::Parent);
            let mut streams = JoinSet::new();
            loop {
                tokio::select! {
                    biased;
                    Some(_done) = streams.join_next() => {}
                    incoming = connection.accept_bi() => match incoming {
                        Ok((send, recv)) => {
                            let shared = Arc::clone(&shared);
                            streams.spawn(stream::answer(shared, floor.clone(), send, recv));
                        }
                        Err(_closed) => return,
                    },
                }
            }
        })
    }
}
