//! Answers to requests of this node's children and of its cluster.

use super::front::Front;
use super::parts::Parts;
use super::warm::Warmer;
use crate::origin::Origins;
use crate::read::ReadPath;
use bytes::Bytes;
use copperfs_overlay::{
    ContentHash, Failure, FailureKind, Files, HeldAnswer, HeldRequest, Insertion, ItemAnswer,
    ItemPath, ItemRequest, LatestReceiver, LatestSender, OriginFingerprint, PlanReader, Service,
    Tally,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// Answers for files from the read path, and for the rest from the node. It serves from the moment at which the node
/// listens, which is before the mount exists.
pub(super) struct NodeService {
    pub(super) parts: Parts,
    /// By position in an item's order of roots; not empty.
    pub(super) views: Vec<ReadPath>,
    pub(super) warmer: Warmer,
    pub(super) origins: Option<Arc<Origins>>,
    pub(super) front: MountedFront,
    /// Limits searches of the whole memory for a hash to one at a time. A search occupies a processor for milliseconds
    /// per million blocks.
    pub(super) scan: Arc<Semaphore>,
}

/// The front of the software mount, as soon as it is mounted.
#[derive(Clone)]
pub(super) struct MountedFront {
    front: watch::Receiver<Option<Front>>,
    /// Whether the mount was there before this daemon.
    is_inherited: bool,
}

impl MountedFront {
    /// Returns it, and the sender that tells of the mount.
    pub(super) fn new(is_inherited: bool) -> (watch::Sender<Option<Front>>, Self) {
        let (mounted, front) = watch::channel(None);
        let front = Self {
            front,
            is_inherited,
        };
        (mounted, front)
    }

    /// Returns the front, or `None` if there is no kernel with anything to forget. The kernel of a mount that this daemon
    /// takes over has names and pages already, so this waits for it.
    ///
    /// # Errors
    /// The mount is not taken over.
    async fn get(mut self) -> Result<Option<Front>, Failure> {
        if self.is_inherited {
            let taken_over = self.front.wait_for(Option::is_some).await;
            drop(taken_over.map_err(|_ended| {
                Failure::new(FailureKind::Unavailable, "the mount is not taken over")
            })?);
        }
        Ok(self.front.borrow().clone())
    }
}

impl Service for NodeService {
    fn files(&self, attempt: u8) -> Arc<dyn Files> {
        let last = self.views.len() - 1;
        Arc::new(self.views[usize::from(attempt).min(last)].clone())
    }

    fn origins(&self) -> BoxFuture<'static, Result<Vec<OriginFingerprint>, Failure>> {
        let origins = self.origins.clone();
        async move {
            match origins {
                Some(origins) => origins.fingerprints().await,
                None => Ok(Vec::new()),
            }
        }
        .boxed()
    }

    fn warm(&self, plan: PlanReader, tally: Tally) -> BoxFuture<'static, ()> {
        self.warmer.clone().carry_out(plan, tally).boxed()
    }

    fn item_is_here(&self, request: &ItemRequest) -> bool {
        self.parts.datasets.home.has(request)
    }

    fn held(&self, request: HeldRequest) -> BoxFuture<'static, Result<HeldAnswer, Failure>> {
        let home = self.parts.datasets.home.clone();
        async move { home.held(request).await }.boxed()
    }

    fn content(&self, hash: ContentHash) -> BoxFuture<'static, Result<Option<Bytes>, Failure>> {
        let home = self.parts.datasets.home.clone();
        async move { Ok(home.content(hash).await) }.boxed()
    }

    fn insert(
        &self,
        hash: ContentHash,
        bytes: Bytes,
    ) -> BoxFuture<'static, Result<Insertion, Failure>> {
        let home = self.parts.datasets.home.clone();
        async move { Ok(home.insert(hash, bytes).await) }.boxed()
    }

    fn item(&self, request: ItemRequest) -> BoxFuture<'static, Result<ItemAnswer, Failure>> {
        let home = self.parts.datasets.home.clone();
        async move { home.item(request).await }.boxed()
    }

    fn message(&self, message: Bytes) -> BoxFuture<'static, Result<Bytes, Failure>> {
        let datasets = self.parts.datasets.clone();
        async move { datasets.message(message).await }.boxed()
    }

    fn steer(
        &self,
        child: String,
        tree: usize,
        up: LatestReceiver,
        down: LatestSender,
    ) -> BoxFuture<'static, Result<(), Failure>> {
        let agent = self.parts.datasets.agent.clone();
        async move { agent.service_steer(child, tree, up, down).await }.boxed()
    }

    fn command(&self, tree: usize, command: Bytes) -> BoxFuture<'static, Result<Bytes, Failure>> {
        let agent = self.parts.datasets.agent.clone();
        async move { agent.service_command(tree, command).await }.boxed()
    }

    fn find(&self, hash: ContentHash, len: u64) -> BoxFuture<'static, Option<Bytes>> {
        let (parts, scan) = (self.parts.clone(), Arc::clone(&self.scan));
        async move {
            if let Some(store) = parts.store
                && let Some(bytes) = store.by_hash(hash, len).await
            {
                return Some(bytes);
            }
            let turn = scan.acquire_owned().await.ok()?;
            let scanning = tokio::task::spawn_blocking(move || {
                let found = parts.read.data().by_hash(hash, len);
                drop(turn);
                found
            });
            scanning.await.ok()?
        }
        .boxed()
    }

    fn report(&self) -> Bytes {
        self.parts.cluster.report()
    }

    fn clear(&self, path: ItemPath) -> BoxFuture<'static, Result<bool, Failure>> {
        let (parts, front) = (self.parts.clone(), self.front.clone());
        async move {
            Ok(match front.get().await? {
                Some(front) => front.clear_caches(&path).await,
                None => parts.clear_caches(&path).await,
            })
        }
        .boxed()
    }

    fn withdraw(&self, path: ItemPath) -> BoxFuture<'static, ()> {
        let front = self.front.clone();
        async move {
            if let Ok(Some(front)) = front.get().await {
                front.forget_in_kernels(&path).await;
            }
        }
        .boxed()
    }
}
