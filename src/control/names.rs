//! Looks up paths of the namespace, for the checks before a declaration.

use copperfs_overlay::{Failure, ItemPath};
use futures_util::future::BoxFuture;

/// The names that this node serves.
pub trait Names: Send + Sync + 'static {
    /// Looks up `path`, as a reader of the mount would.
    ///
    /// # Errors
    /// `NotFound` or `NotADirectory` if nothing is there; faults.
    fn look(&self, path: ItemPath) -> BoxFuture<'static, Result<(), Failure>>;
}
