//! The ideal rate of a job (`f*` in SiloD), out of its own reads: what it reads per second when data is
//! not its bottleneck.
//!
//! What a filesystem sees is which of the job's threads wait for bytes. While data is the bottleneck
//! all of its loaders wait nearly all of the time; while the GPU is, they have read ahead as far as
//! they may and only some of them read now and then. So time is cut into windows, and each window is
//! asked two things: for which part of it did all known readers wait at once, and which part of the
//! readers' time went into waiting. Only waiting for what was *not* cached counts: an ideal rate is one
//! with all data in the cache, and hits take the time that they take there.
//!
//! - Waiting took less than `STALL_MAX` of the readers' time: a *free* window. Even if each wait held
//!   the job up, its ideal rate is no more than that much higher.
//! - All readers waited at once for less than `STALL_MAX` of it: loaders are *ahead*. The rate is
//!   right if the GPU is what they wait for, and too low if it is their own decoding, which cannot be
//!   told apart from here: so such windows are used only without free ones, with half the confidence.
//! - Else the job was *bound* by data: its ideal rate is at least what it got.
//!
//! The estimate is the median of the last free windows: fills of a queue, pauses for validation and
//! checkpoints are few. Pure: the time is passed in.

#[cfg(test)]
mod tests;

use super::meter::float;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The shortest window, and the fewest reads in it: batches come in bursts, and one of them more or
/// less must not matter.
const WINDOW: Duration = Duration::from_secs(1);
const WINDOW_READS: u64 = 16;

/// Loaders read batches in bursts, so a window ends where a burst begins: after a pause at least half
/// as long as the longest of the last windows. One that finds none in this time ends anyway.
const WINDOW_BURSTS: Duration = Duration::from_secs(10);

/// How much of the longest pause is forgotten with each window.
const GAP_KEPT: f64 = 0.7;

/// The longest window, and the longest pause in one: after it the job has done something else.
const PAUSE: Duration = Duration::from_secs(30);

/// Which part of a window may be spent waiting: as exact as the estimate is to be.
const STALL_MAX: f64 = 0.05;

/// Windows of each kind that are remembered: one or two minutes, so that an estimate follows a job
/// that changes (a compilation at its start, growing images), and no spike weighs much.
const WINDOWS_MAX: usize = 64;

/// Windows that an estimate needs.
const WINDOWS_MIN: usize = 3;

/// How long the number of readers is remembered, at least: longer than an epoch of a small dataset,
/// since loaders are started anew in each and then all wait at once.
const READERS_MEMORY: Duration = Duration::from_secs(300);

/// Threads of a job on a node that are followed; the waits of more are not counted.
const READERS_MAX: usize = 1024;

/// What is known of a job's ideal rate on this node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Bytes per second.
    pub rate: f64,
    /// How far to trust it, from 0 to 1: more windows and less difference between them give more.
    pub confidence: f64,
    /// Windows that it is made of.
    pub windows: u32,
    /// Data was always its bottleneck: it would read at least `rate`. Its confidence is 0.
    pub bound: bool,
}

/// What a job's readers do, and the windows made of it.
#[derive(Debug)]
pub struct Loader {
    /// Threads that wait, and for how many requests.
    waiting: Vec<(u32, u32)>,
    readers: Readers,
    /// Until when the window's times are counted.
    at: Instant,
    window: Option<Window>,
    /// Seconds of the longest pause between two reads, lately.
    gap_s: f64,
    free: Rates,
    ahead: Rates,
    bound: Rates,
}

/// The most threads that have waited at once, lately.
#[derive(Debug)]
struct Readers {
    now: usize,
    before: usize,
    since: Instant,
}

/// A window that is not over. It begins and ends with the end of a read, so that it holds as many
/// reads as it has time for.
#[derive(Debug)]
struct Window {
    began: Instant,
    last: Instant,
    reads: u64,
    bytes: u64,
    /// Seconds of the longest pause between two reads.
    gap_s: f64,
    /// Seconds in which all readers waited.
    all_s: f64,
    /// Seconds that readers waited, added up.
    waited_s: f64,
    /// Seconds that reads of what was cached took, added up, and of what was not.
    hits_s: f64,
    misses_s: f64,
}

#[derive(Debug, Default)]
struct Rates(VecDeque<f64>);

impl Loader {
    /// Nobody has read yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            waiting: Vec::new(),
            readers: Readers {
                now: 0,
                before: 0,
                since: now,
            },
            at: now,
            window: None,
            gap_s: 0.0,
            free: Rates::default(),
            ahead: Rates::default(),
            bound: Rates::default(),
        }
    }

    /// The thread `reader` waits for one more request.
    pub fn begin(&mut self, reader: u32, now: Instant) {
        self.advance(now);
        if let Some((_, requests)) = self.waiting.iter_mut().find(|(id, _)| *id == reader) {
            *requests += 1;
        } else if self.waiting.len() < READERS_MAX {
            self.waiting.push((reader, 1));
        }
        self.readers.saw(self.waiting.len(), now);
    }

    /// One of its requests was answered, or given up.
    pub fn end(&mut self, reader: u32, now: Instant) {
        self.advance(now);
        let place = self.waiting.iter().position(|(id, _)| *id == reader);
        if let Some(place) = place {
            let requests = &mut self.waiting[place].1;
            *requests -= 1;
            if *requests == 0 {
                self.waiting.swap_remove(place);
            }
        }
    }

    /// How many threads wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// An item was read, or found in the page cache.
    pub fn read(&mut self, bytes: u64, cached: bool, started: Instant, now: Instant) {
        self.advance(now);
        let now = self.at;
        let Some(window) = &mut self.window else {
            self.window = Some(Window::new(now));
            return;
        };
        let gap = now.saturating_duration_since(window.last);
        if gap > PAUSE {
            *window = Window::new(now);
            return;
        }
        let gap_s = gap.as_secs_f64();
        window.last = now;
        window.gap_s = window.gap_s.max(gap_s);
        window.reads += 1;
        window.bytes = window.bytes.saturating_add(bytes);
        let took = now.saturating_duration_since(started).as_secs_f64();
        if cached {
            window.hits_s += took;
        } else {
            window.misses_s += took;
        }
        let passed = now.saturating_duration_since(window.began);
        let long = passed >= WINDOW && window.reads >= WINDOW_READS;
        let burst = gap_s >= self.gap_s / 2.0 || passed >= WINDOW_BURSTS;
        if passed >= PAUSE || (long && burst) {
            self.close(passed.as_secs_f64());
        }
    }

    fn close(&mut self, seconds: f64) {
        let Some(window) = self.window.replace(Window::new(self.at)) else {
            return;
        };
        self.gap_s = window.gap_s.max(self.gap_s * GAP_KEPT);
        let rate = float(window.bytes) / seconds;
        let took = window.hits_s + window.misses_s;
        let missed = if took > 0.0 {
            window.misses_s / took
        } else {
            1.0
        };
        let readers = float(self.readers.most().max(1) as u64);
        let kind = if window.waited_s * missed < STALL_MAX * seconds * readers {
            &mut self.free
        } else if window.all_s * missed < STALL_MAX * seconds {
            &mut self.ahead
        } else {
            &mut self.bound
        };
        kind.push(rate);
    }

    /// What is known by now; nothing before the first windows are over.
    #[must_use]
    pub fn estimate(&self) -> Option<Estimate> {
        for (rates, trust) in [(&self.free, 1.0), (&self.ahead, 0.5)] {
            if rates.0.len() >= WINDOWS_MIN {
                return Some(rates.estimate(trust));
            }
        }
        let all = Rates([&self.free, &self.ahead, &self.bound].iter().fold(
            VecDeque::new(),
            |mut all, rates| {
                all.extend(&rates.0);
                all
            },
        ));
        // Not the most: the first reads fill queues faster than the job will ever read again.
        (!all.0.is_empty()).then(|| Estimate {
            rate: all.quantile(0.9),
            confidence: 0.0,
            windows: all.len(),
            bound: true,
        })
    }

    fn advance(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.at += passed;
        let count = self.waiting.len();
        if count > 0
            && let Some(window) = &mut self.window
        {
            let seconds = passed.as_secs_f64();
            window.waited_s += seconds * float(count as u64);
            if count >= self.readers.most() {
                window.all_s += seconds;
            }
        }
    }
}

impl Readers {
    fn saw(&mut self, count: usize, now: Instant) {
        if now.saturating_duration_since(self.since) > READERS_MEMORY {
            self.before = self.now;
            self.now = 0;
            self.since = now;
        }
        self.now = self.now.max(count);
    }

    fn most(&self) -> usize {
        self.now.max(self.before)
    }
}

impl Window {
    fn new(now: Instant) -> Self {
        Self {
            began: now,
            last: now,
            reads: 0,
            bytes: 0,
            gap_s: 0.0,
            all_s: 0.0,
            waited_s: 0.0,
            hits_s: 0.0,
            misses_s: 0.0,
        }
    }
}

impl Rates {
    fn push(&mut self, rate: f64) {
        if self.0.len() == WINDOWS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(rate);
    }

    fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// `windows ÷ (windows + 4)`, less the spread of the middle half over the median.
    fn estimate(&self, trust: f64) -> Estimate {
        let rate = self.quantile(0.5);
        let spread = (self.quantile(0.75) - self.quantile(0.25)) / rate.max(1.0);
        let windows = f64::from(self.len());
        Estimate {
            rate,
            confidence: trust * windows / (windows + 4.0) * (1.0 - spread).clamp(0.0, 1.0),
            windows: self.len(),
            bound: false,
        }
    }

    /// The rate below which that part of them lies; not to be asked of none.
    fn quantile(&self, part: f64) -> f64 {
        let mut sorted: Vec<f64> = self.0.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most 192 windows"
        )]
        let place = (part * float(sorted.len().saturating_sub(1) as u64)).round() as usize;
        sorted.get(place).copied().unwrap_or(0.0)
    }
}
