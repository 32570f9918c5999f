//! A token bucket that may owe one take.

use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// How much of its rate an idle bucket gathers. Long enough that a reader that is woken late (timers
/// of 1 ms, a busy node) loses nothing; short enough to be 1 % of the ten seconds over which rates
/// are to be exact.
pub const BURST: Duration = Duration::from_millis(100);

/// And never less than this: a few items as datasets have them (images of 100 KB). A job that hits
/// nearly always is given a rate that just covers its misses; they come in bunches, and without this
/// what it does not use between them would be lost.
pub const BURST_LEAST: u64 = 512 << 10;

/// What may be read of the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum RateLimit {
    /// As fast as it comes: nobody has decided yet, or nothing is short.
    #[default]
    Unlimited,
    /// Bytes per second. 0: nothing passes until the rate changes.
    BytesPerSecond(u64),
}

impl RateLimit {
    /// Out of a decision, which counts in `f64`. Rounds up, so that a little is not nothing; what is
    /// not a number, or below zero, is 0; infinity is no limit.
    #[must_use]
    pub fn from_bytes_per_second(rate: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the cast saturates, and makes 0 of what is not a number"
        )]
        let whole = rate.ceil() as u64;
        if rate == f64::INFINITY {
            Self::Unlimited
        } else {
            Self::BytesPerSecond(whole.min(RATE_MAX))
        }
    }
}

/// A petabyte a second: more than any storage gives, and small enough for the arithmetic below.
const RATE_MAX: u64 = 1_000_000_000_000_000;

/// One byte's worth of level: levels count in byte·ns, so that no rounding adds up.
const BYTE: i128 = 1_000_000_000;

/// Until when there is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Until then, if the rate stays and nothing is given back.
    Until(Instant),
    /// Until the rate changes: it is 0.
    Change,
}

/// The bucket of one job on one node. Pure: the time is passed in; one that lies before an earlier
/// one counts as that.
#[derive(Debug, Clone)]
pub struct Bucket {
    limit: RateLimit,
    /// Byte·ns that may be taken at `at`; below zero: owed.
    level: i128,
    at: Instant,
}

impl Bucket {
    /// An empty bucket: the first item passes at once, and is owed.
    #[must_use]
    pub fn new(limit: RateLimit, now: Instant) -> Self {
        Self {
            limit,
            level: 0,
            at: now,
        }
    }

    /// Takes `bytes`, if nothing is owed. `bytes` may be more than the bucket ever gathers: the rest
    /// is owed, and the next taker waits for it.
    ///
    /// # Errors
    /// How long to wait before the next try.
    pub fn try_take(&mut self, bytes: u64, now: Instant) -> Result<(), Wait> {
        self.advance(now);
        let RateLimit::BytesPerSecond(rate) = self.limit else {
            return Ok(());
        };
        if rate == 0 {
            return Err(Wait::Change);
        }
        if self.level < 0 {
            let rate = i128::from(rate);
            let nanos = (-self.level + rate - 1) / rate;
            // More than a month is as good as for ever: whoever waits is woken by a change.
            let nanos = u64::try_from(nanos).map_or(MONTH, |nanos| nanos.min(MONTH));
            return Err(Wait::Until(self.at + Duration::from_nanos(nanos)));
        }
        self.level -= i128::from(bytes) * BYTE;
        Ok(())
    }

    /// Takes `bytes` whatever is there: what was spent beyond what was taken.
    pub fn charge(&mut self, bytes: u64, now: Instant) {
        self.advance(now);
        if matches!(self.limit, RateLimit::BytesPerSecond(_)) {
            self.level -= i128::from(bytes) * BYTE;
        }
    }

    /// Gives back what was taken and not spent.
    pub fn refund(&mut self, bytes: u64, now: Instant) {
        self.advance(now);
        let level = self.level + i128::from(bytes) * BYTE;
        self.level = level.min(self.burst());
    }

    /// Another rate from `now` on. What was gathered beyond the new burst is lost; what is owed stays
    /// owed, since it was read.
    pub fn set_limit(&mut self, limit: RateLimit, now: Instant) {
        self.advance(now);
        self.limit = limit;
        self.level = self.level.min(self.burst());
    }

    /// The rate.
    #[must_use]
    pub fn limit(&self) -> RateLimit {
        self.limit
    }

    /// The most that can be gathered, in byte·ns.
    fn burst(&self) -> i128 {
        match self.limit {
            RateLimit::Unlimited => 0,
            RateLimit::BytesPerSecond(0) => 0,
            RateLimit::BytesPerSecond(rate) => {
                (i128::from(rate) * nanos(BURST)).max(i128::from(BURST_LEAST) * BYTE)
            }
        }
    }

    fn advance(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.at += passed;
        if let RateLimit::BytesPerSecond(rate) = self.limit {
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
