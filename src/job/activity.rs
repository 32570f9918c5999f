//! One job's reading of one dataset on this node.
//!
//! The dataset's reader calls [`JobActivity::opened`], [`JobActivity::waits`], [`JobActivity::read`]
//! and [`JobActivity::closed`], and takes tokens from [`JobActivity::tokens`]. Each second the budget
//! agent collects [`Activities::reports`]; decisions are applied by [`JobActivity::apply`].
//!
//! Locks: each activity has one, held for the arithmetic of one call. The table has one that is taken
//! before any activity's. The lock of the journal is the last one.

mod measured;
mod memory;
#[cfg(test)]
mod tests;

pub use memory::RememberedJobs;

use super::ENDED_AFTER;
use super::identity::{Proc, Process, Reader};
use super::journaled::{Clock, ItemRead, JobJournal, Record, TIME_STEP};
use super::name::JobName;
use super::progress::{ItemOutcome, Ordinals};
use super::tokens::Tokens;
use crate::journal::JournalPart;
use crate::model::{JobReport, UNATTRIBUTED};
use copperfs_policy::Mode;
use measured::Measured;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// The part of a decision that concerns a job on this node.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Terms {
    /// The limit on its reads from storage on this node, in bytes per second. `None`: no limit.
    pub limit: Option<u64>,
    /// The number of nodes on which it reads. 0 counts as 1.
    pub nodes: u32,
    /// The number of items of the dataset, once counted. An epoch on this node is this divided by
    /// `nodes`.
    pub items: Option<u64>,
    /// How its look-ups are answered.
    pub mode: Mode,
}

/// The number of epochs in a report: enough for a table, and few to send.
const EPOCHS_REPORTED: usize = 16;

/// The maximum number of pairs of job and dataset on a node: more than a node runs at a time, and few
/// enough for one report. When the table is full, the pair that was idle the longest is forgotten. It
/// starts again with its next read.
const ACTIVITIES_MAX: usize = 1024;

type Key = (Option<JobName>, Arc<str>);

/// See the module.
#[derive(Debug)]
pub struct JobActivity {
    /// `None`: all readers that belong to no job.
    pub job: Option<JobName>,
    /// Its name.
    pub dataset: Arc<str>,
    /// The job's tokens for reads from storage on this node.
    pub tokens: Arc<Tokens>,
    /// The observed items of the dataset, shared with other jobs that read it.
    items: Arc<DatasetItems>,
    journal: Option<JobJournal>,
    measured: Mutex<Measured>,
}

/// The observed items of a dataset on this node.
#[derive(Debug)]
struct DatasetItems {
    /// Its number in the journal.
    table: u32,
    /// Jobs on the same dataset share the numbers, so this lock is separate from an activity's.
    ordinals: Mutex<Ordinals>,
}

impl JobActivity {
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
        let activity = Arc::clone(self);
        Waiting { activity, reader }
    }

    /// Records that an item was read whole: once for each item and open, after its last byte. `item`: a
    /// hash of its path and stripe, the same for every read; `started`: when its first byte was
    /// requested.
    pub fn read(&self, item: u64, outcome: ItemOutcome, started: Instant, now: Instant) {
        self.count(item, ItemRead::Answered(outcome), started, now);
    }

    /// Records that an item was closed. `unread`: no byte of it was requested since it was opened, so the
    /// kernel's page cache has answered its reader, which is assumed to have read all its `bytes`.
    pub fn closed(&self, item: u64, bytes: u64, unread: bool, now: Instant) {
        if unread {
            self.count(item, ItemRead::PageCached(bytes), now, now);
        } else {
            self.measured.lock().active = now;
        }
    }

    /// Records that an item was read whole while the job is measured without a cache. It counts in no epoch.
    pub fn read_uncached(&self, outcome: ItemOutcome, now: Instant) {
        let (bytes, charged) = (outcome.bytes, outcome.charged);
        let mut measured = self.measured.lock();
        self.tell(&mut measured, now, |id| Record::Uncached {
            id,
            bytes,
            charged,
        });
        measured.read_uncached(bytes, charged, now);
    }

    /// Records that the job has read bytes from storage with its own credentials. They use its tokens up, so
    /// that its next reads wait longer.
    pub fn read_by_itself(&self, bytes: u64, now: Instant) {
        self.tokens.charge(bytes);
        let mut measured = self.measured.lock();
        self.tell(&mut measured, now, |id| Record::Own { id, bytes });
        measured.read_by_itself(bytes, now);
    }

    fn count(&self, item: u64, read: ItemRead, started: Instant, now: Instant) {
        let counts = read.counts();
        let item = self.number_of(item);
        let mut measured = self.measured.lock();
        self.tell(&mut measured, now, |id| Record::Read { id, item, read });
        measured.read(item, &counts, now);
        let cached = counts.hit_items > 0;
        let estimator = &mut measured.estimator;
        if let Some(end) = estimator.read(counts.bytes, cached, started, now) {
            self.tell(&mut measured, now, |id| Record::Window { id, end });
        }
    }

    fn number_of(&self, item: u64) -> Option<u32> {
        let table = self.items.table;
        let added = |number, tag| {
            if let Some(journal) = &self.journal {
                journal.put(&Record::Item { table, number, tag });
            }
        };
        self.items.ordinals.lock().of(item, added)
    }

    /// Tells the journal of an event at `now`. `measured` is this activity's.
    fn tell(&self, measured: &mut Measured, now: Instant, record: impl Fn(u32) -> Record<'static>) {
        let Some(journal) = &self.journal else {
            return;
        };
        let id = journal.id;
        if now.saturating_duration_since(measured.told) >= TIME_STEP {
            measured.told = now;
            let at = journal.clock.ms(now);
            journal.put(&Record::Time { id, at });
        }
        journal.put(&record(id));
    }

    /// Returns how its look-ups are answered now.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.measured.lock().mode
    }

    /// Applies a decision. The limit holds at once, also for readers that wait for tokens.
    pub fn apply(&self, terms: Terms) {
        if self.tokens.limit() != terms.limit {
            self.tokens.set_limit(terms.limit);
        }
        let nodes = terms.nodes.max(1);
        let expected = terms.items.map(|items| items.div_ceil(nodes.into()));
        let mut measured = self.measured.lock();
        measured.mode = terms.mode;
        if measured.progress.expect(expected, nodes)
            && let Some(journal) = &self.journal
        {
            let (id, items) = (journal.id, expected);
            journal.put(&Record::Expects { id, items, nodes });
        }
    }

    /// Records that a process of the job reads here.
    fn observe(&self, reader: &Reader) {
        let process = reader.anchor;
        let new = self.measured.lock().observe(process);
        if new && let Some(journal) = &self.journal {
            let id = journal.id;
            journal.put(&Record::Process { id, process });
        }
    }

    /// Reports on the job. Waiting for tokens is measured from report to report, so there must be one
    /// caller only. Not for a thread that answers requests, because it looks up in `proc` which of the
    /// job's processes run.
    fn report(&self, proc: &Proc, now: Instant) -> JobReport {
        // Look processes up without the lock, because a read of `/proc` may block.
        let processes = self.measured.lock().processes.clone();
        let gone = processes.into_iter().filter(|one| !proc.runs(*one));
        let gone: Vec<Process> = gone.collect();
        let (waited, allowed) = (self.tokens.waited(), self.tokens.limit());
        let mut measured = self.measured.lock();
        measured.processes.retain(|one| !gone.contains(one));
        let (last, waited_before) = std::mem::replace(&mut measured.reported, (now, waited));
        let passed = now.saturating_duration_since(last);
        let throttled = match passed.is_zero() {
            true => 0.0,
            false => waited
                .saturating_sub(waited_before)
                .div_duration_f64(passed),
        };
        // A job without processes may still read through files that other processes have inherited.
        let idle = now.saturating_duration_since(measured.active);
        let over = measured.processes.is_empty() && measured.estimator.waiting() == 0;
        let throughput = whole(measured.throughput.rate(now));
        let remote_io = whole(measured.remote.rate(now));
        let estimate = measured.estimator.estimate();
        let job = self.job.as_ref();
        let progress = &measured.progress;
        let (total, current, ended) = (progress.total(), &progress.epoch, &progress.ended);
        let first = progress.number.saturating_sub(ended.len() as u64);
        let epochs = (first..).zip(ended);
        let epochs = epochs.skip(ended.len().saturating_sub(EPOCHS_REPORTED));
        JobReport {
            job: job.map_or(UNATTRIBUTED, JobName::as_str).to_owned(),
            dataset: self.dataset.to_string(),
            epoch: small(progress.number),
            items: current.items,
            bytes: current.bytes,
            hit_bytes: current.hit_bytes,
            admitted_bytes: current.admitted_bytes,
            total_bytes: total.bytes,
            charged_bytes: total.charged_bytes,
            probe_bytes: measured.probe_bytes,
            own_bytes: measured.own_bytes,
            throughput,
            remote_io,
            allowed,
            throttled: short(throttled.min(1.0)),
            waited_s: waited.as_secs_f32(),
            ideal_rate: estimate.map(|estimate| whole(estimate.rate)),
            confidence: estimate.map_or(0.0, |estimate| short(estimate.confidence)),
            bound: estimate.is_some_and(|estimate| estimate.bound),
            irregular: progress.irregular(),
            ended: over && idle > ENDED_AFTER,
            epochs: epochs
                .map(|(number, epoch)| (small(number), epoch.bytes, epoch.hit_bytes))
                .collect(),
        }
    }
}

/// The activities of all jobs on this node.
#[derive(Debug, Default)]
pub struct Activities {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    of: HashMap<Key, Arc<JobActivity>>,
    /// The number of the next activity, and of the next dataset.
    next: u32,
    journal: Option<(JournalPart, Clock)>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(&self.of).finish()
    }
}

impl Activities {
    /// Returns the activity of `reader`'s job on `dataset`, and creates it on the first open. Readers
    /// without a job share one activity for each dataset. The caller keeps it with the open file.
    #[must_use]
    pub fn of(&self, reader: Option<&Reader>, dataset: &str, now: Instant) -> Arc<JobActivity> {
        let job = reader.and_then(|reader| reader.job.clone());
        let mut table = self.table.lock();
        let key = (job, Arc::from(dataset));
        let activity = match table.of.get(&key) {
            Some(activity) => Arc::clone(activity),
            None => table.add(key, now),
        };
        drop(table);
        if let Some(reader) = reader.filter(|reader| reader.job.is_some()) {
            activity.observe(reader);
        }
        activity
    }

    /// Returns the number of activities, which changes when a job begins to read here.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table.lock().of.len()
    }

    /// Returns all activities, in no particular order.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<JobActivity>> {
        self.table.lock().of.values().cloned().collect()
    }

    /// Returns this second's reports, ordered by name. Not for a thread that answers requests, because it
    /// looks up in `proc` which processes run.
    #[must_use]
    pub fn reports(&self, proc: &Proc, now: Instant) -> Vec<JobReport> {
        // The table is not locked while `/proc` is read.
        let mut all = self.all();
        all.sort_by(|a, b| (&a.job, &a.dataset).cmp(&(&b.job, &b.dataset)));
        all.iter()
            .map(|activity| activity.report(proc, now))
            .collect()
    }
}

impl Table {
    fn add(&mut self, key: Key, now: Instant) -> Arc<JobActivity> {
        if self.of.len() >= ACTIVITIES_MAX {
            let active = |activity: &JobActivity| activity.measured.lock().active;
            let idlest = self.of.iter().min_by_key(|(_, activity)| active(activity));
            if let Some(key) = idlest.map(|(key, _)| key.clone())
                && let Some(activity) = self.of.remove(&key)
            {
                activity.forget();
            }
        }
        let (job, dataset) = key.clone();
        // Jobs on one dataset share its items' numbers, which are useless without a reader.
        let mut others = self.of.values();
        let other = others.find(|other| other.dataset == dataset);
        let known = other.map(|other| Arc::clone(&other.items));
        let items = known.unwrap_or_else(|| {
            Arc::new(DatasetItems {
                table: self.number(),
                ordinals: Mutex::default(),
            })
        });
        let id = self.number();
        let journal = self.journal.clone();
        let journal = journal.map(|(part, clock)| JobJournal::new(part, id, clock));
        let tokens = match journal.clone() {
            Some(journal) => Arc::new(Tokens::journaled(journal)),
            None => Tokens::new(None),
        };
        let activity = Arc::new(JobActivity {
            job,
            dataset,
            items,
            tokens,
            journal,
            measured: Mutex::new(Measured::new(now)),
        });
        activity.tell_begin(now);
        self.of.insert(key, Arc::clone(&activity));
        activity
    }

    /// Returns a number that no activity and no dataset has had.
    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
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

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Rounds a rate to whole bytes per second.
fn whole(rate: f64) -> u64 {
    crate::num::whole(rate.round())
}

#[expect(clippy::cast_possible_truncation, reason = "a fraction, for people")]
fn short(fraction: f64) -> f32 {
    fraction as f32
}
