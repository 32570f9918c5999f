//! Fuzz targets for everything that decodes bytes from a peer, in cargo-fuzz's layout.
//!
//! `scripts/fuzz` builds and runs them all with the stable compiler and no further tool; with
//! cargo-fuzz and a nightly compiler (and so the address sanitizer) each also runs by itself:
//! `cargo +nightly fuzz run messages`.
//!
//! # Adding a target
//! 1. a function `fn name(data: &[u8])` in a module here that calls the decoder and asserts what must
//!    hold of whatever it accepts; [`alloc::within`] bounds the memory that it takes;
//! 2. `fuzz_targets/name.rs`, two lines as in its neighbours, and its `[[bin]]` in Cargo.toml;
//! 3. an entry in [`seeds::TARGETS`]: values that the encoder makes, so that no binary file goes
//!    stale. Input that once failed goes to `regressions/name/`, and is replayed by every run.
//!
//! A decoder must be reachable as a public function of bytes; one in another crate than the overlay
//! needs a line in Cargo.toml and its crate's name in `instrument`.

pub mod alloc;
pub mod indexes;
pub mod peers;
pub mod seeds;
pub mod values;
pub mod wire;
