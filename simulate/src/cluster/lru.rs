//! One LRU cache as a liquid.
//!
//! An LRU cache of `C` bytes holds the bytes that were read last. So there is a point in time, the
//! frontier, such that the cache holds exactly the bytes read after it, and only their amount for
//! each dataset matters. A job reads each item once per epoch, in an order that is independent of
//! the previous epoch's. Of its unread items, the fraction that was read after the frontier is the
//! fraction of the last epoch that came after it. It shrinks while the frontier moves through that
//! epoch: that is the thrashing, and the teeth of Figure 9. Fast jobs move the frontier, through
//! the items of slow jobs.

use super::progress::{LiquidCache, Progress};
use super::{Sample, Scenario, Workload};
use std::collections::VecDeque;

/// The maximum length of a step, relative to the fastest epoch that is not wholly cached.
const EPOCH_STEP: f64 = 0.005;
/// The minimum and maximum length of a step in seconds.
const STEP_S: (f64, f64) = (2.0, 120.0);
/// The number of steps by which hit ratios lag: half of the next one, and part of the one by which
/// the frontier lags.
const AHEAD: f64 = 1.0;
/// The relative difference below which two slopes are one segment of a history.
const SLOPE: f64 = 1e-3;
/// In a steady state the frontier moves as fast as time. If it would move faster than this factor,
/// its position is searched for.
const FRONTIER_STEP: f64 = 2.0;

/// A job, or a finished job with cached items: its bytes read as a function of time.
#[derive(Debug, Clone, Default)]
struct Reader {
    /// The job, unless it has finished.
    job: Option<usize>,
    /// Points in time and bytes read until then, starting with the frontier's segment.
    history: VecDeque<(f64, f64)>,
    slope: f64,
    read: f64,
    epoch: f64,
    size: f64,
    /// Its last hit ratio.
    hit: f64,
}

/// The items of a reader that were read after the frontier.
#[derive(Debug, Clone, Copy, Default)]
struct AfterFrontier {
    /// The fraction of its unread items.
    unread: f64,
    /// The fraction of all items.
    all: f64,
    /// The rate at which `all` falls as the frontier moves.
    density: f64,
}

impl Reader {
    fn after(&self, frontier: f64) -> AfterFrontier {
        // The segment that contains the frontier, which is mostly the first.
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
        let past = (self.read - self.epoch) / self.size;
        let unread = (self.epoch - before) / self.size;
        let (unread, all, density) = if before >= self.epoch {
            let all = (self.read - before) / self.size;
            (0.0, all, slope / self.size)
        } else if unread >= 1.0 {
            (1.0, 1.0, 0.0)
        } else {
            let all = past + (1.0 - past) * unread;
            (unread, all, (1.0 - past) * slope / self.size)
        };
        AfterFrontier {
            unread,
            all,
            density,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Lru {
    capacity: f64,
    frontier: f64,
    now: f64,
    /// The bytes of each dataset.
    sizes: Vec<f64>,
    /// The readers of each dataset, including finished ones.
    readers: Vec<Vec<Reader>>,
    /// The datasets with readers.
    live: Vec<usize>,
    cached: f64,
    after: Vec<AfterFrontier>,
}

impl Lru {
    pub(super) fn new(scenario: &Scenario, workload: &Workload) -> Self {
        Self {
            capacity: scenario.cache,
            sizes: workload.datasets.iter().map(|set| set.size).collect(),
            readers: vec![Vec::new(); workload.datasets.len()],
            ..Self::default()
        }
    }

    /// Finds the position between the frontier and `most` at which the cache is full, by bisection.
    /// Needed when the frontier leaves a time with few reads.
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

    /// Returns the bytes that were read after `frontier`.
    fn held(&self, frontier: f64) -> f64 {
        let of = |&set: &usize| {
            let readers = &self.readers[set];
            let out: f64 = readers
                .iter()
                .map(|reader| 1.0 - reader.after(frontier).all)
                .product();
            readers[0].size * (1.0 - out)
        };
        self.live.iter().map(of).sum()
    }
}

impl LiquidCache for Lru {
    fn start(&mut self, set: usize, job: usize, now: f64, _progress: &mut Progress) {
        if self.readers[set].is_empty() {
            self.live.push(set);
        }
        self.readers[set].push(Reader {
            job: Some(job),
            history: VecDeque::from([(now, 0.0)]),
            slope: -1.0,
            size: self.sizes[set],
            ..Reader::default()
        });
        self.now = now;
    }

    fn finish(&mut self, set: usize, job: usize) {
        for reader in &mut self.readers[set] {
            reader.job = reader.job.filter(|&reads| reads != job);
        }
    }

    fn epoch(&mut self, set: usize, job: usize, _progress: &mut Progress) {
        for reader in &mut self.readers[set] {
            if reader.job == Some(job) {
                reader.epoch = reader.read;
            }
        }
    }

    /// Updates hit ratios, and moves the frontier so that the bytes read after it fill the cache.
    fn settle(&mut self, seconds: f64, progress: &mut [Progress]) {
        let mut total = 0.0;
        let mut density = 0.0;
        let frontier = self.frontier;
        for &set in &self.live {
            let readers = &mut self.readers[set];
            let size = readers[0].size;
            self.after.clear();
            let mut out = 1.0;
            for reader in readers.iter_mut() {
                // Segments before the frontier are never needed again.
                while reader.history.len() > 1 && reader.history[1].0 <= frontier {
                    reader.history.pop_front();
                }
                let after = reader.after(frontier);
                // An item is outside of the cache only if no reader has read it after the frontier.
                out *= 1.0 - after.all;
                self.after.push(after);
            }
            total += size * (1.0 - out);
            for (at, reader) in readers.iter_mut().enumerate() {
                let after = self.after[at];
                // The lists are short: concurrent jobs on one dataset, and few finished ones.
                let others: f64 = self
                    .after
                    .iter()
                    .enumerate()
                    .filter(|&(other, _)| other != at)
                    .map(|(_, after)| 1.0 - after.all)
                    .product();
                density += size * after.density * others;
                if let Some(job) = reader.job {
                    let hit = 1.0 - (1.0 - after.unread) * others;
                    // Within an epoch the ratio falls, and the frontier lags by a step. Use the
                    // value in the middle of the next step.
                    let falls = (hit - reader.hit).min(0.0);
                    progress[job].hit = (hit + AHEAD * falls).max(0.0);
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

    fn step(&self, progress: &[Progress]) -> f64 {
        let mut longest = f64::INFINITY;
        for reader in self.live.iter().flat_map(|&set| &self.readers[set]) {
            if let Some(job) = reader.job
                && progress[job].hit < 1.0
            {
                longest = longest.min(reader.size / progress[job].rate);
            }
        }
        (EPOCH_STEP * longest).clamp(STEP_S.0, STEP_S.1)
    }

    fn advance(&mut self, seconds: f64, progress: &mut [Progress]) {
        self.now += seconds;
        let (now, frontier) = (self.now, self.frontier);
        let readers = &mut self.readers;
        self.live.retain(|&set| {
            let readers = &mut readers[set];
            for reader in readers.iter_mut() {
                let Some(job) = reader.job else { continue };
                let rate = progress[job].rate;
                reader.read += rate * seconds;
                // Merge segments of equal slope, so that histories stay short.
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
            // A finished reader is dropped when its last byte is evicted.
            readers.retain(|reader| {
                reader.job.is_some() || reader.history.back().is_some_and(|last| last.0 > frontier)
            });
            !readers.is_empty()
        });
    }

    fn measure(&self, progress: &[Progress]) -> Sample {
        let mut effective = 0.0;
        for &set in &self.live {
            let running = self.readers[set].iter().filter_map(|reader| reader.job);
            let (count, hits) = running.fold((0.0, 0.0), |(count, hits), job| {
                (count + 1.0, hits + progress[job].hit)
            });
            if count > 0.0 {
                effective += hits / count * self.readers[set][0].size;
            }
        }
        Sample {
            allocated_cache: self.capacity,
            cached: self.cached,
            effective_cache: effective,
            ..Sample::default()
        }
    }
}
