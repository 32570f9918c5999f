//! Does a job read each item once in each epoch? (SiloD §6, "handling irregular data access".)
//!
//! Sampling with replacement and curriculum learning (Eq. 10: samples out of a prefix that grows)
//! read items again long before the others were read at all. [`super::progress`] finds such repeats,
//! and leaves out those that an epoch's end explains; this decides how many are too many. Pure.

#[cfg(test)]
mod tests;

/// Reads before anything is said: fewer say nothing.
const READS_MIN: u64 = 64;

/// Repeats of a hundred reads that a regular job may have: loaders that were restarted, a batch that
/// was tried before training. Sampling with replacement passes it after a twenty-fifth of an epoch.
const REPEATS_PERCENT: u64 = 2;

/// And some more: the few that chance brings close together.
const REPEATS_FREE: u64 = 4;

/// Epochs without repeats, one after the other, that make an irregular job regular again.
const CLEAN_RUNS: u32 = 2;

/// How far loaders may read ahead into the next epoch, in items, of a dataset with `items`: a tenth,
/// and 256 (16 workers with two batches of 8 each) as far as that is no more than a quarter.
pub(super) fn window(items: u64) -> u64 {
    (items / 10).max((items / 4).min(256))
}

/// The judgement on one job's reading, with hysteresis.
#[derive(Debug)]
pub struct Pattern(State);

#[derive(Debug)]
enum State {
    Regular {
        reads: u64,
        repeats: u64,
    },
    /// Reads are followed in runs that begin anew at the first few repeats: only a job that has begun
    /// to read every item once gets through nearly a dataset in one run.
    Irregular {
        reads: u64,
        repeats: u64,
        clean: u32,
    },
}

impl Default for Pattern {
    fn default() -> Self {
        Self(State::Regular {
            reads: 0,
            repeats: 0,
        })
    }
}

impl Pattern {
    /// Whether it is irregular.
    #[must_use]
    pub fn irregular(&self) -> bool {
        matches!(self.0, State::Irregular { .. })
    }

    /// A regular job has read an item. `repeat`: again in the same epoch, far from its end.
    pub(super) fn read(&mut self, repeat: bool) {
        let State::Regular { reads, repeats } = &mut self.0 else {
            return;
        };
        *reads += 1;
        *repeats += u64::from(repeat);
        if *reads >= READS_MIN && *repeats > REPEATS_FREE + *reads * REPEATS_PERCENT / 100 {
            self.0 = State::Irregular {
                reads: 0,
                repeats: 0,
                clean: 0,
            };
        }
    }

    /// An epoch of a regular job has ended: what was before counts half, but for datasets with so few
    /// items that they are judged over several epochs.
    pub(super) fn epoch_ended(&mut self) {
        if let State::Regular { reads, repeats } = &mut self.0
            && *reads >= 4 * READS_MIN
        {
            *reads /= 2;
            *repeats /= 2;
        }
    }

    /// An irregular job has read an item. `repeat`: again in this run. `items`: as many as an epoch
    /// has. `true`: the run is over, and what was seen in it is to be forgotten; the job may be regular
    /// now.
    pub(super) fn read_irregular(&mut self, repeat: bool, items: u64) -> bool {
        let State::Irregular {
            reads,
            repeats,
            clean,
        } = &mut self.0
        else {
            return false;
        };
        *reads += 1;
        *repeats += u64::from(repeat);
        if *repeats <= (*reads / 100).max(2) {
            return false;
        }
        *clean = if *reads >= items - items / 10 {
            *clean + 1
        } else {
            0
        };
        if *clean >= CLEAN_RUNS {
            *self = Self::default();
        } else {
            *reads = 0;
            *repeats = 0;
        }
        true
    }
}
