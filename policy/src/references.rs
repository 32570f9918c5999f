//! Reference counts of pipelines: which cached blocks the submitted jobs will still read (LRC). Pure.
//!
//! A pipeline's engine knows which tasks will read a block. The number of those that have not read it
//! yet is the block's *reference count* (LRC, definition 1), and the block with the least count is
//! evicted first. This module has the table of jobs:
//!
//! - [`JobTable`] holds the submitted jobs, their tasks and the references of each task. It says the
//!   current count of every block. In a cluster it belongs to the node that took the submission.
//!
//! It is generic over the block's key. Keys are copied into several maps: use small ones, such as an
//! interned number or a hash, not a path. Every operation is O(log n) for each reference that it touches.
//!
//! It does not know time, sizes of files, ranges or connections. Callers map a range of a file to the
//! blocks that it touches, expire jobs by [`JobTable::end`], and fetch what misses.
//!
//! Source: LRC ("LRC: Dependency-Aware Cache Management for Data Analytics Clusters", INFOCOM '17),
//! sections III-A (counts and the order) and III-B (LRC-Online).

mod jobs;

pub use jobs::{JobStatus, JobTable, SubmitError, Submitted};
