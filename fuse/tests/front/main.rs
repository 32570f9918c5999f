//! Tests of the front with real mounts of a filesystem in memory.
//!
//! They run as root. The tests in `user` run again as an ordinary user, through fusermount3.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a failure in a helper is a failure of the test"
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
mod takeover;
mod user;
#[path = "../../../tests/fixtures/waiting.rs"]
mod waiting;
