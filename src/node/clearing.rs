//! What `clear` drops on a node, its kernel left out.

use super::datasets::Datasets;
use crate::read::ReadPath;
use crate::store::Store;
use copperfs_overlay::ItemPath;

/// Drops the cached state of `path` and below on this node, in memory and on the disk. Returns whether
/// anything was cached. A disk is not searched; it counts as if it had held something.
pub(super) async fn clear(
    read: &ReadPath,
    store: Option<&Store>,
    datasets: Option<&Datasets>,
    path: &ItemPath,
) -> bool {
    let below = |datasets: &Datasets| datasets.home.is_home_below(path);
    let held = store.is_some() || datasets.is_some_and(below) || read.holds(path);
    // First the store: what memory lacks is looked for there.
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
