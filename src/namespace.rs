//! Inodes: the numbers by which the kernel identifies looked-up files.
//!
//! Purpose: give every version of every file its own number, count the kernel's references, find what must
//! be invalidated when a part of the namespace is cleared, and select inodes that the kernel should drop
//! when they exceed their memory bound. In memory only, no I/O.
//!
//! Invariants: a number belongs to one path and one content of it, and never to another one while the
//! kernel may hold it; a directory keeps its number while its entries come and go. Numbers are hashes of
//! the path and of the data part of the version, so that they are the same on every node and after a
//! restart. If only the status of a file changed, it keeps its number under its new version, provided that
//! no bytes of it were returned to readers yet or that these were compared ([`InodeTable::move_on`]).
//! Otherwise the new version gets another number.
//!
//! Bound: an inode lives as long as the kernel holds it, so the table cannot drop one. Above the bound
//! every new inode makes two more inodes due to be dropped, and the kernel is requested to drop the oldest ones
//! ([`InodeTable::condemned`]). Inodes in use stay, and are selected again later. Above the bound and an eighth
//! of it, listings have no attributes ([`InodeTable::is_full`]), and look-ups wait briefly
//! ([`InodeTable::room`]).

mod asleep;
pub mod handles;
mod order;
mod slot;

pub use asleep::RememberedInodes;

use crate::cache::Fill;
use crate::journal::JournalPart;
use crate::read::{Edition, FileId, FileRef, Meter, Part, ReadAhead, Returned, ReturnedParts};
use asleep::Asleep;
use bytes::Bytes;
use copperfs_metrics::{Kind, Scope, Unit};
use copperfs_overlay::{Attributes, FileKind, ItemPath, Version};
use dashmap::DashMap;
use dashmap::mapref::entry::{Entry, VacantEntry};
use order::Order;
use slot::Slot;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// The number of the mount's root directory.
pub const ROOT: u64 = 1;

/// Lower numbers are never made from a hash.
const FIRST_HASHED: u64 = 1 << 16;

/// The minimum number of due inodes before the kernel is notified, because that costs a system call.
const DUE_MIN: u64 = 64;

/// The maximum number of due inodes. It keeps the number from growing while all inodes are in use.
const DUE_MAX: u64 = 1 << 14;

/// Queue entries examined for each picked inode; recently used inodes are skipped.
const EXAMINED_PER_PICK: usize = 4;

/// How long a look-up waits for room. This is longer than the kernel takes to drop some inodes. If it
/// cannot drop any because all are in use, this limits the rate at which the table grows past its bound.
const ROOM_TIMEOUT: Duration = Duration::from_millis(20);

/// One version of one file that the kernel has looked up.
#[derive(Debug)]
pub struct Inode {
    /// Its number.
    pub number: u64,
    /// Its attributes.
    pub attributes: Attributes,
    /// Identifies its bytes.
    pub file: FileRef,
    /// The positions of its readers.
    pub ahead: ReadAhead,
    /// Tracks the bytes of this inode that readers and the kernel hold; [`InodeTable::get_to_read`] returns
    /// an inode whose `given` records new ones.
    pub given: Returned,
}

impl Inode {
    /// Its path.
    #[must_use]
    pub fn path(&self) -> &ItemPath {
        &self.file.path
    }
}

/// A directory that the kernel holds, as the place of names.
#[derive(Clone, Copy, Debug)]
pub struct Parent<'a> {
    /// Its number.
    pub number: u64,
    /// Its path.
    pub path: &'a ItemPath,
}

impl<'a> From<&'a Inode> for Parent<'a> {
    fn from(directory: &'a Inode) -> Self {
        Self {
            number: directory.number,
            path: directory.path(),
        }
    }
}

/// Counters of an [`InodeTable`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InodeStats {
    /// Inodes that the kernel holds.
    pub entries: u64,
    /// Memory that they take here, in bytes; an upper estimate.
    pub bytes: u64,
    /// Inodes that the kernel has dropped at this table's request.
    pub pruned: u64,
}

/// All inodes that the kernel holds.
pub struct InodeTable {
    slots: DashMap<u64, Box<Slot>>,
    /// Those of an earlier daemon that the kernel has not asked for since.
    asleep: DashMap<u64, Asleep>,
    /// Whether there may be any. A look at all shards of the map would cost each look-up more than the rest of it.
    has_asleep: bool,
    /// The newest number of each directory.
    directories: DashMap<ItemPath, u64>,
    order: Order,
    bytes_max: AtomicU64,
    /// Memory of the slots and of their ledgers.
    bytes: Meter,
    lives: AtomicU32,
    /// How many inodes are due to be dropped.
    due: AtomicU64,
    pruned: AtomicU64,
    /// Notified when the table is no longer full.
    room: Notify,
    /// What the next daemon has to know.
    journal: Option<JournalPart>,
}

impl InodeTable {
    /// A table that always has the root directory, with a bound of `bytes_max`.
    #[must_use]
    pub fn new(root: Attributes, bytes_max: u64) -> Self {
        let table = Self {
            slots: DashMap::new(),
            asleep: DashMap::new(),
            has_asleep: false,
            directories: DashMap::new(),
            order: Order::default(),
            bytes_max: AtomicU64::new(bytes_max),
            bytes: Meter::default(),
            lives: AtomicU32::new(0),
            due: AtomicU64::new(0),
            pruned: AtomicU64::new(0),
            room: Notify::new(),
            journal: None,
        };
        let slot = Slot::new(ROOT, &ItemPath::root(), &ItemPath::root(), b"", root);
        table.bytes.store(slot.cost(), Ordering::Relaxed);
        drop(table.slots.insert(ROOT, Box::new(slot)));
        table.directories.insert(ItemPath::root(), ROOT);
        table
    }

    /// The inode under `number`, if the kernel may still hold it.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<Arc<Inode>> {
        let slot = self.slots.get(&number)?;
        slot.touch();
        Some(slot.inode())
    }

    /// The kind and the file of the inode under `number`, for an OPEN.
    #[must_use]
    pub fn file(&self, number: u64) -> Option<(FileKind, FileRef)> {
        let slot = self.slots.get(&number)?;
        slot.touch();
        Some((slot.kind(), slot.file()))
    }

    /// Like [`InodeTable::get`], for a READ: keeps the state that several READs of a file share.
    #[must_use]
    pub fn get_to_read(&self, number: u64) -> Option<Arc<Inode>> {
        {
            let slot = self.slots.get(&number)?;
            slot.touch();
            if slot.is_ready_to_read() {
                slot.open_ledger(&self.bytes);
                return Some(slot.inode());
            }
        }
        self.change(number, |slot| slot.inode_to_read(&self.bytes))
    }

    /// Returns the record of bytes that were returned of the file `number`, for a READ, if its version is `version` and
    /// settled.
    #[must_use]
    pub fn ledger(&self, number: u64, version: Version) -> Option<Returned> {
        let slot = self.slots.get(&number)?;
        let is_same = slot.version == version && version.is_settled();
        is_same.then(|| {
            slot.touch();
            slot.ledger(&self.bytes).clone()
        })
    }

    /// Tells the journal of `parts` of `inode` that are about to be returned, if its version is unsettled. A successor of
    /// the daemon compares later bytes with them.
    pub fn tell_returned<'a>(&self, inode: &Inode, parts: impl IntoIterator<Item = &'a Part>) {
        if inode.file.version.is_settled() || self.journal.is_none() {
            return;
        }
        if let Some(slot) = self.slots.get(&inode.number) {
            self.tell_state(&slot, None);
            self.tell_entries(inode.number, &inode.given.entries_about(parts));
        }
        self.commit();
    }

    /// Whether the kernel may still hold `number`.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        self.slots.contains_key(&number) || self.is_asleep(number)
    }

    /// The number that `path` in state `version` has or would have.
    #[must_use]
    pub fn number_of(&self, path: &ItemPath, version: Version) -> u64 {
        let Some((parent, name)) = path.split() else {
            return ROOT;
        };
        let first = hashed(path, version);
        let mut number = first;
        while let Some(slot) = self.slots.get(&number) {
            if slot.is_of(&parent, name, version) {
                return number;
            }
            number = number.wrapping_add(1).max(FIRST_HASHED);
        }
        first
    }

    /// Takes a reference, for the kernel, on the inode of `name` in the directory `parent` (together the path `path`),
    /// and returns its number.
    pub fn learn(
        &self,
        path: &ItemPath,
        parent: Parent<'_>,
        name: &[u8],
        attributes: Attributes,
    ) -> u64 {
        let directory = parent.path;
        let version = attributes.version;
        let mut number = hashed(path, version);
        loop {
            if self.is_asleep(number) && !self.wake(path, number, attributes.clone()) {
                number = number.wrapping_add(1).max(FIRST_HASHED);
                continue;
            }
            match self.slots.entry(number) {
                Entry::Occupied(mut entry) => {
                    let slot = entry.get_mut();
                    let learned = self.charged(slot, |slot| {
                        if slot.is_of(directory, name, version) {
                            slot.renew(attributes.clone());
                            return true;
                        }
                        slot.is_at(directory, name) && slot.take_unread(&attributes, &self.bytes)
                    });
                    if !learned {
                        number = number.wrapping_add(1).max(FIRST_HASHED);
                        continue;
                    }
                    slot.references += 1;
                    slot.touch();
                    self.tell_references(number, slot.references);
                    return number;
                }
                Entry::Vacant(entry) => {
                    let slot = Slot::new(number, path, directory, name, attributes);
                    self.insert(entry, slot, parent.number);
                    return number;
                }
            }
        }
    }

    /// Inserts the slot of an inode that the table does not have. `parent`: the number of its directory.
    fn insert(&self, entry: VacantEntry<'_, u64, Box<Slot>>, mut slot: Slot, parent: u64) {
        let number = *entry.key();
        slot.life = self.lives.fetch_add(1, Ordering::Relaxed);
        let (queue_entry, cost) = ((number, slot.life), slot.cost());
        let directory = slot.is_directory().then(|| slot.path());
        self.tell_held(&slot, Some(parent));
        // Before others see the slot: one that forgets it at once takes the charge back.
        let bytes = self.bytes.fetch_add(cost, Ordering::Relaxed) + cost;
        // The queue is locked before a shard of the map, so the shard is released here.
        drop(entry.insert(Box::new(slot)));
        if let Some(directory) = directory {
            self.directories.insert(directory, number);
        }
        if bytes > self.bytes_max() && self.due.load(Ordering::Relaxed) < DUE_MAX {
            self.due.fetch_add(2, Ordering::Relaxed);
        }
        let is_alive = |(number, life)| {
            let slot = self.slots.get(&number);
            slot.is_some_and(|slot| slot.life == life)
        };
        self.order.push(queue_entry, self.slots.len(), is_alive);
    }

    /// Whether enough inodes are due for [`InodeTable::condemned`].
    #[must_use]
    pub fn is_pruning_due(&self) -> bool {
        self.due.load(Ordering::Relaxed) >= DUE_MIN
    }

    /// Up to `count` inodes that the kernel should drop now, oldest first. The kernel keeps those in use;
    /// those that it drops come back through [`InodeTable::forget`].
    #[must_use]
    pub fn condemned(&self, count: usize) -> Vec<u64> {
        let due = self.due.load(Ordering::Relaxed);
        let count = due.min(count as u64);
        if due < DUE_MIN || self.bytes.load(Ordering::Relaxed) <= self.bytes_max() {
            return Vec::new();
        }
        self.due.fetch_sub(count, Ordering::Relaxed);
        let count = crate::num::to_usize(count);
        self.order
            .pick(count, EXAMINED_PER_PICK * count, |(number, life)| {
                let mut slot = self.slots.get_mut(&number)?;
                if slot.life != life {
                    return None;
                }
                if slot.was_touched() {
                    return Some(false);
                }
                slot.condemned = true;
                Some(true)
            })
    }

    /// The parent directory and the name of `number`, if it is a file. For kernels that can only invalidate names:
    /// processes would lose their working directory if it were invalidated.
    #[must_use]
    pub fn file_entry(&self, number: u64) -> Option<(u64, Bytes)> {
        let is_file = match self.slots.get(&number) {
            Some(slot) => !slot.is_directory(),
            None => self.is_file_asleep(number),
        };
        let (parent, name) = is_file.then(|| self.entry(number)).flatten()?;
        Some((self.number_at(&parent)?, name))
    }

    /// Whether inodes exceed their bound by more than an eighth of it, so that the kernel should get no inodes that
    /// it did not request.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.full_bytes()
    }

    fn full_bytes(&self) -> u64 {
        let bytes_max = self.bytes_max();
        bytes_max.saturating_add(bytes_max / 8)
    }

    fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// How full the table is.
    #[must_use]
    pub fn fill(&self) -> Fill {
        Fill {
            held: self.bytes.load(Ordering::Relaxed),
            capacity: self.bytes_max(),
        }
    }

    /// Changes the bound. If the inodes exceed it, as many become due as it takes ([`InodeTable::is_pruning_due`]), but
    /// `DUE_MAX` at most; new inodes make further ones due.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        let now = self.stats();
        let excess = now.bytes.saturating_sub(bytes_max);
        let mean = (now.bytes / now.entries.max(1)).max(1);
        let due = excess.div_ceil(mean).min(DUE_MAX);
        self.due.fetch_max(due, Ordering::Relaxed);
        if !self.is_full() {
            self.room.notify_waiters();
        }
    }

    /// Waits up to `ROOM_TIMEOUT` until the table is not full.
    pub async fn room(&self) {
        let waiting = async {
            loop {
                // Created before the look, so that it misses no notification.
                let told = self.room.notified();
                if !self.is_full() {
                    return;
                }
                told.await;
            }
        };
        let waited = tokio::time::timeout(ROOM_TIMEOUT, waiting).await;
        if waited.is_err() {
            tracing::trace!("the inodes in use exceed their memory bound");
        }
    }

    /// Called after the kernel was notified to drop the inode's pages and entries: its pages may be pushed again, and
    /// a directory's attributes are outdated.
    pub fn invalidated(&self, number: u64) {
        self.change(number, |slot| {
            slot.pushed = false;
            slot.set_listed(None);
            slot.outdated = slot.is_directory();
        });
    }

    /// Called when the kernel reads `edition` of directory `number` from its beginning.
    pub fn listed(&self, number: u64, edition: Edition) {
        self.change(number, |slot| slot.set_listed(Some(edition)));
    }

    /// The listing of directory `number` that the kernel may have cached.
    #[must_use]
    pub fn listed_edition(&self, number: u64) -> Option<Edition> {
        self.slots.get(&number)?.listed()
    }

    /// Whether a directory's attributes are out of date.
    #[must_use]
    pub fn is_outdated(&self, number: u64) -> bool {
        self.slots.get(&number).is_some_and(|slot| slot.outdated)
    }

    /// Takes newer attributes for `number`. Attributes of another version are taken only if merely the
    /// status changed and no bytes were returned to readers yet; otherwise that version has its own number,
    /// and this inode stays as it was. Returns the resulting inode.
    pub fn renew(&self, number: u64, attributes: Attributes) -> Option<Arc<Inode>> {
        self.change(number, |slot| {
            if slot.version == attributes.version || number == ROOT {
                slot.renew(attributes);
            } else {
                let _stays = slot.take_unread(&attributes, &self.bytes);
            }
            slot.inode()
        })
    }

    /// Ends the freeze of `inode` by `account`: continues it under `attributes` with a new ledger. These
    /// are the attributes of a version that was found to have all bytes of the account, or the inode's own
    /// ones. Returns the resulting inode; if it was continued already, it stays as it is.
    pub fn move_on(
        &self,
        inode: &Inode,
        attributes: Attributes,
        account: ReturnedParts,
    ) -> Option<Arc<Inode>> {
        self.change(inode.number, |slot| {
            if slot.has_ledger(&inode.given) {
                slot.move_on(attributes, account, &self.bytes);
            }
            slot.inode_to_read(&self.bytes)
        })
    }

    /// Drops `count` references of the kernel on `number`. Returns whether they were the last.
    pub fn forget(&self, number: u64, count: u64) -> bool {
        if number == ROOT {
            return false;
        }
        self.forget_asleep(number, count)
            .unwrap_or_else(|| self.forget_awake(number, count))
    }

    /// Like [`InodeTable::forget`], for an inode that is not asleep.
    fn forget_awake(&self, number: u64, count: u64) -> bool {
        let Some(mut slot) = self.slots.get_mut(&number) else {
            return false;
        };
        slot.references = slot.references.saturating_sub(count);
        if slot.references > 0 {
            self.tell_references(number, slot.references);
            return false;
        }
        drop(slot);
        let unused = self.slots.remove_if(&number, |_, slot| {
            self.tell_if_gone(number, slot.references)
        });
        let Some((_, slot)) = unused else {
            return false;
        };
        if slot.is_directory() {
            self.directories
                .remove_if(&slot.path(), |_, newest| *newest == number);
        }
        if slot.condemned {
            self.pruned.fetch_add(1, Ordering::Relaxed);
        }
        let cost = slot.cost();
        // Only the request that crosses the limit wakes the waiting look-ups.
        let before = self.bytes.fetch_sub(cost, Ordering::Relaxed);
        if before > self.full_bytes() && before - cost <= self.full_bytes() {
            self.room.notify_waiters();
        }
        true
    }

    /// Whether the bytes of `number` may be pushed now: once, until the kernel forgets the inode or its pages are
    /// invalidated. Records the push.
    pub fn claim_push(&self, number: u64) -> bool {
        self.slots
            .get_mut(&number)
            .is_some_and(|mut slot| !std::mem::replace(&mut slot.pushed, true))
    }

    /// The newest number of directory `path`, if the kernel holds it.
    #[must_use]
    pub fn number_at(&self, path: &ItemPath) -> Option<u64> {
        self.directories.get(path).map(|number| *number)
    }

    /// The parent directory and the name of `number`. Returns `None` for the root.
    #[must_use]
    pub fn entry(&self, number: u64) -> Option<(ItemPath, Bytes)> {
        if let Some(slot) = self.slots.get(&number) {
            return slot.entry();
        }
        let path = self.asleep_path(number)?;
        let (parent, name) = path.split()?;
        Some((parent, Bytes::copy_from_slice(name)))
    }

    /// The numbers of all inodes at `path` and below, including old versions.
    #[must_use]
    pub fn below(&self, path: &ItemPath) -> Vec<u64> {
        let split = path.split();
        let awake = self.slots.iter();
        awake
            .filter(|slot| slot.is_within(path, split.as_ref()))
            .map(|slot| *slot.key())
            .chain(self.asleep_below(path))
            .collect()
    }

    /// Declares the counters in `inodes`.
    pub fn declare(self: &Arc<Self>, inodes: &Scope) {
        use {Kind::Counter, Kind::Gauge, Unit::Count};
        let read = |number: fn(&InodeStats) -> u64| {
            let table = Arc::clone(self);
            move || number(&table.stats())
        };
        let help = "Inodes that the kernel holds.";
        inodes.computed("entries", Gauge, Count, help, read(|now| now.entries));
        let help = "Memory of the daemon that these inodes take; an upper estimate.";
        inodes.computed("bytes", Gauge, Unit::Bytes, help, read(|now| now.bytes));
        let help = "Inodes that the kernel dropped at the daemon's request, to free memory.";
        inodes.computed("pruned", Counter, Count, help, read(|now| now.pruned));
    }

    /// The current counters.
    #[must_use]
    pub fn stats(&self) -> InodeStats {
        InodeStats {
            entries: (self.slots.len() + self.asleep.len()) as u64,
            bytes: self.bytes.load(Ordering::Relaxed),
            pruned: self.pruned.load(Ordering::Relaxed),
        }
    }

    /// Changes the slot of `number`, and updates its charge.
    fn change<R>(&self, number: u64, change: impl FnOnce(&mut Slot) -> R) -> Option<R> {
        let mut slot = self.slots.get_mut(&number)?;
        Some(self.charged(&mut slot, change))
    }

    /// Applies `change`, and updates the charge by the difference in the slot's cost. The caller holds the lock of the
    /// slot's shard.
    fn charged<R>(&self, slot: &mut Slot, change: impl FnOnce(&mut Slot) -> R) -> R {
        let (before, version) = (slot.cost(), slot.version);
        let result = change(slot);
        let after = slot.cost();
        if slot.version != version {
            self.tell_held(slot, None);
        }
        if after > before {
            self.bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
        result
    }
}

/// Whether only the status of a file changed between `old` and `new`, according to the origin's records.
#[must_use]
pub fn may_become(old: &Attributes, new: &Attributes) -> bool {
    let both_files = old.kind == FileKind::File && new.kind == FileKind::File;
    both_files && old.size == new.size && new.version.has_data_of(&old.version)
}

/// 63 bits of the hash of path and data, so that it fits every `ino_t`.
fn hashed(path: &ItemPath, version: Version) -> u64 {
    let data = Version::from_data(*version.data());
    let mut number = [0; 8];
    number.copy_from_slice(&FileId::of_place(path, data).as_bytes()[..8]);
    (u64::from_le_bytes(number) >> 1).max(FIRST_HASHED)
}

#[cfg(test)]
mod tests;
