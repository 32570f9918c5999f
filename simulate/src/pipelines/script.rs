//! Writes jobs down as the events of a trace: submissions, reads and puts of running tasks, and ends.
//!
//! It knows the order of events, not their times: a stage has a fixed number of slots, and each running
//! task is as likely as another to do the next read or put.

use crate::num::{index, index_f64};
use crate::random::Random;
use copperfs_policy::references::replay::{Event, Options, Task, Trace, TraceBuilder, TraceError};
use std::collections::{HashMap, HashSet, VecDeque};

/// The number of a block of a [`Script`].
pub(super) type Block = usize;

/// A step of a task.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Read(Block),
    Put(Block),
}

/// A task, with its steps in their order.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) id: String,
    pub(super) steps: Vec<Step>,
    /// The task of the same stage that must end before this one starts.
    pub(super) after: Option<usize>,
}

/// The order in which the tasks of a stage start, among those that can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    Listed,
    Random,
}

/// A job: stages that run one after the other.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) tenant: String,
    pub(super) name: String,
    pub(super) stages: Vec<Vec<Work>>,
    pub(super) start: Start,
}

/// Events in their order.
pub(super) type Lane = VecDeque<Event>;

/// Distances of references to generated blocks, in jobs (LRC, section IV-A).
///
/// The distance of a reference is the number of the job that reads minus the number of the job that puts
/// the block, where a tenant's jobs are numbered in the order of their submissions. So it is 0 within a job.
/// Blocks that no job generates have no distance.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Distances {
    /// References to generated blocks.
    pub references: u64,
    /// The sum of their distances.
    pub sum: u64,
}

impl Distances {
    /// Returns the mean distance. `None`: there is no reference to a generated block.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        let (sum, count) = (crate::num::as_f64(self.sum), self.references);
        (count > 0).then(|| sum / crate::num::as_f64(count))
    }
}

/// The blocks and the random numbers of a workload while its events are written.
#[derive(Debug)]
pub(super) struct Script {
    blocks: Vec<(String, u64)>,
    pub(super) random: Random,
    /// Running tasks of a job.
    pub(super) slots: usize,
    pub(super) distances: Distances,
    pub(super) jobs: u64,
    pub(super) tasks: u64,
}

impl Script {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            blocks: Vec::new(),
            random: Random::new(seed),
            slots: 1,
            distances: Distances::default(),
            jobs: 0,
            tasks: 0,
        }
    }

    pub(super) fn block(&mut self, name: String, bytes: u64) -> Block {
        // No block is empty, so that each has a share of the cache.
        self.blocks.push((name, bytes.max(1)));
        self.blocks.len() - 1
    }

    /// Returns a random index below `len`.
    pub(super) fn pick(&mut self, len: usize) -> usize {
        index(self.random.unit() * index_f64(len)).min(len.saturating_sub(1))
    }

    /// Returns the events of jobs that run one after the other. Each is submitted when the job before it
    /// has ended.
    pub(super) fn lane(&mut self, jobs: &[Job]) -> Lane {
        let mut lane = Lane::new();
        let mut sources: HashMap<Block, usize> = HashMap::new();
        for (number, job) in jobs.iter().enumerate() {
            self.jobs += 1;
            lane.push_back(self.submission(job));
            for stage in &job.stages {
                self.tasks += stage.len() as u64;
                for step in stage.iter().flat_map(|work| &work.steps) {
                    match step {
                        Step::Put(block) => {
                            sources.insert(*block, number);
                        }
                        Step::Read(block) => {
                            if let Some(source) = sources.get(block) {
                                self.distances.references += 1;
                                self.distances.sum += (number - source) as u64;
                            }
                        }
                    }
                }
                self.run(job, stage, &mut lane);
            }
            lane.push_back(Event::End {
                tenant: job.tenant.clone(),
                job: job.name.clone(),
            });
        }
        lane
    }

    /// Returns reads of blocks that no job declares, in order.
    pub(super) fn undeclared(&self, blocks: &[Block]) -> Lane {
        let read = |block: &Block| Event::Read {
            tenant: String::new(),
            job: None,
            task: None,
            block: self.blocks[*block].0.clone(),
        };
        blocks.iter().map(read).collect()
    }

    /// Merges lanes that run at the same time. Each lane that is not exhausted is as likely as another to
    /// have the next event, but the submission of a job follows the end of the one before directly, because
    /// a driver needs less time for it than a task for its data.
    pub(super) fn merge(&mut self, mut lanes: Vec<Lane>) -> Lane {
        let mut merged = Lane::new();
        lanes.retain(|lane| !lane.is_empty());
        while !lanes.is_empty() {
            let at = self.pick(lanes.len());
            let lane = &mut lanes[at];
            if let Some(event) = lane.pop_front() {
                let has_ended = matches!(event, Event::End { .. });
                merged.push_back(event);
                if has_ended && let Some(next) = lane.pop_front() {
                    merged.push_back(next);
                }
            }
            if lane.is_empty() {
                lanes.remove(at);
            }
        }
        merged
    }

    /// Returns the trace of the events, and the bytes of all blocks that tasks or other readers read.
    pub(super) fn finish(
        &self,
        events: &Lane,
        options: Options,
    ) -> Result<(Trace, u64), TraceError> {
        let mut builder = TraceBuilder::new(0, options);
        for (name, bytes) in &self.blocks {
            builder.block(name, *bytes)?;
        }
        for event in events {
            builder.event(event)?;
        }
        let trace = builder.build()?;
        let inputs = inputs(&trace);
        Ok((trace, inputs))
    }

    fn submission(&self, job: &Job) -> Event {
        let task = |work: &Work| {
            let reads = work.steps.iter().filter_map(|step| match step {
                Step::Read(block) => Some(self.blocks[*block].0.clone()),
                Step::Put(_) => None,
            });
            Task {
                id: work.id.clone(),
                inputs: reads.collect(),
            }
        };
        Event::Submit {
            tenant: job.tenant.clone(),
            job: job.name.clone(),
            attempt: 0,
            tasks: job.stages.iter().flatten().map(task).collect(),
        }
    }

    /// Runs the tasks of a stage in its slots.
    fn run(&mut self, job: &Job, stage: &[Work], lane: &mut Lane) {
        let mut waiting: VecDeque<usize> = (0..stage.len()).collect();
        let mut has_ended = vec![false; stage.len()];
        let mut running: Vec<(usize, usize)> = Vec::new();
        loop {
            while running.len() < self.slots
                && let Some(task) = self.next_task(job.start, stage, &mut waiting, &has_ended)
            {
                running.push((task, 0));
            }
            if running.is_empty() {
                return;
            }
            let slot = self.pick(running.len());
            let (task, step) = running[slot];
            let work = &stage[task];
            if let Some(next) = work.steps.get(step) {
                lane.push_back(self.event(job, work, *next));
                running[slot].1 += 1;
                if step + 1 < work.steps.len() {
                    continue;
                }
            }
            lane.push_back(Event::Done {
                tenant: job.tenant.clone(),
                job: job.name.clone(),
                task: work.id.clone(),
            });
            has_ended[task] = true;
            running.swap_remove(slot);
        }
    }

    /// Takes the next task that can start from those that wait.
    fn next_task(
        &mut self,
        start: Start,
        stage: &[Work],
        waiting: &mut VecDeque<usize>,
        has_ended: &[bool],
    ) -> Option<usize> {
        let ready = |task: &usize| stage[*task].after.is_none_or(|before| has_ended[before]);
        let places: Vec<usize> = (0..waiting.len())
            .filter(|&at| ready(&waiting[at]))
            .take(if start == Start::Listed {
                1
            } else {
                usize::MAX
            })
            .collect();
        let chosen = self.pick(places.len());
        waiting.remove(*places.get(chosen)?)
    }

    fn event(&self, job: &Job, work: &Work, step: Step) -> Event {
        match step {
            Step::Read(block) => Event::Read {
                tenant: job.tenant.clone(),
                job: Some(job.name.clone()),
                task: Some(work.id.clone()),
                block: self.blocks[block].0.clone(),
            },
            Step::Put(block) => Event::Put {
                block: self.blocks[block].0.clone(),
            },
        }
    }
}

/// Returns the bytes of all blocks that are read, each once.
pub(super) fn inputs(trace: &Trace) -> u64 {
    let mut seen = HashSet::new();
    let reads = trace.accesses().flatten().filter(|access| !access.is_put);
    let first = reads.filter(|access| seen.insert(access.block));
    first.map(|access| access.bytes).sum()
}
