//! Whether a job reads each item once in each epoch (SiloD §6, "handling irregular data access").
//!
//! Sampling with replacement and curriculum learning (Eq. 10: samples from a growing prefix) read
//! items again long before all others have been read. [`super::progress`] detects such repeats,
//! except for those that an epoch's end explains. This module decides how many are too many. Pure.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

/// The minimum number of reads for a judgement.
const READS_MIN: u64 = 64;

/// The percentage of repeats that a regular job may have, for loaders that were restarted, or a
/// batch that was tried before training. Sampling with replacement exceeds it after a twenty-fifth
/// of an epoch.
const REPEATS_PERCENT: u64 = 2;

/// Additional repeats for chance in a short sequence.
const REPEATS_FREE: u64 = 4;

/// The number of consecutive epochs without repeats after which an irregular job is regular again.
const CLEAN_RUNS: u32 = 2;

/// Returns how many items loaders may read ahead into the next epoch of a dataset with `items`: a
/// tenth and at least 256 (16 workers with two batches of 8 each), but at most a quarter if that is
/// below 256.
pub(super) fn window(items: u64) -> u64 {
    (items / 10).max((items / 4).min(256))
}

/// The judgement on one job's access pattern, with hysteresis.
///
/// Reads of an irregular job are tracked in runs that restart after a few repeats. Only a job that
/// has begun to read every item once gets through nearly a whole dataset in one run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pattern {
    /// Whether the job is irregular.
    pub(super) irregular: bool,
    /// The reads so far, or in this run.
    reads: u64,
    /// The repeats among them.
    repeats: u64,
    /// The number of consecutive runs without many repeats, of an irregular job.
    clean_runs: u32,
}

impl Pattern {
    /// Records a read of a regular job. `repeat`: again in the same epoch, far from its end.
    pub(super) fn read(&mut self, repeat: bool) {
        if self.irregular {
            return;
        }
        self.reads += 1;
        self.repeats += u64::from(repeat);
        // The free repeats keep a short sequence from being judged by chance.
        let tolerated = REPEATS_FREE + self.reads * REPEATS_PERCENT / 100;
        if self.reads >= READS_MIN && self.repeats > tolerated {
            *self = Self {
                irregular: true,
                ..Self::default()
            };
        }
    }

    /// Records the end of a regular job's epoch. Earlier reads then count half, except for datasets with
    /// so few items that they are judged over several epochs.
    pub(super) fn epoch_ended(&mut self) {
        if !self.irregular && self.reads >= 4 * READS_MIN {
            self.reads /= 2;
            self.repeats /= 2;
        }
    }

    /// Records a read of an irregular job. `repeat`: again in this run. `items`: the number of items in
    /// an epoch. Returns whether the run is over. Its reads are then to be forgotten, and the job may
    /// have become regular.
    pub(super) fn read_irregular(&mut self, repeat: bool, items: u64) -> bool {
        self.reads += 1;
        self.repeats += u64::from(repeat);
        if self.repeats <= (self.reads / 100).max(2) {
            return false;
        }
        // A run that ends after nine tenths of the dataset was nearly an epoch without repeats.
        let is_clean = self.reads >= items - items / 10;
        let clean_runs = if is_clean { self.clean_runs + 1 } else { 0 };
        *self = Self {
            irregular: clean_runs < CLEAN_RUNS,
            clean_runs,
            ..Self::default()
        };
        true
    }
}
