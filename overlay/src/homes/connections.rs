//! The connections to homes: made on demand, bounded in number, closed when idle. Each lane has its own.
//!
//! Each home has at most one connection attempt in progress, which all its requests wait for. A home that
//! cannot be reached is left alone for [`BACK_OFF`]: requests fail at once, so that readers turn elsewhere,
//! and one attempt in the background finds out when the home is back.

use super::{Homes, HomesInner};
use crate::model::{Failure, FailureKind};
use crate::peer::{DialError, Dialer, Peer};
use crate::transport::close;
use crate::transport::stream::StreamError;
use crate::wire::WireError;
use parking_lot::Mutex;
use quinn::ConnectionError;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep, timeout};

/// How long a home that could not be reached gets no request.
const BACK_OFF: Duration = Duration::from_secs(1);
/// How long a home that has refused this node gets no request: it has as many readers as it can take.
const REFUSED_BACK_OFF: Duration = Duration::from_secs(30);
/// How long a home that sent wrong bytes gets no request.
const CORRUPT_BACK_OFF: Duration = Duration::from_secs(60);
/// Limits the attempts to connect to a home. Shorter than for an ancestor, because readers can go elsewhere.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// An attempt that takes longer is joined by a second one. The daemon of a home may be replaced in the middle of a
/// handshake, of which its successor knows nothing.
const HEDGE_AFTER: Duration = Duration::from_millis(250);
/// Pause before a home is tried again, within [`CONNECT_TIMEOUT`]. It may only have too many handshakes at a
/// time.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Attempts to get a connection that lasts, before a request fails.
const ATTEMPTS_MAX: usize = 3;

/// The state of a home after an attempt to connect to it.
enum Slot {
    Connected {
        peer: Arc<Peer>,
        used: Instant,
    },
    /// Gets no request.
    Down {
        until: Instant,
        reason: String,
        /// It is there, and does not want this lane.
        refused: bool,
    },
}

/// One lane's connections.
#[derive(Default)]
pub(super) struct Lane {
    /// Drives the connections; `None`: the runtime of the first request does, because there are no lanes.
    runtime: Option<Handle>,
    /// Held for look-ups only.
    connections: Mutex<Connections>,
}

impl Lane {
    /// A lane whose tasks run on `runtime`.
    pub(super) fn of(runtime: &Handle) -> Self {
        Self {
            runtime: Some(runtime.clone()),
            connections: Mutex::default(),
        }
    }

    /// Returns whether the caller runs on this lane.
    fn is_current(&self, current: &Handle) -> bool {
        let own = self.runtime.as_ref();
        own.is_some_and(|own| own.id() == current.id())
    }
}

impl HomesInner {
    /// The number of the lane on which the caller runs; `None` if its runtime is no lane.
    fn current_lane(&self) -> Option<usize> {
        let current = Handle::try_current().ok()?;
        self.lanes.iter().position(|lane| lane.is_current(&current))
    }

    /// Returns the lane on which a request by this `hash` should run, unless the caller's runtime is one, or there are none.
    pub(super) fn other_lane(&self, hash: impl FnOnce() -> u64) -> Option<&Handle> {
        // One lane alone is on the node's runtime.
        if self.lanes.iter().all(|lane| lane.runtime.is_none()) || self.current_lane().is_some() {
            return None;
        }
        let count = u64::try_from(self.lanes.len()).unwrap_or(1);
        let lane = usize::try_from(hash() % count).unwrap_or(0);
        self.lanes.get(lane)?.runtime.as_ref()
    }

    /// That of the number `lane`.
    fn lane(&self, lane: usize) -> &Lane {
        // There is at least one, and numbers come from `current_lane`.
        &self.lanes[lane]
    }
}

#[derive(Default)]
struct Connections {
    /// Makes connections; `None` before this node has started, if it is alone, and after it has stopped.
    dialer: Option<Arc<Dialer>>,
    /// By rank.
    slots: HashMap<usize, Slot>,
    /// The attempts in progress, by rank. Each channel closes when its attempt ends.
    attempts: HashMap<usize, watch::Receiver<()>>,
}

/// The outcome of a look-up.
enum Lookup {
    Connected(Arc<Peer>),
    /// The home has no room for this lane.
    Refused(Failure),
    /// Wait until this channel closes, then look again.
    Wait(watch::Receiver<()>),
}

impl Homes {
    /// Allows connections.
    pub(crate) fn open(&self, dialer: &Arc<Dialer>) {
        for lane in &self.0.lanes {
            lane.connections.lock().dialer = Some(Arc::clone(dialer));
        }
    }

    /// Closes all connections for good.
    pub(crate) fn stop(&self) {
        for lane in &self.0.lanes {
            // The statement ends the lock's guard before the connections are dropped, which closes them.
            let stopped = std::mem::take(&mut *lane.connections.lock());
            drop(stopped);
        }
    }

    /// The number of connections to homes, of all lanes.
    #[must_use]
    pub fn connected(&self) -> usize {
        let connected = |slot: &&Slot| matches!(slot, Slot::Connected { .. });
        let of_lanes = self.0.lanes.iter().map(|lane| {
            let connections = lane.connections.lock();
            connections.slots.values().filter(connected).count()
        });
        of_lanes.sum()
    }

    /// Closes idle connections. Runs until it is dropped.
    pub(crate) async fn sweep(self) {
        let idle = self.0.config.homes.idle;
        let mut ticks = interval((idle / 4).max(Duration::from_millis(10)));
        loop {
            let now = ticks.tick().await;
            for lane in &self.0.lanes {
                let slots = &mut lane.connections.lock().slots;
                slots.retain(|_rank, slot| match slot {
                    Slot::Connected { peer, used } => {
                        // A long answer may keep an old connection busy.
                        !peer.is_idle() || now.saturating_duration_since(*used) < idle
                    }
                    Slot::Down { .. } => true,
                });
            }
        }
    }

    /// Returns the member at `rank`, connected.
    pub(crate) async fn connection(&self, rank: usize) -> Result<Arc<Peer>, Failure> {
        let mut lane = self.0.current_lane().unwrap_or(0);
        for _ in 0..ATTEMPTS_MAX {
            match self.look_up(lane, rank)? {
                Lookup::Connected(home) => return Ok(home),
                // A home that is full gives up connections of further lanes, but keeps one for each node.
                Lookup::Refused(_) if lane > 0 => lane = 0,
                Lookup::Refused(failure) => return Err(failure),
                // Closed at the end of the attempt, whatever its outcome.
                Lookup::Wait(mut attempt) => while attempt.changed().await.is_ok() {},
            }
        }
        let reason = format!("the connection to member {rank} does not last");
        Err(unavailable(reason))
    }

    fn look_up(&self, lane: usize, rank: usize) -> Result<Lookup, Failure> {
        let now = Instant::now();
        let mut connections = self.0.lane(lane).connections.lock();
        let Some(dialer) = connections.dialer.clone() else {
            return Err(unavailable("this node is not connected to others"));
        };
        let attempt = connections.attempts.get(&rank).cloned();
        match connections.slots.get_mut(&rank) {
            Some(Slot::Connected { peer, used }) if peer.connection.close_reason().is_none() => {
                *used = now;
                return Ok(Lookup::Connected(Arc::clone(peer)));
            }
            // Fails at once, and at most one attempt in the background looks whether the home is back.
            Some(Slot::Down {
                until,
                reason,
                refused,
            }) => {
                let (failure, refused) = (unavailable(reason.as_str()), *refused);
                if attempt.is_none() && now >= *until && self.make_room(&mut connections) {
                    drop(self.connect(&mut connections, dialer, (lane, rank)));
                }
                return match refused {
                    true => Ok(Lookup::Refused(failure)),
                    false => Err(failure),
                };
            }
            // No connection, or one that has ended.
            Some(Slot::Connected { .. }) | None => drop(connections.slots.remove(&rank)),
        }
        match attempt {
            Some(attempt) => Ok(Lookup::Wait(attempt)),
            None if self.make_room(&mut connections) => Ok(Lookup::Wait(self.connect(
                &mut connections,
                dialer,
                (lane, rank),
            ))),
            None => Err(unavailable("all connections to homes are in use")),
        }
    }

    /// Connects to `rank` for `lane` in the background, so that no reader that gives up ends the attempt for the others.
    /// The task ends by itself within [`CONNECT_TIMEOUT`].
    fn connect(
        &self,
        connections: &mut Connections,
        dialer: Arc<Dialer>,
        (lane, rank): (usize, usize),
    ) -> watch::Receiver<()> {
        let (done, attempt) = watch::channel(());
        connections.attempts.insert(rank, attempt.clone());
        let homes = self.clone();
        let connecting = async move {
            let outcome = dial_until_timeout(&dialer, lane, rank).await;
            let now = Instant::now();
            let mut connections = homes.0.lane(lane).connections.lock();
            connections.attempts.remove(&rank);
            let slot = match outcome {
                Ok(peer) => Slot::Connected { peer, used: now },
                Err(error) => {
                    let refused = error.is_refusal();
                    let back_off = match refused {
                        true => REFUSED_BACK_OFF,
                        false => BACK_OFF,
                    };
                    let reason = error.to_string();
                    if !connections.is_down(rank, &reason) {
                        tracing::warn!(rank, lane, reason, "no connection for items; trying on");
                    }
                    Slot::Down {
                        until: now + back_off,
                        reason,
                        refused,
                    }
                }
            };
            // After `stop` no connection is kept.
            if connections.dialer.is_some() {
                connections.slots.insert(rank, slot);
            }
            drop(connections);
            // Only now, because callers that wait look again when they are notified.
            drop(done);
        };
        drop(match &self.0.lane(lane).runtime {
            Some(runtime) => runtime.spawn(connecting),
            None => tokio::spawn(connecting),
        });
        attempt
    }

    /// Makes room for one more connection, and closes the longest idle one if there are as many as allowed.
    /// Returns `false` if all of them are in use.
    fn make_room(&self, connections: &mut Connections) -> bool {
        let slots = connections.slots.iter();
        let connected: Vec<_> = slots
            .filter_map(|(rank, slot)| match slot {
                Slot::Connected { peer, used } => Some((*used, *rank, peer.is_idle())),
                Slot::Down { .. } => None,
            })
            .collect();
        if connected.len() + connections.attempts.len() < self.0.config.homes.connections_max {
            return true;
        }
        let oldest = connected.iter().filter(|(.., is_idle)| *is_idle).min();
        oldest.is_some_and(|(_used, rank, _idle)| connections.slots.remove(rank).is_some())
    }

    /// Handles an answer of `home` that ended with `error`. Returns the failure for the reader.
    pub(super) fn failed(&self, home: &Peer, error: &StreamError) -> Failure {
        let label = &home.label;
        let kind = match error {
            StreamError::Lost(_) | StreamError::Silent(_) | StreamError::Cancelled => {
                FailureKind::Unavailable
            }
            StreamError::Wire(WireError::WrongHash) => {
                self.0.counters.wrong_blocks.increment();
                tracing::warn!(home = %label, "an item's hash is wrong");
                FailureKind::Corrupt
            }
            StreamError::Truncated | StreamError::Wire(_) => {
                tracing::warn!(home = %label, %error, "a home broke the protocol");
                FailureKind::Corrupt
            }
        };
        self.leave(home, error);
        Failure::new(kind, reason(home, error))
    }

    /// Handles the end of an answer of `peer` with `error`: a node that sends wrong bytes, or whose connection was
    /// lost, gets no request for a while, and one that has restarted is connected to again. Does nothing if `peer` is
    /// not connected here.
    pub(crate) fn leave(&self, peer: &Peer, error: &StreamError) {
        let back_off = match error {
            StreamError::Lost(ConnectionError::Reset) => None,
            StreamError::Lost(_) => Some(BACK_OFF),
            StreamError::Wire(WireError::WrongHash) => Some(CORRUPT_BACK_OFF),
            // The connection is alive: only this answer failed.
            StreamError::Silent(_)
            | StreamError::Cancelled
            | StreamError::Truncated
            | StreamError::Wire(_) => return,
        };
        let down = back_off.map(|back_off| Slot::Down {
            until: Instant::now() + back_off,
            reason: reason(peer, error),
            refused: gives_up_lane(error),
        });
        let mut connections = self.0.lane(peer.lane).connections.lock();
        if connections.is_current(peer) {
            connections.slots.remove(&peer.rank);
            connections.slots.extend(down.map(|down| (peer.rank, down)));
        }
    }
}

/// Whether the peer has closed the connection of a lane to make room for another node. It has kept that of the first lane.
fn gives_up_lane(error: &StreamError) -> bool {
    let replaced = quinn::VarInt::from(close::REPLACED);
    matches!(
        error,
        StreamError::Lost(ConnectionError::ApplicationClosed(closed)) if closed.error_code == replaced
    )
}

/// Why an answer of `peer` ended with `error`.
fn reason(peer: &Peer, error: &StreamError) -> String {
    let reason = match error {
        StreamError::Lost(error) => peer.explain_loss(error),
        error => error.to_string(),
    };
    format!("node {}: {reason}", peer.label)
}

impl Connections {
    /// Whether the member at `rank` is left alone for this `reason`.
    fn is_down(&self, rank: usize, reason: &str) -> bool {
        matches!(self.slots.get(&rank), Some(Slot::Down { reason: known, .. }) if known == reason)
    }

    /// Whether the connection of `home` is the one in use.
    fn is_current(&self, home: &Peer) -> bool {
        let id = home.connection.stable_id();
        matches!(
            self.slots.get(&home.rank),
            Some(Slot::Connected { peer, .. }) if peer.connection.stable_id() == id
        )
    }
}

/// Connects to the home at `rank`, and tries again until [`CONNECT_TIMEOUT`].
async fn dial_until_timeout(
    dialer: &Dialer,
    lane: usize,
    rank: usize,
) -> Result<Arc<Peer>, DialError> {
    let last_error = Mutex::new(DialError::NoAnswer(dialer.member(rank)?.to_string()));
    let last = &last_error;
    let dial = || async move {
        loop {
            match dialer.dial_home(rank, lane).await {
                Err(error) if !error.is_refusal() => *last.lock() = error,
                outcome => return outcome,
            }
            sleep(RETRY_PAUSE).await;
        }
    };
    let dialed = timeout(CONNECT_TIMEOUT, hedged(HEDGE_AFTER, dial)).await;
    dialed.unwrap_or_else(|_elapsed| Err(last_error.into_inner()))
}

/// Does `work`, and does it a second time beside the first if that takes longer than `after`. Returns the value of the one
/// that ends first, and drops the other.
async fn hedged<T, F: Future<Output = T>>(after: Duration, work: impl Fn() -> F) -> T {
    let second = async {
        sleep(after).await;
        work().await
    };
    tokio::select! {
        value = work() => value,
        value = second => value,
    }
}

fn unavailable(reason: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Unavailable, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test(start_paused = true)]
    async fn work_that_hangs_is_begun_a_second_time() {
        let after = Duration::from_millis(250);
        let begun = AtomicUsize::new(0);
        let start = Instant::now();
        let work = || async {
            match begun.fetch_add(1, Ordering::Relaxed) {
                0 => std::future::pending().await,
                number => number,
            }
        };
        assert_eq!(hedged(after, work).await, 1);
        assert_eq!(start.elapsed(), after);
    }

    #[tokio::test(start_paused = true)]
    async fn quick_work_is_done_once() {
        let begun = AtomicUsize::new(0);
        let work = || async {
            sleep(Duration::from_millis(200)).await;
            begun.fetch_add(1, Ordering::Relaxed)
        };
        assert_eq!(hedged(Duration::from_millis(250), work).await, 0);
        assert_eq!(begun.into_inner(), 1);
    }
}
