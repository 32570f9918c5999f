//! The read path: the one ladder that a local application's reads and a child node's requests climb.
//!
//! Purpose: answer from this node's caches, or ask the next source once however many are asking, and
//! keep what comes back within the caches' bounds. The next source is anything that implements
//! [`Files`]: the parent's stub on most nodes, the origins on the root. A [`ReadPath`] is a [`Files`]
//! itself, so a child node is served by the same code as the FUSE front.
//!
//! What it does not do: inodes and the kernel (`namespace`), sockets (`copperfs_overlay`), storage
//! (`origin`).
//!
//! Invariants: no byte is given out before its block is complete and verified (by the source), except
//! to a child that checks for itself (cut-through); a failure other than "there is no such file" is
//! never cached; data is cached under its version, so an old copy is never taken for a new one.
//!
//! With several roots a question may come from a later position of its item's root order than its
//! first. Such questions are answered from the same caches, but what is asked for them waits only for
//! questions of the same position ([`ReadPath::views`]): so no two nodes ever wait for each other.

mod arriving;
mod attributes;
mod blocks;
mod bundle;
mod directory;
mod epoch;
mod feed;
mod file;
mod flight;
mod given;
mod handouts;
mod held;
mod kept;
mod lease;
mod listings;
mod parts;
mod persisted;
mod pieces;
mod renew;
mod room;
mod scattered;
mod serve;
mod settling;
mod share;
mod siblings;
mod single_flight;
mod streams;
mod touched;
mod urgent;
mod usage;
mod walk;

pub use bundle::{Arrivals, BundleStats};
pub use directory::{Directory, Edition, Found};
pub use file::{FileId, FileRef};
pub use given::{Account, BLOCKS_MAX, Given, Meter, Noted, RUNS_MAX, SCATTERED_MAX, Scattered};
pub use kept::KeptData;
pub use parts::{Cut, Part, Parts, Place};
pub use persisted::{PersistedListings, PersistedStats};
pub use streams::ReadAhead;

use crate::cache::{Cache, CacheStats, EvictionPolicy};
use attributes::{Known, KnownAttributes, KnownXattrs};
use bytes::Bytes;
use copperfs_metrics::{Kind, Registry, Unit};
use copperfs_overlay::{ContentHash, Failure, FailureKind, Files, ItemPath};
use dashmap::DashMap;
use directory::ListingKey;
use epoch::Epoch;
use file::BlockKey;
use room::Room;
use single_flight::SingleFlight;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use streams::Pace;

/// Bounds and choices of a [`ReadPath`].
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// How full caches evict.
    pub policy: EvictionPolicy,
    /// Bytes of file data held or under way.
    pub data_bytes_max: u64,
    /// Bytes of attributes held (estimated, with their paths).
    pub attributes_bytes_max: u64,
    /// Bytes of listings held (estimated).
    pub listings_bytes_max: u64,
    /// Files up to this many bytes are fetched whole at the first read (Copper, section IV.B.1), if the
    /// cache has sixteen times as much room.
    pub whole_file_max: u64,
    /// Files above this many bytes are read from storage by this node itself (Copper, section
    /// IV.B.2); needs a direct source.
    pub bypass_above: Option<u64>,
    /// Whether requests end where stripes do: with several roots each stripe has its own.
    pub stripes: bool,
    /// Whether small files of a directory are brought together.
    pub bundles: bool,
    /// A directory with more entries is paged for readers and looked up by name.
    pub listing_entries_max: usize,
    /// How long metadata may be used after storage was asked; `None`: until it is cleared. The same on
    /// all nodes.
    pub lease: Option<Duration>,
    /// Where listings are kept for the next launch; `None`: nowhere.
    pub metadata_dir: Option<PathBuf>,
}

/// A verified block of file data.
#[derive(Clone, Debug)]
pub struct Block {
    bytes: Bytes,
    hash: ContentHash,
    /// Whose block it is, for `clear`.
    path: ItemPath,
}

/// What a read path has counted, besides its caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadStats {
    /// File data.
    pub data: CacheStats,
    /// Attributes.
    pub attributes: CacheStats,
    /// Listings.
    pub listings: CacheStats,
    /// Requests that joined one already under way.
    pub coalesced: u64,
    /// Bundles.
    pub bundles: BundleStats,
    /// Listings of earlier launches.
    pub persisted: PersistedStats,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct ReadPath(Arc<Inner>);

impl fmt::Debug for ReadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadPath")
            .field("options", &self.0.options)
            .finish_non_exhaustive()
    }
}

/// One view: its source and what it has under way. The rest is shared by all of them.
struct Inner {
    options: ReadOptions,
    source: Arc<dyn Files>,
    /// All views, by position.
    views: Arc<OnceLock<Vec<Weak<Self>>>>,
    /// Storage as this node reaches it itself, for `bypass_above`.
    direct: Option<Arc<dyn Files>>,
    runtime: tokio::runtime::Handle,

    /// Blocks of files, and pieces of blocks.
    data: Arc<Cache<BlockKey, Block>>,
    block_flights: DashMap<BlockKey, Arc<flight::Flight>>,

    /// What local reads have under way, in bytes.
    room: Arc<Room>,
    /// How far the readers of large files are, all together.
    pace: Arc<Pace>,
    /// Files up to this many bytes are fetched whole.
    whole_file_max: u64,

    listings: Arc<Cache<ListingKey, Arc<Directory>>>,
    /// Listings on their way here, for children who take them as they come.
    arriving: DashMap<ListingKey, Arc<arriving::Arriving>>,
    /// Listings of which nobody has asked for yet and that are under way.
    listings_ahead: AtomicUsize,
    listing_flights: SingleFlight<ListingKey, Result<Arc<Directory>, Failure>>,
    attributes: Arc<Cache<ItemPath, KnownAttributes>>,
    attribute_flights: SingleFlight<ItemPath, Result<Known, Failure>>,
    xattrs: Arc<Cache<ItemPath, KnownXattrs>>,
    xattr_flights: SingleFlight<ItemPath, KnownXattrs>,
    usages: usage::Usages,
    /// Listings of earlier launches.
    persisted: Option<PersistedListings>,
    /// Raised by `clear`, and when metadata turns out to be wrong: metadata that was requested before is
    /// not cached when it arrives.
    epoch: Arc<Epoch>,
    /// The same for file data; raised by `clear` only.
    data_epoch: Arc<Epoch>,

    bundles: bundle::Account,

    coalesced: AtomicU64,
}

/// All read-ahead windows together may fill one part in so many of the data cache. Well below the tenth
/// that S3-FIFO gives to what nobody has read yet, and in which what is being read lies too: so what was
/// fetched ahead is still there when its reader comes.
const WINDOWS_SHARE: u64 = 16;

/// A file that would fill more than one part in so many of the data cache is not fetched whole.
const WHOLE_FILE_SHARE: u64 = 4;

/// The share of the attributes' bound that extended attributes get.
const XATTR_SHARE: u64 = 8;

impl ReadPath {
    /// Read paths over the same caches, one in front of each of `sources`: those for the positions of
    /// an item's root order. Their background fetches run on `runtime`. Not empty if `sources` is not.
    #[must_use]
    pub fn views(
        options: &ReadOptions,
        sources: Vec<Arc<dyn Files>>,
        direct: Option<&Arc<dyn Files>>,
        runtime: &tokio::runtime::Handle,
    ) -> Vec<Self> {
        let policy = options.policy;
        let xattr_bytes_max = options.attributes_bytes_max / XATTR_SHARE;
        let reserve = room::reserve(options.data_bytes_max);
        let data_bytes = options.data_bytes_max - reserve;
        let data = Arc::new(Cache::new(policy, data_bytes));
        let room = Arc::new(Room::new(reserve));
        let pace = Arc::new(Pace::new(data_bytes / WINDOWS_SHARE));
        let listings = Arc::new(Cache::new(policy, options.listings_bytes_max));
        let attributes_bytes_max = options.attributes_bytes_max - xattr_bytes_max;
        let attributes = Arc::new(Cache::new(policy, attributes_bytes_max));
        let xattrs = Arc::new(Cache::new(policy, xattr_bytes_max));
        let (epoch, data_epoch) = (Arc::default(), Arc::default());
        let metadata_dir = options.metadata_dir.as_deref();
        let persisted = metadata_dir.and_then(PersistedListings::open);
        let views = Arc::new(OnceLock::new());
        let view = |source| {
            Self(Arc::new(Inner {
                views: Arc::clone(&views),
                data: Arc::clone(&data),
                block_flights: DashMap::new(),
                room: Arc::clone(&room),
                pace: Arc::clone(&pace),
                whole_file_max: options.whole_file_max.min(data_bytes / WHOLE_FILE_SHARE),
                listings: Arc::clone(&listings),
                arriving: DashMap::new(),
                listings_ahead: AtomicUsize::new(0),
                listing_flights: SingleFlight::new(),
                attributes: Arc::clone(&attributes),
                attribute_flights: SingleFlight::new(),
                xattrs: Arc::clone(&xattrs),
                xattr_flights: SingleFlight::new(),
                usages: usage::Usages::new(),
                epoch: Arc::clone(&epoch),
                data_epoch: Arc::clone(&data_epoch),
                persisted: persisted.clone(),
                bundles: bundle::Account::default(),
                coalesced: AtomicU64::new(0),
                options: options.clone(),
                source,
                direct: direct.cloned(),
                runtime: runtime.clone(),
            }))
        };
        let all: Vec<Self> = sources.into_iter().map(view).collect();
        let known = views.set(all.iter().map(|view| Arc::downgrade(&view.0)).collect());
        drop(known);
        all
    }

    /// Drops what is cached of `path` and of everything below it, and the directory entry of `path`
    /// itself. Data in use elsewhere stays valid there: it belongs to its version.
    pub fn clear(&self, path: &ItemPath) {
        let inner = &self.0;
        inner.source.forget(path);
        inner.forget_metadata_flights();
        inner.forget_data_flights(path);
        inner.usages.clear();
        let below = |candidate: &ItemPath| candidate.is_within(path);
        let parent = path.split().map(|(parent, _)| parent);
        inner.data.remove_where(|_, block| below(&block.path));
        inner
            .attributes
            .remove_where(|candidate, _| below(candidate));
        inner.xattrs.remove_where(|candidate, _| below(candidate));
        inner
            .listings
            .remove_where(|key, _| below(&key.path) || Some(&key.path) == parent.as_ref());
        if let Some(persisted) = &inner.persisted {
            persisted.clear(path);
        }
    }

    /// A block in memory with these bytes, whatever file it belongs to. Looks at all blocks: call it on
    /// a blocking thread, and seldom.
    #[must_use]
    pub fn by_hash(&self, hash: ContentHash, len: u64) -> Option<Bytes> {
        (self.0.data).search(|_, block| {
            let found = block.hash == hash && block.bytes.len() as u64 == len;
            found.then(|| block.bytes.clone())
        })
    }

    /// Declares the counters in `registry`.
    pub fn declare(&self, registry: &Registry) {
        use Unit::{Bytes, Count};
        type OfCache = fn(&ReadStats) -> CacheStats;
        let caches: [(_, OfCache); 3] = [
            ("data", |now| now.data),
            ("attributes", |now| now.attributes),
            ("listings", |now| now.listings),
        ];
        for (name, cache) in caches {
            let read = |number: fn(&CacheStats) -> u64| {
                let read = self.clone();
                move || number(&cache(&read.stats()))
            };
            let scope = registry.scope("cache").label("cache", name);
            let help = "Entries of a cache in memory: blocks, attributes, listings.";
            scope.computed("entries", Kind::Gauge, Count, help, read(|now| now.entries));
            let help = "Bytes of a cache in memory.";
            scope.computed("bytes", Kind::Gauge, Bytes, help, read(|now| now.bytes));
            let help = "Questions that a cache in memory answered.";
            scope.computed("hits", Kind::Counter, Count, help, read(|now| now.hits));
            let help = "Questions that a cache in memory could not answer.";
            scope.computed("misses", Kind::Counter, Count, help, read(|now| now.misses));
            let help = "Entries removed because a cache in memory was full.";
            let evictions = read(|now| now.evictions);
            scope.computed("evictions", Kind::Counter, Count, help, evictions);
        }
        let read = |number: fn(&ReadStats) -> u64| {
            let read = self.clone();
            move || number(&read.stats())
        };
        let help = "Requests that waited for an equal request in progress.";
        let coalesced = read(|now| now.coalesced);
        let scope = registry.scope("coalesced");
        scope.computed("", Kind::Counter, Count, help, coalesced);
        let bundle = registry.scope("bundle");
        let help = "Bundles that this node requested.";
        let requests = read(|now| now.bundles.requests);
        bundle.computed("requests", Kind::Counter, Count, help, requests);
        let help = "Files requested in bundles.";
        let files = read(|now| now.bundles.files);
        bundle.computed("files", Kind::Counter, Count, help, files);
        let help = "Bytes of bundles that were read later; of pushed pages an estimate by samples.";
        let useful = read(|now| now.bundles.useful_bytes);
        bundle.computed("useful_bytes", Kind::Gauge, Bytes, help, useful);
        let help = "Bytes of bundles that were not read so far.";
        let wasted = read(|now| now.bundles.wasted_bytes);
        bundle.computed("wasted_bytes", Kind::Gauge, Bytes, help, wasted);
    }

    /// The counters as they stand.
    #[must_use]
    pub fn stats(&self) -> ReadStats {
        let inner = &self.0;
        let mut attributes = inner.attributes.stats();
        let xattrs = inner.xattrs.stats();
        attributes.entries += xattrs.entries;
        attributes.bytes += xattrs.bytes;
        attributes.evictions += xattrs.evictions;
        ReadStats {
            data: inner.data.stats(),
            attributes,
            listings: inner.listings.stats(),
            coalesced: inner.coalesced.load(Ordering::Relaxed)
                + inner.listing_flights.coalesced()
                + inner.attribute_flights.coalesced()
                + inner.xattr_flights.coalesced(),
            bundles: inner.bundles.stats(),
            persisted: (inner.persisted.as_ref()).map_or_else(Default::default, |it| it.stats()),
        }
    }
}

fn given_up(path: &ItemPath) -> Failure {
    Failure::new(
        FailureKind::Unavailable,
        format!("{path}: the request was given up"),
    )
}

#[cfg(test)]
mod tests;
