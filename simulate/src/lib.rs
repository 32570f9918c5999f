//! Models of copperfs at sizes that no test reaches.
//!
//! - [`cold_start`]: every node of a tree reads the same items at once (`copperfs simulate tree`).
//! - [`cluster`]: jobs that train share GPUs, a cache and a link to storage (`copperfs simulate cluster`).
//! - [`pipelines`]: tasks that are known before they run share a cache (`copperfs simulate pipelines`).
//!
//! All use the product's own code for its decisions: the trees of `copperfs_topology` and the
//! policies of `copperfs_policy`. Pure, except for reading a calibration file: a scenario always
//! has the same outcome, to the last bit.

pub mod chart;
pub mod cluster;
pub mod cold_start;
mod num;
pub mod pipelines;
mod random;
