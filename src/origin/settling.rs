//! Decides when a file's times can be trusted: which of its states have settled.
//!
//! An origin distinguishes the states of a file by its size, its times and its inode number. Two writes
//! within one step of the origin's clock leave the same times, so a state that was just observed may change
//! once more and still look the same. A state has *settled* when every later write will change how it
//! looks. There are two kinds of evidence:
//! - The file's newest time is older than the maximum difference of clocks (`clock_skew`) and the
//!   granularity of its times together.
//! - Two observations found the same state, and the time between them, on this process's own clock, was
//!   longer than that granularity. The origin's clock has advanced between them, so a write after the second
//!   observation gets another time.
//!
//! Until then the version of a state has the number of the observation that first found it
//! ([`Standing::Unsettled`]). Bytes that are read meanwhile are cached under that number, and never as
//! those of the settled state. In each unsettled state a file is read once, whole, and within the
//! granularity. So two reads that may have seen different bytes never have the same version.
//!
//! Pure: every time is an argument. One lock, held for table look-ups.

use super::truncated;
use copperfs_overlay::{Standing, Version};
use parking_lot::Mutex;
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

/// Observations remembered in each of two generations, 7.5 MiB for both. When the newer generation is full,
/// the older one is forgotten. A forgotten observation costs another one, and a second read of the file.
const GENERATION_MAX: usize = 57_344;

/// Observations of other processes under which files were read here, 1 MiB. When this is full, files are
/// read only under this process's own observations: readers that hold another process's observation wait
/// until the version has settled.
const FOREIGN_MAX: usize = 1 << 16;

/// The times that show a file's age.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileTimes {
    /// The later one of its modification and its status change, in nanoseconds since 1970.
    pub(super) newest_ns: i128,
    /// How close together two writes may be without a difference in the times.
    pub(super) granularity: Duration,
}

/// When an observation was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedAt {
    /// Not later than the request to the origin.
    pub(super) requested: Instant,
    /// Not earlier than the origin's answer.
    pub(super) answered: Instant,
}

/// The recent observations of young files. See the module.
pub(super) struct SettlingTable {
    clock_skew: Duration,
    /// Hashes paths to keys. Two paths with one key overwrite each other's observations.
    hasher: RandomState,
    table: Mutex<Table>,
}

struct Table {
    /// The maximum number of observations in one generation.
    generation_max: usize,
    /// The numbers of the first observation and of the next one. Numbers from the first to the next are this
    /// process's own.
    first_number: u64,
    next_number: u64,
    /// Observations of other processes under which a file was read.
    foreign: HashSet<u64>,
    newer: HashMap<u64, Observation>,
    older: HashMap<u64, Observation>,
}

/// The state in which a path was last found.
#[derive(Clone, Copy)]
struct Observation {
    /// A hash of the version without its standing.
    state: [u8; 16],
    /// When this state was first found: the end of that observation.
    first: Instant,
    /// The number of that observation.
    number: u64,
    /// The file was read in this state before it settled.
    was_read: bool,
}

impl SettlingTable {
    /// Creates an empty table. Clocks may differ by `clock_skew`. The number of the first observation is
    /// random, so that two processes do not use the same numbers.
    pub(super) fn new(clock_skew: Duration) -> Self {
        let first_number = RandomState::new().hash_one("observation");
        Self::with(clock_skew, first_number, GENERATION_MAX)
    }

    fn with(clock_skew: Duration, first_number: u64, generation_max: usize) -> Self {
        Self {
            clock_skew,
            hasher: RandomState::new(),
            table: Mutex::new(Table {
                generation_max,
                first_number,
                next_number: first_number,
                foreign: HashSet::new(),
                newer: HashMap::new(),
                older: HashMap::new(),
            }),
        }
    }

    /// Whether the file is so old at `now_ns`, in nanoseconds since 1970, that its state has settled. A
    /// file with a time in the future is not old.
    pub(super) fn is_old(&self, times: FileTimes, now_ns: i128) -> bool {
        let least = self.clock_skew.saturating_add(times.granularity);
        let least_ns = i128::try_from(least.as_nanos()).unwrap_or(i128::MAX);
        now_ns.saturating_sub(times.newest_ns) > least_ns
    }

    /// Records that `path` was found in the state of `version`, which is not old. Returns the number of the
    /// first observation of this state, or `None` once the state has settled.
    pub(super) fn observe(
        &self,
        path: &[u8],
        version: &Version,
        granularity: Duration,
        at: ObservedAt,
    ) -> Option<u64> {
        let (key, state) = (self.hasher.hash_one(path), state_of(version));
        let mut table = self.table.lock();
        let Some(observation) = table.find(key, &state) else {
            return Some(table.insert(key, state, at.answered));
        };
        let apart = at.requested.saturating_duration_since(observation.first);
        (apart <= granularity).then_some(observation.number)
    }

    /// Whether the whole file at `path`, which is not old, may be read now under the unsettled `version`:
    /// once for each state, and not after it could have settled. The observation in the version may be
    /// another process's, but not a forgotten one of this process. Records the read.
    pub(super) fn admit_read(
        &self,
        path: &[u8],
        version: &Version,
        granularity: Duration,
        now: Instant,
    ) -> bool {
        let Standing::Unsettled(number) = version.standing() else {
            return false;
        };
        let (key, state) = (self.hasher.hash_one(path), state_of(version));
        let mut table = self.table.lock();
        let found = table.find(key, &state);
        if table.is_own(number) {
            if found.is_none_or(|found| found.number != number) {
                return false;
            }
        } else {
            if table.foreign.len() >= FOREIGN_MAX || !table.foreign.insert(number) {
                return false;
            }
            if found.is_none() {
                table.insert(key, state, now);
            }
        }
        // `find` and `insert` both leave the observation in the newer generation.
        let Some(observation) = table.newer.get_mut(&key) else {
            return false;
        };
        let in_time = now.saturating_duration_since(observation.first) <= granularity;
        in_time && !std::mem::replace(&mut observation.was_read, true)
    }
}

impl Table {
    /// The observation under `key`, if it is of `state`. Moves it to the newer generation.
    fn find(&mut self, key: u64, state: &[u8; 16]) -> Option<Observation> {
        if let Some(observation) = self.newer.get(&key) {
            return (observation.state == *state).then_some(*observation);
        }
        let observation = self.older.remove(&key)?;
        if observation.state != *state {
            return None;
        }
        self.put(key, observation);
        Some(observation)
    }

    fn put(&mut self, key: u64, observation: Observation) {
        if self.newer.len() >= self.generation_max && !self.newer.contains_key(&key) {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, observation);
    }

    fn is_own(&self, number: u64) -> bool {
        // Numbers may wrap around, since the first one is random.
        number.wrapping_sub(self.first_number) < self.next_number.wrapping_sub(self.first_number)
    }

    /// Records the first observation of a state. Returns its number.
    fn insert(&mut self, key: u64, state: [u8; 16], first: Instant) -> u64 {
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        let observation = Observation {
            state,
            first,
            number,
            was_read: false,
        };
        self.put(key, observation);
        number
    }
}

fn state_of(version: &Version) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(version.data()).update(version.change());
    truncated(&hasher)
}

#[cfg(test)]
mod tests;
