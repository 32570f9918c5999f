//! Everything about a job on one node: who reads, how far it is, how fast it could go, what it may
//! read of the origin.
//!
//! [`identity`] says which job a process belongs to. [`activity`] keeps, for each job and dataset,
//! what the other parts find: [`progress`] (epochs and hit ratios), [`pattern`] (does each epoch read
//! every item once?), [`rate`] (the ideal rate) and [`tokens`] (remote IO). What the dataset's reader
//! sees goes in, a report for the allocator comes out; the allocator's terms come in by
//! [`activity::JobActivity::apply`].
//!
//! Pure but for two places: [`identity`] reads a `/proc` whose root is an argument, and
//! [`tokens::Tokens`] waits by tokio's clock. Time is an argument everywhere else. `docs/JOBS.md`
//! tells users what of it they see.

pub mod activity;
pub mod identity;
mod meter;
mod name;
pub mod pattern;
pub mod progress;
pub mod rate;
pub mod tokens;

pub use activity::{Activities, ActivityReport, JobActivity, Terms, Waiting};
pub use identity::{Proc, Process, Reader, Readers};
pub use name::{JobId, JobName, JobNameError};
pub use progress::ItemOutcome;
pub use tokens::{Permit, RateLimit, Tokens};

use std::time::Duration;

/// A job that reads nothing and whose processes are all gone is over after this time. Longer than a
/// restart of its loaders or a step's end before the next; shorter than what an idle budget costs.
pub const ENDED_AFTER: Duration = Duration::from_secs(30);
