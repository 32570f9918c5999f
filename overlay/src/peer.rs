//! One connection to one ancestor: made, introduced, watched.
//!
//! Trees in which this node hangs from the same ancestor share its connection. While requests are
//! under way the child looks for life every [`Liveness::probe`]; a peer from which nothing comes for
//! [`Liveness::silence`] is reported as silent, and the tree decides what to do. Over the same
//! connection the ancestor may ask for what lies below this node.

use crate::counters::Meters;
use crate::identity::Identity;
use crate::membership::{Member, Membership};
use crate::model::Failure;
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::transport::{Network, Transport, close};
use crate::wire::{FrameKind, Hello, WireError, message};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint};
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{interval, sleep, timeout};

/// While an ancestor is silent a further handshake is begun so often: QUIC's own repetitions back off
/// exponentially, and would miss by seconds the moment when a late parent begins to listen.
const HANDSHAKE_INTERVAL: Duration = Duration::from_millis(400);

/// How a dead peer is told from a slow one while requests are under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Liveness {
    /// How often a peer that sends nothing is probed.
    pub probe: Duration,
    /// After so long without any packet it is silent.
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

/// A connected ancestor. The last clone of the `Arc` closes the connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) rank: usize,
    /// For people: name and address.
    pub(crate) label: Arc<str>,
    pub(crate) connection: Connection,
    health: Arc<Health>,
    tasks: Vec<AbortHandle>,
}

#[derive(Debug)]
struct Health {
    /// Requests under way.
    under_way: AtomicUsize,
    /// Told when `under_way` leaves 0.
    busy: Notify,
    /// Whether nothing has come for too long.
    silent: watch::Sender<bool>,
    /// Wrong blocks that it has sent.
    lies: watch::Sender<u32>,
}

/// A request under way: keeps the peer, and the watch on it.
#[derive(Debug)]
pub(crate) struct Asking(Arc<Peer>);

impl Asking {
    pub(crate) fn peer(&self) -> &Peer {
        &self.0
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.health.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Peer {
    /// An ancestor, which may ask what lies below this node.
    fn ancestor(
        rank: usize,
        label: Arc<str>,
        connection: Connection,
        (liveness, incoming): (Liveness, &dyn IncomingStreams),
    ) -> Self {
        let answering = incoming.answer_all(connection.clone());
        let mut peer = Self::watched(rank, label, connection, liveness);
        peer.tasks.push(tokio::spawn(answering).abort_handle());
        peer
    }

    /// A peer that asks nothing.
    fn watched(rank: usize, label: Arc<str>, connection: Connection, liveness: Liveness) -> Self {
        let health = Arc::new(Health {
            under_way: AtomicUsize::new(0),
            busy: Notify::new(),
            silent: watch::Sender::new(false),
            lies: watch::Sender::new(0),
        });
        let watching = listen(connection.clone(), Arc::clone(&health), liveness);
        let tasks = vec![tokio::spawn(watching).abort_handle()];
        Self {
            rank,
            label,
            connection,
            health,
            tasks,
        }
    }

    /// Announces a request.
    pub(crate) fn asking(self: &Arc<Self>) -> Asking {
        if self.health.under_way.fetch_add(1, Ordering::AcqRel) == 0 {
            self.health.busy.notify_one();
        }
        Asking(Arc::clone(self))
    }

    /// Counts a wrong block against it.
    pub(crate) fn lied(&self) {
        self.health.lies.send_modify(|lies| *lies += 1);
    }

    /// Whether no request is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.health.under_way.load(Ordering::Acquire) == 0
    }

    /// Whether nothing has come for too long while something was due.
    pub(crate) fn silent(&self) -> watch::Receiver<bool> {
        self.health.silent.subscribe()
    }

    /// How many wrong blocks it has sent.
    pub(crate) fn lies(&self) -> watch::Receiver<u32> {
        self.health.lies.subscribe()
    }

    /// Waits until the connection has ended; says why.
    pub(crate) async fn closed(&self) -> String {
        let error = self.connection.closed().await;
        explain(self.connection.remote_address(), &error)
    }

    /// Gives it up: requests under way fail at once.
    pub(crate) fn give_up(&self) {
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

/// Watches one connection for life while requests are under way. Its own delays do not count against
/// the peer: only whole intervals in which this task ran and nothing came.
async fn listen(connection: Connection, health: Arc<Health>, liveness: Liveness) {
    let intervals_max = liveness
        .silence
        .as_nanos()
        .div_ceil(liveness.probe.as_nanos().max(1));
    loop {
        while health.under_way.load(Ordering::Acquire) == 0 {
            health.busy.notified().await;
        }
        let mut received = connection.stats().udp_rx.datagrams;
        let mut silent_for = 0_u128;
        while health.under_way.load(Ordering::Acquire) > 0 {
            sleep(liveness.probe).await;
            let now = connection.stats().udp_rx.datagrams;
            if now != received {
                received = now;
                silent_for = 0;
                health.silent.send_if_modified(std::mem::take);
                continue;
            }
            silent_for += 1;
            if silent_for >= intervals_max {
                health
                    .silent
                    .send_if_modified(|silent| !std::mem::replace(silent, true));
            }
            // Anything that must be acknowledged will do. Where none can be sent the connection is gone,
            // or is not one of ours.
            let _gone = connection.send_datagram(Bytes::from_static(b"?"));
        }
        health.silent.send_if_modified(std::mem::take);
    }
}

/// Connections by rank: one lock each, so that two trees do not connect to the same node twice.
type Pool = HashMap<usize, Arc<tokio::sync::Mutex<Weak<Peer>>>>;

/// An ancestor that has accepted this node.
pub(crate) struct Dialed {
    pub(crate) peer: Arc<Peer>,
    /// It hangs from somebody itself, or is the root.
    pub(crate) settled: bool,
}

/// Answers the streams that an ancestor opens.
pub(crate) trait IncomingStreams: Send + Sync + fmt::Debug + 'static {
    /// Answers every stream of `connection` until that ends. Dropping the future ends the answers too.
    fn answer_all(&self, connection: Connection) -> BoxFuture<'static, ()>;
}

/// How this node deals with its peers.
#[derive(Clone, Debug)]
pub(crate) struct Manners {
    pub(crate) membership: Arc<Membership>,
    pub(crate) liveness: Liveness,
    /// How long one attempt to connect may take.
    pub(crate) connect_timeout: Duration,
    /// How long a request waits for each next byte of its answer.
    pub(crate) request_timeout: Duration,
    pub(crate) meters: Arc<Meters>,
    pub(crate) incoming: Arc<dyn IncomingStreams>,
}

/// Makes connections to ancestors and homes.
#[derive(Debug)]
pub(crate) struct Dialer {
    manners: Manners,
    endpoint: Endpoint,
    client: ClientConfig,
    reader: ClientConfig,
    network: Arc<dyn Network>,
    local_addr: SocketAddr,
    /// Held for look-ups only; at most one entry per ancestor.
    pool: Mutex<Pool>,
}

impl Dialer {
    pub(crate) fn new(manners: Manners, transport: &Transport, network: Arc<dyn Network>) -> Self {
        Self {
            manners,
            endpoint: transport.endpoint.clone(),
            client: transport.client.clone(),
            reader: transport.reader.clone(),
            network,
            local_addr: transport.local_addr,
            pool: Mutex::default(),
        }
    }

    /// The member `rank`, which has accepted this node in `tree`; over the connection that there is,
    /// if there is one.
    pub(crate) async fn dial(&self, tree: usize, rank: usize) -> Result<Dialed, String> {
        let slot = {
            let mut pool = self.pool.lock();
            Arc::clone(pool.entry(rank).or_default())
        };
        let mut slot = slot.lock().await;
        let known = slot.upgrade();
        let hello = self.manners.membership.hello(tree);
        if let Some(peer) = known.filter(|peer| peer.connection.close_reason().is_none()) {
            let settled = self.introduce(&peer.connection, &hello).await?;
            return Ok(Dialed { peer, settled });
        }
        let member = self.member(rank)?;
        let connection = self.connect(&self.client, &member.address).await?;
        let settled = self.introduce(&connection, &hello).await?;
        let ways = (self.manners.liveness, &*self.manners.incoming);
        let peer = Arc::new(Peer::ancestor(rank, label(member), connection, ways));
        *slot = Arc::downgrade(&peer);
        Ok(Dialed { peer, settled })
    }

    /// The member `rank`, which has accepted this node as a reader of items.
    pub(crate) async fn dial_home(&self, rank: usize) -> Result<Arc<Peer>, String> {
        let member = self.member(rank)?;
        let connection = self.connect(&self.reader, &member.address).await?;
        let hello = self.manners.membership.hello_as_reader();
        self.introduce(&connection, &hello).await?;
        let liveness = self.manners.liveness;
        let peer = Peer::watched(rank, label(member), connection, liveness);
        Ok(Arc::new(peer))
    }

    /// That the member `rank` says nothing, for people.
    pub(crate) fn no_answer(&self, rank: usize) -> String {
        self.member(rank).map_or_else(
            |nobody| nobody,
            |member| format!("{} does not answer", label(member)),
        )
    }

    pub(crate) fn meters(&self) -> &Meters {
        &self.manners.meters
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.manners.request_timeout
    }

    fn member(&self, rank: usize) -> Result<&Member, String> {
        let member = self.manners.membership.members().get(rank);
        member.ok_or_else(|| format!("there is no rank {rank}"))
    }

    async fn connect(&self, client: &ClientConfig, address: &str) -> Result<Connection, String> {
        let resolving = timeout(self.manners.connect_timeout, self.network.resolve(address));
        let found = match resolving.await {
            Ok(Ok(found)) => found
                .into_iter()
                .filter(|remote| remote.is_ipv4() || self.local_addr.is_ipv6())
                .collect::<Vec<_>>(),
            Ok(Err(error)) => return Err(format!("cannot look up {address}: {error}")),
            Err(_elapsed) => return Err(format!("looking up {address} takes too long")),
        };
        if found.is_empty() {
            return Err(format!("{address} has no address that this node can reach"));
        }
        self.handshake(client, &found).await
    }

    /// The first handshake that succeeds, of several begun one after another, address by address;
    /// those that lose are dropped before their hello. Fails when every address has refused, or the
    /// time is up.
    async fn handshake(
        &self,
        client: &ClientConfig,
        remotes: &[SocketAddr],
    ) -> Result<Connection, String> {
        let attempt = async |remote: SocketAddr| {
            let connecting = self
                .endpoint
                .connect_with(client.clone(), remote, Identity::NAME)
                .map_err(|error| format!("cannot connect to {remote}: {error}"))?;
            connecting.await.map_err(|error| explain(remote, &error))
        };
        let mut attempts = FuturesUnordered::new();
        let mut reason = None;
        let mut begin = interval(HANDSHAKE_INTERVAL);
        let mut untried = remotes.len();
        let mut remotes_in_turn = remotes.iter().cycle();
        let racing = async {
            loop {
                tokio::select! {
                    biased;
                    _tick = begin.tick() => {
                        attempts.extend(remotes_in_turn.next().map(|remote| attempt(*remote)));
                        untried = untried.saturating_sub(1);
                    }
                    Some(result) = attempts.next() => match result {
                        Ok(connection) => return Ok(connection),
                        Err(why) if attempts.is_empty() && untried == 0 => return Err(why),
                        Err(why) => {
                            reason = Some(why);
                            if untried > 0 {
                                begin.reset_immediately();
                            }
                        }
                    },
                }
            }
        };
        match timeout(self.manners.connect_timeout, racing).await {
            Ok(result) => result,
            Err(_elapsed) => Err(reason.unwrap_or_else(|| silence(remotes))),
        }
    }

    /// The first exchange in a tree, or with a home: who this node is, and the other's consent; gives
    /// whether that hangs from somebody itself.
    async fn introduce(&self, connection: &Connection, hello: &Hello) -> Result<bool, String> {
        let greeting = async {
            let (send, recv) = connection.open_bi().await.map_err(StreamError::Lost)?;
            let mut reader = FrameReader::new(recv, self.manners.connect_timeout);
            let mut writer = FrameWriter::new(send, self.manners.connect_timeout);
            writer.message(FrameKind::Hello, hello).await?;
            writer.finish();
            match reader.frame().await? {
                Some((FrameKind::Welcome, body)) => reader.finish().map(|()| Ok(body[..] == [1])),
                Some((FrameKind::Failure, body)) => {
                    Ok(Err(message::decode::<Failure>("refusal", &body)?))
                }
                Some((got, _)) => Err(WireError::Unexpected {
                    got,
                    wanted: "welcome",
                }
                .into()),
                None => Err(StreamError::Truncated),
            }
        };
        let remote = connection.remote_address();
        match greeting.await {
            Ok(Ok(settled)) => Ok(settled),
            Ok(Err(refusal)) => Err(format!("{remote} refuses this node: {refusal}")),
            Err(StreamError::Lost(error)) => Err(explain(remote, &error)),
            Err(error) => {
                connection.close(close::PROTOCOL.into(), b"no welcome");
                Err(format!("{remote} did not accept this node: {error}"))
            }
        }
    }
}

fn label(member: &Member) -> Arc<str> {
    format!("{} ({})", member.name, member.address).into()
}

fn silence(remotes: &[SocketAddr]) -> String {
    let remotes: Vec<String> = remotes.iter().map(SocketAddr::to_string).collect();
    format!("{} does not answer", remotes.join(", "))
}

/// Why a connection failed, for people.
pub(crate) fn explain(remote: SocketAddr, error: &ConnectionError) -> String {
    match error {
        ConnectionError::ApplicationClosed(closed)
            if closed.error_code == quinn::VarInt::from(close::REFUSED) =>
        {
            format!(
                "{remote} refuses this node: {}",
                String::from_utf8_lossy(&closed.reason)
            )
        }
        ConnectionError::TransportError(error) => {
            explain_code(remote, error.code.into()).unwrap_or_else(|| format!("{remote}: {error}"))
        }
        ConnectionError::ConnectionClosed(closed) => explain_code(remote, closed.error_code.into())
            .unwrap_or_else(|| format!("{remote}: {closed}")),
        ConnectionError::TimedOut => format!("{remote} does not answer"),
        ConnectionError::Reset => format!("{remote} has restarted"),
        error => format!("{remote}: {error}"),
    }
}

/// TLS alerts travel as QUIC error codes 0x100 + alert (RFC 9001, 4.8).
fn explain_code(remote: SocketAddr, code: u64) -> Option<String> {
    const NO_APPLICATION_PROTOCOL: u64 = 0x100 + 120;
    match code {
        NO_APPLICATION_PROTOCOL => Some(format!(
            "{remote} speaks another version of the copperfs protocol than this node ({}): run the \
             same copperfs on all nodes",
            String::from_utf8_lossy(crate::wire::ALPN)
        )),
        0x100..=0x1ff => Some(format!(
            "{remote} and this node do not have the same job secret (TLS alert {})",
            code - 0x100
        )),
        _ => None,
    }
}
