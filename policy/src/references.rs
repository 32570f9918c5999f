//! Reference counts of pipelines: which cached blocks the submitted jobs will still read (LRC). Pure.
//!
//! A pipeline's engine knows which tasks will read a block. The number of those that have not read it
//! yet is the block's *reference count* (LRC, definition 1), and the block with the least count is
//! evicted first. This module has three parts, and each works without the others:
//!
//! - [`JobTable`] holds the submitted jobs, their tasks and the references of each task. It says the
//!   current count of every block. In a cluster it belongs to the node that took the submission.
//! - [`CountBoard`] holds the counts that a home has been told by several owners, and their sums.
//! - [`EvictionOrder`] holds the resident blocks in the order (count, last use), and finds the victims
//!   for a block that comes in. It takes counts as absolute numbers, so a home that only hears counts
//!   from owners uses it without a table.
//!
//! All are generic over the block's key. Keys are copied into several maps: use small ones, such as an
//! interned number or a hash, not a path. Every operation is O(log n) for each reference or victim that it
//! touches.
//!
//! [`replay`] joins the table and the order: it runs a recorded trace under LRC, or under another
//! [`EvictionPolicy`] for comparison.
//!
//! None of them knows time, sizes of files, ranges or connections. Callers map a range of a file to the
//! blocks that it touches, expire jobs by [`JobTable::end`], and fetch the blocks that miss.
//!
//! Source: LRC ("LRC: Dependency-Aware Cache Management for Data Analytics Clusters", INFOCOM '17),
//! sections III-A (counts and the order) and III-B (LRC-Online).

mod board;
mod jobs;
mod order;
mod policy;
pub mod replay;
mod s3_fifo;

pub use board::{Batch, CountBoard, NO_STATE};
pub use jobs::{JobStatus, JobTable, SubmitError, Submitted, TaskStatus};
pub use order::{Admit, EvictionOrder, Limits, ResidentBytes};
pub use policy::{EvictionPolicy, UnknownEvictionPolicy};
