//! Estimates the ideal rate of a job (`f*` in SiloD) from its own reads: the rate at which it reads
//! when data is not its bottleneck.
//!
//! A filesystem sees which of the job's threads wait for bytes. While data is the bottleneck, all
//! of its loaders wait nearly all of the time. While the GPU is the bottleneck, they have read
//! ahead as far as they may, and only some of them read now and then. So time is divided into
//! windows, and for each window two values are computed: the fraction of it in which all known
//! readers waited at once, and the fraction of the readers' time that was spent waiting. Only
//! waiting for items that were *not* cached counts: an ideal rate is one with all data in the
//! cache, and hits take their time there, too.
//!
//! - If waiting took less than `STALL_MAX` of the readers' time, the window is *free*. Even if each
//!   wait delayed the job, its ideal rate is at most that much higher.
//! - If all readers waited at once for less than `STALL_MAX` of it, loaders are *ahead*. The rate
//!   is right if they wait for the GPU, and too low if their own decoding is the bottleneck. These
//!   cases cannot be distinguished here, so such windows are used only if there are no free ones,
//!   with half the confidence.
//! - Otherwise the job was *bound* by data, and its ideal rate is at least the observed rate.
//!
//! The estimate is the median of the last free windows, because filled queues and pauses for
//! validation and checkpoints are few. Pure: the time is passed in.

#[cfg(test)]
mod tests;

use crate::num::{as_f64, to_usize};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The minimum length of a window and the minimum number of reads in it. Batches come in bursts,
/// and one more or less must not matter.
const WINDOW: Duration = Duration::from_secs(1);
const WINDOW_READS: u64 = 16;

/// Loaders read batches in bursts, so a window ends where a burst begins: after a pause at least
/// half as long as the longest of the last windows. A window without such a pause ends after this
/// time.
const WINDOW_BURSTS: Duration = Duration::from_secs(10);

/// The factor by which the longest pause shrinks with each window.
const GAP_KEPT: f64 = 0.7;

/// The maximum length of a window, and of a pause in it. After a longer pause the job has done
/// something else.
const PAUSE: Duration = Duration::from_secs(30);

/// The fraction of a window that may be spent waiting: the accuracy of the estimate.
const STALL_MAX: f64 = 0.05;

/// The maximum number of windows of each kind: one or two minutes, so that an estimate follows a
/// job that changes (a compilation at its start, growing images), and no outlier weighs much.
const WINDOWS_MAX: usize = 64;

/// The minimum number of windows for an estimate.
const WINDOWS_MIN: usize = 3;

/// How long the number of readers is remembered, at least: longer than an epoch of a small dataset,
/// because loaders are restarted in each epoch and then all wait at once.
const READERS_MEMORY: Duration = Duration::from_secs(300);

/// The maximum number of threads of a job on a node that are tracked. Waits of further threads are
/// ignored.
const READERS_MAX: usize = 1024;

/// The estimate of a job's ideal rate on this node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Bytes per second.
    pub rate: f64,
    /// The confidence, from 0 to 1. It grows with the number of windows and with their agreement.
    pub confidence: f64,
    /// The number of windows.
    pub windows: u32,
    /// Whether data was always the bottleneck. The ideal rate is then at least `rate`, and the
    /// confidence is 0.
    pub bound: bool,
}

/// Tracks a job's readers, and divides time into windows.
#[derive(Debug)]
pub struct RateEstimator {
    /// The waiting threads, each with its number of requests.
    waiting: Vec<(u32, u32)>,
    readers: ReaderCount,
    /// The time up to which the window's times are counted.
    at: Instant,
    window: Option<Window>,
    /// The longest recent pause between two reads, in seconds.
    gap_s: f64,
    free: Rates,
    ahead: Rates,
    bound: Rates,
}

/// The largest recent number of threads that waited at once.
#[derive(Debug)]
struct ReaderCount {
    now: usize,
    before: usize,
    since: Instant,
}

/// The current window. It begins and ends with the end of a read, so that its number of reads fits
/// its length.
#[derive(Debug)]
struct Window {
    began: Instant,
    last: Instant,
    reads: u64,
    bytes: u64,
    /// The longest pause between two reads, in seconds.
    gap_s: f64,
    /// Seconds in which all readers waited.
    all_s: f64,
    /// The sum of the readers' waiting times, in seconds.
    waited_s: f64,
    /// The sums of the durations of hits and of misses, in seconds.
    hits_s: f64,
    misses_s: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Rates(VecDeque<f64>);

/// How a window has ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WindowEnd {
    kind: Kind,
    /// Bytes per second.
    rate: f64,
    /// See [`RateEstimator`].
    gap_s: f64,
    /// See [`ReaderCount`].
    readers: u32,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Kind {
    Free,
    Ahead,
    Bound,
}

/// The windows of an estimator, for another process that continues it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Windows {
    free: Rates,
    ahead: Rates,
    bound: Rates,
    gap_s: f64,
    readers: u32,
}

impl RateEstimator {
    /// Creates an estimator without reads.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            waiting: Vec::new(),
            readers: ReaderCount {
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

    /// Returns the windows so far.
    #[must_use]
    pub fn windows(&self) -> Windows {
        Windows {
            free: self.free.clone(),
            ahead: self.ahead.clone(),
            bound: self.bound.clone(),
            gap_s: self.gap_s,
            readers: self.known_readers(),
        }
    }

    /// Continues with the windows of an estimator of the same job.
    pub fn restore(&mut self, windows: Windows, now: Instant) {
        let Windows {
            free,
            ahead,
            bound,
            gap_s,
            readers,
        } = windows;
        (self.free, self.ahead, self.bound) = (free, ahead, bound);
        self.gap_s = gap_s;
        self.readers.saw(to_usize(readers.into()), now);
    }

    /// Adds a window of such an estimator.
    pub fn add(&mut self, end: WindowEnd, now: Instant) {
        self.of(end.kind).push(end.rate);
        self.gap_s = end.gap_s;
        self.readers.saw(to_usize(end.readers.into()), now);
    }

    fn of(&mut self, kind: Kind) -> &mut Rates {
        match kind {
            Kind::Free => &mut self.free,
            Kind::Ahead => &mut self.ahead,
            Kind::Bound => &mut self.bound,
        }
    }

    fn known_readers(&self) -> u32 {
        // At most as many as are tracked.
        u32::try_from(self.readers.most()).unwrap_or(u32::MAX)
    }

    /// Records that the thread `reader` waits for one more request.
    pub fn begin(&mut self, reader: u32, now: Instant) {
        self.advance(now);
        if let Some((_, requests)) = self.waiting.iter_mut().find(|(id, _)| *id == reader) {
            *requests += 1;
        } else if self.waiting.len() < READERS_MAX {
            self.waiting.push((reader, 1));
        }
        self.readers.saw(self.waiting.len(), now);
    }

    /// Records that one of its requests was answered or abandoned.
    pub fn end(&mut self, reader: u32, now: Instant) {
        self.advance(now);
        if let Some(place) = self.waiting.iter().position(|(id, _)| *id == reader) {
            self.waiting[place].1 -= 1;
            if self.waiting[place].1 == 0 {
                self.waiting.swap_remove(place);
            }
        }
    }

    /// Returns the number of waiting threads.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Records that an item was read, or found in the page cache. Returns the window that this has ended, if any.
    pub fn read(
        &mut self,
        bytes: u64,
        cached: bool,
        started: Instant,
        now: Instant,
    ) -> Option<WindowEnd> {
        self.advance(now);
        // Times of several threads may be out of order; `advance` has made them monotonic.
        let now = self.at;
        let Some(window) = &mut self.window else {
            self.window = Some(Window::new(now));
            return None;
        };
        let gap = now.saturating_duration_since(window.last);
        if gap > PAUSE {
            *window = Window::new(now);
            return None;
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
        match passed >= PAUSE || (long && burst) {
            true => self.close(passed.as_secs_f64()),
            false => None,
        }
    }

    fn close(&mut self, seconds: f64) -> Option<WindowEnd> {
        let window = self.window.replace(Window::new(self.at))?;
        self.gap_s = window.gap_s.max(self.gap_s * GAP_KEPT);
        let rate = as_f64(window.bytes) / seconds;
        let took = window.hits_s + window.misses_s;
        let missed = match took > 0.0 {
            true => window.misses_s / took,
            false => 1.0,
        };
        // A loader that never waits is not known as a reader, so there may be none.
        let readers = as_f64(self.readers.most().max(1) as u64);
        let kind = if window.waited_s * missed < STALL_MAX * seconds * readers {
            Kind::Free
        } else if window.all_s * missed < STALL_MAX * seconds {
            Kind::Ahead
        } else {
            Kind::Bound
        };
        self.of(kind).push(rate);
        Some(WindowEnd {
            kind,
            rate,
            gap_s: self.gap_s,
            readers: self.known_readers(),
        })
    }

    /// Returns the estimate. `None` before the end of the first window.
    #[must_use]
    pub fn estimate(&self) -> Option<Estimate> {
        for (rates, trust) in [(&self.free, 1.0), (&self.ahead, 0.5)] {
            if rates.0.len() >= WINDOWS_MIN {
                return Some(rates.estimate(trust));
            }
        }
        // There are too few windows of any kind, so use all of them for a lower bound.
        let kinds = [&self.free, &self.ahead, &self.bound].into_iter();
        let all = Rates(kinds.flat_map(|rates| &rates.0).copied().collect());
        // Not the maximum, because the first reads fill queues faster than the job ever reads
        // again.
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
            window.waited_s += seconds * as_f64(count as u64);
            if count >= self.readers.most() {
                window.all_s += seconds;
            }
        }
    }
}

impl ReaderCount {
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

    /// The confidence is `windows ÷ (windows + 4)`, reduced by the spread of the middle half
    /// relative to the median.
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

    /// Returns a quantile of the rates. There must be at least one.
    fn quantile(&self, part: f64) -> f64 {
        let mut sorted: Vec<f64> = self.0.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most 192 windows"
        )]
        let place = (part * as_f64(sorted.len().saturating_sub(1) as u64)).round() as usize;
        sorted.get(place).copied().unwrap_or(0.0)
    }
}
