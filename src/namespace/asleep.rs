//! Inodes that outlive their daemon: what the journal says of them, and those of an earlier daemon, whose numbers
//! the kernel still holds.
//!
//! The journal has the place of an inode in the namespace, but not its attributes, which would take too much memory.
//! So after a take-over an inode sleeps until the kernel asks for it. Then the attributes of its path are requested,
//! and it wakes under them if they are those of the same version. The number proves the path and the data of the
//! version, because it is their hash; the rest of the version is compared with [`Asleep::change`].

mod remembered;

pub(super) use remembered::Asleep;
pub use remembered::RememberedInodes;

#[cfg(test)]
use super::Parent;
use super::slot::{Place, Slot};
use super::{InodeTable, ROOT, hashed};
use crate::journal::JournalPart;
use crate::read::{ReturnedEntry, ReturnedParts};
use copperfs_overlay::{Attributes, FileKind, ItemPath, Standing, Version};
use dashmap::mapref::entry::Entry;
use remembered::{InodeRecord, State};
use std::sync::atomic::Ordering;

/// About the bytes of a record of an inode.
const HELD_BYTES: u64 = 40;
/// The bytes of a record of its references, if they are few.
const REFERENCES_BYTES: u64 = 13;

/// About the bytes of an entry of what was returned.
const ENTRY_BYTES: u64 = 24;
/// Entries in one record, which has room for more.
const ENTRIES_AT_ONCE: usize = 500;

/// Inodes of one path with the same data: each state that the kernel still holds has one, and more than some are rare.
const NUMBERS_OF_DATA: u64 = 256;

/// The maximum number of names in a path. A longer one leads back to itself: the journal is damaged.
const DEPTH_MAX: usize = ItemPath::BYTES_MAX;

/// Returns the part of a version that an inode's number does not prove: that of the status.
/// (How far the version can be trusted is told apart from it.)
fn change_of(version: Version) -> [u8; 8] {
    let mut change = [0; 8];
    change.copy_from_slice(&version.to_bytes()[16..24]);
    change
}

impl InodeTable {
    /// Writes its inodes into `journal` from now on, and has those of an earlier daemon asleep.
    #[must_use]
    pub fn journaled(mut self, journal: JournalPart, remembered: RememberedInodes) -> Self {
        self.journal = Some(journal);
        self.has_asleep = !remembered.is_empty();
        self.asleep = remembered.inodes;
        let mut directories = Vec::new();
        for asleep in &self.asleep {
            self.bytes.fetch_add(asleep.cost(), Ordering::Relaxed);
            if asleep.state == State::Directory {
                directories.push(*asleep.key());
            }
        }
        for number in directories {
            if let Some(path) = self.asleep_path(number) {
                self.directories.insert(path, number);
            }
        }
        self
    }

    /// Returns whether `number` belongs to an inode that has to wake before it is used.
    #[must_use]
    pub fn is_asleep(&self, number: u64) -> bool {
        self.has_asleep && self.asleep.contains_key(&number)
    }

    /// Returns whether `number` is a sleeping inode of a file.
    pub(super) fn is_file_asleep(&self, number: u64) -> bool {
        let asleep = self.asleep.get(&number);
        asleep.is_some_and(|asleep| asleep.state != State::Directory)
    }

    /// Returns the path of a sleeping inode. Returns `None` if it is not asleep, or if a directory above it is unknown.
    #[must_use]
    pub fn asleep_path(&self, number: u64) -> Option<ItemPath> {
        let (mut names, mut at) = (Vec::new(), number);
        let above = loop {
            if at == ROOT {
                break ItemPath::root();
            }
            if let Some(asleep) = self.asleep.get(&at) {
                names.push(asleep.name.clone());
                at = asleep.parent;
            } else {
                break self.slots.get(&at)?.path();
            }
            if names.len() > DEPTH_MAX {
                return None;
            }
        };
        let mut names = names.iter().rev();
        names.try_fold(above, |path, name| path.join(name).ok())
    }

    /// Wakes an inode under the present attributes of its path. Returns whether it sleeps no more. Otherwise its version is
    /// gone, and it sleeps until the kernel forgets it.
    pub fn wake(&self, path: &ItemPath, number: u64, attributes: Attributes) -> bool {
        let Some((parent, name)) = path.split() else {
            return true;
        };
        // Another state of a file with the same data has one of the next numbers. That a number is so near by chance is
        // as unlikely as that it is the same one.
        let first = hashed(path, attributes.version);
        let is_same = number.wrapping_sub(first) < NUMBERS_OF_DATA;
        let change = change_of(attributes.version);
        let is_awake = |asleep: &Asleep| {
            let is_directory = attributes.kind == FileKind::Directory;
            match asleep.state {
                State::Directory => is_directory,
                State::UnsettledRead { .. } if asleep.returned().is_none() => false,
                _ => !is_directory && asleep.change == change,
            }
        };
        // In the lock of its place in the table, so that it is always in one of the maps.
        let place = match self.slots.entry(number) {
            Entry::Occupied(_) => return true,
            Entry::Vacant(place) => place,
        };
        let woken = self
            .asleep
            .remove_if(&number, |_, asleep| is_same && is_awake(asleep));
        let Some((_, asleep)) = woken else {
            // The kernel may have forgotten it meanwhile.
            return !self.asleep.contains_key(&number);
        };
        let mut slot = Slot::new(number, path, &parent, name, attributes);
        if let State::UnsettledRead { look, .. } = asleep.state
            && let Some(returned) = asleep.returned()
            && !returned.is_empty()
        {
            slot.was_returned(look, returned, &self.bytes);
        }
        slot.references = asleep.references;
        self.insert(place, slot, asleep.parent);
        self.bytes.fetch_sub(asleep.cost(), Ordering::Relaxed);
        true
    }

    /// Drops references of the kernel on a sleeping inode. Returns whether they were the last; `None` if it is not asleep.
    pub(super) fn forget_asleep(&self, number: u64, count: u64) -> Option<bool> {
        if !self.has_asleep {
            return None;
        }
        let mut asleep = self.asleep.get_mut(&number)?;
        asleep.references = asleep.references.saturating_sub(count);
        let references = asleep.references;
        if references > 0 {
            self.tell_references(number, references);
            return Some(false);
        }
        drop(asleep);
        let path = self.asleep_path(number);
        let unused = self.asleep.remove_if(&number, |_, asleep| {
            self.tell_if_gone(number, asleep.references)
        });
        let Some((_, asleep)) = unused else {
            // A look-up has woken it meanwhile. Its references were dropped already.
            return Some(self.forget_awake(number, 0));
        };
        self.bytes.fetch_sub(asleep.cost(), Ordering::Relaxed);
        if let Some(path) = path.filter(|_| asleep.state == State::Directory) {
            self.directories
                .remove_if(&path, |_, newest| *newest == number);
        }
        Some(true)
    }

    /// The numbers of sleeping inodes at `path` and below.
    pub(super) fn asleep_below(&self, path: &ItemPath) -> Vec<u64> {
        let numbers: Vec<u64> = self.asleep.iter().map(|asleep| *asleep.key()).collect();
        let is_below = |number: &u64| {
            let own = self.asleep_path(*number);
            own.is_none_or(|own| own.is_within(path))
        };
        numbers.into_iter().filter(is_below).collect()
    }

    /// Tells the journal of an inode that the kernel holds. The caller holds the lock of the slot's shard. `parent`: the
    /// number of its directory; `None`: not known to the caller.
    pub(super) fn tell_held(&self, slot: &Slot, parent: Option<u64>) {
        self.tell_state(slot, parent);
        let is_unsettled = matches!(slot.version.standing(), Standing::Unsettled(_));
        if self.journal.is_some() && is_unsettled {
            self.tell_entries(slot.number, &slot.returned());
        }
    }

    /// Tells the journal what was returned of an inode.
    pub(super) fn tell_entries(&self, number: u64, entries: &[ReturnedEntry]) {
        for entries in entries.chunks(ENTRIES_AT_ONCE) {
            // Most are repeated, or replaced by one about more pieces.
            let replaced = ENTRY_BYTES * entries.len() as u64;
            let (number, entries) = (number.into(), entries.to_vec());
            self.tell(&InodeRecord::Returned { number, entries }, replaced);
        }
    }

    /// As [`InodeTable::tell_held`], without what was returned of it.
    pub(super) fn tell_state(&self, slot: &Slot, parent: Option<u64>) {
        let Some(journal) = &self.journal else {
            return;
        };
        // Without a copy of the name, because this is done for each look-up.
        let (parent, name) = match slot.place() {
            Place::In(directory, name) => (parent.or_else(|| self.number_at(directory)), name),
            Place::Directory(path) => {
                let Some((directory, name)) = path.split() else {
                    return;
                };
                (parent.or_else(|| self.number_at(&directory)), name)
            }
        };
        let Some(parent) = parent else {
            return;
        };
        let held = |is_beside: bool| InodeRecord::Held {
            number: slot.number.into(),
            parent: (!is_beside).then_some(parent.into()),
            name,
            state: match (slot.is_directory(), slot.version.standing()) {
                (true, _) => State::Directory,
                (false, Standing::Unsettled(look)) if slot.was_read() => State::UnsettledRead {
                    look,
                    block: slot.only_block(),
                },
                (false, Standing::Unsettled(_)) => State::Unsettled,
                (false, Standing::Lasting | Standing::Launch) => State::File,
            },
            change: change_of(slot.version),
            references: slot.references,
        };
        journal.put_with(parent, held, 0);
    }

    /// Tells the journal of the references to an inode that it knows. The caller holds the lock of the slot's shard.
    pub(super) fn tell_references(&self, number: u64, references: u64) {
        let number = number.into();
        let record = InodeRecord::References { number, references };
        self.tell(&record, REFERENCES_BYTES);
    }

    /// Returns whether the kernel has no reference to an inode any more, and tells the journal so. The caller holds the
    /// lock of the inode's shard, because the next look-up tells the journal of it again.
    pub(super) fn tell_if_gone(&self, number: u64, references: u64) -> bool {
        let is_gone = references == 0;
        if is_gone {
            let number = number.into();
            self.tell(&InodeRecord::Gone { number }, REFERENCES_BYTES + HELD_BYTES);
        }
        is_gone
    }

    /// `replaced`: see [`crate::journal::Journal::put`].
    fn tell(&self, record: &InodeRecord<'_>, replaced: u64) {
        if let Some(journal) = &self.journal {
            journal.put(record, replaced);
        }
    }

    /// Returns when the journal has all that it was told.
    pub fn commit(&self) {
        if let Some(journal) = &self.journal {
            journal.commit();
        }
    }

    /// Returns the directory at `path`; with the number of the root, if the table has none.
    #[cfg(test)]
    pub(crate) fn parent<'a>(&self, path: &'a ItemPath) -> Parent<'a> {
        let number = self.number_at(path).unwrap_or(ROOT);
        Parent { number, path }
    }

    /// Returns the number of references that the kernel has on an inode, awake or asleep.
    #[cfg(test)]
    pub(crate) fn references(&self, number: u64) -> Option<u64> {
        let awake = self.slots.get(&number).map(|slot| slot.references);
        awake.or_else(|| Some(self.asleep.get(&number)?.references))
    }

    /// Tells the journal of all inodes, for its snapshot.
    pub fn tell_all(&self) {
        for slot in self.slots.iter().filter(|slot| slot.number != ROOT) {
            self.tell_held(&slot, None);
        }
        let Some(journal) = &self.journal else {
            return;
        };
        for asleep in &self.asleep {
            let record = |is_beside| asleep.record(*asleep.key(), is_beside);
            journal.put_with(asleep.parent, record, 0);
            let account = asleep.account.as_deref();
            let entries = account.map_or_else(Vec::new, ReturnedParts::entries);
            self.tell_entries(*asleep.key(), &entries);
        }
    }
}

#[cfg(test)]
mod tests;
