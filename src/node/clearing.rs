//! Clears the caches of a node, except its kernel's.

use super::datasets::Datasets;
use crate::read::ReadPath;
use crate::store::Store;
use copperfs_overlay::ItemPath;

/// Drops the cached state of `path` and below on this node, in memory and on the disk. Returns whether
/// anything was cached. A disk is not searched; it counts as if it had cached something.
pub(super) async fn clear(
    read: &ReadPath,
    store: Option<&Store>,
    datasets: Option<&Datasets>,
    path: &ItemPath,
) -> bool {
    let below = |datasets: &Datasets| datasets.home.is_home_below(path);
    let held = store.is_some() || datasets.is_some_and(below) || read.holds(path);
    // First the store, because the caches in memory refill from it.
    if let Some(store) = store.cloned() {
        let path = path.clone();
        let clearing = tokio::task::spawn_blocking(move || store.clear(&path));
        drop(clearing.await);
    }
    if let Some(datasets) = datasets.cloned() {
        let path = path.clone();
        let clearing = tokio::task::spawn_blocking(move || datasets.home.clear(&path));
        drop(clearing.await);
    }
    read.clear(path);
    held
}
