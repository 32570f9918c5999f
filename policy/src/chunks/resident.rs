//! Resident chunks: as decisions state them, and as homes report on them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The state of a resident chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChunkState {
    /// Entries are missing, which clients fetch.
    Loading,
    /// All entries are loaded.
    Complete,
    /// A newer chunk is complete. Only readers that already refer to this one go on with it.
    Marked,
}

/// A resident chunk as decisions state it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidentChunk {
    /// Its number.
    pub chunk: u32,
    /// Its state.
    pub state: ChunkState,
    /// The number of its entries that homes hold.
    pub held: u64,
    /// The number of its entries that cannot be read or kept. They count as loaded, and stay misses.
    pub lost: u64,
    /// The number of its entries.
    pub entries: u64,
}

/// A home's report on one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkReport {
    /// The chunk.
    pub chunk: u32,
    /// The number of its entries that this home holds.
    pub held: u64,
    /// The number of entries that belong to this home but cannot be read or kept.
    pub lost: u64,
    /// The number of items that this home lacks, of entries that consist of several items and belong to the homes of
    /// their first ones.
    pub pending: u64,
}

/// A resident chunk, with what each home reports on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Resident {
    pub(super) chunk: u32,
    /// When it came in.
    pub(super) since: Duration,
    /// When it was marked.
    pub(super) marked: Option<Duration>,
    pub(super) is_complete: bool,
    /// The last report of each home that has reported on it.
    homes: BTreeMap<u32, ChunkReport>,
}

impl Resident {
    pub(super) fn new(chunk: u32, since: Duration) -> Self {
        Self {
            chunk,
            since,
            marked: None,
            is_complete: false,
            homes: BTreeMap::new(),
        }
    }

    /// Returns the chunk as the last decision states it. Its homes have yet to report.
    pub(super) fn resumed(decided: &ResidentChunk, now: Duration) -> Self {
        Self {
            marked: (decided.state == ChunkState::Marked).then_some(now),
            is_complete: decided.state != ChunkState::Loading,
            ..Self::new(decided.chunk, now)
        }
    }

    pub(super) fn sum(&self, part: impl Fn(&ChunkReport) -> u64) -> u64 {
        // Reports come from other nodes, so sums must not overflow.
        self.homes.values().map(part).fold(0, u64::saturating_add)
    }

    fn loaded(&self) -> u64 {
        self.sum(|report| report.held.saturating_add(report.lost))
    }

    /// Replaces the report of a home.
    pub(super) fn report(&mut self, home: u32, report: Option<ChunkReport>, entries: u64) {
        self.change(entries, |homes| match report {
            Some(report) => drop(homes.insert(home, report)),
            None => drop(homes.remove(&home)),
        });
    }

    /// Forgets the homes for which `is_kept` is false.
    pub(super) fn retain_homes(&mut self, is_kept: impl Fn(u32) -> bool, entries: u64) {
        self.change(entries, |homes| homes.retain(|home, _| is_kept(*home)));
    }

    /// Changes the reports. A chunk that loses entries is loading again. But one that was complete when its
    /// allocator started stays so while its homes have yet to report.
    fn change(&mut self, entries: u64, change: impl FnOnce(&mut BTreeMap<u32, ChunkReport>)) {
        let state = |this: &Self| (this.loaded(), this.sum(|report| report.pending));
        let (loaded_before, pending_before) = state(self);
        change(&mut self.homes);
        let (loaded, pending) = state(self);
        let stays = loaded >= loaded_before && pending <= pending_before;
        self.is_complete = loaded >= entries && pending == 0 || self.is_complete && stays;
    }

    pub(super) fn state(&self) -> ChunkState {
        match (self.marked, self.is_complete) {
            (Some(_), _) => ChunkState::Marked,
            (None, true) => ChunkState::Complete,
            (None, false) => ChunkState::Loading,
        }
    }
}
