//! Jobs on one node: which job a reader belongs to, how far it is, how fast it could read, and how much it
//! may read from storage.
//!
//! [`identity`] finds the job of a process. [`activity`] combines for each job and dataset: [`progress`]
//! (epochs and hit ratios), [`pattern`] (whether each epoch reads every item once), [`rate`] (the ideal
//! rate) and [`tokens`] (remote IO). Events come from the dataset's reader, reports go to the allocator,
//! and its decisions are applied by [`activity::JobActivity::apply`].
//!
//! Pure except for [`identity`], which reads a `/proc` whose root is an argument, and
//! [`tokens::Tokens`], which waits by tokio's clock. Elsewhere time is an argument. `docs/JOBS.md`
//! describes the behaviour for users.

pub mod activity;
pub mod identity;
mod journaled;
mod meter;
mod name;
pub mod pattern;
pub mod progress;
pub mod rate;
pub mod tokens;

pub use activity::{Activities, JobActivity, RememberedJobs, Terms, Waiting};
pub use identity::{CachedReader, Proc, Process, Reader, Readers, Task};
pub use name::{JobName, JobNameError};
pub use progress::ItemOutcome;
pub use tokens::{Permit, Tokens};

use std::time::Duration;

/// How long after the end of its processes and its last read a job has ended. Longer than a restart of
/// its loaders or the pause between two steps; short enough that an idle budget costs little.
pub const ENDED_AFTER: Duration = Duration::from_secs(30);
