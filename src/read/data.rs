//! File data: blocks and pieces of blocks, from the cache, from a fetch in progress, or from the source.
//!
//! A read finds its bytes in one of three places, in this order: in the cache, in a [`Flight`] (a fetch in
//! progress that some other reader began), or at the source. [`Data::claim`] decides between the last two
//! under one lock, so two readers never request the same block twice.

mod blocks;
mod bundle;
mod compare;
mod flight;
mod handouts;
mod memory;
mod pieces;
mod resident;
mod share;
mod urgent;

pub(super) use blocks::{BlockSource, clip};
pub use bundle::Arrivals;
pub(super) use bundle::{BundleCounts, BundledFile};
pub(super) use flight::{Flight, Progress, given_up};
pub(super) use handouts::Hold;
pub(super) use memory::COPY_BYTES;
pub use resident::ResidentData;
#[cfg(test)]
pub(super) use urgent::RUN_DELAY;

use super::ReadOptions;
use super::epoch::Epoch;
use super::file::{BlockKey, FileRef};
use super::metadata::Metadata;
use crate::cache::Cache;
use bytes::Bytes;
use copperfs_overlay::{ContentHash, Failure, FailureKind, Files, ItemPath};
use dashmap::DashMap;
use memory::MemoryBudget;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file that would fill more than one part in this many of the data cache is not fetched whole.
const WHOLE_FILE_SHARE: u64 = 4;

/// A verified block of file data, or a verified piece of one.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) bytes: Bytes,
    pub(super) hash: ContentHash,
    /// The file for which it was fetched. `clear` of this path drops it.
    path: ItemPath,
}

/// The blocks and pieces that are being fetched.
type Flights = DashMap<BlockKey, Arc<Flight>>;

/// The parts that all views of a node share.
pub(super) struct Shared {
    /// Blocks of files, and pieces of blocks.
    cache: Cache<BlockKey, Block>,
    /// Memory for bytes in progress, beside the cache.
    memory: MemoryBudget,
    /// Raised by `clear`: data that was requested before is not cached when it arrives.
    epoch: Epoch,
    /// The fetches in progress of each view. A view joins only its own (see the module of the read path).
    flights: Box<[Flights]>,
    /// Requests that joined a fetch in progress.
    coalesced: AtomicU64,
    bundles: BundleCounts,
    /// Files up to this many bytes are fetched whole, if the cache has room. Relaxed: a read may use the value before.
    whole_file_max: AtomicU64,
}

impl Shared {
    /// The data of a node with `views` views.
    pub(super) fn new(options: &ReadOptions, views: usize) -> Self {
        let data_bytes = options.sizes.data_bytes;
        let reserve = memory::reserve(data_bytes);
        Self {
            cache: Cache::new(options.policy, data_bytes - reserve),
            memory: MemoryBudget::new(reserve),
            epoch: Epoch::default(),
            flights: (0..views).map(|_| DashMap::new()).collect(),
            coalesced: AtomicU64::new(0),
            bundles: BundleCounts::default(),
            whole_file_max: AtomicU64::new(options.whole_file_max),
        }
    }
}

/// The file data of one view. Cheap to clone.
#[derive(Clone)]
pub struct Data(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    /// The index of this view in [`Shared::flights`].
    view: usize,
    source: Arc<dyn Files>,
    /// Storage as this node reaches it itself, and the size of files above which it is used.
    direct: Option<(Arc<dyn Files>, u64)>,
    metadata: Metadata,
    /// Whether requests end where stripes do.
    stripes: bool,
}

impl Data {
    /// The data of view `view`. `sources`: the source, and storage as this node reaches it itself.
    pub(super) fn new(
        options: &ReadOptions,
        shared: Arc<Shared>,
        view: usize,
        (source, direct): (Arc<dyn Files>, Option<Arc<dyn Files>>),
        metadata: Metadata,
    ) -> Self {
        Self(Arc::new(Inner {
            shared,
            view,
            source,
            direct: direct.zip(options.bypass_above),
            metadata,
            stripes: options.stripes,
        }))
    }

    pub(super) fn cache(&self) -> &Cache<BlockKey, Block> {
        &self.0.shared.cache
    }

    fn flights(&self) -> &Flights {
        &self.0.shared.flights[self.0.view]
    }

    /// Changes the memory for file data, in the cache and in transfer.
    pub(super) fn resize(&self, data_bytes: u64) {
        let reserve = memory::reserve(data_bytes);
        self.memory().resize(reserve);
        self.cache().set_capacity(data_bytes - reserve);
    }

    /// Changes the size up to which files are fetched whole.
    pub(crate) fn set_whole_file_max(&self, bytes: u64) {
        let shared = &self.0.shared;
        shared.whole_file_max.store(bytes, Ordering::Relaxed);
    }

    /// Files up to this many bytes are fetched whole.
    fn whole_file_max(&self) -> u64 {
        let fits = self.cache().capacity_bytes() / WHOLE_FILE_SHARE;
        let most = self.0.shared.whole_file_max.load(Ordering::Relaxed);
        most.min(fits)
    }

    /// The number of blocks and pieces that are being fetched.
    #[cfg(test)]
    pub(super) fn in_progress(&self) -> usize {
        self.flights().len()
    }

    pub(super) fn memory(&self) -> &MemoryBudget {
        &self.0.shared.memory
    }

    /// The source of the bytes of `file`.
    fn source_of(&self, file: &FileRef) -> &Arc<dyn Files> {
        match &self.0.direct {
            Some((direct, above)) if file.size > *above => direct,
            _ => &self.0.source,
        }
    }

    /// Whether `file` is read from storage by this node itself.
    pub(super) fn bypasses(&self, size: u64) -> bool {
        (self.0.direct.as_ref()).is_some_and(|(_, above)| size > *above)
    }

    /// Requests that joined a fetch in progress.
    pub(super) fn coalesced(&self) -> u64 {
        self.0.shared.coalesced.load(Ordering::Relaxed)
    }

    /// Whether any data of `path`, or of a file below it, is cached. Examines all blocks.
    pub(super) fn holds(&self, path: &ItemPath) -> bool {
        self.cache().any(|_, block| block.path.is_within(path))
    }

    /// A block in memory with these bytes, whatever file it belongs to. Examines all blocks: call it on a
    /// blocking thread, and seldom.
    #[must_use]
    pub fn by_hash(&self, hash: ContentHash, len: u64) -> Option<Bytes> {
        self.cache().search(|_, block| {
            let found = block.hash == hash && block.bytes.len() as u64 == len;
            found.then(|| block.bytes.clone())
        })
    }

    /// Drops the data of `path` and below. Fetches in progress answer the readers that wait for them
    /// already; later readers begin new ones.
    pub(super) fn clear(&self, path: &ItemPath) {
        let shared = &self.0.shared;
        // First the epoch: a block that arrives between these lines is not cached again.
        shared.epoch.clear(path);
        for flights in &shared.flights {
            flights.retain(|_, flight| !flight.path.is_within(path));
        }
        (shared.cache).remove_where(|_, block| block.path.is_within(path));
    }

    /// Called after a read of `file` failed. If `failure` means that the metadata that led to it is wrong,
    /// the next look-up asks again. Metadata of another version is kept: after a `chmod -R` the first file
    /// renews its directory's listing, and the other files find their new versions in it.
    fn invalidate_after(&self, failure: &Failure, file: &FileRef) {
        let metadata = &self.0.metadata;
        match failure.kind {
            FailureKind::Stale if metadata.knows_another(&file.path, file.version) => {}
            // The listing is correct. Its attributes of this file expire when the version could have
            // settled.
            FailureKind::Stale if !file.version.is_settled() => {
                metadata.forget_unsettled(&file.path);
            }
            FailureKind::Stale | FailureKind::NotFound => metadata.forget_attributes(&file.path),
            _ => {}
        }
    }
}
