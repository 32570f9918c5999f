//! Meters over time: busy time, and recent throughput.

use crate::num::{as_f64, saturating_sum, to_usize};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Measures the time during which at least one event was in progress, such as a reader that waits
/// for tokens. Cheap: two additions for each change. Pure: the time is passed in, and may go back a
/// little between threads.
#[derive(Debug, Clone)]
pub(super) struct Busy {
    count: u64,
    /// The time up to which `busy` is counted.
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

    /// Returns the total busy time up to `now`.
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

/// The number of whole seconds over which [`Recent`] averages.
const SECONDS: usize = 5;

/// Bytes per second over the last few seconds.
#[derive(Debug, Clone)]
pub(super) struct Recent {
    began: Instant,
    bytes: RecentBytes,
}

/// The bytes of the last seconds since a moment that is known elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecentBytes {
    /// Bytes of the current second and the ones before, at the second's number modulo the length.
    slots: [u64; SECONDS + 1],
    /// The number of the current second since the beginning.
    second: u64,
}

impl Recent {
    pub(super) fn new(now: Instant) -> Self {
        Self::continued(now, RecentBytes::default())
    }

    /// Continues one that has begun at `began`.
    pub(super) fn continued(began: Instant, bytes: RecentBytes) -> Self {
        Self { began, bytes }
    }

    /// Returns when it has begun, and its bytes.
    pub(super) fn parts(&self) -> (Instant, &RecentBytes) {
        (self.began, &self.bytes)
    }

    pub(super) fn add(&mut self, bytes: u64, now: Instant) {
        self.advance(now);
        let slot = self.slot(self.bytes.second);
        *slot = slot.saturating_add(bytes);
    }

    /// Returns bytes per second over the last five full seconds, or as many as there were.
    pub(super) fn rate(&mut self, now: Instant) -> f64 {
        self.advance(now);
        let full = self.bytes.second.min(SECONDS as u64);
        if full == 0 {
            return 0.0;
        }
        let current = *self.slot(self.bytes.second);
        let all = saturating_sum(self.bytes.slots.iter().copied());
        // Slots before the first second are 0.
        as_f64(all.saturating_sub(current)) / as_f64(full)
    }

    fn advance(&mut self, now: Instant) {
        let second = now.saturating_duration_since(self.began).as_secs();
        if second <= self.bytes.second {
            return;
        }
        // After a long pause every slot is cleared once.
        let skipped = (second - self.bytes.second).min(SECONDS as u64 + 1);
        for back in 0..skipped {
            *self.slot(second - back) = 0;
        }
        self.bytes.second = second;
    }

    fn slot(&mut self, second: u64) -> &mut u64 {
        &mut self.bytes.slots[to_usize(second) % (SECONDS + 1)]
    }
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
    fn a_recent_rate_forgets_older_seconds() {
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
