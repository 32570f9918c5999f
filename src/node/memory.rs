//! The memory of a running node: the sizes of its caches can be changed while they are in use.
//!
//! Purpose: everything that has a part of `--memory` gets its new part here, by the same rules as at the start
//! ([`super::ladder`]). It does not decide when ([`crate::pressure`] does, and the user).
//!
//! Invariants: a smaller size takes memory from caches only. Bytes that readers hold stay theirs, and a read that is in
//! progress ends as it would have.

use super::front::Front;
use super::{ladder, mounts};
use crate::config::{CacheSettings, Settings};
use crate::dataset::HomeStorage;
use crate::read::ReadPath;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::task::JoinError;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(super) struct NodeMemory(Arc<Inner>);

struct Inner {
    settings: Settings,
    /// By position in an item's order of roots; not empty.
    views: Vec<ReadPath>,
    front: Front,
    /// Whether this node reads storage itself.
    reads_storage: bool,
    /// Locked while sizes change, so that of two changes the later one holds in all caches.
    bounds: Mutex<Bounds>,
}

/// The memory for all caches together, in bytes.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// As it is configured.
    configured: u64,
    /// As the machine allows at the moment.
    limit: u64,
}

impl NodeMemory {
    /// The memory of the node with these parts, which have the sizes of `settings`.
    pub(super) fn new(
        settings: Settings,
        views: Vec<ReadPath>,
        front: Front,
        reads_storage: bool,
    ) -> Self {
        let configured = settings.cache.memory_bytes;
        Self(Arc::new(Inner {
            settings,
            views,
            front,
            reads_storage,
            bounds: Mutex::new(Bounds {
                configured,
                limit: u64::MAX,
            }),
        }))
    }

    /// Changes the configured memory to `bytes`. Other nodes learn of it: with datasets, homes have items in proportion
    /// to their memory.
    ///
    /// # Errors
    /// The runtime ends.
    pub(super) async fn configure(&self, bytes: u64) -> Result<(), JoinError> {
        self.change(move |bounds| bounds.configured = bytes).await
    }

    /// Limits the memory to `bytes` for now, whatever is configured. Other nodes do not learn of it.
    ///
    /// # Errors
    /// The runtime ends.
    #[expect(dead_code, reason = "its caller is yet to come")]
    pub(super) async fn limit(&self, bytes: u64) -> Result<(), JoinError> {
        self.change(move |bounds| bounds.limit = bytes).await
    }

    /// Returns when all caches have their new sizes. Continues if it is dropped.
    async fn change(
        &self,
        change: impl FnOnce(&mut Bounds) + Send + 'static,
    ) -> Result<(), JoinError> {
        let this = Arc::clone(&self.0);
        // Evictions take time.
        let changing = tokio::task::spawn_blocking(move || {
            let mut bounds = this.bounds.lock();
            change(&mut bounds);
            this.apply(*bounds);
        });
        changing.await
    }
}

impl Inner {
    fn apply(&self, bounds: Bounds) {
        let Bounds { configured, limit } = bounds;
        let settings = &self.settings;
        let of = |bytes| CacheSettings::new(bytes, settings.cache.policy);
        let now = of(configured.min(limit));
        let parts = &self.front.parts;
        let sizes = ladder::read_sizes(settings, &now, self.reads_storage);
        ReadPath::resize(&self.views, &sizes);
        (parts.backings).resize(ladder::backing_bytes(settings, &now));
        self.front
            .resize_inodes(mounts::inodes_bytes(settings, &now));
        if let (HomeStorage::Memory, room) = ladder::dataset_room(settings, &now) {
            let (_, reported) = ladder::dataset_room(settings, &of(configured));
            parts.datasets.resize(reported, room);
        }
    }
}
