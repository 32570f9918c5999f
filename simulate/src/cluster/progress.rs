//! The progress of jobs, and caches as liquids.

use super::Workload;

/// A job's state while it is in the cluster. Bytes, bytes per second, seconds.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// Bytes that it still has to read.
    pub(super) left: f64,
    /// Bytes that it has read in this epoch.
    pub(super) read: f64,
    /// The fraction of its next reads that hits.
    pub(super) hit: f64,
    /// The fraction of the time during which it has its GPUs (1 except under Gavel).
    pub(super) share: f64,
    /// Its current rate.
    pub(super) rate: f64,
    /// The part of its rate that comes from storage.
    pub(super) remote: f64,
    /// Its rate with an equal part of everything (Eq. 8).
    pub(super) equal: f64,
    /// When it first had GPUs.
    pub(super) started: Option<f64>,
    /// When it finished.
    pub(super) finished: Option<f64>,
}

/// The content of a cache for the running jobs, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Filling {
    /// Allocated to datasets that are being read.
    pub(super) allocated: f64,
    /// The filled part of it.
    pub(super) cached: f64,
    /// The useful part of it: hit ratio times dataset size.
    pub(super) effective: f64,
}

/// A cache whose datasets are liquids.
pub(super) trait LiquidCache {
    /// Returns the number of slots with a budget.
    fn slots(&self) -> usize {
        0
    }

    /// A job starts at `now`.
    fn start(&mut self, workload: &Workload, job: usize, now: f64, progress: &mut Progress);

    /// A job ends.
    fn finish(&mut self, workload: &Workload, job: usize);

    /// A job begins an epoch.
    fn epoch(&mut self, workload: &Workload, job: usize, progress: &mut Progress);

    /// Sets the budget of each slot.
    fn set_budgets(&mut self, _budgets: &[f64], _progress: &mut [Progress]) {}

    /// Returns the longest step in seconds over which hit ratios hardly change.
    fn step(&self, progress: &[Progress]) -> f64;

    /// Jobs read for `seconds` at their rates.
    fn advance(&mut self, seconds: f64, progress: &mut [Progress]);

    /// Updates hit ratios after a step of `seconds`.
    fn settle(&mut self, _seconds: f64, _progress: &mut [Progress]) {}

    /// Measures the content.
    fn measure(&self, progress: &[Progress]) -> Filling;
}
