//! Remote-IO tokens: what a job may read of the origin on this node (SiloD §6: the remote IO of a
//! job is throttled where its data is fetched).
//!
//! [`Bucket`] is the arithmetic, pure; [`Tokens`] lets readers wait for it, in the order in which
//! they came. One byte of the origin costs one token. A bucket gathers [`BURST`] of its rate at most
//! (or [`BURST_LEAST`], if that is more),
//! and goes into debt by one take at most: so an item that is larger than the burst still passes, the
//! long-run rate is exact, and in any window no more passes than
//! `burst + rate × window + one item`.
//!
//! Neighbours: the allocator's terms set the rate ([`super::activity`]); the dataset's reader takes
//! tokens before it lets a home read the origin, and gives back what the home did not spend.

mod bucket;
mod waiting;

pub use bucket::{BURST, BURST_LEAST, Bucket, RateLimit, Wait};
pub use waiting::{Permit, Tokens};

#[cfg(test)]
mod tests;
