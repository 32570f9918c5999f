//! The read paths of a node, and what they stand on.

use super::NodeError;
use super::backing::Backings;
use super::indexed::Indexes;
use crate::config::{OpenMode, Settings};
use crate::origin::Origins;
use crate::read::{ReadOptions, ReadPath};
use crate::store::{Store, StoreOptions, Stored};
use copperfs_overlay::{Files, Upstream};
use std::sync::Arc;

/// What this node's read paths stand on.
pub(super) struct Below<'a> {
    /// Storage, where this node reaches it itself.
    pub(super) origins: Option<&'a Arc<Origins>>,
    /// The store on the disk.
    pub(super) store: Option<&'a Store>,
    /// The other nodes.
    pub(super) upstream: &'a Upstream,
    /// What answers for names without asking.
    pub(super) indexes: &'a Indexes,
}

/// Opens the store that `settings` ask for.
pub(super) async fn open_store(settings: &Settings) -> Result<Option<Store>, NodeError> {
    let Some(disk) = &settings.disk else {
        return Ok(None);
    };
    let options = StoreOptions {
        directory: disk.directory.clone(),
        capacity: disk.size,
        reserve_percent: disk.reserve_percent,
        policy: settings.cache.policy,
    };
    let opening = tokio::task::spawn_blocking(move || Store::open(&options));
    Ok(Some(opening.await.map_err(NodeError::Task)??))
}

/// The read paths of this node, by position in an item's root order, in front of the others.
pub(super) fn views(
    settings: &Settings,
    below: &Below<'_>,
    runtime: &tokio::runtime::Handle,
) -> Vec<ReadPath> {
    let direct = below
        .origins
        .filter(|_| settings.bypass_above.is_some())
        .map(|origins| Arc::clone(origins) as Arc<dyn Files>);
    let positions = u8::try_from(settings.roots.len()).unwrap_or(u8::MAX);
    let sources = (0..positions).map(|attempt| {
        let upstream: Arc<dyn Files> = Arc::new(below.upstream.at(attempt));
        let source: Arc<dyn Files> = match below.store {
            Some(store) => Arc::new(Stored::new(store.clone(), upstream)),
            None => upstream,
        };
        below.indexes.before(source)
    });
    let passthrough_bytes = backing_bytes(settings);
    // Storage lists all of a directory to say that it is unchanged: nothing would be saved.
    let only_root = settings.is_root() && settings.roots.len() == 1;
    ReadPath::views(
        &ReadOptions {
            policy: settings.cache.policy,
            data_bytes_max: settings.cache.data_bytes - passthrough_bytes,
            attributes_bytes_max: settings.cache.attributes_bytes,
            listings_bytes_max: settings.cache.listings_bytes,
            whole_file_max: settings.whole_file_max,
            bypass_above: settings.bypass_above,
            stripes: settings.roots.len() > 1,
            bundles: settings.bundles,
            listing_entries_max: settings.listing_entries_max,
            lease: settings.freshness.lease(),
            metadata_dir: (!only_root)
                .then_some(below.store)
                .flatten()
                .map(Store::metadata_directory),
        },
        sources.collect(),
        direct.as_ref(),
        runtime,
    )
}

/// The memory that passthrough mounts set aside for whole files: half of the data cache, where there is
/// no store for them.
fn backing_bytes(settings: &Settings) -> u64 {
    if settings.open == OpenMode::Passthrough && settings.disk.is_none() {
        settings.cache.data_bytes / 2
    } else {
        0
    }
}

/// What stands behind passthrough opens.
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
