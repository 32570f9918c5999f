//! A sleeping inode, and its records in the journal.

use crate::read::{ReturnedEntry, ReturnedParts};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

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

    /// The record of the inode, without what was returned of it.
    pub(super) fn record(&self, number: u64) -> InodeRecord<'_> {
        InodeRecord::Held {
            number,
            parent: self.parent,
            name: &self.name,
            state: self.state,
            change: self.change,
            references: self.references,
        }
    }
}

/// What the journal says about an inode. Encoded by postcard.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum InodeRecord<'a> {
    /// The kernel holds it.
    Held {
        number: u64,
        parent: u64,
        #[serde(borrow)]
        name: &'a [u8],
        state: State,
        change: [u8; 8],
        references: u64,
    },
    /// The number of references that the kernel has on it now.
    References { number: u64, references: u64 },
    /// The kernel holds it no more.
    Gone { number: u64 },
    /// More of it was returned, under the version that the last record of it has told.
    Returned {
        number: u64,
        entries: Vec<ReturnedEntry>,
    },
}

/// The inodes that a journal tells of, while it is read.
#[derive(Debug, Default)]
pub struct RememberedInodes(pub(super) HashMap<u64, Asleep>);

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
                let before = self.0.remove(&number);
                let asleep = Asleep {
                    parent,
                    name: name.into(),
                    state,
                    change,
                    references,
                    account: before
                        .filter(|before| before.state.look() == state.look())
                        .filter(|before| before.change == change)
                        .and_then(|before| before.account),
                };
                self.0.insert(number, asleep);
            }
            Ok(InodeRecord::Returned { number, entries }) => {
                if let Some(asleep) = self.0.get_mut(&number) {
                    let account = asleep.account.get_or_insert_default();
                    entries.into_iter().for_each(|entry| account.restore(entry));
                }
            }
            Ok(InodeRecord::References { number, references }) => {
                if let Some(asleep) = self.0.get_mut(&number) {
                    asleep.references = references;
                }
            }
            Ok(InodeRecord::Gone { number }) => {
                self.0.remove(&number);
            }
            Err(error) => tracing::debug!(%error, "a record of no inode"),
        }
    }

    /// Returns the path of an inode for people; from the first directory that is known.
    #[must_use]
    pub fn path(&self, number: u64) -> String {
        let above = |at: &u64| self.0.get(at).map(|asleep| asleep.parent);
        let numbers = std::iter::successors(Some(number), above).take(super::DEPTH_MAX);
        let names = numbers.filter_map(|at| Some(String::from_utf8_lossy(&self.0.get(&at)?.name)));
        let mut names: Vec<_> = names.collect();
        names.reverse();
        names.join("/")
    }

    /// Returns the number of inodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
