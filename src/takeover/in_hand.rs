//! Keeps the numbers of requests in hand in the journal: see [`copperfs_fuse::InHandRecord`].

use super::NodeRecord;
use crate::journal::JournalPart;
use copperfs_fuse::InHandRecord;
use parking_lot::Mutex;
use std::fmt;
use std::ops::Range;

/// About the bytes of a record.
const RECORD_BYTES: u64 = 16;

/// The requests of one mount.
pub(super) struct InHand {
    journal: JournalPart,
    mount: u8,
    last: Mutex<Option<Range<u64>>>,
}

impl InHand {
    pub(super) fn new(journal: JournalPart, mount: u8) -> Self {
        Self {
            journal,
            mount,
            last: Mutex::new(None),
        }
    }

    /// Tells the journal again, for its snapshot.
    pub(super) fn tell(&self) {
        if let Some(numbers) = &*self.last.lock() {
            self.put(numbers.clone());
        }
    }

    fn put(&self, numbers: Range<u64>) {
        let mount = self.mount;
        self.journal
            .put(&NodeRecord::InHand { mount, numbers }, RECORD_BYTES);
    }
}

impl InHandRecord for InHand {
    fn note(&self, numbers: Range<u64>) {
        let mut last = self.last.lock();
        self.put(numbers.clone());
        *last = Some(numbers);
        self.journal.commit();
    }
}

impl fmt::Debug for InHand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InHand")
            .field("mount", &self.mount)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
