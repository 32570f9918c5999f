//! copperfs: a per-node, read-only, cooperative caching filesystem.

pub mod cache;
pub mod namespace;
pub mod num;
pub mod read;
