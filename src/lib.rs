//! copperfs: a per-node, read-only, cooperative caching filesystem.
//!
//! The library half of the binary: the command line, the configuration, and the domain that a node is
//! made of. `main.rs` only calls [`cli`].

pub mod cli;
pub mod config;
pub mod daemon;
pub mod node;
pub mod report;
