//! Fluid granularity: steps from event to event (a submission, the end of an epoch or of a job), with
//! short steps in between where hit ratios change within epochs.

use super::lru::Lru;
use super::progress::LiquidCache;
use super::simulation::{Simulation, slot};
use super::uniform::Uniform;
use super::{ClusterError, Outcome, Scenario, System, Workload};

/// Fewer bytes than this are a rounding error of an epoch or of a job.
const NOTHING: f64 = 1.0;

pub(super) fn run(scenario: &Scenario, workload: &Workload) -> Result<Outcome, ClusterError> {
    let mut cache: Box<dyn LiquidCache> = match scenario.system {
        System::Alluxio => Box::new(Lru::new(scenario, workload)),
        _ => Box::new(Uniform::new(scenario, workload)),
    };
    let mut state = Simulation::new(scenario, workload);
    while !state.is_over() {
        step(&mut state, &mut *cache)?;
    }
    Ok(state.finish())
}

fn step(state: &mut Simulation<'_>, cache: &mut dyn LiquidCache) -> Result<(), ClusterError> {
    state.count_step()?;
    state.rates();
    let seconds = seconds(state, cache);
    let mut sample = state.sample();
    let before = cache.measure(&state.progress);
    cache.advance(seconds, &mut state.progress);
    let after = cache.measure(&state.progress);
    // The cache fills linearly within a step, so use the mean of its start and end.
    sample.allocated_cache = before.allocated_cache;
    sample.cached = f64::midpoint(before.cached, after.cached);
    sample.effective_cache = f64::midpoint(before.effective_cache, after.effective_cache);
    state.advance(seconds, &sample);
    let (scenario, workload) = (state.scenario, state.workload);
    let has_retired = state.retire(|job, progress| {
        let size = workload.datasets[workload.jobs[job].dataset].size;
        let bytes = progress.rate * seconds;
        progress.left -= bytes;
        progress.read += bytes;
        let done = progress.left < NOTHING;
        let slot = slot(scenario, workload, job);
        if done {
            cache.finish(slot, job);
        } else if size - progress.read < NOTHING {
            progress.read = 0.0;
            cache.epoch(slot, job, progress);
        }
        done
    });
    // Both are evaluated: a job may end at the moment at which another is submitted.
    if has_retired | state.arrive() {
        while let Some(job) = state.start_next() {
            let slot = slot(scenario, workload, job);
            cache.start(slot, job, state.now, &mut state.progress[job]);
        }
        state.divide();
        cache.set_budgets(&state.budgets, &mut state.progress);
    }
    cache.settle(seconds, &mut state.progress);
    Ok(())
}

/// Returns the seconds until the next event.
fn seconds(state: &Simulation<'_>, cache: &dyn LiquidCache) -> f64 {
    let mut next = state.until_submission();
    for &job in &state.active {
        let progress = &state.progress[job];
        let unread = state.dataset_size(job) - progress.read;
        next = next.min(progress.left.min(unread) / progress.rate);
    }
    if !state.active.is_empty() {
        next = next.min(cache.step(&state.progress));
    }
    next
}
