//! The read path: answers reads of local applications and requests of child nodes from this node's caches, or
//! from the next source.
//!
//! A [`ReadPath`] requests everything once, however many readers wait for it, and keeps the answers within the
//! caches' limits. The next source is anything that implements [`Files`]: the connection to the parent on most
//! nodes, storage on a root. A [`ReadPath`] implements [`Files`] itself, so a child node is served by the same code
//! as the local FUSE mount.
//!
//! Its parts: [`Data`] has the bytes of files, [`Metadata`] everything else, and `ahead` carries out the guesses of
//! [`crate::prefetch`]. The read path knows nothing of inodes and the kernel (`namespace`), sockets
//! (`copperfs_overlay`) or storage (`origin`).
//!
//! Invariants:
//! - No byte is returned to an application before its block is complete and its source has verified it. A child
//!   receives bytes as they arrive, because it verifies them itself.
//! - No failure is cached, except "no such file" and "the origin has no extended attributes".
//! - Data is cached under its version, so an old copy is never taken for a new one.
//!
//! With several roots, a question may come from a later position in its item's order of roots than the first. Each
//! position has a view of its own ([`ReadPath::views`]). All views share the caches, but a question joins only
//! requests of the same view. So no two nodes ever wait for each other.

mod ahead;
mod children;
mod data;
mod epoch;
mod file;
mod metadata;
mod returned;
mod single_flight;
mod slices;

pub use crate::prefetch::streams::ReadAhead;
pub use data::{Arrivals, Data, ResidentData};
pub use file::{FileId, FileRef};
pub use metadata::{
    Cached, Directory, Edition, LookupOutcome, Metadata, PersistedListings, PersistedStats,
};
pub use returned::{
    BLOCKS_MAX, Meter, Noted, PIECED_BLOCKS_MAX, RUNS_MAX, Returned, ReturnedEntry, ReturnedParts,
    ReturnedPieces,
};
pub use slices::{Cut, Part, PartRange, Parts};

use crate::cache::{CacheStats, EvictionPolicy, Fill};
use crate::prefetch::BundleStats;
use ahead::Ahead;
use copperfs_metrics::{Kind, Registry, Unit};
use copperfs_overlay::{Failure, Files, ItemPath};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The limits and choices of a [`ReadPath`].
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// What full caches evict.
    pub policy: EvictionPolicy,
    /// The memory that it may take.
    pub sizes: ReadSizes,
    /// Files up to this many bytes are fetched whole at the first read (Copper, section IV.B.1), if the
    /// cache has sixteen times as much room.
    pub whole_file_max: u64,
    /// Files above this many bytes are read from storage by this node itself (Copper, section
    /// IV.B.2); needs a direct source.
    pub bypass_above: Option<u64>,
    /// Whether requests end where stripes do: with several roots each stripe belongs to one of them.
    pub stripes: bool,
    /// Whether small files and listings are prefetched.
    pub bundles: bool,
    /// A directory with more entries is paged, and its names are looked up one by one.
    pub listing_entries_max: usize,
    /// How long metadata may be used after storage was asked; `None`: until it is cleared. The same on all
    /// nodes.
    pub lease: Option<Duration>,
    /// The directory for listings that the next launch may use; `None`: none.
    pub metadata_dir: Option<PathBuf>,
}

/// The memory of a [`ReadPath`], in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadSizes {
    /// File data, in the cache and in transfer.
    pub data_bytes: u64,
    /// Cached attributes (estimated, with their paths).
    pub attributes_bytes: u64,
    /// Cached listings (estimated).
    pub listings_bytes: u64,
}

/// The counters of a read path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadStats {
    /// The cache of file data.
    pub data: CacheStats,
    /// The cache of attributes.
    pub attributes: CacheStats,
    /// The cache of listings.
    pub listings: CacheStats,
    /// Requests that joined one in progress.
    pub coalesced: u64,
    /// This node's own bundles.
    pub bundles: BundleStats,
    /// Listings of earlier launches.
    pub persisted: PersistedStats,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct ReadPath {
    data: Data,
    metadata: Metadata,
    ahead: Arc<Ahead>,
    source: Arc<dyn Files>,
}

impl ReadPath {
    /// Read paths over the same caches, one in front of each of `sources`: those for the positions of an item's
    /// order of roots. `direct` is storage as this node reaches it itself, for `bypass_above`. Background requests
    /// run on `runtime`.
    #[must_use]
    pub fn views(
        options: &ReadOptions,
        sources: Vec<Arc<dyn Files>>,
        direct: Option<&Arc<dyn Files>>,
        runtime: &tokio::runtime::Handle,
    ) -> Vec<Self> {
        let data_shared = Arc::new(data::Shared::new(options, sources.len()));
        let metadata_shared = Arc::new(metadata::Shared::new(options, sources.len()));
        let view = |(view, source): (usize, Arc<dyn Files>)| {
            let shared = Arc::clone(&metadata_shared);
            let runtime = runtime.clone();
            let metadata = Metadata::new(options, shared, view, Arc::clone(&source), runtime);
            let shared = Arc::clone(&data_shared);
            let sources = (Arc::clone(&source), direct.cloned());
            let data = Data::new(options, shared, view, sources, metadata.clone());
            Self {
                ahead: Arc::new(Ahead::new(data.cache().capacity_bytes(), options.bundles)),
                data,
                metadata,
                source,
            }
        };
        sources.into_iter().enumerate().map(view).collect()
    }

    /// The file data.
    #[must_use]
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Changes the memory of a node, given all of its `views`. Caches that exceed theirs evict at once, in the order of
    /// their policy. Bytes that readers hold stay theirs. Takes as long as the evictions, so call it on a thread that
    /// may block.
    pub fn resize(views: &[Self], sizes: &ReadSizes) {
        // The caches are those of all views.
        if let Some(view) = views.first() {
            view.metadata.resize(sizes);
            view.data.resize(sizes.data_bytes);
        }
        for view in views {
            view.ahead.resize(view.data.cache().capacity_bytes());
        }
    }

    /// How full the caches are, which are those of all views.
    #[must_use]
    pub fn fills(&self) -> Vec<Fill> {
        let mut fills = self.metadata.fills();
        fills.push(self.data.cache().fill());
        fills
    }

    /// Waits until data was requested since the last call, which the caches may hold later.
    pub async fn requested(&self) {
        self.data.memory().requested().await;
    }

    /// Up to `size` bytes of `file` from `offset`; fewer only at its end. Prefetches what the readers that `streams`
    /// describes want next. Dropping the future does not stop a request that others may wait for.
    ///
    /// # Errors
    /// `Stale` if the version is gone; `Unavailable` and other failures of the source, after retries.
    pub async fn read(
        &self,
        file: &FileRef,
        streams: &ReadAhead,
        offset: u64,
        size: u32,
    ) -> Result<Cut, Failure> {
        let range = data::clip(file, offset, size);
        if range.is_empty() {
            return Ok(Cut::default());
        }
        self.data.check_settled(file)?;
        self.prefetch_after(file, streams, &range);
        self.data.read(file, range).await
    }

    /// Called after a read was answered from the cache ([`Data::try_read`]): prefetches like [`ReadPath::read`].
    pub fn on_hit(&self, file: &FileRef, streams: &ReadAhead, offset: u64, size: u32) {
        let range = data::clip(file, offset, size);
        if !range.is_empty() {
            self.prefetch_after(file, streams, &range);
        }
    }

    /// The page that contains entry `index` of directory `path`, and the index of that page's first entry. Prefetches
    /// the listings that the reader will want next.
    ///
    /// # Errors
    /// Like [`Metadata::page_after`].
    pub async fn page_with(
        &self,
        path: &ItemPath,
        index: usize,
    ) -> Result<(usize, Arc<Directory>), Failure> {
        if index == 0 {
            self.on_list(path);
        }
        let first = self.metadata.directory(path).await?;
        self.metadata.page_after(path, first, index).await
    }

    /// Tells `arrivals` what is prefetched, from now on.
    pub fn connect(&self, arrivals: Arc<dyn Arrivals>) {
        self.data.connect(arrivals);
    }

    /// Drops everything cached of `path` and below it, and the directory entry of `path` itself. Data in use
    /// elsewhere stays valid there: it belongs to its version.
    pub fn clear(&self, path: &ItemPath) {
        self.source.forget(path);
        self.metadata.clear(path);
        self.data.clear(path);
    }

    /// Whether [`ReadPath::clear`] of `path` would drop anything on this node. Examines all entries.
    #[must_use]
    pub fn holds(&self, path: &ItemPath) -> bool {
        self.metadata.holds(path) || self.data.holds(path)
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
        let (attributes, listings) = self.metadata.stats();
        let persisted = self.metadata.persisted();
        ReadStats {
            data: self.data.cache().stats(),
            attributes,
            listings,
            coalesced: self.data.coalesced() + self.metadata.coalesced(),
            bundles: self.ahead.usefulness.stats(),
            persisted: persisted.map_or_else(Default::default, PersistedListings::stats),
        }
    }
}

#[cfg(test)]
mod tests;
