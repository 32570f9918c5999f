//! Problems and allocations.
//!
//! All amounts are `f64`: bytes, bytes per second, seconds. Jobs and datasets are identified by
//! their index in the problem's lists; their names are for people.

use super::choice::Choice;
use super::keep::Keep;
use super::times::{Mode, Times};

/// The size of a chunk unless another is set, in bytes (Quiver, section 7).
pub const CHUNK_SIZE: f64 = 15e9;
/// The fewest chunks of a dataset: one has at most a tenth of it (Quiver, section 5.3).
const CHUNKS_MIN: f64 = 10.0;

/// The resources of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Totals {
    /// GPUs.
    pub gpus: f64,
    /// Cache of all nodes, in bytes.
    pub cache: f64,
    /// Throughput of the storage service for all nodes, in bytes per second.
    pub remote_io: f64,
}

/// A dataset, to which cache is allocated.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Dataset {
    /// Its name, unique.
    pub name: String,
    /// Size in bytes (`d` in the paper).
    pub size: f64,
    /// A budget in bytes that was set by hand (`allocateCacheSize`). The policies allocate exactly
    /// that (at most the dataset's size) before they divide the rest. `None`: the policy decides.
    pub budget: Option<f64>,
    /// The rule of what its homes keep. With `none` it gets no cache, whatever its budget. With
    /// `chunks` it gets two chunks as if by hand, while a job that substitutes reads it. With `references` it
    /// gets its budget, and nothing without one.
    pub keep: Keep,
    /// The size of a chunk in bytes. `None`: [`CHUNK_SIZE`]. A chunk has at most a tenth of the
    /// dataset.
    pub chunk_size: Option<f64>,
}

impl Dataset {
    /// Returns the cost of chunks in bytes: two of them, because one is filled while jobs read the
    /// other (Quiver, section 5.3).
    #[must_use]
    pub fn two_chunks(&self) -> f64 {
        2.0 * self
            .chunk_size
            .unwrap_or(CHUNK_SIZE)
            .min(self.size / CHUNKS_MIN)
    }

    /// Returns the bytes that were set by hand, directly or by the rule. `None`: the policy decides.
    /// `substituted`: whether a job that can use chunks reads the dataset.
    pub(super) fn set_by_hand(&self, substituted: bool) -> Option<f64> {
        match self.keep {
            Keep::None => Some(0.0),
            Keep::Chunks if self.budget.is_none() => {
                Some(if substituted { self.two_chunks() } else { 0.0 })
            }
            // Its budget follows from the references of pipelines, which no policy knows.
            Keep::References => Some(self.budget.unwrap_or(0.0).clamp(0.0, self.size)),
            Keep::Auto | Keep::Uniform | Keep::Chunks => {
                let budget = self.budget?;
                Some(budget.clamp(0.0, self.size))
            }
        }
    }
}

/// A training job, to which remote IO is allocated.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Job {
    /// Its name, unique.
    pub id: String,
    /// The dataset that it reads: an index into [`Problem::datasets`].
    pub dataset: usize,
    /// Bytes per second that it reads when data is not its bottleneck (`f*`).
    pub ideal_rate: f64,
    /// Whether `ideal_rate` is not known: it is the most that the job could reach.
    pub is_rate_assumed: bool,
    /// GPUs that it needs.
    pub gpus: f64,
    /// Bytes that it still has to read (over all epochs). `None`: unknown.
    pub work: Option<f64>,
    /// The fraction of its next reads that hits *now*: items that were cached before its epoch
    /// began (§6, delayed effectiveness). `None`: cached bytes divided by size (`c/d`).
    pub hit_ratio: Option<f64>,
    /// A rate in bytes per second that was set by hand (`allocateRemoteIO`). The policies allocate
    /// exactly that before they divide the rest. `None`: the policy decides.
    pub remote_io: Option<f64>,
    /// Whether it takes whichever items are cached first, so that chunks serve it.
    pub substitutes: bool,
    /// Its measured times per mini-batch. `None`: not measured, and the benefit follows from the
    /// performance model.
    pub measured: Option<Times>,
    /// How its look-ups are answered now. They all miss unless this is [`Mode::Cached`]. No cache is
    /// allocated for [`Mode::Uncached`] by `benefit`, the policy that switches jobs off.
    pub mode: Mode,
}

impl Job {
    /// Returns whether chunks serve the job: it substitutes, and has not been switched off.
    pub(super) fn uses_chunks(&self) -> bool {
        self.substitutes && self.mode != Mode::Uncached
    }
}

/// An allocation problem.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Problem {
    /// The resources.
    pub totals: Totals,
    /// The datasets.
    pub datasets: Vec<Dataset>,
    /// The running jobs (or waiting jobs, for policies that order them), in order of submission.
    pub jobs: Vec<Job>,
}

/// The allocation to a dataset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DatasetShare {
    /// Bytes of cache (`c`), at most its size. With `static` it is the sum of its jobs' private
    /// caches, which can be more.
    pub cache: f64,
    /// What these bytes hold. Only `benefit` chooses; with other policies it follows from the bytes
    /// and the dataset's rule.
    pub choice: Choice,
}

impl DatasetShare {
    /// Returns the share of a dataset that has `cache` bytes and is not kept in chunks by a policy's
    /// choice.
    pub(super) fn of(dataset: &Dataset, cache: f64) -> Self {
        let choice = match dataset.keep {
            // Less than a byte is the rounding of a sum.
            _ if cache < 1.0 => Choice::None,
            Keep::Chunks => Choice::Chunks,
            _ if cache >= dataset.size => Choice::Whole,
            _ => Choice::Uniform,
        };
        Self { cache, choice }
    }
}

/// The allocation to a job, and its expected performance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JobShare {
    /// Cached bytes that it can hit (`c` in Eq. 4): its dataset's allocation, or its own part of
    /// that if caches are private (`static`).
    pub cache: f64,
    /// How its look-ups are to be answered. Only `benefit` answers others than it was given.
    pub mode: Mode,
    /// The fraction of its reads that hits: the job's own `hit_ratio` if given, otherwise the
    /// steady state of `cache`. The rates below follow from it. A job that reads chunks fetches its
    /// part of the misses and hits the rest, and a job that is not [`Mode::Cached`] hits nothing,
    /// whatever its `hit_ratio`.
    pub hit_ratio: f64,
    /// Remote IO that it needs and gets (`b`), in bytes per second: at most `ideal_rate · (1 -
    /// hit_ratio)`, unless it was set by hand.
    pub remote_io: f64,
    /// The enforced limit in bytes per second: `remote_io` plus a part of the unneeded remote IO,
    /// in proportion to the ideal rates. So a job does not wait while remote IO is free, if an item
    /// was lost or an estimate is low.
    pub limit: f64,
    /// The expected rate of its reads with this, in bytes per second (Eq. 4).
    pub throughput: f64,
    /// The policy's score, if it has one: Eq. 7 for `sjf`, the fairness ratio for `max-min`, the
    /// dataset's cache efficiency for `greedy`, the factor by which the cache speeds the job up for
    /// `benefit`.
    pub score: Option<f64>,
    /// Its rank in the policy's order, from 0.
    pub order: usize,
}

/// An allocation. Its lists have the order of the problem's lists.
#[derive(Debug, Clone, PartialEq)]
pub struct Allocation {
    /// The allocation to each dataset.
    pub datasets: Vec<DatasetShare>,
    /// The allocation to each job.
    pub jobs: Vec<JobShare>,
    /// The value that the policy maximises (`sjf`: minimises), which each policy defines.
    pub objective: f64,
}
