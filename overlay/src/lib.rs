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
mod cluster;
mod counters;
pub mod files;
pub mod forest;
pub mod freshness;
pub mod homes;
pub mod identity;
pub mod item;
pub mod loopback;
pub mod overlay;
pub mod patience;
pub mod placement;
pub mod roster;
mod server;
pub mod steering;
pub mod tls;
pub mod transport;
pub mod tree;
pub mod upstream;
pub mod version;
pub mod wire;

pub use cluster::warm::{Laggard, Plan, PlanReader, Tally, WarmOutcome, WarmProgress};
pub use cluster::{ClusterClear, ClusterReports};
pub use counters::Counters;
pub use files::{
    BLOCK_BYTES, BUNDLE_FILE_BYTES_MAX, BUNDLE_FILES_MAX, BundleFile, BundleItem, BundleRequest,
    BundleStream, Files, LISTING_ENTRIES_MAX, Listed, ListingHead, ListingPart, ListingStream,
    RANGE_ALIGN, RANGE_BYTES_MAX, RangeAnswer, RangeRequest, ReadRequest, ReadStream,
    STRIPE_BLOCKS, StatAnswers, UNSETTLED_BYTES_MAX,
};
pub use forest::{Forest, ROOTS_MAX};
pub use freshness::{Leased, ListingDigest};
pub use homes::{Homes, HomesBounds, ITEM_BYTES_MAX, ItemAnswer, ItemRequest};
pub use identity::{Secret, SecretError};
pub use item::{
    Attributes, BlockPart, ContentHash, Cursor, Entry, Failure, FailureKind, FileKind,
    FilesystemUsage, InvalidPath, ItemPath, Listing, Standing, Timestamp, Version, XattrList,
    granularity,
};
pub use overlay::{OriginFingerprint, Overlay, OverlayConfig, OverlayError, Service};
pub use placement::Placement;
pub use roster::{Member, Roster, Seat};
pub use steering::{LatestReceiver, LatestSender, NotSent, STEERING_BYTES_MAX, Steering, latest};
pub use tls::{TlsError, TlsListener, TlsStream, tls_connect};
pub use tree::Tree;
pub use upstream::{LinkReport, LinkStatus, Liveness, Orphan, Upstream};
