//! Pipelines whose tasks are known before they run, and a cache that evicts by reference count (LRC,
//! INFOCOM '17) or by another policy.
//!
//! A [`Workload`] is written as a trace of submissions, reads, puts and ends ([`Pipeline`]), and
//! [`run`] replays it through the product's own engine
//! ([`replay`](copperfs_policy::references::replay)). So a hit or an eviction here is one that homes would
//! have. There are no times, nodes or links: a trace has an order of events only. `docs/SIMULATOR.md`
//! describes the workloads and compares the results with the paper.
//!
//! Pure: a workload and a seed always have the same trace and the same results.

mod figures;
mod graph;
mod inactive;
mod ranks;
mod read_only;
mod run;
mod script;
mod shape;
mod study;
mod summary;
mod workload;

#[cfg(test)]
mod tests;

pub use figures::figures;
pub use graph::Graph;
pub use inactive::{Inactive, Sample, inactive};
pub use ranks::{Metric, Ranks, ranks};
pub use read_only::{Nightly, Samples, Scanner, Windows};
pub use run::{Run, run, space_for};
pub use script::Distances;
pub use study::{CacheSize, CacheSizeError, InactiveAt, Plan, Row, Space, Study, study};
pub use summary::{Summary, summaries};
pub use workload::{
    App, PAPER, Pipeline, READ_ONLY, Shape, TENANTS, Tenants, Workload, WorkloadError,
};
