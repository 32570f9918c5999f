//! One suite for every origin, and what each of them must do beyond it.
//!
//! The suite (`suite.rs`) runs against a POSIX directory, an object store in memory and a real S3 server
//! (`scripts/test-servers` installs it). What a server does wrong is done by a small HTTP server on
//! loopback (`faults.rs`), over real HTTP.

mod bundles;
mod faults;
mod faulty_server;
mod fixtures;
mod posix;
mod pressure;
mod router;
mod suite;
