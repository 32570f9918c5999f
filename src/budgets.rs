//! Budgets of a running cluster: reports of nodes, the allocator's decisions, and their distribution.
//!
//! A decision is the complete state, with a serial: the declared datasets, the running jobs, the share
//! of each, and the nodes that are homes. The allocator runs on the first live root. Its decisions go
//! down the tree and every node keeps the newest; reports go up. An allocator that starts continues from
//! the newest decision that any node reports, so it may be killed at any moment. Meanwhile the nodes
//! continue with the last decision that they received.

pub mod agent;
pub mod allocator;
pub mod count;
mod counter;
pub mod registry;
pub(crate) mod served;

pub use agent::{BudgetAgent, BudgetAgentConfig, Neighbours, ReportSource};
pub use count::DatasetCounter;
pub use counter::{CountError, CountProgress, Counted, Counter};
pub use served::{LocateError, Location, ServedPaths};
