//! Counts that a later process continues.

use crate::snapshot::{Kind, Sample, Snapshot, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The counters and histograms of a registry. The registry of a later process can continue them:
/// [`Registry::continue_from`](crate::Registry::continue_from).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts(BTreeMap<String, Value>);

impl Counts {
    /// Returns the value of `sample` that continues these counts.
    pub(crate) fn continued(&self, sample: &Sample, value: Value) -> Value {
        // Most processes continue nothing, so most samples need no key.
        if self.0.is_empty() || sample.kind == Kind::Gauge {
            return value;
        }
        match self.0.get(&key(sample)) {
            Some(earlier) => value.plus(earlier),
            None => value,
        }
    }

    /// Replaces the counts that `snapshot` has. The others stay: their metrics may not be declared yet.
    pub(crate) fn update(&mut self, snapshot: &Snapshot) {
        let counted = snapshot.0.iter();
        let counted = counted.filter(|sample| sample.kind != Kind::Gauge);
        self.0
            .extend(counted.map(|sample| (key(sample), sample.value.clone())));
    }
}

fn key(sample: &Sample) -> String {
    sample.path.join(".")
}

#[cfg(test)]
mod tests {
    use crate::{Counter, Counts, Gauge, Histogram, Registry, Unit};
    use serde_json::json;
    use std::time::Duration;

    /// The registry of a process that has counted so many hits, and one observation.
    fn registry(hits: u64) -> Registry {
        let registry = Registry::default();
        let (counter, gauge, latency) =
            (Counter::default(), Gauge::default(), Histogram::default());
        counter.add(hits);
        gauge.set(hits);
        latency.observe(Duration::from_micros(hits));
        let scope = registry.scope("cache").label("cache", "data");
        scope.counter("hits", Unit::Count, "Requests answered.", &counter);
        scope.gauge("held", Unit::Count, "Held now.", &gauge);
        scope.histogram("latency", "Time to the answer.", &latency);
        registry
    }

    fn counts(registry: &Registry) -> Counts {
        registry.counts(&registry.snapshot())
    }

    #[test]
    fn a_later_registry_continues_counters_and_histograms() {
        let first = counts(&registry(3));
        let second = registry(5);
        second.continue_from(first);
        let third = registry(1);
        third.continue_from(counts(&second));
        let wanted = json!({ "cache": { "data": {
            "hits": 9,
            "held": 1,
            "latency": { "count": 3, "sum_us": 9, "buckets": { "2": 1, "4": 1, "8": 1 } },
        } } });
        assert_eq!(json!(third.snapshot().to_json()), wanted);
    }

    #[test]
    fn metrics_that_only_one_of_them_has_do_not_matter() {
        let new = Registry::default();
        new.scope("new")
            .counter("more", Unit::Count, "More.", &Counter::default());
        new.continue_from(counts(&registry(3)));
        assert_eq!(
            json!(new.snapshot().to_json()),
            json!({ "new": { "more": 0 } })
        );
        // A later process may declare it again.
        let last = registry(1);
        last.continue_from(counts(&new));
        assert_eq!(last.snapshot().to_json()["cache"]["data"]["hits"], 4);
    }

    /// Another program may have another kind of metric by this name.
    #[test]
    fn another_kind_of_value_is_not_continued() {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_micros(3));
        let registry = Registry::default();
        registry.scope("x").histogram("", "Time.", &histogram);
        let earlier = Registry::default();
        let counter = Counter::default();
        counter.add(7);
        earlier
            .scope("x")
            .counter("", Unit::Count, "Times.", &counter);
        let own = json!(registry.snapshot().to_json());
        registry.continue_from(counts(&earlier));
        assert_eq!(json!(registry.snapshot().to_json()), own);
    }
}
