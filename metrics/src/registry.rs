//! The registry of metrics.

use crate::snapshot::{Kind, Sample, Snapshot, Unit, Value};
use crate::{Counter, Gauge, Histogram};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

type Read = Arc<dyn Fn() -> Value + Send + Sync>;

struct Metric {
    segments: Vec<Segment>,
    name: &'static str,
    kind: Kind,
    unit: Unit,
    help: &'static str,
    read: Read,
}

/// All metrics of one node. Clones are one registry.
#[derive(Clone, Default)]
pub struct Registry(Arc<Mutex<Vec<Metric>>>);

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({} metrics)", self.0.lock().len())
    }
}

/// A segment of a metric's path.
#[derive(Debug, Clone, Copy)]
enum Segment {
    Name(&'static str),
    Label(&'static str, &'static str),
}

/// A prefix of the names in a registry. Scopes nest: `registry.scope("cache").label("cache", "data")` holds
/// `cache.data.hits`, which Prometheus knows as `copperfs_cache_hits_total{cache="data"}`.
#[derive(Clone)]
pub struct Scope {
    registry: Registry,
    segments: Vec<Segment>,
}

impl Registry {
    /// Returns the scope `name`.
    #[must_use]
    pub fn scope(&self, name: &'static str) -> Scope {
        Scope {
            registry: self.clone(),
            segments: vec![Segment::Name(name)],
        }
    }

    /// Reads all metrics, in the order of their declaration. Histograms without any observation are left out:
    /// there are many, and each has many buckets.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        // A declared function may take locks of its part, so the registry's lock is not held meanwhile.
        let metrics: Vec<(Sample, Read)> = {
            let metrics = self.0.lock();
            let sample = |metric: &Metric| (metric.sample(), Arc::clone(&metric.read));
            metrics.iter().map(sample).collect()
        };
        let read = metrics.into_iter().map(|(sample, read)| Sample {
            value: read(),
            ..sample
        });
        Snapshot(read.filter(|sample| !sample.is_empty()).collect())
    }
}

impl Metric {
    fn sample(&self) -> Sample {
        let mut path = Vec::new();
        let mut names = Vec::new();
        let mut labels = Vec::new();
        for segment in &self.segments {
            match *segment {
                Segment::Name(name) => {
                    path.push(name);
                    names.push(name);
                }
                Segment::Label(label, value) => {
                    path.push(value);
                    labels.push((label, value));
                }
            }
        }
        if !self.name.is_empty() {
            path.push(self.name);
            names.push(self.name);
        }
        Sample {
            path,
            names,
            labels,
            kind: self.kind,
            unit: self.unit,
            help: self.help,
            value: Value::Number(0),
        }
    }
}

impl Scope {
    /// Returns the scope `name` within this one.
    #[must_use]
    pub fn scope(&self, name: &'static str) -> Self {
        self.with(Segment::Name(name))
    }

    /// Returns one of several scopes of the same form within this one, told apart by the value of `label`.
    #[must_use]
    pub fn label(&self, label: &'static str, value: &'static str) -> Self {
        self.with(Segment::Label(label, value))
    }

    fn with(&self, segment: Segment) -> Self {
        let mut scope = self.clone();
        scope.segments.push(segment);
        scope
    }

    /// Declares `counter`. An empty `name` stands for the scope itself.
    pub fn counter(&self, name: &'static str, unit: Unit, help: &'static str, counter: &Counter) {
        let counter = counter.clone();
        self.declare(name, Kind::Counter, unit, help, move || {
            Value::Number(counter.get())
        });
    }

    /// Declares `gauge`.
    pub fn gauge(&self, name: &'static str, unit: Unit, help: &'static str, gauge: &Gauge) {
        let gauge = gauge.clone();
        self.declare(name, Kind::Gauge, unit, help, move || {
            Value::Number(gauge.get())
        });
    }

    /// Declares `histogram`, in seconds.
    pub fn histogram(&self, name: &'static str, help: &'static str, histogram: &Histogram) {
        let histogram = histogram.clone();
        self.declare(name, Kind::Histogram, Unit::Seconds, help, move || {
            Value::Histogram(histogram.snapshot())
        });
    }

    /// Declares a number that `read` computes for each snapshot. It must not block.
    pub fn computed(
        &self,
        name: &'static str,
        kind: Kind,
        unit: Unit,
        help: &'static str,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.declare(name, kind, unit, help, move || Value::Number(read()));
    }

    fn declare(
        &self,
        name: &'static str,
        kind: Kind,
        unit: Unit,
        help: &'static str,
        read: impl Fn() -> Value + Send + Sync + 'static,
    ) {
        let metric = Metric {
            segments: self.segments.clone(),
            name,
            kind,
            unit,
            help,
            read: Arc::new(read),
        };
        self.registry.0.lock().push(metric);
    }
}
