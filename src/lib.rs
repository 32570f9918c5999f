//! copperfs: a per-node, read-only, cooperative caching filesystem.

pub mod cache;
pub mod num;
pub mod read;
