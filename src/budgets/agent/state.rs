//! What a node knows of others, and the frames that it makes of that.

use super::super::allocator::{Allocator, NODE_GONE};
use super::{CountProgress, Inner};
use crate::model::{Counting, Decision, Down, NodeReport, Serial, Up};
use bytes::Bytes;
use copperfs_overlay::STEERING_BYTES_MAX;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Nodes whose reports are kept: more than any member list is deployed with. Others are passed over.
const NODES_MAX: usize = 65_536;

#[derive(Default)]
pub(super) struct State {
    /// The newest report of every node below, by rank, and when it came.
    below: BTreeMap<u32, (NodeReport, Duration)>,
    /// Where this node is the allocator.
    pub(super) allocator: Option<Allocator>,
    /// Allocators that this process has been.
    pub(super) reigns: u64,
    /// What is being counted, by dataset id.
    pub(super) counts: BTreeMap<u64, (String, Arc<CountProgress>)>,
}

impl State {
    pub(super) fn counting(&self) -> Vec<Counting> {
        let counts = self.counts.values();
        counts.map(|(name, progress)| progress.of(name)).collect()
    }
}

impl Inner {
    /// What a node below says.
    pub(super) fn heard(&self, up: Up) {
        let now = self.now();
        if let Some(held) = up.held {
            self.adopt(*held);
        }
        let mut state = self.state.lock();
        let mut news = false;
        for report in up.reports {
            let known = state.below.get(&report.rank);
            let old = known
                .is_some_and(|(known, _)| known.boot == report.boot && known.count >= report.count);
            if old || (known.is_none() && state.below.len() >= NODES_MAX) {
                continue;
            }
            news |= known.is_none_or(|(known, _)| known.jobs.len() != report.jobs.len());
            if let Some(allocator) = &mut state.allocator {
                allocator.heard(report.clone(), now);
            }
            state.below.insert(report.rank, (report, now));
        }
        drop(state);
        self.work.notify_one();
        if news {
            self.soon.notify_one();
        }
    }

    /// What this node reports itself, if it can yet.
    pub(super) fn own_report(&self) -> Option<NodeReport> {
        self.report.get().map(|report| report())
    }

    /// What is to be said to the node above, which holds the decision `above`.
    pub(super) fn up_frame(&self, above: Serial) -> Bytes {
        let now = self.now();
        let own = self.own_report();
        let mut state = self.state.lock();
        state
            .below
            .retain(|_, (_, heard)| now.saturating_sub(*heard) < NODE_GONE);
        let mut reports: Vec<NodeReport> = own.into_iter().collect();
        reports.extend(state.below.values().map(|(report, _)| report.clone()));
        drop(state);
        let decision = Arc::clone(&self.decision.borrow());
        let mut up = Up {
            holds: decision.serial,
            held: (decision.serial > above).then(|| Box::new(Decision::clone(&decision))),
            reports,
        };
        let mut frame = up.encode();
        // A frame has room for thousands of nodes. Beyond that the history of epochs goes first, which is
        // for people, then the last nodes.
        if frame.len() > STEERING_BYTES_MAX {
            for job in up.reports.iter_mut().flat_map(|report| &mut report.jobs) {
                job.epochs.clear();
            }
            frame = up.encode();
        }
        while frame.len() > STEERING_BYTES_MAX && up.reports.len() > 1 {
            tracing::warn!(
                nodes = up.reports.len(),
                "more reports than a frame has room for"
            );
            up.reports.truncate(up.reports.len() / 2);
            frame = up.encode();
        }
        frame.into()
    }

    /// What is to be said to a child, which holds the decision `below`.
    pub(super) fn down_frame(&self, below: Serial) -> Bytes {
        let decision = Arc::clone(&self.decision.borrow());
        let down = Down {
            beat: self.pulse.borrow().beat,
            holds: decision.serial,
            decision: (decision.serial > below).then(|| Box::new(Decision::clone(&decision))),
        };
        down.encode().into()
    }

    /// Follows `decision` if it is newer than what this node holds; its allocator takes up from it.
    pub(super) fn adopt(&self, decision: Decision) {
        let mut state = self.state.lock();
        if let Some(allocator) = &mut state.allocator {
            allocator.heard_decision(&decision, self.now());
        }
        drop(state);
        let newer = self.decision.send_if_modified(|held| {
            let newer = decision.serial > held.serial;
            if newer {
                *held = Arc::new(decision);
            }
            newer
        });
        if newer {
            // The node above hears what is held here, and need not say it again.
            self.soon.notify_one();
        }
    }
}
