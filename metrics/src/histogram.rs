//! Distributions of latencies.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of buckets. Bucket `i` counts durations below `2^i` microseconds and not below half of that. The last one counts
/// all durations from 33 seconds on.
const BUCKETS: usize = 27;

/// A distribution of durations. An observation costs two atomic additions and no lock. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Histogram(Arc<HistogramInner>);

#[derive(Debug, Default)]
struct HistogramInner {
    buckets: [AtomicU64; BUCKETS],
    /// Nanoseconds.
    sum: AtomicU64,
}

impl Histogram {
    /// Counts one observation.
    pub fn observe(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        self.0.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.0.sum.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns the distribution so far.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        HistogramSnapshot {
            buckets: self.0.buckets.iter().map(load).collect(),
            sum: Duration::from_nanos(load(&self.0.sum)),
        }
    }
}

/// A distribution at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HistogramSnapshot {
    /// Observations of each bucket, not cumulative.
    buckets: Vec<u64>,
    /// The sum of all observations.
    pub sum: Duration,
}

impl HistogramSnapshot {
    /// Returns the sum with an earlier distribution of the same histogram.
    pub(crate) fn plus(mut self, earlier: &Self) -> Self {
        for (now, earlier) in self.buckets.iter_mut().zip(&earlier.buckets) {
            *now = now.wrapping_add(*earlier);
        }
        self.sum = self.sum.saturating_add(earlier.sum);
        self
    }

    /// The number of observations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns each bucket's upper bound (`None` for the last, which has none) and its number of observations, not
    /// cumulative.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let last = self.buckets.len().saturating_sub(1);
        let bound = move |at: usize| (at < last).then(|| Duration::from_micros(1 << at));
        self.buckets
            .iter()
            .enumerate()
            .map(move |(at, count)| (bound(at), *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_below_the_bound_of_its_bucket() {
        for (micros, bound) in [
            (0, Some(1)),
            (1, Some(2)),
            (2, Some(4)),
            (1000, Some(1024)),
            (1024, Some(2048)),
            (33_554_431, Some(1 << 25)),
            (33_554_432, None),
            (u64::MAX, None),
        ] {
            let histogram = Histogram::default();
            histogram.observe(Duration::from_micros(micros));
            let snapshot = histogram.snapshot();
            let filled = snapshot.buckets().find(|(_, count)| *count > 0);
            let expected = bound.map(Duration::from_micros);
            assert_eq!(filled, Some((expected, 1)), "{micros}");
            assert_eq!(snapshot.count(), 1);
        }
    }

    #[test]
    fn sums_add_up() {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_micros(3));
        histogram.clone().observe(Duration::from_millis(2));
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.sum, Duration::from_micros(2003));
        assert_eq!(snapshot.count(), 2);
    }
}
