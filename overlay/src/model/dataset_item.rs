//! Items of datasets: requests to the home of an item, and its answers.

use super::item::{ContentHash, Failure, FailureKind};
use super::version::Version;
use bytes::Bytes;
use copperfs_topology::{BLOCK_BYTES, ItemPath, STRIPE_BLOCKS};
use serde::{Deserialize, Serialize};

/// Most bytes of one [`ItemRequest`]: a whole stripe.
pub const ITEM_BYTES_MAX: u64 = STRIPE_BLOCKS * BLOCK_BYTES;

/// Requests consecutive bytes of one stripe of one version of a file from its home.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ItemRequest {
    /// The dataset of the file; opaque here.
    pub dataset: u64,
    /// The file.
    pub path: ItemPath,
    /// The requested version. If the origin has another one, the answer is `Stale`.
    pub version: Version,
    /// Size of that version in bytes.
    pub size: u64,
    /// The hash of the whole file, if the requester knows it ([`crate::Attributes::content`]).
    pub content: Option<ContentHash>,
    /// Index of the stripe, in units of [`ITEM_BYTES_MAX`].
    pub stripe: u64,
    /// Offset of the first byte in the file; within the stripe.
    pub offset: u64,
    /// Number of bytes, 1 to [`ITEM_BYTES_MAX`], all within the stripe and the file.
    pub len: u64,
    /// The job that reads; 0: none. Opaque here.
    pub job: u128,
    /// Bytes that the home may read from the origin for this request.
    pub payment: u64,
}

impl ItemRequest {
    /// The reason why this request is invalid; `None` if it is valid.
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

/// The answer of a home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ItemAnswer {
    /// All requested bytes.
    Bytes {
        /// Requested bytes.
        bytes: Bytes,
        /// The BLAKE3 hash of exactly these bytes. Verified on arrival.
        hash: ContentHash,
        /// The home had the bytes before this request.
        cached: bool,
        /// Bytes that were read from the origin for this request; 0 if it joined another request.
        charged: u64,
        /// Bytes that the home caches from now on because of this request.
        admitted: u64,
    },
    /// The home lacks the bytes, and the payment does not cover the cost of reading the origin.
    Unpaid {
        /// The cost in bytes.
        cost: u64,
    },
}

/// The failure of a node that is no home.
pub(crate) fn not_a_home() -> Failure {
    Failure::new(FailureKind::Unsupported, "this node is no home of items")
}
