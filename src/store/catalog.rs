//! What a store holds, in memory: which block of which file version has which hash, and which content
//! files exist. Pure: no I/O.
//!
//! A block costs about a quarter of a KiB here. A clear is a prefix and a moment: what was asked for
//! before it is not found under that prefix any more, so no path is kept for each file.

use super::record::Record;
use super::unit::{Kind, Unit};
use crate::cache::{Cache, CacheStats, EvictionPolicy};
use crate::read::{FileId, FileRef};
use copperfs_overlay::{ContentHash, ItemPath, ReadRequest};
use dashmap::{DashMap, DashSet};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Where the bytes of a block are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) unit: Unit,
    /// Where they begin in that file.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// What they must hash to.
    pub(super) hash: ContentHash,
    /// The [`Held::serial`] of that file.
    pub(super) serial: u64,
}

/// A content file as it is held.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// Bytes in it.
    pub(super) len: u64,
    /// Of a whole file: open, once it was verified in this process.
    pub(super) open: Option<Arc<OwnedFd>>,
    /// Of a whole file: its blocks.
    pub(super) blocks: Option<Arc<[ContentHash]>>,
    /// Which file of this name it is: the catalog numbers them as they come.
    pub(super) serial: u64,
}

impl Held {
    pub(super) fn block(len: u64) -> Self {
        Self {
            len,
            open: None,
            blocks: None,
            serial: 0,
        }
    }

    /// `open` only if it was verified in this process.
    pub(super) fn whole(len: u64, open: Option<Arc<OwnedFd>>, blocks: Arc<[ContentHash]>) -> Self {
        Self {
            len,
            open,
            blocks: Some(blocks),
            serial: 0,
        }
    }
}

/// What a clear made void.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Cleared {
    pub(super) path: ItemPath,
    /// What was asked for up to this moment.
    pub(super) until: u64,
}

/// Clears that are remembered one by one. With more, the oldest half become one clear of everything as
/// old as they are: that drops more than was asked for, and never less.
const CLEARS_MAX: usize = 256;

/// The disk that a small file takes beside its bytes, and the unit in which disks are filled.
const DISK_BLOCK: u64 = 4096;

/// Disk that a content file of `len` bytes takes.
pub(super) fn disk_bytes(len: u64) -> u64 {
    len.max(1).next_multiple_of(DISK_BLOCK)
}

#[derive(Clone, Debug)]
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
#[derive(Clone, Debug)]
struct Known {
    /// When its oldest block was asked for.
    moment: u64,
    blocks: Blocks,
    /// The content file that holds all of it, for passthrough.
    whole: Option<ContentHash>,
}

/// See the module.
pub(super) struct Catalog {
    files: DashMap<FileId, Known>,
    units: Cache<Unit, Held>,
    /// Content files that a reader found damaged and that are still on the disk. A new file in the place of
    /// one is held as usual.
    condemned: DashSet<Unit>,
    /// Blocks that lie in a whole file.
    inside: DashMap<ContentHash, (ContentHash, u64)>,
    /// Guards the list; held for a look only.
    clears: RwLock<Vec<Cleared>>,
    moment: AtomicU64,
    /// Content files that came, for [`Held::serial`].
    came: AtomicU64,
    /// Evicted files that somebody has open still: they take disk until they are closed.
    lingering: Mutex<Vec<(Weak<OwnedFd>, u64)>>,
}

impl Catalog {
    pub(super) fn new(policy: EvictionPolicy, capacity_bytes: u64) -> Self {
        Self {
            files: DashMap::new(),
            units: Cache::new(policy, capacity_bytes),
            condemned: DashSet::new(),
            inside: DashMap::new(),
            clears: RwLock::default(),
            moment: AtomicU64::new(1),
            came: AtomicU64::new(0),
            lingering: Mutex::default(),
        }
    }

    pub(super) fn moment(&self) -> u64 {
        self.moment.load(Ordering::Acquire)
    }

    /// Time has come at least so far, in an earlier process.
    pub(super) fn reach(&self, moment: u64) {
        self.moment.fetch_max(moment, Ordering::AcqRel);
    }

    /// What was asked for below `path` up to now is void; gives that moment.
    pub(super) fn clear(&self, path: &ItemPath) -> u64 {
        let until = self.moment.fetch_add(1, Ordering::AcqRel);
        self.cleared(Cleared {
            path: path.clone(),
            until,
        });
        until
    }

    pub(super) fn cleared(&self, cleared: Cleared) {
        self.reach(cleared.until + 1);
        let mut clears = self.clears.write();
        clears
            .retain(|other| !(other.until <= cleared.until && other.path.is_within(&cleared.path)));
        clears.push(cleared);
        if clears.len() > CLEARS_MAX {
            let newest = clears.drain(..CLEARS_MAX / 2).map(|old| old.until).max();
            let everything = Cleared {
                path: ItemPath::root(),
                until: newest.unwrap_or_default(),
            };
            clears.insert(0, everything);
        }
    }

    /// The clears that are remembered.
    pub(super) fn clears(&self) -> Vec<Cleared> {
        self.clears.read().clone()
    }

    fn is_void(&self, path: &ItemPath, moment: u64) -> bool {
        let clears = self.clears.read();
        clears
            .iter()
            .any(|cleared| moment <= cleared.until && path.is_within(&cleared.path))
    }

    /// Whether what was asked for at `moment` is void for every path.
    fn is_void_everywhere(&self, moment: u64) -> bool {
        self.is_void(&ItemPath::root(), moment)
    }

    /// Where block `index` of `file` is.
    pub(super) fn find(&self, file: &FileRef, index: u64) -> Option<Place> {
        let hash = self.hash_of(file, index)?;
        self.find_content(hash, ReadRequest::block_len(file.size, index))
    }

    /// What block `index` of `file` hashes to, whether it is here or was evicted: known until the index
    /// is written anew without it.
    pub(super) fn hash_of(&self, file: &FileRef, index: u64) -> Option<ContentHash> {
        let record = self.files.get(&file.id())?;
        let hash = record.blocks.get(index)?;
        let moment = record.moment;
        drop(record);
        (!self.is_void(&file.path, moment)).then_some(hash)
    }

    /// As [`Catalog::hash_of`], whatever was cleared.
    pub(super) fn noted(&self, file: &FileId, index: u64) -> Option<ContentHash> {
        self.files.get(file)?.blocks.get(index)
    }

    /// All blocks that are known of every file, whether they are here or not.
    pub(super) fn for_each_file(&self, mut each: impl FnMut(FileId, Vec<(u64, ContentHash)>)) {
        for file in &self.files {
            each(*file.key(), file.blocks.iter().collect());
        }
    }

    /// Bytes of the block with this hash, if it is here.
    pub(super) fn len_of(&self, hash: ContentHash) -> Option<u64> {
        Some(self.units.peek(&Unit::block(hash))?.len)
    }

    /// Forgets what is known of a file; gives its blocks.
    pub(super) fn forget_file(&self, file: &FileId) -> Vec<(u64, ContentHash)> {
        let known = self.files.remove(file);
        known.map_or_else(Vec::new, |(_, known)| known.blocks.iter().collect())
    }

    /// Where a block with this hash is.
    pub(super) fn find_content(&self, hash: ContentHash, len: u64) -> Option<Place> {
        let unit = Unit::block(hash);
        if let Some(held) = self.units.get(&unit) {
            return (held.len == len).then_some(Place {
                unit,
                offset: 0,
                len,
                hash,
                serial: held.serial,
            });
        }
        let (whole, index) = *self.inside.get(&hash)?;
        let unit = Unit::whole(whole);
        let held = self.units.get(&unit)?;
        Some(Place {
            unit,
            offset: index * copperfs_overlay::BLOCK_BYTES,
            len,
            hash,
            serial: held.serial,
        })
    }

    pub(super) fn holds_unit(&self, unit: &Unit) -> bool {
        self.units.contains(unit)
    }

    /// Whether the bytes of a block with this hash are here.
    pub(super) fn has_content(&self, hash: ContentHash) -> bool {
        self.units.contains(&Unit::block(hash)) || self.inside.contains_key(&hash)
    }

    /// The content file that should hold a block of `len` bytes and has another size: adopted torn, from
    /// a directory whose index was lost.
    pub(super) fn torn(&self, hash: ContentHash, len: u64) -> Option<Unit> {
        let unit = Unit::block(hash);
        let held = self.units.peek(&unit)?;
        (held.len != len).then_some(unit)
    }

    /// Block `index` of a file version has these bytes. Not noted if a clear of everything came since.
    pub(super) fn note(&self, file: FileId, moment: u64, index: u64, hash: ContentHash) {
        if self.is_void_everywhere(moment) {
            return;
        }
        let mut record = self.files.entry(file).or_insert_with(|| Known {
            moment,
            blocks: Blocks::One(index, hash),
            whole: None,
        });
        if self.clears_between(moment, record.moment) {
            return;
        }
        // What was asked for before and after a clear may have the same version and path, and the old
        // blocks must not come back: the record begins anew.
        if self.clears_between(record.moment, moment) {
            *record = Known {
                moment,
                blocks: Blocks::One(index, hash),
                whole: None,
            };
            return;
        }
        record.blocks.insert(index, hash);
    }

    fn clears_between(&self, early: u64, late: u64) -> bool {
        if early >= late {
            return false;
        }
        let clears = self.clears.read();
        clears
            .iter()
            .any(|cleared| early <= cleared.until && cleared.until < late)
    }

    /// A content file exists now. Gives those that must go for it.
    pub(super) fn hold(&self, unit: Unit, mut held: Held) -> Vec<Unit> {
        self.condemned.remove(&unit);
        held.serial = self.came.fetch_add(1, Ordering::Relaxed);
        let weight = disk_bytes(held.len);
        if let Some(blocks) = &held.blocks {
            for (index, hash) in (0..).zip(blocks.iter()) {
                self.inside.insert(*hash, (unit.name, index));
            }
        }
        let mut gone = Vec::new();
        let admitted = self
            .units
            .insert_evicting(unit, held, weight, |unit, held| {
                self.let_go(&unit, &held);
                gone.push(unit);
            });
        if !admitted {
            gone.push(unit);
        }
        gone
    }

    /// Takes what is to be evicted so that all content files take at most `bytes`, open ones that were
    /// evicted before included.
    pub(super) fn shrink_to(&self, bytes: u64) -> Vec<Unit> {
        let mut gone = Vec::new();
        let held = bytes.saturating_sub(self.lingering_bytes());
        self.units.shrink_to(held, |unit, held| {
            self.let_go(&unit, &held);
            gone.push(unit);
        });
        gone
    }

    /// Forgets the content file `serial` of the name `unit`, which is damaged. Until the file is removed,
    /// it is not adopted from the directory. Returns whether it was held: a file that several readers find
    /// damaged was held for the first of them, and a file that has replaced it is not touched.
    pub(super) fn condemn(&self, unit: Unit, serial: u64) -> bool {
        let held = self.units.peek(&unit);
        if held.is_none_or(|held| held.serial != serial) {
            return false;
        }
        self.condemned.insert(unit);
        let Some(held) = self.units.take(&unit) else {
            return false;
        };
        self.let_go(&unit, &held);
        true
    }

    pub(super) fn is_condemned(&self, unit: &Unit) -> bool {
        self.condemned.contains(unit)
    }

    /// Removes the mark of a condemned content file. Returns whether the file is to be deleted: no new file
    /// has replaced it.
    pub(super) fn acquit(&self, unit: &Unit) -> bool {
        self.condemned.remove(unit).is_some() && !self.holds_unit(unit)
    }

    /// Forgets a content file.
    pub(super) fn forget(&self, unit: &Unit) {
        if let Some(held) = self.units.take(unit) {
            self.let_go(unit, &held);
        }
    }

    fn let_go(&self, unit: &Unit, held: &Held) {
        for hash in held.blocks.iter().flat_map(|blocks| blocks.iter()) {
            self.inside
                .remove_if(hash, |_, (whole, _)| *whole == unit.name);
        }
        if let Some(open) = &held.open {
            let entry = (Arc::downgrade(open), disk_bytes(held.len));
            self.lingering.lock().push(entry);
        }
    }

    /// Disk taken by evicted files that are still open.
    pub(super) fn lingering_bytes(&self) -> u64 {
        let mut lingering = self.lingering.lock();
        lingering.retain(|(open, _)| open.strong_count() > 0);
        lingering.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The content file that holds all of `file`.
    pub(super) fn whole_of(&self, file: &FileRef) -> Option<(Unit, Held)> {
        let record = self.files.get(&file.id())?;
        let unit = Unit::whole(record.whole?);
        let moment = record.moment;
        drop(record);
        if self.is_void(&file.path, moment) {
            return None;
        }
        let held = self.units.get(&unit)?;
        (held.len == file.size).then_some((unit, held))
    }

    /// `file` lies whole in the content file `name`, whose blocks are `blocks`.
    pub(super) fn note_whole(
        &self,
        file: FileId,
        moment: u64,
        name: ContentHash,
        blocks: &[ContentHash],
    ) {
        for (index, hash) in (0..).zip(blocks) {
            self.note(file, moment, index, *hash);
        }
        // Not that of a file that was cleared meanwhile and asked for again.
        if let Some(mut record) = self.files.get_mut(&file)
            && !self.clears_between(moment, record.moment)
            && !self.is_void_everywhere(moment)
        {
            record.whole = Some(name);
        }
    }

    /// Everything that must be known again after a restart, content before what refers to it. File
    /// versions none of whose content is here are forgotten.
    pub(super) fn for_each_record(&self, mut each: impl FnMut(&Record)) {
        for Cleared { path, until } in self.clears() {
            each(&Record::Cleared { path, until });
        }
        self.units.for_each(|unit, held| {
            if let (Kind::Block, Ok(len)) = (unit.kind, u32::try_from(held.len)) {
                let hash = unit.name;
                each(&Record::Content { hash, len });
            }
        });
        self.files.retain(|id, known| {
            let (file, moment) = (*id.as_bytes(), known.moment);
            let here = known.blocks.iter().any(|(_, hash)| self.has_content(hash));
            if !here || self.is_void_everywhere(moment) {
                return false;
            }
            let whole = known.whole.and_then(|name| {
                let held = self.units.peek(&Unit::whole(name))?;
                Some((name, held.len, held.blocks?.to_vec()))
            });
            if let Some((name, len, blocks)) = whole {
                each(&Record::Whole {
                    file,
                    moment,
                    name,
                    len,
                    blocks,
                });
                return true;
            }
            for (index, hash) in known.blocks.iter() {
                each(&Record::Block {
                    file,
                    moment,
                    index,
                    hash,
                });
            }
            true
        });
    }

    /// Puts what is known of a content file anew, if it is held.
    pub(super) fn replace(&self, unit: Unit, held: Held) {
        self.units.update(&unit, |known| *known = held);
    }

    /// All content files.
    pub(super) fn units(&self) -> Vec<Unit> {
        let mut all = Vec::new();
        self.units.for_each(|unit, _| all.push(*unit));
        all
    }

    pub(super) fn stats(&self) -> CacheStats {
        self.units.stats()
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        self.units.capacity_bytes()
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
        catalog.hold(Unit::block(hash(byte)), Held::block(100));
        catalog.note(file.id(), moment, 0, hash(byte));
    }

    #[test]
    fn a_clear_hides_what_lies_below_and_nothing_else() {
        let catalog = catalog();
        let (a, b) = (file("/x/a"), file("/y/b"));
        put(&catalog, &a, 1);
        put(&catalog, &b, 2);
        catalog.clear(&ItemPath::parse(b"/x").unwrap());
        assert_eq!(catalog.find(&a, 0), None);
        assert!(catalog.find(&b, 0).is_some());
        put(&catalog, &a, 1);
        assert!(catalog.find(&a, 0).is_some(), "asked for after the clear");
    }

    #[test]
    fn what_was_asked_for_before_a_clear_and_arrives_after_it_stays_hidden() {
        let catalog = catalog();
        let a = file("/x/a");
        let moment = catalog.moment();
        catalog.clear(&ItemPath::root());
        catalog.hold(Unit::block(hash(1)), Held::block(100));
        catalog.note(a.id(), moment, 0, hash(1));
        assert_eq!(catalog.find(&a, 0), None);
    }

    #[test]
    fn blocks_of_before_a_clear_do_not_come_back_with_one_of_after_it() {
        let catalog = catalog();
        let path = ItemPath::parse(b"/x/a").unwrap();
        let a = FileRef::new(path.clone(), Version::from_data([0; 16]), 2 << 20, None);
        for (index, byte) in [(0, 1), (1, 2)] {
            catalog.hold(Unit::block(hash(byte)), Held::block(1 << 20));
            catalog.note(a.id(), catalog.moment(), index, hash(byte));
        }
        catalog.clear(&path);
        catalog.note(a.id(), catalog.moment(), 0, hash(3));
        assert_eq!(catalog.find(&a, 1), None);
        // One that was asked for before the clear comes late.
        catalog.note(a.id(), 1, 1, hash(2));
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
        assert!(catalog.clears().len() <= CLEARS_MAX + 1);
        put(&catalog, &a, 1);
        assert!(catalog.find(&a, 0).is_some());
    }

    #[test]
    fn equal_bytes_are_one_content_file_and_go_for_all_at_once() {
        let catalog = catalog();
        let (a, b) = (file("/x/a"), file("/y/b"));
        put(&catalog, &a, 1);
        put(&catalog, &b, 1);
        assert_eq!(catalog.stats().entries, 1);
        catalog.forget(&Unit::block(hash(1)));
        assert_eq!((catalog.find(&a, 0), catalog.find(&b, 0)), (None, None));
    }

    #[test]
    fn a_full_store_evicts_and_an_evicted_open_file_counts_until_it_is_closed() {
        let catalog = catalog();
        let open = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let whole = Held::whole(
            4 * DISK_BLOCK,
            Some(Arc::clone(&open)),
            Arc::from([hash(9)]),
        );
        assert_eq!(catalog.hold(Unit::whole(hash(8)), whole), []);
        assert!(catalog.has_content(hash(9)));
        assert_eq!(catalog.shrink_to(0), [Unit::whole(hash(8))]);
        assert!(!catalog.has_content(hash(9)));
        assert_eq!(catalog.lingering_bytes(), 4 * DISK_BLOCK);
        drop(open);
        assert_eq!(catalog.lingering_bytes(), 0);
    }
}
