//! Jobs report the times of their mini-batches, and are measured without a cache for a while
//! ([`copperfs_policy::benefit::probing`]).

use super::chunked::clock;
use super::{Batch, ChoiceChange, Engine, has_options};
use crate::num::{index_f64, whole};
use copperfs_policy::benefit::Report;
use copperfs_policy::{Choice, Mode};

/// The bytes of a mini-batch: 512 images of ImageNet. Items are scaled, so that a batch of the model stands for
/// several mini-batches.
const MINI_BATCH_BYTES: f64 = 60e6;
/// The maximum number of recorded choices of a dataset.
const CHOICES_MAX: usize = 1 << 16;

impl Engine<'_> {
    /// Returns whether a job reports its times. Jobs on datasets without options are not measured, because
    /// nothing would follow.
    fn reports(&self, job: usize) -> bool {
        let (scenario, workload) = (self.state.scenario, self.state.workload);
        let wanted = &workload.jobs[job];
        wanted.substitutes && has_options(scenario, workload, wanted.dataset)
    }

    pub(super) fn mode(&self, job: usize) -> Mode {
        self.state.modes[job]
    }

    /// Reports a batch that took `seconds`.
    pub(super) fn report(&mut self, job: usize, batch: &Batch, seconds: f64) {
        let wanted = &self.state.workload.jobs[job];
        if batch.mode == Mode::Probe {
            self.probe_bytes += index_f64(batch.misses) * self.item;
        }
        if !self.reports(job) {
            return;
        }
        let report = Report {
            job: &wanted.id,
            mode: batch.mode,
            choice: self.state.choices[wanted.dataset],
            // A job of the model is one reader.
            ranks: 1,
            batches: whole(
                (index_f64(batch.count) * self.item / MINI_BATCH_BYTES)
                    .round()
                    .max(1.0),
            ),
            seconds,
            hits: (batch.count - batch.misses) as u64,
            misses: batch.misses as u64,
        };
        // A batch that takes longer than a day is not believed, as in reality.
        let changed = self.state.probing.record(&report, clock(self.state.now));
        self.is_measured |= changed.unwrap_or(false);
    }

    /// Begins and ends probes. Returns whether a measurement or a mode has changed.
    pub(super) fn measure(&mut self) -> bool {
        let now = clock(self.state.now);
        for at in 0..self.state.active.len() {
            let job = self.state.active[at];
            if self.reports(job) {
                // There are few enough jobs, or the others go on without a measurement.
                let _is_watched = self
                    .state
                    .probing
                    .watch(&self.state.workload.jobs[job].id, now);
            }
        }
        let began = self.state.probing.tick(now);
        std::mem::take(&mut self.is_measured) | began
    }

    /// Records the choices that are others than `before`.
    pub(super) fn note_choices(&mut self, before: &[Choice]) {
        let (scenario, workload) = (self.state.scenario, self.state.workload);
        for (set, before) in before.iter().enumerate() {
            let choice = self.state.choices[set];
            let name = &workload.datasets[set].name;
            let noted = self.choices.iter().filter(|one| one.dataset == *name);
            if choice != *before
                && has_options(scenario, workload, set)
                && noted.count() < CHOICES_MAX
            {
                self.choices.push(ChoiceChange {
                    dataset: name.clone(),
                    at_s: self.state.now,
                    choice,
                });
            }
        }
    }

    /// Turns the jobs on a dataset to its chunks, or away from them.
    pub(super) fn switch(&mut self, set: usize, in_chunks: bool) {
        let workload = self.state.workload;
        let Some(cache) = &mut self.chunked[set] else {
            return;
        };
        for &job in &self.state.active {
            let wanted = &workload.jobs[job];
            if wanted.dataset != set {
                continue;
            }
            let line = &mut self.pipelines[job].substitution;
            line.turn(cache);
            if in_chunks {
                cache.hear(&wanted.id, line.reading(), self.state.now);
            } else {
                cache.end(&wanted.id);
            }
        }
    }
}
