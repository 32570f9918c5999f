//! Pipelines as people and tools see them.

use super::ledger::{JobKey, JobRecord};
use super::line::Consume;
use copperfs_policy::references::{JobStatus, TaskStatus};
use serde::Serialize;
use std::time::Duration;

/// A live job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobView {
    /// The tenant.
    pub tenant: String,
    /// The job's name.
    pub job: String,
    /// The name of the run.
    pub app: String,
    /// The dataset that it reads.
    pub dataset: String,
    /// The highest attempt.
    pub attempt: u64,
    /// `done` or `read`.
    pub consume: &'static str,
    /// Its tasks.
    pub tasks: usize,
    /// Tasks that have ended.
    pub tasks_ended: usize,
    /// References that its tasks listed.
    pub references: usize,
    /// Seconds since it was submitted.
    pub age_s: u64,
    /// Seconds until it expires.
    pub expires_s: u64,
}

/// A task of a live job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskView {
    /// Its name.
    pub task: String,
    /// Whether it has ended.
    pub ended: bool,
    /// References that it listed.
    pub references: usize,
    /// References that it holds.
    pub held: usize,
}

/// The count of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ItemCount {
    /// The file, relative to the dataset.
    pub path: String,
    /// The offset of the item in the file.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The number of references.
    pub count: u32,
}

impl JobView {
    pub(super) fn new(
        dataset: &str,
        status: &JobStatus<'_, JobKey>,
        record: &JobRecord,
        now: Duration,
    ) -> Self {
        Self {
            tenant: status.job.tenant.to_string(),
            job: status.job.job.to_string(),
            app: record.app.clone(),
            dataset: dataset.to_owned(),
            attempt: status.attempt,
            consume: match record.consume {
                Consume::Done => "done",
                Consume::Read => "read",
            },
            tasks: status.tasks,
            tasks_ended: status.tasks_ended,
            references: status.references,
            age_s: now.saturating_sub(record.began).as_secs(),
            expires_s: record.expires.saturating_sub(now).as_secs(),
        }
    }
}

impl From<TaskStatus<'_, Box<str>>> for TaskView {
    fn from(status: TaskStatus<'_, Box<str>>) -> Self {
        Self {
            task: status.task.to_string(),
            ended: status.has_ended,
            references: status.listed,
            held: status.held,
        }
    }
}
