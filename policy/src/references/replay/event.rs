//! The events and options of a trace as they stand in JSON.

use crate::references::Admit;
use serde::{Deserialize, Deserializer, Serialize};

/// An event of a trace. Fields that it does not name are ignored, whatever they are.
///
/// A `tenant` that is missing or null is the empty name. Only a submission has an attempt: the other
/// events concern the job's latest one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ev", rename_all = "lowercase")]
pub enum Event {
    /// A job is submitted with its tasks.
    Submit {
        /// The tenant of the job.
        #[serde(default, deserialize_with = "or_default")]
        tenant: String,
        /// The job, unique for its tenant.
        job: String,
        /// The attempt; 0 if it is missing.
        #[serde(default, deserialize_with = "or_default")]
        attempt: u64,
        /// The tasks. No two have the same name.
        tasks: Vec<Task>,
    },
    /// A block is read.
    Read {
        /// The tenant of `job`.
        #[serde(default, deserialize_with = "or_default")]
        tenant: String,
        /// The job that reads. If it is missing, the reader is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job: Option<String>,
        /// The task that reads. If it is missing although there is a `job`, nothing is consumed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<String>,
        /// The block.
        block: String,
    },
    /// A block is written.
    Put {
        /// The block.
        block: String,
    },
    /// A task has ended.
    Done {
        /// The tenant of the job.
        #[serde(default, deserialize_with = "or_default")]
        tenant: String,
        /// The job.
        job: String,
        /// The task.
        task: String,
    },
    /// A task has failed, and will run again.
    TaskFail {
        /// The tenant of the job.
        #[serde(default, deserialize_with = "or_default")]
        tenant: String,
        /// The job.
        job: String,
        /// The task.
        task: String,
    },
    /// A job has ended.
    End {
        /// The tenant of the job.
        #[serde(default, deserialize_with = "or_default")]
        tenant: String,
        /// The job.
        job: String,
    },
    /// Declared blocks without references are evicted.
    Flush,
}

/// A task of a submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its name, unique in the job.
    pub id: String,
    /// The blocks that it will read. A repeated one counts once.
    #[serde(default, rename = "in", deserialize_with = "or_default")]
    pub inputs: Vec<String>,
}

/// What releases a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decrement {
    /// A read by the task that holds it, and the end of the task.
    #[default]
    Read,
    /// The end of the task alone.
    Done,
}

/// Which job has read, if a read names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attribution {
    /// No job: the read releases nothing.
    #[default]
    None,
    /// The oldest live job that holds a reference to the block, whatever [`Decrement`] says.
    Fifo,
}

/// The options of a trace. Each may be missing or null, and has its default then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Options {
    /// Whether a block that comes in may be refused.
    #[serde(default, deserialize_with = "or_default")]
    pub admit: Admit,
    /// What releases a reference.
    #[serde(default, deserialize_with = "or_default")]
    pub decrement: Decrement,
    /// Which job has read, if a read names none.
    #[serde(default, deserialize_with = "or_default")]
    pub attribution: Attribution,
    /// Undeclared blocks are spared while they have at most this many bytes together; 0: they are not.
    #[serde(default, deserialize_with = "or_default")]
    pub floor: u64,
}

/// Reads a field that may be null.
pub(super) fn or_default<'de, D, T>(value: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(value).map(Option::unwrap_or_default)
}
