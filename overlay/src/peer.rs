//! Connections to ancestors and homes: making them, introducing this node, and watching them for life.
//!
//! Trees in which this node has the same parent share one connection. While requests are in flight, the
//! connection is probed. A peer that sends nothing for [`OverlayConfig::silence`] is silent. The tree decides
//! what follows for an ancestor; the connection of a reader ends. An ancestor may send requests about this
//! node's subtree over the same connection.

use crate::config::OverlayConfig;
use crate::exchange::{AnswerError, expect_body};
use crate::identity::Identity;
use crate::membership::{Member, Membership};
use crate::model::Failure;
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::transport::{Transport, close};
use crate::wire::{FrameKind, Hello};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use quinn::{ClientConfig, ConnectError, Connection, ConnectionError, Endpoint};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

/// Interval between handshakes with a peer that does not answer. QUIC's own repetitions back off
/// exponentially, and would miss the start of a late parent by seconds.
const HANDSHAKE_INTERVAL: Duration = Duration::from_millis(400);

/// Probes of a peer that sends nothing, in the time after which it is silent.
const PROBES: u32 = 4;

/// A connected ancestor or home. Dropping the last clone of the `Arc` closes the connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) rank: usize,
    /// The lane whose runtime drives the connection; 0 if there are no lanes.
    pub(crate) lane: usize,
    /// Name and address, for logs and errors.
    pub(crate) label: String,
    pub(crate) connection: Connection,
    pub(crate) health: Arc<Health>,
    tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
pub(crate) struct Health {
    in_flight: AtomicUsize,
    /// Notified when `in_flight` leaves 0.
    busy: Notify,
    /// Whether the peer has been silent for too long while requests were in flight.
    pub(crate) silent: watch::Sender<bool>,
    /// Number of blocks with a wrong hash that the peer has sent.
    pub(crate) corrupt_blocks: watch::Sender<u32>,
}

/// A request in flight. Keeps the peer alive and watched.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Peer>);

impl Deref for InFlight {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.health.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Peer {
    /// Announces a request, so that the peer is watched until the guard is dropped.
    pub(crate) fn begin_request(self: &Arc<Self>) -> InFlight {
        if self.health.in_flight.fetch_add(1, Ordering::AcqRel) == 0 {
            self.health.busy.notify_one();
        }
        InFlight(Arc::clone(self))
    }

    /// Counts a block with a wrong hash against the peer.
    pub(crate) fn report_corrupt(&self) {
        let blocks = &self.health.corrupt_blocks;
        blocks.send_modify(|blocks| *blocks += 1);
    }

    /// Whether no request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.health.in_flight.load(Ordering::Acquire) == 0
    }

    /// Closes the connection, so that requests in flight fail at once.
    pub(crate) fn abandon(&self) {
        give_up(&self.connection);
    }

    /// Why the connection ended with `error`, for operators.
    pub(crate) fn explain_loss(&self, error: &ConnectionError) -> String {
        let error = match *self.health.silent.borrow() {
            // This node has closed it, because no packet came.
            true => &ConnectionError::TimedOut,
            false => error,
        };
        explain(self.connection.remote_address(), error)
    }
}

fn give_up(connection: &Connection) {
    connection.close(close::GIVEN_UP.into(), b"no answer");
}

impl Drop for Peer {
    fn drop(&mut self) {
        // First, so that the tasks do not meet the end of the connection.
        self.tasks.abort_all();
        let reason = b"not needed any more";
        self.connection.close(close::LEAVING.into(), reason);
    }
}

/// Watches one connection while requests are in flight. Only whole intervals in which this task ran and no
/// packet came count as silence, so delays of this node do not count against the peer. With `ends` the
/// connection is closed when the peer is silent, and stays marked as silent.
async fn watch_for_life(
    connection: Connection,
    health: Arc<Health>,
    silence: Duration,
    ends: bool,
) {
    let idle = || health.in_flight.load(Ordering::Acquire) == 0;
    loop {
        // `notify_one` stores a permit, so a request that begins before the wait is not missed.
        while idle() {
            health.busy.notified().await;
        }
        let mut received = connection.stats().udp_rx.datagrams;
        let mut silent_intervals = 0;
        while !idle() {
            sleep(silence / PROBES).await;
            let now = connection.stats().udp_rx.datagrams;
            if now != received {
                received = now;
                silent_intervals = 0;
                health.silent.send_if_modified(std::mem::take);
                continue;
            }
            silent_intervals += 1;
            if silent_intervals >= PROBES {
                let silent = &health.silent;
                silent.send_if_modified(|silent| !std::mem::replace(silent, true));
                if ends {
                    return give_up(&connection);
                }
            }
            // Any packet that the peer must acknowledge is a probe. If it cannot be sent, the connection is
            // gone, or the peer is no copperfs node.
            let _gone = connection.send_datagram(Bytes::from_static(b"?"));
        }
        health.silent.send_if_modified(std::mem::take);
    }
}

/// Why a member could not be connected to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("there is no rank {0}")]
    NoSuchRank(usize),
    #[error("cannot look up {0}: {1}")]
    Resolve(String, #[source] io::Error),
    #[error("looking up {0} takes too long")]
    ResolveTimeout(String),
    #[error("{0} has no address that this node can reach")]
    NoAddress(String),
    #[error("cannot connect to {0}: {1}")]
    Connect(SocketAddr, #[source] ConnectError),
    /// The connection failed, in the handshake or before the peer's answer.
    #[error("{}", explain(*.0, .1))]
    Connection(SocketAddr, #[source] ConnectionError),
    /// No handshake succeeded in time.
    #[error("{0} does not answer")]
    NoAnswer(String),
    #[error("{0} refuses this node: {1}")]
    Refused(SocketAddr, #[source] Failure),
    #[error("{0} did not accept this node: {1}")]
    NoWelcome(SocketAddr, #[source] StreamError),
}

impl DialError {
    /// Whether the peer answered, and does not want this node.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Refused(..) => true,
            Self::Connection(_, ConnectionError::ApplicationClosed(closed)) => {
                closed.error_code == quinn::VarInt::from(close::REFUSED)
            }
            _ => false,
        }
    }

    /// Whether the peer runs another version, or has another secret. That does not change by waiting, unless the peer is
    /// another job's.
    pub(crate) fn is_mismatch(&self) -> bool {
        matches!(self, Self::Connection(_, error) if tls_alert(error).is_some())
    }
}

/// Connections by rank. Each has a lock of its own, so that two trees do not connect to one node twice.
type Connections = HashMap<usize, Arc<tokio::sync::Mutex<Weak<Peer>>>>;

/// The endpoint from which a connection is made, and its configuration.
type Caller<'a> = (&'a Endpoint, &'a ClientConfig);

/// An ancestor or home that has accepted this node.
pub(crate) struct Dialed {
    pub(crate) peer: Arc<Peer>,
    /// It has a parent itself, or is the root.
    pub(crate) attached: bool,
}

/// Answers every stream that an ancestor opens on a connection, until it ends. Dropping the future ends the
/// answers too.
type AnswerAncestor = dyn Fn(Connection) -> BoxFuture<'static, ()> + Send + Sync;

/// Makes connections to ancestors and homes.
pub(crate) struct Dialer {
    pub(crate) config: Arc<OverlayConfig>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) answer_ancestor: Box<AnswerAncestor>,
    pub(crate) transport: Transport,
    /// Connections to ancestors, at most one each. Held for look-ups only.
    pub(crate) ancestors: Mutex<Connections>,
}

impl Dialer {
    /// Connects to the member `rank` as an ancestor in `tree`, or introduces this node in that tree over the
    /// connection that exists.
    pub(crate) async fn dial(&self, tree: usize, rank: usize) -> Result<Dialed, DialError> {
        let slot = Arc::clone(self.ancestors.lock().entry(rank).or_default());
        // Held during the dial, so that another tree waits for this connection and shares it.
        let mut slot = slot.lock().await;
        let hello = self.membership.hello(tree);
        let existing = slot.upgrade();
        if let Some(peer) = existing.filter(|peer| peer.connection.close_reason().is_none()) {
            let attached = self.introduce(&peer.connection, &hello).await?;
            return Ok(Dialed { peer, attached });
        }
        let transport = &self.transport;
        let from = (&transport.connecting, &transport.client);
        let dialed = self.connect(rank, &hello, from).await?;
        // Weak: the connection closes when no tree uses it any more.
        *slot = Arc::downgrade(&dialed.peer);
        Ok(dialed)
    }

    /// Connects to the member `rank` as a reader of items, for `lane`, on whose runtime it must be called.
    pub(crate) async fn dial_home(&self, rank: usize, lane: usize) -> Result<Arc<Peer>, DialError> {
        let hello = self.membership.hello_as_reader(lane);
        let transport = &self.transport;
        let from = match transport.lanes.get(lane) {
            Some(lane) => (&lane.connecting, &lane.reader),
            None => (&transport.connecting, &transport.reader),
        };
        Ok(self.connect(rank, &hello, from).await?.peer)
    }

    pub(crate) fn member(&self, rank: usize) -> Result<&Member, DialError> {
        let member = self.membership.members().get(rank);
        member.ok_or(DialError::NoSuchRank(rank))
    }

    /// Connects to the member `rank`, and introduces this node to it with `hello`.
    async fn connect(
        &self,
        rank: usize,
        hello: &Hello,
        from: Caller<'_>,
    ) -> Result<Dialed, DialError> {
        let member = self.member(rank)?;
        let connection = self.connect_to(from, &member.address).await?;
        let attached = self.introduce(&connection, hello).await?;
        let health = Arc::<Health>::default();
        let (of_task, silence) = (Arc::clone(&health), self.config.silence);
        let mut tasks = JoinSet::new();
        let watching = watch_for_life(connection.clone(), of_task, silence, hello.reader);
        tasks.spawn(watching);
        if !hello.reader {
            tasks.spawn((self.answer_ancestor)(connection.clone()));
        }
        let peer = Arc::new(Peer {
            rank,
            lane: hello.lane.into(),
            label: member.to_string(),
            connection,
            health,
            tasks,
        });
        Ok(Dialed { peer, attached })
    }

    async fn connect_to(&self, from: Caller<'_>, address: &str) -> Result<Connection, DialError> {
        let resolving = self.config.network.resolve(address);
        let mut remotes = timeout(self.config.connect_timeout, resolving)
            .await
            .map_err(|_elapsed| DialError::ResolveTimeout(address.to_owned()))?
            .map_err(|error| DialError::Resolve(address.to_owned(), error))?;
        // A socket bound to an IPv4 address reaches no IPv6 address.
        remotes.retain(|remote| remote.is_ipv4() || self.transport.local_addr.is_ipv6());
        if remotes.is_empty() {
            return Err(DialError::NoAddress(address.to_owned()));
        }
        self.race_handshakes(from, &remotes).await
    }

    /// Returns the first handshake that succeeds. One begins per interval, address by address; the others
    /// are dropped before their hello. Fails when every address has refused, or the time is up.
    async fn race_handshakes(
        &self,
        (endpoint, client): Caller<'_>,
        remotes: &[SocketAddr],
    ) -> Result<Connection, DialError> {
        let attempt = async |remote: SocketAddr| {
            let connecting = endpoint
                .connect_with(client.clone(), remote, Identity::NAME)
                .map_err(|error| DialError::Connect(remote, error))?;
            let connected = connecting.await;
            connected.map_err(|error| DialError::Connection(remote, error))
        };
        let mut attempts = FuturesUnordered::new();
        let mut last_error = None;
        let mut begin = interval(HANDSHAKE_INTERVAL);
        let mut untried = remotes.len();
        let mut next_remote = remotes.iter().cycle();
        let racing = async {
            loop {
                tokio::select! {
                    biased;
                    _tick = begin.tick() => {
                        attempts.extend(next_remote.next().map(|remote| attempt(*remote)));
                        untried = untried.saturating_sub(1);
                    }
                    Some(result) = attempts.next() => match result {
                        Ok(connection) => return Ok(connection),
                        Err(error) if attempts.is_empty() && untried == 0 => return Err(error),
                        Err(error) => {
                            last_error = Some(error);
                            // The next address need not wait for the interval.
                            if untried > 0 {
                                begin.reset_immediately();
                            }
                        }
                    },
                }
            }
        };
        match timeout(self.config.connect_timeout, racing).await {
            Ok(result) => result,
            Err(_elapsed) => Err(last_error.unwrap_or_else(|| {
                let remotes: Vec<String> = remotes.iter().map(SocketAddr::to_string).collect();
                DialError::NoAnswer(remotes.join(", "))
            })),
        }
    }

    /// Sends `hello` and waits for the welcome. Returns whether the peer has a parent itself, or is the root.
    async fn introduce(&self, connection: &Connection, hello: &Hello) -> Result<bool, DialError> {
        let greeting = async {
            let (send, recv) = connection.open_bi().await.map_err(StreamError::Lost)?;
            let mut reader = FrameReader::new(recv, self.config.connect_timeout);
            let mut writer = FrameWriter::new(send, self.config.connect_timeout);
            writer.message(FrameKind::Hello, hello).await?;
            writer.finish();
            let body = expect_body(&mut reader, FrameKind::Welcome, "welcome").await?;
            reader.finish()?;
            Ok(body[..] == [1])
        };
        let remote = connection.remote_address();
        let outcome: Result<bool, AnswerError> = greeting.await;
        outcome.map_err(|error| match error {
            AnswerError::Failure(refusal) => DialError::Refused(remote, refusal),
            AnswerError::Stream(StreamError::Lost(error)) => DialError::Connection(remote, error),
            AnswerError::Stream(error) => {
                connection.close(close::PROTOCOL.into(), b"no welcome");
                DialError::NoWelcome(remote, error)
            }
        })
    }
}

/// Why a connection to `remote` ended, for operators.
pub(crate) fn explain(remote: SocketAddr, error: &ConnectionError) -> String {
    const NO_APPLICATION_PROTOCOL: u64 = 120;
    match (tls_alert(error), error) {
        (Some(NO_APPLICATION_PROTOCOL), _) => format!(
            "{remote} speaks another version of the copperfs protocol than this node ({}): run the same \
             copperfs on all nodes",
            String::from_utf8_lossy(crate::wire::ALPN)
        ),
        (Some(alert), _) => {
            format!("{remote} and this node do not have the same job secret (TLS alert {alert})")
        }
        (None, ConnectionError::ApplicationClosed(closed))
            if closed.error_code == quinn::VarInt::from(close::REFUSED) =>
        {
            let reason = String::from_utf8_lossy(&closed.reason);
            format!("{remote} refuses this node: {reason}")
        }
        (None, ConnectionError::TimedOut) => format!("{remote} does not answer"),
        (None, ConnectionError::Reset) => format!("{remote} has restarted"),
        (None, ConnectionError::ConnectionClosed(closed)) => format!("{remote}: {closed}"),
        (None, error) => format!("{remote}: {error}"),
    }
}

/// The TLS alert that has ended a connection: QUIC error 0x100 + alert (RFC 9001, section 4.8).
fn tls_alert(error: &ConnectionError) -> Option<u64> {
    let code = match error {
        ConnectionError::TransportError(error) => u64::from(error.code),
        ConnectionError::ConnectionClosed(closed) => closed.error_code.into(),
        _ => return None,
    };
    (0x100..=0x1ff).contains(&code).then(|| code - 0x100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn a_failed_dial_keeps_its_source() {
        let remote = SocketAddr::from(([127, 0, 0, 1], 9));
        let refused = io::Error::from(io::ErrorKind::NotFound);
        for (error, text) in [
            (
                DialError::Resolve("node:9".into(), refused),
                "cannot look up node:9: entity not found",
            ),
            (
                DialError::Connection(remote, ConnectionError::TimedOut),
                "127.0.0.1:9 does not answer",
            ),
            (
                DialError::NoWelcome(remote, StreamError::Truncated),
                "127.0.0.1:9 did not accept this node: the answer ended early",
            ),
        ] {
            assert_eq!(error.to_string(), text);
            assert!(error.source().is_some(), "{error}");
        }
    }
}
