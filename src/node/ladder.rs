//! Builds the read paths of a node, in front of the store, the indexes, storage and the other nodes.

use super::NodeError;
use super::indexed::Indexes;
use crate::config::{CacheSettings, OpenMode, Settings};
use crate::dataset::HomeStorage;
use crate::origin::{BlockCache, CoalescedStorage, HangingBound};
use crate::read::{FileRef, ReadOptions, ReadPath, ReadSizes, ResidentData};
use crate::store::{Store, StoreLayer, StoreOptions};
use bytes::Bytes;
use copperfs_overlay::{ContentHash, Files, RangeRequest, ReadRequest, Upstream};
use copperfs_policy::amounts::{Size, share};
use rustix::fs::statvfs;
use std::sync::Arc;
use std::time::Duration;

/// How long a successor waits for its disk. The list of a million files takes about two seconds.
const STORE_TIMEOUT: Duration = Duration::from_secs(4);

/// Opens the configured store. A successor goes on without a store that cannot be used: its mounts are in use.
pub(super) async fn open_store(
    settings: &Settings,
    is_successor: bool,
) -> Result<Option<Store>, NodeError> {
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
    if !is_successor {
        return Ok(Some(opening.await.map_err(NodeError::Task)??));
    }
    let opened = tokio::time::timeout(STORE_TIMEOUT, opening).await;
    let why = match opened {
        Ok(Ok(Ok(store))) => return Ok(Some(store)),
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(_elapsed) => "its disk does not answer".to_owned(),
    };
    tracing::warn!(why, "this daemon goes on without the store");
    Ok(None)
}

/// Whether this node stores datasets: each node that reads them does.
fn stores_datasets(settings: &Settings) -> bool {
    settings.data_mount.is_some()
}

/// The size of the store without the part for datasets.
pub(super) fn shared_part(settings: &Settings, size: Size) -> Size {
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
fn shared_data_bytes(settings: &Settings, memory: &CacheSettings) -> u64 {
    let bytes = memory.data_bytes;
    if stores_datasets(settings) && settings.disk.is_none() {
        share(bytes, f64::from(settings.shared_reserve_percent))
    } else {
        bytes
    }
}

/// The place of this node's dataset items, and its size in bytes: the part of the store, or without a store of the memory
/// for file data, that is not reserved for undeclared files.
pub(super) fn dataset_room(settings: &Settings, memory: &CacheSettings) -> (HomeStorage, u64) {
    let Some(disk) = &settings.disk else {
        let bytes = memory.data_bytes - shared_data_bytes(settings, memory);
        return (HomeStorage::Memory, bytes);
    };
    let place = HomeStorage::Disk {
        directory: disk.directory.clone(),
        reserve_percent: disk.reserve_percent,
        disk_timeout: StoreOptions::DISK_TIMEOUT,
    };
    if !stores_datasets(settings) {
        return (place, 0);
    }
    let whole = match disk.size {
        Size::Bytes(bytes) => bytes,
        // The directory exists, because the store is open.
        Size::Percent(percent) => statvfs(&disk.directory).map_or(0, |usage| {
            share(usage.f_blocks.saturating_mul(usage.f_frsize), percent)
        }),
    };
    let percent = 100.0 - f64::from(settings.shared_reserve_percent);
    (place, share(whole, percent))
}

/// The read paths of this node, one for each position in an item's order of roots: in front of `storage`, where this
/// node reaches it itself, the `store` on the disk, the `upstream` nodes, and the `indexes`, which answer for names
/// without a message.
pub(super) fn views(
    settings: &Settings,
    storage: Option<&CoalescedStorage>,
    store: Option<&Store>,
    upstream: &Upstream,
    indexes: &Indexes,
    runtime: &tokio::runtime::Handle,
) -> Vec<ReadPath> {
    let direct = storage
        .filter(|_| settings.bypass_above.is_some())
        .map(|storage| Arc::new(storage.clone()) as Arc<dyn Files>);
    let positions = u8::try_from(settings.roots.len()).unwrap_or(u8::MAX);
    let sources = (0..positions).map(|attempt| {
        let upstream: Arc<dyn Files> = Arc::new(upstream.at(attempt));
        let source: Arc<dyn Files> = match store {
            Some(store) => Arc::new(StoreLayer::new(store.clone(), upstream)),
            None => upstream,
        };
        indexes.before(source)
    });
    // A root does not keep listings for the next launch: storage would have to list a whole directory to find out
    // whether it has changed, so nothing would be saved.
    let only_root = settings.is_root() && settings.roots.len() == 1;
    let views = ReadPath::views(
        &ReadOptions {
            policy: settings.cache.policy,
            sizes: read_sizes(settings, &settings.cache, storage.is_some()),
            whole_file_max: settings.whole_file_max,
            bypass_above: settings.bypass_above,
            stripes: settings.roots.len() > 1,
            bundles: settings.bundles,
            listing_entries_max: settings.listing_entries_max,
            lease: settings.lease,
            metadata_dir: (!only_root)
                .then_some(store)
                .flatten()
                .map(Store::metadata_directory),
        },
        sources.collect(),
        direct.as_ref(),
        runtime,
    );
    if let (Some(storage), Some(view)) = (storage, views.first()) {
        storage.set_cache(Arc::new(KeptHere(view.data().resident())));
    }
    views
}

/// The memory of the read paths, of a node with this `memory`. `reads_storage`: threads of it may hang in storage.
pub(super) fn read_sizes(
    settings: &Settings,
    memory: &CacheSettings,
    reads_storage: bool,
) -> ReadSizes {
    let threads_bytes = match reads_storage {
        true => HangingBound::of_memory(memory.memory_bytes).1,
        false => 0,
    };
    ReadSizes {
        data_bytes: shared_data_bytes(settings, memory)
            .saturating_sub(backing_bytes(settings, memory))
            .saturating_sub(threads_bytes),
        attributes_bytes: memory.attributes_bytes,
        listings_bytes: memory.listings_bytes,
    }
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
pub(super) fn backing_bytes(settings: &Settings, memory: &CacheSettings) -> u64 {
    if settings.open == OpenMode::Passthrough && settings.disk.is_none() {
        shared_data_bytes(settings, memory) / 2
    } else {
        0
    }
}
