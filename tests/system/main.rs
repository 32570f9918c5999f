//! Whole-system tests: the real program, real mounts, real clients, several nodes, real faults.
//!
//! One test binary, so that the program is linked once and tests of all themes can run side by side.
//! Each module is a theme, and `support` is their common code. Needs `/dev/fuse` and, for most tests, root. A test whose
//! requirements are missing prints `skipped: …`, and fails with `COPPERFS_TEST_STRICT=1`.
//!
//! Each mount, process and namespace belongs to a guard that removes it, also when the test panics; `cleanup` does it for
//! a test that is killed. A mount that makes a test hang is ended by its leash.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    reason = "test code: a panic is how a test says no"
)]

#[path = "../fixtures/cleanup.rs"]
mod cleanup;
#[path = "../fixtures/silent_files.rs"]
mod silent_files;
#[path = "../fixtures/skipping.rs"]
mod skipping;
mod support;
#[path = "../fixtures/waiting.rs"]
mod waiting;

mod attributes;
mod bad_input;
mod batch_reads;
mod budgets;
mod bundles;
mod caches;
mod changes;
mod clear;
mod credentials;
mod data_mount;
mod datasets;
mod faults;
mod freshness;
mod hanging;
mod healing;
mod hosts;
mod indexed;
mod interrupted;
mod ioctl;
mod job_start;
mod killed;
mod kills;
mod large;
mod leases;
mod lifecycle;
mod limits;
mod manifest;
mod memory;
mod metrics;
mod names;
mod namespaces;
mod native;
mod object_store;
mod ordinary_user;
mod origins;
mod outside;
mod pipelines;
mod poison;
mod pressure;
mod real_clients;
mod reload;
mod secrets;
mod settling;
mod slurm;
mod status;
mod status_changes;
mod store;
mod stores;
mod swapped;
mod takeover;
mod unmount;
mod upgrade;
mod users;
mod warm;
