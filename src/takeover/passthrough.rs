//! Keeps the opens of a mount whose reads may bypass the daemon: see [`copperfs_fuse::PassthroughRecord`].

use crate::journal::JournalPart;
use copperfs_fuse::{Ino, PassthroughOpen, PassthroughRecord};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;

/// About the bytes of a record.
const RECORD_BYTES: u64 = 20;

/// What the journal says about an open. Encoded by postcard.
#[derive(Debug, Serialize, Deserialize)]
enum OpenRecord {
    /// It was made. `backing`: see [`PassthroughOpen`].
    Opened {
        ino: u64,
        handle: u64,
        backing: Option<u32>,
    },
    /// It was released.
    Released { handle: u64 },
}

impl From<PassthroughOpen> for OpenRecord {
    fn from(open: PassthroughOpen) -> Self {
        Self::Opened {
            ino: open.ino.0,
            handle: open.handle,
            backing: open.backing,
        }
    }
}

/// The opens that a journal tells of, while it is read, by their handles.
#[derive(Debug, Default)]
pub(super) struct RememberedOpens(HashMap<u64, PassthroughOpen>);

impl RememberedOpens {
    /// Takes the next record. A record that is none is ignored.
    pub(super) fn take(&mut self, record: &[u8]) {
        match postcard::from_bytes(record) {
            Ok(OpenRecord::Opened {
                ino,
                handle,
                backing,
            }) => {
                let ino = Ino(ino);
                let open = PassthroughOpen {
                    ino,
                    handle,
                    backing,
                };
                let _before = self.0.insert(handle, open);
            }
            Ok(OpenRecord::Released { handle }) => drop(self.0.remove(&handle)),
            Err(error) => tracing::warn!(%error, "a record of no open"),
        }
    }

    /// Returns all opens.
    pub(super) fn all(&self) -> Vec<PassthroughOpen> {
        self.0.values().copied().collect()
    }
}

/// The opens of the software mount.
pub(super) struct Opens {
    journal: JournalPart,
    /// Guards that the journal has the same order.
    open: Mutex<HashMap<u64, PassthroughOpen>>,
}

impl Opens {
    /// Those of earlier daemons are `remembered`.
    pub(super) fn new(journal: JournalPart, remembered: RememberedOpens) -> Self {
        Self {
            journal,
            open: Mutex::new(remembered.0),
        }
    }

    /// Tells the journal again, for its snapshot.
    pub(super) fn tell_all(&self) {
        for open in self.open.lock().values() {
            self.journal.put(&OpenRecord::from(*open), 0);
        }
    }
}

impl PassthroughRecord for Opens {
    fn opened(&self, open: PassthroughOpen) {
        let mut opens = self.open.lock();
        self.journal.put(&OpenRecord::from(open), 0);
        self.journal.commit();
        let _before = opens.insert(open.handle, open);
    }

    fn released(&self, handle: u64) {
        let mut opens = self.open.lock();
        if opens.remove(&handle).is_some() {
            self.journal
                .put(&OpenRecord::Released { handle }, 2 * RECORD_BYTES);
            self.journal.commit();
        }
    }
}

impl fmt::Debug for Opens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opens({} files)", self.open.lock().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Journal, MemoryFile};
    use std::sync::Arc;

    #[test]
    fn opens_are_remembered_until_they_are_released() {
        let file = MemoryFile::new().unwrap();
        let kept = rustix::io::dup(&file).unwrap();
        let journal = Arc::new(Journal::create(file).unwrap());
        let part = JournalPart::new(Arc::clone(&journal), 3);
        let opens = Opens::new(part, RememberedOpens::default());
        let open = |ino, handle, backing| PassthroughOpen {
            ino: Ino(ino),
            handle,
            backing,
        };
        let (first, second, third) = (open(5, 2, Some(7)), open(5, 4, Some(7)), open(6, 6, None));
        opens.opened(first);
        opens.opened(second);
        journal.snapshot(|| opens.tell_all()).unwrap();
        // The kernel has sent it again.
        opens.opened(second);
        opens.opened(third);
        opens.released(first.handle);
        opens.released(first.handle);

        let mut remembered = RememberedOpens::default();
        let adopted = Journal::adopt(MemoryFile::from(kept), |record| {
            remembered.take(&record[1..]);
        });
        drop(adopted.unwrap());
        let mut all = remembered.all();
        all.sort_by_key(|open| open.handle);
        assert_eq!(all, [second, third]);
    }
}
