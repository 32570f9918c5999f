//! What every node fetches: a profile, or a description of one, as a sequence of items.
//!
//! An item is what one upstream request of the product brings: a listing, attributes, a whole file or
//! a run of blocks. Whatever is touched again is a hit and no item.

use crate::random::Random;
use copperfs_topology::{BLOCK_BYTES, ItemPath};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

/// Up to this size a file comes whole on its first read: the default of `whole_file_max`.
const WHOLE_FILE_BYTES_MAX: u64 = 64 << 20;
/// An entry of a listing on the wire: 200 of them were measured as 7.6 KB.
const ENTRY_BYTES: u64 = 38;
/// Attributes of one file on the wire.
const ATTRIBUTES_BYTES: u64 = 100;
/// Entries of a directory whose size the profile does not tell, and of one that is made up.
const ENTRIES: u64 = 24;
/// Files read in a directory, of a profile that is made up: an import of numpy, pandas, sympy and
/// networkx reads 1,172 files in 286 directories.
const FILES_OF_DIRECTORY: usize = 4;

/// Of what kind an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemKind {
    /// A directory's listing.
    Listing,
    /// One file's attributes.
    Attributes,
    /// Bytes of a file.
    Data,
}

/// What one request brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// What decides which root it comes from.
    pub key: ItemPath,
    /// Of what kind it is.
    pub kind: ItemKind,
    /// Its bytes, payload only.
    pub bytes: u64,
}

/// One access of a recorded program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access<'a> {
    /// It listed the directory, or looked a name up in it.
    List {
        /// The directory.
        path: &'a ItemPath,
        /// Number of its entries, where the recording knows it.
        entries: Option<u64>,
    },
    /// It asked for attributes, also of a name that does not exist.
    Stat {
        /// The name.
        path: &'a ItemPath,
    },
    /// It read a part of a file.
    Read {
        /// The file.
        path: &'a ItemPath,
        /// The file's size in bytes.
        size: u64,
        /// The bytes that were read.
        range: Range<u64>,
    },
}

/// The items that a node with empty caches asks for, in order, when a program makes `accesses`.
#[must_use]
pub fn recorded<'a>(accesses: impl IntoIterator<Item = Access<'a>>) -> Vec<Item> {
    let mut seen = Seen::default();
    let mut items = Vec::new();
    for access in accesses {
        seen.touch(access, &mut items);
    }
    items
}

/// `files` files of `bytes` bytes together in directories of a few each. Their sizes are spread as
/// those of a software tree are (log-normal: most are small, few hold most of the bytes).
#[must_use]
pub fn described(files: usize, bytes: u64, seed: u64) -> Vec<Item> {
    let mut random = Random::new(seed);
    let shares: Vec<f64> = (0..files).map(|_| (1.5 * random.normal()).exp()).collect();
    let sum: f64 = shares.iter().sum();
    let mut items = Vec::new();
    let mut left = bytes;
    for (index, share) in shares.iter().enumerate() {
        let directory = index / FILES_OF_DIRECTORY;
        if index % FILES_OF_DIRECTORY == 0 {
            items.extend(made_up(&format!("/d{directory}")).map(|key| Item {
                key,
                kind: ItemKind::Listing,
                bytes: ENTRIES * ENTRY_BYTES,
            }));
        }
        let last = index + 1 == files;
        let size = if last {
            left
        } else {
            portion(bytes, share / sum).min(left)
        };
        left -= size;
        items.extend(made_up(&format!("/d{directory}/f{index}")).map(|key| Item {
            key,
            kind: ItemKind::Data,
            bytes: size,
        }));
    }
    items
}

/// Names that are made up here are paths.
fn made_up(path: &str) -> Option<ItemPath> {
    ItemPath::parse(path.as_bytes()).ok()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a size, which needs no more digits than f64 has"
)]
fn portion(bytes: u64, share: f64) -> u64 {
    (bytes as f64 * share) as u64
}

#[derive(Default)]
struct Seen {
    listings: HashSet<ItemPath>,
    attributes: HashSet<ItemPath>,
    whole: HashSet<ItemPath>,
    blocks: HashMap<ItemPath, BTreeSet<u64>>,
}

impl Seen {
    fn touch(&mut self, access: Access<'_>, items: &mut Vec<Item>) {
        match access {
            Access::List { path, entries } => self.list(path, entries, items),
            Access::Stat { path } => {
                // The listing has brought the attributes of every entry.
                let (parent, _name) = path
                    .split()
                    .unwrap_or_else(|| (ItemPath::root(), b"".as_slice()));
                if !self.listings.contains(&parent) && self.attributes.insert(path.clone()) {
                    items.push(Item {
                        key: parent,
                        kind: ItemKind::Attributes,
                        bytes: ATTRIBUTES_BYTES,
                    });
                }
            }
            Access::Read { path, size, range } => {
                if size > 0 && !range.is_empty() {
                    self.read(path, size, range, items);
                }
            }
        }
    }

    fn list(&mut self, path: &ItemPath, entries: Option<u64>, items: &mut Vec<Item>) {
        if self.listings.insert(path.clone()) {
            items.push(Item {
                key: path.clone(),
                kind: ItemKind::Listing,
                bytes: entries
                    .unwrap_or(ENTRIES)
                    .max(1)
                    .saturating_mul(ENTRY_BYTES),
            });
        }
    }

    fn read(&mut self, path: &ItemPath, size: u64, range: Range<u64>, items: &mut Vec<Item>) {
        let data = |bytes| Item {
            key: path.clone(),
            kind: ItemKind::Data,
            bytes,
        };
        if size <= WHOLE_FILE_BYTES_MAX {
            if self.whole.insert(path.clone()) {
                items.push(data(size));
            }
            return;
        }
        let have = self.blocks.entry(path.clone()).or_default();
        let bytes: u64 = (range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES))
            .filter(|&block| have.insert(block))
            .map(|block| (size - block * BLOCK_BYTES).min(BLOCK_BYTES))
            .sum();
        if bytes > 0 {
            items.push(data(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_asked_for_once() {
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
    fn a_description_has_the_bytes_that_it_says() {
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
