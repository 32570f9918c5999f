//! The tree that copperfs nodes form.
//!
//! Purpose: move listings, attributes and verified blocks from a parent to its children over QUIC,
//! with mutual TLS derived from one job secret. This crate knows nothing of FUSE, of caches or of
//! storage: whatever a node can answer it gets from an implementation of [`Files`], and what a node
//! asks of others it asks through [`Upstream`], which is a [`Files`] too.
//!
//! Invariants: no frame, queue or retry is unbounded; a peer without a certificate of this job gets
//! no byte; nothing that a peer sends can panic this crate.

pub mod ascent;
pub mod bench;
mod children;
mod cluster;
mod counters;
pub mod error;
mod exchange;
pub mod homes;
pub mod identity;
pub mod loopback;
pub mod membership;
pub mod model;
pub mod overlay;
pub mod patience;
mod peer;
mod plan;
mod readers;
mod refusals;
mod server;
pub mod service;
mod shared;
pub mod steering;
pub mod tls;
pub mod transport;
pub mod upstream;
pub mod wire;

pub use cluster::warm::WarmOutcome;
pub use cluster::{ClusterClear, ClusterReports};
pub use copperfs_topology::{Forest, Placement, ROOTS_MAX, Tree};
pub use counters::Counters;
pub use error::OverlayError;
pub use homes::{Homes, HomesBounds};
pub use identity::{Secret, SecretError};
pub use membership::{Member, Membership, NodeIdentity};
pub use model::{
    Attributes, BLOCK_BYTES, BUNDLE_FILE_BYTES_MAX, BUNDLE_FILES_MAX, BlockPart, BundleFile,
    BundleItem, BundleRequest, BundleStream, ContentHash, Cursor, Entry, Failure, FailureKind,
    FileKind, Files, FilesystemUsage, ITEM_BYTES_MAX, InvalidPath, ItemAnswer, ItemPath,
    ItemRequest, LISTING_ENTRIES_MAX, Leased, Listed, Listing, ListingDigest, ListingHead,
    ListingPart, ListingStream, OriginFingerprint, RANGE_ALIGN, RANGE_BYTES_MAX, RangeAnswer,
    RangeRequest, ReadRequest, ReadStream, STRIPE_BLOCKS, Standing, StatAnswers, Timestamp,
    UNSETTLED_BYTES_MAX, Version, XattrList, granularity, shorter,
};
pub use overlay::{Overlay, OverlayConfig};
pub use peer::Liveness;
pub use plan::{Laggard, Plan, PlanReader, Tally, WarmProgress};
pub use service::Service;
pub use steering::{LatestReceiver, LatestSender, NotSent, Steering, latest};
pub use tls::{TlsError, TlsListener, TlsStream, tls_connect};
pub use upstream::{LinkReport, LinkStatus, Orphan, Upstream};
pub use wire::STEERING_BYTES_MAX;
