//! The vocabulary of datasets, jobs and budgets: declarations, reports, decisions, and the home of each
//! item. Plain values, and the arithmetic on them.

mod command;
mod decision;
mod ended;
mod format;
mod pipeline;
mod report;
pub mod slots;

pub(crate) use command::ForwardedCommand;
pub use command::{
    BatchReport, Command, CommandError, Counting, DatasetSpec, ErrorKind, IdealRate, JobSpec,
    Overview, RateSource, Reply, Resources,
};
pub use decision::{
    ChunkOptions, DatasetDecision, DatasetTrouble, Decision, HomeNode, JobDecision, JobNode,
    OriginReaders, Serial,
};
pub use ended::{EndedJob, JobTotals};
pub use format::FormatError;
pub(crate) use format::{decode, encode, is_decodable};
pub use pipeline::{CountBatch, OwnerId, PipelineMessage, PipelineReply, ReadBatch, TaskReads};
pub use report::{
    CountReport, DecisionFrame, Heartbeat, JobReport, NodeReport, PipelineReport, ReadingReport,
    ReportFrame, ShareReport,
};
pub use slots::{SLOTS, SlotTable, items_of, slot_of};

/// The name of the pseudo-job for dataset reads that belong to no job. Its rate is a reserved part of the
/// total, so that such reads neither starve nor use the tokens of jobs.
pub const UNATTRIBUTED: &str = "unattributed";
