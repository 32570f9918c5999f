//! When a file's times can be trusted: which of its states have settled.
//!
//! An origin tells the states of a file apart by its size, its times and its inode number. Two writes
//! within one step of the origin's clock leave the same times, so a state that was just looked at may
//! change once more and look the same. A state is *settled* when no later write can leave it as it looks,
//! which takes evidence:
//! - the file's newest time is older than any difference of clocks (`clock_skew`) and the granularity of
//!   its times together, or
//! - two looks found the same state, further apart on this process's own clock than that granularity. The
//!   origin's clock has moved on between them, so a write after the second look gets another time.
//!
//! Until then a state has the number of the look that found it first ([`Standing::Unsettled`]). Bytes that
//! are read meanwhile are known by that number and never as those of the settled state. A file is read
//! once for each state that has not settled, whole, and within the granularity: so no two reads that
//! may have seen different bytes are ever known by one version.
//!
//! Pure: every time is an argument. One lock, held for a look into a table.

use copperfs_overlay::{Standing, Version};
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Looks remembered in each of two generations, 7.5 MiB for both. When the newer one is full, the older
/// one is forgotten. A look that is forgotten costs another one, and a second read of the file.
const GENERATION: usize = 57_344;

/// Looks of other processes under which files were read here, 1 MiB. When it is full, files are read under
/// this process's own looks only: readers of others wait until the version has settled.
const FOREIGN_MAX: usize = 1 << 16;

/// What a file's times tell about its age.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// The latest of its modification and its status change, in nanoseconds since 1970.
    pub(super) newest_ns: i128,
    /// How long another write may go without showing.
    pub(super) granularity: Duration,
}

/// When a look was: the origin was asked after `asked` and answered before `answered`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) asked: Instant,
    pub(super) answered: Instant,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Sightings {
    clock_skew: Duration,
    /// Makes keys of paths. Two paths with one key cost each other's looks.
    hasher: RandomState,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    /// Looks in one generation at most.
    generation: usize,
    /// The number of the first look, and of the next one: those between are this process's own.
    first_look: u64,
    next_look: u64,
    /// Looks of other processes under which a file was read.
    foreign: HashSet<u64>,
    newer: HashMap<u64, Sighting>,
    older: HashMap<u64, Sighting>,
}

/// The state that a path was last found in.
#[derive(Clone, Copy, Debug)]
struct Sighting {
    /// A hash of the version, whatever its standing.
    state: [u8; 16],
    /// When the look that found it first was over.
    first: Instant,
    /// The number of that look.
    look: u64,
    /// The file was read in this state before it settled.
    read: bool,
}

impl Sightings {
    /// No looks yet. Two clocks may be apart by `clock_skew`. The number of the first look is random, so
    /// that no other process makes the same ones.
    pub(super) fn new(clock_skew: Duration) -> Self {
        Self::with(clock_skew, RandomState::new().hash_one("look"), GENERATION)
    }

    fn with(clock_skew: Duration, next_look: u64, generation: usize) -> Self {
        Self {
            clock_skew,
            hasher: RandomState::new(),
            table: Mutex::new(Table {
                generation,
                first_look: next_look,
                next_look,
                foreign: HashSet::new(),
                newer: HashMap::new(),
                older: HashMap::new(),
            }),
        }
    }

    /// Whether the file is so old at `now_ns`, in nanoseconds since 1970, that its state has settled. One
    /// with a time in the future is not.
    pub(super) fn is_old(&self, times: Times, now_ns: i128) -> bool {
        let least = self.clock_skew.saturating_add(times.granularity);
        let least_ns = i128::try_from(least.as_nanos()).unwrap_or(i128::MAX);
        now_ns.saturating_sub(times.newest_ns) > least_ns
    }

    /// A look at `path` found `version`, which is not old. Returns the number of the first look that
    /// found this state, or `None` once it has settled.
    pub(super) fn look(
        &self,
        path: &[u8],
        version: &Version,
        granularity: Duration,
        at: Moment,
    ) -> Option<u64> {
        let (key, state) = (self.hasher.hash_one(path), state_of(version));
        let mut table = self.lock();
        let Some(sighting) = table.find(key, &state) else {
            return Some(table.insert(key, state, at.answered));
        };
        let apart = at.asked.saturating_duration_since(sighting.first);
        (apart <= granularity).then_some(sighting.look)
    }

    /// Whether the whole file at `path`, which is not old, may be read now under `version`, which has not
    /// settled: once for each state, and not after it could have settled. The look that the version has
    /// the number of may be another process's, but none of this one's that was forgotten.
    pub(super) fn admits(
        &self,
        path: &[u8],
        version: &Version,
        granularity: Duration,
        now: Instant,
    ) -> bool {
        let (key, state) = (self.hasher.hash_one(path), state_of(version));
        let mut table = self.lock();
        let Standing::Unsettled(look) = version.standing() else {
            return false;
        };
        let seen = table.find(key, &state);
        if table.is_own(look) {
            if seen.is_none_or(|seen| seen.look != look) {
                return false;
            }
        } else {
            if table.foreign.len() >= FOREIGN_MAX || !table.foreign.insert(look) {
                return false;
            }
            if seen.is_none() {
                table.insert(key, state, now);
            }
        }
        let Some(sighting) = table.newer.get_mut(&key) else {
            return false;
        };
        let open = now.saturating_duration_since(sighting.first) <= granularity;
        open && !std::mem::replace(&mut sighting.read, true)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The sighting under `key`, if it is of `state`; it counts as new again.
    fn find(&mut self, key: u64, state: &[u8; 16]) -> Option<Sighting> {
        if let Some(sighting) = self.newer.get(&key) {
            return (sighting.state == *state).then_some(*sighting);
        }
        let sighting = self.older.remove(&key)?;
        if sighting.state != *state {
            return None;
        }
        self.put(key, sighting);
        Some(sighting)
    }

    fn put(&mut self, key: u64, sighting: Sighting) {
        if self.newer.len() >= self.generation && !self.newer.contains_key(&key) {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, sighting);
    }

    fn is_own(&self, look: u64) -> bool {
        look.wrapping_sub(self.first_look) < self.next_look.wrapping_sub(self.first_look)
    }

    /// Remembers the first look at a state; returns its number.
    fn insert(&mut self, key: u64, state: [u8; 16], first: Instant) -> u64 {
        let look = self.next_look;
        self.next_look = look.wrapping_add(1);
        let sighting = Sighting {
            state,
            first,
            look,
            read: false,
        };
        self.put(key, sighting);
        look
    }
}

fn state_of(version: &Version) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(version.data()).update(version.change());
    let mut state = [0; 16];
    state.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    state
}

#[cfg(test)]
mod tests;
