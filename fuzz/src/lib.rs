//! Fuzz targets for all decoders of bytes from peers, in cargo-fuzz's layout.
//!
//! `scripts/fuzz` builds and runs all of them with the stable compiler and no further tool. Each also runs with
//! cargo-fuzz and a nightly compiler, and so with the address sanitizer: `cargo +nightly fuzz run messages`.
//!
//! # Adding a target
//! 1. Write `fn name(data: &[u8])` in a module here. It calls the decoder and asserts the invariants of accepted values;
//!    [`alloc::within`] bounds the memory.
//! 2. Add `fuzz_targets/name.rs`, like its neighbours, and its `[[bin]]` in Cargo.toml.
//! 3. Add an entry in [`seeds::TARGETS`]: values from the encoder, so that no binary file goes stale. Input that once
//!    failed goes to `regressions/name/`, and every run replays it.
//!
//! A decoder must be reachable as a public function of bytes; one in another crate than the overlay
//! needs a line in Cargo.toml and its crate's name in `instrument`.

pub mod alloc;
#[allow(
    dead_code,
    unreachable_pub,
    reason = "of the program, not of this crate"
)]
pub mod image;
pub mod images;
pub mod indexes;
pub mod manifests;
pub mod peers;
pub mod seeds;
pub mod values;
pub mod wire;
