//! The rules of datasets that have a manifest. Pure.

use crate::dataset::catalog::Catalog;
use crate::dataset::item::ItemId;
use copperfs_policy::chunks::ChunkLayout;
use copperfs_policy::keep::Rule;
use std::fmt;
use std::sync::Arc;

/// Keeps the entries of a manifest.
pub(super) struct Named(pub(super) Arc<Catalog>);

impl Rule<ItemId> for Named {
    fn keeps(&self, item: &ItemId) -> bool {
        self.0.entries_of(item).next().is_some()
    }
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entries", self.0.manifest().len())
    }
}

/// Keeps the items of resident chunks.
pub(super) struct Resident {
    pub(super) catalog: Arc<Catalog>,
    pub(super) layout: ChunkLayout,
    pub(super) chunks: Vec<u32>,
}

impl Rule<ItemId> for Resident {
    fn keeps(&self, item: &ItemId) -> bool {
        let mut entries = self.catalog.entries_of(item);
        entries.any(|entry| {
            let chunk = self.layout.chunk_of(entry.into());
            chunk.is_some_and(|chunk| self.chunks.contains(&chunk))
        })
    }
}

impl fmt::Debug for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunks {:?}", self.chunks)
    }
}
