//! The connections to homes: made when needed, bounded in number, closed when idle.
//!
//! One attempt to connect to a home is under way at a time; whoever asks meanwhile waits for it. A home
//! that cannot be reached is left alone for [`BACK_OFF`]: questions fail at once, so that askers turn
//! elsewhere, and one attempt in the background finds out when it is back.

use super::Home;
use crate::model::{Failure, FailureKind};
use crate::peer::{Dialer, Peer, explain};
use crate::transport::stream::StreamError;
use crate::wire::WireError;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep, timeout};

/// How many connections to homes a node has: enough for all of a cluster of that size, and, with what
/// quinn takes for an idle one (39 KiB), 10 MiB. Beyond it the one that was idle for longest makes room.
const CONNECTIONS_MAX: usize = 256;
/// After so long without a question a connection is closed: longer than the pauses of a job that
/// computes on what it has read.
const IDLE: Duration = Duration::from_secs(60);
/// For how long a home that could not be reached is not asked.
const BACK_OFF: Duration = Duration::from_secs(1);
/// For how long one that sent wrong bytes is not.
const LIAR_BACK_OFF: Duration = Duration::from_secs(60);
/// Longest time that connecting may take, whatever ancestors are given: who asks can go elsewhere.
const CONNECT: Duration = Duration::from_secs(1);
/// Pause before a home that has refused is tried again, within [`CONNECT`]: it may only have too many
/// handshakes at a time.
const PAUSE: Duration = Duration::from_millis(50);
/// How often a question waits for a connection that is then lost at once, before it fails.
const TURNS_MAX: usize = 3;

/// How many connections to homes a node keeps, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HomesBounds {
    /// Most connections, at least 1.
    pub connections_max: usize,
    /// After so long without a question one is closed.
    pub idle: Duration,
}

impl Default for HomesBounds {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            idle: IDLE,
        }
    }
}

/// What is known of one home.
#[derive(Debug)]
enum Slot {
    /// Somebody connects; ends when that has come to something.
    Connecting(watch::Receiver<()>),
    Up {
        peer: Arc<Peer>,
        used: Instant,
    },
    /// Not to be asked.
    Down {
        until: Instant,
        reason: Arc<str>,
        /// Somebody finds out whether it is back.
        trying: bool,
    },
}

impl Slot {
    /// Whether it counts as a connection.
    fn connects(&self) -> bool {
        match self {
            Self::Connecting(_) | Self::Up { .. } => true,
            Self::Down { trying, .. } => *trying,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Pool {
    bounds: HomesBounds,
    state: Mutex<State>,
}

/// Held for look-ups only.
#[derive(Debug, Default)]
struct State {
    /// Before a node has taken its place, alone, and after it has left: none.
    dialer: Option<Arc<Dialer>>,
    /// At most one a member.
    slots: HashMap<usize, Slot>,
}

enum Found {
    Up(Home),
    Soon(watch::Receiver<()>),
}

impl Pool {
    pub(super) fn new(bounds: HomesBounds) -> Self {
        Self {
            bounds,
            state: Mutex::default(),
        }
    }

    pub(super) fn open(&self, dialer: Arc<Dialer>) {
        self.state.lock().dialer = Some(dialer);
    }

    pub(super) fn stop(&self) {
        let state = std::mem::take(&mut *self.state.lock());
        // Not under the lock: connections close.
        drop(state);
    }

    pub(super) fn connected(&self) -> usize {
        let state = self.state.lock();
        let up = |slot: &&Slot| matches!(slot, Slot::Up { .. });
        state.slots.values().filter(up).count()
    }

    /// The home at `rank`, connected.
    pub(super) async fn home(self: &Arc<Self>, rank: usize) -> Result<Home, Failure> {
        for _ in 0..TURNS_MAX {
            match self.look(rank)? {
                Found::Up(home) => return Ok(home),
                // Ends with the attempt, whatever came of it.
                Found::Soon(mut attempt) => while attempt.changed().await.is_ok() {},
            }
        }
        Err(unavailable(&format!(
            "the connection to member {rank} does not last"
        )))
    }

    fn look(self: &Arc<Self>, rank: usize) -> Result<Found, Failure> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let Some(dialer) = state.dialer.clone() else {
            return Err(unavailable("this node is not connected to others"));
        };
        match state.slots.get_mut(&rank) {
            Some(Slot::Up { peer, used }) if peer.connection.close_reason().is_none() => {
                *used = now;
                let peer = Arc::clone(peer);
                return Ok(Found::Up(Home { peer, dialer }));
            }
            Some(Slot::Connecting(attempt)) => return Ok(Found::Soon(attempt.clone())),
            Some(Slot::Down {
                until,
                reason,
                trying,
            }) => {
                let failure = unavailable(reason);
                let due = !*trying && now >= *until;
                if due && state.room(self.bounds.connections_max) {
                    if let Some(Slot::Down { trying, .. }) = state.slots.get_mut(&rank) {
                        *trying = true;
                    }
                    drop(self.connect(dialer, rank));
                }
                return Err(failure);
            }
            // A connection that has ended, or none.
            Some(Slot::Up { .. }) | None => drop(state.slots.remove(&rank)),
        }
        if !state.room(self.bounds.connections_max) {
            return Err(unavailable("all connections to homes are in use"));
        }
        let attempt = self.connect(dialer, rank);
        let waiting = Slot::Connecting(attempt.clone());
        state.slots.insert(rank, waiting);
        Ok(Found::Soon(attempt))
    }

    /// Connects to `rank` in the background: nobody who waits for it and gives up ends it. It ends by
    /// itself within [`CONNECT`], and at once when the node leaves.
    fn connect(self: &Arc<Self>, dialer: Arc<Dialer>, rank: usize) -> watch::Receiver<()> {
        let (done, attempt) = watch::channel(());
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = reach(&dialer, rank).await;
            let now = Instant::now();
            let slot = match outcome {
                Ok(peer) => Slot::Up { peer, used: now },
                Err(reason) => {
                    tracing::warn!(rank, reason, "no connection to a home of items");
                    Slot::Down {
                        until: now + BACK_OFF,
                        reason: reason.into(),
                        trying: false,
                    }
                }
            };
            let mut state = pool.state.lock();
            if state.dialer.is_some() {
                drop(state.slots.insert(rank, slot));
            }
            drop(state);
            drop(done);
        });
        attempt
    }

    /// The connection of `home` is no more.
    pub(super) fn lost(&self, home: &Home) {
        let mut state = self.state.lock();
        let rank = home.peer.rank;
        if state.is_current(home) {
            drop(state.slots.remove(&rank));
        }
    }

    /// What a broken answer of `home` means to whoever asked; and to the home.
    pub(super) fn failed(&self, home: &Home, error: &StreamError) -> Failure {
        let label = &home.peer.label;
        let (kind, away) = match error {
            StreamError::Lost(_) => {
                home.peer.give_up();
                (FailureKind::Unavailable, Some(BACK_OFF))
            }
            StreamError::Silent(_) | StreamError::Cancelled => (FailureKind::Unavailable, None),
            StreamError::Wire(WireError::WrongHash) => {
                let meters = home.dialer.meters();
                meters.wrong_blocks.increment();
                tracing::warn!(home = %label, "an item's hash is wrong");
                (FailureKind::Corrupt, Some(LIAR_BACK_OFF))
            }
            StreamError::Truncated | StreamError::Wire(_) => {
                tracing::warn!(home = %label, %error, "a home broke the protocol");
                (FailureKind::Corrupt, None)
            }
        };
        let why = match error {
            StreamError::Lost(error) => explain(home.peer.connection.remote_address(), error),
            error => error.to_string(),
        };
        let why = format!("home {label}: {why}");
        if let Some(away) = away {
            let mut state = self.state.lock();
            if state.is_current(home) {
                let down = Slot::Down {
                    until: Instant::now() + away,
                    reason: why.as_str().into(),
                    trying: false,
                };
                drop(state.slots.insert(home.peer.rank, down));
            }
        }
        Failure::new(kind, why)
    }

    /// Closes what was idle for too long.
    pub(super) async fn sweep(&self) {
        let mut looks = interval((self.bounds.idle / 4).max(Duration::from_millis(10)));
        loop {
            let now = looks.tick().await;
            self.state.lock().slots.retain(|_rank, slot| match slot {
                Slot::Up { peer, used } => {
                    !peer.is_idle() || now.saturating_duration_since(*used) < self.bounds.idle
                }
                Slot::Connecting(_) | Slot::Down { .. } => true,
            });
        }
    }
}

impl State {
    /// Whether there is room for one more connection below `most`, made if it must be.
    fn room(&mut self, most: usize) -> bool {
        if self.slots.values().filter(|slot| slot.connects()).count() < most {
            return true;
        }
        let idle = self.slots.iter().filter_map(|(rank, slot)| match slot {
            Slot::Up { peer, used } if peer.is_idle() => Some((*used, *rank)),
            _ => None,
        });
        match idle.min() {
            Some((_used, rank)) => self.slots.remove(&rank).is_some(),
            None => false,
        }
    }

    /// Whether the connection of `home` is the one in use.
    fn is_current(&self, home: &Home) -> bool {
        let id = home.peer.connection.stable_id();
        matches!(
            self.slots.get(&home.peer.rank),
            Some(Slot::Up { peer, .. }) if peer.connection.stable_id() == id
        )
    }
}

/// The member at `rank`, connected within [`CONNECT`].
async fn reach(dialer: &Dialer, rank: usize) -> Result<Arc<Peer>, String> {
    let mut last = None;
    let trying = async {
        loop {
            match dialer.dial_home(rank).await {
                Ok(peer) => return peer,
                Err(why) => last = Some(why),
            }
            sleep(PAUSE).await;
        }
    };
    match timeout(CONNECT, trying).await {
        Ok(peer) => Ok(peer),
        Err(_elapsed) => Err(last.unwrap_or_else(|| dialer.no_answer(rank))),
    }
}

fn unavailable(reason: &str) -> Failure {
    Failure::new(FailureKind::Unavailable, reason)
}
