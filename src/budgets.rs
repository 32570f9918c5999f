//! Budgets of a running cluster: what nodes report, what is decided, and how it reaches every node.
//!
//! The decision is the whole state, with a serial: which datasets are declared, which jobs run, what
//! each gets, and which nodes are homes. It is made beside the first root that lives, goes down the
//! tree, and is kept by every node; reports go up. An allocator that starts anew takes up from the
//! newest decision that nodes report, so it may be killed at any moment. Nodes go on with the last
//! decision that they have heard.

pub mod allocator;
pub mod command;
pub mod count;
pub mod decision;
pub mod registry;
pub mod report;
pub mod steward;

pub use command::{
    Command, CommandError, Counting, DatasetSpec, ErrorKind, IdealRate, JobSpec, Overview,
    RateSource, Reply,
};
pub use count::DatasetCounter;
pub use decision::{
    DatasetDecision, Decision, HomeNode, JobDecision, JobNode, OriginReaders, Serial,
};
pub use registry::{POLICIES, UNATTRIBUTED};
pub use report::{Beat, Down, JobReport, NodeReport, ShareReport, Up};
pub use steward::{Counted, Counter, Neighbours, ReportSource, Steward, StewardConfig};
