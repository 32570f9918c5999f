//! What lies over directories of the software mount, as the front sees it: the hidden files that it is read from, and what
//! must happen to it before the kernel has forgotten something.

use bytes::Bytes;
use copperfs_fuse::{Attr, FsError, Ino, Lookup, Response};
use copperfs_overlay::ItemPath;
use futures_util::future::BoxFuture;

/// See the module.
pub(in crate::node) trait Images: Send + Sync {
    /// Looks up a name at the top of the mount. Returns `None` if it is not that of a hidden file.
    fn look_up(&self, name: &[u8]) -> Option<Lookup>;

    /// Whether `ino` is the number of a hidden file.
    fn has(&self, ino: Ino) -> bool;

    /// The attributes of a hidden file.
    fn attr(&self, ino: Ino) -> Result<Attr, FsError>;

    /// Bytes of a hidden file.
    fn read(&self, ino: Ino, offset: u64, size: u32) -> Response<Bytes>;

    /// The kernel has dropped references to a hidden file.
    fn forget(&self, ino: Ino, count: u64);

    /// Takes the images away that show `path` or anything below it, or a directory above it. Returns when they are, or
    /// when the attendant does not do so.
    fn release(&self, path: &ItemPath) -> BoxFuture<'static, ()>;

    /// Makes images again of the directories that [`Images::release`] of `path` has left.
    fn renew(&self, path: &ItemPath);

    /// Takes all images away while `is_recording` returns `true`.
    fn pause(&self, is_recording: Box<dyn Fn() -> bool + Send + Sync>) -> BoxFuture<'static, ()>;
}
