//! A node's hold in one tree: one task turns what happens into [`Ascent`]'s events and its actions
//! into connections; everybody else waits on the state it publishes.

use crate::ascent::{Action, Ascent, Event, Patience};
use crate::membership::Membership;
use crate::peer::{Dialed, Dialer, Peer};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// Where a node stands in one tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkStatus {
    /// An ancestor has accepted this node: its rank.
    Connected(usize),
    /// Not connected, and why the last attempt failed, if one did.
    Connecting {
        /// For people.
        reason: Option<String>,
    },
    /// No ancestor can be reached, and why the last attempt failed. Requests go to other trees.
    Stranded {
        /// For people.
        reason: String,
    },
    /// This node is leaving.
    Stopped,
}

/// A node's hold in one tree, for operators.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkReport {
    /// Which tree.
    pub tree: usize,
    /// The parent by the list: its rank.
    pub home: usize,
    /// Where the node stands.
    pub status: LinkStatus,
    /// For how long it has stood so.
    pub since: Duration,
    /// The connection's smoothed round trip.
    pub round_trip: Option<Duration>,
    /// How often it has moved to another ancestor than its parent.
    pub failovers: u64,
    /// How often it has come home.
    pub returns: u64,
}

#[derive(Clone, Debug)]
enum State {
    Seeking(Option<Arc<str>>),
    Hanging(Arc<Peer>),
    Stranded(Arc<str>),
    Stopped,
}

/// Why a request gets no connection.
#[derive(Debug)]
pub(super) enum NoPeer {
    /// Nobody in this tree can be reached: ask in another.
    Stranded(String),
    /// The time is up, or this node is leaving.
    Late(String),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Hold {
    tree: usize,
    ancestors: Vec<usize>,
    home: Arc<str>,
    state: watch::Sender<State>,
    was_connected: AtomicBool,
    /// When the state last changed; held for a copy.
    since: Mutex<Instant>,
    failovers: AtomicU64,
    returns: AtomicU64,
}

impl Hold {
    /// This node's hold in `tree`; `None` where it is the root.
    pub(super) fn new(membership: &Membership, tree: usize) -> Option<Self> {
        let ancestors = membership.ancestors(tree);
        let home = membership.members().get(*ancestors.first()?)?;
        Some(Self {
            tree,
            home: format!("{} ({})", home.name, home.address).into(),
            ancestors,
            state: watch::Sender::new(State::Seeking(None)),
            was_connected: AtomicBool::new(false),
            since: Mutex::new(Instant::now()),
            failovers: AtomicU64::new(0),
            returns: AtomicU64::new(0),
        })
    }

    /// Resolves once an ancestor has accepted this node for the first time; `or_stranded`: or once it
    /// is clear that none can be reached.
    pub(super) async fn first_connected(&self, or_stranded: bool) {
        if !self.was_connected() {
            let mut state = self.state.subscribe();
            let known = |state: &State| match state {
                State::Hanging(_) => true,
                State::Stranded(_) => or_stranded,
                State::Seeking(_) | State::Stopped => false,
            };
            // The sender lives in `self`: this cannot fail.
            let _seen = state.wait_for(known).await.is_ok();
        }
    }

    /// Whether an ancestor has ever accepted this node.
    pub(super) fn was_connected(&self) -> bool {
        self.was_connected.load(Ordering::Acquire)
    }

    pub(super) fn status(&self) -> LinkStatus {
        match &*self.state.borrow() {
            State::Hanging(peer) => LinkStatus::Connected(peer.rank),
            State::Seeking(reason) => LinkStatus::Connecting {
                reason: reason.as_deref().map(str::to_owned),
            },
            State::Stranded(reason) => LinkStatus::Stranded {
                reason: reason.to_string(),
            },
            State::Stopped => LinkStatus::Stopped,
        }
    }

    pub(super) fn report(&self) -> LinkReport {
        let round_trip = match &*self.state.borrow() {
            State::Hanging(peer) => Some(peer.connection.rtt()),
            _ => None,
        };
        let since = *self.since.lock();
        LinkReport {
            tree: self.tree,
            home: self.ancestors.first().copied().unwrap_or_default(),
            status: self.status(),
            since: since.elapsed(),
            round_trip,
            failovers: self.failovers.load(Ordering::Relaxed),
            returns: self.returns.load(Ordering::Relaxed),
        }
    }

    pub(super) fn stop(&self) {
        self.state.send_replace(State::Stopped);
    }

    /// Whether an ancestor is connected.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(&*self.state.borrow(), State::Hanging(_))
    }

    /// Whether nobody in this tree can be reached.
    pub(crate) fn is_stranded(&self) -> bool {
        matches!(&*self.state.borrow(), State::Stranded(_))
    }

    /// Waits until nobody in this tree can be reached.
    pub(super) async fn stranded(&self) {
        let mut state = self.state.subscribe();
        let _seen = state
            .wait_for(|state| matches!(state, State::Stranded(_)))
            .await
            .is_ok();
    }

    /// Waits until this is no longer so.
    pub(super) async fn mended(&self) {
        let mut state = self.state.subscribe();
        let _seen = state
            .wait_for(|state| !matches!(state, State::Stranded(_)))
            .await
            .is_ok();
    }

    /// The ancestor to ask, waited for until `deadline`.
    pub(super) async fn peer(&self, deadline: Instant) -> Result<Arc<Peer>, NoPeer> {
        if let State::Hanging(peer) = &*self.state.borrow() {
            return Ok(Arc::clone(peer));
        }
        let mut state = self.state.subscribe();
        let found = timeout_at(
            deadline,
            state.wait_for(|state| !matches!(state, State::Seeking(_))),
        );
        let leaving = || NoPeer::Late("this node is leaving".into());
        match found.await {
            Ok(Ok(state)) => match &*state {
                State::Hanging(peer) => Ok(Arc::clone(peer)),
                State::Stranded(reason) => Err(NoPeer::Stranded(self.describe(reason))),
                State::Seeking(_) | State::Stopped => Err(leaving()),
            },
            Ok(Err(_closed)) => Err(leaving()),
            Err(_elapsed) => Err(NoPeer::Late(match self.status() {
                LinkStatus::Connecting {
                    reason: Some(reason),
                } => self.describe(&reason),
                _ => format!("parent {}: not connected in time", self.home),
            })),
        }
    }

    fn describe(&self, reason: &str) -> String {
        format!("parent {}: not connected: {reason}", self.home)
    }

    /// Waits until `peer` is no longer the one to ask, at most until `deadline`.
    pub(super) async fn left(&self, peer: &Peer, deadline: Instant) {
        let mut state = self.state.subscribe();
        let id = peer.connection.stable_id();
        let left = state.wait_for(|state| match state {
            State::Hanging(held) => held.connection.stable_id() != id,
            _ => true,
        });
        // At the deadline the caller's own check ends the request.
        let _elapsed = timeout_at(deadline, async { left.await.is_ok() }).await;
    }

    fn publish(&self, next: State) {
        self.state.send_if_modified(|state| {
            let running = !matches!(state, State::Stopped);
            if running {
                *state = next;
            }
            running
        });
        *self.since.lock() = Instant::now();
    }

    fn using(&self, at: usize, peer: &Arc<Peer>) {
        let again = self.was_connected.swap(true, Ordering::AcqRel);
        if at > 0 {
            self.failovers.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(tree = self.tree, parent = %self.home, instead = %peer.label, "moved");
        } else {
            if again {
                self.returns.fetch_add(1, Ordering::Relaxed);
            }
            let address = peer.connection.remote_address();
            tracing::info!(tree = self.tree, parent = %self.home, %address, "connected");
        }
        self.publish(State::Hanging(Arc::clone(peer)));
    }

    /// Publishes why there is no connection, and logs it if it is news.
    fn seeking(&self, reason: &str) {
        let stranded = matches!(&*self.state.borrow(), State::Stranded(_));
        let known = matches!(
            &*self.state.borrow(),
            State::Seeking(Some(old)) | State::Stranded(old) if &**old == reason
        );
        if !known {
            tracing::warn!(tree = self.tree, parent = %self.home, reason, "not connected; trying on");
        }
        if !stranded {
            self.publish(State::Seeking(Some(reason.into())));
        }
    }
}

/// Keeps one node's hold in one tree.
#[derive(Debug)]
pub(crate) struct Climber {
    pub(crate) hold: Arc<Hold>,
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) patience: Patience,
    pub(crate) seed: u64,
}

/// The ancestor in use.
struct Used {
    at: usize,
    peer: Arc<Peer>,
    silent: watch::Receiver<bool>,
    lies: watch::Receiver<u32>,
}

impl Used {
    fn new(at: usize, peer: Arc<Peer>) -> Self {
        let (mut silent, lies) = (peer.silent(), peer.lies());
        if *silent.borrow() {
            silent.mark_changed();
        }
        Self {
            at,
            peer,
            silent,
            lies,
        }
    }

    /// The next thing that happens to it, and why it ended if it did.
    async fn event(&mut self) -> (Event, Option<String>) {
        tokio::select! {
            biased;
            reason = self.peer.closed() => (Event::Lost(self.at), Some(reason)),
            Ok(()) = self.silent.changed() => {
                let silent = *self.silent.borrow_and_update();
                (if silent { Event::Silent(self.at) } else { Event::Heard(self.at) }, None)
            }
            Ok(()) = self.lies.changed() => {
                let why = format!("{} sent a block whose hash is wrong", self.peer.label);
                (Event::Lied(self.at), Some(why))
            }
        }
    }
}

/// How long an ancestor that is cut off itself is left waiting, so that another may be found first.
const HESITATION: Duration = Duration::from_millis(300);

type Dial = BoxFuture<'static, (usize, Result<Dialed, String>)>;

impl Climber {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let hold = &self.hold;
        let began = Instant::now();
        let mut ascent = Ascent::new(
            hold.ancestors.len(),
            self.patience,
            self.seed,
            Duration::ZERO,
        );
        let mut dials: FuturesUnordered<Dial> = FuturesUnordered::new();
        let mut welcomed: HashMap<usize, Arc<Peer>> = HashMap::new();
        let mut used: Option<Used> = None;
        let mut reason: Arc<str> = "no ancestor answers".into();
        loop {
            let wake = ascent.wake(began.elapsed());
            let event = tokio::select! {
                biased;
                Some((at, outcome)) = dials.next() => match outcome {
                    // One that is cut off itself is better than nobody, and no better than anybody.
                    Ok(Dialed { settled: false, .. }) if used.is_some() => Event::Failed(at),
                    Ok(Dialed { peer, .. }) => {
                        welcomed.insert(at, peer);
                        Event::Welcomed(at)
                    }
                    Err(why) => {
                        if used.is_none() {
                            hold.seeking(&why);
                            reason = why.into();
                        }
                        Event::Failed(at)
                    }
                },
                (event, why) = happening(&mut used) => {
                    if let Some(why) = why {
                        if matches!(event, Event::Lost(_)) {
                            used = None;
                            hold.seeking(&why);
                        }
                        reason = why.into();
                    }
                    event
                },
                () = sleep_until(began + wake.unwrap_or_default()), if wake.is_some() => Event::Tick,
            };
            for action in ascent.step(began.elapsed(), event) {
                match action {
                    Action::Dial(at) => dials.push(self.dial(at)),
                    Action::Use(at) => {
                        if let Some(peer) = welcomed.remove(&at) {
                            hold.using(at, &peer);
                            if let Some(former) = used.replace(Used::new(at, peer)) {
                                welcomed.insert(former.at, former.peer);
                            }
                        }
                    }
                    Action::Leave(at) => drop(welcomed.remove(&at)),
                    Action::Drop(at) => {
                        if used.as_ref().is_some_and(|used| used.at == at) {
                            hold.seeking(&reason);
                            used.take().inspect(|used| used.peer.give_up());
                        }
                        welcomed.remove(&at).inspect(|peer| peer.give_up());
                    }
                    Action::Strand => {
                        tracing::warn!(tree = hold.tree, %reason, "no ancestor can be reached");
                        hold.publish(State::Stranded(Arc::clone(&reason)));
                    }
                }
            }
        }
    }

    fn dial(&self, at: usize) -> Dial {
        let dialer = Arc::clone(&self.dialer);
        let tree = self.hold.tree;
        let rank = self.hold.ancestors.get(at).copied().unwrap_or(usize::MAX);
        Box::pin(async move {
            let dialed = dialer.dial(tree, rank).await;
            if matches!(dialed, Ok(Dialed { settled: false, .. })) {
                sleep(HESITATION).await;
            }
            (at, dialed)
        })
    }
}

async fn happening(used: &mut Option<Used>) -> (Event, Option<String>) {
    match used {
        Some(used) => used.event().await,
        None => std::future::pending().await,
    }
}
