//! How cache and remote IO are divided among training jobs: the policies.
//!
//! Pure: a [`Problem`] in, an [`Allocation`] out. No clock, no I/O, no randomness. The live
//! allocator (`src/budgets`) and the simulator (`simulate/src/cluster`) call the same functions,
//! so what is simulated is what runs. What each policy does, with a worked example:
//! `docs/ALLOCATOR.md`.
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
