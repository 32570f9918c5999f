//! The link to a node's parent in one tree.
//!
//! One task ([`ParentLink::maintain`]) feeds events to the [`ParentSelector`] and turns its actions into
//! connections. Everything else waits on the state that the task publishes.

use crate::membership::Membership;
use crate::model::{Failure, FailureKind};
use crate::parent_selector::{Action, Event, FailoverTimes, ParentSelector};
use crate::peer::{DialError, Dialed, Dialer, Peer};
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

/// The state of a node's link in one tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkStatus {
    /// The ancestor with this rank has accepted this node.
    Connected(usize),
    /// Not connected.
    Connecting {
        /// Why the last attempt failed, if one did; for operators.
        reason: Option<String>,
    },
    /// No ancestor can be reached. Requests go to other trees.
    Stranded {
        /// Why the last attempt failed; for operators.
        reason: String,
    },
    /// This node is shutting down.
    Stopped,
}

/// A node's link in one tree, for operators.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkReport {
    /// Number of the tree.
    pub tree: usize,
    /// Rank of the listed parent.
    pub home: usize,
    /// The state of the link.
    pub status: LinkStatus,
    /// Time since the state last changed.
    pub since: Duration,
    /// The connection's smoothed round trip.
    pub round_trip: Option<Duration>,
    /// Number of moves to another ancestor than the listed parent.
    pub failovers: u64,
    /// Number of moves back to the listed parent.
    pub returns: u64,
}

#[derive(Clone)]
enum LinkState {
    Connecting(Option<Arc<str>>),
    Connected(Arc<Peer>),
    Stranded(Arc<str>),
    Stopped,
}

/// Why a request gets no parent. Each variant holds the failure to report.
#[derive(Debug)]
pub(crate) enum NoParent {
    /// No ancestor in this tree can be reached. Another tree may answer.
    Stranded(Failure),
    /// The time is up, or this node is shutting down.
    TimedOut(Failure),
}

impl NoParent {
    pub(super) fn into_failure(self) -> Failure {
        match self {
            Self::Stranded(failure) | Self::TimedOut(failure) => failure,
        }
    }
}

/// The link to this node's parent in one tree; see the module.
pub(crate) struct ParentLink {
    tree: usize,
    /// Ranks of the ancestors, the listed parent first.
    ancestors: Vec<usize>,
    /// Name and address of the listed parent.
    listed_parent: Arc<str>,
    state: watch::Sender<LinkState>,
    was_connected: AtomicBool,
    /// When the state last changed. Held for a copy.
    since: Mutex<Instant>,
    failovers: AtomicU64,
    returns: AtomicU64,
}

impl ParentLink {
    /// This node's link in `tree`; `None` if it is the root.
    pub(super) fn new(membership: &Membership, tree: usize) -> Option<Self> {
        let ancestors = membership.ancestors(tree);
        let parent = membership.members().get(*ancestors.first()?)?;
        Some(Self {
            tree,
            listed_parent: format!("{} ({})", parent.name, parent.address).into(),
            ancestors,
            state: watch::Sender::new(LinkState::Connecting(None)),
            was_connected: AtomicBool::new(false),
            since: Mutex::new(Instant::now()),
            failovers: AtomicU64::new(0),
            returns: AtomicU64::new(0),
        })
    }

    /// Waits until the state fulfils `condition`.
    async fn wait_for(&self, condition: impl FnMut(&LinkState) -> bool) {
        // The sender is in `self`, so the channel is open.
        let _open = self.state.subscribe().wait_for(condition).await.is_ok();
    }

    /// Waits until an ancestor has accepted this node for the first time or, with `or_stranded`, until none
    /// can be reached.
    pub(super) async fn first_connected(&self, or_stranded: bool) {
        if !self.was_connected() {
            self.wait_for(|state| match state {
                LinkState::Connected(_) => true,
                LinkState::Stranded(_) => or_stranded,
                LinkState::Connecting(_) | LinkState::Stopped => false,
            })
            .await;
        }
    }

    /// Whether an ancestor has ever accepted this node.
    pub(super) fn was_connected(&self) -> bool {
        self.was_connected.load(Ordering::Acquire)
    }

    pub(super) fn report(&self) -> LinkReport {
        let (status, round_trip) = match &*self.state.borrow() {
            LinkState::Connected(peer) => (
                LinkStatus::Connected(peer.rank),
                Some(peer.connection.rtt()),
            ),
            LinkState::Connecting(reason) => {
                let reason = reason.as_deref().map(str::to_owned);
                (LinkStatus::Connecting { reason }, None)
            }
            LinkState::Stranded(reason) => {
                let reason = reason.to_string();
                (LinkStatus::Stranded { reason }, None)
            }
            LinkState::Stopped => (LinkStatus::Stopped, None),
        };
        LinkReport {
            tree: self.tree,
            home: self.ancestors.first().copied().unwrap_or_default(),
            status,
            since: self.since.lock().elapsed(),
            round_trip,
            failovers: self.failovers.load(Ordering::Relaxed),
            returns: self.returns.load(Ordering::Relaxed),
        }
    }

    pub(super) fn stop(&self) {
        self.state.send_replace(LinkState::Stopped);
    }

    /// Whether an ancestor is connected.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(&*self.state.borrow(), LinkState::Connected(_))
    }

    /// Whether no ancestor can be reached.
    pub(crate) fn is_stranded(&self) -> bool {
        matches!(&*self.state.borrow(), LinkState::Stranded(_))
    }

    /// Waits until no ancestor can be reached.
    pub(super) async fn stranded(&self) {
        self.wait_for(|state| matches!(state, LinkState::Stranded(_)))
            .await;
    }

    /// Waits until this node is not stranded in this tree, or has stopped.
    pub(super) async fn recovered(&self) {
        self.wait_for(|state| !matches!(state, LinkState::Stranded(_)))
            .await;
    }

    /// Returns the parent, and waits for one until `deadline`.
    pub(super) async fn parent(&self, deadline: Instant) -> Result<Arc<Peer>, NoParent> {
        let mut state = self.state.subscribe();
        let decided = state.wait_for(|state| !matches!(state, LinkState::Connecting(_)));
        let late = match timeout_at(deadline, decided).await {
            Ok(Ok(state)) => match &*state {
                LinkState::Connected(peer) => return Ok(Arc::clone(peer)),
                LinkState::Stranded(reason) => {
                    return Err(NoParent::Stranded(unavailable(self.describe(reason))));
                }
                LinkState::Connecting(_) | LinkState::Stopped => "this node is leaving".into(),
            },
            Ok(Err(_closed)) => "this node is leaving".into(),
            Err(_elapsed) => match &*self.state.borrow() {
                LinkState::Connecting(Some(reason)) => self.describe(reason),
                _ => format!("parent {}: not connected in time", self.listed_parent),
            },
        };
        Err(NoParent::TimedOut(unavailable(late)))
    }

    fn describe(&self, reason: &str) -> String {
        format!("parent {}: not connected: {reason}", self.listed_parent)
    }

    /// Waits until `peer` is not the parent, at most until `deadline`.
    pub(super) async fn moved_from(&self, peer: &Peer, deadline: Instant) {
        let id = peer.connection.stable_id();
        let moved = self.wait_for(|state| match state {
            LinkState::Connected(parent) => parent.connection.stable_id() != id,
            _ => true,
        });
        // At the deadline the caller's own check ends the request.
        let _elapsed = timeout_at(deadline, moved).await;
    }

    /// Publishes `next`, unless the link is stopped.
    fn publish(&self, next: LinkState) {
        // A dial may end after `stop`, and must not revive the link.
        self.state.send_if_modified(|state| {
            let running = !matches!(state, LinkState::Stopped);
            if running {
                *state = next;
            }
            running
        });
        *self.since.lock() = Instant::now();
    }

    /// Publishes `peer`, the ancestor at position `at`, as the parent.
    fn connected(&self, at: usize, peer: &Arc<Peer>) {
        let again = self.was_connected.swap(true, Ordering::AcqRel);
        let (tree, parent) = (self.tree, &self.listed_parent);
        if at > 0 {
            self.failovers.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(tree, %parent, instead = %peer.label, "moved");
        } else {
            if again {
                self.returns.fetch_add(1, Ordering::Relaxed);
            }
            let address = peer.connection.remote_address();
            tracing::info!(tree, %parent, %address, "connected");
        }
        self.publish(LinkState::Connected(Arc::clone(peer)));
    }

    /// Publishes why there is no connection, and logs a reason that differs from the last one.
    fn disconnected(&self, reason: &str) {
        let (repeated, stranded) = match &*self.state.borrow() {
            LinkState::Stranded(last) => (&**last == reason, true),
            LinkState::Connecting(Some(last)) => (&**last == reason, false),
            _ => (false, false),
        };
        if !repeated {
            tracing::warn!(tree = self.tree, parent = %self.listed_parent, reason, "not connected; trying on");
        }
        // A stranded node stays so until an ancestor accepts it.
        if !stranded {
            self.publish(LinkState::Connecting(Some(reason.into())));
        }
    }

    /// Keeps this link: dials ancestors and publishes the one in use. Runs until it is dropped.
    pub(crate) async fn maintain(
        self: Arc<Self>,
        dialer: Arc<Dialer>,
        times: FailoverTimes,
        seed: u64,
    ) {
        let began = Instant::now();
        let mut selector = ParentSelector::new(self.ancestors.len(), times, seed, Duration::ZERO);
        let mut dials: FuturesUnordered<Dial> = FuturesUnordered::new();
        // Ancestors that have accepted this node and are not in use, by position.
        let mut accepted: HashMap<usize, Arc<Peer>> = HashMap::new();
        let mut used: Option<UsedAncestor> = None;
        let mut reason: Arc<str> = "no ancestor answers".into();
        loop {
            let wake = selector.wake(began.elapsed());
            // Finished dials first: a candidate that has just accepted this node replaces a lost one at once.
            let event = tokio::select! {
                biased;
                Some((at, outcome)) = dials.next() => match outcome {
                    // A detached ancestor is better than none, but no better than another.
                    Ok(Dialed { attached: false, .. }) if used.is_some() => Event::Failed(at),
                    Ok(Dialed { peer, .. }) => {
                        accepted.insert(at, peer);
                        Event::Accepted(at)
                    }
                    Err(error) => {
                        if used.is_none() {
                            reason = error.to_string().into();
                            self.disconnected(&reason);
                        }
                        Event::Failed(at)
                    }
                },
                (event, why) = next_event(&mut used) => {
                    if let Some(why) = why {
                        reason = why.into();
                        if matches!(event, Event::Lost(_)) {
                            used = None;
                            self.disconnected(&reason);
                        }
                    }
                    event
                },
                () = sleep_until(began + wake.unwrap_or_default()), if wake.is_some() => Event::Tick,
            };
            for action in selector.step(began.elapsed(), event) {
                match action {
                    Action::Dial(at) => dials.push(self.dial(&dialer, at)),
                    Action::Use(at) => {
                        if let Some(peer) = accepted.remove(&at) {
                            self.connected(at, &peer);
                            // The former one stays open until the selector releases or abandons it.
                            if let Some(former) = used.replace(UsedAncestor::new(at, peer)) {
                                accepted.insert(former.at, former.peer);
                            }
                        }
                    }
                    Action::Release(at) => drop(accepted.remove(&at)),
                    Action::Abandon(at) => {
                        if let Some(gone) = used.take_if(|used| used.at == at) {
                            self.disconnected(&reason);
                            gone.peer.abandon();
                        }
                        accepted.remove(&at).inspect(|peer| peer.abandon());
                    }
                    Action::Strand => {
                        tracing::warn!(tree = self.tree, %reason, "no ancestor can be reached");
                        self.publish(LinkState::Stranded(Arc::clone(&reason)));
                    }
                }
            }
        }
    }

    fn dial(&self, dialer: &Arc<Dialer>, at: usize) -> Dial {
        let dialer = Arc::clone(dialer);
        let tree = self.tree;
        let rank = self.ancestors.get(at).copied().unwrap_or(usize::MAX);
        Box::pin(async move {
            let dialed = dialer.dial(tree, rank).await;
            if matches!(
                dialed,
                Ok(Dialed {
                    attached: false,
                    ..
                })
            ) {
                sleep(DETACHED_DELAY).await;
            }
            (at, dialed)
        })
    }
}

/// Delays the acceptance by an ancestor that has no parent itself, so that another may be found first.
const DETACHED_DELAY: Duration = Duration::from_millis(300);

/// A dial in progress. Resolves to the candidate's position and the outcome.
type Dial = BoxFuture<'static, (usize, Result<Dialed, DialError>)>;

/// The ancestor in use.
struct UsedAncestor {
    /// Its position among the ancestors.
    at: usize,
    peer: Arc<Peer>,
    silent: watch::Receiver<bool>,
    corrupt_blocks: watch::Receiver<u32>,
}

impl UsedAncestor {
    fn new(at: usize, peer: Arc<Peer>) -> Self {
        let (mut silent, corrupt_blocks) = (peer.silent(), peer.corrupt_blocks());
        // A shared connection may be silent already; without this no event would tell.
        if *silent.borrow() {
            silent.mark_changed();
        }
        Self {
            at,
            peer,
            silent,
            corrupt_blocks,
        }
    }
}

/// Returns the next event at the ancestor in use, and the reason if requests to it failed.
async fn next_event(used: &mut Option<UsedAncestor>) -> (Event, Option<String>) {
    let Some(used) = used else {
        return std::future::pending().await;
    };
    tokio::select! {
        biased;
        reason = used.peer.closed() => (Event::Lost(used.at), Some(reason)),
        Ok(()) = used.silent.changed() => match *used.silent.borrow_and_update() {
            true => (Event::Silent(used.at), None),
            false => (Event::Heard(used.at), None),
        },
        Ok(()) = used.corrupt_blocks.changed() => {
            let reason = format!("{} sent a block whose hash is wrong", used.peer.label);
            (Event::Corrupt(used.at), Some(reason))
        }
    }
}

pub(super) fn unavailable(reason: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Unavailable, reason)
}
