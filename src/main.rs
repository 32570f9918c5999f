//! copperfs.

/// Entry point.
fn main() {}
