//! The tree that copperfs nodes form.
//!
//! Purpose: move listings, attributes and verified blocks from a parent to its children over QUIC,
//! with mutual TLS derived from one job secret. This crate knows nothing of FUSE, of caches or of
//! storage: whatever a node can answer it gets from an implementation of [`Files`], and what a node
//! asks of its parent it asks through [`Parent`], which is a [`Files`] too.
//!
//! Invariants: no frame, queue or retry is unbounded; a peer without a certificate of this job gets
//! no byte; nothing that a peer sends can panic this crate.

mod cluster;
mod counters;
pub mod files;
pub mod identity;
pub mod item;
pub mod overlay;
pub mod parent;
mod server;
mod transport;
pub mod tree;
pub mod wire;

pub use cluster::{ClusterClear, ClusterReports};
pub use counters::Counters;
pub use files::{
    BLOCK_BYTES, BUNDLE_FILE_BYTES_MAX, BUNDLE_FILES_MAX, BundleFile, BundleItem, BundleRequest,
    BundleStream, Files, LISTING_ENTRIES_MAX, ReadRequest, ReadStream,
};
pub use identity::{Secret, SecretError};
pub use item::{
    Attributes, BlockPart, ContentHash, Cursor, Entry, Failure, FailureKind, FileKind,
    FilesystemUsage, InvalidPath, ItemPath, Listing, Timestamp, Version, XattrList,
};
pub use overlay::{Member, Overlay, OverlayConfig, OverlayError, Service};
pub use parent::{LinkStatus, Parent};
pub use tree::Tree;
