//! One suite for every origin, and further tests of each kind.
//!
//! The suite (`suite.rs`) runs against a POSIX directory, an object store in memory, and real servers on
//! loopback (`servers.rs`; `scripts/test-servers` installs them): S3, Azure Blob, Google's client at an
//! S3 server, web servers with ranges and without. Their capabilities are in
//! `capabilities.rs`. A small HTTP server simulates faults of servers (`faults.rs`).

mod backends;
mod bundles;
mod capabilities;
mod examine;
mod faults;
mod faulty_server;
mod filesystems;
mod fixtures;
mod hanging;
mod pages;
mod posix;
mod pressure;
mod refusals;
mod router;
mod servers;
mod suite;

#[path = "../fixtures/cleanup.rs"]
mod cleanup;
#[path = "../fixtures/silent_files.rs"]
mod silent_files;
#[path = "../fixtures/skipping.rs"]
mod skipping;
#[path = "../fixtures/waiting.rs"]
mod waiting;
