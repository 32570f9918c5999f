//! A token bucket with a debt of at most one take.

use crate::job::journaled::{Clock, TokensLeft};
use std::time::{Duration, Instant};

/// How much of its rate an idle bucket collects. Long enough that a reader that is woken late
/// (timers of 1 ms, a busy node) loses nothing; short enough to be 1 % of the ten seconds over
/// which rates should be exact.
pub const BURST: Duration = Duration::from_millis(100);

/// The minimum burst in bytes: a few items of typical size (images of 100 KB). A job with few
/// misses is given a rate that just covers them. They come in groups, and without this minimum the
/// job would lose what it does not use between them.
pub const BURST_LEAST: u64 = 512 << 10;

/// The level of one byte. Levels count byte·ns, so that no rounding adds up.
const BYTE: i128 = 1_000_000_000;

/// How long to wait for tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Until then, unless the rate changes or tokens are returned.
    Until(Instant),
    /// Until the rate, which is 0, changes.
    Change,
}

/// The bucket of one job on one node. Pure: the time is passed in, and a time before an earlier one
/// counts as that.
#[derive(Debug, Clone)]
pub struct Bucket {
    /// Bytes per second. 0: nothing passes until the limit changes. `None`: no limit.
    pub(super) limit: Option<u64>,
    /// Byte·ns available at `at`. Negative if owed.
    level: i128,
    pub(super) at: Instant,
}

impl Bucket {
    /// Creates an empty bucket. The first item passes at once, and is owed.
    #[must_use]
    pub fn new(limit: Option<u64>, now: Instant) -> Self {
        Self {
            limit,
            level: 0,
            at: now,
        }
    }

    /// Continues the bucket of a daemon that has left `left`, with the most that it can owe. So whatever passes now
    /// would have passed there too.
    pub(super) fn resumed(left: TokensLeft, clock: &Clock, now: Instant) -> Self {
        let mut bucket = Self {
            limit: left.limit,
            level: -(i128::from(left.owed) * BYTE),
            at: clock.instant(left.at).min(now),
        };
        bucket.advance(now);
        bucket.level = bucket.level.min(-(i128::from(left.largest) * BYTE));
        bucket
    }

    /// Returns the bytes that are owed, rounded up.
    pub(super) fn owed(&self) -> u64 {
        let owed = (-self.level).max(0);
        u64::try_from((owed + BYTE - 1) / BYTE).unwrap_or(u64::MAX)
    }

    /// Takes `bytes`, unless tokens are owed. `bytes` may be more than the bucket ever collects:
    /// the rest is owed, and the next taker waits for it.
    ///
    /// # Errors
    /// Returns how long to wait before the next attempt.
    pub fn try_take(&mut self, bytes: u64, now: Instant) -> Result<(), Wait> {
        self.advance(now);
        let Some(rate) = self.limit else {
            return Ok(());
        };
        if rate == 0 {
            return Err(Wait::Change);
        }
        if self.level < 0 {
            let rate = i128::from(rate);
            // Rounded up, so that the tokens are there when the reader wakes.
            let nanos = (-self.level + rate - 1) / rate;
            // A month is as good as forever, because a change wakes waiting readers.
            let nanos = u64::try_from(nanos).map_or(MONTH, |nanos| nanos.min(MONTH));
            return Err(Wait::Until(self.at + Duration::from_nanos(nanos)));
        }
        self.level -= i128::from(bytes) * BYTE;
        Ok(())
    }

    /// Takes `bytes` unconditionally: spent beyond what was taken.
    pub fn charge(&mut self, bytes: u64, now: Instant) {
        self.advance(now);
        if self.limit.is_some() {
            self.level -= i128::from(bytes) * BYTE;
        }
    }

    /// Returns tokens that were taken and not spent.
    pub fn refund(&mut self, bytes: u64, now: Instant) {
        self.advance(now);
        let level = self.level + i128::from(bytes) * BYTE;
        self.level = level.min(self.burst());
    }

    /// Changes the rate from `now` on. Tokens beyond the new burst are lost; a debt stays, because
    /// those bytes were read.
    pub fn set_limit(&mut self, limit: Option<u64>, now: Instant) {
        self.advance(now);
        self.limit = limit;
        // A smaller burst takes effect at once.
        self.level = self.level.min(self.burst());
    }

    /// Returns the maximum level, in byte·ns.
    fn burst(&self) -> i128 {
        match self.limit {
            None | Some(0) => 0,
            Some(rate) => (i128::from(rate) * nanos(BURST)).max(i128::from(BURST_LEAST) * BYTE),
        }
    }

    fn advance(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.at += passed;
        if let Some(rate) = self.limit {
            let level = self.level + i128::from(rate) * nanos(passed);
            self.level = level.min(self.burst());
        }
    }
}

const MONTH: u64 = 30 * 86_400 * 1_000_000_000;

fn nanos(time: Duration) -> i128 {
    // A century has 2^62 nanoseconds; times a rate of 2^50 that stays far below 2^127.
    i128::try_from(time.as_nanos()).unwrap_or(i128::from(i64::MAX))
}
