//! Uniform caches as liquids: cached bytes stay until a budget shrinks, and then random items are
//! evicted.
//!
//! A slot is a dataset's cache, or a job's own under CoorDL. All unread items of a job are alike,
//! so one number is its future hit ratio: the cached fraction of them. Its own reads do not change
//! it, items that another job brings in raise it, and random eviction lowers it. When the job
//! begins an epoch, all items are unread, so it is the slot's cached fraction. That is the delayed
//! effectiveness of §6.

use super::progress::{LiquidCache, Progress};
use super::simulation::slot_sets;
use super::{Sample, Scenario, System, Workload};
use crate::num::index_f64;

/// The maximum length of a step while several jobs fill one slot, as a fraction of the slot,
/// because hit ratios then change within epochs.
const FILL_STEP: f64 = 0.02;

#[derive(Debug, Clone, Default)]
struct Slot {
    size: f64,
    cached: f64,
    budget: f64,
    /// The running jobs that read it.
    readers: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Uniform {
    slots: Vec<Slot>,
    private: bool,
    capacity: f64,
    /// The slots with readers or bytes.
    live: Vec<usize>,
}

impl Uniform {
    pub(super) fn new(scenario: &Scenario, workload: &Workload) -> Self {
        let slots = slot_sets(scenario, workload).into_iter();
        let slot = |set: usize| Slot {
            size: workload.datasets[set].size,
            ..Slot::default()
        };
        Self {
            slots: slots.map(slot).collect(),
            private: scenario.system == System::Coordl,
            capacity: scenario.cache,
            live: Vec::new(),
        }
    }
}

impl LiquidCache for Uniform {
    fn start(&mut self, slot: usize, job: usize, _now: f64, progress: &mut Progress) {
        if !self.live.contains(&slot) {
            self.live.push(slot);
        }
        let slot = &mut self.slots[slot];
        slot.readers.push(job);
        progress.hit = slot.cached / slot.size;
    }

    fn finish(&mut self, slot: usize, job: usize) {
        let slot = &mut self.slots[slot];
        slot.readers.retain(|&reader| reader != job);
        if self.private {
            // The job's container is removed with its disk.
            slot.cached = 0.0;
        }
    }

    fn epoch(&mut self, slot: usize, _job: usize, progress: &mut Progress) {
        let slot = &self.slots[slot];
        progress.hit = (slot.cached / slot.size).min(1.0);
    }

    /// Evicts bytes above the budgets at random. Unallocated cache is left to datasets without
    /// readers, the newest first.
    fn set_budgets(&mut self, budgets: &[f64], progress: &mut [Progress]) {
        let given: f64 = self.live.iter().map(|&at| budgets[at]).sum();
        // Unallocated cache need not be evicted.
        let mut spare = (self.capacity - given).max(0.0);
        self.live.sort_unstable_by(|a, b| b.cmp(a));
        for &at in &self.live {
            let slot = &mut self.slots[at];
            slot.budget = budgets[at].min(slot.size);
            if slot.readers.is_empty() && slot.cached > slot.budget {
                let kept = (slot.cached - slot.budget).min(spare);
                spare -= kept;
                slot.budget += kept;
            }
            if slot.cached > slot.budget {
                let kept = slot.budget / slot.cached;
                slot.cached = slot.budget;
                for &reader in &slot.readers {
                    progress[reader].hit *= kept;
                }
            }
        }
        self.live.retain(|&at| {
            let slot = &self.slots[at];
            !slot.readers.is_empty() || slot.cached > 0.0
        });
    }

    fn step(&self, progress: &[Progress]) -> f64 {
        let mut longest = f64::INFINITY;
        for slot in self.live.iter().map(|&at| &self.slots[at]) {
            if slot.readers.len() > 1 && slot.cached < slot.budget {
                let misses: f64 = slot.readers.iter().map(|&job| progress[job].remote).sum();
                longest = longest.min(FILL_STEP * slot.size / misses);
                longest = longest.min((slot.budget - slot.cached) / misses + 1e-3);
            }
        }
        longest
    }

    fn advance(&mut self, seconds: f64, progress: &mut [Progress]) {
        for &at in &self.live {
            let slot = &mut self.slots[at];
            if slot.cached >= slot.budget {
                continue;
            }
            if let [only] = slot.readers[..] {
                let missed = progress[only].remote * seconds;
                slot.cached = (slot.cached + missed).min(slot.budget);
                continue;
            }
            fill_together(slot, seconds, progress);
        }
    }

    fn measure(&self, progress: &[Progress]) -> Sample {
        let mut sums = Sample::default();
        for slot in self.live.iter().map(|&at| &self.slots[at]) {
            if slot.readers.is_empty() {
                continue;
            }
            let hits: f64 = slot.readers.iter().map(|&job| progress[job].hit).sum();
            sums.allocated_cache += slot.budget;
            sums.cached += slot.cached;
            sums.effective_cache += hits / index_f64(slot.readers.len()) * slot.size;
        }
        sums
    }
}

/// Lets several jobs fill one slot: items that one brings in are hits for others that have not read
/// them yet.
fn fill_together(slot: &mut Slot, seconds: f64, progress: &mut [Progress]) {
    let brings = |job: usize, progress: &[Progress]| progress[job].remote * seconds;
    let missed: f64 = slot.readers.iter().map(|&job| brings(job, progress)).sum();
    if missed <= 0.0 {
        return;
    }
    let admitted = missed.min(slot.budget - slot.cached);
    let uncached = slot.size - slot.cached;
    for &job in &slot.readers {
        let others = (admitted - brings(job, progress) * admitted / missed).max(0.0);
        let now = &mut progress[job];
        now.hit += (others / uncached).min(1.0) * (1.0 - now.hit);
    }
    slot.cached += admitted;
}
