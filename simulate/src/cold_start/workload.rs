//! The items that every node fetches: from a profile, or from a description of one.
//!
//! An item is the result of one upstream request of the product: a listing, attributes, a whole
//! file, or a run of blocks. A repeated access is a hit and no item.

use crate::num::{as_f64, whole};
use crate::random::Random;
use copperfs_topology::{BLOCK_BYTES, ItemPath};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

/// Files up to this size are fetched whole on their first read: the default of `whole_file_max`.
const WHOLE_FILE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a listing's entry on the wire. 200 entries were measured as 7.6 KB.
const ENTRY_BYTES: u64 = 38;
/// Bytes of one file's attributes on the wire.
const ATTRIBUTES_BYTES: u64 = 100;
/// The assumed number of entries of a directory.
const ENTRIES: u64 = 24;
/// The number of files read per directory in a described profile. An import of numpy, pandas, sympy
/// and networkx reads 1,172 files in 286 directories.
const FILES_OF_DIRECTORY: usize = 4;

/// The kind of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemKind {
    /// A directory's listing.
    Listing,
    /// One file's attributes.
    Attributes,
    /// Bytes of a file.
    Data,
}

/// The result of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The path that determines its root.
    pub key: ItemPath,
    /// Its kind.
    pub kind: ItemKind,
    /// Its payload bytes.
    pub bytes: u64,
}

/// One access of a recorded program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access<'a> {
    /// It listed the directory, or looked up a name in it.
    List {
        /// The directory.
        path: &'a ItemPath,
        /// The number of its entries, if recorded.
        entries: Option<u64>,
    },
    /// It requested attributes, possibly of a name that does not exist.
    Stat {
        /// The name.
        path: &'a ItemPath,
    },
    /// It read part of a file.
    Read {
        /// The file.
        path: &'a ItemPath,
        /// The file's size in bytes.
        size: u64,
        /// The range of bytes.
        range: Range<u64>,
    },
}

/// Returns the items that a node with empty caches requests, in order, when a program makes
/// `accesses`.
#[must_use]
pub fn recorded<'a>(accesses: impl IntoIterator<Item = Access<'a>>) -> Vec<Item> {
    let mut cached = CachedItems::default();
    let accesses = accesses.into_iter();
    accesses
        .filter_map(|access| cached.missing(access))
        .collect()
}

/// Returns `files` files with a total of `bytes` bytes, in directories of a few each. Their sizes
/// are distributed like those of a software tree (log-normal: most are small, and few hold most of
/// the bytes).
#[must_use]
pub fn described(files: usize, bytes: u64, seed: u64) -> Vec<Item> {
    let mut random = Random::new(seed);
    let shares: Vec<f64> = (0..files).map(|_| (1.5 * random.normal()).exp()).collect();
    let sum: f64 = shares.iter().sum();
    let mut items = Vec::new();
    let mut push = |path: &str, kind, bytes| {
        let key = ItemPath::parse(path.as_bytes()).ok();
        items.extend(key.map(|key| Item { key, kind, bytes }));
    };
    let mut left = bytes;
    for (index, share) in shares.iter().enumerate() {
        let directory = index / FILES_OF_DIRECTORY;
        // The first file of a directory causes its listing.
        if index % FILES_OF_DIRECTORY == 0 {
            let bytes = ENTRIES * ENTRY_BYTES;
            push(&format!("/d{directory}"), ItemKind::Listing, bytes);
        }
        let portion = whole(as_f64(bytes) * (share / sum));
        // The last file gets the rest, so that the sizes sum to `bytes`.
        let is_last = index + 1 == files;
        let size = if is_last { left } else { portion.min(left) };
        left -= size;
        push(&format!("/d{directory}/f{index}"), ItemKind::Data, size);
    }
    items
}

#[derive(Default)]
struct CachedItems {
    listings: HashSet<ItemPath>,
    attributes: HashSet<ItemPath>,
    whole: HashSet<ItemPath>,
    blocks: HashMap<ItemPath, BTreeSet<u64>>,
}

impl CachedItems {
    /// Returns the item that must be requested for `access`, if there is one.
    fn missing(&mut self, access: Access<'_>) -> Option<Item> {
        let (key, kind, bytes) = match access {
            Access::List { path, entries } => {
                let entries = entries.unwrap_or(ENTRIES).max(1);
                let bytes = entries.saturating_mul(ENTRY_BYTES);
                let is_new = self.listings.insert(path.clone());
                is_new.then(|| (path.clone(), ItemKind::Listing, bytes))
            }
            Access::Stat { path } => {
                let parent = path
                    .split()
                    .map_or_else(ItemPath::root, |(parent, _)| parent);
                // A listing contains the attributes of every entry.
                let is_new =
                    !self.listings.contains(&parent) && self.attributes.insert(path.clone());
                is_new.then_some((parent, ItemKind::Attributes, ATTRIBUTES_BYTES))
            }
            Access::Read { path, size, range } => {
                let bytes = self.missing_bytes(path, size, range);
                (bytes > 0).then(|| (path.clone(), ItemKind::Data, bytes))
            }
        }?;
        Some(Item { key, kind, bytes })
    }

    /// Returns the number of bytes that must be requested for a read of `range`.
    fn missing_bytes(&mut self, path: &ItemPath, size: u64, range: Range<u64>) -> u64 {
        if size == 0 || range.is_empty() {
            return 0;
        }
        if size <= WHOLE_FILE_BYTES_MAX {
            let is_new = self.whole.insert(path.clone());
            return if is_new { size } else { 0 };
        }
        let have = self.blocks.entry(path.clone()).or_default();
        (range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES))
            .filter(|&block| have.insert(block))
            .map(|block| (size - block * BLOCK_BYTES).min(BLOCK_BYTES))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_requested_once() {
        let path = |text: &str| ItemPath::parse(text.as_bytes()).unwrap();
        let (x, a, b, empty, big) = (
            path("/x"),
            path("/a"),
            path("/a/b.py"),
            path("/a/empty"),
            path("/big"),
        );
        let read = |path, size, offset: u64, len: u64| Access::Read {
            path,
            size,
            range: offset..offset + len,
        };
        let list = |path, entries| Access::List { path, entries };
        let items = recorded([
            Access::Stat { path: &x },
            list(&a, Some(100)),
            list(&a, None),
            Access::Stat { path: &b },
            read(&b, 5000, 0, 10),
            read(&b, 5000, 10, 4990),
            read(&empty, 0, 0, 0),
            read(&big, 104_857_700, 0, 1_048_577),
            read(&big, 104_857_700, 1_048_576, 2_097_152),
            read(&big, 104_857_700, 104_857_600, 100),
        ]);
        let found: Vec<(ItemKind, u64)> =
            items.iter().map(|item| (item.kind, item.bytes)).collect();
        assert_eq!(
            found,
            [
                (ItemKind::Attributes, 100),
                (ItemKind::Listing, 3800),
                (ItemKind::Data, 5000),
                (ItemKind::Data, 2 << 20),
                (ItemKind::Data, 1 << 20),
                (ItemKind::Data, 100),
            ]
        );
    }

    #[test]
    fn a_description_has_the_given_files_and_bytes() {
        let items = described(728, 36_300_000, 1);
        let data: Vec<u64> = items
            .iter()
            .filter(|item| item.kind == ItemKind::Data)
            .map(|item| item.bytes)
            .collect();
        assert_eq!((data.len(), data.iter().sum()), (728, 36_300_000));
        assert_eq!(items.len() - data.len(), 182);
        assert_eq!(items, described(728, 36_300_000, 1));
        assert_ne!(items, described(728, 36_300_000, 2));
        assert!(described(0, 5, 1).is_empty());
    }
}
