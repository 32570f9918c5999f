//! copperfs: a per-node, read-only, cooperative caching filesystem.
//!
//! The library of the program: the command line, the configuration, and the parts of a node. `main.rs` only calls
//! [`cli::main`]. Start reading at [`node`], which connects the parts.

#![allow(
    missing_debug_implementations,
    reason = "the types of a program: no other crate prints them"
)]

pub mod attendant;
pub mod batch_reads;
pub mod bench;
pub mod budgets;
pub mod cache;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod dataset;
pub mod failpoint;
pub mod image;
pub mod index;
pub mod job;
pub mod journal;
pub mod logging;
pub mod manifest;
mod mapped;
pub mod model;
pub mod namespace;
mod nearest;
pub mod node;
pub mod notify;
pub mod num;
pub mod origin;
pub mod pipeline;
mod pread;
pub mod prefetch;
pub mod pressure;
pub mod process;
pub mod profile;
pub mod read;
pub mod record;
pub mod report;
pub mod store;
pub mod takeover;
pub mod warm;
pub mod watchdog;

#[cfg(test)]
mod testing;
#[cfg(test)]
#[path = "../tests/fixtures/waiting.rs"]
mod waiting;
