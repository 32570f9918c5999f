//! Items of datasets: requests to the home of an item, and its answers.

use super::files::RangeAnswer;
use super::item::{ContentHash, Failure, FailureKind};
use super::version::Version;
use bytes::Bytes;
use copperfs_topology::{BLOCK_BYTES, ItemPath, STRIPE_BLOCKS};
use serde::{Deserialize, Serialize};

/// Most bytes of an item: a whole stripe.
pub const ITEM_BYTES_MAX: u64 = STRIPE_BLOCKS * BLOCK_BYTES;

/// The number of parts of [`ITEM_BYTES_MAX`] bytes, each with a hash of its own, that content of `length` bytes is
/// divided into. Content that is one item has none, because its own hash verifies it.
#[must_use]
pub const fn parts_of(length: u64) -> u64 {
    if length > ITEM_BYTES_MAX {
        length.div_ceil(ITEM_BYTES_MAX)
    } else {
        0
    }
}

/// Consecutive bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Extent {
    /// Offset of the first byte in the file.
    pub start: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Extent {
    /// The offset after the last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Returns whether all bytes of `other` are bytes of this extent.
    #[must_use]
    pub const fn contains(&self, other: &Self) -> bool {
        // No sum of two offsets, which may overflow.
        match other.start.checked_sub(self.start) {
            Some(before) => before <= self.len && other.len <= self.len - before,
            None => false,
        }
    }
}

/// Requests consecutive bytes of one item from its home. An item is consecutive bytes of one version of a
/// file.
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
    /// The item: 1 to [`ITEM_BYTES_MAX`] bytes of the file.
    pub item: Extent,
    /// The hash of the item, if the requester knows it.
    pub content: Option<ContentHash>,
    /// The requested bytes: at least one, all within the item.
    pub wanted: Extent,
    /// The job that reads; 0: none. Opaque here.
    pub job: u128,
    /// Bytes that the home may read from the origin for this request.
    pub payment: u64,
    /// The home reads the origin in any case, for this request alone, and keeps nothing.
    pub is_uncached: bool,
}

impl ItemRequest {
    /// The reason why this request is invalid; `None` if it is valid.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        let Self { item, wanted, .. } = self;
        if item.len == 0 || item.len > ITEM_BYTES_MAX {
            return Some("an item of no bytes, or of too many");
        }
        if item
            .start
            .checked_add(item.len)
            .is_none_or(|end| end > self.size)
        {
            return Some("an item beyond the end of the file");
        }
        if wanted.len == 0 || !item.contains(wanted) {
            return Some("no bytes of the item");
        }
        None
    }

    /// Returns the requested bytes of each block of the item, in order. Blocks are counted from the beginning of the item.
    /// The request must be valid.
    pub fn blocks(&self) -> impl Iterator<Item = Extent> {
        let (item, end) = (self.item.start, self.wanted.end());
        let mut start = self.wanted.start;
        std::iter::from_fn(move || {
            let next = item + ((start - item) / BLOCK_BYTES + 1) * BLOCK_BYTES;
            let len = next.min(end).checked_sub(start).filter(|len| *len > 0)?;
            let block = Extent { start, len };
            start += len;
            Some(block)
        })
    }

    /// Returns `bytes`, all requested ones, as blocks of an answer. Hashes them.
    #[must_use]
    pub fn hashed(&self, bytes: &Bytes) -> Vec<RangeAnswer> {
        let mut left = bytes.clone();
        let take = |block: Extent| {
            let len = usize::try_from(block.len).unwrap_or(usize::MAX);
            RangeAnswer::of(left.split_to(len.min(left.len())))
        };
        self.blocks().map(take).collect()
    }
}

/// The answer of a home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ItemAnswer {
    /// All requested bytes.
    Bytes {
        /// All requested bytes, in [`ItemRequest::blocks`]. Each has its own hash, so that a home hashes and joins
        /// nothing that it holds. Verified on arrival.
        blocks: Vec<RangeAnswer>,
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

/// Most bytes of a [`HeldAnswer`]: 128 million items at one home.
pub const HELD_BYTES_MAX: u32 = 16 << 20;

/// Asks a home which of a dataset's items it holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeldRequest {
    /// The dataset; opaque here.
    pub dataset: u64,
    /// Identifies the dataset's items and their homes, which the bits of the answer depend on; opaque here.
    pub layout: [u8; 16],
    /// The [`HeldAnswer::state`] that the requester has; 0: none.
    pub known: u64,
}

/// The answer of a home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldAnswer {
    /// Identifies the bits.
    pub state: u64,
    /// A bit for each item at home there, in the order of the dataset, lowest bit first: whether it is held.
    /// `None`: the requester has them.
    pub bits: Option<Bytes>,
}

/// The outcome of giving an item to its home.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Insertion {
    /// The home holds it.
    Kept,
    /// The home has no room for it, or its dataset's rule does not keep it.
    NoRoom,
    /// Its bytes have another hash, or the home knows of no item with this one.
    Refused,
}

/// The failure of a node that is no home.
pub(crate) fn not_a_home() -> Failure {
    Failure::new(FailureKind::Unsupported, "this node is no home of items")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_from_the_beginning_of_the_item() {
        let lengths = |start: u64, len: u64| {
            let item = Extent {
                start: 100,
                len: ITEM_BYTES_MAX,
            };
            let request = ItemRequest {
                dataset: 1,
                path: ItemPath::parse(b"file").unwrap(),
                version: Version::from_data([7; 16]),
                size: 1 << 30,
                item,
                content: None,
                wanted: Extent { start, len },
                job: 0,
                payment: 0,
                is_uncached: false,
            };
            assert_eq!(request.fault(), None);
            let blocks: Vec<Extent> = request.blocks().collect();
            let mut at = start;
            for block in &blocks {
                assert_eq!(block.start, at);
                at = block.end();
            }
            assert_eq!(at, start + len);
            blocks.iter().map(|block| block.len).collect::<Vec<_>>()
        };
        const MIB: u64 = BLOCK_BYTES;
        assert_eq!(lengths(100, ITEM_BYTES_MAX), [MIB; 4]);
        assert_eq!(lengths(100, 1), [1]);
        assert_eq!(lengths(99 + MIB, 2), [1, 1]);
        assert_eq!(lengths(100 + MIB, MIB), [MIB]);
        assert_eq!(lengths(50 + 2 * MIB, MIB + 60), [50, MIB, 10]);
    }
}
