//! A decision, prepared for look-ups by readers.

use crate::model::{DatasetDecision, Decision, slots};
use copperfs_overlay::ItemPath;
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
        let known = known.filter(|(_, warned)| warned.load(Ordering::Relaxed));
        let known: Vec<u64> = known.map(|(one, _)| one.id).collect();
        let datasets = decision.datasets.iter();
        let warned = datasets.map(|one| AtomicBool::new(known.contains(&one.id)));
        Self {
            warned: warned.collect(),
            table,
            decision,
        }
    }

    /// Returns the dataset that contains `path`, and its index in the decision's list. Datasets do not
    /// overlap.
    pub(super) fn dataset_of(&self, path: &ItemPath) -> Option<(usize, &DatasetDecision)> {
        let mut datasets = self.decision.datasets.iter().enumerate();
        datasets.find(|(_, dataset)| path.is_within(&dataset.path))
    }

    /// Returns the rank of the home of `slot`.
    pub(super) fn home(&self, slot: u16) -> Option<u32> {
        let home = self.table.home_of_slot(slot)?;
        self.decision.homes.get(home).map(|home| home.rank)
    }

    /// Returns the ranks to ask if the home cannot be reached.
    pub(super) fn others(&self, slot: u16) -> Vec<u32> {
        let order = self.table.order_of_slot(slot, HOMES_ASKED_MAX);
        let others = order.into_iter().skip(1);
        others
            .filter_map(|home| Some(self.decision.homes.get(home)?.rank))
            .collect()
    }

    /// Returns true for the first warning about a dataset.
    pub(super) fn warn_once(&self, dataset: usize) -> bool {
        let warned = self.warned.get(dataset);
        warned.is_some_and(|warned| !warned.swap(true, Ordering::Relaxed))
    }
}
