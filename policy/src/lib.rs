//! The policies: how cache and remote IO are divided among training jobs, and which items a home
//! keeps within its part ([`keep`]).
//!
//! Pure: a [`Problem`] in, an [`Allocation`] out; no clock, no I/O, no randomness. The live
//! allocator (`src/budgets`) and the simulator (`simulate/src/cluster`) call the same functions, so
//! simulations show the real behaviour. `docs/ALLOCATOR.md` describes each policy with a worked
//! example. [`chunks`] says which part of a dataset is resident, if its rule is to keep chunks.
//!
//! Sources: SiloD (EuroSys '23), equations 1 to 9, algorithms 1 and 2; for [`benefit`] and its
//! measurements Quiver (FAST '20), section 5.3.

pub mod amounts;
pub mod baselines;
pub mod benefit;
pub mod check;
pub mod choice;
pub mod chunks;
pub mod greedy;
pub mod json;
pub mod keep;
pub mod max_min;
mod partition;
pub mod performance;
pub mod policy;
pub mod problem;
pub mod references;
mod shares;
pub mod sjf;
pub mod times;
pub mod water;

pub use check::ProblemError;
pub use choice::Choice;
pub use keep::{Keep, UnknownKeep};
pub use partition::allocate_partitioned;
pub use policy::{Policy, UnknownPolicy};
pub use problem::{Allocation, Dataset, DatasetShare, Job, JobShare, Problem, Totals};
pub use times::{Mode, Part, Times};

#[cfg(test)]
mod tests;
