//! The vocabulary of datasets, jobs and budgets: what is declared, what is reported, what is decided, and which
//! node is whose home. Plain values, and the arithmetic on them.

mod command;
mod decision;
mod report;
pub mod slots;

pub(crate) use command::{Asked, decode_answer, encode_answer};
pub use command::{
    Command, CommandError, Counting, DatasetSpec, ErrorKind, IdealRate, JobSpec, Overview,
    RateSource, Reply,
};
pub use decision::{
    DatasetDecision, Decision, HomeNode, JobDecision, JobNode, OriginReaders, Serial,
};
pub use report::{Beat, Down, JobReport, NodeReport, ShareReport, Up};
pub use slots::{Homes, SLOTS, items_of, slot_of};

/// Reads of datasets that belong to no job, as a job. Its rate is a part of the total that is always
/// there, so that such readers neither starve nor take what jobs were given.
pub const UNATTRIBUTED: &str = "unattributed";
