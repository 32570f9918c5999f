//! Metadata: directories, attributes, extended attributes, and usage of filesystems.
//!
//! A directory is listed once and then answers for all its names. A name whose directory cannot answer is
//! looked up at the source. Each question is asked once, however many readers wait for its answer
//! ([`super::single_flight`]).

mod arriving;
mod directory;
mod lease;
mod listings;
mod names;
mod persisted;
mod renew;
mod settling;
mod usage;

pub use directory::{Directory, Edition, LookupOutcome};
pub use lease::Cached;
pub use persisted::{PersistedListings, PersistedStats};

use super::epoch::Epoch;
use super::single_flight::SingleFlight;
use super::{ReadOptions, ReadSizes};
use crate::cache::{Cache, CacheStats, Fill};
use arriving::Follower;
use copperfs_overlay::{Files, ItemPath};
use dashmap::DashMap;
use directory::{CachedLookup, ListingKey};
use names::{CachedAttributes, CachedXattrs};
use std::sync::Arc;
use std::time::Duration;
use usage::Usages;

/// The share of the attributes' bound for extended attributes: one part in this many.
const XATTR_SHARE: u64 = 8;

/// The requests in progress of one view.
#[derive(Default)]
struct Flights {
    listings: SingleFlight<ListingKey, Arc<Directory>>,
    /// Listings in progress, for children that receive them as they arrive.
    arriving: DashMap<ListingKey, Follower>,
    attributes: SingleFlight<ItemPath, CachedLookup>,
    xattrs: SingleFlight<ItemPath, CachedXattrs>,
    usages: Usages,
}

/// The parts that all views of a node share.
pub(super) struct Shared {
    listings: Cache<ListingKey, Arc<Directory>>,
    attributes: Cache<ItemPath, CachedAttributes>,
    xattrs: Cache<ItemPath, CachedXattrs>,
    /// Listings of earlier launches.
    persisted: Option<PersistedListings>,
    /// Raised by `clear`, and when metadata turns out to be wrong: metadata that was requested before is
    /// not cached when it arrives.
    epoch: Epoch,
    /// The requests in progress of each view. A view joins only its own (see the module of the read path).
    flights: Box<[Flights]>,
}

impl Shared {
    /// The metadata of a node with `views` views.
    pub(super) fn new(options: &ReadOptions, views: usize) -> Self {
        let sizes = &options.sizes;
        let (attributes_bytes, xattr_bytes) = attribute_sizes(sizes.attributes_bytes);
        let directory = options.metadata_dir.as_deref();
        Self {
            listings: Cache::new(options.policy, sizes.listings_bytes),
            attributes: Cache::new(options.policy, attributes_bytes),
            xattrs: Cache::new(options.policy, xattr_bytes),
            persisted: directory.and_then(PersistedListings::open),
            epoch: Epoch::default(),
            flights: (0..views).map(|_| Flights::default()).collect(),
        }
    }
}

/// The parts of the memory for attributes: for those of `stat`, and for extended ones.
fn attribute_sizes(bytes: u64) -> (u64, u64) {
    let xattrs = bytes / XATTR_SHARE;
    (bytes - xattrs, xattrs)
}

/// The metadata of one view. Cheap to clone.
#[derive(Clone)]
pub struct Metadata(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    /// The index of this view in [`Shared::flights`].
    view: usize,
    source: Arc<dyn Files>,
    /// How long metadata may be used after storage was asked; `None`: until it is cleared.
    lease: Option<Duration>,
    /// A directory with more entries is paged.
    listing_entries_max: usize,
    runtime: tokio::runtime::Handle,
}

impl Metadata {
    /// The metadata of view `view`, which asks `source`. Background requests run on `runtime`.
    pub(super) fn new(
        options: &ReadOptions,
        shared: Arc<Shared>,
        view: usize,
        source: Arc<dyn Files>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        Self(Arc::new(Inner {
            shared,
            view,
            source,
            lease: options.lease,
            listing_entries_max: options.listing_entries_max,
            runtime,
        }))
    }

    pub(super) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.0.runtime
    }

    fn shared(&self) -> &Shared {
        &self.0.shared
    }

    fn flights(&self) -> &Flights {
        &self.0.shared.flights[self.0.view]
    }

    /// Changes the memory for attributes and for listings.
    pub(super) fn resize(&self, sizes: &ReadSizes) {
        let shared = self.shared();
        let (attributes_bytes, xattr_bytes) = attribute_sizes(sizes.attributes_bytes);
        shared.attributes.set_capacity(attributes_bytes);
        shared.xattrs.set_capacity(xattr_bytes);
        shared.listings.set_capacity(sizes.listings_bytes);
    }

    /// How full the caches are.
    pub(super) fn fills(&self) -> Vec<Fill> {
        let shared = self.shared();
        vec![
            shared.listings.fill(),
            shared.attributes.fill(),
            shared.xattrs.fill(),
        ]
    }

    /// The caches' counters: of attributes, extended ones included, and of listings.
    pub(super) fn stats(&self) -> (CacheStats, CacheStats) {
        let shared = self.shared();
        let mut attributes = shared.attributes.stats();
        let xattrs = shared.xattrs.stats();
        attributes.entries += xattrs.entries;
        attributes.bytes += xattrs.bytes;
        attributes.evictions += xattrs.evictions;
        (attributes, shared.listings.stats())
    }

    /// Requests that joined one in progress.
    pub(super) fn coalesced(&self) -> u64 {
        let of = |flights: &Flights| {
            flights.listings.coalesced()
                + flights.attributes.coalesced()
                + flights.xattrs.coalesced()
        };
        self.shared().flights.iter().map(of).sum()
    }

    /// Listings of earlier launches.
    pub(super) fn persisted(&self) -> Option<&PersistedListings> {
        self.shared().persisted.as_ref()
    }

    /// Whether [`Metadata::clear`] of `path` would drop anything. Listings on a disk always count as cached,
    /// because the disk is not searched. Examines all entries.
    pub(super) fn holds(&self, path: &ItemPath) -> bool {
        let parent = path.split().map(|(parent, _)| parent);
        let shared = self.shared();
        shared.persisted.is_some()
            || (shared.listings)
                .any(|key, _| key.path.is_within(path) || Some(&key.path) == parent.as_ref())
            || shared.attributes.any(|file, _| file.is_within(path))
            || shared.xattrs.any(|file, _| file.is_within(path))
    }

    /// Drops the metadata of `path` and of everything below it, and the listing that contains `path`.
    pub(super) fn clear(&self, path: &ItemPath) {
        let shared = self.shared();
        // First the requests in progress: an answer that arrives between these lines is not cached again.
        self.forget_flights();
        for Flights { usages, .. } in &shared.flights {
            usages.known.clear();
            usages.flights.forget_all();
        }
        let parent = path.split().map(|(parent, _)| parent);
        shared
            .attributes
            .remove_where(|file, _| file.is_within(path));
        shared.xattrs.remove_where(|file, _| file.is_within(path));
        (shared.listings)
            .remove_where(|key, _| key.path.is_within(path) || Some(&key.path) == parent.as_ref());
        if let Some(persisted) = &shared.persisted {
            persisted.clear(path);
        }
    }

    /// Detaches all requests in progress: their answers go to the readers that wait already, but are neither
    /// cached nor shared with later readers.
    fn forget_flights(&self) {
        let shared = self.shared();
        shared.epoch.clear(&ItemPath::root());
        for flights in &shared.flights {
            flights.listings.forget_all();
            flights.attributes.forget_all();
            flights.xattrs.forget_all();
            flights.arriving.clear();
        }
    }
}
