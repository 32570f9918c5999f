//! Items of datasets: what one node asks of the node that is an item's home.

use super::item::{ContentHash, Failure, FailureKind};
use super::version::Version;
use bytes::Bytes;
use copperfs_topology::{BLOCK_BYTES, ItemPath, STRIPE_BLOCKS};
use serde::{Deserialize, Serialize};

/// Most bytes of one [`ItemRequest`]: a whole stripe.
pub const ITEM_BYTES_MAX: u64 = STRIPE_BLOCKS * BLOCK_BYTES;

/// A run of bytes of one stripe of one version of one file, asked of the node that is its home.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ItemRequest {
    /// Which dataset the file belongs to; opaque here.
    pub dataset: u64,
    /// The file.
    pub path: ItemPath,
    /// The version wanted; another one at the origin is answered with `Stale`.
    pub version: Version,
    /// Size of that version in bytes.
    pub size: u64,
    /// The hash of the whole file, where the asker knows it ([`crate::Attributes::content`]).
    pub content: Option<ContentHash>,
    /// Which stripe of the file, in units of [`ITEM_BYTES_MAX`].
    pub stripe: u64,
    /// First byte wanted, counted from the file's beginning; within the stripe.
    pub offset: u64,
    /// Bytes wanted, 1 to [`ITEM_BYTES_MAX`], all within the stripe and the file.
    pub len: u64,
    /// For which job; 0: nobody's. Opaque here.
    pub job: u128,
    /// Bytes that the home may read from the origin for this request.
    pub payment: u64,
}

impl ItemRequest {
    /// Why this cannot be asked for, if so.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        if self.len == 0 || self.len > ITEM_BYTES_MAX {
            return Some("an item's bytes: none, or too many");
        }
        let end = self.offset.checked_add(self.len);
        let Some(end) = end.filter(|end| *end <= self.size) else {
            return Some("an item's bytes beyond the end of the file");
        };
        if self.offset / ITEM_BYTES_MAX != self.stripe || (end - 1) / ITEM_BYTES_MAX != self.stripe
        {
            return Some("an item's bytes outside their stripe");
        }
        None
    }
}

/// What a home answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ItemAnswer {
    /// The bytes, as many as were asked for.
    Bytes {
        /// They.
        bytes: Bytes,
        /// Their BLAKE3 hash: of exactly these bytes. Checked where they arrive.
        hash: ContentHash,
        /// The home had them before it was asked.
        cached: bool,
        /// Bytes that were read from the origin for this request: 0 for who joined another's.
        charged: u64,
        /// Bytes that the home keeps from now on because of this request.
        admitted: u64,
    },
    /// The home lacks them, and the payment does not cover what reading the origin costs.
    Unpaid {
        /// What it costs, in bytes.
        cost: u64,
    },
}

/// That this node is nobody's home.
pub(crate) fn no_home() -> Failure {
    Failure::new(FailureKind::Unsupported, "this node is no home of items")
}
