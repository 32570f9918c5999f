//! The files of a dataset, and its entries before they are hashed.

use copperfs_overlay::{ContentHash, ItemPath, Version};

/// A file of a dataset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatasetFile {
    /// Its path, relative to the dataset's root.
    pub path: ItemPath,
    /// Its size in bytes.
    pub size: u64,
    /// Its version, which is settled.
    pub version: Version,
    /// The hash of all its bytes, if an index has it.
    pub content: Option<ContentHash>,
    /// The hash of each 4 MiB, if an index has them and the file is longer than that.
    pub parts: Box<[[u8; 32]]>,
}

/// An entry whose hash is not known yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedEntry {
    /// The index of its file.
    pub file: u32,
    /// Its first byte in the file.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}
