//! The trees of copperfs nodes.
//!
//! Moves listings, attributes and verified blocks from parents to their children over QUIC, with mutual TLS derived from
//! one job secret. Knows neither FUSE nor caches nor storage: a node answers from an implementation of [`Files`], and
//! sends its requests to other nodes through [`Upstream`], which is a [`Files`] too.
//!
//! Invariants: every frame, queue and retry is bounded; a peer without a certificate of this job gets no byte; no input
//! from a peer can cause a panic in this crate.

pub mod bench;
mod cluster;
mod config;
mod connected;
mod counters;
pub mod error;
mod exchange;
pub mod homes;
pub mod identity;
pub mod level_timeouts;
pub mod loopback;
pub mod membership;
pub mod model;
pub mod overlay;
pub mod parent_selector;
mod peer;
mod plan;
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
pub use config::{HomesBounds, Orphan, OverlayConfig};
pub use copperfs_topology::{Forest, Placement, ROOTS_MAX, Tree, mix64};
pub use counters::Counters;
pub use error::OverlayError;
pub use homes::Homes;
pub use identity::{Cipher, Secret, SecretError};
pub use membership::{HelloError, Member, Membership, MembershipError, NodeIdentity};
pub use model::{
    Attributes, BLOCK_BYTES, BUNDLE_FILE_BYTES_MAX, BUNDLE_FILES_MAX, BlockPart, BundleFile,
    BundleItem, BundleRequest, BundleStream, ContentHash, Cursor, Entry, Extent, Failure,
    FailureKind, FileKind, Files, FilesFuture, FilesystemUsage, HELD_BYTES_MAX, HeldAnswer,
    HeldRequest, ITEM_BYTES_MAX, Insertion, InvalidPath, ItemAnswer, ItemPath, ItemRequest,
    LISTING_ENTRIES_MAX, Leased, ListRequest, Listed, Listing, ListingDigest, ListingHead,
    ListingPart, ListingStream, OriginFingerprint, RANGE_ALIGN, RANGE_BYTES_MAX, RangeAnswer,
    RangeRequest, ReadRequest, ReadStream, STRIPE_BLOCKS, Standing, StatAnswers, StatRequest,
    Timestamp, UNSETTLED_BYTES_MAX, Version, XattrList, granularity, parts_of, shorter,
};
pub use overlay::{BoundOverlay, Overlay};
pub use plan::{Plan, PlanReader, SlowestNode, Tally, WarmProgress};
pub use service::Service;
pub use steering::{LatestReceiver, LatestSender, Steering, SteeringSendError, latest};
pub use tls::{TlsError, TlsListener, TlsStream, tls_connect};
pub use upstream::{LinkReport, LinkStatus, Upstream};
pub use wire::STEERING_BYTES_MAX;
