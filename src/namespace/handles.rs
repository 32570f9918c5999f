//! The numbers of open files. They outlive their daemon, because the kernel uses them until the file is closed.
//!
//! A number is never used again, also not by a successor of the daemon: its numbers begin above those of all
//! predecessors.

use crate::journal::JournalPart;
use dashmap::{DashMap, DashSet};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many numbers each daemon has: more than it can use up.
const OF_A_DAEMON: u64 = 1 << 40;

/// About the bytes of a record.
const RECORD_BYTES: u64 = 12;

/// Returns the number before the first one of the daemon that follows `generation` others.
#[must_use]
pub fn before_first(generation: u32) -> u64 {
    u64::from(generation) * OF_A_DAEMON
}

/// What the journal says about an open file. Encoded by postcard.
#[derive(Debug, Serialize, Deserialize)]
enum HandleRecord {
    /// This thread has opened it.
    Open { handle: u64, thread: u32 },
    /// It is closed.
    Closed { handle: u64 },
}

/// The open files that a journal tells of, while it is read: the thread that has opened each.
#[derive(Debug, Default)]
pub struct RememberedHandles(HashMap<u64, u32>);

impl RememberedHandles {
    /// Takes the next record. A record that is none is ignored: the file is read on without its job.
    pub fn take(&mut self, record: &[u8]) {
        match postcard::from_bytes(record) {
            Ok(HandleRecord::Open { handle, thread }) => drop(self.0.insert(handle, thread)),
            Ok(HandleRecord::Closed { handle }) => drop(self.0.remove(&handle)),
            Err(error) => tracing::debug!(%error, "a record of no open file"),
        }
    }
}

/// See the module.
#[derive(Default)]
pub struct HandleTable {
    last: AtomicU64,
    /// The thread that has opened each file. Empty without a journal.
    threads: DashMap<u64, u32>,
    /// The files of predecessors that were not read since: those of `threads` that are here, too.
    inherited: DashSet<u64>,
    /// Whether there may be any.
    has_inherited: bool,
    journal: Option<JournalPart>,
}

impl HandleTable {
    /// Writes the open files into `journal` from now on. `generation`: the number of predecessors, which have left
    /// `remembered`.
    #[must_use]
    pub fn journaled(journal: JournalPart, generation: u32, remembered: RememberedHandles) -> Self {
        let threads: DashMap<u64, u32> = remembered.0.into_iter().collect();
        Self {
            last: AtomicU64::new(before_first(generation)),
            inherited: threads.iter().map(|open| *open.key()).collect(),
            has_inherited: !threads.is_empty(),
            threads,
            journal: Some(journal),
        }
    }

    /// Returns the number of a file that `thread` opens. The journal has it.
    pub fn open(&self, thread: u32) -> u64 {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(journal) = &self.journal {
            self.threads.insert(handle, thread);
            journal.put(&HandleRecord::Open { handle, thread }, 0);
            journal.commit();
        }
        handle
    }

    /// Forgets a file that is closed.
    pub fn close(&self, handle: u64) {
        if self.has_inherited {
            self.inherited.remove(&handle);
        }
        if let (Some(journal), Some(_)) = (&self.journal, self.threads.remove(&handle)) {
            journal.put(&HandleRecord::Closed { handle }, 2 * RECORD_BYTES);
        }
    }

    /// Returns the thread that has opened a file of a predecessor, once.
    pub fn take_inherited(&self, handle: u64) -> Option<u32> {
        if !self.has_inherited {
            return None;
        }
        self.inherited.remove(&handle)?;
        self.threads.get(&handle).map(|thread| *thread)
    }

    /// Tells the journal of all open files, for its snapshot.
    pub fn tell_all(&self) {
        let Some(journal) = &self.journal else {
            return;
        };
        for open in &self.threads {
            let (handle, thread) = (*open.key(), *open.value());
            journal.put(&HandleRecord::Open { handle, thread }, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Journal, MemoryFile};
    use std::sync::Arc;

    #[test]
    fn open_files_are_those_of_their_threads_also_after_a_take_over() {
        let file = MemoryFile::new().unwrap();
        let kept = rustix::io::dup(&file).unwrap();
        let journal = Arc::new(Journal::create(file).unwrap());
        let part = JournalPart::new(Arc::clone(&journal), 3);
        let first = HandleTable::journaled(part, 0, RememberedHandles::default());
        let [a, b, c] = [11, 12, 13].map(|thread| first.open(thread));
        assert_eq!([a, b, c], [1, 2, 3]);
        first.close(b);
        assert_eq!(first.take_inherited(a), None, "it is this daemon's own");
        journal.snapshot(|| first.tell_all()).unwrap();
        first.close(first.open(14));
        journal.commit();

        let mut remembered = RememberedHandles::default();
        let journal = Journal::adopt(MemoryFile::from(kept), |record| {
            remembered.take(&record[1..]);
        });
        let part = JournalPart::new(Arc::new(journal.unwrap()), 3);
        let second = HandleTable::journaled(part, 1, remembered);
        assert_eq!(second.open(15), OF_A_DAEMON + 1);
        assert_eq!(
            [a, a, b].map(|handle| second.take_inherited(handle)),
            [Some(11), None, None]
        );
        second.close(c);
        assert_eq!(second.take_inherited(c), None);
        let left: Vec<u64> = second.threads.iter().map(|open| *open.key()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn without_a_journal_only_numbers_are_kept() {
        let table = HandleTable::default();
        assert_eq!([table.open(1), table.open(1)], [1, 2]);
        table.close(1);
        assert!(table.threads.is_empty());
    }
}
