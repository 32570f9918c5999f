//! The values of all metrics at one moment, and their text forms.

use crate::histogram::HistogramSnapshot;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// Whether a number only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It grows and shrinks.
    Gauge,
    /// A distribution.
    Histogram,
}

/// The unit of a number. It ends the metric's name, apart from plain counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A plain count.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

/// A metric's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    /// The value of a counter or a gauge.
    Number(u64),
    /// The value of a histogram.
    Histogram(HistogramSnapshot),
}

impl Value {
    /// Returns the sum with an earlier value of the same metric. A value of another kind is ignored.
    pub(crate) fn plus(self, earlier: &Self) -> Self {
        match (self, earlier) {
            (Self::Number(now), Self::Number(earlier)) => Self::Number(now.wrapping_add(*earlier)),
            (Self::Histogram(now), Self::Histogram(earlier)) => Self::Histogram(now.plus(earlier)),
            (now, _) => now,
        }
    }
}

/// A metric and its value.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Names and values of labels, in the order in which JSON nests them.
    pub path: Vec<&'static str>,
    /// The names alone.
    pub names: Vec<&'static str>,
    /// Labels with their values.
    pub labels: Vec<(&'static str, &'static str)>,
    /// The kind of the metric.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// One sentence for operators.
    pub help: &'static str,
    /// Its value.
    pub value: Value,
}

/// All metrics at one moment, in the order of their declaration.
#[derive(Debug, Clone, Default)]
pub struct Snapshot(pub Vec<Sample>);

impl Sample {
    /// Whether this is a histogram without any observation.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(&self.value, Value::Histogram(histogram) if histogram.count() == 0)
    }

    fn prometheus_labels(&self, more: Option<(&str, &str)>) -> String {
        let labels = self.labels.iter().copied().chain(more);
        let labels: Vec<String> = labels.map(|(k, v)| format!("{k}=\"{v}\"")).collect();
        match labels.as_slice() {
            [] => String::new(),
            labels => format!("{{{}}}", labels.join(",")),
        }
    }

    /// The lines of the sample in Prometheus, where it is called `name`.
    fn to_prometheus(&self, name: &str) -> String {
        let labels = self.prometheus_labels(None);
        let histogram = match &self.value {
            Value::Number(number) => return format!("{name}{labels} {number}\n"),
            Value::Histogram(histogram) => histogram,
        };
        let mut text = String::new();
        let mut below = 0;
        for (bound, count) in histogram.buckets() {
            below += count;
            let bound = bound.map_or("+Inf".to_owned(), |bound| bound.as_secs_f64().to_string());
            let labels = self.prometheus_labels(Some(("le", &bound)));
            text += &format!("{name}_bucket{labels} {below}\n");
        }
        let sum = histogram.sum.as_secs_f64();
        text + &format!("{name}_sum{labels} {sum}\n{name}_count{labels} {below}\n")
    }
}

impl Snapshot {
    /// Nested objects. A histogram is an object of its `count`, `sum_us` and `buckets`, whose keys are
    /// upper bounds in microseconds; empty buckets are left out.
    #[must_use]
    pub fn to_json(&self) -> Map<String, Json> {
        let mut object = Map::new();
        for sample in &self.0 {
            let value = match &sample.value {
                Value::Number(number) => (*number).into(),
                Value::Histogram(histogram) => histogram_json(histogram),
            };
            insert(&mut object, &sample.path, value);
        }
        object
    }

    /// The text format of Prometheus, version 0.0.4. Samples of one name stand together, as the format
    /// demands.
    #[must_use]
    pub fn to_prometheus(&self) -> String {
        let mut families: Vec<(String, String)> = Vec::new();
        for sample in &self.0 {
            let (kind, suffix) = match sample.kind {
                Kind::Counter => ("counter", "_total"),
                Kind::Gauge => ("gauge", ""),
                Kind::Histogram => ("histogram", ""),
            };
            let name = format!("copperfs_{}{suffix}", sample.names.join("_"));
            let lines = sample.to_prometheus(&name);
            match families.iter_mut().find(|(other, _)| *other == name) {
                Some((_, text)) => *text += &lines,
                None => {
                    let help = sample.help;
                    let text = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
                    families.push((name, text));
                }
            }
        }
        families.into_iter().map(|(_, text)| text).collect()
    }
}

fn histogram_json(histogram: &HistogramSnapshot) -> Json {
    let filled = histogram.buckets().filter(|(_, count)| *count > 0);
    let buckets = filled.map(|(bound, count)| {
        let bound = bound.map_or("inf".to_owned(), |bound| bound.as_micros().to_string());
        (bound, Json::from(count))
    });
    serde_json::json!({
        "count": histogram.count(),
        "sum_us": u64::try_from(histogram.sum.as_micros()).unwrap_or(u64::MAX),
        "buckets": buckets.collect::<Map<_, _>>(),
    })
}

/// Sets `value` at `path`, and makes the objects above it.
pub fn insert(object: &mut Map<String, Json>, path: &[&str], value: Json) {
    match path {
        [] => {}
        [name] => {
            object.insert((*name).to_owned(), value);
        }
        [first, rest @ ..] => {
            let slot = object.entry(*first).or_insert_with(|| Map::new().into());
            if let Json::Object(slot) = slot {
                insert(slot, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Counter, Gauge, Histogram, Kind, Registry, Unit};
    use serde_json::json;
    use std::time::Duration;

    fn registry() -> Registry {
        let registry = Registry::default();
        for (name, hits) in [("data", 3), ("listings", 5)] {
            let counter = Counter::default();
            counter.add(hits);
            let scope = registry.scope("cache").label("cache", name);
            scope.counter("hits", Unit::Count, "Requests answered.", &counter);
            scope.computed("bytes", Kind::Gauge, Unit::Bytes, "Bytes held.", || 7);
        }
        let pending = Gauge::default();
        pending.set(2);
        let push = registry.scope("push");
        push.gauge("pending", Unit::Count, "Files to be pushed.", &pending);
        let latency = Histogram::default();
        latency.observe(Duration::from_micros(3));
        latency.observe(Duration::from_secs(100));
        let scope = registry
            .scope("fuse")
            .scope("latency_seconds")
            .label("op", "read");
        scope.histogram("", "Time to the answer.", &latency);
        registry
    }

    #[test]
    fn json_nests_names_and_labels() {
        let json = registry().snapshot().to_json();
        let wanted = json!({
            "cache": { "data": { "hits": 3, "bytes": 7 }, "listings": { "hits": 5, "bytes": 7 } },
            "push": { "pending": 2 },
            "fuse": { "latency_seconds": { "read": {
                "count": 2, "sum_us": 100_000_003, "buckets": { "4": 1, "inf": 1 },
            } } },
        });
        assert_eq!(json!(json), wanted);
    }

    #[test]
    fn prometheus_text_has_families_with_labels() {
        let text = registry().snapshot().to_prometheus();
        let wanted = "# HELP copperfs_cache_hits_total Requests answered.\n\
                      # TYPE copperfs_cache_hits_total counter\n\
                      copperfs_cache_hits_total{cache=\"data\"} 3\n\
                      copperfs_cache_hits_total{cache=\"listings\"} 5\n";
        assert!(text.starts_with(wanted), "{text}");
        for line in [
            "copperfs_push_pending 2",
            "copperfs_fuse_latency_seconds_bucket{op=\"read\",le=\"0.000004\"} 1",
            "copperfs_fuse_latency_seconds_bucket{op=\"read\",le=\"+Inf\"} 2",
            "copperfs_fuse_latency_seconds_sum{op=\"read\"} 100.000003",
            "copperfs_fuse_latency_seconds_count{op=\"read\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
