//! What one job does with one dataset on this node, and what it is told.
//!
//! The dataset's reader calls [`JobActivity::opened`], [`JobActivity::waits`], [`JobActivity::read`]
//! and [`JobActivity::closed`], and takes tokens from [`JobActivity::tokens`]; each second the
//! steering collects [`Activities::reports`] and gives what was decided to [`JobActivity::apply`].
//!
//! Locks: each activity has one, held for the arithmetic of one call; the table has one that is taken
//! before any activity's.

mod report;
mod table;
#[cfg(test)]
mod tests;

pub use report::ActivityReport;
pub use table::Activities;

use super::identity::{Process, Reader};
use super::meter::Recent;
use super::name::JobName;
use super::progress::{EpochCounts, ItemOutcome, Ordinals, Progress};
use super::rate::Loader;
use super::tokens::{RateLimit, Tokens};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the decision says about a job on this node.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Terms {
    /// What it may read of the origin here.
    pub limit: RateLimit,
    /// On how many nodes it reads; 0 counts as 1.
    pub nodes: u32,
    /// The dataset's items, if its index or a walk has said. Divided by `nodes` that is an epoch here.
    pub items: Option<u64>,
}

/// Processes of one job that are watched on one node: of more, the first ones. They are anchors (one
/// for each step or script), so even a few tell whether the job lives.
const PROCESSES_MAX: usize = 64;

/// One job's reading of one dataset on this node.
#[derive(Debug)]
pub struct JobActivity {
    /// `None`: readers that belong to no job, together.
    job: Option<JobName>,
    dataset: Arc<str>,
    tokens: Arc<Tokens>,
    ordinals: Arc<Mutex<Ordinals>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    progress: Progress,
    loader: Loader,
    /// All that was read, whatever it came from.
    throughput: Recent,
    /// What was charged.
    remote: Recent,
    terms: Terms,
    processes: Vec<Process>,
    /// Of those, how many ran when they were last looked at.
    running: u32,
    /// When something last happened here.
    active: Instant,
    /// What the report before said.
    reported: Reported,
}

#[derive(Debug, Clone, Copy)]
struct Reported {
    at: Instant,
    charged: u64,
    waited: Duration,
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
            state: Mutex::new(State {
                progress: Progress::new(),
                loader: Loader::new(now),
                throughput: Recent::new(now),
                remote: Recent::new(now),
                terms: Terms::default(),
                processes: Vec::new(),
                running: 0,
                active: now,
                reported: Reported {
                    at: now,
                    charged: 0,
                    waited: Duration::ZERO,
                },
            }),
        }
    }

    /// The job; `None` for all readers that belong to none.
    #[must_use]
    pub fn job(&self) -> Option<&JobName> {
        self.job.as_ref()
    }

    /// The dataset's name.
    #[must_use]
    pub fn dataset(&self) -> &Arc<str> {
        &self.dataset
    }

    /// What it may read of the origin on this node.
    #[must_use]
    pub fn tokens(&self) -> &Arc<Tokens> {
        &self.tokens
    }

    /// A process of it has opened an item of the dataset.
    pub fn opened(&self, now: Instant) {
        self.state.lock().active = now;
    }

    /// The thread `reader` waits for bytes of the dataset from now on, until what this gives is
    /// dropped. To be called for each request that is not answered at once from memory: how many of
    /// the job's threads wait says whether data is its bottleneck.
    #[must_use = "the wait ends when this is dropped"]
    pub fn waits(self: &Arc<Self>, reader: u32, now: Instant) -> Waiting {
        let mut state = self.state.lock();
        state.active = now;
        state.loader.begin(reader, now);
        drop(state);
        Waiting {
            activity: Arc::clone(self),
            reader,
        }
    }

    /// An item was read whole: once for each item and open, when its last byte was given out.
    /// `item`: a hash of its path and stripe, the same on every read; `started`: when its first byte
    /// was asked for.
    pub fn read(&self, item: u64, outcome: ItemOutcome, started: Instant, now: Instant) {
        let counts = EpochCounts::of_read(outcome);
        self.count(item, &counts, now, |loader| {
            loader.read(outcome.bytes, outcome.cached, started, now);
        });
    }

    /// An item was closed. `unread`: no byte of it was asked for since it was opened, so that the
    /// kernel's page cache has answered its reader, who is taken to have read all its `bytes`.
    pub fn closed(&self, item: u64, bytes: u64, unread: bool, now: Instant) {
        if unread {
            let counts = EpochCounts::of_page_cache(bytes);
            self.count(item, &counts, now, |loader| {
                loader.read(bytes, true, now, now);
            });
        } else {
            self.state.lock().active = now;
        }
    }

    fn count(&self, item: u64, counts: &EpochCounts, now: Instant, load: impl FnOnce(&mut Loader)) {
        let ordinal = self.ordinals.lock().of(item);
        let mut state = self.state.lock();
        state.active = now;
        state.progress.read(ordinal, counts);
        state.throughput.add(counts.bytes, now);
        state.remote.add(counts.charged_bytes, now);
        load(&mut state.loader);
    }

    /// What was decided. The rate holds at once, also for those who wait for tokens.
    pub fn apply(&self, terms: Terms) {
        if self.tokens.limit() != terms.limit {
            self.tokens.set_limit(terms.limit);
        }
        let mut state = self.state.lock();
        let expected = terms.items.map(|items| items.div_ceil(nodes(&terms)));
        state.progress.expect(expected, terms.nodes.max(1));
        state.terms = terms;
    }

    /// The last epochs that ended here, oldest first: at most 1,000.
    #[must_use]
    pub fn epochs(&self) -> Vec<EpochCounts> {
        self.state.lock().progress.ended().copied().collect()
    }

    /// A process of the job is here.
    fn seen(&self, reader: &Reader) {
        let mut state = self.state.lock();
        let known = state.processes.contains(&reader.anchor);
        if !known && state.processes.len() < PROCESSES_MAX {
            state.processes.push(reader.anchor);
            state.running += 1;
        }
    }
}

fn nodes(terms: &Terms) -> u64 {
    u64::from(terms.nodes.max(1))
}

/// A thread that waits for bytes, until this is dropped.
#[derive(Debug)]
pub struct Waiting {
    activity: Arc<JobActivity>,
    reader: u32,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.activity
            .state
            .lock()
            .loader
            .end(self.reader, Instant::now());
    }
}
