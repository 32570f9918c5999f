//! The division of the link to storage among the loaders.

use super::{Engine, NOTHING, System};
use crate::num::index_f64;
use copperfs_policy::water::fill_weighted;

impl Engine<'_> {
    /// Returns whether the policy divides the link.
    fn is_planned(&self) -> bool {
        let scenario = self.state.scenario;
        scenario.system == System::Silod && scenario.remote_io_allocation
    }

    /// Divides remote IO by the policy, with the real hit ratio of each job's unread items.
    pub(super) fn plan(&mut self) {
        if !self.is_planned() {
            return;
        }
        for at in 0..self.state.active.len() {
            let job = self.state.active[at];
            if self.chunked[self.state.workload.jobs[job].dataset].is_some() {
                // Storage gives each item once to all jobs on the dataset, so each needs a part of it.
                self.state.progress[job].hit = 1.0 - 1.0 / self.readers(job);
                continue;
            }
            let line = &self.pipelines[job];
            let unread = line.order.get(line.at..).unwrap_or(&[]);
            if !unread.is_empty() {
                let cached = unread.iter().filter(|&&item| self.has(job, item)).count();
                self.state.progress[job].hit = index_f64(cached) / index_f64(unread.len());
            }
        }
        let state = &mut self.state;
        let given = state.remote_io();
        for (&job, given) in state.active.iter().zip(given) {
            self.pipelines[job].planned = given;
        }
    }

    /// Returns the number of jobs on a job's dataset.
    pub(super) fn readers(&self, job: usize) -> f64 {
        let jobs = &self.state.workload.jobs;
        let active = self.state.active.iter();
        let readers = active.filter(|&&other| jobs[other].dataset == jobs[job].dataset);
        index_f64(readers.count())
    }

    /// Divides the link among the loaders that fetch: evenly, or as planned.
    pub(super) fn share_link(&mut self) {
        let planned = self.is_planned();
        let state = &mut self.state;
        // A job that unexpectedly misses an item must not wait forever.
        let least = state.scenario.remote_io * 1e-6;
        let (mut needs, mut weights) = (Vec::new(), Vec::new());
        for &job in &state.active {
            let line = &self.pipelines[job];
            let fetches = line.fetching.max(line.substitution.requested) > NOTHING;
            needs.push(if fetches { f64::INFINITY } else { 0.0 });
            let weight = line.planned.max(least);
            weights.push(if planned { weight } else { 1.0 });
        }
        let given = fill_weighted(state.scenario.remote_io, &needs, &weights);
        for (&job, given) in state.active.iter().zip(given) {
            state.progress[job].remote = given;
        }
    }
}
