//! The parts of a node that its mounts and its service share.

use super::backing::Backings;
use super::cluster::Cluster;
use super::datasets::Datasets;
use crate::read::ReadPath;
use crate::store::Store;
use copperfs_overlay::ItemPath;
use tokio::task::spawn_blocking;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(super) struct Parts {
    /// The read path of local readers.
    pub(super) read: ReadPath,
    pub(super) store: Option<Store>,
    pub(super) backings: Backings,
    pub(super) cluster: Cluster,
    pub(super) datasets: Datasets,
}

impl Parts {
    /// Drops the cached state of `path` and below on this node, in memory and on the disk, but not in its kernel.
    /// Returns whether anything was cached. A disk is not searched; it counts as if it had cached something.
    pub(super) async fn clear_caches(&self, path: &ItemPath) -> bool {
        let datasets = self.datasets.clone();
        let held =
            self.store.is_some() || datasets.home.is_home_below(path) || self.read.holds(path);
        // First the store, because the caches in memory refill from it.
        if let Some(store) = self.store.clone() {
            let path = path.clone();
            drop(spawn_blocking(move || store.clear(&path)).await);
        }
        datasets.reader.clear();
        let below = path.clone();
        drop(spawn_blocking(move || datasets.home.clear(&below)).await);
        self.read.clear(path);
        self.backings.clear(path);
        held
    }
}
