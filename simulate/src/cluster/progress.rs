//! How far a job is.

/// A job's state while it is in the cluster. Bytes, bytes a second, seconds.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// What it still has to read.
    pub(super) left: f64,
    /// What it has read in this epoch.
    pub(super) read: f64,
    /// Which part of what it reads next is in the cache and useful to it.
    pub(super) hit: f64,
    /// Which part of the time it has its GPUs (1 but under Gavel).
    pub(super) share: f64,
    /// What it reads now.
    pub(super) rate: f64,
    /// What of that comes from storage.
    pub(super) remote: f64,
    /// What it would read with an equal part of everything (Eq. 8).
    pub(super) equal: f64,
    /// When it first had GPUs.
    pub(super) started: Option<f64>,
    /// When it was done.
    pub(super) finished: Option<f64>,
}

/// What a cache holds for the jobs that run, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Filling {
    /// Given to datasets that are being read.
    pub(super) allocated: f64,
    /// Of it filled.
    pub(super) cached: f64,
    /// Useful to those who read: hit ratio times dataset.
    pub(super) effective: f64,
}
