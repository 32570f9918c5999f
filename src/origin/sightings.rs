//! Decides when a file's times can be trusted: which of its states have settled.
//!
//! An origin distinguishes the states of a file by its size, its times and its inode number. Two writes
//! within one step of the origin's clock leave the same times, so a state that was just seen may change
//! once more and still look the same. A state has *settled* when every later write will change how it
//! looks. There are two kinds of evidence:
//! - The file's newest time is older than the maximum difference of clocks (`clock_skew`) and the
//!   granularity of its times together.
//! - Two looks found the same state, and the time between them, on this process's own clock, was longer
//!   than that granularity. The origin's clock has advanced between them, so a write after the second look
//!   gets another time.
//!
//! Until then the version of a state has the number of the look that first found it
//! ([`Standing::Unsettled`]). Bytes that are read meanwhile are cached under that number, and never as
//! those of the settled state. In each unsettled state a file is read once, whole, and within the
//! granularity. So two reads that may have seen different bytes never have the same version.
//!
//! Pure: every time is an argument. One lock, held for table look-ups.

use copperfs_overlay::{Standing, Version};
use parking_lot::Mutex;
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

/// Looks remembered in each of two generations, 7.5 MiB for both. When the newer generation is full, the
/// older one is forgotten. A forgotten look costs another look, and a second read of the file.
const GENERATION: usize = 57_344;

/// Looks of other processes under which files were read here, 1 MiB. When this is full, files are read only
/// under this process's own looks: readers with looks of other processes wait until the version has
/// settled.
const FOREIGN_MAX: usize = 1 << 16;

/// The times that show a file's age.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// The later one of its modification and its status change, in nanoseconds since 1970.
    pub(super) newest_ns: i128,
    /// How close together two writes may be without a difference in the times.
    pub(super) granularity: Duration,
}

/// The time of a look: the origin was asked after `asked` and answered before `answered`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) asked: Instant,
    pub(super) answered: Instant,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Sightings {
    clock_skew: Duration,
    /// Hashes paths to keys. Two paths with one key overwrite each other's looks.
    hasher: RandomState,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    /// The maximum number of looks in one generation.
    generation: usize,
    /// The numbers of the first look and of the next one. Numbers from the first to the next are this
    /// process's own.
    first_look: u64,
    next_look: u64,
    /// Looks of other processes under which a file was read.
    foreign: HashSet<u64>,
    newer: HashMap<u64, Sighting>,
    older: HashMap<u64, Sighting>,
}

/// The state in which a path was last found.
#[derive(Clone, Copy, Debug)]
struct Sighting {
    /// A hash of the version without its standing.
    state: [u8; 16],
    /// The end of the look that first found this state.
    first: Instant,
    /// The number of that look.
    look: u64,
    /// The file was read in this state before it settled.
    read: bool,
}

impl Sightings {
    /// Creates an empty table. Clocks may differ by `clock_skew`. The number of the first look is random,
    /// so that two processes do not use the same numbers.
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

    /// Whether the file is so old at `now_ns`, in nanoseconds since 1970, that its state has settled. A
    /// file with a time in the future is not old.
    pub(super) fn is_old(&self, times: Times, now_ns: i128) -> bool {
        let least = self.clock_skew.saturating_add(times.granularity);
        let least_ns = i128::try_from(least.as_nanos()).unwrap_or(i128::MAX);
        now_ns.saturating_sub(times.newest_ns) > least_ns
    }

    /// Records that a look at `path` found `version`, which is not old. Returns the number of the first
    /// look that found this state, or `None` once the state has settled.
    pub(super) fn look(
        &self,
        path: &[u8],
        version: &Version,
        granularity: Duration,
        at: Moment,
    ) -> Option<u64> {
        let (key, state) = (self.hasher.hash_one(path), state_of(version));
        let mut table = self.table.lock();
        let Some(sighting) = table.find(key, &state) else {
            return Some(table.insert(key, state, at.answered));
        };
        let apart = at.asked.saturating_duration_since(sighting.first);
        (apart <= granularity).then_some(sighting.look)
    }

    /// Whether the whole file at `path`, which is not old, may be read now under the unsettled `version`:
    /// once for each state, and not after it could have settled. The look in the version may be another
    /// process's, but not a forgotten one of this process.
    pub(super) fn admits(
        &self,
        path: &[u8],
        version: &Version,
        granularity: Duration,
        now: Instant,
    ) -> bool {
        let (key, state) = (self.hasher.hash_one(path), state_of(version));
        let mut table = self.table.lock();
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
}

impl Table {
    /// The sighting under `key`, if it is of `state`. Moves it to the newer generation.
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

    /// Records the first look at a state. Returns its number.
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
