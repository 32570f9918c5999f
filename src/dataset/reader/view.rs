//! A decision, prepared for look-ups by readers.

use crate::model::{Decision, slots};
use copperfs_overlay::ItemPath;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The maximum number of homes that are asked for an item, before this node reads storage itself.
const HOMES_ASKED_MAX: usize = 3;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) decision: Arc<Decision>,
    /// The home of every slot.
    table: Arc<slots::SlotTable>,
    /// Whether a warning was logged, for each dataset.
    warned: Vec<AtomicBool>,
}

impl View {
    /// Creates the view of `decision`, which follows `before`.
    pub(super) fn new(decision: Arc<Decision>, before: &Self) -> Self {
        let table = if decision.homes == before.decision.homes {
            Arc::clone(&before.table)
        } else {
            Arc::new(slots::SlotTable::new(&decision.homes))
        };
        let known = before.decision.datasets.iter().zip(&before.warned);
        let warned: HashSet<u64> = known
            .filter(|(_, warned)| warned.load(Ordering::Relaxed))
            .map(|(dataset, _)| dataset.id)
            .collect();
        let ids = decision.datasets.iter().map(|dataset| dataset.id);
        let warned = ids.map(|id| AtomicBool::new(warned.contains(&id)));
        Self {
            warned: warned.collect(),
            table,
            decision,
        }
    }

    /// Returns the dataset that contains `path`, as an index into the decision's list. Datasets do
    /// not overlap.
    pub(super) fn dataset_of(&self, path: &ItemPath) -> Option<usize> {
        self.decision
            .datasets
            .iter()
            .position(|dataset| path.is_within(&dataset.path))
    }

    /// Returns the rank of the home of `slot`.
    pub(super) fn home(&self, slot: u16) -> Option<u32> {
        let home = self.table.home_of_slot(slot)?;
        self.decision.homes.get(home).map(|home| home.rank)
    }

    /// Returns the ranks to ask if the home cannot be reached.
    pub(super) fn others(&self, slot: u16) -> Vec<u32> {
        let order = self.table.order_of_slot(slot, HOMES_ASKED_MAX);
        order
            .into_iter()
            .skip(1)
            .filter_map(|home| self.decision.homes.get(home))
            .map(|home| home.rank)
            .collect()
    }

    /// Returns true for the first warning about a dataset.
    pub(super) fn warn_once(&self, dataset: usize) -> bool {
        let warned = self.warned.get(dataset);
        warned.is_some_and(|warned| !warned.swap(true, Ordering::Relaxed))
    }
}
