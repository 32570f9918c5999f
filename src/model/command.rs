//! Commands to the allocator, and its replies.
//!
//! Any node accepts a command and forwards it up to the allocator. The allocator replies after it
//! has made the decision that includes the change; every node has that decision within the next
//! second.

use super::decision::{ChunkOptions, DatasetDecision, Decision, OriginReaders, Serial};
use super::ended::EndedJob;
use super::report::NodeReport;
use copperfs_overlay::ItemPath;
use copperfs_policy::{Keep, Mode};
use serde::{Deserialize, Serialize};

/// A dataset as declared.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DatasetSpec {
    /// Its name, unique.
    pub name: String,
    /// The root of the dataset in the namespace.
    pub path: ItemPath,
    /// The URI that it was declared from, if any.
    pub uri: Option<String>,
    /// The index of its files, if any: a path of the namespace, or of the root nodes' hosts.
    pub index: Option<String>,
    /// The manifest of its entries, if any: a path of the namespace.
    pub manifest: Option<ItemPath>,
    /// A budget set by hand, in bytes.
    pub budget: Option<u64>,
    /// The nodes that read storage for it.
    pub origin_readers: OriginReaders,
    /// The rule of what its homes keep.
    pub keep: Keep,
    /// Its chunks, if it is kept in chunks.
    pub chunk_options: ChunkOptions,
    /// Whether its items are given by path only, and never by their hash alone.
    pub is_private: bool,
}

/// A job as declared.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobSpec {
    /// Its unique name, by which its readers are recognised.
    pub name: String,
    /// The dataset that it reads.
    pub dataset: String,
    /// Bytes per second that it reads when data is not its bottleneck. `None`: to be estimated.
    pub ideal_rate: Option<u64>,
    /// GPUs.
    pub gpus: u32,
    /// The number of epochs that it will run, if known.
    pub epochs: Option<u32>,
    /// The user that declared it. Only this user's processes may name the job in their environment. `None`:
    /// the user is unknown or root, which declares jobs for other users.
    pub owner: Option<u32>,
}

/// How long a job took for some mini-batches, all in one mode.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BatchReport {
    /// The job's name.
    pub job: String,
    /// The dataset that it reads, by name.
    pub dataset: String,
    /// How their look-ups were answered.
    pub mode: Mode,
    /// The number of ranks of the job, each of which reports its own mini-batches.
    pub ranks: u32,
    /// The number of mini-batches.
    pub batches: u64,
    /// The time that they took together, in seconds.
    pub seconds: f64,
    /// Their look-ups that hit.
    pub hits: u64,
    /// Their look-ups that missed.
    pub misses: u64,
}

/// A command to the allocator.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Declares a dataset.
    AddDataset(DatasetSpec),
    /// Removes a dataset and its cached items.
    RemoveDataset(String),
    /// Declares a job.
    AddJob(JobSpec),
    /// Ends a job.
    EndJob(String),
    /// `allocateCacheSize`: sets a dataset's budget by hand, or returns it to the policy (`None`).
    AllocateCacheSize {
        /// The dataset, by name.
        dataset: String,
        /// Bytes.
        size: Option<u64>,
    },
    /// `allocateRemoteIO`: sets a job's rate by hand, or returns it to the policy (`None`).
    AllocateRemoteIo {
        /// The job, by name.
        job: String,
        /// Bytes per second.
        rate: Option<u64>,
    },
    /// Changes the policy, by name.
    SetPolicy(String),
    /// Changes nothing, and requests an [`Overview`].
    Overview,
    /// Declares a dataset, and replaces a dataset of the same name.
    ReplaceDataset(DatasetSpec),
    /// Tells how long a job took for some mini-batches.
    ReportBatches(BatchReport),
    /// Changes the rule of what a dataset's homes keep.
    SetKeep {
        /// The dataset, by name.
        dataset: String,
        /// The rule.
        keep: Keep,
    },
    /// Changes the resources that the allocator divides.
    SetResources(Resources),
}

/// The configured resources of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Resources {
    /// What storage gives for datasets, in bytes per second. `None`: no limit.
    pub remote_io: Option<u64>,
    /// GPUs, if declared jobs are checked against them.
    pub gpus: Option<u32>,
    /// The part of the cache that all datasets together may have because pipelines refer to them, in per cent.
    pub pipelines_percent: u8,
}

/// The reply to a command that was carried out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The change is part of the decision with this serial.
    Done(Serial),
    /// The reply to [`Command::Overview`].
    Overview(Box<Overview>),
}

/// The current decision and the reports of all nodes, as the allocator knows them.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Overview {
    /// The name of the allocator's node.
    pub allocator: String,
    /// The newest decision.
    pub decision: Decision,
    /// The last report of every live node, by rank.
    pub reports: Vec<NodeReport>,
    /// The ideal rates that the decision is based on, one for each of its jobs.
    pub rates: Vec<IdealRate>,
    /// The jobs that have ended lately, the last one first.
    pub ended: Vec<EndedJob>,
    /// Progress of the dataset counts that are running.
    pub counting: Vec<Counting>,
    /// GPUs of the cluster, if configured.
    pub gpus: Option<u32>,
}

/// The rate at which a job is assumed to read when data is not its bottleneck.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct IdealRate {
    /// The job, by name.
    pub job: String,
    /// Bytes per second.
    pub rate: u64,
    /// The origin of the value.
    pub source: RateSource,
    /// The confidence in the rate, 0 to 1.
    pub confidence: f32,
    /// The fraction of its next reads that is cached.
    pub hit_ratio: f64,
}

/// The origin of an ideal rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RateSource {
    /// It was declared with the job.
    Declared,
    /// It was estimated from the job's reads.
    Estimated,
    /// Nothing is known, so the rate is the most that the job could use.
    Assumed,
}

/// The progress of a dataset's count.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counting {
    /// The dataset, by name.
    pub dataset: String,
    /// Directories listed so far.
    pub directories: u64,
    /// Items found so far.
    pub items: u64,
    /// Bytes of these items.
    pub bytes: u64,
}

/// The kind of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The command makes no sense.
    Invalid,
    /// There is no such dataset or job.
    NotFound,
    /// It conflicts with existing datasets, jobs, or limits.
    Conflict,
    /// No allocator can be reached.
    Unavailable,
}

/// Why a command was not carried out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}. {advice}")]
pub struct CommandError {
    /// The kind of refusal.
    pub kind: ErrorKind,
    /// The failure and its reason.
    pub message: String,
    /// Advice on what to try.
    pub advice: String,
}

impl DatasetSpec {
    /// A declaration with a name and a path only.
    #[must_use]
    pub fn new(name: impl Into<String>, path: ItemPath) -> Self {
        Self {
            name: name.into(),
            path,
            ..Self::default()
        }
    }

    /// The declaration of a dataset in a decision.
    #[must_use]
    pub fn of(decided: &DatasetDecision) -> Self {
        Self {
            name: decided.name.clone(),
            path: decided.path.clone(),
            uri: decided.uri.clone(),
            index: decided.index.clone(),
            manifest: decided.manifest.clone(),
            budget: decided.pinned,
            origin_readers: decided.origin_readers,
            keep: decided.keep,
            chunk_options: decided.chunk_options,
            is_private: decided.is_private,
        }
    }
}

impl From<DatasetSpec> for DatasetDecision {
    /// A dataset as declared, before it is counted and before it has a budget.
    fn from(spec: DatasetSpec) -> Self {
        Self {
            id: Self::id_of(&spec.name, &spec.path),
            name: spec.name,
            path: spec.path,
            uri: spec.uri,
            index: spec.index,
            manifest: spec.manifest,
            origin_readers: spec.origin_readers,
            keep: spec.keep,
            chunk_options: spec.chunk_options,
            is_private: spec.is_private,
            pinned: spec.budget,
            ..Self::default()
        }
    }
}

impl CommandError {
    /// Creates a refusal.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            advice: advice.into(),
        }
    }

    /// Creates the error for an allocator that cannot be reached.
    #[must_use]
    pub fn unavailable(why: impl Into<String>) -> Self {
        let advice = "Try again; copperfs status shows which nodes cannot be reached";
        Self::new(ErrorKind::Unavailable, why, advice)
    }
}

/// A command on its way up the tree.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct ForwardedCommand {
    /// The number of nodes that have forwarded it, so that a command in a circle ends.
    pub(crate) hops: u8,
    /// The command itself.
    pub(crate) command: Command,
}
