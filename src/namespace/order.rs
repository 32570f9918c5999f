//! The order in which inodes are dropped: oldest first.

use parking_lot::Mutex;
use std::collections::VecDeque;

/// Stale entries that are tolerated, in addition to one per inode.
const STALE_MAX: usize = 1024;

/// An entry for one inode: its number, and which slot of that number it means.
pub(super) type Turn = (u64, u32);

/// A queue of inodes. The entry of a forgotten inode stays in the queue; the number of entries is at most
/// twice that of the inodes plus [`STALE_MAX`].
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Locked before a shard of the table's map, never after.
    turns: Mutex<VecDeque<Turn>>,
}

impl Order {
    /// Appends an inode. `alive` tells whether an entry's inode still exists, and `inodes` is their number.
    pub(super) fn push(&self, turn: Turn, inodes: usize, alive: impl Fn(Turn) -> bool) {
        let mut turns = self.turns.lock();
        turns.push_back(turn);
        // Checking up to two old entries for each new one shrinks the queue, at a small cost to each
        // look-up.
        for _ in 0..2 {
            if turns.len() <= 2 * inodes + STALE_MAX {
                break;
            }
            if let Some(turn) = turns.pop_front()
                && alive(turn)
            {
                turns.push_back(turn);
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
        pick: impl Fn(Turn) -> Option<bool>,
    ) -> Vec<u64> {
        let mut turns = self.turns.lock();
        let mut picked = Vec::with_capacity(count);
        for _ in 0..looks.min(turns.len()) {
            if picked.len() == count {
                break;
            }
            let Some(turn) = turns.pop_front() else {
                break;
            };
            let Some(taken) = pick(turn) else {
                continue;
            };
            turns.push_back(turn);
            if taken {
                picked.push(turn.0);
            }
        }
        // Release memory after the queue was long.
        if turns.capacity() > 4 * (turns.len() + STALE_MAX) {
            turns.shrink_to_fit();
        }
        picked
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.turns.lock().len()
    }
}
