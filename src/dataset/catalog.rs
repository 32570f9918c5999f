//! The items of a dataset that has a manifest. Pure.
//!
//! An entry of the manifest is an item. An entry of more than 4 MiB has an item for each part of that
//! length. The content of these items is known, so they are at home by their hash, wherever their
//! bytes lie. Bytes between entries belong to no item, and are not kept.

use super::item::ItemId;
use crate::manifest::Manifest;
use crate::manifest::format::PART_BYTES;
use copperfs_overlay::{ContentHash, Extent};

/// See the module. Takes 16 bytes for each item beside the manifest.
pub struct Catalog {
    manifest: Manifest,
    /// The items by identity, each with the number of its entry.
    items: Vec<(ItemId, u32)>,
}

/// Consecutive bytes of a file, which readers request together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The bytes, at most 4 MiB.
    pub extent: Extent,
    /// The hash of the item that they are. `None`: they are part of no entry.
    pub content: Option<ContentHash>,
}

impl Piece {
    /// Returns the identity of the item that the piece is. `None`: it is part of no entry.
    #[must_use]
    pub fn item(&self) -> Option<ItemId> {
        let content = self.content.as_ref()?;
        Some(ItemId::of_content(content, self.extent.len))
    }
}

impl Catalog {
    /// Prepares a manifest for look-ups. Takes a second for ten million entries.
    #[must_use]
    pub fn new(manifest: Manifest) -> Self {
        let mut catalog = Self {
            manifest,
            items: Vec::new(),
        };
        let mut items: Vec<(ItemId, u32)> = catalog.in_order().collect();
        items.sort_unstable();
        catalog.items = items;
        catalog
    }

    /// Returns the manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the numbers of the entries that an item belongs to. Entries of equal content share their
    /// items.
    pub fn entries_of(&self, item: &ItemId) -> impl Iterator<Item = u32> {
        let first = self.items.partition_point(|(known, _)| known < item);
        let same = self.items[first..].iter();
        let same = same.take_while(move |(known, _)| known == item);
        same.map(|(_, entry)| *entry)
    }

    /// Returns the number of an entry that has an item with this hash.
    #[must_use]
    pub fn entry_with(&self, content: &ContentHash) -> Option<u32> {
        let found = ItemId::all_of_content(content).map(|item| self.entries_of(&item).next());
        found.into_iter().flatten().next()
    }

    /// Returns the length of an item in bytes. `None`: no entry has it.
    #[must_use]
    pub fn len_of(&self, item: &ItemId) -> Option<u64> {
        let entry = self.entries_of(item).next()?;
        let mut pieces = self.pieces_of(entry as usize);
        pieces.find_map(|(known, len)| (known == *item).then_some(len))
    }

    /// Returns every item once, with its length in bytes.
    pub fn items(&self) -> impl Iterator<Item = (ItemId, u64)> {
        let mut last = None;
        let first = self
            .items
            .iter()
            .filter(move |(item, _)| last.replace(*item) != Some(*item));
        first.filter_map(|(item, _)| Some((*item, self.len_of(item)?)))
    }

    /// Returns the items of all entries in the order of the manifest, each with the number of its entry.
    pub fn in_order(&self) -> impl Iterator<Item = (ItemId, u32)> {
        (0..self.manifest.len()).flat_map(|number| {
            let entry = u32::try_from(number).unwrap_or(u32::MAX);
            items_of(&self.manifest, number).map(move |item| (item, entry))
        })
    }

    /// Returns the items of an entry with their lengths in bytes, in the order of their bytes.
    pub fn pieces_of(&self, entry: usize) -> impl Iterator<Item = (ItemId, u64)> {
        let pieces = pieces(&self.manifest, entry);
        pieces.filter_map(|piece| Some((piece.item()?, piece.extent.len)))
    }

    /// Returns the piece with byte `offset` of the file at `path`, relative to the dataset's root.
    /// `None`: the manifest does not have the file with this size, or the offset is beyond its end.
    #[must_use]
    pub fn piece_at(&self, path: &[u8], size: u64, offset: u64) -> Option<Piece> {
        let file = self.manifest.file_at(path)?;
        if self.manifest.size(file) != Some(size) || offset >= size {
            return None;
        }
        let entries = self.manifest.entries_of(file);
        let extent = |at: usize| {
            let entry = self.manifest.entry(*entries.get(at)? as usize)?;
            Some(Extent {
                start: entry.offset,
                len: entry.length,
            })
        };
        let begins_at_or_before = |entry: &u32| {
            let entry = self.manifest.entry(*entry as usize);
            entry.is_some_and(|entry| entry.offset <= offset)
        };
        let next = entries.partition_point(begins_at_or_before);
        let before = next.checked_sub(1).and_then(extent);
        if let Some(entry) = before.filter(|entry| offset < entry.end()) {
            let part = (offset - entry.start) / PART_BYTES;
            let number = *entries.get(next - 1)? as usize;
            return pieces(&self.manifest, number).nth(usize::try_from(part).ok()?);
        }
        // A gap ends where the next entry begins, and is cut at multiples of the maximum.
        let from = before.map_or(0, |entry| entry.end());
        let start = from.max(offset / PART_BYTES * PART_BYTES);
        let end = extent(next).map_or(size, |entry| entry.start);
        let end = end.min((offset / PART_BYTES + 1) * PART_BYTES);
        Some(Piece {
            extent: Extent {
                start,
                len: end - start,
            },
            content: None,
        })
    }
}

fn items_of(manifest: &Manifest, number: usize) -> impl Iterator<Item = ItemId> {
    pieces(manifest, number).filter_map(|piece| piece.item())
}

/// Returns the items of entry `number` as pieces. An empty entry has none, because there is nothing to
/// read.
fn pieces(manifest: &Manifest, number: usize) -> impl Iterator<Item = Piece> {
    let entry = manifest.entry(number).filter(|entry| entry.length > 0);
    let parts = manifest.parts(number);
    let count = entry.map_or(0, |entry| entry.length.div_ceil(PART_BYTES));
    (0..count)
        .zip(entry.into_iter().cycle())
        .map(move |(part, entry)| {
            let start = part * PART_BYTES;
            let known = usize::try_from(part).ok().and_then(|part| parts.get(part));
            Piece {
                extent: Extent {
                    start: entry.offset + start,
                    len: (entry.length - start).min(PART_BYTES),
                },
                // Without parts the entry is one item, and its hash is the item's.
                content: Some(known.map_or(entry.hash, |hash| ContentHash(*hash))),
            }
        })
}

#[cfg(test)]
mod tests;
