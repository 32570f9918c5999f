//! Whether something lies at a path of the namespace, for the checks before a declaration.

use copperfs_overlay::{Failure, ItemPath};
use futures_util::future::BoxFuture;

/// The names that this node serves.
pub trait Names: Send + Sync + 'static {
    /// Looks at `path`, as any reader of the mount would.
    ///
    /// # Errors
    /// `NotFound` or `NotADirectory` where nothing is; faults.
    fn look(&self, path: ItemPath) -> BoxFuture<'static, Result<(), Failure>>;
}
