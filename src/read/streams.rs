//! Who reads a large file, and how: forward, or here and there.
//!
//! The kernel's requests carry no reader's name, only places. So each file has a table of the last
//! [`STREAMS_MAX`] places at which it was read; a request that goes on where one of them stopped, or
//! nearly, belongs to it. Several readers of one file therefore do not disturb each other, and requests
//! that two threads of the kernel have swapped do not look like jumps.
//!
//! A stream goes *forward* once it has asked for more than [`FORWARD_BYTES`], for at least three
//! quarters of what it has passed. From then on blocks are fetched ahead of it, in a window that grows by
//! what it reads, so that what is fetched and never read is no more than what was. Until then, and
//! whenever the pace says that windows have no room, exactly what it asks for is fetched: a reader of
//! scattered pages, of a footer or of a header costs what it reads.
//!
//! Pure but for the lock: no I/O, no clock.

use copperfs_overlay::BLOCK_BYTES;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Places remembered for each file. More readers of one file than this, none of them near another,
/// are served without read-ahead when they take turns.
const STREAMS_MAX: usize = 8;

/// A request this far behind the place where a stream stopped still belongs to it …
const BACK_BYTES: u64 = 1 << 20;

/// … and one this far ahead of it: the kernel cuts its read-ahead into requests of 512 KiB or less,
/// and two of them may be swapped.
const GAP_BYTES: u64 = 512 << 10;

/// Who has asked for no more than this, in order, is not yet taken to go forward: the footer of a
/// table, the header of a tensor file and a sample of a dataset end before.
const FORWARD_BYTES: u64 = BLOCK_BYTES;

/// Of what a stream has passed, this much counts: what it did before is forgotten by halves.
const RECENT_BYTES: u64 = 8 << 20;

/// The widest window of one stream.
const WINDOW_BYTES_MAX: u64 = 64 << 20;

/// Fixed point of [`Stream::rivals`].
const ONE: u64 = 16;

/// How far all streams of a node have read, and how much room their windows share.
///
/// A stream that compares how far all of them went with how far it went itself, between two of its own
/// requests, knows its share of the reading: that is its share of the room. So all windows together stay
/// within it, whatever their number, and nobody keeps a list of them.
#[derive(Debug)]
pub(super) struct Pace {
    read_bytes: AtomicU64,
    share_bytes: u64,
}

impl Pace {
    /// For windows of `share_bytes` together.
    pub(super) fn new(share_bytes: u64) -> Self {
        Self {
            read_bytes: AtomicU64::new(0),
            share_bytes,
        }
    }

    fn advance(&self, bytes: u64) -> u64 {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// The widest window for a stream with so many rivals, itself included.
    fn window(&self, rivals: u64) -> u64 {
        let share = self.share_bytes.saturating_mul(ONE) / rivals.max(ONE);
        share.min(WINDOW_BYTES_MAX)
    }
}

/// How a request was meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Pattern {
    /// Somebody jumps about, or has just begun: only what was asked for is wanted.
    Scattered,
    /// Somebody goes forward: these blocks are wanted beyond what was asked for. Often none, since they
    /// were given before.
    Forward(Range<u64>),
}

/// Where one reader is.
#[derive(Debug)]
struct Stream {
    /// From here on it is looked at.
    start: u64,
    /// Behind the furthest byte that it has asked for.
    end: u64,
    /// Bytes that it has asked for since `start`.
    asked: u64,
    /// Bytes to have ahead of it; 0 while it does not go forward.
    window: u64,
    /// Blocks before this one were given.
    given: u64,
    /// [`Pace::read_bytes`] at its last request.
    pace: u64,
    /// How many times as much as itself all streams read, in units of 1 / [`ONE`]; smoothed.
    rivals: u64,
}

/// The readers of one file: see the module.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// The one that moved last comes last. Guards itself; held for a look at [`STREAMS_MAX`] of them.
    streams: Mutex<Vec<Stream>>,
}

impl ReadAhead {
    /// The bytes of `range`, not empty, of a file of `size` bytes are being read.
    pub(super) fn read(&self, range: &Range<u64>, size: u64, pace: &Pace) -> Pattern {
        let mut streams = self.streams.lock();
        let near = |stream: &Stream| {
            let ahead = stream.end.saturating_add(GAP_BYTES);
            let behind = stream.end.saturating_sub(BACK_BYTES).max(stream.start);
            (behind..=ahead).contains(&range.start)
        };
        let place = (0..streams.len())
            .filter(|&at| near(&streams[at]))
            // A place that was passed by belongs to whoever did; one ahead to who is nearest.
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
            return Pattern::Scattered;
        };
        let mut stream = streams.remove(place);
        let pattern = stream.go_on(range, size, pace);
        streams.push(stream);
        pattern
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
            given: 0,
            pace: pace.advance(len),
            rivals: ONE,
        }
    }

    fn go_on(&mut self, range: &Range<u64>, size: u64, pace: &Pace) -> Pattern {
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
            return Pattern::Scattered;
        }
        self.window = (self.window.max(FORWARD_BYTES) + advance).min(widest);
        Pattern::Forward(self.give(size))
    }

    /// The blocks that are due now, in few and long runs. Never one of which something was asked for
    /// already: the rest of that comes as it is asked for, and nothing comes twice.
    fn give(&mut self, size: u64) -> Range<u64> {
        let last = size.div_ceil(BLOCK_BYTES);
        let from = self.given.max(self.end.div_ceil(BLOCK_BYTES)).min(last);
        let until = ((self.end + self.window) / BLOCK_BYTES).min(last);
        let step = (self.window / 2 / BLOCK_BYTES).max(1);
        if until < from + step && (until < last || until <= from) {
            return from..from;
        }
        self.given = until;
        from..until
    }
}

#[cfg(test)]
mod tests;
