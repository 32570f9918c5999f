//! The data model: requests between nodes, and their answers.
//!
//! Plain values, and [`Files`], the trait of all sources for the namespace. No I/O, no clock. The serde forms of these
//! types are part of the wire format (`docs/wire.md`).

mod dataset_item;
mod files;
mod freshness;
mod item;
mod version;

pub use copperfs_topology::{BLOCK_BYTES, InvalidPath, ItemPath, STRIPE_BLOCKS};
pub(crate) use dataset_item::not_a_home;
pub use dataset_item::{
    Extent, HELD_BYTES_MAX, HeldAnswer, HeldRequest, ITEM_BYTES_MAX, Insertion, ItemAnswer,
    ItemRequest, parts_of,
};
pub(crate) use files::not_here;
pub use files::{
    BUNDLE_FILE_BYTES_MAX, BUNDLE_FILES_MAX, BundleFile, BundleItem, BundleRequest, BundleStream,
    Files, FilesFuture, LISTING_ENTRIES_MAX, ListRequest, Listed, ListingHead, ListingPart,
    ListingStream, RANGE_ALIGN, RANGE_BYTES_MAX, RangeAnswer, RangeRequest, ReadRequest,
    ReadStream, StatAnswers, StatRequest, UNSETTLED_BYTES_MAX,
};
pub use freshness::{Leased, ListingDigest, shorter};
pub(crate) use freshness::{from_ms, to_ms};
pub use item::{
    Attributes, BlockPart, ContentHash, Cursor, Entry, Failure, FailureKind, FileKind,
    FilesystemUsage, Listing, OriginFingerprint, Timestamp, XattrList, granularity,
};
pub use version::{Standing, Version};
