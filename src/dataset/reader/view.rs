//! A decision, as those who read look at it.

use crate::model::{Decision, slots};
use copperfs_overlay::ItemPath;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Homes that are asked for one item, one after another, before this node reads storage itself.
const HOMES_ASKED_MAX: usize = 3;

/// See the module.
#[derive(Debug)]
pub(super) struct View {
    pub(super) decision: Arc<Decision>,
    /// The homes of all slots.
    table: Arc<slots::Homes>,
    /// Of each dataset, whether somebody has been warned.
    warned: Vec<AtomicBool>,
}

impl Default for View {
    fn default() -> Self {
        Self {
            decision: Arc::default(),
            table: Arc::new(slots::Homes::new(&[])),
            warned: Vec::new(),
        }
    }
}

impl View {
    /// The view of `decision`, which comes after that of `before`.
    pub(super) fn new(decision: Arc<Decision>, before: &Self) -> Self {
        let table = if decision.homes == before.decision.homes {
            Arc::clone(&before.table)
        } else {
            Arc::new(slots::Homes::new(&decision.homes))
        };
        let warned = before.warned_ids();
        let ids = decision.datasets.iter().map(|dataset| dataset.id);
        let warned = ids.map(|id| AtomicBool::new(warned.contains(&id)));
        Self {
            warned: warned.collect(),
            table,
            decision,
        }
    }

    /// The dataset that `path` lies in, as a position in the decision's list. None overlaps another.
    pub(super) fn dataset_of(&self, path: &ItemPath) -> Option<usize> {
        self.decision
            .datasets
            .iter()
            .position(|dataset| path.is_within(&dataset.path))
    }

    /// The ranks to ask for items of `slot`, the home first.
    pub(super) fn home(&self, slot: u16) -> Option<u32> {
        let home = self.table.home_of_slot(slot)?;
        self.decision.homes.get(home).map(|home| home.rank)
    }

    /// Whom to ask behind the home, which cannot be reached.
    pub(super) fn others(&self, slot: u16) -> Vec<u32> {
        let order = self.table.order_of_slot(slot, HOMES_ASKED_MAX);
        order
            .into_iter()
            .skip(1)
            .filter_map(|home| self.decision.homes.get(home))
            .map(|home| home.rank)
            .collect()
    }

    /// Whether this is the first time that somebody is to be warned about a dataset.
    pub(super) fn warn_once(&self, dataset: usize) -> bool {
        let warned = self.warned.get(dataset);
        warned.is_some_and(|warned| !warned.swap(true, Ordering::Relaxed))
    }

    fn warned_ids(&self) -> HashSet<u64> {
        let all = self.decision.datasets.iter().zip(&self.warned);
        all.filter(|(_, warned)| warned.load(Ordering::Relaxed))
            .map(|(dataset, _)| dataset.id)
            .collect()
    }
}
