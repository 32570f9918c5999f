//! The state that both granularities share: queue, jobs, time, and the record of the run.
//!
//! FIFO and SJF start jobs in an order, each with all of its GPUs (gang scheduling), and run them
//! to their end. The first job that does not fit waits, and so do all jobs after it (head-of-line
//! blocking, as in the paper). Gavel gives every job a part of the time instead. Its rounds (6
//! minutes) are short compared to epochs, so the model uses their limit: all jobs run at once, each
//! at its part of its speed, and keep their cached items.

use super::outcome::Recorder;
use super::progress::Progress;
use super::{
    ClusterError, Job, JobOutcome, Outcome, STEPS_MAX, Sample, Scenario, Scheduler, System,
    Workload,
};
use crate::num::index_f64;
use copperfs_policy::benefit::Probing;
use copperfs_policy::{Choice, Keep, Mode, Problem};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Returns the dataset of each cache slot. A slot is a dataset's cache, or a job's own under CoorDL.
pub(super) fn slot_sets(scenario: &Scenario, workload: &Workload) -> Vec<usize> {
    match scenario.system {
        System::Coordl => workload.jobs.iter().map(|job| job.dataset).collect(),
        _ => (0..workload.datasets.len()).collect(),
    }
}

/// Returns the cache slot of a job.
pub(super) fn slot(scenario: &Scenario, workload: &Workload, job: usize) -> usize {
    match scenario.system {
        System::Coordl => job,
        _ => workload.jobs[job].dataset,
    }
}

/// Returns the rule of a dataset. An LRU cache and private caches have no rules.
pub(super) fn keep(scenario: &Scenario, workload: &Workload, set: usize) -> Keep {
    match scenario.system {
        System::Silod | System::Quiver => workload.datasets[set].keep,
        System::Alluxio | System::Coordl => Keep::Auto,
    }
}

/// Returns whether a job takes resident items first. The items of an LRU cache and of private caches are not known to jobs.
pub(super) fn substitutes(scenario: &Scenario, workload: &Workload, job: &Job) -> bool {
    match scenario.system {
        System::Silod => keep(scenario, workload, job.dataset) == Keep::Chunks,
        System::Quiver => job.substitutes || keep(scenario, workload, job.dataset) == Keep::Chunks,
        System::Alluxio | System::Coordl => false,
    }
}

/// Returns whether the policy chooses among the options of a dataset, with two chunks as one of them.
pub(super) fn has_options(scenario: &Scenario, workload: &Workload, set: usize) -> bool {
    let on_it = |job: &&Job| job.dataset == set;
    let mut jobs = workload.jobs.iter().filter(on_it);
    keep(scenario, workload, set) == Keep::Auto
        && jobs.any(|job| substitutes(scenario, workload, job))
}

pub(super) struct Simulation<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) workload: &'a Workload,
    /// The last problem that was divided by a policy.
    pub(super) problem: Problem,
    pub(super) progress: Vec<Progress>,
    /// The running jobs.
    pub(super) active: Vec<usize>,
    /// The budget of each cache slot, in bytes.
    pub(super) budgets: Vec<f64>,
    /// The budget of each dataset whose rule determines it, in bytes.
    pub(super) fixed_budgets: Vec<Option<f64>>,
    /// What the cache of each dataset holds.
    pub(super) choices: Vec<Choice>,
    /// How the look-ups of each job are answered, by the last division.
    pub(super) modes: Vec<Mode>,
    /// The measurements of jobs that report their times.
    pub(super) probing: Probing,
    /// Seconds since the start.
    pub(super) now: f64,
    /// The jobs that wait for GPUs, by score, and then by submission. Scores are not negative, so
    /// their bits have their order.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    /// The number of submitted jobs.
    submitted: usize,
    free_gpus: u32,
    recorder: Recorder,
    finished: usize,
}

impl<'a> Simulation<'a> {
    pub(super) fn new(scenario: &'a Scenario, workload: &'a Workload) -> Self {
        let progress = workload.jobs.iter().map(|job| Progress {
            left: job.work,
            ..Progress::default()
        });
        let fixed_budgets = (0..workload.datasets.len())
            .map(|set| (keep(scenario, workload, set) == Keep::None).then_some(0.0));
        Self {
            scenario,
            workload,
            problem: Problem::default(),
            progress: progress.collect(),
            active: Vec::new(),
            budgets: vec![0.0; slot_sets(scenario, workload).len()],
            fixed_budgets: fixed_budgets.collect(),
            choices: vec![Choice::None; workload.datasets.len()],
            modes: vec![Mode::Cached; workload.jobs.len()],
            probing: Probing::default(),
            now: 0.0,
            waiting: BinaryHeap::new(),
            submitted: 0,
            free_gpus: scenario.gpus,
            recorder: Recorder::new(),
            finished: 0,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.finished == self.workload.jobs.len()
    }

    /// Counts a step.
    ///
    /// # Errors
    /// [`ClusterError::Endless`] after too many steps.
    pub(super) fn count_step(&mut self) -> Result<(), ClusterError> {
        self.recorder.steps += 1;
        if self.recorder.steps > STEPS_MAX {
            return Err(ClusterError::Endless {
                days: self.now / 86_400.0,
                finished: self.finished,
                jobs: self.workload.jobs.len(),
            });
        }
        Ok(())
    }

    /// Returns the bytes of the dataset that a job reads.
    pub(super) fn dataset_size(&self, job: usize) -> f64 {
        self.workload.datasets[self.workload.jobs[job].dataset].size
    }

    /// Adds jobs that have been submitted to the queue. Returns whether there are any.
    pub(super) fn arrive(&mut self) -> bool {
        let before = self.submitted;
        while self.until_submission() <= 0.0 {
            let score = self.score(self.submitted);
            self.waiting
                .push(Reverse((score.to_bits(), self.submitted)));
            self.submitted += 1;
        }
        before != self.submitted
    }

    /// Whether jobs share the GPUs in time.
    fn is_shared(&self) -> bool {
        self.scenario.scheduler == Scheduler::Gavel
    }

    /// Starts the next job that fits, and returns it.
    pub(super) fn start_next(&mut self) -> Option<usize> {
        let &Reverse((_, job)) = self.waiting.peek()?;
        if !self.is_shared() {
            // The first job that does not fit blocks all jobs after it.
            self.free_gpus = self.free_gpus.checked_sub(self.workload.jobs[job].gpus)?;
        }
        self.waiting.pop();
        self.active.push(job);
        self.progress[job].started = Some(self.now);
        Some(job)
    }

    /// Removes the running jobs that are done. Returns whether there are any.
    pub(super) fn retire(&mut self, mut is_done: impl FnMut(usize, &mut Progress) -> bool) -> bool {
        let before = self.active.len();
        let is_shared = self.is_shared();
        self.active.retain(|&job| {
            let state = &mut self.progress[job];
            let done = is_done(job, state);
            if done {
                state.finished = Some(self.now);
                self.free_gpus += if is_shared {
                    0
                } else {
                    self.workload.jobs[job].gpus
                };
            }
            !done
        });
        self.finished += before - self.active.len();
        before != self.active.len()
    }

    /// Returns the seconds until the next submission.
    pub(super) fn until_submission(&self) -> f64 {
        let next = self.workload.jobs.get(self.submitted);
        next.map_or(f64::INFINITY, |job| (job.submit - self.now).max(0.0))
    }

    /// Returns the sums over the running jobs. The caller adds the values of the cache.
    pub(super) fn sample(&self) -> Sample {
        let mut sample = Sample {
            running: index_f64(self.active.len()),
            waiting: index_f64(self.waiting.len()),
            fairness_min: f64::INFINITY,
            ..Sample::default()
        };
        for &job in &self.active {
            let state = &self.progress[job];
            sample.throughput += state.rate;
            sample.ideal_throughput += self.ideal(job) * state.share;
            sample.remote_io += state.remote;
            sample.gpus += f64::from(self.workload.jobs[job].gpus) * state.share;
            let ratio = state.rate / state.equal;
            sample.fairness += ratio / sample.running;
            sample.fairness_min = sample.fairness_min.min(ratio);
        }
        if self.active.is_empty() {
            sample.fairness_min = 0.0;
        }
        sample
    }

    /// Records `sample` for the next `seconds`, and advances the time.
    pub(super) fn advance(&mut self, seconds: f64, sample: &Sample) {
        self.recorder.add(self.now, seconds, sample);
        self.now += seconds;
    }

    pub(super) fn finish(self) -> Outcome {
        let outcome = |(job, progress): (&Job, &Progress)| {
            let finish_s = progress.finished.unwrap_or(f64::INFINITY);
            JobOutcome {
                id: job.id.clone(),
                model: job.model.clone(),
                submit_s: job.submit,
                start_s: progress.started.unwrap_or(f64::INFINITY),
                finish_s,
                jct_s: finish_s - job.submit,
            }
        };
        let jobs = self.workload.jobs.iter().zip(&self.progress);
        self.recorder.finish(jobs.map(outcome).collect())
    }
}
