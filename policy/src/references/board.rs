//! The counts that a home has been told: the absolute counts of each owner, and their sums.
//!
//! An owner is a node that has taken submissions. It numbers its states. A batch says how to get from one state to a
//! later one. A home that is in another state than a batch begins with does not apply it, and says in which state it is.
//! Then the owner sends all of its counts, which begin with no state. So a batch that is lost, doubled or late makes no
//! count wrong for longer than one exchange.
//!
//! A count of 0 is the same as no count.

use std::collections::HashMap;
use std::hash::Hash;

/// The state of an owner of which nothing is known.
pub const NO_STATE: u64 = 0;

/// See the module. `O` identifies one process of an owner, and `B` a block.
#[derive(Debug, Clone)]
pub struct CountBoard<O, B> {
    owners: HashMap<O, Told<B>>,
    /// Without zeros.
    totals: HashMap<B, u32>,
}

/// The counts of one owner.
#[derive(Debug, Clone)]
struct Told<B> {
    state: u64,
    counts: HashMap<B, u32>,
}

/// A step from one state of an owner to a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch<'a, B> {
    /// The state that it begins with. [`NO_STATE`]: it replaces all that is known of the owner.
    pub from: u64,
    /// The state after it.
    pub to: u64,
    /// The blocks whose counts differ, with their new counts.
    pub counts: &'a [(B, u32)],
}

impl<O, B> Default for CountBoard<O, B> {
    fn default() -> Self {
        Self {
            owners: HashMap::new(),
            totals: HashMap::new(),
        }
    }
}

impl<O: Eq + Hash, B: Eq + Hash + Copy> CountBoard<O, B> {
    /// Applies a batch, if it begins with the known state of its owner. Adds the blocks whose sums may have changed to
    /// `changed`. Returns the state of the owner after it, which is `batch.to` if it was applied.
    pub fn apply(&mut self, owner: O, batch: Batch<'_, B>, changed: &mut impl Extend<B>) -> u64 {
        if batch.from == NO_STATE {
            self.forget(&owner, changed);
        } else if self.state(&owner) != batch.from {
            return self.state(&owner);
        }
        let told = self.owners.entry(owner).or_insert_with(|| Told {
            state: NO_STATE,
            counts: HashMap::with_capacity(batch.counts.len()),
        });
        told.state = batch.to;
        for (block, count) in batch.counts {
            let before = match count {
                0 => told.counts.remove(block),
                _ => told.counts.insert(*block, *count),
            };
            replace(&mut self.totals, *block, before.unwrap_or(0), *count);
            changed.extend(Some(*block));
        }
        batch.to
    }

    /// Removes the counts of an owner that is gone.
    pub fn forget(&mut self, owner: &O, changed: &mut impl Extend<B>) {
        let told = self.owners.remove(owner);
        for (block, count) in told.into_iter().flat_map(|told| told.counts) {
            replace(&mut self.totals, block, count, 0);
            changed.extend(Some(block));
        }
    }

    /// Returns the state of an owner.
    #[must_use]
    pub fn state(&self, owner: &O) -> u64 {
        self.owners.get(owner).map_or(NO_STATE, |told| told.state)
    }

    /// Returns the sum of all owners' counts of a block.
    #[must_use]
    pub fn total(&self, block: &B) -> u32 {
        self.totals.get(block).copied().unwrap_or(0)
    }

    /// Returns the blocks with a sum above 0, in no order.
    pub fn totals(&self) -> impl Iterator<Item = (B, u32)> {
        self.totals.iter().map(|(block, total)| (*block, *total))
    }
}

/// Replaces one owner's part of a sum. The parts of a block never exceed `u32` in honest clusters; elsewhere the sum is
/// capped, and follows the counts again when the owners have sent all of them.
fn replace<B: Eq + Hash>(totals: &mut HashMap<B, u32>, block: B, before: u32, after: u32) {
    let total = totals.get(&block).copied().unwrap_or(0);
    match total.saturating_sub(before).saturating_add(after) {
        0 => drop(totals.remove(&block)),
        total => drop(totals.insert(block, total)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn batch(from: u64, to: u64, counts: &[(u8, u32)]) -> Batch<'_, u8> {
        Batch { from, to, counts }
    }

    #[test]
    fn counts_of_owners_add_up_and_go_with_them() {
        let mut board = CountBoard::default();
        let mut changed = BTreeSet::new();
        assert_eq!(
            board.apply("x", batch(0, 1, &[(1, 3), (2, 1)]), &mut changed),
            1
        );
        assert_eq!(board.apply("y", batch(0, 7, &[(1, 2)]), &mut changed), 7);
        assert_eq!([1, 2, 3].map(|block| board.total(&block)), [5, 1, 0]);
        assert_eq!(
            board.apply("x", batch(1, 2, &[(1, 0), (3, 4)]), &mut changed),
            2
        );
        assert_eq!([1, 2, 3].map(|block| board.total(&block)), [2, 1, 4]);
        changed.clear();
        board.forget(&"x", &mut changed);
        assert_eq!(changed, BTreeSet::from([2, 3]));
        assert_eq!([1, 2, 3].map(|block| board.total(&block)), [2, 0, 0]);
        assert_eq!(board.state(&"x"), NO_STATE);
    }

    #[test]
    fn a_batch_that_was_lost_or_doubled_is_noticed() {
        let mut board = CountBoard::default();
        let mut changed = Vec::new();
        let first = [(1, 3)];
        assert_eq!(board.apply("x", batch(4, 5, &first), &mut changed), 0);
        assert_eq!(board.apply("x", batch(0, 5, &first), &mut changed), 5);
        // Number 6 is lost.
        assert_eq!(board.apply("x", batch(6, 7, &[(1, 9)]), &mut changed), 5);
        assert_eq!(board.total(&1), 3);
        assert_eq!(board.apply("x", batch(5, 6, &[(1, 4)]), &mut changed), 6);
        assert_eq!(board.apply("x", batch(5, 6, &[(1, 4)]), &mut changed), 6);
        assert_eq!(board.total(&1), 4);
        // A full state replaces a later one, as after a restart of the owner's counter.
        assert_eq!(board.apply("x", batch(0, 2, &[(2, 1)]), &mut changed), 2);
        assert_eq!([1, 2].map(|block| board.total(&block)), [0, 1]);
    }

    proptest! {
        /// Owners whose batches are lost, doubled and delayed at random; a home that restarts. After one more exchange
        /// with each owner the sums are those of the owners.
        #[test]
        fn sums_are_right_after_an_exchange_whatever_happened(
            steps in prop::collection::vec((0_u8..3, 0_u8..6, 0_u32..4, 0_u8..8), 1..80),
        ) {
            let mut board: CountBoard<u8, u8> = CountBoard::default();
            // The state of each owner, its counts, and its batches that the home has not got yet.
            type Owner = (u64, BTreeMap<u8, u32>, Vec<(u64, u64, Vec<(u8, u32)>)>);
            let mut owners: BTreeMap<u8, Owner> = BTreeMap::new();
            for (owner, block, count, fate) in steps {
                let (state, counts, waiting) = owners.entry(owner).or_insert_with(|| (1, BTreeMap::new(), Vec::new()));
                counts.insert(block, count);
                waiting.push((*state, *state + 1, vec![(block, count)]));
                *state += 1;
                match fate {
                    0 => board = CountBoard::default(),
                    1 => waiting.reverse(),
                    2 => drop(waiting.pop()),
                    3..=5 => {
                        for (from, to, counts) in waiting.iter() {
                            board.apply(owner, batch(*from, *to, counts), &mut Vec::new());
                        }
                        if fate == 3 {
                            waiting.clear();
                        }
                    }
                    _ => {}
                }
            }
            for (owner, (state, counts, _)) in &owners {
                let reached = board.apply(*owner, batch(*state, *state + 1, &[]), &mut Vec::new());
                if reached != *state + 1 {
                    let all: Vec<(u8, u32)> = counts.iter().map(|(block, count)| (*block, *count)).collect();
                    board.apply(*owner, batch(NO_STATE, *state + 1, &all), &mut Vec::new());
                }
            }
            for block in 0..6 {
                let due: u32 = owners.values().filter_map(|(_, counts, _)| counts.get(&block)).sum();
                prop_assert_eq!(board.total(&block), due);
            }
            prop_assert!(board.totals().all(|(block, total)| total > 0 && total == board.total(&block)));
        }
    }
}
