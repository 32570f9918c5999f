//! One job's reading of one dataset on this node.
//!
//! The dataset's reader calls [`JobActivity::opened`], [`JobActivity::waits`], [`JobActivity::read`]
//! and [`JobActivity::closed`], and takes tokens from [`JobActivity::tokens`]. Each second the budget
//! agent collects [`Activities::reports`]; decisions are applied by [`JobActivity::apply`].
//!
//! Locks: each activity has one, held for the arithmetic of one call. The table has one that is taken
//! before any activity's.

#[cfg(test)]
mod tests;

use super::ENDED_AFTER;
use super::identity::{Proc, Process, Reader};
use super::meter::Recent;
use super::name::JobName;
use super::progress::{EpochCounts, ItemOutcome, Ordinals, Progress};
use super::rate::RateEstimator;
use super::tokens::Tokens;
use crate::model::{JobReport, UNATTRIBUTED};
use copperfs_policy::Mode;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// The maximum number of processes of a job that are watched on a node. They are outermost processes (one
/// for each step or script), so the first ones suffice to tell whether the job is alive.
const PROCESSES_MAX: usize = 64;

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
    /// Bytes read from storage while the job was measured without a cache.
    probe_bytes: u64,
    /// Bytes that it has read from storage with its own credentials.
    own_bytes: u64,
    processes: Vec<Process>,
    mode: Mode,
    /// The time of the last event.
    active: Instant,
    /// The time of the last report, and the total time of waiting for tokens until then.
    reported: (Instant, Duration),
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
        self.count(item, &EpochCounts::of_read(outcome), started, now);
    }

    /// Records that an item was closed. `unread`: no byte of it was requested since it was opened, so the
    /// kernel's page cache has answered its reader, which is assumed to have read all its `bytes`.
    pub fn closed(&self, item: u64, bytes: u64, unread: bool, now: Instant) {
        if unread {
            self.count(item, &EpochCounts::of_page_cache(bytes), now, now);
        } else {
            self.measured.lock().active = now;
        }
    }

    /// Records that an item was read whole while the job is measured without a cache. It counts in no epoch.
    pub fn read_uncached(&self, outcome: ItemOutcome, now: Instant) {
        let mut measured = self.measured.lock();
        measured.active = now;
        measured.throughput.add(outcome.bytes, now);
        measured.remote.add(outcome.charged, now);
        measured.probe_bytes += outcome.charged;
    }

    /// Records that the job has read bytes from storage with its own credentials. They use its tokens up, so
    /// that its next reads wait longer.
    pub fn read_by_itself(&self, bytes: u64, now: Instant) {
        self.tokens.charge(bytes);
        let mut measured = self.measured.lock();
        measured.active = now;
        measured.remote.add(bytes, now);
        measured.own_bytes += bytes;
    }

    fn count(&self, item: u64, counts: &EpochCounts, started: Instant, now: Instant) {
        // Jobs on the same dataset share its numbers, so this lock is separate from the activity's.
        let ordinal = self.ordinals.lock().of(item);
        let mut measured = self.measured.lock();
        measured.active = now;
        measured.progress.read(ordinal, counts);
        measured.throughput.add(counts.bytes, now);
        measured.remote.add(counts.charged_bytes, now);
        let cached = counts.hit_items > 0;
        let estimator = &mut measured.estimator;
        estimator.read(counts.bytes, cached, started, now);
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
        measured.progress.expect(expected, nodes);
    }

    /// Records that a process of the job reads here.
    fn observe(&self, reader: &Reader) {
        let processes = &mut self.measured.lock().processes;
        if !processes.contains(&reader.anchor) && processes.len() < PROCESSES_MAX {
            // The outermost process lives as long as the job, while loaders come and go.
            processes.push(reader.anchor);
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
        let waited = waited.saturating_sub(waited_before);
        let throttled = match passed.is_zero() {
            true => 0.0,
            false => waited.div_duration_f64(passed),
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
    table: Mutex<HashMap<Key, Arc<JobActivity>>>,
}

impl Activities {
    /// Returns the activity of `reader`'s job on `dataset`, and creates it on the first open. Readers
    /// without a job share one activity for each dataset. The caller keeps it with the open file.
    #[must_use]
    pub fn of(&self, reader: Option<&Reader>, dataset: &str, now: Instant) -> Arc<JobActivity> {
        let job = reader.and_then(|reader| reader.job.clone());
        let mut table = self.table.lock();
        let key = (job, Arc::from(dataset));
        let activity = match table.get(&key) {
            Some(activity) => Arc::clone(activity),
            None => add(&mut table, key, now),
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
        self.table.lock().len()
    }

    /// Returns all activities, in no particular order.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<JobActivity>> {
        self.table.lock().values().cloned().collect()
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

fn add(table: &mut HashMap<Key, Arc<JobActivity>>, key: Key, now: Instant) -> Arc<JobActivity> {
    if table.len() >= ACTIVITIES_MAX {
        let active = |activity: &JobActivity| activity.measured.lock().active;
        let idlest = table.iter().min_by_key(|(_, activity)| active(activity));
        if let Some(key) = idlest.map(|(key, _)| key.clone()) {
            table.remove(&key);
        }
    }
    let (job, dataset) = key.clone();
    // Jobs on one dataset share its ordinals, which are useless without a reader.
    let others = table.values().find(|other| other.dataset == dataset);
    let ordinals = others.map(|other| Arc::clone(&other.ordinals));
    let activity = Arc::new(JobActivity {
        job,
        dataset,
        ordinals: ordinals.unwrap_or_default(),
        tokens: Tokens::new(None),
        measured: Mutex::new(Measured {
            progress: Progress::default(),
            estimator: RateEstimator::new(now),
            throughput: Recent::new(now),
            remote: Recent::new(now),
            probe_bytes: 0,
            own_bytes: 0,
            processes: Vec::new(),
            mode: Mode::Cached,
            active: now,
            reported: (now, Duration::ZERO),
        }),
    });
    table.insert(key, Arc::clone(&activity));
    activity
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
