//! What is known of all readers of a dataset: which chunks they need, read, and wait for.

use super::reading::{Reader, Reading};
use super::resident::Resident;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// All readers, by job and part. (Formats of texts need texts or numbers as keys.)
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Readers(BTreeMap<String, BTreeMap<u64, Known>>);

/// A reader as of its last report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    epoch: u64,
    refers: BTreeSet<u32>,
    /// The chunks that it has exhausted in this epoch, and since when that is known.
    exhausted: BTreeMap<u32, Duration>,
}

impl Readers {
    pub(super) fn len(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    pub(super) fn contains(&self, reader: &Reader) -> bool {
        (self.0.get(&reader.job)).is_some_and(|parts| parts.contains_key(&reader.part))
    }

    /// Replaces the state of a reader. Chunks from `stripes` on do not exist, and are ignored.
    pub(super) fn hear(&mut self, reader: &Reader, reading: &Reading, stripes: u32, now: Duration) {
        let parts = self.0.entry(reader.job.clone()).or_default();
        let known = parts.entry(reader.part).or_default();
        if known.epoch != reading.epoch {
            *known = Known {
                epoch: reading.epoch,
                ..Known::default()
            };
        }
        known.refers = reading.refers.range(..stripes).copied().collect();
        (known.exhausted).retain(|chunk, _| reading.exhausted.contains(chunk));
        for &chunk in reading.exhausted.range(..stripes) {
            known.exhausted.entry(chunk).or_insert(now);
        }
    }

    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(&Reader) -> bool) {
        self.0.retain(|job, parts| {
            let mut reader = Reader {
                job: job.clone(),
                part: 0,
            };
            parts.retain(|&part, _| {
                reader.part = part;
                is_kept(&reader)
            });
            !parts.is_empty()
        });
    }

    fn all(&self) -> impl Iterator<Item = &Known> {
        self.0.values().flat_map(BTreeMap::values)
    }

    /// Whether a reader has not exhausted the chunk.
    pub(super) fn need(&self, chunk: u32) -> bool {
        self.all().any(|known| known.needs(chunk))
    }

    /// Returns for each chunk below `stripes` the number of jobs that need it: those with a reader that has not
    /// exhausted it. A job counts once, however many readers it has.
    pub(super) fn needing(&self, stripes: u32) -> Vec<usize> {
        let mut needing = vec![self.0.len(); stripes as usize];
        let mut exhausted = vec![0_usize; stripes as usize];
        for parts in self.0.values() {
            exhausted.fill(0);
            for &chunk in parts.values().flat_map(|known| known.exhausted.keys()) {
                if let Some(count) = exhausted.get_mut(chunk as usize) {
                    *count += 1;
                }
            }
            for (needing, exhausted) in needing.iter_mut().zip(&exhausted) {
                *needing -= usize::from(*exhausted == parts.len());
            }
        }
        needing
    }

    /// Whether a reader refers to the chunk and has not exhausted it.
    pub(super) fn read(&self, chunk: u32) -> bool {
        (self.all()).any(|known| known.refers.contains(&chunk) && known.needs(chunk))
    }

    /// Returns when the first of the jobs has exhausted a chunk since it came in: the last of its readers then had.
    pub(super) fn first_exhausted(&self, held: &Resident) -> Option<Duration> {
        let by_job = self.0.values().filter_map(|parts| {
            let by_reader = parts.values().map(|known| known.exhausted.get(&held.chunk));
            let by_all: Option<Vec<&Duration>> = by_reader.collect();
            by_all?.into_iter().max()
        });
        // A job can have exhausted it earlier in its epoch, when it was resident before.
        by_job.filter(|at| **at > held.since).min().copied()
    }

    /// Returns since when a reader has waited for a chunk that is not resident, because it may read none of the
    /// `resident` ones: of the readers that need the chunk `next`, or of all.
    pub(super) fn first_waiting(
        &self,
        next: Option<u32>,
        resident: &[Resident],
        stripes: u32,
    ) -> Option<Duration> {
        (self.all())
            .filter(|known| next.is_none_or(|chunk| known.needs(chunk)))
            .filter_map(|known| known.waiting(resident, stripes))
            .min()
    }
}

impl Known {
    fn needs(&self, chunk: u32) -> bool {
        !self.exhausted.contains_key(&chunk)
    }

    fn waiting(&self, resident: &[Resident], stripes: u32) -> Option<Duration> {
        // It has finished its epoch, and needs nothing before it begins the next one.
        if self.exhausted.len() >= stripes as usize {
            return None;
        }
        let useless = |held: &Resident| match (self.exhausted.get(&held.chunk), held.marked) {
            (Some(&at), _) => Some(at.max(held.since)),
            // A marked chunk is for readers that already refer to it.
            (None, Some(marked)) if !self.refers.contains(&held.chunk) => Some(marked),
            (None, _) => None,
        };
        let since: Option<Vec<Duration>> = resident.iter().map(useless).collect();
        since?.into_iter().max()
    }
}
