//! The connection to the parent: made at start, made again when lost, with bounded backoff.
//!
//! One task ([`Connector::run`]) owns the making; everybody else waits on the state it publishes.
//! Over the same connection the parent may ask for what lies below this node.

use crate::identity::Identity;
use crate::overlay::{Member, Shared};
use crate::server::stream::{self, Asker, Floor};
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::transport::{self, close};
use crate::wire::{FrameKind, Hello, WireError};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout, timeout_at};

/// First pause between two attempts to connect; doubled up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Longest pause after refusals and the like. After mere silence the pause is the shortest: the
/// attempt itself has taken its time, and a parent that starts late is to be found soon.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// While the parent is silent a further handshake is begun so often: QUIC's own repetitions back off
/// exponentially, and would miss by seconds the moment when a late parent begins to listen.
const HANDSHAKE_INTERVAL: Duration = Duration::from_millis(400);

/// Where the link to the parent stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkStatus {
    /// The parent has accepted this node.
    Connected,
    /// Not connected, and why the last attempt failed, if one did.
    Connecting {
        /// For people.
        reason: Option<String>,
    },
    /// This node is leaving.
    Stopped,
}

#[derive(Clone, Debug)]
enum State {
    Connecting(Option<Arc<str>>),
    Connected(Connection),
    Stopped,
}

/// The published state of the connection.
#[derive(Debug)]
pub(crate) struct Link {
    state: watch::Sender<State>,
    was_connected: AtomicBool,
    parent: String,
}

impl Link {
    pub(super) fn new(parent: &Member) -> Self {
        Self {
            state: watch::Sender::new(State::Connecting(None)),
            was_connected: AtomicBool::new(false),
            parent: parent.name.clone(),
        }
    }

    pub(super) async fn first_connected(&self) {
        if !self.was_connected.load(Ordering::Acquire) {
            let mut state = self.state.subscribe();
            // The sender lives in `self`: this cannot fail.
            let _seen = state
                .wait_for(|state| matches!(state, State::Connected(_)))
                .await
                .is_ok();
        }
    }

    pub(super) fn status(&self) -> LinkStatus {
        match &*self.state.borrow() {
            State::Connected(_) => LinkStatus::Connected,
            State::Connecting(reason) => LinkStatus::Connecting {
                reason: reason.as_deref().map(str::to_owned),
            },
            State::Stopped => LinkStatus::Stopped,
        }
    }

    pub(super) fn stop(&self) {
        self.state.send_replace(State::Stopped);
    }

    /// The live connection, waited for until `deadline`; otherwise why there is none.
    pub(super) async fn connection(&self, deadline: Instant) -> Result<Connection, String> {
        let mut state = self.state.subscribe();
        let found = timeout_at(
            deadline,
            state.wait_for(|state| !matches!(state, State::Connecting(_))),
        );
        match found.await {
            Ok(Ok(state)) => match &*state {
                State::Connected(connection) => Ok(connection.clone()),
                _ => Err("this node is leaving".into()),
            },
            Ok(Err(_closed)) => Err("this node is leaving".into()),
            Err(_elapsed) => Err(match self.status() {
                LinkStatus::Connecting {
                    reason: Some(reason),
                } => {
                    format!("not connected: {reason}")
                }
                _ => "not connected in time".into(),
            }),
        }
    }

    /// Waits until `connection` is no longer the published one, at most until `deadline`.
    pub(super) async fn lost(&self, connection: &Connection, deadline: Instant) {
        let mut state = self.state.subscribe();
        let replaced = state.wait_for(|state| match state {
            State::Connected(held) => held.stable_id() != connection.stable_id(),
            _ => true,
        });
        // At the deadline the caller's own check ends the request.
        let _elapsed = timeout_at(deadline, async { replaced.await.is_ok() }).await;
    }

    fn connected(&self, connection: &Connection) {
        self.was_connected.store(true, Ordering::Release);
        self.publish(State::Connected(connection.clone()));
        tracing::info!(parent = %self.parent, address = %connection.remote_address(), "connected");
    }

    /// Publishes why there is no connection, and logs it if it is news.
    fn disconnected(&self, reason: &str) {
        let known =
            matches!(&*self.state.borrow(), State::Connecting(Some(old)) if &**old == reason);
        if !known {
            tracing::warn!(parent = %self.parent, reason, "not connected; trying on");
        }
        self.publish(State::Connecting(Some(reason.into())));
    }

    fn publish(&self, next: State) {
        self.state.send_if_modified(|state| {
            let running = !matches!(state, State::Stopped);
            if running {
                *state = next;
            }
            running
        });
    }
}

/// Keeps the link of one node.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) shared: Arc<Shared>,
    pub(crate) endpoint: Endpoint,
    pub(crate) client: ClientConfig,
    pub(crate) local_addr: SocketAddr,
    pub(crate) connect_timeout: Duration,
}

impl Connector {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let Some(parent) = self.shared.parent.clone() else {
            return;
        };
        let link = parent.link();
        let mut pause = BACKOFF_MIN;
        loop {
            let begun = Instant::now();
            let reason = match self.connect(&parent.member().address).await {
                Ok(connection) => {
                    link.connected(&connection);
                    self.attend(&connection).await
                }
                Err(reason) => reason,
            };
            link.disconnected(&reason);
            if begun.elapsed() >= self.connect_timeout {
                pause = BACKOFF_MIN;
            }
            sleep(pause).await;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }

    async fn connect(&self, address: &str) -> Result<Connection, String> {
        let found = match timeout(
            self.connect_timeout,
            transport::resolve(address, self.local_addr),
        )
        .await
        {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return Err(format!("cannot look up {address}: {error}")),
            Err(_elapsed) => return Err(format!("looking up {address} takes too long")),
        };
        if found.is_empty() {
            return Err(format!("{address} has no address that this node can reach"));
        }
        let connection = self.handshake(&found).await?;
        let remote = connection.remote_address();
        match self.introduce(&connection).await {
            Ok(()) => Ok(connection),
            Err(StreamError::Lost(error)) => Err(explain(remote, &error)),
            Err(error) => {
                connection.close(close::PROTOCOL.into(), b"no welcome");
                Err(format!("{remote} did not accept this node: {error}"))
            }
        }
    }

    /// The first handshake that succeeds, of several begun one after another; those that lose are
    /// dropped before their hello.
    async fn handshake(&self, remotes: &[SocketAddr]) -> Result<Connection, String> {
        let attempt = async |remote: SocketAddr| {
            let connecting = self
                .endpoint
                .connect_with(self.client.clone(), remote, Identity::NAME)
                .map_err(|error| format!("cannot connect to {remote}: {error}"))?;
            connecting.await.map_err(|error| explain(remote, &error))
        };
        let mut attempts = FuturesUnordered::new();
        let mut reason = None;
        let mut begin = interval(HANDSHAKE_INTERVAL);
        let mut remotes_in_turn = remotes.iter().cycle();
        let racing = async {
            loop {
                tokio::select! {
                    _tick = begin.tick() => {
                        attempts.extend(remotes_in_turn.next().map(|remote| attempt(*remote)));
                    }
                    Some(result) = attempts.next() => match result {
                        Ok(connection) => return Ok(connection),
                        // Every address has had its turn and none is left to wait for.
                        Err(why) if attempts.is_empty() => return Err(why),
                        Err(why) => reason = Some(why),
                    },
                }
            }
        };
        match timeout(self.connect_timeout, racing).await {
            Ok(result) => result,
            Err(_elapsed) => Err(reason.unwrap_or_else(|| silence(remotes))),
        }
    }

    /// The first exchange: who this node is, and the parent's consent.
    async fn introduce(&self, connection: &Connection) -> Result<(), StreamError> {
        let shared = &self.shared;
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let hello = Hello {
            rank: number(shared.rank),
            members: number(shared.tree.len()),
            arity: number(shared.tree.arity()),
            name: shared
                .members
                .get(shared.rank)
                .map_or_else(String::new, |own| own.name.clone()),
        };
        let (send, recv) = connection.open_bi().await.map_err(StreamError::Lost)?;
        let mut reader = FrameReader::new(recv, self.connect_timeout);
        let mut writer = FrameWriter::new(send, self.connect_timeout);
        writer.message(FrameKind::Hello, &hello).await?;
        writer.finish();
        match reader.frame().await? {
            Some((FrameKind::Welcome, _)) => reader.finish(),
            Some((got, _)) => Err(WireError::Unexpected {
                got,
                wanted: "welcome",
            }
            .into()),
            None => Err(StreamError::Truncated),
        }
    }

    /// Answers what the parent asks until the connection ends; gives the reason why it did.
    async fn attend(&self, connection: &Connection) -> String {
        let floor = Floor::new(Asker::Parent);
        let mut streams = JoinSet::new();
        loop {
            tokio::select! {
                incoming = connection.accept_bi() => match incoming {
                    Ok((send, recv)) => {
                        let shared = Arc::clone(&self.shared);
                        streams.spawn(stream::answer(shared, floor.clone(), send, recv));
                    }
                    Err(error) => return explain(connection.remote_address(), &error),
                },
                Some(_done) = streams.join_next() => {}
            }
        }
    }
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
