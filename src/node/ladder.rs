//! Builds the read paths of a node, in front of the store, the indexes, storage and the other nodes.

use super::NodeError;
use super::backing::Backings;
use super::indexed::Indexes;
use crate::config::{OpenMode, Settings};
use crate::dataset::HomeStorage;
use crate::origin::{BlockCache, CoalescedStorage, HangingBound};
use crate::read::{FileRef, ReadOptions, ReadPath, ResidentData};
use crate::store::{Store, StoreLayer, StoreOptions};
use bytes::Bytes;
use copperfs_overlay::{ContentHash, Files, RangeRequest, ReadRequest, Upstream};
use copperfs_policy::amounts::{Size, share};
use rustix::fs::statvfs;
use std::sync::Arc;

/// The sources of this node's read paths.
pub(super) struct Below<'a> {
    /// Storage, where this node reaches it itself.
    pub(super) storage: Option<&'a CoalescedStorage>,
    /// The store on the disk.
    pub(super) store: Option<&'a Store>,
    /// The other nodes.
    pub(super) upstream: &'a Upstream,
    /// The indexes, which answer for names without a message.
    pub(super) indexes: &'a Indexes,
}

/// Opens the configured store.
pub(super) async fn open_store(settings: &Settings) -> Result<Option<Store>, NodeError> {
    let Some(disk) = &settings.disk else {
        return Ok(None);
    };
    let options = StoreOptions {
        directory: disk.directory.clone(),
        capacity: shared_part(settings, disk.size),
        reserve_percent: disk.reserve_percent,
        policy: settings.cache.policy,
        disk_timeout: StoreOptions::DISK_TIMEOUT,
    };
    let opening = tokio::task::spawn_blocking(move || Store::open(&options));
    Ok(Some(opening.await.map_err(NodeError::Task)??))
}

/// Whether this node stores datasets: each node that reads them does.
fn stores_datasets(settings: &Settings) -> bool {
    settings.data_mount.is_some()
}

/// The size of the store without the part for datasets.
fn shared_part(settings: &Settings, size: Size) -> Size {
    if !stores_datasets(settings) {
        return size;
    }
    let percent = f64::from(settings.shared_reserve_percent);
    match size {
        Size::Bytes(bytes) => Size::Bytes(share(bytes, percent)),
        Size::Percent(of_disk) => Size::Percent(of_disk * percent / 100.0),
    }
}

/// The memory for file data without the part for datasets.
fn shared_data_bytes(settings: &Settings) -> u64 {
    let bytes = settings.cache.data_bytes;
    if stores_datasets(settings) && settings.disk.is_none() {
        share(bytes, f64::from(settings.shared_reserve_percent))
    } else {
        bytes
    }
}

/// The place of this node's dataset items, and its size in bytes: the part of the store, or without a store of the memory
/// for file data, that is not reserved for undeclared files.
pub(super) fn dataset_room(settings: &Settings) -> (HomeStorage, u64) {
    let Some(disk) = &settings.disk else {
        let bytes = if stores_datasets(settings) {
            settings.cache.data_bytes - shared_data_bytes(settings)
        } else {
            0
        };
        return (HomeStorage::Memory, bytes);
    };
    let whole = match disk.size {
        Size::Bytes(bytes) => bytes,
        // The directory exists, because the store is open.
        Size::Percent(percent) => statvfs(&disk.directory).map_or(0, |usage| {
            share(usage.f_blocks.saturating_mul(usage.f_frsize), percent)
        }),
    };
    let bytes = if stores_datasets(settings) {
        share(whole, 100.0 - f64::from(settings.shared_reserve_percent))
    } else {
        0
    };
    let place = HomeStorage::Disk {
        directory: disk.directory.clone(),
        reserve_percent: disk.reserve_percent,
    };
    (place, bytes)
}

/// The read paths of this node, one for each position in an item's order of roots.
pub(super) fn views(
    settings: &Settings,
    below: &Below<'_>,
    runtime: &tokio::runtime::Handle,
) -> Vec<ReadPath> {
    let direct = below
        .storage
        .filter(|_| settings.bypass_above.is_some())
        .map(|storage| Arc::new(storage.clone()) as Arc<dyn Files>);
    let positions = u8::try_from(settings.roots.len()).unwrap_or(u8::MAX);
    let sources = (0..positions).map(|attempt| {
        let upstream: Arc<dyn Files> = Arc::new(below.upstream.at(attempt));
        let source: Arc<dyn Files> = match below.store {
            Some(store) => Arc::new(StoreLayer::new(store.clone(), upstream)),
            None => upstream,
        };
        below.indexes.before(source)
    });
    let passthrough_bytes = backing_bytes(settings);
    let threads_bytes = match below.storage {
        Some(_) => HangingBound::of_memory(settings.cache.memory_bytes).1,
        None => 0,
    };
    // A root does not keep listings for the next launch: storage would have to list a whole directory to find out
    // whether it has changed, so nothing would be saved.
    let only_root = settings.is_root() && settings.roots.len() == 1;
    let views = ReadPath::views(
        &ReadOptions {
            policy: settings.cache.policy,
            data_bytes_max: shared_data_bytes(settings)
                .saturating_sub(passthrough_bytes)
                .saturating_sub(threads_bytes),
            attributes_bytes_max: settings.cache.attributes_bytes,
            listings_bytes_max: settings.cache.listings_bytes,
            whole_file_max: settings.whole_file_max,
            bypass_above: settings.bypass_above,
            stripes: settings.roots.len() > 1,
            bundles: settings.bundles,
            listing_entries_max: settings.listing_entries_max,
            lease: settings.lease,
            metadata_dir: (!only_root)
                .then_some(below.store)
                .flatten()
                .map(Store::metadata_directory),
        },
        sources.collect(),
        direct.as_ref(),
        runtime,
    );
    if let (Some(storage), Some(view)) = (below.storage, views.first()) {
        storage.set_cache(Arc::new(KeptHere(view.data().resident())));
    }
    views
}

/// The node's cached data, for the reader of its storage.
struct KeptHere(ResidentData);

impl BlockCache for KeptHere {
    fn block(&self, request: &ReadRequest, index: u64) -> Option<(Bytes, ContentHash)> {
        let path = request.path.clone();
        let file = FileRef::new(path, request.version, request.size, request.content);
        self.0.block(&file, index)
    }

    fn range(&self, request: &RangeRequest) -> Option<Bytes> {
        let path = request.path.clone();
        let file = FileRef::new(path, request.version, request.size, request.content);
        let range = request.offset..request.offset + request.len;
        self.0.range(&file, request.block(), &range)
    }
}

/// The memory for backing files of passthrough opens: half of the data cache, if there is no store for them.
fn backing_bytes(settings: &Settings) -> u64 {
    if settings.open == OpenMode::Passthrough && settings.disk.is_none() {
        shared_data_bytes(settings) / 2
    } else {
        0
    }
}

/// The backing files of passthrough opens.
pub(super) fn backings(
    settings: &Settings,
    store: Option<&Store>,
    runtime: &tokio::runtime::Handle,
) -> Backings {
    match store {
        Some(store) => Backings::in_store(store.clone(), runtime.clone()),
        None => Backings::in_memory(backing_bytes(settings), runtime.clone()),
    }
}
