//! The policies: how cache and remote IO are divided among training jobs.
//!
//! Pure: a [`Problem`] in, an [`Allocation`] out; no clock, no I/O, no randomness. The live
//! allocator (`src/budgets`) and the simulator (`simulate/src/cluster`) call the same functions, so
//! simulations show the real behaviour. `docs/ALLOCATOR.md` describes each policy with a worked
//! example.
//!
//! Source: SiloD (EuroSys '23), equations 1 to 9, algorithms 1 and 2.

pub mod amounts;
pub mod baselines;
pub mod check;
pub mod greedy;
pub mod json;
pub mod max_min;
mod partition;
pub mod performance;
pub mod policy;
pub mod problem;
mod shares;
pub mod sjf;
pub mod water;

pub use check::ProblemError;
pub use partition::allocate_partitioned;
pub use policy::{Policy, UnknownPolicy};
pub use problem::{Allocation, Dataset, DatasetShare, Job, JobShare, Problem, Totals};

#[cfg(test)]
mod tests;
