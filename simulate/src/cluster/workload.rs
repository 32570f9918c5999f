//! The work of a cluster: datasets, and the jobs that read them.

use copperfs_policy::Keep;
use std::collections::{HashMap, HashSet};

/// The maximum number of jobs: a year of the largest clusters' traces.
pub(super) const JOBS_MAX: usize = 1 << 20;

/// A dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    /// Its name, unique.
    pub name: String,
    /// Bytes.
    pub size: f64,
    /// The rule of what is kept of it, for systems with uniform caches.
    pub keep: Keep,
}

/// A training job.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its name, unique.
    pub id: String,
    /// When it is submitted, in seconds.
    pub submit: f64,
    /// The model that it trains.
    pub model: String,
    /// The dataset that it reads: an index into [`Workload::datasets`].
    pub dataset: usize,
    /// GPUs, which it needs all at once.
    pub gpus: u32,
    /// Bytes per second that it reads when data is not its bottleneck (`f*`).
    pub ideal_rate: f64,
    /// Bytes that it reads in all its epochs.
    pub work: f64,
    /// The curriculum, if it has one instead of epochs.
    pub curriculum: Option<Curriculum>,
    /// Whether it takes resident items first, and reports its times. All jobs on chunks do.
    pub substitutes: bool,
}

/// Curriculum learning (Eq. 10): iteration `i` draws a batch uniformly from the first `min(start ·
/// growth^floor(i / step), 1)` of the items, which are sorted by difficulty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Curriculum {
    /// The initial fraction of items (`starting_percent`), above 0 and at most 1.
    pub start: f64,
    /// The factor by which the fraction grows (`alpha`), at least 1.
    pub growth: f64,
    /// The number of iterations after which it grows (`Step`), at least 1.
    pub step: u64,
    /// Bytes of an iteration's batch, by which bytes read are converted to iterations.
    pub batch_bytes: f64,
}

impl Curriculum {
    /// Returns the fraction of the items that an iteration draws from.
    #[must_use]
    pub fn pace(&self, iteration: u64) -> f64 {
        let grown = iteration / self.step;
        // `powi` takes an i32. Beyond that the fraction is 1 for any growth that f64 distinguishes
        // from 1.
        let grown = i32::try_from(grown).unwrap_or(i32::MAX);
        (self.start * self.growth.powi(grown)).min(1.0)
    }
}

/// Jobs in order of submission, and their datasets.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Workload {
    /// Datasets.
    pub datasets: Vec<Dataset>,
    /// Jobs.
    pub jobs: Vec<Job>,
}

/// Why a workload is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// There are no jobs.
    #[error("there is no job")]
    Empty,
    /// There are too many jobs.
    #[error("more than {JOBS_MAX} jobs")]
    TooMany,
    /// An id occurs twice.
    #[error("two jobs have the id {0:?}")]
    DuplicateJob(String),
    /// A dataset occurs twice.
    #[error("dataset {0:?} is there twice")]
    DuplicateDataset(String),
    /// A dataset has two sizes.
    #[error("dataset {name:?} has {first} bytes in one place and {second} in another")]
    TwoSizes {
        /// Its name.
        name: String,
        /// One of them.
        first: f64,
        /// The other.
        second: f64,
    },
    /// A job's dataset is unknown.
    #[error("job {job:?} reads {dataset:?}, which is no dataset of this file")]
    UnknownDataset {
        /// The job.
        job: String,
        /// The name of the dataset.
        dataset: String,
    },
    /// A number is out of range.
    #[error("{what} of {whose:?} must be {wanted}, not {found}")]
    Number {
        /// Which number.
        what: &'static str,
        /// Whose.
        whose: String,
        /// The valid range.
        wanted: &'static str,
        /// The value.
        found: f64,
    },
    /// A job is submitted before the previous one.
    #[error("job {job:?} is submitted at {at} s, before the job above it ({before} s)")]
    Backwards {
        /// The job.
        job: String,
        /// When.
        at: f64,
        /// When the previous job was submitted.
        before: f64,
    },
}

/// Builds a workload, and refuses invalid parts at once.
#[derive(Debug, Default)]
pub(super) struct Builder {
    workload: Workload,
    datasets: HashMap<String, usize>,
    ids: HashSet<String>,
}

impl Builder {
    /// Adds a dataset, or finds it if it exists with the same size; then it keeps its rule. Returns its
    /// index.
    ///
    /// # Errors
    /// The size is not positive, or differs from before.
    pub(super) fn dataset(
        &mut self,
        name: &str,
        size: f64,
        keep: Keep,
    ) -> Result<usize, WorkloadError> {
        positive("size", name, size)?;
        if let Some(&at) = self.datasets.get(name) {
            let first = self.workload.datasets[at].size;
            // Equal texts give equal numbers, so this compares the texts.
            if first.to_bits() == size.to_bits() {
                return Ok(at);
            }
            return Err(WorkloadError::TwoSizes {
                name: name.to_owned(),
                first,
                second: size,
            });
        }
        let at = self.workload.datasets.len();
        self.workload.datasets.push(Dataset {
            name: name.to_owned(),
            size,
            keep,
        });
        self.datasets.insert(name.to_owned(), at);
        Ok(at)
    }

    /// Returns the index of the dataset with this name.
    #[must_use]
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.datasets.get(name).copied()
    }

    /// Appends a job.
    ///
    /// # Errors
    /// The id is taken, the job is submitted before the last one, or a number is not positive.
    pub(super) fn job(&mut self, job: Job) -> Result<(), WorkloadError> {
        positive("ideal rate", &job.id, job.ideal_rate)?;
        positive("work", &job.id, job.work)?;
        positive("number of GPUs", &job.id, f64::from(job.gpus))?;
        let is_valid = job.submit.is_finite() && job.submit >= 0.0;
        let what = "time of submission";
        require(is_valid, what, &job.id, "zero or above", job.submit)?;
        if let Some(curriculum) = &job.curriculum {
            check_curriculum(&job.id, curriculum)?;
        }
        // The simulation takes submissions from the list in order.
        let before = self.workload.jobs.last().map_or(0.0, |last| last.submit);
        if job.submit < before {
            return Err(WorkloadError::Backwards {
                job: job.id,
                at: job.submit,
                before,
            });
        }
        if !self.ids.insert(job.id.clone()) {
            return Err(WorkloadError::DuplicateJob(job.id));
        }
        if self.workload.jobs.len() == JOBS_MAX {
            return Err(WorkloadError::TooMany);
        }
        self.workload.jobs.push(job);
        Ok(())
    }

    /// Returns the workload.
    ///
    /// # Errors
    /// There is no job.
    pub(super) fn finish(self) -> Result<Workload, WorkloadError> {
        if self.workload.jobs.is_empty() {
            return Err(WorkloadError::Empty);
        }
        Ok(self.workload)
    }
}

fn require(
    is_valid: bool,
    what: &'static str,
    whose: &str,
    wanted: &'static str,
    found: f64,
) -> Result<(), WorkloadError> {
    if is_valid {
        return Ok(());
    }
    Err(WorkloadError::Number {
        what,
        whose: whose.to_owned(),
        wanted,
        found,
    })
}

fn positive(what: &'static str, whose: &str, found: f64) -> Result<(), WorkloadError> {
    let is_valid = found.is_finite() && found > 0.0;
    require(is_valid, what, whose, "above zero", found)
}

fn check_curriculum(job: &str, curriculum: &Curriculum) -> Result<(), WorkloadError> {
    let (start, growth) = (curriculum.start, curriculum.growth);
    let is_valid = start > 0.0 && start <= 1.0;
    let wanted = "above 0 and at most 1";
    require(is_valid, "starting_percent", job, wanted, start)?;
    let is_valid = growth.is_finite() && growth >= 1.0;
    require(is_valid, "alpha", job, "at least 1", growth)?;
    require(curriculum.step > 0, "step", job, "at least 1", 0.0)?;
    positive("batch", job, curriculum.batch_bytes)
}
