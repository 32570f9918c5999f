//! The memory of a running node: the sizes of its caches can be changed while they are in use.
//!
//! Purpose: everything that has a part of `--memory` gets its new part here, by the same rules as at the start
//! ([`super::ladder`]). It does not decide when ([`crate::pressure`] does, and the user).
//!
//! Invariants: a smaller size takes memory from caches only. Bytes that readers hold stay theirs, and a read that is in
//! progress ends as it would have.

use super::front::Front;
use super::{ladder, mounts};
use crate::cache::Fill;
use crate::config::{CacheSettings, Settings};
use crate::dataset::HomeStorage;
use crate::pressure::{self, Caches};
use crate::read::ReadPath;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
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
    /// Whether dataset items are in memory, and not on a disk.
    has_items: bool,
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
        let (items, _) = ladder::dataset_room(&settings, &settings.cache);
        Self(Arc::new(Inner {
            has_items: items == HomeStorage::Memory,
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

    /// Gives caches back while memory is short, until it is dropped.
    pub(super) fn watch(&self) -> impl Future<Output = ()> + Send + 'static {
        let pressure = self.0.front.parts.cluster.pressure().clone();
        pressure::watch(Arc::new(self.clone()), pressure)
    }

    /// Limits the memory to `bytes` for now, whatever is configured. Other nodes do not learn of it.
    ///
    /// # Errors
    /// The runtime ends.
    async fn limit_to(&self, bytes: u64) -> Result<(), JoinError> {
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

impl Caches for NodeMemory {
    fn memory(&self) -> u64 {
        self.0.bounds.lock().configured
    }

    fn parts(&self) -> Vec<Fill> {
        let parts = &self.0.front.parts;
        let mut fills = parts.read.fills();
        fills.extend(self.0.front.fills());
        fills.push(parts.backings.fill());
        if self.0.has_items {
            fills.push(parts.datasets.home.fill());
        }
        fills
    }

    fn limit(&self, bytes: Option<u64>) -> BoxFuture<'static, ()> {
        let this = self.clone();
        async move {
            // An error means that the node ends.
            let _ends = this.limit_to(bytes.unwrap_or(u64::MAX)).await;
        }
        .boxed()
    }

    fn grown(&self) -> BoxFuture<'static, ()> {
        let parts = self.0.front.parts.clone();
        async move {
            tokio::select! {
                () = parts.read.requested() => {}
                () = parts.datasets.home.requested() => {}
            }
        }
        .boxed()
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
        if self.has_items {
            let (_, room) = ladder::dataset_room(settings, &now);
            let (_, reported) = ladder::dataset_room(settings, &of(configured));
            parts.datasets.resize(reported, room);
        }
    }
}
