//! The link to a node's parent in one tree.
//!
//! One task ([`ParentLink::maintain`]) feeds events to the [`ParentSelector`] and turns its actions into
//! connections. Everything else waits on the state that the task publishes.

use crate::membership::Membership;
use crate::model::{Failure, FailureKind};
use crate::parent_selector::{Action, Event, FailoverTimes, ParentSelector};
use crate::peer::{DialError, Dialed, Dialer, Peer, explain};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quinn::ConnectionError;
use std::collections::HashMap;
use std::sync::Arc;
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

/// The state of a link, as its task publishes it.
struct LinkState {
    status: LinkStatus,
    /// The ancestor with the rank in `status`.
    parent: Option<Arc<Peer>>,
    /// When the status last changed.
    since: Instant,
    was_connected: bool,
    /// Since when an ancestor has run another version or had another secret, and none has accepted this node.
    mismatch_since: Option<Instant>,
    failovers: u64,
    returns: u64,
}

impl LinkState {
    fn is_stranded(&self) -> bool {
        matches!(self.status, LinkStatus::Stranded { .. })
    }
}

/// Why a request gets no parent. Each variant holds the failure to report.
#[derive(Debug)]
pub(crate) enum NoParent {
    /// No ancestor in this tree can be reached. Another tree may answer.
    Stranded(Failure),
    /// The time is up, or this node is shutting down.
    TimedOut(Failure),
}

impl From<NoParent> for Failure {
    fn from(reason: NoParent) -> Self {
        match reason {
            NoParent::Stranded(failure) | NoParent::TimedOut(failure) => failure,
        }
    }
}

/// The link to this node's parent in one tree; see the module.
pub(crate) struct ParentLink {
    tree: usize,
    /// Ranks of the ancestors, the listed parent first.
    ancestors: Vec<usize>,
    /// Name and address of the listed parent.
    listed_parent: String,
    state: watch::Sender<LinkState>,
}

impl ParentLink {
    /// This node's link in `tree`; `None` if it is the root.
    pub(super) fn new(membership: &Membership, tree: usize) -> Option<Self> {
        let ancestors = membership.ancestors(tree);
        let parent = membership.members().get(*ancestors.first()?)?;
        Some(Self {
            tree,
            listed_parent: parent.to_string(),
            ancestors,
            state: watch::Sender::new(LinkState {
                status: LinkStatus::Connecting { reason: None },
                parent: None,
                since: Instant::now(),
                was_connected: false,
                mismatch_since: None,
                failovers: 0,
                returns: 0,
            }),
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
        self.wait_for(|state| state.was_connected || or_stranded && state.is_stranded())
            .await;
    }

    /// Waits until ancestors have run another version or had another secret for [`MISMATCH_TIME`], and none has accepted
    /// this node. Returns the reason.
    pub(super) async fn mismatched(&self) -> String {
        loop {
            self.wait_for(|state| state.mismatch_since.is_some()).await;
            let since = self.state.borrow().mismatch_since;
            let Some(since) = since else { continue };
            let over = self.wait_for(|state| state.mismatch_since != Some(since));
            if timeout_at(since + MISMATCH_TIME, over).await.is_ok() {
                continue;
            }
            return match &self.state.borrow().status {
                LinkStatus::Connecting {
                    reason: Some(reason),
                }
                | LinkStatus::Stranded { reason } => reason.clone(),
                _ => continue,
            };
        }
    }

    pub(super) fn report(&self) -> LinkReport {
        let state = self.state.borrow();
        let parent = state.parent.as_ref();
        LinkReport {
            tree: self.tree,
            home: self.ancestors.first().copied().unwrap_or_default(),
            status: state.status.clone(),
            since: state.since.elapsed(),
            round_trip: parent.map(|parent| parent.connection.rtt()),
            failovers: state.failovers,
            returns: state.returns,
        }
    }

    pub(super) fn stop(&self) {
        self.state.send_modify(|state| {
            state.status = LinkStatus::Stopped;
            state.parent = None;
        });
    }

    /// The rank of the tree's root, unless it is the parent in the list.
    pub(super) fn root_beyond_parent(&self) -> Option<usize> {
        match self.ancestors[..] {
            [_, .., root] => Some(root),
            _ => None,
        }
    }

    /// Whether an ancestor is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.state.borrow().parent.is_some()
    }

    /// Whether no ancestor can be reached.
    pub(crate) fn is_stranded(&self) -> bool {
        self.state.borrow().is_stranded()
    }

    /// Waits until no ancestor can be reached.
    pub(super) async fn stranded(&self) {
        self.wait_for(LinkState::is_stranded).await;
    }

    /// Waits until this node is not stranded in this tree, or has stopped.
    pub(super) async fn recovered(&self) {
        self.wait_for(|state| !state.is_stranded()).await;
    }

    /// Returns the parent, and waits for one until `deadline`.
    pub(super) async fn parent(&self, deadline: Instant) -> Result<Arc<Peer>, NoParent> {
        let mut state = self.state.subscribe();
        let decided =
            state.wait_for(|state| !matches!(state.status, LinkStatus::Connecting { .. }));
        let late = match timeout_at(deadline, decided).await {
            Ok(Ok(state)) => match (&state.parent, &state.status) {
                (Some(parent), _) => return Ok(Arc::clone(parent)),
                (None, LinkStatus::Stranded { reason }) => {
                    return Err(NoParent::Stranded(unavailable(self.describe(reason))));
                }
                _ => "this node is leaving".into(),
            },
            Ok(Err(_closed)) => "this node is leaving".into(),
            Err(_elapsed) => match &self.state.borrow().status {
                LinkStatus::Connecting {
                    reason: Some(reason),
                } => self.describe(reason),
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
        let moved = self.wait_for(|state| {
            let parent = state.parent.as_ref();
            parent.is_none_or(|parent| parent.connection.stable_id() != id)
        });
        // At the deadline the caller's own check ends the request.
        let _elapsed = timeout_at(deadline, moved).await;
    }

    /// Publishes `change`, unless the link is stopped.
    fn publish(&self, change: impl FnOnce(&mut LinkState)) {
        // A dial may end after `stop`, and must not revive the link.
        self.state.send_if_modified(|state| {
            let running = state.status != LinkStatus::Stopped;
            if running {
                change(state);
                state.since = Instant::now();
            }
            running
        });
    }

    /// Publishes `peer`, the ancestor at position `at`, as the parent.
    fn connected(&self, at: usize, peer: &Arc<Peer>) {
        let (tree, parent) = (self.tree, &self.listed_parent);
        if at > 0 {
            tracing::warn!(tree, %parent, instead = %peer.label, "moved");
        } else {
            let address = peer.connection.remote_address();
            tracing::info!(tree, %parent, %address, "connected");
        }
        self.publish(|state| {
            let again = std::mem::replace(&mut state.was_connected, true);
            state.mismatch_since = None;
            state.failovers += u64::from(at > 0);
            state.returns += u64::from(at == 0 && again);
            state.status = LinkStatus::Connected(peer.rank);
            state.parent = Some(Arc::clone(peer));
        });
    }

    /// Publishes why there is no connection, and logs a reason that differs from the last one.
    fn disconnected(&self, reason: &str) {
        let (repeated, stranded) = match &self.state.borrow().status {
            LinkStatus::Stranded { reason: last } => (last == reason, true),
            LinkStatus::Connecting { reason: Some(last) } => (last == reason, false),
            _ => (false, false),
        };
        if !repeated {
            tracing::warn!(tree = self.tree, parent = %self.listed_parent, reason, "not connected; trying on");
        }
        // A stranded node stays so until an ancestor accepts it.
        if !stranded {
            self.publish(|state| {
                let reason = Some(reason.to_owned());
                state.status = LinkStatus::Connecting { reason };
                state.parent = None;
            });
        }
    }

    /// Publishes that an ancestor runs another version or has another secret, if `error` says so.
    fn note_mismatch(&self, error: &DialError) {
        if error.is_mismatch() {
            self.state.send_modify(|state| {
                state.mismatch_since.get_or_insert_with(Instant::now);
            });
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
        let mut dials = FuturesUnordered::new();
        // Ancestors that have accepted this node and are not in use, by position.
        let mut accepted: HashMap<usize, Arc<Peer>> = HashMap::new();
        let mut used: Option<UsedAncestor> = None;
        let mut reason = "no ancestor answers".to_owned();
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
                            reason = DialError::to_string(&error);
                            self.disconnected(&reason);
                            self.note_mismatch(&error);
                        }
                        Event::Failed(at)
                    }
                },
                (event, why) = next_event(&mut used) => {
                    if let Some(why) = why {
                        reason = why;
                        if matches!(event, Event::Lost(_) | Event::Restarted(_)) {
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
                        self.publish(|state| {
                            let reason = reason.clone();
                            state.status = LinkStatus::Stranded { reason };
                            state.parent = None;
                        });
                    }
                }
            }
        }
    }

    /// Dials the ancestor at position `at`. Returns the position and the outcome.
    async fn dial(&self, dialer: &Dialer, at: usize) -> (usize, Result<Dialed, DialError>) {
        let rank = self.ancestors.get(at).copied().unwrap_or(usize::MAX);
        let dialed = dialer.dial(self.tree, rank).await;
        if dialed.as_ref().is_ok_and(|dialed| !dialed.attached) {
            sleep(DETACHED_DELAY).await;
        }
        (at, dialed)
    }
}

/// Delays the acceptance by an ancestor that has no parent itself, so that another may be found first.
const DETACHED_DELAY: Duration = Duration::from_millis(300);

/// How long an ancestor that runs another version or has another secret may be one of an earlier job, which ends.
const MISMATCH_TIME: Duration = Duration::from_secs(5);

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
        let mut silent = peer.health.silent.subscribe();
        // A shared connection may be silent already; without this no event would tell.
        if *silent.borrow() {
            silent.mark_changed();
        }
        Self {
            at,
            corrupt_blocks: peer.health.corrupt_blocks.subscribe(),
            silent,
            peer,
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
        error = used.peer.connection.closed() => {
            let reason = explain(used.peer.connection.remote_address(), &error);
            let event = match error {
                ConnectionError::Reset => Event::Restarted(used.at),
                _ => Event::Lost(used.at),
            };
            (event, Some(reason))
        }
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
