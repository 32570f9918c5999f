//! Real mounts over a filesystem in memory: what applications and the kernel see of the front.
//!
//! As root; the tests in `user` run themselves again as an ordinary user through fusermount3.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "helpers of tests: a failure is the test's"
)]

#[path = "../../../tests/fixtures/cleanup.rs"]
mod cleanup;
mod fixture;
mod interrupt;
mod invalidate;
mod ioctl;
mod life;
mod listing;
mod memory;
mod passthrough;
mod prune;
mod push;
mod reading;
mod semantics;
#[path = "../../../tests/fixtures/skipping.rs"]
mod skipping;
mod user;
#[path = "../../../tests/fixtures/waiting.rs"]
mod waiting;
