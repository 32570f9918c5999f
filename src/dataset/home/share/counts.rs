//! The references of pipelines to a dataset's items, as their owners tell them. See [`crate::pipeline`].

use super::{GivenUp, Share, ShareState};
use crate::model::{CountBatch, CountReport, OwnerId};
use copperfs_policy::references::{Batch, CountBoard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long an owner that sends nothing counts as live. Owners send something every half second.
const OWNER_TIMEOUT: Duration = Duration::from_secs(3);
/// The number of items whose counts change under one lock: less than a millisecond.
const SLICE_ITEMS: usize = 1024;

/// See the module.
#[derive(Default)]
pub(super) struct Counts {
    /// By the keys of items.
    board: CountBoard<OwnerId, u64>,
    heard: HashMap<OwnerId, Instant>,
    /// Reads of items that were held, or on their way.
    pub(super) hits: u64,
    /// Reads of items that were read from storage.
    pub(super) misses: u64,
}

impl Share {
    /// Applies the counts of an owner. Returns the owner's state after it.
    pub(in crate::dataset::home) fn count(&self, batch: &CountBatch, now: Instant) -> u64 {
        let mut changed = Vec::with_capacity(batch.counts.len());
        let step = Batch {
            from: batch.from,
            to: batch.to,
            counts: &batch.counts,
        };
        let mut state = self.state.lock();
        state.counts.heard.insert(batch.owner, now);
        let reached = state.counts.board.apply(batch.owner, step, &mut changed);
        drop(state);
        self.follow(&changed);
        reached
    }

    /// Removes the counts of owners that are gone.
    pub(in crate::dataset::home) fn expire_owners(&self, now: Instant) {
        let mut changed = Vec::new();
        let mut state = self.state.lock();
        let Counts { board, heard, .. } = &mut state.counts;
        let silent = |heard: &mut Instant| now.duration_since(*heard) > OWNER_TIMEOUT;
        for (owner, _) in heard.extract_if(|_, heard| silent(heard)) {
            tracing::info!(
                dataset = self.name,
                rank = owner.rank,
                "the owner of pipelines is gone"
            );
            board.forget(&owner, &mut changed);
        }
        drop(state);
        self.follow(&changed);
    }

    /// Evicts the items that were declared and have no references.
    pub(in crate::dataset::home) fn flush(self: &Arc<Self>) -> (GivenUp, u64) {
        let mut state = self.state.lock();
        let before = state.cache.stats().used;
        let gone = state.cache.flush();
        let bytes = before - state.cache.stats().used;
        (self.give_up(&state, gone), bytes)
    }

    /// Sets the counts of items to what the board says now.
    fn follow(&self, changed: &[u64]) {
        for slice in changed.chunks(SLICE_ITEMS) {
            let state = &mut *self.state.lock();
            for key in slice {
                state.cache.set_count(*key, state.counts.board.total(key));
            }
        }
    }
}

impl ShareState {
    /// Chooses whether items are kept by their counts.
    pub(super) fn keep_by_count(&mut self, by_count: bool) {
        let was_by_count = self.cache.is_by_count();
        self.cache.keep_by_count(by_count);
        if by_count && !was_by_count {
            for (key, total) in self.counts.board.totals() {
                self.cache.set_count(key, total);
            }
        }
    }

    pub(super) fn count_report(&self) -> Option<CountReport> {
        let bytes = self.cache.bytes_by_count()?;
        Some(CountReport {
            referenced: bytes.referenced,
            unreferenced: bytes.unreferenced,
            undeclared: bytes.undeclared,
            hits: self.counts.hits,
            misses: self.counts.misses,
            evicted: self.cache.stats().evicted,
        })
    }
}
