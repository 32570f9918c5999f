//! Why a change is refused, and what to try.

use super::{DATASETS_MAX, JOBS_MAX, NAME_BYTES_MAX, POLICIES};
use crate::nearest::nearest;
use copperfs_overlay::ItemPath;
use copperfs_policy::amounts::Bytes;

/// Why a change is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegistryError {
    /// A name that cannot be one.
    #[error("{name:?} cannot be the name of a {what}")]
    Name {
        /// Of what.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A name with a meaning of its own.
    #[error("{0:?} stands for reads that belong to no job")]
    Reserved(String),
    /// The dataset's name is taken.
    #[error("there is a dataset {name:?} already, at {path}")]
    DatasetTaken {
        /// The name.
        name: String,
        /// Where that is.
        path: ItemPath,
    },
    /// The job's name is taken.
    #[error("there is a job {0:?} already")]
    JobTaken(String),
    /// One dataset beneath another.
    #[error("dataset {name:?} at {path} overlaps {other:?} at {other_path}: a file has one budget")]
    Overlap {
        /// The new one.
        name: String,
        /// Where.
        path: ItemPath,
        /// The one that there is.
        other: String,
        /// Where.
        other_path: ItemPath,
    },
    /// Nothing in it.
    #[error("no file with any byte lies at {0} or below it: a dataset of size zero")]
    Empty(ItemPath),
    /// There is no such dataset.
    #[error("there is no dataset {name:?}")]
    NoDataset {
        /// The name.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// There is no such job.
    #[error("there is no job {name:?}")]
    NoJob {
        /// The name.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// A job on a dataset that is not declared.
    #[error("job {job:?} is on no dataset: there is none called {dataset:?}")]
    JobOnNothing {
        /// The job.
        job: String,
        /// The dataset.
        dataset: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// A declared job reads it.
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
    /// More GPUs than there are.
    #[error("job {job:?} wants {wanted} GPUs; the cluster has {total}, of which {taken} are taken")]
    Gpus {
        /// The job.
        job: String,
        /// What it wants.
        wanted: u32,
        /// What there is.
        total: u32,
        /// What declared jobs have.
        taken: u32,
    },
    /// More cache than there is.
    #[error(
        "a budget of {} for dataset {dataset:?} is more than there is: the nodes that live have {} for \
         datasets, and {} of that are set by hand for others (a node stores datasets if it was mounted \
         with --data-mount)",
        Bytes(*size), Bytes(*total), Bytes(*others)
    )]
    BudgetAboveCapacity {
        /// The dataset.
        dataset: String,
        /// Bytes wanted.
        size: u64,
        /// Bytes that there are.
        total: u64,
        /// Bytes of other datasets, set by hand.
        others: u64,
    },
    /// More remote IO than there is.
    #[error(
        "{}/s for job {job:?} is more than there is: remote_io is {}/s, and {}/s of that are set by \
         hand for others",
        Bytes(*rate), Bytes(*total), Bytes(*others)
    )]
    RateAboveTotal {
        /// The job.
        job: String,
        /// Bytes per second wanted.
        rate: u64,
        /// Bytes per second that there are.
        total: u64,
        /// Bytes per second of other jobs, set by hand.
        others: u64,
    },
    /// No such policy.
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
    /// What to try.
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
            Self::UnknownPolicy(name) => match nearest(name, POLICIES.into_iter()) {
                Some(near) => format!("Did you mean {near}? The policies: {}", POLICIES.join(", ")),
                None => format!("The policies: {}", POLICIES.join(", ")),
            },
            Self::TooManyDatasets => "Take one back first: copperfs dataset list".into(),
            Self::TooManyJobs => "End one first: copperfs job list".into(),
        }
    }
}

/// So many names are told.
const KNOWN_SHOWN: usize = 10;

fn known_or(what: &str, name: &str, known: &[String]) -> String {
    let names = || known.iter().map(String::as_str);
    if known.is_empty() {
        return match what {
            "dataset" => "None is declared: copperfs dataset add NAME PATH".into(),
            _ => "None is known: copperfs job add NAME --dataset D".into(),
        };
    }
    if let Some(near) = nearest(name, names()) {
        return format!("Did you mean {near}?");
    }
    let shown: Vec<&str> = names().take(KNOWN_SHOWN).collect();
    let more = if known.len() > KNOWN_SHOWN {
        ", ..."
    } else {
        ""
    };
    format!("There are: {}{more}", shown.join(", "))
}
