//! Which counts each home has still to be told. Pure; time is an argument.
//!
//! Each home gets the counts of its own items, as absolute numbers. A batch is on its way to a home at a time. If the
//! home says that it does not know the state that the batch begins with, it gets all of its counts. A home with counts
//! hears of this owner at least every [`BEAT`], so that it notices when the owner is gone.

use crate::model::slots::{SlotTable, slot_of_key};
use crate::model::{CountBatch, HomeNode, OwnerId};
use copperfs_policy::references::NO_STATE;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often a home with counts hears of their owner.
pub(super) const BEAT: Duration = Duration::from_millis(500);
/// How long a home that did not answer is left alone.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// The maximum number of counts in a message: 720 KiB.
pub(super) const COUNTS_MAX: usize = 1 << 16;

/// See the module.
#[derive(Debug)]
pub(super) struct Delivery {
    owner: OwnerId,
    dataset: u64,
    nodes: Vec<HomeNode>,
    slots: SlotTable,
    /// By rank: the homes, and those that have counts from before.
    homes: BTreeMap<u32, Home>,
    /// The last state that was given a number. One for all homes, so that an answer to a batch from before a home was
    /// away cannot be taken for an answer to a later one.
    last: u64,
}

#[derive(Debug, Default)]
struct Home {
    /// The state that it has confirmed.
    state: u64,
    /// The keys whose counts it has still to be told.
    due: BTreeSet<u64>,
    /// The batch that is on its way.
    on_way: Option<OnWay>,
    /// When the last batch was sent.
    sent: Duration,
    /// Whether it did not answer that.
    is_silent: bool,
}

/// A batch that a home has not answered.
#[derive(Debug)]
struct OnWay {
    /// The state after it.
    to: u64,
    /// The number of counts in it.
    counts: usize,
    /// Whether its home was to forget what it knows since it was sent. Then its answer says nothing of the counts that
    /// the home lacks.
    is_stale: bool,
}

/// The counts of an owner.
pub(super) trait Counted {
    /// Returns the number of references to the item with this key.
    fn count(&self, key: u64) -> u32;

    /// Returns the keys with a count above 0.
    fn keys(&self) -> impl Iterator<Item = u64>;
}

impl Delivery {
    pub(super) fn new(owner: OwnerId, dataset: u64) -> Self {
        Self {
            owner,
            dataset,
            nodes: Vec::new(),
            slots: SlotTable::default(),
            homes: BTreeMap::new(),
            last: NO_STATE,
        }
    }

    /// Follows a change of the homes: each of them gets all of its counts.
    pub(super) fn place(&mut self, nodes: &[HomeNode]) {
        if self.nodes == nodes {
            return;
        }
        self.nodes = nodes.to_vec();
        self.slots = SlotTable::new(nodes);
        let is_home = |rank: u32| nodes.iter().any(|node| node.rank == rank);
        // A node that is no home any more forgets the counts as if this owner were gone.
        self.homes.retain(|rank, _| is_home(*rank));
        for node in nodes {
            self.homes.entry(node.rank).or_default().forget();
        }
    }

    /// Records that the counts of these items have changed.
    pub(super) fn changed(&mut self, keys: impl IntoIterator<Item = u64>) {
        for key in keys {
            if let Some(rank) = self.home(key)
                && let Some(home) = self.homes.get_mut(&rank)
            {
                home.due.insert(key);
            }
        }
    }

    /// Returns the number of items whose homes have not confirmed the current count.
    pub(super) fn unconfirmed(&self) -> u64 {
        let homes = self.homes.values();
        homes
            .map(|home| {
                let on_way = home.on_way.as_ref().map_or(0, |batch| batch.counts);
                (home.due.len() + on_way) as u64
            })
            .sum()
    }

    /// Returns whether a home has still to be told of changes.
    pub(super) fn has_due(&self) -> bool {
        self.homes.values().any(|home| !home.due.is_empty())
    }

    /// Returns the ranks of homes that may be sent something now.
    pub(super) fn idle(&self) -> Vec<u32> {
        let idle = self.homes.iter().filter(|(_, home)| home.on_way.is_none());
        idle.map(|(rank, _)| *rank).collect()
    }

    /// Returns the next batch for a home, if one is due, which is on its way from now on.
    pub(super) fn next(
        &mut self,
        rank: u32,
        counts: &impl Counted,
        now: Duration,
    ) -> Option<CountBatch> {
        let home = self.homes.get(&rank).filter(|home| home.on_way.is_none())?;
        let since = now.saturating_sub(home.sent);
        let is_quiet = home.due.is_empty() && since < BEAT;
        if is_quiet || (home.is_silent && since < RETRY_PAUSE) {
            return None;
        }
        let is_new = home.state == NO_STATE;
        let mut own = counts.keys().filter(|key| self.home(*key) == Some(rank));
        let mut all = BTreeSet::new();
        match (is_new, home.due.is_empty()) {
            (true, _) => {
                all = own.collect();
                let had_counts = !all.is_empty();
                // With those that have lost their last reference before the home was told of it. Otherwise they would
                // be undeclared there, and be spared below the floor, although no task will read them.
                let due = home.due.iter().copied();
                all.extend(due.filter(|key| self.home(*key) == Some(rank)));
                // Nothing is said to a home without counts, except once for items that have just lost theirs.
                if !had_counts && (all.is_empty() || home.is_silent) {
                    let home = self.homes.get_mut(&rank)?;
                    home.due.clear();
                    home.sent = now;
                    return None;
                }
            }
            // A home whose last count has gone may forget this owner.
            (false, true) if own.next().is_none() => return None,
            (false, _) => {}
        }
        let home = self.homes.get_mut(&rank)?;
        if is_new {
            home.due = all;
        }
        let from = home.state;
        self.last += 1;
        home.sent = now;
        let rest = match home.due.iter().nth(COUNTS_MAX).copied() {
            Some(key) => home.due.split_off(&key),
            None => BTreeSet::new(),
        };
        let told = std::mem::replace(&mut home.due, rest).into_iter();
        home.on_way = Some(OnWay {
            to: self.last,
            counts: told.len(),
            is_stale: false,
        });
        Some(CountBatch {
            dataset: self.dataset,
            owner: self.owner,
            from,
            to: self.last,
            counts: told.map(|key| (key, counts.count(key))).collect(),
        })
    }

    /// Records the answer to a batch: the state that the home has now, or `None` if it has not answered.
    pub(super) fn answered(&mut self, rank: u32, batch: &CountBatch, state: Option<u64>) {
        let Some(home) = self.homes.get_mut(&rank) else {
            return;
        };
        // A home that was away meanwhile has been sent another one since.
        let Some(on_way) = home.on_way.take_if(|on_way| on_way.to == batch.to) else {
            return;
        };
        home.is_silent = state.is_none();
        match state {
            Some(state) if state == batch.to && !on_way.is_stale => home.state = state,
            Some(_) => home.forget(),
            // It may or may not have arrived. The counts go again, with what the home is known to have.
            None => home.due.extend(batch.counts.iter().map(|(key, _)| *key)),
        }
    }

    /// Returns the rank of the home of an item.
    fn home(&self, key: u64) -> Option<u32> {
        let home = self.slots.home_of_slot(slot_of_key(key))?;
        self.nodes.get(home).map(|node| node.rank)
    }
}

impl Home {
    /// The home does not know the state that was confirmed.
    fn forget(&mut self) {
        self.state = NO_STATE;
        if let Some(on_way) = &mut self.on_way {
            on_way.is_stale = true;
        }
        // Due at once.
        self.sent = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests;
