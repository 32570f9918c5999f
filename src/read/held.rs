//! Whether anything of a path is cached, for commands that report their effect.

use super::ReadPath;
use copperfs_overlay::ItemPath;

impl ReadPath {
    /// Whether [`ReadPath::clear`] of `path` would drop anything on this node. Listings on a disk always
    /// count as cached, because the disk is not searched. Examines all entries.
    #[must_use]
    pub fn holds(&self, path: &ItemPath) -> bool {
        let inner = &self.0;
        let parent = path.split().map(|(parent, _)| parent);
        let below = |candidate: &ItemPath| candidate.is_within(path).then_some(());
        let listed = |listing: &ItemPath| {
            (listing.is_within(path) || Some(listing) == parent.as_ref()).then_some(())
        };
        inner.persisted.is_some()
            || inner.listings.search(|key, _| listed(&key.path)).is_some()
            || inner.attributes.search(|file, _| below(file)).is_some()
            || inner.xattrs.search(|file, _| below(file)).is_some()
            || inner.data.search(|_, block| below(&block.path)).is_some()
    }
}
