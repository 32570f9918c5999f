//! In which order inodes are dropped: those first that the kernel learned of first.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Stale places that are left alone, beside one for each inode.
const STALE_MAX: usize = 1024;

/// The place of one inode: its number, and which of its lives.
pub(super) type Turn = (u64, u32);

/// A queue of inodes. An inode that is forgotten leaves its place behind; places are at most twice the
/// inodes and [`STALE_MAX`].
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Taken before a shard of the table's map, never after.
    turns: Mutex<VecDeque<Turn>>,
}

impl Order {
    /// Puts an inode last; `alive` says whether a place is still an inode's, `inodes` how many there are.
    pub(super) fn push(&self, turn: Turn, inodes: usize, alive: impl Fn(Turn) -> bool) {
        let mut turns = self.lock();
        turns.push_back(turn);
        // Two for one: so the queue shrinks, at a cost that no single look-up notices.
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

    /// Looks at up to `looks` places, oldest first, until `pick` has taken `count` of them. What is alive
    /// then stands last; `pick` says `None` of what is not, and `false` of what is spared.
    pub(super) fn pick(
        &self,
        count: usize,
        looks: usize,
        pick: impl Fn(Turn) -> Option<bool>,
    ) -> Vec<u64> {
        let mut turns = self.lock();
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
        // A queue that was long once gives its room back.
        if turns.capacity() > 4 * (turns.len() + STALE_MAX) {
            turns.shrink_to_fit();
        }
        picked
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Turn>> {
        // At worst an inode has no place: it is not dropped unasked.
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }
}
