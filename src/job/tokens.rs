//! Remote-IO tokens: the limit on a job's reads from storage on this node (SiloD §6: a job's remote
//! IO is throttled where its data is fetched).
//!
//! [`Bucket`] is the pure arithmetic, and [`Tokens`] lets readers wait for it in the order of their
//! calls. One byte from storage costs one token. A bucket collects at most [`BURST`] of its rate
//! (or [`BURST_LEAST`], if that is more), and goes into debt by at most one take. So an item that
//! is larger than the burst still passes, the long-run rate is exact, and in any window at most
//! `burst + rate × window + one item` passes.
//!
//! Neighbours: decisions set the rate ([`super::activity`]). The dataset's reader takes tokens
//! before it lets a home read from storage, and returns the tokens that the home did not spend.

mod bucket;
mod waiting;

pub use bucket::{BURST, BURST_LEAST, Bucket, RateLimit, Wait};
pub use waiting::{Permit, Tokens};

#[cfg(test)]
mod tests;
