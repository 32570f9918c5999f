//! The trait through which a node answers other nodes.

use crate::model::{
    ContentHash, Failure, Files, HeldAnswer, HeldRequest, Insertion, ItemAnswer, ItemPath,
    ItemRequest, OriginFingerprint, not_a_home,
};
use crate::plan::{PlanReader, Tally};
use crate::steering::{LatestReceiver, LatestSender, no_steering};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::sync::Arc;

/// Answers requests of other nodes: for files to its children, and about itself to the cluster.
pub trait Service: Send + Sync + 'static {
    /// Returns the source for requests that come at position `attempt` of their items' root orders. Requests
    /// that it sends to other nodes must not be at an earlier position ([`crate::Upstream::at`]), and must not
    /// wait for a request that is.
    fn files(&self, attempt: u8) -> Arc<dyn Files>;

    /// Returns `len` bytes with this hash, verified, if this node itself holds them. Sends no request.
    fn find(&self, hash: ContentHash, len: u64) -> BoxFuture<'static, Option<Bytes>> {
        let _nothing_held = (hash, len);
        Box::pin(std::future::ready(None))
    }

    /// Returns this node's report, opaque here (JSON), of at most 64 KiB. Must be cheap and must not block.
    fn report(&self) -> Bytes;

    /// Drops the data and metadata that this node caches of `path` and below. Returns whether there was any.
    /// The node's children are told to do the same afterwards.
    ///
    /// # Errors
    /// The reason why the node could not.
    fn clear(&self, path: ItemPath) -> BoxFuture<'static, Result<bool, Failure>>;

    /// Takes `path` and below away from the applications on this node, after [`Service::clear`]. It may
    /// wait for requests that storage does not answer. No other node depends on it, so the children are told
    /// meanwhile. The node has cleared `path` when both have returned.
    fn withdraw(&self, path: ItemPath) -> BoxFuture<'static, ()> {
        drop(path);
        Box::pin(std::future::ready(()))
    }

    /// Returns the fingerprints of the origins that this node serves, if it is a root.
    ///
    /// # Errors
    /// Storage does not answer.
    fn origins(&self) -> BoxFuture<'static, Result<Vec<OriginFingerprint>, Failure>>;

    /// Carries out a plan: prefetches the items that its pages name, and counts successes and failures in
    /// `tally`. The pages are opaque here. Returns when the plan is complete and carried out. Dropped when
    /// its requester is gone.
    fn warm(&self, plan: PlanReader, tally: Tally) -> BoxFuture<'static, ()> {
        drop(plan);
        tally.failed("this node cannot be warmed");
        Box::pin(std::future::ready(()))
    }

    /// Whether [`Service::item`] would answer `request` without waiting for the origin. Such requests never
    /// wait for those that do. Must be cheap and must not block.
    fn item_is_here(&self, request: &ItemRequest) -> bool {
        let _none_here = request;
        false
    }

    /// Returns bytes of an item whose home this node is: exactly the bytes [`ItemRequest::wanted`], or the cost of
    /// reading them. Dropped when its requester is gone.
    ///
    /// # Errors
    /// `Unsupported` on a node that is no home; the failures of [`Files::read`].
    fn item(&self, request: ItemRequest) -> BoxFuture<'static, Result<ItemAnswer, Failure>> {
        drop(request);
        Box::pin(std::future::ready(Err(not_a_home())))
    }

    /// Returns which items of a dataset this node holds, of those whose home it is. Must be cheap.
    ///
    /// # Errors
    /// `Unsupported` on a node that is no home; `Unavailable` if it knows other items or other homes.
    fn held(&self, request: HeldRequest) -> BoxFuture<'static, Result<HeldAnswer, Failure>> {
        let _none_here = request;
        Box::pin(std::future::ready(Err(not_a_home())))
    }

    /// Returns an item that this node holds, by its hash alone and never from storage: bytes with that hash. `None`:
    /// it is not held, or not given to readers without its path. Neither the answer nor its time may tell which.
    ///
    /// # Errors
    /// `Unsupported` on a node that is no home.
    fn content(&self, hash: ContentHash) -> BoxFuture<'static, Result<Option<Bytes>, Failure>> {
        let _none_here = hash;
        Box::pin(std::future::ready(Err(not_a_home())))
    }

    /// Takes an item, whose `bytes` have the hash `hash`.
    ///
    /// # Errors
    /// `Unsupported` on a node that is no home.
    fn insert(
        &self,
        hash: ContentHash,
        bytes: Bytes,
    ) -> BoxFuture<'static, Result<Insertion, Failure>> {
        drop((hash, bytes));
        Box::pin(std::future::ready(Err(not_a_home())))
    }

    /// Answers a message of another member, which sent it with [`crate::Homes::message`]. The message and its answer
    /// have at most 1 MiB. Must be cheap. Dropped when its sender is gone.
    ///
    /// # Errors
    /// A failure for the sender.
    fn message(&self, message: Bytes) -> BoxFuture<'static, Result<Bytes, Failure>> {
        drop(message);
        Box::pin(std::future::ready(Err(not_a_home())))
    }

    /// Steers `child`, a child of this node in `tree`: receives its frames from `up` and sends frames to
    /// `down`. Returning ends the stream. When the child is gone, `up` ends and the future is dropped. Called
    /// for each stream; there is at most one for each child and tree.
    ///
    /// # Errors
    /// A failure for the child, whose stream then ends.
    fn steer(
        &self,
        child: String,
        tree: usize,
        up: LatestReceiver,
        down: LatestSender,
    ) -> BoxFuture<'static, Result<(), Failure>> {
        drop((child, tree, up, down));
        Box::pin(std::future::ready(Err(no_steering())))
    }

    /// Answers a command from a node below this one in `tree`. A node that is not in charge forwards it
    /// ([`crate::Upstream::command`]). The command and its answer have at most 1 MiB. Dropped when its
    /// requester is gone.
    ///
    /// # Errors
    /// A failure for the requester.
    fn command(&self, tree: usize, command: Bytes) -> BoxFuture<'static, Result<Bytes, Failure>> {
        drop((tree, command));
        Box::pin(std::future::ready(Err(no_steering())))
    }
}
