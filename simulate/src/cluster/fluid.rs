//! Fluid granularity: steps from event to event (a submission, the end of an epoch or of a job), with
//! short steps in between where hit ratios change within epochs.

use super::lru::Lru;
use super::progress::LiquidCache;
use super::simulation::Simulation;
use super::uniform::Uniform;
use super::{ClusterError, Outcome, Scenario, System, Workload};

/// Fewer bytes than this are a rounding error of an epoch or of a job.
const NOTHING: f64 = 1.0;

struct Fluid<'a> {
    state: Simulation<'a>,
    cache: Box<dyn LiquidCache>,
}

pub(super) fn run(scenario: &Scenario, workload: &Workload) -> Result<Outcome, ClusterError> {
    let cache: Box<dyn LiquidCache> = match scenario.system {
        System::Alluxio => Box::new(Lru::new(scenario, workload)),
        _ => Box::new(Uniform::new(scenario, workload)),
    };
    let mut fluid = Fluid {
        state: Simulation::new(scenario, workload, cache.slots()),
        cache,
    };
    while !fluid.state.is_over() {
        fluid.step()?;
    }
    Ok(fluid.state.finish())
}

impl Fluid<'_> {
    fn step(&mut self) -> Result<(), ClusterError> {
        let state = &mut self.state;
        state.count_step()?;
        state.control.rates(&state.active, &mut state.progress);
        let seconds = self.seconds();
        let state = &mut self.state;
        let mut sample = state.sample();
        let before = self.cache.measure(&state.progress);
        self.cache.advance(seconds, &mut state.progress);
        let after = self.cache.measure(&state.progress);
        // The cache fills linearly within a step, so use the mean of its start and end.
        sample.allocated_cache = before.allocated;
        sample.cached = f64::midpoint(before.cached, after.cached);
        sample.effective_cache = f64::midpoint(before.effective, after.effective);
        state.advance(seconds, &sample);
        // Both are evaluated: a job may end at the moment at which another is submitted.
        if self.read(seconds) | self.state.arrive() {
            self.divide();
        }
        self.cache.settle(seconds, &mut self.state.progress);
        Ok(())
    }

    /// Returns the seconds until the next event.
    fn seconds(&self) -> f64 {
        let state = &self.state;
        let mut next = state.until_submission();
        for &job in &state.active {
            let progress = &state.progress[job];
            let unread = state.dataset_size(job) - progress.read;
            next = next.min(progress.left.min(unread) / progress.rate);
        }
        if !state.active.is_empty() {
            next = next.min(self.cache.step(&state.progress));
        }
        next
    }

    /// Lets all jobs read for `seconds`. Returns whether a job has finished.
    fn read(&mut self, seconds: f64) -> bool {
        let (cache, workload) = (&mut self.cache, self.state.workload);
        self.state.retire(|job, progress| {
            let size = workload.datasets[workload.jobs[job].dataset].size;
            let bytes = progress.rate * seconds;
            progress.left -= bytes;
            progress.read += bytes;
            let done = progress.left < NOTHING;
            if done {
                cache.finish(workload, job);
            } else if size - progress.read < NOTHING {
                progress.read = 0.0;
                cache.epoch(workload, job, progress);
            }
            done
        })
    }

    /// Starts the jobs that fit, and divides the resources.
    fn divide(&mut self) {
        let state = &mut self.state;
        while let Some(job) = state.start_next() {
            let progress = &mut state.progress[job];
            self.cache.start(state.workload, job, state.now, progress);
        }
        state.divide();
        self.cache.set_budgets(&state.budgets, &mut state.progress);
    }
}
