//! Items from their homes: bytes that one node keeps for all others.
//!
//! A declared dataset's items have one home each. Who reads an item asks its home straight, over a
//! connection of its own that is made when it is needed ([`Homes`]), and not by way of a tree. What a
//! dataset is, which node is whose home, and what reading the origin costs, is the business of whoever
//! asks and of the [`Service`](crate::Service) that answers; this module moves the bytes, bounded, and
//! checks them where they arrive.

use crate::files::{BLOCK_BYTES, STRIPE_BLOCKS};
use crate::item::{ContentHash, Failure, FailureKind, ItemPath, Version};
use bytes::Bytes;
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

/// This node's connections to the homes of items. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Homes;

impl Homes {
    /// Asks the member at `rank`, over a connection that is made when there is none. Asking oneself is
    /// the caller's business. Dropping the future cancels what the home does for it.
    ///
    /// # Errors
    /// `Unavailable` when the home cannot be reached, within about a second also when it is gone
    /// without a word, and at once for a while thereafter; `Corrupt` when its answer cannot be true;
    /// what the home failed with.
    #[expect(clippy::unused_async, reason = "not yet")]
    pub async fn item(&self, rank: usize, request: ItemRequest) -> Result<ItemAnswer, Failure> {
        let _unsent = (rank, request);
        Err(no_home())
    }
}
