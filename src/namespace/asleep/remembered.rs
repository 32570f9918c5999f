//! A sleeping inode, and its records in the journal.

use crate::read::{ReturnedEntry, ReturnedParts};
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use serde::{Deserialize, Serialize};

/// Memory of a sleeping inode without its name: itself, its entry in the map, and the allocator's overhead.
const ASLEEP_BYTES: u64 = 120;

/// A sleeping inode.
#[derive(Debug)]
pub(in crate::namespace) struct Asleep {
    pub(super) parent: u64,
    pub(super) name: Box<[u8]>,
    pub(super) state: State,
    /// See [`super::change_of`].
    pub(super) change: [u8; 8],
    pub(super) references: u64,
    /// What was returned of it under an unsettled version, unless `state` has all of that.
    pub(super) account: Option<Box<ReturnedParts>>,
}

/// What else is known of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum State {
    Directory,
    File,
    /// Its version is unsettled, and no byte was returned to readers.
    Unsettled,
    /// Its version is unsettled, and bytes were returned. They are compared with later ones: see
    /// [`crate::read::Returned`].
    UnsettledRead {
        /// The look at the file that the version names.
        look: u64,
        /// The short hash of the file's only block; `None` if it has several, or if pieces of it were returned. Then
        /// further records follow.
        block: Option<[u8; 16]>,
    },
}

impl State {
    /// The look at the file whose bytes were returned.
    fn look(self) -> Option<u64> {
        match self {
            Self::UnsettledRead { look, .. } => Some(look),
            Self::Directory | Self::File | Self::Unsettled => None,
        }
    }
}

impl Asleep {
    pub(super) fn cost(&self) -> u64 {
        let account = self.account.as_ref().map_or(0, |account| {
            size_of::<ReturnedParts>() + account.heap_bytes()
        });
        ASLEEP_BYTES + (self.name.len() + account) as u64
    }

    /// Returns what was returned of it; `None`: not all of it is known.
    pub(super) fn returned(&self) -> Option<ReturnedParts> {
        let mut returned = self.account.as_deref().cloned().unwrap_or_default();
        if let State::UnsettledRead {
            block: Some(hash), ..
        } = self.state
        {
            returned.restore(ReturnedEntry::Block(0, hash));
        }
        (!returned.is_full()).then_some(returned)
    }

    /// The record of the inode, without what was returned of it. `is_beside`: see [`InodeRecord::Held`].
    pub(super) fn record(&self, number: u64, is_beside: bool) -> InodeRecord<'_> {
        InodeRecord::Held {
            number: number.into(),
            parent: (!is_beside).then_some(self.parent.into()),
            name: &self.name,
            state: self.state,
            change: self.change,
            references: self.references,
        }
    }
}

/// The number of an inode, in little-endian. It is a hash, so an encoding of varying length would be longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Number(#[serde(with = "serde_bytes")] [u8; 8]);

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self(number.to_le_bytes())
    }
}

impl From<Number> for u64 {
    fn from(number: Number) -> Self {
        Self::from_le_bytes(number.0)
    }
}

/// What the journal says about an inode. Encoded by postcard; bytes at once, because a walk makes a record for each name.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum InodeRecord<'a> {
    /// The kernel holds it.
    Held {
        number: Number,
        /// `None`: that of the last such record. Names come by the directory, so most records leave it out.
        parent: Option<Number>,
        #[serde(borrow, with = "serde_bytes")]
        name: &'a [u8],
        state: State,
        #[serde(with = "serde_bytes")]
        change: [u8; 8],
        references: u64,
    },
    /// The number of references that the kernel has on it now.
    References { number: Number, references: u64 },
    /// The kernel holds it no more.
    Gone { number: Number },
    /// More of it was returned, under the version that the last record of it has told.
    Returned {
        number: Number,
        entries: Vec<ReturnedEntry>,
    },
}

/// The inodes that a journal tells of, while it is read.
#[derive(Debug, Default)]
pub struct RememberedInodes {
    /// As in the table that takes them, because a copy of a million inodes takes a quarter of a second.
    pub(super) inodes: DashMap<u64, Asleep>,
    /// The parent in the last record that has one.
    parent: Option<Number>,
}

impl RememberedInodes {
    /// Takes the next record. A record that is none is ignored: its inode is unknown, and its readers get ESTALE.
    pub fn take(&mut self, record: &[u8]) {
        match postcard::from_bytes(record) {
            Ok(InodeRecord::Held {
                number,
                parent,
                name,
                state,
                change,
                references,
            }) => {
                self.parent = parent.or(self.parent);
                let Some(parent) = self.parent else {
                    tracing::debug!("a record of an inode without its directory");
                    return;
                };
                let mut asleep = Asleep {
                    parent: parent.into(),
                    name: name.into(),
                    state,
                    change,
                    references,
                    account: None,
                };
                match self.inodes.entry(number.into()) {
                    Entry::Vacant(place) => drop(place.insert(asleep)),
                    Entry::Occupied(mut before) => {
                        let before = before.get_mut();
                        if before.state.look() == state.look() && before.change == change {
                            asleep.account = before.account.take();
                        }
                        *before = asleep;
                    }
                }
            }
            Ok(InodeRecord::Returned { number, entries }) => {
                if let Some(mut asleep) = self.inodes.get_mut(&number.into()) {
                    let account = asleep.account.get_or_insert_default();
                    entries.into_iter().for_each(|entry| account.restore(entry));
                }
            }
            Ok(InodeRecord::References { number, references }) => {
                if let Some(mut asleep) = self.inodes.get_mut(&number.into()) {
                    asleep.references = references;
                }
            }
            Ok(InodeRecord::Gone { number }) => {
                self.inodes.remove(&number.into());
            }
            Err(error) => tracing::debug!(%error, "a record of no inode"),
        }
    }

    /// Returns the path of an inode for people; from the first directory that is known.
    #[must_use]
    pub fn path(&self, number: u64) -> String {
        let above = |at: &u64| self.inodes.get(at).map(|asleep| asleep.parent);
        let numbers = std::iter::successors(Some(number), above).take(super::DEPTH_MAX);
        let name = |at| Some(String::from_utf8_lossy(&self.inodes.get(&at)?.name).into_owned());
        let mut names: Vec<_> = numbers.filter_map(name).collect();
        names.reverse();
        names.join("/")
    }

    /// Returns the number of inodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Returns whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }
}
