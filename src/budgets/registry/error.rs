//! Why the registry refuses a change, with advice.

use super::{DATASETS_MAX, JOBS_MAX, NAME_BYTES_MAX};
use crate::model::ErrorKind;
use crate::nearest::nearest;
use copperfs_overlay::ItemPath;
use copperfs_policy::Policy;
use copperfs_policy::amounts::ByteSize;

/// Why a change is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegistryError {
    /// An invalid name.
    #[error("{name:?} cannot be the name of a {what}")]
    Name {
        /// `dataset` or `job`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A reserved name.
    #[error("{0:?} stands for reads that belong to no job")]
    Reserved(String),
    /// The dataset's name is taken.
    #[error("there is a dataset {name:?} already, at {path}")]
    DatasetTaken {
        /// The name.
        name: String,
        /// The path of the existing dataset.
        path: ItemPath,
    },
    /// The job's name is taken.
    #[error("there is a job {0:?} already")]
    JobTaken(String),
    /// One dataset lies below another.
    #[error("dataset {name:?} at {path} overlaps {other:?} at {other_path}: a file has one budget")]
    Overlap {
        /// The name of the new dataset.
        name: String,
        /// The path of the new dataset.
        path: ItemPath,
        /// The name of the existing dataset.
        other: String,
        /// The path of the existing dataset.
        other_path: ItemPath,
    },
    /// The dataset has no bytes.
    #[error("no file with any byte lies at {0} or below it: a dataset of size zero")]
    Empty(ItemPath),
    /// The dataset does not exist.
    #[error("there is no dataset {name:?}")]
    NoDataset {
        /// The name.
        name: String,
        /// The names of all datasets.
        known: Vec<String>,
    },
    /// The job does not exist.
    #[error("there is no job {name:?}")]
    NoJob {
        /// The name.
        name: String,
        /// The names of all jobs.
        known: Vec<String>,
    },
    /// The dataset of a job is not declared.
    #[error("job {job:?} is on no dataset: there is none called {dataset:?}")]
    JobOnNothing {
        /// The job.
        job: String,
        /// The dataset.
        dataset: String,
        /// The names of all datasets.
        known: Vec<String>,
    },
    /// A declared job reads the dataset.
    #[error("job {job:?} reads dataset {name:?}")]
    Read {
        /// The dataset.
        name: String,
        /// The job.
        job: String,
    },
    /// An ideal rate of zero.
    #[error("job {0:?} cannot have an ideal rate of zero: it would never read")]
    IdealRateZero(String),
    /// No epochs.
    #[error("job {0:?} cannot run zero epochs")]
    EpochsZero(String),
    /// A rate of zero.
    #[error("a rate of zero would stop job {0:?}")]
    RateZero(String),
    /// A budget of zero.
    #[error("a budget of zero for dataset {0:?}")]
    BudgetZero(String),
    /// A job needs more GPUs than are free.
    #[error("job {job:?} wants {wanted} GPUs; the cluster has {total}, of which {taken} are taken")]
    Gpus {
        /// The job.
        job: String,
        /// The GPUs that it needs.
        wanted: u32,
        /// The GPUs of the cluster.
        total: u32,
        /// The GPUs of declared jobs.
        taken: u32,
    },
    /// Manual budgets exceed the cache.
    #[error(
        "a budget of {} for dataset {dataset:?} is more than there is: the nodes that live have {} for \
         datasets, and {} of that are set by hand for others (a node stores datasets if it was mounted \
         with --data-mount)",
        ByteSize(*size), ByteSize(*total), ByteSize(*others)
    )]
    BudgetAboveCapacity {
        /// The dataset.
        dataset: String,
        /// The requested budget in bytes.
        size: u64,
        /// The total cache in bytes.
        total: u64,
        /// Manual budgets of other datasets, in bytes.
        others: u64,
    },
    /// Manual rates exceed remote IO.
    #[error(
        "{}/s for job {job:?} is more than there is: remote_io is {}/s, and {}/s of that are set by \
         hand for others",
        ByteSize(*rate), ByteSize(*total), ByteSize(*others)
    )]
    RateAboveTotal {
        /// The job.
        job: String,
        /// The requested rate in bytes per second.
        rate: u64,
        /// Total remote IO in bytes per second.
        total: u64,
        /// Manual rates of other jobs, in bytes per second.
        others: u64,
    },
    /// The policy does not exist.
    #[error("{0:?} is not a policy")]
    UnknownPolicy(String),
    /// Too many datasets.
    #[error("there are {DATASETS_MAX} datasets already")]
    TooManyDatasets,
    /// Too many jobs.
    #[error("there are {JOBS_MAX} jobs already")]
    TooManyJobs,
}

impl RegistryError {
    /// Returns the kind of the refusal.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoDataset { .. } | Self::NoJob { .. } => ErrorKind::NotFound,
            Self::DatasetTaken { .. }
            | Self::JobTaken(_)
            | Self::Overlap { .. }
            | Self::Read { .. }
            | Self::TooManyDatasets
            | Self::TooManyJobs
            | Self::Gpus { .. }
            | Self::BudgetAboveCapacity { .. }
            | Self::RateAboveTotal { .. } => ErrorKind::Conflict,
            _ => ErrorKind::Invalid,
        }
    }

    /// Returns advice on what to try.
    #[must_use]
    pub fn advice(&self) -> String {
        match self {
            Self::Name {
                what: "dataset", ..
            } => format!(
                "Write up to {NAME_BYTES_MAX} letters, digits, dots, dashes and underscores, a letter \
                 or digit first"
            ),
            Self::Name { .. } => format!(
                "Write up to {NAME_BYTES_MAX} letters, digits and . _ - : @ / + = , [ ], a letter or \
                 digit first"
            ),
            Self::Reserved(_) => "Choose another name".into(),
            Self::DatasetTaken { name, .. } => {
                format!(
                    "Choose another name, replace it with --replace, or take it back: copperfs \
                     dataset rm {name}"
                )
            }
            Self::JobTaken(name) => {
                format!("Choose another name, or end it first: copperfs job end {name}")
            }
            Self::Overlap { other, .. } => {
                format!("Declare parts that lie beside each other, or copperfs dataset rm {other}")
            }
            Self::Empty(_) => "Check the path: what is served there shows ls in the mount".into(),
            Self::NoDataset { name, known } => known_or("dataset", name, known),
            Self::NoJob { name, known } => known_or("job", name, known),
            Self::JobOnNothing { dataset, known, .. } => known_or("dataset", dataset, known),
            Self::Read { job, .. } => format!("End the job first: copperfs job end {job}"),
            Self::IdealRateZero(_) => {
                "Leave the ideal rate out to have it estimated, or write 114MB/s, say".into()
            }
            Self::EpochsZero(_) => "Leave the epochs out if they are not known".into(),
            Self::RateZero(name) => {
                format!("Write auto to leave it to the policy, or copperfs job end {name}")
            }
            Self::BudgetZero(name) => {
                format!("Write auto to leave it to the policy, or copperfs dataset rm {name}")
            }
            Self::Gpus { .. } => "End another job, or change the key gpus".into(),
            Self::BudgetAboveCapacity { .. } => {
                "Set less, or give nodes more memory or a larger disk".into()
            }
            Self::RateAboveTotal { .. } => "Set less, or change the key remote_io".into(),
            Self::UnknownPolicy(name) => {
                let names = Policy::ALL.map(Policy::name);
                let near = nearest(name, names.into_iter());
                let near = near.map(|near| format!("Did you mean {near}? "));
                let near = near.unwrap_or_default();
                format!("{near}The policies: {}", names.join(", "))
            }
            Self::TooManyDatasets => "Take one back first: copperfs dataset list".into(),
            Self::TooManyJobs => "End one first: copperfs job list".into(),
        }
    }
}

/// The maximum number of names in an advice.
const KNOWN_SHOWN: usize = 10;

/// Advises on an unknown name: a similar one, or the first known ones.
fn known_or(what: &str, name: &str, known: &[String]) -> String {
    if known.is_empty() {
        return match what {
            "dataset" => "None is declared: copperfs dataset add NAME PATH".into(),
            _ => "None is known: copperfs job add NAME --dataset D".into(),
        };
    }
    if let Some(near) = nearest(name, known.iter().map(String::as_str)) {
        return format!("Did you mean {near}?");
    }
    let shown = &known[..known.len().min(KNOWN_SHOWN)];
    let more = if known.len() > KNOWN_SHOWN {
        ", ..."
    } else {
        ""
    };
    format!("There are: {}{more}", shown.join(", "))
}
