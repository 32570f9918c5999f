//! What lies over directories of the software mount, as the front sees it: what must happen to it before the kernel has
//! forgotten something.

use copperfs_overlay::ItemPath;
use futures_util::future::BoxFuture;

/// See the module.
pub(in crate::node) trait Images: Send + Sync {
    /// Takes the images away that show `path` or anything below it, or a directory above it. Returns when they are, or
    /// when the attendant does not do so.
    fn release(&self, path: &ItemPath) -> BoxFuture<'static, ()>;

    /// Makes images again of the directories that [`Images::release`] of `path` has left.
    fn renew(&self, path: &ItemPath);

    /// Takes all images away while `is_recording` returns `true`.
    fn pause(&self, is_recording: Box<dyn Fn() -> bool + Send + Sync>) -> BoxFuture<'static, ()>;
}
