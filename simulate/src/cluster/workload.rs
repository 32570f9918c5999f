//! What a cluster is asked to do: datasets, and the jobs that read them.

use std::collections::{HashMap, HashSet};

/// Most jobs of a workload: a year of the largest clusters' traces.
pub(super) const JOBS_MAX: usize = 1 << 20;

/// A dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    /// Its name, unique.
    pub name: String,
    /// Bytes.
    pub size: f64,
}

/// A training job.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its name, unique.
    pub id: String,
    /// When it is submitted, in seconds.
    pub submit: f64,
    /// What it trains.
    pub model: String,
    /// What it reads: a position in [`Workload::datasets`].
    pub dataset: usize,
    /// GPUs, all at once or none.
    pub gpus: u32,
    /// Bytes a second that it reads when data is not its bottleneck (`f*`).
    pub ideal_rate: f64,
    /// Bytes that it reads in all its epochs.
    pub work: f64,
    /// If it has no epochs but a curriculum.
    pub curriculum: Option<Curriculum>,
}

impl Job {
    /// Seconds that it takes when data is not its bottleneck.
    #[must_use]
    pub fn ideal_duration(&self) -> f64 {
        self.work / self.ideal_rate
    }
}

/// Curriculum learning (Eq. 10): at iteration `i` a batch is drawn evenly from the first
/// `min(start · growth^floor(i / step), 1)` of the items, which are sorted by difficulty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Curriculum {
    /// The part of the items that is presented first (`starting_percent`), above 0 and at most 1.
    pub start: f64,
    /// By what the part grows (`alpha`), at least 1.
    pub growth: f64,
    /// After how many iterations it grows (`Step`), at least 1.
    pub step: u64,
    /// Bytes of an iteration's batch; with it iterations are told from bytes read.
    pub batch_bytes: f64,
}

impl Curriculum {
    /// The part of the items that iteration `i` draws from.
    #[must_use]
    pub fn pace(&self, iteration: u64) -> f64 {
        let grown = iteration / self.step;
        // Beyond this the part is 1 for any growth that f64 tells from 1; and `powi` takes an i32.
        let grown = i32::try_from(grown).unwrap_or(i32::MAX);
        (self.start * self.growth.powi(grown)).min(1.0)
    }
}

/// Jobs in order of submission, and what they read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Workload {
    /// Datasets.
    pub datasets: Vec<Dataset>,
    /// Jobs.
    pub jobs: Vec<Job>,
}

/// A workload that makes no sense.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// Nothing to do.
    #[error("there is no job")]
    Empty,
    /// More than is simulated.
    #[error("more than {JOBS_MAX} jobs")]
    TooMany,
    /// An id twice.
    #[error("two jobs have the id {0:?}")]
    DuplicateJob(String),
    /// A dataset twice.
    #[error("dataset {0:?} is there twice")]
    DuplicateDataset(String),
    /// A dataset with two sizes.
    #[error("dataset {name:?} has {first} bytes in one place and {second} in another")]
    TwoSizes {
        /// Its name.
        name: String,
        /// One of them.
        first: f64,
        /// The other.
        second: f64,
    },
    /// A job that reads nothing that is known.
    #[error("job {job:?} reads {dataset:?}, which is no dataset of this file")]
    UnknownDataset {
        /// The job.
        job: String,
        /// What it names.
        dataset: String,
    },
    /// A number that cannot be.
    #[error("{what} of {whose:?} must be {wanted}, not {found}")]
    Number {
        /// Which number.
        what: &'static str,
        /// Whose.
        whose: String,
        /// What would do.
        wanted: &'static str,
        /// What it is.
        found: f64,
    },
    /// A job before the one above it.
    #[error("job {job:?} is submitted at {at} s, before the job above it ({before} s)")]
    Backwards {
        /// The job.
        job: String,
        /// When.
        at: f64,
        /// When the one above it was.
        before: f64,
    },
}

/// Collects a workload piece by piece, refusing what makes no sense where it stands.
#[derive(Debug, Default)]
pub(super) struct Builder {
    workload: Workload,
    datasets: HashMap<String, usize>,
    ids: HashSet<String>,
}

impl Builder {
    /// Adds a dataset that may be there already with the same size; its position.
    ///
    /// # Errors
    /// A size of zero or less, or another size than before.
    pub(super) fn dataset(&mut self, name: &str, size: f64) -> Result<usize, WorkloadError> {
        positive("size", name, size)?;
        if let Some(&at) = self.datasets.get(name) {
            let first = self.workload.datasets[at].size;
            // The same text gives the same number, so this compares what was written.
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
        });
        self.datasets.insert(name.to_owned(), at);
        Ok(at)
    }

    /// The position of the dataset of that name.
    #[must_use]
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.datasets.get(name).copied()
    }

    /// Adds a job behind those that are there.
    ///
    /// # Errors
    /// An id that is taken, a time before the last job's, numbers of zero or less.
    pub(super) fn job(&mut self, job: Job) -> Result<(), WorkloadError> {
        positive("ideal rate", &job.id, job.ideal_rate)?;
        positive("work", &job.id, job.work)?;
        positive("number of GPUs", &job.id, f64::from(job.gpus))?;
        if !(job.submit.is_finite() && job.submit >= 0.0) {
            return Err(WorkloadError::Number {
                what: "time of submission",
                whose: job.id,
                wanted: "zero or above",
                found: job.submit,
            });
        }
        if let Some(curriculum) = &job.curriculum {
            check_curriculum(&job.id, curriculum)?;
        }
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

    /// What was collected.
    ///
    /// # Errors
    /// No job.
    pub(super) fn finish(self) -> Result<Workload, WorkloadError> {
        if self.workload.jobs.is_empty() {
            return Err(WorkloadError::Empty);
        }
        Ok(self.workload)
    }
}

fn positive(what: &'static str, whose: &str, found: f64) -> Result<(), WorkloadError> {
    if found.is_finite() && found > 0.0 {
        return Ok(());
    }
    Err(WorkloadError::Number {
        what,
        whose: whose.to_owned(),
        wanted: "above zero",
        found,
    })
}

fn check_curriculum(job: &str, curriculum: &Curriculum) -> Result<(), WorkloadError> {
    let wrong = |what, wanted, found| WorkloadError::Number {
        what,
        whose: job.to_owned(),
        wanted,
        found,
    };
    if !(curriculum.start > 0.0 && curriculum.start <= 1.0) {
        let wanted = "above 0 and at most 1";
        return Err(wrong("starting_percent", wanted, curriculum.start));
    }
    if !(curriculum.growth.is_finite() && curriculum.growth >= 1.0) {
        return Err(wrong("alpha", "at least 1", curriculum.growth));
    }
    if curriculum.step == 0 {
        return Err(wrong("step", "at least 1", 0.0));
    }
    positive("batch", job, curriculum.batch_bytes)
}
