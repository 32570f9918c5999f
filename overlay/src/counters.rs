//! What this node has asked and answered, as metrics.

use crate::wire::message::Request;
use copperfs_metrics::{Counter, Histogram, Registry, Unit};

/// A snapshot of [`crate::Overlay::counters`]. Bytes are frames as they travel, headers included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Requests sent to the parent.
    pub upstream_requests: u64,
    /// Bytes of answers from the parent.
    pub upstream_bytes_received: u64,
    /// Requests of children that were answered.
    pub downstream_requests: u64,
    /// Bytes of answers to children.
    pub downstream_bytes_sent: u64,
    /// Blocks from others whose hash was right.
    pub blocks_verified: u64,
    /// Blocks from others whose hash was wrong.
    pub wrong_blocks: u64,
    /// Requests and reads that went on over another connection after theirs was lost.
    pub replays: u64,
    /// Items asked of their homes.
    pub items_asked: u64,
    /// Bytes of the homes' answers.
    pub item_bytes_received: u64,
    /// Items that others have asked of this node, and that were answered.
    pub items_answered: u64,
    /// Bytes of these answers.
    pub item_bytes_sent: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Meters {
    pub(crate) upstream_requests: Counter,
    pub(crate) upstream_bytes_received: Counter,
    pub(crate) downstream_requests: Counter,
    pub(crate) downstream_bytes_sent: Counter,
    pub(crate) blocks_verified: Counter,
    pub(crate) wrong_blocks: Counter,
    pub(crate) replays: Counter,
    pub(crate) items_asked: Counter,
    pub(crate) item_bytes_received: Counter,
    pub(crate) items_answered: Counter,
    pub(crate) item_bytes_sent: Counter,
    /// Times to the beginning of an answer of the parent, by [`OPERATIONS`].
    parent: [Histogram; OPERATIONS.len()],
    /// Times to the answer of a home.
    pub(crate) home: Histogram,
}

/// Questions to a parent whose latency is measured.
const OPERATIONS: [&str; 7] = [
    "list",
    "stat",
    "read",
    "read_range",
    "bundle",
    "xattrs",
    "usage",
];

impl Meters {
    /// Declares all of them in `registry`.
    pub(crate) fn declare(&self, registry: &Registry) {
        use Unit::{Bytes, Count};
        let upstream = registry.scope("upstream");
        let help = "Requests sent to the parent.";
        upstream.counter("requests", Count, help, &self.upstream_requests);
        let help = "Bytes of frames received from the parent.";
        upstream.counter("received_bytes", Bytes, help, &self.upstream_bytes_received);
        let downstream = registry.scope("downstream");
        let help = "Requests received from children and answered.";
        downstream.counter("requests", Count, help, &self.downstream_requests);
        let help = "Bytes of frames sent to children.";
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
        let latency = registry.scope("latency_seconds");
        let help = "Time from a question to a tier to the beginning of its answer.";
        let parent = latency.label("tier", "parent");
        for (name, histogram) in OPERATIONS.iter().zip(&self.parent) {
            parent.label("op", name).histogram("", help, histogram);
        }
        let home = latency.label("tier", "home").label("op", "item");
        home.histogram("", help, &self.home);
    }

    /// The latencies of the parent's answers to questions like `request`; `None` if they are not measured.
    pub(crate) fn parent(&self, request: &Request) -> Option<&Histogram> {
        let operation = match request {
            Request::List { .. } => 0,
            Request::Stat { .. } => 1,
            Request::Read(_) => 2,
            Request::ReadRange(_) => 3,
            Request::Bundle(_) => 4,
            Request::Xattrs { .. } => 5,
            Request::Usage { .. } => 6,
            _ => return None,
        };
        Some(&self.parent[operation])
    }

    pub(crate) fn snapshot(&self) -> Counters {
        Counters {
            upstream_requests: self.upstream_requests.get(),
            upstream_bytes_received: self.upstream_bytes_received.get(),
            downstream_requests: self.downstream_requests.get(),
            downstream_bytes_sent: self.downstream_bytes_sent.get(),
            blocks_verified: self.blocks_verified.get(),
            wrong_blocks: self.wrong_blocks.get(),
            replays: self.replays.get(),
            items_asked: self.items_asked.get(),
            item_bytes_received: self.item_bytes_received.get(),
            items_answered: self.items_answered.get(),
            item_bytes_sent: self.item_bytes_sent.get(),
        }
    }
}
