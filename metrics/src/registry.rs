//! The registry of metrics.

use crate::snapshot::{Kind, Sample, Snapshot, Unit, Value};
use crate::{Counter, Counts, Gauge, Histogram};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

type Read = Arc<dyn Fn() -> Value + Send + Sync>;

/// All metrics of one node. Clones are one registry.
#[derive(Clone, Default)]
pub struct Registry(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    /// The metrics, each a sample without its value.
    metrics: Vec<(Sample, Read)>,
    /// What earlier processes have counted.
    earlier: Arc<Counts>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({} metrics)", self.0.lock().metrics.len())
    }
}

/// A prefix of the names in a registry. Scopes nest: `registry.scope("cache").label("cache", "data")` holds
/// `cache.data.hits`, which Prometheus knows as `copperfs_cache_hits_total{cache="data"}`.
#[derive(Clone)]
pub struct Scope {
    registry: Registry,
    /// As in [`Sample`], and the next two.
    path: Vec<&'static str>,
    names: Vec<&'static str>,
    labels: Vec<(&'static str, &'static str)>,
}

impl Registry {
    /// Returns the scope `name`.
    #[must_use]
    pub fn scope(&self, name: &'static str) -> Scope {
        Scope {
            registry: self.clone(),
            path: vec![name],
            names: vec![name],
            labels: Vec::new(),
        }
    }

    /// Continues the counts of an earlier process: from now on each counter and histogram includes them.
    pub fn continue_from(&self, earlier: Counts) {
        self.0.lock().earlier = Arc::new(earlier);
    }

    /// Returns the counters and histograms of `snapshot`, for a later process. Includes those of earlier processes that are
    /// not declared here, or not yet.
    #[must_use]
    pub fn counts(&self, snapshot: &Snapshot) -> Counts {
        let mut counts = Counts::clone(&self.0.lock().earlier);
        counts.update(snapshot);
        counts
    }

    /// Reads all metrics, in the order of their declaration. Histograms without any observation are left out:
    /// there are many, and each has many buckets.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        // A declared function may take locks of its part, so the registry's lock is not held meanwhile.
        let (metrics, earlier) = {
            let inner = self.0.lock();
            (inner.metrics.clone(), Arc::clone(&inner.earlier))
        };
        let read = metrics.into_iter().map(|(sample, read)| Sample {
            value: earlier.continued(&sample, read()),
            ..sample
        });
        Snapshot(read.filter(|sample| !sample.is_empty()).collect())
    }
}

impl Scope {
    /// Returns the scope `name` within this one.
    #[must_use]
    pub fn scope(&self, name: &'static str) -> Self {
        let mut scope = self.clone();
        scope.path.push(name);
        scope.names.push(name);
        scope
    }

    /// Returns one of several scopes of the same form within this one, told apart by the value of `label`.
    #[must_use]
    pub fn label(&self, label: &'static str, value: &'static str) -> Self {
        let mut scope = self.clone();
        scope.path.push(value);
        scope.labels.push((label, value));
        scope
    }

    /// Declares `counter`. An empty `name` stands for the scope itself.
    pub fn counter(&self, name: &'static str, unit: Unit, help: &'static str, counter: &Counter) {
        let counter = counter.clone();
        self.computed(name, Kind::Counter, unit, help, move || counter.get());
    }

    /// Declares `gauge`.
    pub fn gauge(&self, name: &'static str, unit: Unit, help: &'static str, gauge: &Gauge) {
        let gauge = gauge.clone();
        self.computed(name, Kind::Gauge, unit, help, move || gauge.get());
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
        let scope = match name {
            "" => self.clone(),
            name => self.scope(name),
        };
        let sample = Sample {
            path: scope.path,
            names: scope.names,
            labels: scope.labels,
            kind,
            unit,
            help,
            value: Value::Number(0),
        };
        self.registry
            .0
            .lock()
            .metrics
            .push((sample, Arc::new(read)));
    }
}
