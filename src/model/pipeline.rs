//! Messages between members about the references of pipelines. See [`crate::pipeline`].

use serde::{Deserialize, Serialize};

/// One process of a node that has taken submissions of pipelines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct OwnerId {
    /// Its index in the member list.
    pub rank: u32,
    /// Identifies the process: a different number after each start.
    pub boot: u64,
}

/// A message of one member to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PipelineMessage {
    /// Owner to home: the counts of items. Answered by [`PipelineReply::State`].
    Counts(CountBatch),
    /// Reader to owner: tasks have read items. Answered by [`PipelineReply::Done`].
    Reads(ReadBatch),
    /// To home: evicts the items of a dataset that were declared and have no references. Answered by
    /// [`PipelineReply::Flushed`].
    Flush {
        /// The dataset's [`super::DatasetDecision::id`].
        dataset: u64,
    },
}

/// The reply to a [`PipelineMessage`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PipelineReply {
    /// The state of the owner that the home knows now: [`copperfs_policy::references::CountBoard`].
    State(u64),
    /// It was carried out.
    Done,
    /// The items that were evicted.
    Flushed {
        /// Their number.
        items: u64,
        /// Their bytes.
        bytes: u64,
    },
}

/// Absolute counts of items: a [`copperfs_policy::references::Batch`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CountBatch {
    /// The dataset's [`super::DatasetDecision::id`].
    pub dataset: u64,
    /// The owner.
    pub owner: OwnerId,
    /// The state that it begins with.
    pub from: u64,
    /// The state after it.
    pub to: u64,
    /// The keys of items, each with its count.
    pub counts: Vec<(u64, u32)>,
}

/// First reads of items by tasks, since the last batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReadBatch {
    /// The dataset's [`super::DatasetDecision::id`].
    pub dataset: u64,
    /// The reads.
    pub reads: Vec<TaskReads>,
}

/// First reads of items by one task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TaskReads {
    /// The user of the reading process.
    pub user: u32,
    /// The variable `COPPERFS_TASK` of the process: `job/task`.
    pub task: String,
    /// The keys of the items.
    pub items: Vec<u64>,
}
