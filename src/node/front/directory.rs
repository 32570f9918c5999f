//! The entries of a directory, for the replies of READDIR and READDIRPLUS.

use super::{Front, kind};
use crate::namespace::{Inode, ROOT};
use crate::read::Directory;
use bytes::Bytes;
use copperfs_fuse as fuse;
use copperfs_overlay::{Entry, Version};
use fuse::{Attr, DirEntry, DirPage, Ino};
use std::sync::Arc;

/// Makes a `d_ino` for a name whose attributes are not known yet.
const UNKNOWN_VERSION: Version = Version::from_data([0; 16]);
/// `.` and `..` come before the entries.
const DOTS: u64 = 2;

/// The entries of one directory from an offset to the end of one listing page.
pub(super) struct Page {
    pub(super) front: Front,
    pub(super) inode: Arc<Inode>,
    pub(super) directory: Arc<Directory>,
    /// The index of `directory.entries[0]` in the whole directory.
    pub(super) first: usize,
    pub(super) offset: u64,
}

impl Page {
    /// The index of the entry at directory offset `offset`.
    pub(super) fn entry_at(offset: u64) -> usize {
        crate::num::to_usize(offset.saturating_sub(DOTS))
    }

    fn at(&self, index: usize) -> Option<&Entry> {
        let offset = self.offset.checked_add(index as u64)?;
        let position = Self::entry_at(offset).checked_sub(self.first)?;
        let entry = self.directory.entries.get(position)?;
        (offset >= DOTS).then_some(entry)
    }

    fn dot(&self, name: &'static [u8], number: u64) -> DirEntry {
        DirEntry {
            name: Bytes::from_static(name),
            kind: fuse::FileKind::Directory,
            ino: Ino(number),
            plus: false,
        }
    }
}

impl DirPage for Page {
    fn entry(&self, index: usize) -> Option<DirEntry> {
        match self.offset.checked_add(index as u64)? {
            0 => return Some(self.dot(b".", self.inode.number)),
            1 => {
                let parent = self.inode.path().split().map(|(parent, _)| parent);
                let number = parent.and_then(|parent| self.front.inodes.number_at(&parent));
                return Some(self.dot(b"..", number.unwrap_or(ROOT)));
            }
            _ => {}
        }
        let entry = self.at(index)?;
        let parent = self.inode.path();
        let metadata = self.front.metadata();
        let attributes = metadata.peek_attributes(parent, &self.directory, entry);
        let version = attributes
            .as_ref()
            .map_or(UNKNOWN_VERSION, |found| found.value.version);
        let number = parent
            .join(&entry.name)
            .map_or(ROOT + 1, |path| self.front.inodes.number_of(&path, version));
        Some(DirEntry {
            name: entry.name.clone(),
            kind: kind(entry.kind),
            ino: Ino(number),
            plus: attributes.is_some(),
        })
    }

    fn look_up(&self, index: usize) -> Option<Attr> {
        if self.front.inodes.is_full() {
            return None;
        }
        let entry = self.at(index)?;
        let parent = &self.inode;
        let metadata = self.front.metadata();
        let attributes = metadata.peek_attributes(parent.path(), &self.directory, entry)?;
        (self.front).introduce(parent, &entry.name, attributes.leased())
    }
}
