//! Paths of the namespace, the trees that nodes form, and the root that answers for a path.
//!
//! Pure: no I/O, no clock, no state. Every node computes the same answers from the same member list, and the
//! simulator (`simulate`) computes them with the same code. The scores of [`Placement`] and the serde form of
//! [`ItemPath`] are part of the wire format (`docs/wire.md`).

mod forest;
mod path;
mod placement;
mod tree;

pub use forest::{Forest, ROOTS_MAX};
pub use path::{InvalidPath, ItemPath};
pub use placement::{BLOCK_BYTES, Placement, STRIPE_BLOCKS, digest, mix64};
pub use tree::Tree;
