//! What this node has asked and answered, as cheap atomics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    pub(crate) upstream_requests: AtomicU64,
    pub(crate) upstream_bytes_received: Arc<AtomicU64>,
    pub(crate) downstream_requests: AtomicU64,
    pub(crate) downstream_bytes_sent: AtomicU64,
    pub(crate) blocks_verified: AtomicU64,
    pub(crate) wrong_blocks: AtomicU64,
    pub(crate) replays: AtomicU64,
    pub(crate) items_asked: AtomicU64,
    pub(crate) item_bytes_received: Arc<AtomicU64>,
    pub(crate) items_answered: AtomicU64,
    pub(crate) item_bytes_sent: AtomicU64,
}

impl Meters {
    pub(crate) fn snapshot(&self) -> Counters {
        Counters {
            upstream_requests: self.upstream_requests.load(Ordering::Relaxed),
            upstream_bytes_received: self.upstream_bytes_received.load(Ordering::Relaxed),
            downstream_requests: self.downstream_requests.load(Ordering::Relaxed),
            downstream_bytes_sent: self.downstream_bytes_sent.load(Ordering::Relaxed),
            blocks_verified: self.blocks_verified.load(Ordering::Relaxed),
            wrong_blocks: self.wrong_blocks.load(Ordering::Relaxed),
            replays: self.replays.load(Ordering::Relaxed),
            items_asked: self.items_asked.load(Ordering::Relaxed),
            item_bytes_received: self.item_bytes_received.load(Ordering::Relaxed),
            items_answered: self.items_answered.load(Ordering::Relaxed),
            item_bytes_sent: self.item_bytes_sent.load(Ordering::Relaxed),
        }
    }
}
