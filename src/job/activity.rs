//! One job's reading of one dataset on this node.
//!
//! The dataset's reader calls [`JobActivity::opened`], [`JobActivity::waits`], [`JobActivity::read`]
//! and [`JobActivity::closed`], and takes tokens from [`JobActivity::tokens`]. Each second the budget
//! agent collects [`Activities::reports`]; decisions are applied by [`JobActivity::apply`].
//!
//! Locks: each activity has one, held for the arithmetic of one call. The table has one that is taken
//! before any activity's.

mod report;
mod table;
#[cfg(test)]
mod tests;

pub use table::Activities;

use super::identity::{Process, Reader};
use super::meter::Recent;
use super::name::JobName;
use super::progress::{EpochCounts, ItemOutcome, Ordinals, Progress};
use super::rate::RateEstimator;
use super::tokens::{RateLimit, Tokens};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The part of a decision that concerns a job on this node.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Terms {
    /// The limit on its reads from storage on this node.
    pub limit: RateLimit,
    /// The number of nodes on which it reads. 0 counts as 1.
    pub nodes: u32,
    /// The number of items of the dataset, once counted. An epoch on this node is this divided by
    /// `nodes`.
    pub items: Option<u64>,
}

/// The maximum number of processes of a job that are watched on a node. They are outermost processes (one
/// for each step or script), so the first ones suffice to tell whether the job is alive.
const PROCESSES_MAX: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct JobActivity {
    /// `None`: all readers that belong to no job.
    job: Option<JobName>,
    dataset: Arc<str>,
    tokens: Arc<Tokens>,
    ordinals: Arc<Mutex<Ordinals>>,
    measured: Mutex<Measured>,
}

#[derive(Debug)]
struct Measured {
    progress: Progress,
    estimator: RateEstimator,
    /// Bytes read, from any source.
    throughput: Recent,
    /// Bytes charged.
    remote: Recent,
    processes: Vec<Process>,
    /// The time of the last event.
    active: Instant,
    /// The time of the last report, and the total time of waiting for tokens until then.
    reported: (Instant, Duration),
}

impl JobActivity {
    fn new(
        job: Option<JobName>,
        dataset: Arc<str>,
        ordinals: Arc<Mutex<Ordinals>>,
        now: Instant,
    ) -> Self {
        Self {
            job,
            dataset,
            tokens: Tokens::new(RateLimit::Unlimited),
            ordinals,
            measured: Mutex::new(Measured {
                progress: Progress::default(),
                estimator: RateEstimator::new(now),
                throughput: Recent::new(now),
                remote: Recent::new(now),
                processes: Vec::new(),
                active: now,
                reported: (now, Duration::ZERO),
            }),
        }
    }

    /// Returns the job. `None`: all readers that belong to no job.
    #[must_use]
    pub fn job(&self) -> Option<&JobName> {
        self.job.as_ref()
    }

    /// Returns the name of the dataset.
    #[must_use]
    pub fn dataset(&self) -> &Arc<str> {
        &self.dataset
    }

    /// Returns the job's tokens for reads from storage on this node.
    #[must_use]
    pub fn tokens(&self) -> &Arc<Tokens> {
        &self.tokens
    }

    /// Records that a process of the job has opened an item.
    pub fn opened(&self, now: Instant) {
        self.measured.lock().active = now;
    }

    /// Records that the thread `reader` waits for bytes, until the result is dropped. Call it for each
    /// request that is not answered from memory at once: the number of waiting threads tells whether
    /// data is the job's bottleneck.
    #[must_use = "the wait ends when this is dropped"]
    pub fn waits(self: &Arc<Self>, reader: u32, now: Instant) -> Waiting {
        let mut measured = self.measured.lock();
        measured.active = now;
        measured.estimator.begin(reader, now);
        drop(measured);
        Waiting {
            activity: Arc::clone(self),
            reader,
        }
    }

    /// Records that an item was read whole: once for each item and open, after its last byte. `item`: a
    /// hash of its path and stripe, the same for every read; `started`: when its first byte was
    /// requested.
    pub fn read(&self, item: u64, outcome: ItemOutcome, started: Instant, now: Instant) {
        let counts = EpochCounts::of_read(outcome);
        self.count(item, &counts, now, |estimator| {
            estimator.read(outcome.bytes, outcome.cached, started, now);
        });
    }

    /// Records that an item was closed. `unread`: no byte of it was requested since it was opened, so the
    /// kernel's page cache has answered its reader, which is assumed to have read all its `bytes`.
    pub fn closed(&self, item: u64, bytes: u64, unread: bool, now: Instant) {
        if unread {
            let counts = EpochCounts::of_page_cache(bytes);
            self.count(item, &counts, now, |estimator| {
                estimator.read(bytes, true, now, now);
            });
        } else {
            self.measured.lock().active = now;
        }
    }

    fn count(
        &self,
        item: u64,
        counts: &EpochCounts,
        now: Instant,
        estimate: impl FnOnce(&mut RateEstimator),
    ) {
        // Jobs on the same dataset share its numbers, so this lock is separate from the activity's.
        let ordinal = self.ordinals.lock().of(item);
        let mut measured = self.measured.lock();
        measured.active = now;
        measured.progress.read(ordinal, counts);
        measured.throughput.add(counts.bytes, now);
        measured.remote.add(counts.charged_bytes, now);
        estimate(&mut measured.estimator);
    }

    /// Applies a decision. The limit holds at once, also for readers that wait for tokens.
    pub fn apply(&self, terms: Terms) {
        if self.tokens.limit() != terms.limit {
            self.tokens.set_limit(terms.limit);
        }
        let nodes = terms.nodes.max(1);
        let expected = terms.items.map(|items| items.div_ceil(nodes.into()));
        self.measured.lock().progress.expect(expected, nodes);
    }

    /// Records that a process of the job reads here.
    fn observe(&self, reader: &Reader) {
        let processes = &mut self.measured.lock().processes;
        if !processes.contains(&reader.anchor) && processes.len() < PROCESSES_MAX {
            // The outermost process lives as long as the job, while loaders come and go.
            processes.push(reader.anchor);
        }
    }
}

/// A thread that waits for bytes, until this is dropped.
#[derive(Debug)]
pub struct Waiting {
    activity: Arc<JobActivity>,
    reader: u32,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut measured = self.activity.measured.lock();
        measured.estimator.end(self.reader, Instant::now());
    }
}
