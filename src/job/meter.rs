//! Meters over time: how much of it was busy, and how much came through lately.

use std::time::{Duration, Instant};

/// How much of the time at least one of something was there: a reader that waits for tokens, a read
/// under way. Cheap: two additions for each change. Pure: the time is passed in, and may go back a
/// little between threads.
#[derive(Debug, Clone)]
pub(super) struct Busy {
    count: u64,
    /// Until when `busy` is counted.
    until: Instant,
    busy: Duration,
}

impl Busy {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            count: 0,
            until: now,
            busy: Duration::ZERO,
        }
    }

    pub(super) fn begin(&mut self, now: Instant) {
        self.advance(now);
        self.count += 1;
    }

    pub(super) fn end(&mut self, now: Instant) {
        self.advance(now);
        self.count = self.count.saturating_sub(1);
    }

    /// All time with at least one, up to `now`.
    pub(super) fn total(&mut self, now: Instant) -> Duration {
        self.advance(now);
        self.busy
    }

    fn advance(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.until);
        self.until += passed;
        if self.count > 0 {
            self.busy += passed;
        }
    }
}

/// Whole seconds that a [`Recent`] looks back.
const SECONDS: u64 = 5;
/// The same, and the second that runs.
const SLOTS: usize = 6;

/// Bytes per second over the last few seconds.
#[derive(Debug, Clone)]
pub(super) struct Recent {
    began: Instant,
    /// Bytes of each second, by its number modulo the length: the one that runs, and those before.
    slots: [u64; SLOTS],
    /// The second that runs, from `began`.
    second: u64,
}

impl Recent {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            began: now,
            slots: [0; SLOTS],
            second: 0,
        }
    }

    pub(super) fn add(&mut self, bytes: u64, now: Instant) {
        self.advance(now);
        let slot = &mut self.slots[slot(self.second)];
        *slot = slot.saturating_add(bytes);
    }

    /// Bytes per second over the last five full seconds, or as many as there were.
    pub(super) fn rate(&mut self, now: Instant) -> f64 {
        self.advance(now);
        let full = self.second.min(SECONDS);
        if full == 0 {
            return 0.0;
        }
        let bytes: u64 = (1..=full)
            .map(|back| self.slots[slot(self.second - back)])
            .fold(0, u64::saturating_add);
        float(bytes) / float(full)
    }

    fn advance(&mut self, now: Instant) {
        let second = now.saturating_duration_since(self.began).as_secs();
        if second <= self.second {
            return;
        }
        let skipped = (second - self.second).min(SECONDS + 1);
        for back in 0..skipped {
            self.slots[slot(second - back)] = 0;
        }
        self.second = second;
    }
}

fn slot(second: u64) -> usize {
    crate::num::to_usize(second % (SECONDS + 1))
}

/// A count as a float: exact up to 2^53, which no count of bytes here reaches.
#[expect(clippy::cast_precision_loss, reason = "nine petabytes are exact")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_counts_the_time_with_at_least_one() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut busy = Busy::new(start);
        busy.begin(at(10));
        busy.begin(at(20));
        busy.end(at(15)); // another thread's clock
        busy.end(at(40));
        assert_eq!(busy.total(at(100)), Duration::from_millis(30));
        busy.end(at(100));
        busy.begin(at(100));
        assert_eq!(busy.total(at(150)), Duration::from_millis(80));
    }

    #[test]
    fn a_recent_rate_forgets_what_is_older() {
        let start = Instant::now();
        let at = |s: f64| start + Duration::from_secs_f64(s);
        let mut recent = Recent::new(start);
        assert!(recent.rate(at(0.5)).abs() < f64::EPSILON);
        for tenth in 0..100 {
            recent.add(10, at(f64::from(tenth) / 10.0));
        }
        assert!((recent.rate(at(10.0)) - 100.0).abs() < 1e-9);
        assert!((recent.rate(at(12.5)) - 60.0).abs() < 1e-9);
        assert!(recent.rate(at(60.0)).abs() < f64::EPSILON);
        recent.add(50, at(60.2));
        assert!((recent.rate(at(61.0)) - 10.0).abs() < 1e-9);
    }
}
