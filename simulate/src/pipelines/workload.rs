//! Workloads by name and from TOML files, and their traces.

use super::graph::{Graph, Programme, application};
use super::read_only::{Nightly, Samples, Scanner, Windows};
use super::script::{Distances, Lane, Script, inputs};
use crate::num::{index_f64, percent_of};
use copperfs_policy::references::replay::{Decrement, Options, Trace, TraceError};
use copperfs_policy::references::{Admit, EvictionPolicy, Limits};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The part of the cache that undeclared blocks keep under LRC, in per cent: the product's live rule.
const FLOOR_PERCENT: u64 = 20;
/// The maximum number of blocks, tasks, jobs or tenants that a parameter may ask for.
const COUNT_MAX: usize = 100_000;
/// The maximum number of blocks of a file.
const BLOCKS_MAX: u64 = 1 << 20;

/// The files that describe the named workloads.
const NAMED: [&str; 3] = [
    include_str!("../../../config/simulate-pipelines.toml"),
    include_str!("../../../config/simulate-pipelines-read-only.toml"),
    include_str!("../../../config/simulate-pipelines-tenants.toml"),
];

/// The names of the paper's four applications (Table IV), in its order.
pub const PAPER: [&str; 4] = ["pagerank", "pregel", "connected-components", "svd++"];
/// The names of the workloads that only read.
pub const READ_ONLY: [&str; 4] = ["samples", "nightly", "windows", "scanner"];
/// The name of the workload of many tenants (Figures 10 and 11).
pub const TENANTS: &str = "tenants";

/// A workload and its parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// Its kind, with parameters.
    pub shape: Shape,
}

/// The kind of a workload.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Shape {
    /// `PageRank` of `GraphX`.
    PageRank(Graph),
    /// A program of Pregel with an active set, such as connected components.
    Pregel(Graph),
    /// SVD++ of `GraphX`.
    SvdPlusPlus(Graph),
    /// Samples over a shared reference.
    Samples(Samples),
    /// Nightly queries over day partitions.
    Nightly(Nightly),
    /// A rolling window.
    Windows(Windows),
    /// Two tenants and a scanner.
    Scanner(Scanner),
    /// Tenants that each run an application of their own.
    Tenants(Tenants),
}

/// Tenants that start at the same time (LRC, section IV-B, Table VII).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenants {
    /// The number of tenants.
    pub tenants: usize,
    /// The applications: tenant `i` runs number `i` modulo their number.
    pub apps: Vec<App>,
}

/// The application of a tenant.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum App {
    /// `PageRank` of `GraphX`.
    PageRank(Graph),
    /// A program of Pregel.
    Pregel(Graph),
    /// SVD++ of `GraphX`.
    SvdPlusPlus(Graph),
}

/// Why there is no workload.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The TOML file is invalid. The message names the line.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    /// The file has no workload.
    #[error("the file has no workload. Write a table for each: [my-rank], kind = \"page-rank\", …")]
    Empty,
    /// A parameter is out of range.
    #[error("workload {workload:?}: {parameter} must be {wanted}, not {found}")]
    Parameter {
        /// The name of the workload.
        workload: String,
        /// The parameter.
        parameter: &'static str,
        /// The valid range.
        wanted: &'static str,
        /// Its value.
        found: f64,
    },
    /// The trace is invalid, or there are too many events in it.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// A workload as a trace.
#[derive(Debug, Clone)]
pub struct Pipeline {
    /// The name of the workload.
    pub name: String,
    /// The events. The size of the cache is for the caller to set.
    pub trace: Trace,
    /// Bytes of all blocks that are read, each once: sizes of caches are per cents of it.
    pub inputs: u64,
    /// Tenants, if the workload counts them.
    pub tenants: Option<usize>,
    /// Submitted jobs. 0 if the trace is from a file.
    pub jobs: u64,
    /// Tasks of all jobs. 0 if the trace is from a file.
    pub tasks: u64,
    /// Distances of references to generated blocks. Unknown for a trace from a file.
    pub distances: Distances,
    /// The limits that the trace came with.
    own: Limits,
    /// Whether LRC follows the product's live rule instead of these.
    is_live: bool,
}

impl Workload {
    /// Returns the workload of this name from the files in `config/`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let files = NAMED.iter().filter_map(|text| Self::from_toml(text).ok());
        files.flatten().find(|workload| workload.name == name)
    }

    /// Reads a TOML file with a table for each workload, and returns them by name.
    ///
    /// # Errors
    /// The text is not TOML, a key is unknown or missing, or there is no workload.
    pub fn from_toml(text: &str) -> Result<Vec<Self>, WorkloadError> {
        let file: BTreeMap<String, Shape> = toml::from_str(text)?;
        if file.is_empty() {
            return Err(WorkloadError::Empty);
        }
        let workloads = file
            .into_iter()
            .map(|(name, shape)| Self { name, shape })
            .collect::<Vec<_>>();
        for workload in &workloads {
            workload.check()?;
        }
        Ok(workloads)
    }

    /// Returns the workload with another number of tenants. `None`: it has no tenants to count.
    #[must_use]
    pub fn with_tenants(&self, tenants: usize) -> Option<Self> {
        let Shape::Tenants(shape) = &self.shape else {
            return None;
        };
        let shape = Tenants {
            tenants,
            ..shape.clone()
        };
        Some(Self {
            name: self.name.clone(),
            shape: Shape::Tenants(shape),
        })
    }

    /// Writes the trace. The same seed gives the same trace.
    ///
    /// # Errors
    /// A parameter is out of range, or the trace would have too many events.
    pub fn pipeline(&self, seed: u64) -> Result<Pipeline, WorkloadError> {
        self.check()?;
        let mut script = Script::new(seed);
        let events = self.events(&mut script);
        let is_live = matches!(
            self.shape,
            Shape::Samples(_) | Shape::Nightly(_) | Shape::Windows(_) | Shape::Scanner(_)
        );
        let options = Options {
            // The paper's cache counts a read, the product the end of a task (`"consume": "done"`).
            decrement: if is_live {
                Decrement::Done
            } else {
                Decrement::Read
            },
            ..Options::default()
        };
        let (trace, inputs) = script.finish(&events, options)?;
        Ok(Pipeline {
            name: self.name.clone(),
            own: trace.limits(),
            trace,
            inputs,
            tenants: match &self.shape {
                Shape::Tenants(tenants) => Some(tenants.tenants),
                _ => None,
            },
            jobs: script.jobs,
            tasks: script.tasks,
            distances: script.distances,
            is_live,
        })
    }

    fn events(&self, script: &mut Script) -> Lane {
        match &self.shape {
            Shape::PageRank(graph) => application(script, graph, Programme::PageRank, ""),
            Shape::Pregel(graph) => application(script, graph, Programme::Pregel, ""),
            Shape::SvdPlusPlus(graph) => application(script, graph, Programme::SvdPlusPlus, ""),
            Shape::Samples(samples) => samples.write(script),
            Shape::Nightly(nightly) => nightly.write(script),
            Shape::Windows(windows) => windows.write(script),
            Shape::Scanner(scanner) => scanner.write(script),
            Shape::Tenants(tenants) => {
                let lane = |(number, app): (usize, &App)| {
                    let (programme, graph) = app.parts();
                    application(script, graph, programme, &format!("tenant{number}"))
                };
                let apps = tenants.apps.iter().cycle().take(tenants.tenants);
                let lanes = apps.enumerate().map(lane).collect();
                script.merge(lanes)
            }
        }
    }

    fn check(&self) -> Result<(), WorkloadError> {
        let refuse = |parameter, wanted, found| {
            Err(WorkloadError::Parameter {
                workload: self.name.clone(),
                parameter,
                wanted,
                found,
            })
        };
        for graph in self.shape.graphs() {
            if let Some((parameter, found)) = graph.invalid() {
                return refuse(parameter, "1 to 10000 (sizes: 0 to 1000)", found);
            }
        }
        for (parameter, count) in self.shape.counts() {
            if !(1..=COUNT_MAX).contains(&count) {
                return refuse(parameter, "1 to 100000", index_f64(count));
            }
        }
        for (parameter, factor) in self.shape.factors() {
            // NaN is refused, too.
            if !(0.0..=1.0).contains(&factor) {
                return refuse(parameter, "0 to 1", factor);
            }
        }
        if self.shape.blocks_max() > BLOCKS_MAX {
            return refuse(
                "the number of blocks",
                "at most 1048576: set a larger block",
                crate::num::as_f64(self.shape.blocks_max()),
            );
        }
        Ok(())
    }
}

impl Pipeline {
    /// Makes a pipeline of a trace that was recorded.
    #[must_use]
    pub fn recorded(name: String, trace: Trace) -> Self {
        Self {
            name,
            inputs: inputs(&trace),
            own: trace.limits(),
            trace,
            tenants: None,
            jobs: 0,
            tasks: 0,
            distances: Distances::default(),
            is_live: false,
        }
    }

    /// Returns the limits of a cache of `capacity` bytes under a policy. Under LRC, generated workloads that
    /// only read follow the product's live rule: a block is admitted by comparison, and undeclared blocks
    /// keep a part of the cache. Their rivals admit each block and spare none. A recorded trace has its own
    /// options under each policy, as in `copperfs lrc replay`.
    #[must_use]
    pub fn limits(&self, policy: EvictionPolicy, capacity: u64) -> Limits {
        let is_lrc = matches!(policy, EvictionPolicy::Lrc | EvictionPolicy::LrcOffline);
        match self.is_live && is_lrc {
            true => Limits {
                capacity,
                floor: percent_of(capacity, FLOOR_PERCENT),
                admit: Admit::Compare,
            },
            false => Limits {
                capacity,
                ..self.own
            },
        }
    }
}

impl App {
    fn parts(&self) -> (Programme, &Graph) {
        match self {
            Self::PageRank(graph) => (Programme::PageRank, graph),
            Self::Pregel(graph) => (Programme::Pregel, graph),
            Self::SvdPlusPlus(graph) => (Programme::SvdPlusPlus, graph),
        }
    }
}
