//! The chunks of datasets that are kept in chunks. Pure.
//!
//! Reports state levels, so each decision takes all of them again, and nothing depends on an earlier one.
//! An allocator that continues from a decision begins with its chunks. It changes them only after the
//! readers had the time to report, because a chunk that no process seems to read is evicted.

use crate::model::{ChunkOptions, DatasetDecision, Decision, HomeNode, NodeReport};
use copperfs_policy::chunks::{Reader, ResidentChunk, Rotation};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The change of the held or lost entries of a chunk, as a fraction of its entries, that is too small for a
/// new decision.
const PROGRESS_NOISE: u64 = 20;

/// The rotations of all datasets that are kept in chunks.
#[derive(Debug, Default)]
pub(super) struct Rotations {
    /// By dataset id, each with the options that it was made with.
    all: BTreeMap<u64, (ChunkOptions, Rotation)>,
    /// Until when no chunk changes.
    rest_until: Duration,
}

impl Rotations {
    /// Forgets everything, and changes no chunk before the time `until`.
    pub(super) fn rest(&mut self, until: Duration) {
        *self = Self {
            all: BTreeMap::new(),
            rest_until: until,
        };
    }

    /// Takes all reports, and changes the chunks of `datasets`, which are those kept in chunks. `before`: the
    /// last decision.
    pub(super) fn decide(
        &mut self,
        datasets: &[&DatasetDecision],
        homes: &[HomeNode],
        reports: &[NodeReport],
        before: &Decision,
        now: Duration,
    ) {
        let mut known = std::mem::take(&mut self.all);
        for dataset in datasets {
            let Ok(layout) = dataset.layout() else {
                continue;
            };
            let options = dataset.chunk_options;
            let same = known.remove(&dataset.id);
            let same = same
                .filter(|(made_with, known)| *made_with == options && *known.layout() == layout);
            let mut rotation = same.map_or_else(
                || {
                    let decided = before.dataset(&dataset.name);
                    // Chunks of another layout are other entries.
                    let decided = decided.filter(|one| one.layout() == Ok(layout));
                    let resident = decided.and_then(|one| one.resident.as_deref());
                    let resident = resident.unwrap_or_default();
                    Rotation::resume(layout, options.evict_after, resident, now)
                },
                |(_, known)| known,
            );
            hear(&mut rotation, dataset.id, homes, reports, now);
            if now >= self.rest_until {
                drop(rotation.advance(now));
            }
            self.all.insert(dataset.id, (options, rotation));
        }
    }

    /// Returns the resident chunks of a dataset. `None`: it is not kept in chunks.
    pub(super) fn resident(&self, dataset: u64) -> Option<Vec<ResidentChunk>> {
        let (_, rotation) = self.all.get(&dataset)?;
        Some(rotation.resident())
    }

    /// Returns whether a chunk is to be evicted at the time `now`, or may be changed again.
    pub(super) fn is_due(&self, decided: Duration, now: Duration) -> bool {
        let rested = decided < self.rest_until && self.rest_until <= now;
        let mut deadlines = self.all.values().filter_map(|(_, one)| one.deadline());
        rested || (now >= self.rest_until && deadlines.any(|deadline| deadline <= now))
    }
}

/// Replaces all that a rotation knows of readers and homes.
fn hear(
    rotation: &mut Rotation,
    dataset: u64,
    homes: &[HomeNode],
    reports: &[NodeReport],
    now: Duration,
) {
    let mut heard: BTreeSet<&Reader> = BTreeSet::new();
    let readings = reports.iter().flat_map(|report| &report.readings);
    for one in readings.filter(|one| one.dataset == dataset) {
        // A reader beyond the maximum takes resident entries, and no chunk waits for it.
        if rotation.hear(&one.reader, &one.reading, now).is_ok() {
            heard.insert(&one.reader);
        }
    }
    rotation.retain_readers(|reader| heard.contains(reader));
    let ranks: BTreeSet<u32> = homes.iter().map(|home| home.rank).collect();
    rotation.retain_homes(|rank| ranks.contains(&rank));
    for report in reports.iter().filter(|report| ranks.contains(&report.rank)) {
        let share = report.shares.iter().find(|share| share.dataset == dataset);
        rotation.report(report.rank, share.map_or(&[], |share| &share.chunks));
    }
}

/// Returns whether two decisions on chunks are equal but for a little progress.
pub(super) fn near(
    before: &Option<Vec<ResidentChunk>>,
    after: &Option<Vec<ResidentChunk>>,
) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return before == after;
    };
    let same = |(before, after): (&ResidentChunk, &ResidentChunk)| {
        let bare = |one: &ResidentChunk| (one.chunk, one.state, one.entries);
        let moved = before.held.abs_diff(after.held) + before.lost.abs_diff(after.lost);
        bare(before) == bare(after) && moved * PROGRESS_NOISE < after.entries.max(1)
    };
    before.len() == after.len() && before.iter().zip(after).all(same)
}
