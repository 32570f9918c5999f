//! One LRU cache as a liquid.
//!
//! An LRU cache of `C` bytes holds what was read last. So there is a moment, the frontier, such that
//! the cache holds exactly what was read after it, and all that is needed is how much of each dataset
//! was. A job reads each item once an epoch, in an order that has nothing to do with that of the epoch
//! before: of its unread items, the part that was read after the frontier is the part of the last
//! epoch that came after it. It shrinks while the frontier moves through that epoch: the thrashing,
//! and the teeth of Figure 9. Fast jobs push the frontier on, through slow jobs' items.

use super::progress::{Filling, Progress};
use super::{Scenario, Workload};
use std::collections::VecDeque;

/// Steps end after this part of the fastest epoch that is not wholly cached.
const EPOCH_STEP: f64 = 0.005;
/// But are no shorter and no longer than this, in seconds.
const STEP_S: (f64, f64) = (2.0, 120.0);
/// By about so many steps hit ratios are seen late: half of the one that comes, and a part of the one
/// by which the frontier is behind.
const AHEAD: f64 = 1.0;
/// Slopes that differ by less are one segment of a history.
const SLOPE: f64 = 1e-3;
/// In a steady state the frontier moves as fast as time. Where it would move faster than this its
/// place is searched for.
const FRONTIER_STEP: f64 = 2.0;

/// A job, or what remains of it: what it has read, as a function of time.
#[derive(Debug, Clone)]
struct Reader {
    job: usize,
    /// Moments and bytes read until then, from the segment in which the frontier lies.
    history: VecDeque<(f64, f64)>,
    slope: f64,
    read: f64,
    epoch: f64,
    size: f64,
    /// Its hit ratio as it was last seen.
    hit: f64,
    running: bool,
}

/// What the frontier means to a reader.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Part of its unread items that it read after the frontier.
    unread: f64,
    /// Part of all items that it read after the frontier.
    all: f64,
    /// How fast `all` falls as the frontier moves.
    density: f64,
}

impl Reader {
    /// Drops what lies before the frontier.
    fn forget(&mut self, frontier: f64) {
        while self.history.len() > 1 && self.history[1].0 <= frontier {
            self.history.pop_front();
        }
    }

    fn seen(&self, frontier: f64) -> Seen {
        // The segment in which the frontier lies; mostly the first.
        let at = match self.history.get(1) {
            Some(second) if second.0 <= frontier => {
                self.history.partition_point(|point| point.0 <= frontier) - 1
            }
            _ => 0,
        };
        let (from, start) = self.history[at];
        let (before, slope) = match self.history.get(at + 1) {
            Some(&(to, end)) if frontier >= from => {
                let slope = (end - start) / (to - from);
                (start + slope * (frontier - from), slope)
            }
            _ => (start, 0.0),
        };
        let here = self.read - self.epoch;
        if before >= self.epoch {
            return Seen {
                unread: 0.0,
                all: (self.read - before) / self.size,
                density: slope / self.size,
            };
        }
        let past = here / self.size;
        let unread = (self.epoch - before) / self.size;
        if unread >= 1.0 {
            return Seen {
                unread: 1.0,
                all: 1.0,
                density: 0.0,
            };
        }
        Seen {
            unread,
            all: past + (1.0 - past) * unread,
            density: (1.0 - past) * slope / self.size,
        }
    }
}

#[derive(Debug)]
pub(super) struct Lru {
    capacity: f64,
    frontier: f64,
    now: f64,
    /// Readers of each dataset, running or remembered.
    readers: Vec<Vec<Reader>>,
    /// Datasets with readers.
    live: Vec<usize>,
    cached: f64,
    seen: Vec<Seen>,
}

impl Lru {
    pub(super) fn new(scenario: &Scenario, workload: &Workload) -> Self {
        Self {
            capacity: scenario.cache,
            frontier: 0.0,
            now: 0.0,
            readers: vec![Vec::new(); workload.datasets.len()],
            live: Vec::new(),
            cached: 0.0,
            seen: Vec::new(),
        }
    }

    pub(super) fn start(&mut self, workload: &Workload, job: usize, now: f64) {
        let set = workload.jobs[job].dataset;
        if self.readers[set].is_empty() {
            self.live.push(set);
        }
        self.readers[set].push(Reader {
            job,
            history: VecDeque::from([(now, 0.0)]),
            slope: -1.0,
            read: 0.0,
            epoch: 0.0,
            size: workload.datasets[set].size,
            hit: 0.0,
            running: true,
        });
        self.now = now;
    }

    pub(super) fn finish(&mut self, workload: &Workload, job: usize) {
        for reader in &mut self.readers[workload.jobs[job].dataset] {
            reader.running &= reader.job != job;
        }
    }

    pub(super) fn epoch(&mut self, workload: &Workload, job: usize) {
        for reader in &mut self.readers[workload.jobs[job].dataset] {
            if reader.job == job && reader.running {
                reader.epoch = reader.read;
            }
        }
    }

    /// Hit ratios, and where the frontier must be so that what lies behind it is what the cache
    /// holds.
    pub(super) fn settle(&mut self, seconds: f64, progress: &mut [Progress]) {
        let mut total = 0.0;
        let mut density = 0.0;
        let frontier = self.frontier;
        for &set in &self.live {
            let readers = &mut self.readers[set];
            let size = readers[0].size;
            self.seen.clear();
            let mut out = 1.0;
            for reader in readers.iter_mut() {
                reader.forget(frontier);
                let seen = reader.seen(frontier);
                out *= 1.0 - seen.all;
                self.seen.push(seen);
            }
            total += size * (1.0 - out);
            for (at, reader) in readers.iter_mut().enumerate() {
                let seen = self.seen[at];
                // Short lists: jobs that share a dataset at a time, and few that have gone.
                let others: f64 = self
                    .seen
                    .iter()
                    .enumerate()
                    .filter(|&(other, _)| other != at)
                    .map(|(_, seen)| 1.0 - seen.all)
                    .product();
                density += size * seen.density * others;
                if reader.running {
                    let hit = 1.0 - (1.0 - seen.unread) * others;
                    // Within an epoch it falls, and the frontier is a step behind: what counts is
                    // the middle of the step that comes.
                    let falls = (hit - reader.hit).min(0.0);
                    progress[reader.job].hit = (hit + AHEAD * falls).max(0.0);
                    reader.hit = hit;
                }
            }
        }
        self.cached = total.min(self.capacity);
        let excess = total - self.capacity;
        if excess > 0.0 {
            let step = if density > 0.0 {
                excess / density
            } else {
                f64::INFINITY
            };
            let wanted = (frontier + step).min(self.now);
            self.frontier = if step <= FRONTIER_STEP * seconds {
                wanted
            } else {
                self.search(wanted)
            };
        }
    }

    /// Where the cache is full, between the frontier and `most`: halving, for the few times at which
    /// the frontier comes from where little was read to where much was.
    fn search(&self, most: f64) -> f64 {
        let (mut low, mut high) = (self.frontier, most);
        for _ in 0..40 {
            let middle = f64::midpoint(low, high);
            if self.held(middle) > self.capacity {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }

    /// What was read after `frontier`.
    fn held(&self, frontier: f64) -> f64 {
        let of = |&set: &usize| {
            let readers = &self.readers[set];
            let out: f64 = readers
                .iter()
                .map(|reader| 1.0 - reader.seen(frontier).all)
                .product();
            readers[0].size * (1.0 - out)
        };
        self.live.iter().map(of).sum()
    }

    pub(super) fn step(&self, progress: &[Progress]) -> f64 {
        let mut longest = f64::INFINITY;
        for reader in self.live.iter().flat_map(|&set| &self.readers[set]) {
            if reader.running && progress[reader.job].hit < 1.0 {
                longest = longest.min(reader.size / progress[reader.job].rate);
            }
        }
        (EPOCH_STEP * longest).clamp(STEP_S.0, STEP_S.1)
    }

    pub(super) fn advance(&mut self, seconds: f64, progress: &[Progress]) {
        self.now += seconds;
        let (now, frontier) = (self.now, self.frontier);
        let readers = &mut self.readers;
        self.live.retain(|&set| {
            let readers = &mut readers[set];
            for reader in readers.iter_mut().filter(|reader| reader.running) {
                let rate = progress[reader.job].rate;
                reader.read += rate * seconds;
                let same = (rate - reader.slope).abs() <= SLOPE * rate;
                let grows = same && reader.history.len() > 1;
                match reader.history.back_mut() {
                    Some(last) if grows => *last = (now, reader.read),
                    _ => {
                        reader.slope = rate;
                        reader.history.push_back((now, reader.read));
                    }
                }
            }
            // Who has gone is forgotten with the last byte that it read.
            readers.retain(|reader| {
                reader.running || reader.history.back().is_some_and(|last| last.0 > frontier)
            });
            !readers.is_empty()
        });
    }

    /// What is held, and helps.
    pub(super) fn measure(&self, progress: &[Progress]) -> Filling {
        let mut effective = 0.0;
        for &set in &self.live {
            let running = self.readers[set].iter().filter(|reader| reader.running);
            let (count, hits) = running.fold((0.0, 0.0), |(count, hits), reader| {
                (count + 1.0, hits + progress[reader.job].hit)
            });
            if count > 0.0 {
                effective += hits / count * self.readers[set][0].size;
            }
        }
        Filling {
            allocated: self.capacity,
            cached: self.cached,
            effective,
        }
    }
}
