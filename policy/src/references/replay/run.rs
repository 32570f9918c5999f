//! The run of a replay, event by event.

use super::cache::{Cache, Jobs};
use super::event::{Attribution, Decrement, Options};
use super::trace::{Step, Trace, TraceError};
use crate::references::{EvictionPolicy, ResidentBytes, SubmitError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The result of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Reads of resident blocks.
    pub hits: u64,
    /// Other reads.
    pub misses: u64,
    /// The evicted blocks, in order, also those of a `flush`.
    pub evictions: Vec<String>,
    /// The blocks that are resident at the end, sorted.
    pub resident: Vec<String>,
    /// The reference counts at the end, without zeros.
    pub counts: BTreeMap<String, u32>,
}

/// Replays a trace from its start to its end.
///
/// # Errors
/// [`TraceError::TooMany`]: 2^32 references or more are held at a time.
pub fn replay(trace: &Trace, policy: EvictionPolicy) -> Result<Outcome, TraceError> {
    let mut replay = Replay::new(trace, policy)?;
    while replay.advance()? {}
    Ok(replay.outcome())
}

/// A replay in progress, for callers that look at the cache between events.
#[derive(Debug)]
pub struct Replay<'a> {
    trace: &'a Trace,
    /// Whether all submissions were taken before the first event, and jobs do not end.
    knows_all_jobs: bool,
    /// The index of the next event.
    next: usize,
    jobs: Jobs,
    cache: Cache,
    /// Blocks whose counts have changed in this event.
    changed: Vec<u32>,
    evicted: Vec<u32>,
    hits: u64,
    misses: u64,
}

impl<'a> Replay<'a> {
    /// Begins a replay. Under `lrc-offline` all submissions are taken now.
    ///
    /// # Errors
    /// [`TraceError::TooMany`]: 2^32 references or more are held.
    pub fn new(trace: &'a Trace, policy: EvictionPolicy) -> Result<Self, TraceError> {
        Self::begin(trace, policy, policy == EvictionPolicy::LrcOffline)
    }

    /// Begins a replay in which all submissions are taken now and jobs do not end, as under `lrc-offline`,
    /// but victims are chosen by `policy`. So counts include the references of jobs that come later, and
    /// data without any is inactive for good, also under policies that do not look at counts.
    ///
    /// # Errors
    /// [`TraceError::TooMany`]: 2^32 references or more are held.
    pub fn with_all_jobs(trace: &'a Trace, policy: EvictionPolicy) -> Result<Self, TraceError> {
        Self::begin(trace, policy, true)
    }

    fn begin(
        trace: &'a Trace,
        policy: EvictionPolicy,
        knows_all_jobs: bool,
    ) -> Result<Self, TraceError> {
        let mut replay = Self {
            trace,
            knows_all_jobs,
            next: 0,
            jobs: Jobs::default(),
            cache: Cache::new(trace, policy),
            changed: Vec::new(),
            evicted: Vec::new(),
            hits: 0,
            misses: 0,
        };
        if knows_all_jobs {
            for step in &trace.events {
                if let Step::Submit {
                    job,
                    attempt,
                    tasks,
                } = step
                {
                    replay.submit(*job, *attempt, tasks)?;
                }
            }
            replay.cache.set_counts(&mut replay.changed, &replay.jobs);
        }
        Ok(replay)
    }

    /// Applies the next event. Returns false if there is none.
    ///
    /// # Errors
    /// [`TraceError::TooMany`]: 2^32 references or more are held. The event had no effect.
    pub fn advance(&mut self) -> Result<bool, TraceError> {
        let trace = self.trace;
        let Some(step) = trace.events.get(self.next) else {
            return Ok(false);
        };
        match step {
            // These have no effect: all submissions are known already.
            Step::Submit { .. } | Step::End { .. } if self.knows_all_jobs => {}
            Step::Submit {
                job,
                attempt,
                tasks,
            } => self.submit(*job, *attempt, tasks)?,
            Step::Read { reader, block } => self.read(*reader, *block),
            Step::Put { block } => {
                self.use_block(*block);
            }
            Step::Done { job, task } => {
                self.jobs.done(job, task, &mut self.changed);
            }
            Step::TaskFail { job, task } => {
                self.jobs.fail(job, task, &mut self.changed);
            }
            Step::End { job } => {
                self.jobs.end(job, &mut self.changed);
            }
            Step::Flush => self.cache.flush(&self.jobs, &mut self.evicted),
        }
        self.cache.set_counts(&mut self.changed, &self.jobs);
        self.next += 1;
        Ok(true)
    }

    /// Returns the reads so far that found their block resident.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// Returns the other reads so far.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.misses
    }

    /// Returns the number of evictions so far, also of those by a `flush`.
    #[must_use]
    pub fn evictions(&self) -> usize {
        self.evicted.len()
    }

    /// Returns the reference count of a block of [`Trace::accesses`] now.
    #[must_use]
    pub fn count(&self, block: u32) -> u32 {
        self.jobs.count(&block)
    }

    /// Returns the resident bytes now. It takes time in proportion to the resident blocks under `s3-fifo`.
    #[must_use]
    pub fn resident_bytes(&self) -> ResidentBytes {
        self.cache.bytes(&self.jobs)
    }

    /// Returns the outcome of the events so far.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let name = |block: u32| self.trace.blocks[block as usize].clone();
        let mut resident: Vec<_> = self.cache.residents().into_iter().map(name).collect();
        resident.sort_unstable();
        let counts = self.jobs.counts();
        Outcome {
            hits: self.hits,
            misses: self.misses,
            evictions: self.evicted.iter().copied().map(name).collect(),
            resident,
            counts: counts.map(|(block, count)| (name(*block), count)).collect(),
        }
    }

    fn submit(
        &mut self,
        job: u32,
        attempt: u64,
        tasks: &[(u32, Vec<u32>)],
    ) -> Result<(), TraceError> {
        let tasks = tasks
            .iter()
            .map(|(task, inputs)| (*task, inputs.iter().copied()));
        match self.jobs.submit(job, attempt, tasks, &mut self.changed) {
            // A trace has no task twice.
            Ok(_) | Err(SubmitError::TaskTwice { .. }) => Ok(()),
            Err(SubmitError::TooManyReferences) => Err(TraceError::TooMany { kind: "references" }),
        }
    }

    fn read(&mut self, reader: Option<(u32, Option<u32>)>, block: u32) {
        self.consume(reader, block);
        // Victims are chosen by the counts after the read.
        self.cache.set_counts(&mut self.changed, &self.jobs);
        let is_hit = self.use_block(block);
        self.hits += u64::from(is_hit);
        self.misses += u64::from(!is_hit);
    }

    fn consume(&mut self, reader: Option<(u32, Option<u32>)>, block: u32) {
        let Options {
            decrement,
            attribution,
            ..
        } = self.trace.options;
        match reader {
            Some((job, Some(task))) if decrement == Decrement::Read => {
                self.jobs.consume(&job, &task, &block, &mut self.changed);
            }
            None if attribution == Attribution::Fifo => {
                self.jobs.consume_oldest(&block, &mut self.changed);
            }
            Some(_) | None => {}
        }
    }

    /// Returns whether the block was resident.
    fn use_block(&mut self, block: u32) -> bool {
        let size = self.trace.sizes[block as usize];
        (self.cache).use_block(self.next, block, size, &mut self.evicted)
    }
}
