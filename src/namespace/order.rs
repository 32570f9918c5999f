//! The order in which the kernel is requested to drop inodes: oldest first.

use parking_lot::Mutex;
use std::collections::VecDeque;

/// Tolerated stale entries, in addition to one per inode.
const STALE_MAX: usize = 1024;

/// A queue entry: the number of an inode, and the `life` of its slot.
pub(super) type QueueEntry = (u64, u32);

/// A queue of inodes. The entry of a forgotten inode stays in the queue; the number of entries is at most
/// twice that of the inodes plus [`STALE_MAX`].
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Locked before a shard of the table's map, never after.
    entries: Mutex<VecDeque<QueueEntry>>,
}

impl Order {
    /// Appends an inode. `alive` returns whether an entry's inode still exists, and `inodes` is their number.
    pub(super) fn push(
        &self,
        entry: QueueEntry,
        inodes: usize,
        alive: impl Fn(QueueEntry) -> bool,
    ) {
        let mut entries = self.entries.lock();
        entries.push_back(entry);
        // Two old entries are checked for each new one. That shrinks the queue, at a small cost to each look-up.
        for _ in 0..2 {
            if entries.len() <= 2 * inodes + STALE_MAX {
                break;
            }
            if let Some(entry) = entries.pop_front()
                && alive(entry)
            {
                entries.push_back(entry);
            }
        }
    }

    /// Examines up to `looks` entries, oldest first, until `pick` has taken `count` of them. Entries of
    /// existing inodes move to the end. `pick` returns `None` if the inode no longer exists, and `false` to
    /// spare it.
    pub(super) fn pick(
        &self,
        count: usize,
        looks: usize,
        pick: impl Fn(QueueEntry) -> Option<bool>,
    ) -> Vec<u64> {
        let mut entries = self.entries.lock();
        let mut picked = Vec::with_capacity(count);
        for _ in 0..looks.min(entries.len()) {
            if picked.len() == count {
                break;
            }
            let Some(entry) = entries.pop_front() else {
                break;
            };
            let Some(taken) = pick(entry) else {
                continue;
            };
            entries.push_back(entry);
            if taken {
                picked.push(entry.0);
            }
        }
        // Release memory after the queue was long.
        if entries.capacity() > 4 * (entries.len() + STALE_MAX) {
            entries.shrink_to_fit();
        }
        picked
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.lock().len()
    }
}
