//! The measurements of one activity. Pure.

use crate::job::identity::Process;
use crate::job::meter::Recent;
use crate::job::progress::{EpochCounts, Progress};
use crate::job::rate::RateEstimator;
use copperfs_policy::Mode;
use std::time::{Duration, Instant};

/// The maximum number of processes of a job that are watched on a node. They are outermost processes (one
/// for each step or script), so the first ones suffice to tell whether the job is alive.
const PROCESSES_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Measured {
    pub(super) progress: Progress,
    pub(super) estimator: RateEstimator,
    /// Bytes read, from any source.
    pub(super) throughput: Recent,
    /// Bytes charged.
    pub(super) remote: Recent,
    /// Bytes read from storage while the job was measured without a cache.
    pub(super) probe_bytes: u64,
    /// Bytes that it has read from storage with its own credentials.
    pub(super) own_bytes: u64,
    pub(super) processes: Vec<Process>,
    pub(super) mode: Mode,
    /// The time of the last event.
    pub(super) active: Instant,
    /// The time of the last report, and the total time of waiting for tokens until then.
    pub(super) reported: (Instant, Duration),
    /// The time that the journal has.
    pub(super) told: Instant,
    /// It has left the table.
    pub(super) is_forgotten: bool,
}

impl Measured {
    pub(super) fn new(now: Instant) -> Self {
        Self {
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
            told: now,
            is_forgotten: false,
        }
    }

    pub(super) fn read(&mut self, ordinal: Option<u32>, counts: &EpochCounts, now: Instant) {
        self.active = now;
        self.progress.read(ordinal, counts);
        self.throughput.add(counts.bytes, now);
        self.remote.add(counts.charged_bytes, now);
    }

    pub(super) fn read_uncached(&mut self, bytes: u64, charged: u64, now: Instant) {
        self.active = now;
        self.throughput.add(bytes, now);
        self.remote.add(charged, now);
        self.probe_bytes += charged;
    }

    pub(super) fn read_by_itself(&mut self, bytes: u64, now: Instant) {
        self.active = now;
        self.remote.add(bytes, now);
        self.own_bytes += bytes;
    }

    /// Adds a process of the job. Returns whether that is news.
    pub(super) fn observe(&mut self, process: Process) -> bool {
        let new = !self.processes.contains(&process) && self.processes.len() < PROCESSES_MAX;
        if new {
            // The outermost process lives as long as the job, while loaders come and go.
            self.processes.push(process);
        }
        new
    }
}
