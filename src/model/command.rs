//! What the allocator is asked to do, and what it answers.
//!
//! Any node takes a command and hands it up to the allocator. It is answered when the decision that
//! follows from it is made; every node has it within the next second.

use super::decision::{Decision, FormatError, OriginReaders, Serial, decode, encode};
use super::report::NodeReport;
use copperfs_overlay::ItemPath;
use serde::{Deserialize, Serialize};

/// A dataset, as it is declared.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DatasetSpec {
    /// Its name, unique.
    pub name: String,
    /// Where it begins in the namespace.
    pub path: ItemPath,
    /// The URI that it was declared from, if it was one.
    pub uri: Option<String>,
    /// The index that names its files: a path of the namespace, or of the roots' hosts.
    pub index: Option<String>,
    /// A budget set by hand, in bytes.
    pub budget: Option<u64>,
    /// Who reads storage for it.
    pub origin_readers: OriginReaders,
}

/// A job, as it is declared.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobSpec {
    /// Its name, unique: what its readers are recognised as.
    pub name: String,
    /// The dataset that it reads.
    pub dataset: String,
    /// Bytes per second that it reads when data is not its bottleneck; `None`: estimated.
    pub ideal_rate: Option<u64>,
    /// GPUs.
    pub gpus: u32,
    /// Epochs that it will run.
    pub epochs: Option<u32>,
    /// The user that declared it. Only this user's processes may name the job in their environment. `None`:
    /// the user is unknown or root, which declares jobs for other users.
    pub owner: Option<u32>,
}

/// What the allocator is asked to do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Declares a dataset.
    AddDataset(DatasetSpec),
    /// Takes a dataset back; what is cached of it goes.
    RemoveDataset(String),
    /// Declares a job.
    AddJob(JobSpec),
    /// Ends a job.
    EndJob(String),
    /// `allocateCacheSize`: sets a dataset's budget by hand; `None`: the policy decides again.
    AllocateCacheSize {
        /// The dataset, by name.
        dataset: String,
        /// Bytes.
        size: Option<u64>,
    },
    /// `allocateRemoteIO`: sets a job's rate by hand; `None`: the policy decides again.
    AllocateRemoteIo {
        /// The job, by name.
        job: String,
        /// Bytes per second.
        rate: Option<u64>,
    },
    /// Changes the policy, by name.
    SetPolicy(String),
    /// Changes nothing: tells what there is.
    Overview,
    /// Declares a dataset, and replaces a dataset of the same name.
    ReplaceDataset(DatasetSpec),
}

/// The answer to a command that was carried out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// It is part of this decision.
    Done(Serial),
    /// What [`Command::Overview`] asked for.
    Overview(Box<Overview>),
}

/// What is decided, and what nodes report: as the allocator sees it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Overview {
    /// The name of the node that it runs on.
    pub allocator: String,
    /// The newest decision.
    pub decision: Decision,
    /// What the nodes that live reported last, by rank.
    pub reports: Vec<NodeReport>,
    /// The ideal rates that the decision was made with, one for each of its jobs.
    pub rates: Vec<IdealRate>,
    /// The datasets that are being counted.
    pub counting: Vec<Counting>,
    /// GPUs of the cluster, if they were configured.
    pub gpus: Option<u32>,
}

/// What a job is taken to read when data is not its bottleneck.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct IdealRate {
    /// The job, by name.
    pub job: String,
    /// Bytes per second.
    pub rate: u64,
    /// Where that comes from.
    pub source: RateSource,
    /// How far it can be relied on, 0 to 1.
    pub confidence: f32,
    /// The part of what it reads next that is cached.
    pub hit_ratio: f64,
}

/// Where an ideal rate comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RateSource {
    /// Whoever declared the job said it.
    Declared,
    /// Its own reads show it.
    Estimated,
    /// Nothing is known: what the job could use at most is assumed.
    Assumed,
}

/// How far the counting of a dataset is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counting {
    /// The dataset, by name.
    pub dataset: String,
    /// Directories gone through.
    pub directories: u64,
    /// Items found.
    pub items: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What kind of refusal it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The command makes no sense.
    Invalid,
    /// There is no such dataset or job.
    NotFound,
    /// It does not go together with what there is.
    Conflict,
    /// No allocator can be reached now.
    Unavailable,
}

/// Why a command was not carried out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}. {advice}")]
pub struct CommandError {
    /// What kind of refusal it is.
    pub kind: ErrorKind,
    /// What failed, and why.
    pub message: String,
    /// What to try.
    pub advice: String,
}

impl CommandError {
    /// A refusal.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            advice: advice.into(),
        }
    }

    /// That no allocator can be reached.
    #[must_use]
    pub fn unavailable(why: impl Into<String>) -> Self {
        let advice = "Try again; copperfs status shows which nodes cannot be reached";
        Self::new(ErrorKind::Unavailable, why, advice)
    }
}

/// A command on its way up.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// Nodes that have passed it on: a command that goes in a circle ends.
    pub(crate) hops: u8,
    /// What is asked.
    pub(crate) command: Command,
}

/// The answer on its way down.
pub(super) type Answered = Result<Reply, CommandError>;

impl Asked {
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        decode(bytes)
    }
}

pub(crate) fn encode_answer(answer: &Answered) -> Vec<u8> {
    encode(answer)
}

pub(crate) fn decode_answer(bytes: &[u8]) -> Result<Answered, FormatError> {
    decode(bytes)
}
