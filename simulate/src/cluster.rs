//! A training cluster: jobs, GPUs, one cache, one link to storage, and their division.
//!
//! It models jobs that read their dataset once per epoch, in another random order each time;
//! schedulers of GPUs ([`Scheduler`]); systems that divide cache and remote IO ([`System`]); and
//! that a newly cached item helps a job only from its next epoch on (§6) (SiloD, EuroSys '23). It
//! does not model the location of items in the cluster (reading from a peer is as fast as reading
//! locally, Figure 3), the network between nodes, failures, or start-up times.
//!
//! The policies are those of [`copperfs_policy`], so simulations show the real behaviour. Two
//! granularities share schedulers, policies and results: `fluid` treats datasets as liquids and
//! steps from event to event; `items` simulates every item in real caches. The second validates the
//! first. Only `items` simulates datasets of which two chunks are kept (Quiver, FAST '20).
//! `docs/SIMULATOR.md` describes all of it.
//!
//! Pure: no I/O, no clock; a scenario always has the same outcome, to the last bit.

mod control;
mod fluid;
pub mod generate;
mod items;
mod lru;
mod outcome;
mod progress;
mod simulation;
pub mod trace;
mod uniform;
mod workload;

#[cfg(test)]
mod tests;

pub use outcome::{ChoiceChange, ChunkSpan, JobOutcome, Outcome, Sample};
pub use workload::{Curriculum, Dataset, Job, Workload, WorkloadError};

use crate::num::as_f64;
use copperfs_policy::Keep;
use copperfs_policy::chunks::{CHUNK_BYTES, EVICT_AFTER, LayoutError};
use serde::Serialize;
use simulation::{has_options, keep, substitutes};

/// The maximum number of GPUs: far above any cluster, and far below an overflow.
pub const GPUS_MAX: u32 = 1 << 20;
/// The maximum number of steps of a run. 14 days of a 400-GPU cluster take some hundred thousand,
/// so a run with more steps is endless.
const STEPS_MAX: u64 = 50_000_000;

/// How GPUs are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// In order of submission. A job that does not fit blocks the jobs after it
    Fifo,
    /// Shortest job first, without preemption (Eq. 6 for the baselines, Eq. 7 for silod)
    Sjf,
    /// Max-min fairness of Gavel: all jobs share the GPUs in time (Eq. 8; Eq. 9 for silod)
    Gavel,
}

/// How cache and remote IO are divided, and how the cache behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// Uniform caches. The policy of the scheduler allocates cache and remote IO
    Silod,
    /// One LRU cache for all jobs
    Alluxio,
    /// A uniform cache for each job, proportional to its GPUs
    Coordl,
    /// Uniform caches for whole datasets, by benefit over cost, or for two chunks of a dataset
    Quiver,
}

impl System {
    /// All systems, in the order of the paper's tables.
    pub const ALL: [Self; 4] = [Self::Silod, Self::Coordl, Self::Alluxio, Self::Quiver];

    /// Returns its name in the paper.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Silod => "SiloD",
            Self::Alluxio => "Alluxio",
            Self::Coordl => "CoorDL",
            Self::Quiver => "Quiver",
        }
    }
}

/// The granularity of simulated reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Granularity {
    /// Computes with the expected numbers of cached items
    Fluid,
    /// Simulates each item, in random orders, with real caches
    Item,
}

/// A cluster and its systems.
#[derive(Debug, Clone, Serialize)]
pub struct Scenario {
    /// GPUs.
    pub gpus: u32,
    /// Cache of all nodes, in bytes.
    pub cache: f64,
    /// Throughput of storage for all nodes, in bytes per second.
    pub remote_io: f64,
    /// How GPUs are divided.
    pub scheduler: Scheduler,
    /// How cache and remote IO are divided.
    pub system: System,
    /// Whether `silod` allocates remote IO. Otherwise it is shared fairly, as in the baselines.
    pub remote_io_allocation: bool,
    /// The granularity.
    pub granularity: Granularity,
    /// The factor of all ideal rates.
    pub gpu_speed: f64,
    /// The number of items of the largest dataset that fits into the cache (`item` only). Other
    /// datasets are in proportion.
    pub items: u32,
    /// The number of items in a mini-batch (`item` only).
    pub batch: u32,
    /// The seed of orders and evictions (`item` only).
    pub seed: u64,
    /// The maximum bytes of a chunk, for datasets that are kept in chunks (`item` only).
    pub chunk_size: f64,
    /// How long a marked chunk stays after the first job has exhausted it, in seconds (`item` only).
    pub evict_after_s: f64,
}

impl Default for Scenario {
    /// The paper's 400 GPUs (§7.2). The cache is an assumption, because the paper gives none.
    fn default() -> Self {
        Self {
            gpus: 400,
            cache: 50e12,
            remote_io: 4e9,
            scheduler: Scheduler::Fifo,
            system: System::Silod,
            remote_io_allocation: true,
            granularity: Granularity::Fluid,
            gpu_speed: 1.0,
            items: 8192,
            batch: 64,
            seed: 1,
            chunk_size: as_f64(CHUNK_BYTES),
            evict_after_s: EVICT_AFTER.as_secs_f64(),
        }
    }
}

/// Why a scenario cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ClusterError {
    /// A number is out of range.
    #[error("{what} must be {wanted}, not {found}")]
    Number {
        /// Which number.
        what: &'static str,
        /// The valid range.
        wanted: &'static str,
        /// The value.
        found: f64,
    },
    /// A job can never start.
    #[error("job {job:?} needs {needs} GPUs; the cluster has {gpus}")]
    TooManyGpus {
        /// Its name.
        job: String,
        /// The GPUs that it needs.
        needs: u32,
        /// The GPUs of the cluster.
        gpus: u32,
    },
    /// There are too many items to simulate each.
    #[error(
        "item granularity would read {reads:.1e} items, more than {max:.0e}: simulate fewer jobs, \
         set fewer --items, or use --granularity fluid"
    )]
    TooManyItems {
        /// The number of items that all jobs would read.
        reads: f64,
        /// The maximum.
        max: f64,
    },
    /// A job has a curriculum, but fluid granularity assumes uniform reads.
    #[error("job {job:?} has a curriculum: simulate it with --granularity item")]
    Curriculum {
        /// Its name.
        job: String,
    },
    /// A job has a curriculum, but items of chunks are read in any order.
    #[error(
        "job {job:?} has a curriculum, so it cannot read its dataset in any order: set keep = \"uniform\" \
         and leave out substitutes"
    )]
    CurriculumOfChunks {
        /// Its name.
        job: String,
    },
    /// A dataset is or may be kept in chunks, but fluid granularity has no items to substitute.
    #[error(
        "jobs take items of dataset {dataset:?} in any order: simulate it with --granularity item"
    )]
    FluidChunks {
        /// Its name.
        dataset: String,
    },
    /// A dataset is kept by references of pipelines, which jobs of training have none of.
    #[error(
        "dataset {dataset:?} is kept by references, and no job here has any: simulate pipelines with \
         copperfs simulate pipelines, or give the dataset another keep"
    )]
    References {
        /// Its name.
        dataset: String,
    },
    /// A dataset has no chunks.
    #[error(
        "dataset {dataset:?} is kept in chunks: {source}. (--items sets the number of entries)"
    )]
    Chunks {
        /// Its name.
        dataset: String,
        /// Why.
        source: LayoutError,
    },
    /// The run has no end.
    #[error(
        "no end after {STEPS_MAX} steps, at {days:.0} simulated days with {finished} of {jobs} \
         jobs finished: is remote IO far too small for the work?"
    )]
    Endless {
        /// Simulated time.
        days: f64,
        /// The number of finished jobs.
        finished: usize,
        /// The number of all jobs.
        jobs: usize,
    },
}

/// Simulates `workload` until its last job has finished.
///
/// # Errors
/// A number is out of range, a job is larger than the cluster, or there is too much to simulate.
pub fn run(scenario: &Scenario, workload: &Workload) -> Result<Outcome, ClusterError> {
    check(scenario, workload)?;
    match scenario.granularity {
        Granularity::Fluid => fluid::run(scenario, workload),
        Granularity::Item => items::run(scenario, workload),
    }
}

fn check(scenario: &Scenario, workload: &Workload) -> Result<(), ClusterError> {
    let require = |is_valid: bool, what, wanted, found: f64| match is_valid {
        true => Ok(()),
        false => Err(ClusterError::Number {
            what,
            wanted,
            found,
        }),
    };
    let gpus = scenario.gpus;
    let is_valid = (1..=GPUS_MAX).contains(&gpus);
    require(is_valid, "the number of GPUs", "1 to 1048576", gpus.into())?;
    for (what, found) in [
        ("the cache", scenario.cache),
        ("remote IO", scenario.remote_io),
        ("the GPUs' speed", scenario.gpu_speed),
        ("the size of chunks", scenario.chunk_size),
        ("the time before eviction", scenario.evict_after_s),
    ] {
        // NaN is refused, too.
        require(found.is_finite() && found > 0.0, what, "above zero", found)?;
    }
    let (items, batch) = (scenario.items, scenario.batch);
    let is_valid = (64..=1 << 20).contains(&items);
    require(
        is_valid,
        "the number of items",
        "64 to 1048576",
        items.into(),
    )?;
    let is_valid = (1..=items).contains(&batch);
    require(is_valid, "a batch", "1 item to all items", batch.into())?;
    let mut sets = 0..workload.datasets.len();
    if let Some(set) = sets.find(|&set| keep(scenario, workload, set) == Keep::References) {
        return Err(ClusterError::References {
            dataset: workload.datasets[set].name.clone(),
        });
    }
    if scenario.granularity == Granularity::Fluid {
        let mut sets = 0..workload.datasets.len();
        let substituted = |set: usize| {
            keep(scenario, workload, set) == Keep::Chunks || has_options(scenario, workload, set)
        };
        if let Some(set) = sets.find(|&set| substituted(set)) {
            return Err(ClusterError::FluidChunks {
                dataset: workload.datasets[set].name.clone(),
            });
        }
    }
    for job in &workload.jobs {
        // Such a job would block the queue forever.
        if job.gpus > scenario.gpus {
            return Err(ClusterError::TooManyGpus {
                job: job.id.clone(),
                needs: job.gpus,
                gpus: scenario.gpus,
            });
        }
        if job.curriculum.is_none() {
            continue;
        }
        let job_id = job.id.clone();
        if scenario.granularity == Granularity::Fluid {
            return Err(ClusterError::Curriculum { job: job_id });
        }
        if substitutes(scenario, workload, job) {
            return Err(ClusterError::CurriculumOfChunks { job: job_id });
        }
    }
    Ok(())
}
