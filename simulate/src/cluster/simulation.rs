//! The state that both granularities share: queue, jobs, time, and the record of the run.

use super::control::Control;
use super::outcome::{Recorder, index_f64};
use super::progress::Progress;
use super::schedule::Queue;
use super::{ClusterError, Outcome, STEPS_MAX, Sample, Scenario, Workload};

pub(super) struct Simulation<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) workload: &'a Workload,
    pub(super) control: Control<'a>,
    pub(super) progress: Vec<Progress>,
    /// The running jobs.
    pub(super) active: Vec<usize>,
    /// The budget of each cache slot, in bytes.
    pub(super) budgets: Vec<f64>,
    /// Seconds since the start.
    pub(super) now: f64,
    queue: Queue,
    recorder: Recorder,
    finished: usize,
}

impl<'a> Simulation<'a> {
    /// Creates a simulation with `slots` cache slots.
    pub(super) fn new(scenario: &'a Scenario, workload: &'a Workload, slots: usize) -> Self {
        let progress = workload.jobs.iter().map(|job| Progress {
            left: job.work,
            ..Progress::default()
        });
        Self {
            scenario,
            workload,
            control: Control::new(scenario, workload),
            progress: progress.collect(),
            active: Vec::new(),
            budgets: vec![0.0; slots],
            now: 0.0,
            queue: Queue::new(scenario),
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
        self.queue.arrive(self.workload, &self.control, self.now)
    }

    /// Starts the next job that fits, and returns it.
    pub(super) fn start_next(&mut self) -> Option<usize> {
        let job = self.queue.start(self.workload)?;
        self.active.push(job);
        self.progress[job].started = Some(self.now);
        Some(job)
    }

    /// Removes the running jobs that are done. Returns whether there are any.
    pub(super) fn retire(&mut self, mut is_done: impl FnMut(usize, &mut Progress) -> bool) -> bool {
        let before = self.active.len();
        let Self {
            progress,
            queue,
            workload,
            now,
            ..
        } = self;
        self.active.retain(|&job| {
            let state = &mut progress[job];
            let done = is_done(job, state);
            if done {
                state.finished = Some(*now);
                queue.finish(workload.jobs[job].gpus);
            }
            !done
        });
        self.finished += before - self.active.len();
        before != self.active.len()
    }

    /// Returns the seconds until the next submission.
    pub(super) fn until_submission(&self) -> f64 {
        match self.workload.jobs.get(self.queue.submitted()) {
            Some(job) => (job.submit - self.now).max(0.0),
            None => f64::INFINITY,
        }
    }

    /// Divides GPUs and cache among the running jobs.
    pub(super) fn divide(&mut self) {
        self.control
            .divide(&self.active, &mut self.progress, &mut self.budgets);
    }

    /// Returns the sums over the running jobs. The caller adds the values of the cache.
    pub(super) fn sample(&self) -> Sample {
        let mut sample = Sample {
            running: index_f64(self.active.len()),
            waiting: index_f64(self.queue.waiting()),
            fairness_min: f64::INFINITY,
            ..Sample::default()
        };
        for &job in &self.active {
            let state = &self.progress[job];
            sample.throughput += state.rate;
            sample.ideal_throughput += self.control.ideal(job) * state.share;
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
        self.recorder.finish(self.workload, &self.progress)
    }
}
