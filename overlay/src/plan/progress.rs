//! How far a node and all below it are: counted, summed, bounded. Pure but for locks.

use crate::wire::message::NodeId;
use crate::wire::{NAME_BYTES_MAX, WireError};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::time::Interval;

/// Nodes in one frame: names of guests may be long.
const NODES_AT_ONCE: usize = 128;
/// Reasons that are kept of all failures, and the longest of them in bytes.
const REASONS_MAX: usize = 4;
const REASON_BYTES_MAX: usize = 256;

/// How far a part of the tree is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WarmProgress {
    /// Nodes that take part.
    pub nodes: u64,
    /// Those that are at the end of the plan.
    pub nodes_done: u64,
    /// Items that were carried out, on all nodes together.
    pub items: u64,
    /// Bytes of files that they have brought into the nodes' kernels.
    pub bytes: u64,
    /// Items that are no longer there.
    pub vanished: u64,
    /// Items that failed.
    pub failed: u64,
    /// Some of the reasons why.
    pub reasons: Vec<String>,
    /// Who is furthest behind, of those that are not done.
    pub slowest: Option<Laggard>,
}

/// Who is furthest behind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Laggard {
    /// Its name.
    pub node: String,
    /// Items that it has carried out.
    pub items: u64,
}

impl WarmProgress {
    /// Adds what another part has done.
    fn add(&mut self, other: &Self) {
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.nodes_done = self.nodes_done.saturating_add(other.nodes_done);
        self.items = self.items.saturating_add(other.items);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.vanished = self.vanished.saturating_add(other.vanished);
        self.failed = self.failed.saturating_add(other.failed);
        for reason in &other.reasons {
            self.reason(reason);
        }
        if let Some(other) = &other.slowest
            && self
                .slowest
                .as_ref()
                .is_none_or(|own| other.items < own.items)
        {
            self.slowest = Some(other.clone());
        }
    }

    pub(crate) fn reason(&mut self, reason: &str) {
        if self.reasons.len() < REASONS_MAX && !self.reasons.iter().any(|known| known == reason) {
            let mut end = reason.len().min(REASON_BYTES_MAX);
            while !reason.is_char_boundary(end) {
                end -= 1;
            }
            self.reasons.push(reason[..end].to_owned());
        }
    }

    pub(crate) fn check(&self) -> Result<(), WireError> {
        let long = |text: &String| text.len() > REASON_BYTES_MAX;
        let named = |laggard: &Laggard| laggard.node.len() <= NAME_BYTES_MAX;
        if self.reasons.len() > REASONS_MAX
            || self.reasons.iter().any(long)
            || !self.slowest.as_ref().is_none_or(named)
        {
            return Err(WireError::Impossible("progress out of bounds"));
        }
        Ok(())
    }
}

/// Counts what one node does. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<Mutex<WarmProgress>>);

impl Tally {
    /// An item is here, with so many bytes of a file.
    pub fn item(&self, bytes: u64) {
        let mut counts = self.lock();
        counts.items += 1;
        counts.bytes += bytes;
    }

    /// An item is no longer there.
    pub fn vanished(&self) {
        let mut counts = self.lock();
        counts.items += 1;
        counts.vanished += 1;
    }

    /// An item, or everything, has failed: the node does not count as warm.
    pub fn failed(&self, reason: &str) {
        let mut counts = self.lock();
        counts.items += 1;
        counts.failed += 1;
        counts.reason(reason);
    }

    fn lock(&self) -> MutexGuard<'_, WarmProgress> {
        self.0.lock()
    }
}

/// What is known of a node and of all below it.
#[derive(Debug)]
pub(crate) struct Board {
    name: String,
    own: Tally,
    /// Held for look-ups only.
    state: Mutex<State>,
    /// Told when all is done.
    end: Notify,
}

#[derive(Debug, Default)]
struct State {
    own_done: bool,
    all_done: bool,
    /// The latest of each child.
    children: BTreeMap<usize, WarmProgress>,
    /// Nodes that are warm, and were not passed on yet.
    warmed: Vec<NodeId>,
}

/// What a part of the tree says of itself.
#[derive(Debug)]
pub(crate) enum News {
    Progress(WarmProgress),
    Warmed(Vec<NodeId>),
}

impl Board {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            own: Tally::default(),
            state: Mutex::default(),
            end: Notify::new(),
        }
    }

    /// What this node itself counts in.
    pub(crate) fn tally(&self) -> Tally {
        self.own.clone()
    }

    /// This node is at the end of the plan.
    pub(crate) fn own_done(&self, id: NodeId) {
        let clean = self.own.lock().failed == 0;
        let mut state = self.lock();
        state.own_done = true;
        if clean {
            state.warmed.push(id);
        }
    }

    /// So are all below it, as far as they are still there.
    pub(crate) fn all_done(&self) {
        self.lock().all_done = true;
        self.end.notify_one();
    }

    /// News of the child at `place`.
    pub(crate) fn hear(&self, place: usize, news: News) {
        let mut state = self.lock();
        match news {
            News::Progress(progress) => drop(state.children.insert(place, progress)),
            News::Warmed(nodes) => state.warmed.extend(nodes),
        }
    }

    /// A child has gone, and nobody waits for it. Those below it that find another parent begin anew, and
    /// are counted there.
    pub(crate) fn lost(&self, place: usize, reason: &str) {
        let mut state = self.lock();
        let mut gone = WarmProgress::default();
        gone.reason(reason);
        state.children.insert(place, gone);
    }

    /// What there is to say at the next tick, and whether that is the last of it.
    pub(crate) async fn news(&self, ticks: &mut Interval) -> (Vec<News>, bool) {
        tokio::select! {
            () = self.end.notified() => {}
            _now = ticks.tick() => {}
        }
        let sum = self.sum();
        let mut state = self.lock();
        let warmed = std::mem::take(&mut state.warmed);
        let mut news: Vec<News> = warmed
            .chunks(NODES_AT_ONCE)
            .map(|nodes| News::Warmed(nodes.to_vec()))
            .collect();
        news.push(News::Progress(sum));
        (news, state.all_done)
    }

    fn sum(&self) -> WarmProgress {
        let mut sum = self.own.lock().clone();
        let state = self.lock();
        sum.nodes = 1;
        sum.nodes_done = u64::from(state.own_done);
        if !state.own_done {
            sum.slowest = Some(Laggard {
                node: self.name.clone(),
                items: sum.items,
            });
        }
        for child in state.children.values() {
            sum.add(child);
        }
        sum
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn a_part_of_the_tree_is_summed_and_bounded() {
        let board = Board::new("own");
        board.tally().item(5);
        board.tally().vanished();
        let child = WarmProgress {
            nodes: 3,
            nodes_done: 2,
            items: 7,
            bytes: 70,
            reasons: vec!["x".repeat(1000), "y".into()],
            slowest: Some(Laggard {
                node: "below".into(),
                items: 1,
            }),
            ..WarmProgress::default()
        };
        assert!(child.check().is_err(), "a long reason");
        board.hear(0, News::Progress(child));
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
        let (news, last) = board.news(&mut ticks).await;
        assert!(last && matches!(&news[0], News::Warmed(nodes) if *nodes == [NodeId::Member(4)]));
    }

    #[test]
    fn a_node_that_failed_at_anything_is_not_warm() {
        let board = Board::new("own");
        board.tally().failed("no such device");
        board.own_done(NodeId::Member(0));
        assert!(board.lock().warmed.is_empty());
        assert_eq!(board.sum().nodes_done, 1);
    }
}
