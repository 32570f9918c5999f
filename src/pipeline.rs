//! Pipelines: which files the submitted jobs will still read.
//!
//! An engine tells a node of each job with its tasks and their inputs ([`mod@line`]). That node *owns* the job. It finds the
//! items that each task reads (`resolve`), keeps the tasks (`ledger`), and tells the home of each item the number of
//! tasks that will still read it (`delivery`). Homes of a dataset with the rule [`copperfs_policy::Keep::References`]
//! evict the items with the fewest references first (LRC, section III).
//!
//! A wrong count costs a read, and never returns a wrong byte. So an owner keeps its jobs in memory only: when it is
//! gone, homes forget its counts after a few seconds.
//!
//! The side of the engine is `copperfs lrc run` ([`crate::cli::lrc`]), which relays the lines of its adapter
//! ([`message`]), remembers which jobs are live ([`live_jobs`]), expects the jobs that an earlier run had
//! ([`profile`]), and makes traces of its log ([`trace`]). These do no I/O.
//!
//! It does not evict ([`crate::dataset`]), decide budgets ([`crate::budgets`]), or serve sockets ([`crate::control`]).

mod delivery;
mod ledger;
pub mod line;
pub mod live_jobs;
pub mod message;
mod owner;
pub mod profile;
mod resolve;
pub mod trace;
mod view;

pub use ledger::JobKey;
pub use line::{Line, LineError};
pub use owner::{Accepted, Caller, PipelineNode, Pipelines};
pub use view::{ItemCount, JobView, TaskView};
