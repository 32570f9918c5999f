//! The parent's side of a stream, which receives a child's reports and sends it decisions and heartbeats;
//! the reports of the nodes below, and the frames to the node above and to children.

use super::super::allocator::{Allocator, NODE_TIMEOUT};
use super::super::counter::CountProgress;
use super::{BudgetAgent, Role, Shared, frame};
use crate::model::{Decision, DecisionFrame, NodeReport, ReportFrame, Serial, decode, encode};
use bytes::Bytes;
use copperfs_overlay::{Failure, FailureKind, LatestReceiver, LatestSender};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of nodes whose reports are kept: more than any deployed member list has. Reports of
/// further nodes are ignored.
const NODES_MAX: usize = 65_536;

#[derive(Default)]
pub(super) struct State {
    /// The newest report of every node below, by rank, and the time at which it arrived.
    below: BTreeMap<u32, (NodeReport, Duration)>,
    /// The allocator, while it is this node's turn.
    pub(super) allocator: Option<Allocator>,
    /// How often this process has become the allocator.
    pub(super) allocators_begun: u64,
    /// The progress of each running count, by dataset id.
    pub(super) counts: BTreeMap<u64, Arc<CountProgress>>,
}

impl BudgetAgent {
    /// Serves a stream of `child`, whose parent in `tree` is this node, until the child is gone, or until this
    /// node uses another tree. The overlay's service calls this.
    ///
    /// # Errors
    /// `Unavailable` if this node uses another tree, and so should the child; `Corrupt` if a frame cannot be
    /// decoded.
    pub async fn service_steer(
        &self,
        child: String,
        tree: usize,
        mut up: LatestReceiver,
        down: LatestSender,
    ) -> Result<(), Failure> {
        self.begin();
        let shared = &self.0;
        let mut status = shared.status.subscribe();
        let mut decision = shared.decision.subscribe();
        // The decision that the child holds.
        let mut held = Serial::default();
        let mut sent = None;
        loop {
            let current = *status.borrow_and_update();
            if current.tree != tree {
                let (name, tree) = (&shared.config.name, current.tree);
                let why = format!("{name} looks for the allocator in tree {tree}");
                return Err(Failure::new(FailureKind::Unavailable, why));
            }
            let frame = (current.heartbeat, decision.borrow_and_update().serial, held);
            // While this node searches, its last heartbeat proves nothing, so the child must not receive it.
            let alive = current.role != Role::Searching;
            if alive && sent != Some(frame) {
                sent = Some(frame);
                if down.send(shared.decision_frame(held)).is_err() {
                    return Ok(());
                }
            }
            tokio::select! {
                frame = up.recv() => {
                    let Some(frame) = frame else { return Ok(()) };
                    let frame: ReportFrame = decode(&frame).map_err(|error| {
                        let why = format!("the report of {child} cannot be read: {error}");
                        Failure::new(FailureKind::Corrupt, why)
                    })?;
                    // Decisions that the child holds are not sent to it again.
                    held = frame.serial;
                    shared.record(frame);
                }
                // Their senders live as long as this agent.
                Ok(()) = status.changed() => {}
                Ok(()) = decision.changed() => {}
                () = down.ended() => return Ok(()),
            }
        }
    }
}

impl Shared {
    /// Records a frame from a node below.
    fn record(&self, frame: ReportFrame) {
        let now = self.now();
        if let Some(decision) = frame.decision {
            self.adopt(&decision);
        }
        let mut state = self.state.lock();
        let mut news = false;
        for report in frame.reports {
            let known = state.below.get(&report.rank);
            // The same report may arrive twice after a node has moved to another parent.
            let old = known
                .is_some_and(|(known, _)| known.boot == report.boot && known.count >= report.count);
            if old || (known.is_none() && state.below.len() >= NODES_MAX) {
                continue;
            }
            // A new job waits for its terms, so its report is forwarded early.
            news |= known.is_none_or(|(known, _)| known.jobs.len() != report.jobs.len());
            if let Some(allocator) = &mut state.allocator {
                allocator.record(report.clone(), now);
            }
            state.below.insert(report.rank, (report, now));
        }
        drop(state);
        self.allocator_work.notify_one();
        if news {
            self.report_soon.notify_one();
        }
    }

    /// Returns this node's own report, once its source is set.
    pub(super) fn own_report(&self) -> Option<NodeReport> {
        self.report.get().map(|report| report())
    }

    /// Encodes the frame to the node above, which holds the decision `above`.
    pub(super) fn report_frame(&self, above: Serial) -> Bytes {
        let now = self.now();
        let mut reports: Vec<NodeReport> = self.own_report().into_iter().collect();
        let mut state = self.state.lock();
        // A node that has moved elsewhere is reported from there.
        let live = |heard: Duration| now.saturating_sub(heard) < NODE_TIMEOUT;
        state.below.retain(|_, (_, heard)| live(*heard));
        reports.extend(state.below.values().map(|(report, _)| report.clone()));
        drop(state);
        let (serial, decision) = self.unless_held(above);
        frame::fitting(ReportFrame {
            serial,
            decision,
            reports,
        })
    }

    /// Encodes the frame to a child, which holds the decision `below`.
    fn decision_frame(&self, below: Serial) -> Bytes {
        let (serial, decision) = self.unless_held(below);
        let heartbeat = self.status.borrow().heartbeat;
        let frame = DecisionFrame {
            heartbeat,
            serial,
            decision,
        };
        encode(&frame).into()
    }

    /// Returns the serial of this node's decision, and the decision itself unless a node that holds
    /// `held` has it or a newer one.
    fn unless_held(&self, held: Serial) -> (Serial, Option<Box<Decision>>) {
        let decision = self.decision.borrow();
        let newer = decision.serial > held;
        let sent = newer.then(|| Box::new(Decision::clone(&decision)));
        (decision.serial, sent)
    }

    /// Follows `decision` if it is newer than this node's. This node's allocator continues from it.
    pub(super) fn adopt(&self, decision: &Decision) {
        let mut state = self.state.lock();
        if let Some(allocator) = &mut state.allocator {
            allocator.adopt(decision, self.now());
        }
        drop(state);
        if self.publish(decision) {
            // Tells the node above that it need not send this decision again.
            self.report_soon.notify_one();
        }
    }
}
