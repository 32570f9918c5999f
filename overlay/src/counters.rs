//! Counters and latencies of this node's traffic.

use crate::transport::LANES_MAX;
use crate::wire::message::Request;
use copperfs_metrics::{Counter, Histogram, Registry, Unit};

/// A node's traffic with other nodes. Bytes count whole frames, headers included.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests sent to the parent.
    pub upstream_requests: Counter,
    /// Bytes of answers from the parent.
    pub upstream_bytes_received: Counter,
    /// Requests for the bytes of files that were sent to roots past the trees.
    pub roots_asked: Counter,
    /// Bytes of their answers.
    pub root_bytes_received: Counter,
    /// Requests of children, and of nodes that ask this root past the trees, that were answered.
    pub downstream_requests: Counter,
    /// Bytes of these answers.
    pub downstream_bytes_sent: Counter,
    /// Received blocks whose hash was right.
    pub blocks_verified: Counter,
    /// Received blocks whose hash was wrong.
    pub wrong_blocks: Counter,
    /// Requests that were repeated after their connection was lost.
    pub replays: Counter,
    /// Items requested from their homes.
    pub items_asked: Counter,
    /// Bytes of the homes' answers.
    pub item_bytes_received: Counter,
    /// Items that other nodes have requested, and that were answered.
    pub items_answered: Counter,
    /// Bytes of these answers.
    pub item_bytes_sent: Counter,
    /// Times until an answer of the parent begins, by [`OPERATIONS`].
    parent_latencies: [Histogram; OPERATIONS.len()],
    /// Times until an answer of a home begins.
    pub(crate) home_latency: Histogram,
    /// Of the requests for items, those of each lane; one lane at least.
    lanes: Vec<LaneCounters>,
}

/// The traffic of one lane with homes and readers of items.
#[derive(Debug, Default)]
pub struct LaneCounters {
    /// Items requested from their homes.
    pub asked: Counter,
    /// Items that other nodes have requested, and that were answered.
    pub answered: Counter,
}

/// The names of lanes.
const LANES: [&str; LANES_MAX] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15",
];

/// Requests to a parent whose latency is measured.
const OPERATIONS: [&str; 7] = [
    "list",
    "stat",
    "read",
    "read_range",
    "bundle",
    "xattrs",
    "usage",
];

impl Counters {
    /// Those of a node with `lanes`, or of one without.
    pub(crate) fn new(lanes: usize) -> Self {
        Self {
            lanes: (0..lanes.max(1)).map(|_| LaneCounters::default()).collect(),
            ..Self::default()
        }
    }

    /// The counters of each lane. A node without lanes counts as one.
    #[must_use]
    pub fn lanes(&self) -> &[LaneCounters] {
        &self.lanes
    }

    /// Counts an item that `lane` has requested from its home.
    pub(crate) fn item_asked(&self, lane: usize) {
        self.items_asked.increment();
        if let Some(lane) = self.lanes.get(lane) {
            lane.asked.increment();
        }
    }

    /// Counts an item that `lane` has answered.
    pub(crate) fn item_answered(&self, lane: usize) {
        self.items_answered.increment();
        if let Some(lane) = self.lanes.get(lane) {
            lane.answered.increment();
        }
    }

    /// Declares all counters in `registry`.
    pub(crate) fn declare(&self, registry: &Registry) {
        use Unit::{Bytes, Count};
        let upstream = registry.scope("upstream");
        let help = "Requests sent to the parent.";
        upstream.counter("requests", Count, help, &self.upstream_requests);
        let help = "Bytes of frames received from the parent.";
        upstream.counter("received_bytes", Bytes, help, &self.upstream_bytes_received);
        let help = "Requests for bytes of files sent to roots past the trees.";
        upstream.counter("direct_requests", Count, help, &self.roots_asked);
        let help = "Bytes of frames received from roots past the trees.";
        upstream.counter(
            "direct_received_bytes",
            Bytes,
            help,
            &self.root_bytes_received,
        );
        let downstream = registry.scope("downstream");
        let help = "Requests received from children, and from homes that ask this root past the trees, and answered.";
        downstream.counter("requests", Count, help, &self.downstream_requests);
        let help = "Bytes of frames of these answers.";
        downstream.counter("sent_bytes", Bytes, help, &self.downstream_bytes_sent);
        let verify = registry.scope("verify");
        let help = "Blocks received from other nodes whose hash was right.";
        verify.counter("blocks", Count, help, &self.blocks_verified);
        let help = "Blocks received from other nodes whose hash was wrong; each was fetched again.";
        verify.counter("failures", Count, help, &self.wrong_blocks);
        let healing = registry.scope("healing");
        let help = "Requests that were repeated because their connection was lost.";
        healing.counter("replays", Count, help, &self.replays);
        let homes = registry.scope("homes");
        let help = "Items of datasets requested from their homes.";
        homes.counter("requests", Count, help, &self.items_asked);
        let help = "Bytes of frames received from homes.";
        homes.counter("received_bytes", Bytes, help, &self.item_bytes_received);
        let help = "Items of datasets requested by other nodes and answered.";
        homes.counter("answered", Count, help, &self.items_answered);
        let help = "Bytes of frames sent to readers of items.";
        homes.counter("sent_bytes", Bytes, help, &self.item_bytes_sent);
        let lanes = registry.scope("lanes");
        for (name, lane) in LANES.iter().zip(&self.lanes) {
            let scope = lanes.label("lane", name);
            let help = "Items of datasets that the lane has requested from their homes.";
            scope.counter("requests", Count, help, &lane.asked);
            let help = "Items of datasets that other nodes have requested from the lane and that were answered.";
            scope.counter("answered", Count, help, &lane.answered);
        }
        let latency = registry.scope("latency_seconds");
        let help = "Time from a question to a tier to the beginning of its answer.";
        let parent = latency.label("tier", "parent");
        for (name, histogram) in OPERATIONS.iter().zip(&self.parent_latencies) {
            parent.label("op", name).histogram("", help, histogram);
        }
        let home = latency.label("tier", "home").label("op", "item");
        home.histogram("", help, &self.home_latency);
    }

    /// The parent's latencies for requests of the same kind as `request`; `None` if they are not measured.
    pub(crate) fn parent_latency(&self, request: &Request) -> Option<&Histogram> {
        let operation = match request {
            Request::List(_) => 0,
            Request::Stat(_) => 1,
            Request::Read(_) => 2,
            Request::ReadRange(_) => 3,
            Request::Bundle(_) => 4,
            Request::Xattrs { .. } => 5,
            Request::Usage { .. } => 6,
            _ => return None,
        };
        Some(&self.parent_latencies[operation])
    }
}
