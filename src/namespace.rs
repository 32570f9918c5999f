//! Inodes: the numbers by which the kernel knows what it has looked up.
//!
//! Purpose: give every version of every file a number of its own, count the kernel's references, and
//! find what must be invalidated when a part of the namespace is cleared. In memory only, no I/O.
//!
//! Invariants: a number belongs to one (path, version) and is never given to another while anyone can
//! hold it; a directory keeps its number while its entries come and go. Numbers are hashes, so that
//! they are the same on every node and after a restart.

use crate::read::{Edition, FileId, FileRef, ReadAhead};
use copperfs_overlay::{Attributes, FileKind, ItemPath, Version};
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use std::sync::Arc;

/// The number of the mount's root directory.
pub const ROOT: u64 = 1;

/// Numbers below this one are never made from a hash.
const FIRST_HASHED: u64 = 1 << 16;

/// One version of one file, as the kernel knows it.
#[derive(Debug)]
pub struct Inode {
    /// Its number.
    pub number: u64,
    /// Its attributes.
    pub attributes: Attributes,
    /// Where its bytes are.
    pub file: FileRef,
    /// How far its readers are.
    pub ahead: ReadAhead,
}

impl Inode {
    /// `file` is the one that `attributes` describe.
    fn new(number: u64, file: FileRef, attributes: Attributes) -> Self {
        Self {
            number,
            attributes,
            file,
            ahead: ReadAhead::default(),
        }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &ItemPath {
        &self.file.path
    }

    fn is_of(&self, file: &FileRef) -> bool {
        self.file.version == file.version && self.file.path == file.path
    }
}

struct Slot {
    inode: Arc<Inode>,
    /// Look-ups that the kernel has not forgotten yet.
    references: u64,
    /// Its bytes were pushed into the page cache since the kernel learned of it.
    pushed: bool,
    /// A directory that was cleared: its attributes are to be asked for again.
    outdated: bool,
    /// Of a directory: which of its listings the kernel may have cached.
    listed: Option<Edition>,
}

impl Slot {
    fn new(inode: Arc<Inode>) -> Self {
        Self {
            inode,
            references: 1,
            pushed: false,
            outdated: false,
            listed: None,
        }
    }

    /// Takes attributes that are newer, of the same version.
    fn renew(&mut self, attributes: Attributes) {
        self.outdated = false;
        if self.inode.attributes != attributes {
            let file = file_of(self.inode.path(), &attributes);
            self.inode = Arc::new(Inode::new(self.inode.number, file, attributes));
        }
    }
}

/// All inodes that the kernel holds.
pub struct InodeTable {
    slots: DashMap<u64, Slot>,
    /// The newest number of each path.
    numbers: DashMap<ItemPath, u64>,
}

impl std::fmt::Debug for InodeTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InodeTable")
            .field("inodes", &self.slots.len())
            .finish_non_exhaustive()
    }
}

impl InodeTable {
    /// A table that knows the root directory, for ever.
    #[must_use]
    pub fn new(root: Attributes) -> Self {
        let table = Self {
            slots: DashMap::new(),
            numbers: DashMap::new(),
        };
        let file = file_of(&ItemPath::root(), &root);
        let inode = Arc::new(Inode::new(ROOT, file, root));
        drop(table.slots.insert(ROOT, Slot::new(inode)));
        table.numbers.insert(ItemPath::root(), ROOT);
        table
    }

    /// The inode under `number`, if the kernel may still hold it.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<Arc<Inode>> {
        self.slots.get(&number).map(|slot| Arc::clone(&slot.inode))
    }

    /// The number that `path` in state `version` has or would have.
    #[must_use]
    pub fn number_of(path: &ItemPath, version: Version) -> u64 {
        if path.is_root() {
            ROOT
        } else {
            hashed(path, version)
        }
    }

    /// The number of a file.
    #[must_use]
    pub fn number_of_file(file: &FileRef) -> u64 {
        hashed(&file.path, file.version)
    }

    /// The kernel learns of `path`: takes one reference on its inode.
    pub fn learn(&self, path: &ItemPath, attributes: Attributes) -> Arc<Inode> {
        let file = file_of(path, &attributes);
        let mut number = hashed(path, file.version);
        loop {
            match self.slots.entry(number) {
                Entry::Occupied(mut entry) => {
                    let slot = entry.get_mut();
                    if !slot.inode.is_of(&file) {
                        number = number.wrapping_add(1).max(FIRST_HASHED);
                        continue;
                    }
                    slot.references += 1;
                    slot.renew(attributes);
                    return Arc::clone(&slot.inode);
                }
                Entry::Vacant(entry) => {
                    let inode = Arc::new(Inode::new(number, file, attributes));
                    let slot = Slot::new(Arc::clone(&inode));
                    drop(entry.insert(slot));
                    self.numbers.insert(path.clone(), number);
                    return inode;
                }
            }
        }
    }

    /// The kernel was told to drop what it holds of the inode: its pages may be pushed again, and a
    /// directory's attributes are out of date.
    pub fn invalidated(&self, number: u64) {
        if let Some(mut slot) = self.slots.get_mut(&number) {
            slot.pushed = false;
            slot.listed = None;
            slot.outdated = slot.inode.attributes.kind == FileKind::Directory;
        }
    }

    /// The kernel reads `edition` of directory `number` from its beginning.
    pub fn listed(&self, number: u64, edition: Edition) {
        if let Some(mut slot) = self.slots.get_mut(&number) {
            slot.listed = Some(edition);
        }
    }

    /// Which listing of directory `number` the kernel may have cached.
    #[must_use]
    pub fn listed_edition(&self, number: u64) -> Option<Edition> {
        self.slots.get(&number)?.listed
    }

    /// Whether a directory's attributes are out of date.
    #[must_use]
    pub fn is_outdated(&self, number: u64) -> bool {
        self.slots.get(&number).is_some_and(|slot| slot.outdated)
    }

    /// Takes newer attributes of `number`, unless they are of another version: that one has a number
    /// of its own, and this inode stays as it was. Gives what it is now.
    pub fn renew(&self, number: u64, attributes: Attributes) -> Option<Arc<Inode>> {
        let mut slot = self.slots.get_mut(&number)?;
        if slot.inode.attributes.version == attributes.version || number == ROOT {
            slot.renew(attributes);
        }
        Some(Arc::clone(&slot.inode))
    }

    /// The kernel drops `count` references on `number`. Gives the inode when they were the last.
    pub fn forget(&self, number: u64, count: u64) -> Option<Arc<Inode>> {
        if number == ROOT {
            return None;
        }
        let mut slot = self.slots.get_mut(&number)?;
        slot.references = slot.references.saturating_sub(count);
        if slot.references > 0 {
            return None;
        }
        drop(slot);
        let (_, slot) = self
            .slots
            .remove_if(&number, |_, slot| slot.references == 0)?;
        self.numbers
            .remove_if(slot.inode.path(), |_, newest| *newest == number);
        Some(slot.inode)
    }

    /// Whether the bytes of `number` may be pushed now: once, until the kernel forgets the inode or
    /// its pages are invalidated. Counts as pushed from then on.
    pub fn claim_push(&self, number: u64) -> bool {
        self.slots
            .get_mut(&number)
            .is_some_and(|mut slot| !std::mem::replace(&mut slot.pushed, true))
    }

    /// The newest number of `path`, if the kernel holds it.
    #[must_use]
    pub fn number_at(&self, path: &ItemPath) -> Option<u64> {
        self.numbers.get(path).map(|number| *number)
    }

    /// Everything the kernel holds at `path` and below, old versions included.
    #[must_use]
    pub fn below(&self, path: &ItemPath) -> Vec<Arc<Inode>> {
        self.slots
            .iter()
            .filter(|slot| slot.inode.path().is_within(path))
            .map(|slot| Arc::clone(&slot.inode))
            .collect()
    }
}

fn file_of(path: &ItemPath, attributes: &Attributes) -> FileRef {
    FileRef::of(path.clone(), attributes)
}

/// 63 bits of the hash of path and version, so that it fits everyone's `ino_t`.
fn hashed(path: &ItemPath, version: Version) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&FileId::of_place(path, version).as_bytes()[..8]);
    (u64::from_le_bytes(number) >> 1).max(FIRST_HASHED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use copperfs_overlay::Timestamp;

    fn attributes(state: u8, size: u64) -> Attributes {
        let time = Timestamp {
            seconds: 0,
            nanoseconds: 0,
        };
        Attributes {
            kind: FileKind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            links: 1,
            device: 0,
            size,
            blocks: 0,
            block_size: 4096,
            atime: time,
            mtime: time,
            ctime: time,
            version: Version::from_data([state; 16]),
            provisional: false,
            link_target: None,
            content: None,
        }
    }

    fn path(text: &str) -> ItemPath {
        ItemPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_version_is_an_inode() {
        let table = InodeTable::new(attributes(0, 0));
        let old = table.learn(&path("a/b"), attributes(1, 5));
        let again = table.learn(&path("a/b"), attributes(1, 5));
        let new = table.learn(&path("a/b"), attributes(2, 5));
        let other = table.learn(&path("a/c"), attributes(1, 5));
        assert_eq!(old.number, again.number);
        assert_ne!(old.number, new.number);
        assert_ne!(old.number, other.number);
        assert_eq!(table.number_at(&path("a/b")), Some(new.number));
        assert_eq!(
            InodeTable::number_of(&path("a/b"), Version::from_data([1; 16])),
            old.number
        );
    }

    #[test]
    fn an_inode_lives_until_the_last_reference_is_forgotten() {
        let table = InodeTable::new(attributes(0, 0));
        let number = table.learn(&path("f"), attributes(1, 5)).number;
        table.learn(&path("f"), attributes(1, 5));
        assert!(table.forget(number, 1).is_none());
        assert!(table.get(number).is_some());
        assert!(table.forget(number, 1).is_some());
        assert!(table.get(number).is_none());
        assert_eq!(table.number_at(&path("f")), None);
        assert!(table.forget(ROOT, 1000).is_none());
        assert!(table.get(ROOT).is_some());
    }

    #[test]
    fn forgetting_an_old_version_keeps_the_new_ones_number() {
        let table = InodeTable::new(attributes(0, 0));
        let old = table.learn(&path("f"), attributes(1, 5)).number;
        let new = table.learn(&path("f"), attributes(2, 5)).number;
        table.forget(old, 1);
        assert_eq!(table.number_at(&path("f")), Some(new));
    }

    #[test]
    fn a_push_is_claimed_once_per_life() {
        let table = InodeTable::new(attributes(0, 0));
        let number = table.learn(&path("a"), attributes(1, 60)).number;
        assert!(table.claim_push(number));
        assert!(!table.claim_push(number));
        table.invalidated(number);
        assert!(table.claim_push(number));
        table.forget(number, 1);
        assert!(!table.claim_push(number), "unknown");
        table.learn(&path("a"), attributes(1, 60));
        assert!(table.claim_push(number));
    }

    #[test]
    fn a_cleared_directory_takes_new_attributes_of_its_own_version_only() {
        let directory = |state, size| Attributes {
            kind: FileKind::Directory,
            ..attributes(state, size)
        };
        let table = InodeTable::new(directory(0, 0));
        let number = table.learn(&path("d"), directory(1, 5)).number;
        table.invalidated(number);
        assert!(table.is_outdated(number));
        let other = table.renew(number, directory(2, 6)).unwrap();
        assert_eq!(other.attributes.size, 5);
        let renewed = table.renew(number, directory(1, 6)).unwrap();
        assert_eq!(renewed.attributes.size, 6);
        assert!(!table.is_outdated(number));
    }

    #[test]
    fn what_lies_below_is_by_components_not_by_letters() {
        let table = InodeTable::new(attributes(0, 0));
        table.learn(&path("mnt3/a"), attributes(1, 5));
        table.learn(&path("mnt3x"), attributes(1, 5));
        assert_eq!(table.below(&path("mnt3")).len(), 1);
        assert_eq!(table.below(&ItemPath::root()).len(), 3);
    }
}
