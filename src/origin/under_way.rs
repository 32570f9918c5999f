//! The reads from storage that are in progress.

use copperfs_overlay::{ItemPath, Version};
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use std::fmt;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::Notify;

/// A block of one version of one file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Unit {
    pub(crate) path: ItemPath,
    pub(crate) version: Version,
    pub(crate) index: u64,
}

/// The reads of one block that are in progress.
#[derive(Debug, Default)]
struct Busy {
    whole: bool,
    /// Offsets in the file; they do not overlap. Bounded by the concurrent reads of the read path.
    ranges: Vec<Range<u64>>,
}

impl Busy {
    fn is_over(&self) -> bool {
        !self.whole && self.ranges.is_empty()
    }

    /// A block waits for another read of the whole block; a range waits for that and for overlapping
    /// ranges.
    fn is_free(&self, range: Option<&Range<u64>>) -> bool {
        let overlaps = |range: &Range<u64>| {
            let apart = |other: &Range<u64>| other.end <= range.start || range.end <= other.start;
            !self.ranges.iter().all(apart)
        };
        !self.whole && !range.is_some_and(overlaps)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    /// Contains an entry only while a read is in progress. Locked briefly, never across an await.
    units: DashMap<Unit, Busy>,
    /// Notified whenever a turn ends.
    freed: Notify,
}

impl UnderWay {
    /// Takes the turn to read all of `unit`, or `range` of it, if it is free.
    pub(crate) fn take(self: &Arc<Self>, unit: &Unit, range: Option<&Range<u64>>) -> Option<Held> {
        let mut busy = self.units.entry(unit.clone()).or_default();
        if !busy.is_free(range) {
            return None;
        }
        match range {
            Some(range) => busy.ranges.push(range.clone()),
            None => busy.whole = true,
        }
        Some(Held {
            under_way: Arc::clone(self),
            unit: unit.clone(),
            range: range.cloned(),
        })
    }

    /// Like [`UnderWay::take`], but waits until the turn is free.
    pub(crate) async fn wait(self: &Arc<Self>, unit: &Unit, range: Option<&Range<u64>>) -> Held {
        loop {
            let mut freed = pin!(self.freed.notified());
            // Registered before the check, so that no end of a turn is missed.
            freed.as_mut().enable();
            if let Some(held) = self.take(unit, range) {
                return held;
            }
            freed.await;
        }
    }
}

/// A turn, until it is dropped.
pub struct Held {
    under_way: Arc<UnderWay>,
    unit: Unit,
    range: Option<Range<u64>>,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("unit", &self.unit)
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.under_way.units.entry(self.unit.clone()) {
            let busy = entry.get_mut();
            match &self.range {
                Some(range) => busy.ranges.retain(|other| other != range),
                None => busy.whole = false,
            }
            if busy.is_over() {
                entry.remove();
            }
        }
        self.under_way.freed.notify_waiters();
    }
}
