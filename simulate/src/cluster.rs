//! A cluster that trains: jobs, GPUs, one cache, one link to storage, and who gets how much of each.
//!
//! What it models (SiloD, EuroSys '23): jobs that read their dataset once an epoch, in an order of
//! its own each time; schedulers that give out GPUs ([`Scheduler`]); cache systems that give out
//! cache and remote IO ([`System`]); that a newly cached item helps a job from its next epoch on
//! (§6). What it does not: where in the cluster an item lies (reading from a peer is as fast as
//! reading locally, Figure 3), the network between nodes, failures, start-up times.
//!
//! The policies are those of [`copperfs_policy`], so what is simulated is what runs. Two
//! granularities share scheduler, policies and read-outs: `fluid` treats datasets as liquids and
//! steps from event to event; `items` plays every item through real caches. The second shows that
//! the first is right. `docs/SIMULATOR.md` says it all at length.
//!
//! Pure: no I/O, no clock; the same scenario gives the same outcome to the last bit.

mod control;
mod fluid;
pub mod generate;
mod items;
mod lru;
mod outcome;
mod progress;
mod schedule;
pub mod trace;
mod uniform;
mod workload;

#[cfg(test)]
mod tests;

pub use outcome::{JobOutcome, Outcome, Sample};
pub use workload::{Curriculum, Dataset, Job, Workload, WorkloadError};

use serde::Serialize;

/// Most GPUs of a scenario: far above any cluster, far below what overflows.
pub const GPUS_MAX: u32 = 1 << 20;
/// Steps of a run. The 14 days of a 400-GPU cluster take some hundred thousand; a run that takes so
/// many more is called endless.
const STEPS_MAX: u64 = 50_000_000;

/// Who gets GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// In order of submission; the first that does not fit blocks those behind it
    Fifo,
    /// Shortest first: Eq. 6 for the baselines, Eq. 7 for silod; nobody is preempted
    Sjf,
    /// Gavel's max-min fairness: all jobs share the GPUs in time (Eq. 8; Eq. 9 for silod)
    Gavel,
}

/// Who gets cache and remote IO, and how the cache behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// Uniform caches, cache and remote IO allocated by the policy that suits the scheduler
    Silod,
    /// One LRU cache for all
    Alluxio,
    /// Each job its own uniform cache: its GPUs' part of the whole
    Coordl,
    /// Uniform caches, each dataset whole or not at all, by benefit over cost
    Quiver,
}

impl System {
    /// All of them, in the order of the paper's tables.
    pub const ALL: [Self; 4] = [Self::Silod, Self::Coordl, Self::Alluxio, Self::Quiver];

    /// Its name in the paper.
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

/// How finely reads are played through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Granularity {
    /// Datasets as liquids: expectations instead of items
    Fluid,
    /// Every item, in random order, through a real cache
    Item,
}

/// A cluster and its rules.
#[derive(Debug, Clone, Serialize)]
pub struct Scenario {
    /// GPUs.
    pub gpus: u32,
    /// Cache in bytes, over all nodes.
    pub cache: f64,
    /// What storage gives, in bytes a second, over all nodes.
    pub remote_io: f64,
    /// Who gets GPUs.
    pub scheduler: Scheduler,
    /// Who gets the rest.
    pub system: System,
    /// Whether `silod` allocates remote IO; if not it is shared fairly, as the baselines do.
    pub remote_io_allocation: bool,
    /// How finely.
    pub granularity: Granularity,
    /// All ideal rates times this.
    pub gpu_speed: f64,
    /// Items of the largest dataset that fits into the cache (`item` only); others in proportion.
    pub items: u32,
    /// Items of a mini-batch step (`item` only).
    pub batch: u32,
    /// For orders and evictions (`item` only).
    pub seed: u64,
}

impl Default for Scenario {
    /// The paper's 400 GPUs (§7.2); its cache is ours, the paper gives none.
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
        }
    }
}

/// Why a scenario cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ClusterError {
    /// A number that no cluster has.
    #[error("{what} must be {wanted}, not {found}")]
    Number {
        /// Which number.
        what: &'static str,
        /// What would do.
        wanted: &'static str,
        /// What it is.
        found: f64,
    },
    /// A job that can never start.
    #[error("job {job:?} needs {needs} GPUs; the cluster has {gpus}")]
    TooManyGpus {
        /// Its name.
        job: String,
        /// What it needs.
        needs: u32,
        /// What there is.
        gpus: u32,
    },
    /// Item granularity plays every item: that takes too long for so much.
    #[error(
        "item granularity would read {reads:.1e} items, more than {max:.0e}: simulate fewer jobs, \
         set fewer --items, or use --granularity fluid"
    )]
    TooManyItems {
        /// What all jobs together would read.
        reads: f64,
        /// The most that is played.
        max: f64,
    },
    /// A curriculum's reads are not uniform, which the fluid counts on.
    #[error("job {job:?} has a curriculum: simulate it with --granularity item")]
    Curriculum {
        /// Its name.
        job: String,
    },
    /// No end in sight.
    #[error(
        "no end after {STEPS_MAX} steps, at {days:.0} simulated days with {finished} of {jobs} \
         jobs finished: is remote IO far too small for the work?"
    )]
    Endless {
        /// Simulated time.
        days: f64,
        /// Jobs that finished.
        finished: usize,
        /// All jobs.
        jobs: usize,
    },
}

/// Simulates `workload` until its last job has finished.
///
/// # Errors
/// Numbers that make no sense, a job larger than the cluster, or more than can be played through.
pub fn run(scenario: &Scenario, workload: &Workload) -> Result<Outcome, ClusterError> {
    check(scenario, workload)?;
    match scenario.granularity {
        Granularity::Fluid => fluid::run(scenario, workload),
        Granularity::Item => items::run(scenario, workload),
    }
}

fn check(scenario: &Scenario, workload: &Workload) -> Result<(), ClusterError> {
    let number = |what, wanted, found| ClusterError::Number {
        what,
        wanted,
        found,
    };
    if scenario.gpus == 0 || scenario.gpus > GPUS_MAX {
        let found = f64::from(scenario.gpus);
        return Err(number("the number of GPUs", "1 to 1048576", found));
    }
    let amounts = [
        ("the cache", scenario.cache),
        ("remote IO", scenario.remote_io),
        ("the GPUs' speed", scenario.gpu_speed),
    ];
    for (what, found) in amounts {
        if !(found.is_finite() && found > 0.0) {
            return Err(number(what, "above zero", found));
        }
    }
    if !(64..=1 << 20).contains(&scenario.items) {
        let found = f64::from(scenario.items);
        return Err(number("the number of items", "64 to 1048576", found));
    }
    if scenario.batch == 0 || scenario.batch > scenario.items {
        let found = f64::from(scenario.batch);
        return Err(number("a batch", "1 item to all items", found));
    }
    for job in &workload.jobs {
        if job.gpus > scenario.gpus {
            return Err(ClusterError::TooManyGpus {
                job: job.id.clone(),
                needs: job.gpus,
                gpus: scenario.gpus,
            });
        }
        if job.curriculum.is_some() && scenario.granularity == Granularity::Fluid {
            return Err(ClusterError::Curriculum {
                job: job.id.clone(),
            });
        }
    }
    Ok(())
}
