//! Budgets of a running cluster: what nodes report, what is decided, and how it reaches every node.
//!
//! The decision is the whole state, with a serial: which datasets are declared, which jobs run, what
//! each gets, and which nodes are homes. It is made beside the first root that lives, goes down the
//! tree, and is kept by every node; reports go up. An allocator that starts anew takes up from the
//! newest decision that nodes report, so it may be killed at any moment. Nodes go on with the last
//! decision that they have heard.

pub mod agent;
pub mod allocator;
pub mod count;
mod counted;
pub mod registry;
pub(crate) mod served;

pub use agent::{BudgetAgent, BudgetAgentConfig, Counter, Neighbours, ReportSource};
pub use count::DatasetCounter;
pub use counted::Counted;
pub use registry::POLICIES;
pub use served::Served;
