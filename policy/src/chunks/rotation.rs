//! Which chunks are resident: the rotation, a pure state machine.

use super::layout::ChunkLayout;
use super::readers::Readers;
use super::reading::{Reader, Reading};
use super::resident::{ChunkReport, Resident, ResidentChunk};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The maximum number of resident chunks: one that is read, and one that is loaded meanwhile (double
/// buffering; Quiver, section 5.1).
pub const RESIDENT_MAX: usize = 2;
/// How long the other readers of a marked chunk may go on after the first job has exhausted it, by default.
pub const EVICT_AFTER: Duration = Duration::from_secs(60);
/// A reader that does not need the next chunk waits this many times as long. It needs the rest of chunks that it has
/// lost, and reads it from storage meanwhile.
const PATIENCE: u32 = 10;
/// The minimum of that time. Readers that need different chunks could otherwise change them without end at
/// one moment.
const EVICT_AFTER_MIN: Duration = Duration::from_millis(1);
/// The maximum number of readers of one dataset: ranks of very many jobs. Beyond it a reader is not heard:
/// it reads whichever chunks are resident, and none comes in or stays for it.
pub const READERS_MAX: usize = 1 << 16;

/// A change of the resident chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A chunk is no longer resident: homes evict its entries.
    Evicted {
        /// Its number.
        chunk: u32,
        /// Whether readers lose it that have not exhausted it, because time was up.
        is_forced: bool,
    },
    /// A chunk has become resident: homes admit its entries, and clients fetch them.
    Loading {
        /// Its number.
        chunk: u32,
    },
}

/// The rotation of a dataset's chunks.
///
/// Its inputs are levels instead of events: a report states all that its sender knows, so a lost or
/// repeated one does no harm, and an allocator that has just started learns everything from the next
/// reports. [`resume`](Self::resume) takes the resident chunks from the last decision.
///
/// [`advance`](Self::advance) applies these rules:
/// - At most [`RESIDENT_MAX`] chunks are resident. The next one in the ring that a reader needs comes in
///   as soon as there is room, so one is loaded ahead of need. If no reader needs any, none comes in. A
///   reader needs each chunk once an epoch.
/// - Once the newer chunk is complete, the older one is marked, and readers that begin go to the newer.
/// - A marked chunk is evicted when each reader that refers to it has exhausted it, or `evict_after`
///   after the first job has: all of its readers.
/// - A chunk that no reader needs makes room for one that a reader needs, marked or not.
/// - Of the chunks in the ring those come in that at least half as many jobs need as any other. Jobs
///   that have lost a chunk need the rest of it, for which the others would have to wait.
/// - No reader waits for ever: if one may read neither chunk and needs the next one, the older one is evicted
///   `evict_after` later, marked or not; ten times as much later if it needs another. So a reader that hangs,
///   or a chunk that is never completed, does not stop the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rotation {
    layout: ChunkLayout,
    evict_after: Duration,
    /// The older one first.
    resident: Vec<Resident>,
    /// The chunk that came in last. The ring goes on after it.
    last: Option<u32>,
    readers: Readers,
}

/// There are [`READERS_MAX`] readers already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the dataset has {READERS_MAX} readers already: the chunks do not wait for any more")]
pub struct TooManyReaders;

impl Rotation {
    /// Creates a rotation without resident chunks and without readers.
    #[must_use]
    pub fn new(layout: ChunkLayout, evict_after: Duration) -> Self {
        Self {
            layout,
            evict_after: evict_after.max(EVICT_AFTER_MIN),
            resident: Vec::new(),
            last: None,
            readers: Readers::default(),
        }
    }

    /// Continues from the `resident` chunks of the last decision, at the time `now` of a new clock. Chunks
    /// that the layout does not have are dropped, as are repeated ones and those beyond the maximum.
    ///
    /// Call [`advance`](Self::advance) only after readers had the time to report: a marked chunk that no
    /// reader seems to read is evicted. Times of exhaustion are counted from the first report on.
    #[must_use]
    pub fn resume(
        layout: ChunkLayout,
        evict_after: Duration,
        resident: &[ResidentChunk],
        now: Duration,
    ) -> Self {
        let mut resumed = Self::new(layout, evict_after);
        for held in resident {
            let is_new = resumed
                .resident
                .iter()
                .all(|other| other.chunk != held.chunk);
            if held.chunk < layout.stripes() && is_new && resumed.resident.len() < RESIDENT_MAX {
                resumed.resident.push(Resident::resumed(held, now));
                resumed.last = Some(held.chunk);
            }
        }
        resumed
    }

    /// Returns the layout.
    #[must_use]
    pub fn layout(&self) -> &ChunkLayout {
        &self.layout
    }

    /// Returns the resident chunks, the older one first.
    #[must_use]
    pub fn resident(&self) -> Vec<ResidentChunk> {
        let decided = |held: &Resident| {
            let entries = self.layout.chunk_entries(held.chunk);
            ResidentChunk {
                chunk: held.chunk,
                state: held.state(),
                held: held.sum(|report| report.held).min(entries),
                lost: held.sum(|report| report.lost).min(entries),
                entries,
            }
        };
        self.resident.iter().map(decided).collect()
    }

    /// Takes the state of a reader, which counts from now on if it is new.
    ///
    /// # Errors
    /// It is new, and there are [`READERS_MAX`] already. It is not counted.
    pub fn hear(
        &mut self,
        reader: &Reader,
        reading: &Reading,
        now: Duration,
    ) -> Result<(), TooManyReaders> {
        if !self.readers.contains(reader) && self.readers.len() >= READERS_MAX {
            return Err(TooManyReaders);
        }
        (self.readers).hear(reader, reading, self.layout.stripes(), now);
        Ok(())
    }

    /// Drops the readers for which `is_kept` is false: their jobs have ended or died, so they give back all
    /// references, and need nothing.
    pub fn retain_readers(&mut self, is_kept: impl FnMut(&Reader) -> bool) {
        self.readers.retain(is_kept);
    }

    /// Takes the report of a home, which replaces its last one: a resident chunk that is not in it has
    /// nothing there.
    pub fn report(&mut self, home: u32, chunks: &[ChunkReport]) {
        let layout = self.layout;
        for held in &mut self.resident {
            let report = chunks.iter().find(|report| report.chunk == held.chunk);
            held.report(home, report.copied(), layout.chunk_entries(held.chunk));
        }
    }

    /// Forgets the homes for which `is_kept` is false, and the entries that they held: they have died.
    pub fn retain_homes(&mut self, is_kept: impl Fn(u32) -> bool) {
        let layout = self.layout;
        for held in &mut self.resident {
            held.retain_homes(&is_kept, layout.chunk_entries(held.chunk));
        }
    }

    /// Applies the rules at the time `now`, and returns the changes in order.
    #[must_use]
    pub fn advance(&mut self, now: Duration) -> Vec<Change> {
        let mut changes = Vec::new();
        // This ends: a chunk that comes in is needed and not complete, and no reader has waited beside it
        // for `evict_after` yet, so it causes no eviction before another call.
        loop {
            self.mark(now);
            let next = self.next_in();
            if let Some((at, is_forced)) = self.next_out(next, now) {
                let chunk = self.resident.remove(at).chunk;
                changes.push(Change::Evicted { chunk, is_forced });
            } else if let Some(chunk) = next
                && self.resident.len() < RESIDENT_MAX
            {
                self.resident.push(Resident::new(chunk, now));
                self.last = Some(chunk);
                changes.push(Change::Loading { chunk });
            } else {
                return changes;
            }
        }
    }

    /// Returns when time will be up for the older chunk, unless a report comes before.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let is_full = self.resident.len() == RESIDENT_MAX;
        is_full.then(|| self.deadline_before(self.next_in()))?
    }

    /// See [`Self::deadline`]; `next` is the next chunk to come in.
    fn deadline_before(&self, next: Option<u32>) -> Option<Duration> {
        let [older, _] = &self.resident[..] else {
            return None;
        };
        let exhausted = older
            .marked
            .and_then(|_| self.readers.first_exhausted(older));
        let waiting = |next| {
            let stripes = self.layout.stripes();
            (self.readers).first_waiting(next, &self.resident, stripes)
        };
        let served = next.and_then(|next| waiting(Some(next)));
        let patience = if next.is_some() { PATIENCE } else { 1 };
        // The time comes from a declaration, so a multiple of it may be more than a `Duration` can hold.
        let after = |since: Duration, times: u32| {
            since.saturating_add(self.evict_after.saturating_mul(times))
        };
        let deadlines = [
            exhausted.map(|since| after(since, 1)),
            served.map(|since| after(since, 1)),
            waiting(None).map(|since| after(since, patience)),
        ];
        deadlines.into_iter().flatten().min()
    }

    fn mark(&mut self, now: Duration) {
        if let [older, newer] = &mut self.resident[..]
            && newer.is_complete
            && older.marked.is_none()
        {
            older.marked = Some(now);
        }
    }

    /// Returns the position of the chunk to evict, and whether readers lose it.
    fn next_out(&self, next: Option<u32>, now: Duration) -> Option<(usize, bool)> {
        let [older, _] = &self.resident[..] else {
            return None;
        };
        if older.marked.is_some() && !self.readers.read(older.chunk) {
            return Some((0, false));
        }
        let unneeded = |held: &Resident| !self.readers.need(held.chunk);
        if let Some(at) = self.resident.iter().position(unneeded)
            && next.is_some()
        {
            return Some((at, false));
        }
        (self.deadline_before(next)? <= now).then_some((0, true))
    }

    /// Returns the next chunk in the ring that is not resident and that jobs need, at least half as many
    /// as need any other. Of the chunks that a slow job has lost it needs the rest alone: if they came in,
    /// all others would have to wait.
    fn next_in(&self) -> Option<u32> {
        let stripes = self.layout.stripes();
        let first = self.last.map_or(0, |last| last + 1);
        let needing = self.readers.needing(stripes);
        let is_resident = |chunk: u32| self.resident.iter().any(|held| held.chunk == chunk);
        let ring = (0..stripes).map(|step| (first + step) % stripes);
        let needed: Vec<(u32, usize)> = ring
            .filter(|&chunk| !is_resident(chunk))
            .map(|chunk| (chunk, needing[chunk as usize]))
            .collect();
        let most = needed.iter().map(|(_, needing)| *needing).max()?;
        let mut enough = needed.into_iter();
        let next = enough.find(|(_, needing)| *needing > 0 && 2 * needing >= most)?;
        Some(next.0)
    }
}

#[cfg(test)]
mod tests;
