//! Connections to ancestors and homes: making them, introducing this node, and watching them for life.
//!
//! Trees in which this node has the same parent share one connection. While requests are in flight, the
//! connection is probed every [`Liveness::probe`]. A peer that sends nothing for [`Liveness::silence`] is
//! reported as silent; the tree decides what follows. An ancestor may send requests about this node's subtree
//! over the same connection.

use crate::counters::Counters;
use crate::exchange::{AnswerError, expect_body};
use crate::identity::Identity;
use crate::membership::{Member, Membership};
use crate::model::Failure;
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::transport::{Network, Transport, close};
use crate::wire::{FrameKind, Hello};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use quinn::{ClientConfig, ConnectError, Connection, ConnectionError};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{interval, sleep, timeout};

/// Interval between handshakes with a peer that does not answer. QUIC's own repetitions back off
/// exponentially, and would miss the start of a late parent by seconds.
const HANDSHAKE_INTERVAL: Duration = Duration::from_millis(400);

/// How a dead peer is told from a slow one while requests are in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Liveness {
    /// Interval between probes of a peer that sends nothing.
    pub probe: Duration,
    /// A peer that sends no packet for this long is silent.
    pub silence: Duration,
}

impl Default for Liveness {
    fn default() -> Self {
        Self {
            probe: Duration::from_millis(250),
            silence: Duration::from_secs(1),
        }
    }
}

/// A connected ancestor or home. Dropping the last clone of the `Arc` closes the connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) rank: usize,
    /// Name and address, for logs and errors.
    pub(crate) label: Arc<str>,
    pub(crate) connection: Connection,
    health: Arc<Health>,
    tasks: Vec<AbortHandle>,
}

#[derive(Debug, Default)]
struct Health {
    in_flight: AtomicUsize,
    /// Notified when `in_flight` leaves 0.
    busy: Notify,
    /// Whether the peer has been silent for too long.
    silent: watch::Sender<bool>,
    /// Number of blocks with a wrong hash that the peer has sent.
    corrupt_blocks: watch::Sender<u32>,
}

/// A request in flight. Keeps the peer alive and watched.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Peer>);

impl InFlight {
    pub(crate) fn peer(&self) -> &Peer {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.health.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Peer {
    fn new(rank: usize, label: Arc<str>, connection: Connection, liveness: Liveness) -> Self {
        let health = Arc::new(Health::default());
        let watching = watch_for_life(connection.clone(), Arc::clone(&health), liveness);
        Self {
            rank,
            label,
            connection,
            health,
            tasks: vec![tokio::spawn(watching).abort_handle()],
        }
    }

    /// Announces a request, so that the peer is watched until the guard is dropped.
    pub(crate) fn begin_request(self: &Arc<Self>) -> InFlight {
        if self.health.in_flight.fetch_add(1, Ordering::AcqRel) == 0 {
            self.health.busy.notify_one();
        }
        InFlight(Arc::clone(self))
    }

    /// Counts a block with a wrong hash against the peer.
    pub(crate) fn report_corrupt(&self) {
        self.health
            .corrupt_blocks
            .send_modify(|blocks| *blocks += 1);
    }

    /// Whether no request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.health.in_flight.load(Ordering::Acquire) == 0
    }

    /// Whether the peer has been silent for too long while requests were in flight.
    pub(crate) fn silent(&self) -> watch::Receiver<bool> {
        self.health.silent.subscribe()
    }

    /// The number of blocks with a wrong hash that the peer has sent.
    pub(crate) fn corrupt_blocks(&self) -> watch::Receiver<u32> {
        self.health.corrupt_blocks.subscribe()
    }

    /// Waits until the connection has ended. Returns the reason, for operators.
    pub(crate) async fn closed(&self) -> String {
        let error = self.connection.closed().await;
        explain(self.connection.remote_address(), &error)
    }

    /// Closes the connection, so that requests in flight fail at once.
    pub(crate) fn abandon(&self) {
        self.connection.close(close::GIVEN_UP.into(), b"no answer");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.connection
            .close(close::LEAVING.into(), b"not needed any more");
    }
}

/// Watches one connection while requests are in flight. Only whole intervals in which this task ran and no
/// packet came count as silence, so delays of this node do not count against the peer.
async fn watch_for_life(connection: Connection, health: Arc<Health>, liveness: Liveness) {
    let intervals_max = liveness
        .silence
        .as_nanos()
        .div_ceil(liveness.probe.as_nanos().max(1));
    let idle = || health.in_flight.load(Ordering::Acquire) == 0;
    loop {
        // `notify_one` stores a permit, so a request that begins before the wait is not missed.
        while idle() {
            health.busy.notified().await;
        }
        let mut received = connection.stats().udp_rx.datagrams;
        let mut silent_intervals = 0_u128;
        while !idle() {
            sleep(liveness.probe).await;
            let now = connection.stats().udp_rx.datagrams;
            if now != received {
                received = now;
                silent_intervals = 0;
                health.silent.send_if_modified(std::mem::take);
                continue;
            }
            silent_intervals += 1;
            if silent_intervals >= intervals_max {
                health
                    .silent
                    .send_if_modified(|silent| !std::mem::replace(silent, true));
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
    #[error("cannot look up {address}: {source}")]
    Resolve { address: String, source: io::Error },
    #[error("looking up {0} takes too long")]
    ResolveTimeout(String),
    #[error("{0} has no address that this node can reach")]
    NoAddress(String),
    #[error("cannot connect to {remote}: {source}")]
    Connect {
        remote: SocketAddr,
        source: ConnectError,
    },
    /// The connection failed, in the handshake or before the peer's answer.
    #[error("{}", explain(*remote, source))]
    Connection {
        remote: SocketAddr,
        source: ConnectionError,
    },
    /// No handshake succeeded in time.
    #[error("{0} does not answer")]
    NoAnswer(String),
    #[error("{remote} refuses this node: {refusal}")]
    Refused {
        remote: SocketAddr,
        refusal: Failure,
    },
    #[error("{remote} did not accept this node: {source}")]
    NoWelcome {
        remote: SocketAddr,
        source: StreamError,
    },
}

/// Connections by rank. Each has a lock of its own, so that two trees do not connect to one node twice.
type Connections = HashMap<usize, Arc<tokio::sync::Mutex<Weak<Peer>>>>;

/// An ancestor that has accepted this node.
pub(crate) struct Dialed {
    pub(crate) peer: Arc<Peer>,
    /// The ancestor has a parent itself, or is the root.
    pub(crate) attached: bool,
}

/// Answers the streams that an ancestor opens.
pub(crate) trait IncomingStreams: Send + Sync + 'static {
    /// Answers every stream of `connection` until it ends. Dropping the future ends the answers too.
    fn answer_all(&self, connection: Connection) -> BoxFuture<'static, ()>;
}

/// Makes connections to ancestors and homes.
pub(crate) struct Dialer {
    pub(crate) membership: Arc<Membership>,
    pub(crate) liveness: Liveness,
    /// Limits one attempt to connect.
    pub(crate) connect_timeout: Duration,
    /// How long a request waits for each next byte of its answer.
    pub(crate) request_timeout: Duration,
    pub(crate) counters: Arc<Counters>,
    pub(crate) incoming: Arc<dyn IncomingStreams>,
    pub(crate) transport: Transport,
    pub(crate) network: Arc<dyn Network>,
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
        let member = self.member(rank)?;
        let client = &self.transport.client;
        let connection = self.connect(client, &member.address).await?;
        let attached = self.introduce(&connection, &hello).await?;
        let answering = self.incoming.answer_all(connection.clone());
        let mut peer = Peer::new(rank, label(member), connection, self.liveness);
        peer.tasks.push(tokio::spawn(answering).abort_handle());
        let peer = Arc::new(peer);
        // Weak: the connection closes when no tree uses it any more.
        *slot = Arc::downgrade(&peer);
        Ok(Dialed { peer, attached })
    }

    /// Connects to the member `rank` as a reader of items.
    pub(crate) async fn dial_home(&self, rank: usize) -> Result<Arc<Peer>, DialError> {
        let member = self.member(rank)?;
        let client = &self.transport.reader;
        let connection = self.connect(client, &member.address).await?;
        let hello = self.membership.hello_as_reader();
        self.introduce(&connection, &hello).await?;
        let peer = Peer::new(rank, label(member), connection, self.liveness);
        Ok(Arc::new(peer))
    }

    /// The error for a member `rank` that does not answer.
    pub(crate) fn no_answer(&self, rank: usize) -> DialError {
        match self.member(rank) {
            Ok(member) => DialError::NoAnswer(label(member).to_string()),
            Err(error) => error,
        }
    }

    fn member(&self, rank: usize) -> Result<&Member, DialError> {
        let member = self.membership.members().get(rank);
        member.ok_or(DialError::NoSuchRank(rank))
    }

    async fn connect(&self, client: &ClientConfig, address: &str) -> Result<Connection, DialError> {
        let resolving = timeout(self.connect_timeout, self.network.resolve(address));
        let mut remotes = resolving
            .await
            .map_err(|_elapsed| DialError::ResolveTimeout(address.to_owned()))?
            .map_err(|source| DialError::Resolve {
                address: address.to_owned(),
                source,
            })?;
        // A socket bound to an IPv4 address reaches no IPv6 address.
        remotes.retain(|remote| remote.is_ipv4() || self.transport.local_addr.is_ipv6());
        if remotes.is_empty() {
            return Err(DialError::NoAddress(address.to_owned()));
        }
        self.race_handshakes(client, &remotes).await
    }

    /// Returns the first handshake that succeeds. One begins per interval, address by address; the others
    /// are dropped before their hello. Fails when every address has refused, or the time is up.
    async fn race_handshakes(
        &self,
        client: &ClientConfig,
        remotes: &[SocketAddr],
    ) -> Result<Connection, DialError> {
        let endpoint = &self.transport.endpoint;
        let attempt = async |remote: SocketAddr| {
            let connecting = endpoint
                .connect_with(client.clone(), remote, Identity::NAME)
                .map_err(|source| DialError::Connect { remote, source })?;
            connecting
                .await
                .map_err(|source| DialError::Connection { remote, source })
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
        match timeout(self.connect_timeout, racing).await {
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
            let mut reader = FrameReader::new(recv, self.connect_timeout);
            let mut writer = FrameWriter::new(send, self.connect_timeout);
            writer.message(FrameKind::Hello, hello).await?;
            writer.finish();
            let body = expect_body(&mut reader, FrameKind::Welcome, "welcome").await?;
            reader.finish()?;
            Ok(body[..] == [1])
        };
        let remote = connection.remote_address();
        let outcome: Result<bool, AnswerError> = greeting.await;
        outcome.map_err(|error| match error {
            AnswerError::Failure(refusal) => DialError::Refused { remote, refusal },
            AnswerError::Stream(StreamError::Lost(source)) => {
                DialError::Connection { remote, source }
            }
            AnswerError::Stream(source) => {
                connection.close(close::PROTOCOL.into(), b"no welcome");
                DialError::NoWelcome { remote, source }
            }
        })
    }
}

fn label(member: &Member) -> Arc<str> {
    format!("{} ({})", member.name, member.address).into()
}

/// Why a connection to `remote` ended, for operators.
pub(crate) fn explain(remote: SocketAddr, error: &ConnectionError) -> String {
    let code = match error {
        ConnectionError::ApplicationClosed(closed)
            if closed.error_code == quinn::VarInt::from(close::REFUSED) =>
        {
            let reason = String::from_utf8_lossy(&closed.reason);
            return format!("{remote} refuses this node: {reason}");
        }
        ConnectionError::TimedOut => return format!("{remote} does not answer"),
        ConnectionError::Reset => return format!("{remote} has restarted"),
        ConnectionError::TransportError(error) => u64::from(error.code),
        ConnectionError::ConnectionClosed(closed) => closed.error_code.into(),
        _ => 0,
    };
    // TLS alerts are QUIC error codes 0x100 + alert (RFC 9001, section 4.8).
    const NO_APPLICATION_PROTOCOL: u64 = 0x100 + 120;
    match (code, error) {
        (NO_APPLICATION_PROTOCOL, _) => format!(
            "{remote} speaks another version of the copperfs protocol than this node ({}): run the same \
             copperfs on all nodes",
            String::from_utf8_lossy(crate::wire::ALPN)
        ),
        (0x100..=0x1ff, _) => format!(
            "{remote} and this node do not have the same job secret (TLS alert {})",
            code - 0x100
        ),
        (_, ConnectionError::TransportError(error)) => format!("{remote}: {error}"),
        (_, ConnectionError::ConnectionClosed(closed)) => format!("{remote}: {closed}"),
        (_, error) => format!("{remote}: {error}"),
    }
}
