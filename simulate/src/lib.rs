//! Models of what copperfs does at sizes that no test has.
//!
//! - [`cold_start`]: every node of a tree reads the same items at once (`copperfs simulate tree`).
//! - [`cluster`]: jobs that train share GPUs, a cache and a link to storage (`copperfs simulate cluster`).
//!
//! Both call the product's own code where it decides: the trees of `copperfs_topology` and the policies of
//! `copperfs_policy`. Pure, apart from the reading of a calibration file: the same scenario gives the same
//! outcome to the last bit.

pub mod chart;
pub mod cluster;
pub mod cold_start;
mod random;
