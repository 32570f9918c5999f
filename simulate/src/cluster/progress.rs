//! The progress of jobs, and caches as liquids.

use super::Sample;

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

/// A cache whose datasets are liquids.
pub(super) trait LiquidCache {
    /// A job starts at `now`.
    fn start(&mut self, slot: usize, job: usize, now: f64, progress: &mut Progress);

    /// A job ends.
    fn finish(&mut self, slot: usize, job: usize);

    /// A job begins an epoch.
    fn epoch(&mut self, slot: usize, job: usize, progress: &mut Progress);

    /// Sets the budget of each slot.
    fn set_budgets(&mut self, _budgets: &[f64], _progress: &mut [Progress]) {}

    /// Returns the longest step in seconds over which hit ratios hardly change.
    fn step(&self, progress: &[Progress]) -> f64;

    /// Jobs read for `seconds` at their rates.
    fn advance(&mut self, seconds: f64, progress: &mut [Progress]);

    /// Updates hit ratios after a step of `seconds`.
    fn settle(&mut self, _seconds: f64, _progress: &mut [Progress]) {}

    /// Measures the content for the running jobs: the bytes allocated to datasets that are being read, the filled
    /// part of it, and the useful part of it. The sample has no other values.
    fn measure(&self, progress: &[Progress]) -> Sample;
}
