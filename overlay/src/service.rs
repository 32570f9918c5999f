//! What a node answers to others.

use crate::model::{
    ContentHash, Failure, Files, ItemAnswer, ItemPath, ItemRequest, OriginFingerprint, no_home,
};
use crate::plan::{PlanReader, Tally};
use crate::steering::{LatestReceiver, LatestSender, nobody};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::sync::Arc;

/// What a node answers: files to its children, and about itself to the cluster.
pub trait Service: Send + Sync + 'static {
    /// What answers questions about files that come from position `attempt` of their items' root
    /// orders. What it asks of others must not come from an earlier position ([`Upstream::at`]), and
    /// must not wait for a question that does.
    fn files(&self, attempt: u8) -> Arc<dyn Files>;

    /// `len` bytes with this hash, verified, if this node itself holds them. Asks nobody else.
    fn find(&self, hash: ContentHash, len: u64) -> BoxFuture<'static, Option<Bytes>> {
        let _nothing_held = (hash, len);
        Box::pin(std::future::ready(None))
    }

    /// This node's report, opaque here (JSON), at most 64 KiB. Must be cheap and must not block.
    fn report(&self) -> Bytes;

    /// Drops the data and metadata that this node caches of `path` and below. Returns whether there was
    /// anything. The node's children are asked to do the same after it.
    ///
    /// # Errors
    /// Whatever stops the node from doing so.
    fn clear(&self, path: ItemPath) -> BoxFuture<'static, Result<bool, Failure>>;

    /// Takes `path` and below away from the applications on this node, after [`Service::clear`]. It may
    /// wait for requests that storage does not answer. No other node depends on it, so the children are
    /// asked meanwhile. The node has cleared `path` when both have returned.
    fn withdraw(&self, path: ItemPath) -> BoxFuture<'static, ()> {
        drop(path);
        Box::pin(std::future::ready(()))
    }

    /// What this node serves from storage, if it is a root.
    ///
    /// # Errors
    /// Storage does not answer.
    fn origins(&self) -> BoxFuture<'static, Result<Vec<OriginFingerprint>, Failure>>;

    /// Carries out a plan: brings here what its pages name, and counts in `tally` what it has done and
    /// what has failed. The pages are the service's own, opaque here. Returns when the plan has ended
    /// and is done; dropped when nobody waits for it any more.
    fn warm(&self, plan: PlanReader, tally: Tally) -> BoxFuture<'static, ()> {
        drop(plan);
        tally.failed("this node cannot be warmed");
        Box::pin(std::future::ready(()))
    }

    /// Whether [`Service::item`] would answer `request` without waiting for the origin. Such requests
    /// never wait behind those that do. Must be cheap and must not block.
    fn item_is_here(&self, request: &ItemRequest) -> bool {
        let _none_here = request;
        false
    }

    /// Bytes of an item whose home this node is. The answer has exactly [`ItemRequest::len`] bytes, or
    /// says what reading them costs. Dropped when nobody waits for it any more.
    ///
    /// # Errors
    /// `Unsupported` on a node that is nobody's home; what [`Files::read`] fails with.
    fn item(&self, request: ItemRequest) -> BoxFuture<'static, Result<ItemAnswer, Failure>> {
        drop(request);
        Box::pin(std::future::ready(Err(no_home())))
    }

    /// A stream of `child`, a node that hangs from this one in `tree`: hears its frames and gives it
    /// new ones until the child is gone (`up` ends, and the future is dropped) or it returns, which
    /// ends the stream. Called anew for each stream; there is at most one for each child and tree.
    ///
    /// # Errors
    /// Whatever the child is to know; it then finds its stream ended.
    fn steer(
        &self,
        child: String,
        tree: usize,
        up: LatestReceiver,
        down: LatestSender,
    ) -> BoxFuture<'static, Result<(), Failure>> {
        drop((child, tree, up, down));
        Box::pin(std::future::ready(Err(nobody())))
    }

    /// A command of at most 1 MiB from a node below this one in `tree`: answered with at most 1 MiB by
    /// who is in charge, passed on by everybody else ([`Upstream::command`]). Dropped when nobody
    /// waits for it any more.
    ///
    /// # Errors
    /// Whatever the asker is to know.
    fn command(&self, tree: usize, command: Bytes) -> BoxFuture<'static, Result<Bytes, Failure>> {
        drop((tree, command));
        Box::pin(std::future::ready(Err(nobody())))
    }
}
