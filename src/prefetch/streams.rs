//! Readers of a large file: those that go forward, and those that jump about.
//!
//! The kernel's requests do not identify their reader. So each file has a table of the last `STREAMS_MAX`
//! offsets at which reads ended. A request that begins at one of them, or near it, belongs to that stream. So
//! several readers of one file do not disturb each other, and requests that two threads of the kernel have swapped
//! do not look like jumps.
//!
//! A stream goes *forward* after it has requested more than `FORWARD_BYTES`, if these are at least three quarters
//! of the bytes that it has passed. From then on blocks are prefetched for it, in a window that grows by the bytes
//! it reads. So the bytes that are prefetched and never read are no more than those that were read. Until then, and
//! whenever the [`Pace`] leaves no room for a window, only the requested bytes are fetched: a reader of scattered
//! pages, of a footer or of a header costs what it reads.
//!
//! Pure except for the lock: no I/O, no clock.

use copperfs_overlay::BLOCK_BYTES;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of streams of each file. If more readers than this take turns at distant offsets, nothing is
/// prefetched for them.
const STREAMS_MAX: usize = 8;

/// A request this far before the end of a stream still belongs to it …
const BACK_BYTES: u64 = 1 << 20;

/// … and one this far after it: the kernel splits its read-ahead into requests of 512 KiB or less, and two of
/// them may be swapped.
const GAP_BYTES: u64 = 512 << 10;

/// A stream must request more than this to count as going forward: the footer of a table, the header of a tensor
/// file and a sample of a dataset are shorter.
const FORWARD_BYTES: u64 = BLOCK_BYTES;

/// Of the bytes that a stream has passed, this many count. Beyond it, the older half is forgotten.
const RECENT_BYTES: u64 = 8 << 20;

/// The widest window of one stream.
const WINDOW_BYTES_MAX: u64 = 64 << 20;

/// The unit of [`Stream::rivals`]: a fixed-point 1.
const ONE: u64 = 16;

/// The bytes that all streams of a node have read, and the memory that their windows share.
///
/// Between two of its own requests, a stream compares the bytes that all streams read with its own. This is its share
/// of the reading, and therefore its share of the memory. So all windows together stay within that memory, however
/// many they are, without a list of them.
#[derive(Debug)]
pub struct Pace {
    read_bytes: AtomicU64,
    share_bytes: AtomicU64,
}

impl Pace {
    /// For windows of up to `share_bytes` together.
    pub fn new(share_bytes: u64) -> Self {
        Self {
            read_bytes: AtomicU64::new(0),
            share_bytes: AtomicU64::new(share_bytes),
        }
    }

    /// Changes the memory that the windows share. They adapt to it at their next requests.
    pub fn set_share(&self, share_bytes: u64) {
        self.share_bytes.store(share_bytes, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) -> u64 {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// The maximum window of a stream with `rivals` rivals, including itself.
    fn window(&self, rivals: u64) -> u64 {
        let share = self.share_bytes.load(Ordering::Relaxed);
        let share = share.saturating_mul(ONE) / rivals.max(ONE);
        share.min(WINDOW_BYTES_MAX)
    }
}

/// The state of one reader.
#[derive(Debug)]
struct Stream {
    /// The offset from which its bytes count.
    start: u64,
    /// The end of the furthest request.
    end: u64,
    /// The bytes that it has requested since `start`.
    asked: u64,
    /// The bytes to prefetch ahead of it; 0 while it does not go forward.
    window: u64,
    /// The end of the blocks that were prefetched.
    prefetched: u64,
    /// [`Pace::read_bytes`] at its last request.
    pace: u64,
    /// The bytes that all streams read divided by its own, in units of 1 / [`ONE`]; smoothed.
    rivals: u64,
}

/// The readers of one file: see the module.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// The most recent one is last. Locked for a search among [`STREAMS_MAX`].
    streams: Mutex<Vec<Stream>>,
}

impl ReadAhead {
    /// Called when the bytes of `range`, which is not empty, of a file of `size` bytes are read. Returns the blocks that
    /// a reader that goes forward wants beyond the requested ones; often none, because they were requested before.
    /// `None`: the reader jumps about, or has just begun, and wants only the requested bytes.
    pub fn on_read(&self, range: &Range<u64>, size: u64, pace: &Pace) -> Option<Range<u64>> {
        let mut streams = self.streams.lock();
        let near = |stream: &Stream| {
            let ahead = stream.end.saturating_add(GAP_BYTES);
            let behind = stream.end.saturating_sub(BACK_BYTES).max(stream.start);
            (behind..=ahead).contains(&range.start)
        };
        let place = (0..streams.len())
            .filter(|&at| near(&streams[at]))
            // A request before the end of a stream belongs to it; one after it to the nearest stream.
            .min_by_key(|&at| match range.start.checked_sub(streams[at].end) {
                Some(0) => 0,
                None => 1,
                Some(gap) => 1 + gap,
            });
        let Some(place) = place else {
            if streams.len() == STREAMS_MAX {
                streams.remove(0);
            }
            streams.push(Stream::begin(range, pace));
            return None;
        };
        let mut stream = streams.remove(place);
        let ahead = stream.go_on(range, size, pace);
        streams.push(stream);
        ahead
    }
}

impl Stream {
    fn begin(range: &Range<u64>, pace: &Pace) -> Self {
        let len = range.end - range.start;
        Self {
            start: range.start,
            end: range.end,
            asked: len,
            window: 0,
            prefetched: 0,
            pace: pace.advance(len),
            rivals: ONE,
        }
    }

    fn go_on(&mut self, range: &Range<u64>, size: u64, pace: &Pace) -> Option<Range<u64>> {
        let len = range.end - range.start;
        let advance = range.end.saturating_sub(self.end);
        self.end = self.end.max(range.end);
        self.asked += len;
        let now = pace.advance(len);
        let rivals = now.saturating_sub(self.pace).saturating_mul(ONE) / len.max(1);
        self.rivals = (3 * self.rivals + rivals.max(ONE)) / 4;
        self.pace = now;
        if self.end - self.start > RECENT_BYTES {
            self.start += (self.end - self.start) / 2;
            self.asked /= 2;
        }
        let passed = self.end - self.start;
        let widest = pace.window(self.rivals);
        if passed <= FORWARD_BYTES || self.asked < passed / 4 * 3 || widest < BLOCK_BYTES {
            self.window = 0;
            return None;
        }
        self.window = (self.window.max(FORWARD_BYTES) + advance).min(widest);
        Some(self.due(size))
    }

    /// The blocks to prefetch now, in few and long runs. Never the block of the current request: the reader
    /// requests the rest of it itself, so nothing is fetched twice.
    fn due(&mut self, size: u64) -> Range<u64> {
        let last = size.div_ceil(BLOCK_BYTES);
        let from = self
            .prefetched
            .max(self.end.div_ceil(BLOCK_BYTES))
            .min(last);
        let until = ((self.end + self.window) / BLOCK_BYTES).min(last);
        let step = (self.window / 2 / BLOCK_BYTES).max(1);
        if until < from + step && (until < last || until <= from) {
            return from..from;
        }
        self.prefetched = until;
        from..until
    }
}

#[cfg(test)]
mod tests;
