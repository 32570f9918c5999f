//! Which chunks one reader refers to and has exhausted. The node of the reader keeps it and reports it.

use super::layout::ChunkLayout;
use super::resident::{ChunkState, ResidentChunk};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A part of a job that reads a dataset on its own: one rank or one node of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Reader {
    /// The job's name.
    pub job: String,
    /// The number of the part, unique within the job. A job of one process has part 0.
    pub part: u64,
}

/// The state of a reader in its epoch. It is complete in itself, so an allocator that has just started
/// learns all of it from the next report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// The number of the epoch. Only a change of it has a meaning.
    pub epoch: u64,
    /// The chunks that it reads now.
    #[serde(with = "super::runs")]
    pub refers: BTreeSet<u32>,
    /// The chunks of which it has read everything in this epoch.
    #[serde(with = "super::runs")]
    pub exhausted: BTreeSet<u32>,
}

/// The answer to a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Referred {
    /// The reader refers to the chunk from now on.
    Now,
    /// It did so before. Nothing has changed.
    Already,
    /// The chunk is about to be evicted, and only readers that already refer to it may finish it. Refer to
    /// the newer one.
    Marked,
    /// The chunk is not resident.
    Gone,
}

/// The answer to the end of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Released {
    /// The reader refers to the chunk no longer.
    Now,
    /// It did not refer to the chunk: the chunk was evicted, or released before, or never referred to.
    /// If the reader has exhausted it, this is recorded all the same.
    NotReferred,
    /// The dataset has no such chunk. Nothing has changed.
    NoSuchChunk,
}

impl Reading {
    /// Begins to read `chunk`, if it is among the `resident` ones. A reader should refer to a chunk as soon
    /// as it sees that it is resident and needs it.
    ///
    /// A reader that refers to a chunk that it has exhausted thereby begins its next epoch, because an
    /// epoch needs each chunk once. This rule does not apply if the reader states its `epoch`: see
    /// [`begin`](Self::begin).
    pub fn refer(
        &mut self,
        epoch: Option<u64>,
        chunk: u32,
        resident: &[ResidentChunk],
    ) -> Referred {
        if let Some(epoch) = epoch {
            self.begin(epoch);
        }
        let Some(found) = resident.iter().find(|held| held.chunk == chunk) else {
            // An eviction ends references, and this is how the reader learns of it.
            self.refers.remove(&chunk);
            return Referred::Gone;
        };
        if self.refers.contains(&chunk) {
            return Referred::Already;
        }
        if found.state == ChunkState::Marked {
            return Referred::Marked;
        }
        if epoch.is_none() && self.exhausted.contains(&chunk) {
            self.begin_epoch();
        }
        self.refers.insert(chunk);
        Referred::Now
    }

    /// Refers to all `resident` chunks that the reader needs and may read, and to no other.
    pub fn follow(&mut self, resident: &[ResidentChunk]) {
        let is_resident = |chunk: &u32| resident.iter().any(|held| held.chunk == *chunk);
        self.refers.retain(is_resident);
        for held in resident {
            if held.state != ChunkState::Marked && !self.exhausted.contains(&held.chunk) {
                self.refers.insert(held.chunk);
            }
        }
    }

    /// Ends the reference to `chunk`. `is_exhausted`: the reader has read everything of it that it needs in
    /// this epoch; otherwise it gives the chunk up, and still needs it.
    pub fn release(&mut self, layout: &ChunkLayout, chunk: u32, is_exhausted: bool) -> Released {
        if chunk >= layout.stripes() {
            return Released::NoSuchChunk;
        }
        if is_exhausted {
            self.exhausted.insert(chunk);
        }
        match self.refers.remove(&chunk) {
            true => Released::Now,
            false => Released::NotReferred,
        }
    }

    /// Begins the epoch that the reader calls `epoch`: it refers to no chunk, and needs all of them again.
    /// Changes nothing if the reader is in this epoch already, so a repeated message does no harm.
    pub fn begin(&mut self, epoch: u64) {
        if self.epoch != epoch {
            *self = Self {
                epoch,
                ..Self::default()
            };
        }
    }

    /// Begins the next epoch: the reader refers to no chunk, and needs all of them again.
    pub fn begin_epoch(&mut self) {
        *self = Self {
            epoch: self.epoch.wrapping_add(1),
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::CHUNK_BYTES;
    use super::*;

    fn resident(chunk: u32, state: ChunkState) -> ResidentChunk {
        ResidentChunk {
            chunk,
            state,
            held: 10,
            lost: 0,
            entries: 10,
        }
    }

    #[test]
    fn references_that_cannot_be_are_answered() {
        let layout = ChunkLayout::new(100, 1, CHUNK_BYTES).unwrap();
        let both = [
            resident(3, ChunkState::Marked),
            resident(4, ChunkState::Loading),
        ];
        let mut reading = Reading::default();
        assert_eq!(reading.refer(None, 4, &both), Referred::Now);
        assert_eq!(reading.refer(None, 4, &both), Referred::Already);
        assert_eq!(reading.refer(None, 3, &both), Referred::Marked);
        assert_eq!(reading.refer(None, 5, &both), Referred::Gone);
        assert_eq!(reading.refer(None, u32::MAX, &both), Referred::Gone);
        assert_eq!(reading.refers, BTreeSet::from([4]));
        assert_eq!(reading.release(&layout, 10, true), Released::NoSuchChunk);
        assert_eq!(reading.release(&layout, 3, false), Released::NotReferred);
        assert_eq!(reading.release(&layout, 4, true), Released::Now);
        assert_eq!(reading.release(&layout, 4, true), Released::NotReferred);
        assert_eq!(reading.exhausted, BTreeSet::from([4]));
    }

    #[test]
    fn a_marked_chunk_can_be_finished_but_not_begun() {
        let mut reading = Reading::default();
        assert_eq!(
            reading.refer(None, 3, &[resident(3, ChunkState::Complete)]),
            Referred::Now
        );
        let both = [
            resident(3, ChunkState::Marked),
            resident(4, ChunkState::Complete),
        ];
        assert_eq!(reading.refer(None, 3, &both), Referred::Already);
        // The reference does not outlive the eviction, so the chunk cannot be read on when it returns.
        assert_eq!(reading.refer(None, 3, &both[1..]), Referred::Gone);
        assert_eq!(reading.refer(None, 3, &both), Referred::Marked);
    }

    #[test]
    fn a_reader_follows_the_resident_chunks() {
        let layout = ChunkLayout::new(100, 1, CHUNK_BYTES).unwrap();
        let mut reading = Reading::default();
        reading.follow(&[
            resident(3, ChunkState::Complete),
            resident(4, ChunkState::Loading),
        ]);
        assert_eq!(reading.refers, BTreeSet::from([3, 4]));
        assert_eq!(reading.release(&layout, 4, true), Released::Now);
        reading.follow(&[
            resident(3, ChunkState::Marked),
            resident(4, ChunkState::Complete),
        ]);
        assert_eq!(reading.refers, BTreeSet::from([3]));
        reading.follow(&[
            resident(4, ChunkState::Marked),
            resident(5, ChunkState::Loading),
        ]);
        assert_eq!(reading.refers, BTreeSet::from([5]));
    }

    #[test]
    fn an_exhausted_chunk_is_read_again_in_the_next_epoch_only() {
        let layout = ChunkLayout::new(100, 1, CHUNK_BYTES).unwrap();
        let held = [
            resident(3, ChunkState::Complete),
            resident(4, ChunkState::Complete),
        ];
        let mut reading = Reading::default();
        assert_eq!(reading.refer(None, 3, &held), Referred::Now);
        assert_eq!(reading.release(&layout, 3, true), Released::Now);
        assert_eq!(reading.refer(None, 4, &held), Referred::Now);
        assert_eq!(reading.epoch, 0);
        assert_eq!(reading.refer(None, 3, &held), Referred::Now);
        assert_eq!((reading.epoch, &reading.refers), (1, &BTreeSet::from([3])));
        assert!(reading.exhausted.is_empty());
    }

    /// A reader whose last chunks were never reported as exhausted, as when its job ended an epoch early, begins
    /// the next one with a chunk that is not exhausted.
    #[test]
    fn a_reader_that_states_its_epoch_begins_it_with_any_chunk() {
        let layout = ChunkLayout::new(100, 1, CHUNK_BYTES).unwrap();
        let held = [
            resident(3, ChunkState::Complete),
            resident(4, ChunkState::Complete),
        ];
        let mut reading = Reading::default();
        assert_eq!(reading.refer(Some(70), 3, &held), Referred::Now);
        assert_eq!(reading.release(&layout, 3, true), Released::Now);
        assert_eq!(reading.refer(Some(71), 4, &held), Referred::Now);
        assert_eq!((reading.epoch, &reading.refers), (71, &BTreeSet::from([4])));
        assert!(reading.exhausted.is_empty());
        // Within an epoch, neither a repeated beginning nor an exhausted chunk begins another one.
        assert_eq!(reading.release(&layout, 3, true), Released::NotReferred);
        reading.begin(71);
        assert_eq!(reading.refer(Some(71), 3, &held), Referred::Now);
        assert_eq!(reading.epoch, 71);
        assert_eq!(reading.refers, BTreeSet::from([3, 4]));
        assert_eq!(reading.exhausted, BTreeSet::from([3]));
    }
}
