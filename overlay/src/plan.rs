//! A plan in memory: its pages in order, opaque, read by several readers at their own pace. And the progress of a node
//! and its subtree with a plan: counted, summed, bounded. Pure but for locks.

use crate::wire::message::NodeId;
use crate::wire::{NAME_BYTES_MAX, WireError, at_most, ensure};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{Notify, watch};
use tokio::time::Interval;

/// Plans in a node's memory at a time; further ones are broken off at once.
pub(crate) const PLANS_MAX: usize = 8;
/// Most bytes of a plan, packed. A longer one is refused.
const PLAN_BYTES_MAX: usize = 128 << 20;
/// Nodes in one frame. Names of guests may be long.
const NODES_PER_FRAME: usize = 128;
/// Reasons that are kept of all failures.
const REASONS_MAX: usize = 4;
/// Longest reason, in bytes.
const REASON_BYTES_MAX: usize = 256;

/// A plan on a node, as far as it has arrived. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Plan(watch::Sender<PlanState>);

#[derive(Debug, Default)]
struct PlanState {
    pages: Vec<Bytes>,
    /// Bytes of all pages.
    bytes: usize,
    /// No further pages follow.
    complete: bool,
}

impl Plan {
    /// Adds a page.
    pub(crate) fn push(&self, page: Bytes) -> Result<(), WireError> {
        let mut pushed = Ok(());
        self.0.send_modify(|state| {
            state.bytes += page.len();
            pushed = at_most("bytes of a plan", state.bytes, PLAN_BYTES_MAX);
            if pushed.is_ok() {
                state.pages.push(page);
            }
        });
        pushed
    }

    /// Marks the plan as complete.
    pub(crate) fn end(&self) {
        self.0.send_modify(|state| state.complete = true);
    }

    /// Returns a reader that begins at the first page.
    pub(crate) fn reader(&self) -> PlanReader {
        PlanReader {
            state: self.0.subscribe(),
            _plan: self.clone(),
            next: 0,
        }
    }
}

/// A reader's position in a plan.
#[derive(Debug)]
pub struct PlanReader {
    state: watch::Receiver<PlanState>,
    /// Keeps the channel open: without it, a plan that is broken off would look complete.
    _plan: Plan,
    next: usize,
}

impl PlanReader {
    /// Returns the next page, once it has arrived; `None` after the last. Cancel safe.
    pub async fn page(&mut self) -> Option<Bytes> {
        let next = self.next;
        let arrived = |state: &PlanState| state.pages.len() > next || state.complete;
        let state = self.state.wait_for(arrived).await.ok()?;
        let page = state.pages.get(next).cloned()?;
        self.next += 1;
        Some(page)
    }
}

/// The progress of warming in a part of the tree.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WarmProgress {
    /// Nodes that take part.
    pub nodes: u64,
    /// Nodes that have reached the end of the plan.
    pub nodes_done: u64,
    /// Items that were carried out, on all nodes together.
    pub items: u64,
    /// Bytes of files that these items brought into the nodes' kernels.
    pub bytes: u64,
    /// Items that do not exist any more.
    pub vanished: u64,
    /// Items that failed.
    pub failed: u64,
    /// Some of the reasons for failures.
    pub reasons: Vec<String>,
    /// The node with the least progress, of those that are not done.
    pub slowest: Option<SlowestNode>,
}

/// The node with the least progress.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlowestNode {
    /// Its name.
    pub node: String,
    /// Items that it has carried out.
    pub items: u64,
}

impl WarmProgress {
    /// Adds the progress of another part of the tree. The numbers may come from a peer, so they saturate.
    fn add(&mut self, other: &Self) {
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.nodes_done = self.nodes_done.saturating_add(other.nodes_done);
        self.items = self.items.saturating_add(other.items);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.vanished = self.vanished.saturating_add(other.vanished);
        self.failed = self.failed.saturating_add(other.failed);
        for reason in &other.reasons {
            self.add_reason(reason);
        }
        if let Some(other) = &other.slowest {
            let slowest = self.slowest.as_ref();
            if slowest.is_none_or(|own| other.items < own.items) {
                self.slowest = Some(other.clone());
            }
        }
    }

    /// Adds the reason for a failure, if there is room and it is new.
    pub(crate) fn add_reason(&mut self, reason: &str) {
        if self.reasons.len() < REASONS_MAX && !self.reasons.iter().any(|known| known == reason) {
            let end = reason.floor_char_boundary(REASON_BYTES_MAX);
            self.reasons.push(reason[..end].to_owned());
        }
    }

    /// Checks progress from a peer against the limits.
    pub(crate) fn check(&self) -> Result<(), WireError> {
        let slowest = self.slowest.as_ref().map_or("", |slowest| &slowest.node);
        let long = |text: &String| text.len() > REASON_BYTES_MAX;
        let too_many = self.reasons.len() > REASONS_MAX || self.reasons.iter().any(long);
        let fits = !too_many && slowest.len() <= NAME_BYTES_MAX;
        ensure(fits, "progress out of bounds")
    }
}

/// Counts the items of one node. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<Mutex<WarmProgress>>);

impl Tally {
    /// Counts an item that was prefetched, with `bytes` of a file.
    pub fn item(&self, bytes: u64) {
        let mut counts = self.0.lock();
        counts.items += 1;
        counts.bytes += bytes;
    }

    /// Counts an item that does not exist any more.
    pub fn vanished(&self) {
        let mut counts = self.0.lock();
        counts.items += 1;
        counts.vanished += 1;
    }

    /// Counts the failure of an item, or of everything: the node does not count as warm.
    pub fn failed(&self, reason: &str) {
        let mut counts = self.0.lock();
        counts.items += 1;
        counts.failed += 1;
        counts.add_reason(reason);
    }
}

/// The progress of a node and its subtree.
#[derive(Debug)]
pub(crate) struct ProgressBoard {
    name: String,
    own: Tally,
    /// Held for look-ups only.
    state: Mutex<BoardState>,
    /// Notified when the node and its subtree are done.
    done: Notify,
}

#[derive(Debug, Default)]
struct BoardState {
    own_done: bool,
    all_done: bool,
    /// The latest progress of each child, by its number.
    children: BTreeMap<usize, WarmProgress>,
    /// Warm nodes that were not reported to the parent yet.
    warmed: Vec<NodeId>,
}

/// An update from a part of the tree.
#[derive(Debug)]
pub(crate) enum WarmUpdate {
    Progress(WarmProgress),
    /// These nodes are warm.
    Warmed(Vec<NodeId>),
}

impl ProgressBoard {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            own: Tally::default(),
            state: Mutex::default(),
            done: Notify::new(),
        }
    }

    /// The tally of this node's own items.
    pub(crate) fn tally(&self) -> Tally {
        self.own.clone()
    }

    /// Notes that this node has reached the end of the plan.
    pub(crate) fn own_done(&self, id: NodeId) {
        let clean = self.own.0.lock().failed == 0;
        let mut state = self.state.lock();
        state.own_done = true;
        if clean {
            state.warmed.push(id);
        }
    }

    /// Notes that the subtree is done too, apart from children that are gone.
    pub(crate) fn all_done(&self) {
        self.state.lock().all_done = true;
        self.done.notify_one();
    }

    /// Takes an update of child number `child`.
    pub(crate) fn update(&self, child: usize, update: WarmUpdate) {
        let mut state = self.state.lock();
        match update {
            WarmUpdate::Progress(progress) => drop(state.children.insert(child, progress)),
            WarmUpdate::Warmed(nodes) => state.warmed.extend(nodes),
        }
    }

    /// Notes that child number `child` is gone. The nodes below it that find another parent begin again, and are
    /// counted there.
    pub(crate) fn lost(&self, child: usize, reason: &str) {
        let mut gone = WarmProgress::default();
        gone.add_reason(reason);
        self.state.lock().children.insert(child, gone);
    }

    /// Returns the updates for the parent at the next tick, and whether they are the last.
    pub(crate) async fn next_updates(&self, ticks: &mut Interval) -> (Vec<WarmUpdate>, bool) {
        tokio::select! {
            () = self.done.notified() => {}
            _now = ticks.tick() => {}
        }
        let sum = self.sum();
        let mut state = self.state.lock();
        let warmed = std::mem::take(&mut state.warmed);
        let frames = warmed.chunks(NODES_PER_FRAME);
        let updates = frames
            .map(|nodes| WarmUpdate::Warmed(nodes.to_vec()))
            .chain([WarmUpdate::Progress(sum)]);
        (updates.collect(), state.all_done)
    }

    fn sum(&self) -> WarmProgress {
        let mut sum = self.own.0.lock().clone();
        let state = self.state.lock();
        sum.nodes = 1;
        sum.nodes_done = u64::from(state.own_done);
        if !state.own_done {
            sum.slowest = Some(SlowestNode {
                node: self.name.clone(),
                items: sum.items,
            });
        }
        for child in state.children.values() {
            sum.add(child);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::time::Duration;

    #[tokio::test]
    async fn each_reader_has_its_own_position() {
        let plan = Plan::default();
        let mut early = plan.reader();
        assert!(early.page().now_or_never().is_none(), "no page has arrived");
        for page in [&b"1"[..], b"2"] {
            plan.push(Bytes::copy_from_slice(page)).unwrap();
        }
        assert_eq!(early.page().await.as_deref(), Some(&b"1"[..]));
        let mut late = plan.reader();
        plan.end();
        for reader in [&mut early, &mut late] {
            while let Some(page) = reader.page().await {
                assert_eq!(page.len(), 1);
            }
            assert!(reader.page().await.is_none());
        }
        assert_eq!((early.next, late.next), (2, 2));
    }

    #[test]
    fn a_plan_is_bounded() {
        let plan = Plan::default();
        let page = Bytes::from(vec![0; 32 << 20]);
        let pushed = (0..5).map(|_| plan.push(page.clone()));
        assert_eq!(pushed.filter(Result::is_ok).count(), 4);
    }

    #[tokio::test]
    async fn progress_of_a_subtree_is_summed_and_bounded() {
        let board = ProgressBoard::new("own");
        board.tally().item(5);
        board.tally().vanished();
        let child = WarmProgress {
            nodes: 3,
            nodes_done: 2,
            items: 7,
            bytes: 70,
            reasons: vec!["x".repeat(1000), "y".into()],
            slowest: Some(SlowestNode {
                node: "below".into(),
                items: 1,
            }),
            ..WarmProgress::default()
        };
        assert!(child.check().is_err(), "the reason is too long");
        board.update(0, WarmUpdate::Progress(child));
        let sum = board.sum();
        sum.check().unwrap();
        assert_eq!((sum.nodes, sum.nodes_done, sum.items), (4, 2, 9));
        assert_eq!((sum.bytes, sum.vanished, sum.failed), (75, 1, 0));
        assert_eq!(sum.slowest.unwrap().node, "below");

        board.lost(0, "gone");
        let sum = board.sum();
        assert_eq!((sum.nodes, sum.bytes), (1, 5));
        assert_eq!(sum.slowest.unwrap().node, "own");
        assert_eq!(sum.reasons, ["gone"]);
        board.own_done(NodeId::Member(4));
        board.all_done();
        let mut ticks = tokio::time::interval(Duration::from_secs(60));
        let (updates, last) = board.next_updates(&mut ticks).await;
        assert!(
            last && matches!(&updates[0], WarmUpdate::Warmed(nodes) if *nodes == [NodeId::Member(4)])
        );
    }

    #[test]
    fn a_node_with_a_failure_is_not_warm() {
        let board = ProgressBoard::new("own");
        board.tally().failed("no such device");
        board.own_done(NodeId::Member(0));
        assert!(board.state.lock().warmed.is_empty());
        assert_eq!(board.sum().nodes_done, 1);
    }
}
