//! The content of a store, in memory: the hash of each block of each file version, and the existing content
//! files. Pure: no I/O.
//!
//! A block costs about a quarter of a KiB here. A clear is a prefix and a moment: blocks that were requested
//! before it are no longer found under that prefix. So no path is stored for each file.

use super::record::{BlockLocation, BlockOrigin, Clear, ContentId, ContentKind, Record};
use crate::cache::{Cache, EvictionPolicy};
use crate::read::{FileId, FileRef};
use copperfs_overlay::{BLOCK_BYTES, ContentHash, ItemPath, ReadRequest};
use dashmap::{DashMap, DashSet};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A content file.
#[derive(Clone, Debug, Default)]
pub(super) struct ContentEntry {
    /// Its size in bytes.
    pub(super) len: u64,
    /// For a whole file that was verified in this process: the open file.
    pub(super) open: Option<Arc<OwnedFd>>,
    /// For a whole file: the hashes of its blocks.
    pub(super) blocks: Option<Arc<[ContentHash]>>,
    /// Distinguishes it from earlier and later files of the same name.
    pub(super) serial: u64,
}

impl ContentEntry {
    pub(super) fn block(len: u64) -> Self {
        Self {
            len,
            ..Self::default()
        }
    }

    /// A whole file; `open` must have been verified in this process.
    pub(super) fn whole(len: u64, open: Option<Arc<OwnedFd>>, blocks: Arc<[ContentHash]>) -> Self {
        Self {
            len,
            open,
            blocks: Some(blocks),
            ..Self::default()
        }
    }
}

/// Clears that are remembered one by one. When there are more, the oldest half become one clear of
/// everything up to the latest moment among them. That invalidates more than was requested, and never less.
const CLEARS_MAX: usize = 256;

/// The unit in which filesystems allocate space.
const DISK_BLOCK: u64 = 4096;

/// Disk space of a content file of `len` bytes.
pub(super) fn disk_bytes(len: u64) -> u64 {
    len.max(1).next_multiple_of(DISK_BLOCK)
}

/// The hashes of a file's blocks, by index. Most files have a single block.
enum Blocks {
    One(u64, ContentHash),
    Many(BTreeMap<u64, ContentHash>),
}

impl Blocks {
    fn get(&self, index: u64) -> Option<ContentHash> {
        match self {
            Self::One(at, hash) => (*at == index).then_some(*hash),
            Self::Many(all) => all.get(&index).copied(),
        }
    }

    fn insert(&mut self, index: u64, hash: ContentHash) {
        match self {
            Self::One(at, held) if *at == index => *held = hash,
            Self::One(at, held) => {
                *self = Self::Many(BTreeMap::from([(*at, *held), (index, hash)]));
            }
            Self::Many(all) => {
                all.insert(index, hash);
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (u64, ContentHash)> {
        let (one, many) = match self {
            Self::One(at, hash) => (Some((*at, *hash)), None),
            Self::Many(all) => (None, Some(all.iter().map(|(at, hash)| (*at, *hash)))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// One version of one file.
struct FileEntry {
    /// When its oldest block was requested.
    moment: u64,
    blocks: Blocks,
    /// The content file with all of its blocks, for passthrough.
    whole: Option<ContentHash>,
}

/// See the module.
pub(super) struct Catalog {
    files: DashMap<FileId, FileEntry>,
    /// The content files. Add and remove them only by the methods of the catalog.
    pub(super) contents: Cache<ContentId, ContentEntry>,
    /// Content files that a reader found damaged and that are still on the disk. A new file of the same name
    /// is held as usual.
    pub(super) condemned: DashSet<ContentId>,
    /// Blocks that are part of a whole file: the name of that file, and their index in it.
    in_whole: DashMap<ContentHash, (ContentHash, u64)>,
    /// Locked for a look-up only.
    clears: RwLock<Vec<Clear>>,
    /// The logical time. Each clear advances it.
    moment: AtomicU64,
    /// The next [`ContentEntry::serial`].
    next_serial: AtomicU64,
    /// Evicted files that are still open, with the disk space that they take until they are closed.
    lingering: Mutex<Vec<(Weak<OwnedFd>, u64)>>,
}

impl Catalog {
    pub(super) fn new(policy: EvictionPolicy, capacity_bytes: u64) -> Self {
        Self {
            files: DashMap::new(),
            contents: Cache::new(policy, capacity_bytes),
            condemned: DashSet::new(),
            in_whole: DashMap::new(),
            clears: RwLock::default(),
            moment: AtomicU64::new(1),
            next_serial: AtomicU64::new(0),
            lingering: Mutex::default(),
        }
    }

    /// The moment of a request that begins now. Blocks that were requested before a clear are not kept after
    /// it.
    pub(super) fn moment(&self) -> u64 {
        self.moment.load(Ordering::Acquire)
    }

    /// Advances the time at least to `moment`, which an earlier process has reached.
    pub(super) fn reach(&self, moment: u64) {
        self.moment.fetch_max(moment, Ordering::AcqRel);
    }

    /// Invalidates the blocks below `path` that were requested up to now. Returns the record of it.
    pub(super) fn clear(&self, path: &ItemPath) -> Clear {
        let clear = Clear {
            path: path.clone(),
            until: self.moment.fetch_add(1, Ordering::AcqRel),
        };
        self.add_clear(clear.clone());
        clear
    }

    pub(super) fn add_clear(&self, clear: Clear) {
        self.reach(clear.until + 1);
        let mut clears = self.clears.write();
        clears.retain(|other| !(other.until <= clear.until && other.path.is_within(&clear.path)));
        clears.push(clear);
        if clears.len() > CLEARS_MAX {
            let newest = clears.drain(..CLEARS_MAX / 2).map(|old| old.until).max();
            let everything = Clear {
                path: ItemPath::root(),
                until: newest.unwrap_or_default(),
            };
            clears.insert(0, everything);
        }
    }

    fn is_void(&self, path: &ItemPath, moment: u64) -> bool {
        let clears = self.clears.read();
        clears
            .iter()
            .any(|clear| moment <= clear.until && path.is_within(&clear.path))
    }

    /// Whether blocks that were requested at `moment` are invalid for every path.
    fn is_void_everywhere(&self, moment: u64) -> bool {
        self.is_void(&ItemPath::root(), moment)
    }

    /// Where block `index` of `file` is.
    pub(super) fn find(&self, file: &FileRef, index: u64) -> Option<BlockLocation> {
        let hash = self.hash_of(file, index)?;
        self.find_content(hash, ReadRequest::block_len(file.size, index))
    }

    /// The hash of block `index` of `file`, even if the block was evicted. It is known until the index is
    /// compacted without it.
    pub(super) fn hash_of(&self, file: &FileRef, index: u64) -> Option<ContentHash> {
        let record = self.files.get(&file.id())?;
        let hash = record.blocks.get(index)?;
        let moment = record.moment;
        drop(record);
        (!self.is_void(&file.path, moment)).then_some(hash)
    }

    /// Like [`Catalog::hash_of`], but ignores clears.
    pub(super) fn recorded_hash(&self, file: &FileId, index: u64) -> Option<ContentHash> {
        self.files.get(file)?.blocks.get(index)
    }

    /// Calls `each` with the known blocks of every file, including evicted ones.
    pub(super) fn for_each_file(&self, mut each: impl FnMut(FileId, Vec<(u64, ContentHash)>)) {
        for file in &self.files {
            each(*file.key(), file.blocks.iter().collect());
        }
    }

    /// The length of the block with this hash, if it has a content file.
    pub(super) fn len_of(&self, hash: ContentHash) -> Option<u64> {
        Some(self.contents.peek(&ContentId::block(hash))?.len)
    }

    /// Forgets a file. Returns its blocks.
    pub(super) fn forget_file(&self, file: &FileId) -> Vec<(u64, ContentHash)> {
        let removed = self.files.remove(file);
        removed.map_or_else(Vec::new, |(_, entry)| entry.blocks.iter().collect())
    }

    /// Where a block with this hash is.
    pub(super) fn find_content(&self, hash: ContentHash, len: u64) -> Option<BlockLocation> {
        let mut content = ContentId::block(hash);
        let mut offset = 0;
        let entry = match self.contents.get(&content) {
            Some(entry) => Some(entry).filter(|entry| entry.len == len)?,
            None => {
                let (whole, index) = *self.in_whole.get(&hash)?;
                (content, offset) = (ContentId::whole(whole), index * BLOCK_BYTES);
                self.contents.get(&content)?
            }
        };
        Some(BlockLocation {
            content,
            offset,
            len,
            hash,
            serial: entry.serial,
        })
    }

    /// Whether a content file has a block with this hash.
    pub(super) fn has_content(&self, hash: ContentHash) -> bool {
        self.contents.contains(&ContentId::block(hash)) || self.in_whole.contains_key(&hash)
    }

    /// The content file of a block of `len` bytes, if it has another size: it was torn when it was adopted
    /// from a directory without an index.
    pub(super) fn torn(&self, hash: ContentHash, len: u64) -> Option<ContentId> {
        (self.len_of(hash)? != len).then(|| ContentId::block(hash))
    }

    /// Records that a block of a file version has this hash, unless everything was cleared since it was
    /// requested.
    pub(super) fn record(&self, block: &BlockOrigin, hash: ContentHash) {
        let &BlockOrigin { moment, index, .. } = block;
        if self.is_void_everywhere(moment) {
            return;
        }
        let new = || FileEntry {
            moment,
            blocks: Blocks::One(index, hash),
            whole: None,
        };
        let mut file = self.files.entry(block.file).or_insert_with(new);
        // Which clears concern this file is unknown here, because the entry has no path. Blocks that were
        // requested before and after a clear are never mixed: the newer ones stay.
        if self.clears_between(moment, file.moment) {
            return;
        }
        if self.clears_between(file.moment, moment) {
            *file = new();
        } else {
            file.blocks.insert(index, hash);
        }
    }

    fn clears_between(&self, early: u64, late: u64) -> bool {
        if early >= late {
            return false;
        }
        let clears = self.clears.read();
        clears
            .iter()
            .any(|clear| early <= clear.until && clear.until < late)
    }

    /// Adds a content file. Returns the content files that must be removed for it, or itself if it does not
    /// fit.
    pub(super) fn add(&self, content: ContentId, mut entry: ContentEntry) -> Vec<ContentId> {
        self.condemned.remove(&content);
        entry.serial = self.next_serial.fetch_add(1, Ordering::Relaxed);
        let weight = disk_bytes(entry.len);
        for (index, hash) in (0..).zip(entry.blocks.iter().flat_map(|blocks| blocks.iter())) {
            self.in_whole.insert(*hash, (content.name, index));
        }
        let mut evicted = Vec::new();
        let on_evicted = |content, entry| {
            self.dropped(&content, &entry);
            evicted.push(content);
        };
        if !(self.contents).insert_evicting(content, entry, weight, on_evicted) {
            evicted.push(content);
        }
        evicted
    }

    /// Evicts content files until all of them take at most `bytes`, including those that were evicted before
    /// and are still open. Returns the evicted ones.
    pub(super) fn shrink_to(&self, bytes: u64) -> Vec<ContentId> {
        let mut evicted = Vec::new();
        let bytes = bytes.saturating_sub(self.lingering_bytes());
        self.contents.shrink_to(bytes, |content, entry| {
            self.dropped(&content, &entry);
            evicted.push(content);
        });
        evicted
    }

    /// Forgets the content file `serial` of this name, which is damaged. Until the file is removed, it is not
    /// adopted from the directory. Returns whether it was held: of several readers that find a file damaged,
    /// only the first one gets `true`, and a file that has replaced it is not touched.
    pub(super) fn condemn(&self, content: ContentId, serial: u64) -> bool {
        let held = self.contents.peek(&content);
        if held.is_none_or(|held| held.serial != serial) {
            return false;
        }
        // Before the entry is removed, so that the sweep never finds the file neither held nor condemned.
        self.condemned.insert(content);
        self.forget(&content)
    }

    /// Removes the mark of a condemned content file. Returns whether the file must be deleted: no new file
    /// has replaced it.
    pub(super) fn acquit(&self, content: &ContentId) -> bool {
        self.condemned.remove(content).is_some() && !self.contents.contains(content)
    }

    /// Forgets a content file. Returns whether it was held.
    pub(super) fn forget(&self, content: &ContentId) -> bool {
        let removed = self.contents.take(content);
        removed
            .inspect(|entry| self.dropped(content, entry))
            .is_some()
    }

    /// Cleans up after an entry was removed from `contents`.
    fn dropped(&self, content: &ContentId, entry: &ContentEntry) {
        for hash in entry.blocks.iter().flat_map(|blocks| blocks.iter()) {
            self.in_whole
                .remove_if(hash, |_, (whole, _)| *whole == content.name);
        }
        if let Some(open) = &entry.open {
            let lingering = (Arc::downgrade(open), disk_bytes(entry.len));
            self.lingering.lock().push(lingering);
        }
    }

    /// Disk space of evicted files that are still open.
    pub(super) fn lingering_bytes(&self) -> u64 {
        let mut lingering = self.lingering.lock();
        lingering.retain(|(open, _)| open.strong_count() > 0);
        lingering.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The content file with all of `file`.
    pub(super) fn whole_of(&self, file: &FileRef) -> Option<(ContentId, ContentEntry)> {
        let (whole, moment) = {
            let entry = self.files.get(&file.id())?;
            (entry.whole?, entry.moment)
        };
        if self.is_void(&file.path, moment) {
            return None;
        }
        let content = ContentId::whole(whole);
        let entry = self.contents.get(&content)?;
        (entry.len == file.size).then_some((content, entry))
    }

    /// Records that the content file `name` has all `blocks` of `file`.
    pub(super) fn record_whole(
        &self,
        file: FileId,
        moment: u64,
        name: ContentHash,
        blocks: &[ContentHash],
    ) {
        for (index, hash) in (0..).zip(blocks) {
            self.record(&BlockOrigin::new(file, moment, index), *hash);
        }
        // The file may have been cleared and requested again meanwhile.
        if let Some(mut entry) = self.files.get_mut(&file)
            && !self.clears_between(moment, entry.moment)
            && !self.is_void_everywhere(moment)
        {
            entry.whole = Some(name);
        }
    }

    /// Calls `each` with every record that a later process needs. The records of content files precede those
    /// that refer to them. File versions without any content file are forgotten.
    pub(super) fn for_each_record(&self, mut each: impl FnMut(&Record)) {
        for clear in self.clears.read().clone() {
            each(&Record::Cleared(clear));
        }
        self.contents.for_each(|content, entry| {
            if let (ContentKind::Block, Ok(len)) = (content.kind, u32::try_from(entry.len)) {
                let hash = content.name;
                each(&Record::Content { hash, len });
            }
        });
        self.files.retain(|id, file| {
            let moment = file.moment;
            // Hashes of evicted blocks are kept only as long as the file has any block.
            let is_held = file.blocks.iter().any(|(_, hash)| self.has_content(hash));
            if !is_held || self.is_void_everywhere(moment) {
                return false;
            }
            let whole = file.whole.and_then(|name| {
                let entry = self.contents.peek(&ContentId::whole(name))?;
                Some(Record::Whole {
                    file: *id,
                    moment,
                    name,
                    len: entry.len,
                    blocks: entry.blocks?.to_vec(),
                })
            });
            match whole {
                Some(whole) => each(&whole),
                None => file.blocks.iter().for_each(|(index, hash)| {
                    let origin = BlockOrigin::new(*id, moment, index);
                    each(&Record::Block { origin, hash });
                }),
            }
            true
        });
    }

    /// All content files.
    pub(super) fn content_ids(&self) -> Vec<ContentId> {
        let mut all = Vec::new();
        self.contents.for_each(|content, _| all.push(*content));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copperfs_overlay::Version;

    fn hash(byte: u8) -> ContentHash {
        ContentHash([byte; 32])
    }

    fn file(path: &str) -> FileRef {
        let path = ItemPath::parse(path.as_bytes()).unwrap();
        FileRef::new(path, Version::from_data([0; 16]), 100, None)
    }

    fn catalog() -> Catalog {
        Catalog::new(EvictionPolicy::Lru, 10 * DISK_BLOCK)
    }

    fn put(catalog: &Catalog, file: &FileRef, byte: u8) {
        let moment = catalog.moment();
        catalog.add(ContentId::block(hash(byte)), ContentEntry::block(100));
        catalog.record(&BlockOrigin::new(file.id(), moment, 0), hash(byte));
    }

    #[test]
    fn a_clear_hides_only_paths_below_it() {
        let catalog = catalog();
        let (a, b) = (file("/x/a"), file("/y/b"));
        put(&catalog, &a, 1);
        put(&catalog, &b, 2);
        catalog.clear(&ItemPath::parse(b"/x").unwrap());
        assert_eq!(catalog.find(&a, 0), None);
        assert!(catalog.find(&b, 0).is_some());
        put(&catalog, &a, 1);
        assert!(catalog.find(&a, 0).is_some(), "requested after the clear");
    }

    #[test]
    fn blocks_requested_before_a_clear_stay_hidden() {
        let catalog = catalog();
        let a = file("/x/a");
        let moment = catalog.moment();
        catalog.clear(&ItemPath::root());
        catalog.add(ContentId::block(hash(1)), ContentEntry::block(100));
        catalog.record(&BlockOrigin::new(a.id(), moment, 0), hash(1));
        assert_eq!(catalog.find(&a, 0), None);
    }

    #[test]
    fn a_block_from_after_a_clear_does_not_revive_older_ones() {
        let catalog = catalog();
        let path = ItemPath::parse(b"/x/a").unwrap();
        let a = FileRef::new(path.clone(), Version::from_data([0; 16]), 2 << 20, None);
        for (index, byte) in [(0, 1), (1, 2)] {
            catalog.add(ContentId::block(hash(byte)), ContentEntry::block(1 << 20));
            catalog.record(
                &BlockOrigin::new(a.id(), catalog.moment(), index),
                hash(byte),
            );
        }
        catalog.clear(&path);
        catalog.record(&BlockOrigin::new(a.id(), catalog.moment(), 0), hash(3));
        assert_eq!(catalog.find(&a, 1), None);
        // A block that was requested before the clear arrives late.
        catalog.record(&BlockOrigin::new(a.id(), 1, 1), hash(2));
        assert_eq!(catalog.find(&a, 1), None);
    }

    #[test]
    fn very_many_clears_hide_more_and_never_less() {
        let catalog = catalog();
        let a = file("/x0/a");
        put(&catalog, &a, 1);
        for number in 0..2 * CLEARS_MAX {
            let path = ItemPath::parse(format!("/x{number}").as_bytes()).unwrap();
            catalog.clear(&path);
        }
        assert_eq!(catalog.find(&a, 0), None);
        assert!(catalog.clears.read().len() <= CLEARS_MAX + 1);
        put(&catalog, &a, 1);
        assert!(catalog.find(&a, 0).is_some());
    }

    #[test]
    fn equal_bytes_share_one_content_file() {
        let catalog = catalog();
        let (a, b) = (file("/x/a"), file("/y/b"));
        put(&catalog, &a, 1);
        put(&catalog, &b, 1);
        assert_eq!(catalog.contents.stats().entries, 1);
        catalog.forget(&ContentId::block(hash(1)));
        assert_eq!((catalog.find(&a, 0), catalog.find(&b, 0)), (None, None));
    }

    #[test]
    fn an_evicted_open_file_counts_until_it_is_closed() {
        let catalog = catalog();
        let open = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let whole = ContentEntry::whole(
            4 * DISK_BLOCK,
            Some(Arc::clone(&open)),
            Arc::from([hash(9)]),
        );
        assert_eq!(catalog.add(ContentId::whole(hash(8)), whole), []);
        assert!(catalog.has_content(hash(9)));
        assert_eq!(catalog.shrink_to(0), [ContentId::whole(hash(8))]);
        assert!(!catalog.has_content(hash(9)));
        assert_eq!(catalog.lingering_bytes(), 4 * DISK_BLOCK);
        drop(open);
        assert_eq!(catalog.lingering_bytes(), 0);
    }
}
