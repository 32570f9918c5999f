//! The paper's four applications (LRC, section IV-A) in shape: the RDDs that GraphX of Spark 1.6 caches, and
//! the jobs, stages and tasks that read and write them.
//!
//! A letter is an RDD, and an index its iteration: `raw` the loaded edges, `e` edges with the replicated
//! attributes of their vertices, `v` vertices, `m` messages. A job is an action of the driver, and a task is
//! a stage on one partition. A task reads the cached blocks that were there before it began. A block that a
//! task computes and uses itself is put, and not read. Shuffles are on local disks and no blocks here.
//!
//! GraphX drops old RDDs by `unpersist`. A trace has no such event, and neither do files that a pipeline
//! leaves behind, so data stays until it is evicted.

use super::script::{Block, Job, Lane, Script, Start, Step, Work};
use crate::num::{as_f64, index_f64, whole};
use copperfs_policy::amounts::ByteSize;
use serde::Deserialize;

/// The standard deviation of the logarithm of a partition's size: partitions of graphs are skewed.
const SKEW: f64 = 0.2;

/// The parameters of a graph application.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// Bytes of the file of edges (LRC, Table IV).
    pub input: ByteSize,
    /// Partitions of each RDD: a block is one partition.
    pub partitions: usize,
    /// Tasks that run at a time.
    pub slots: usize,
    /// Iterations: supersteps of Pregel, rounds of two phases of SVD++.
    pub iterations: usize,
    /// Bytes of all edges in memory, by the bytes of the input.
    pub edges: f64,
    /// Bytes of all vertices in memory, by the bytes of the input.
    pub vertices: f64,
    /// Bytes of all messages of a superstep, by the bytes of the input. Only Pregel keeps messages.
    #[serde(default)]
    pub messages: f64,
}

/// One of the three programmes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Programme {
    PageRank,
    Pregel,
    SvdPlusPlus,
}

/// Returns the events of one application of a tenant.
pub(super) fn application(
    script: &mut Script,
    graph: &Graph,
    programme: Programme,
    tenant: &str,
) -> Lane {
    let weights = (0..graph.partitions).map(|_| (SKEW * script.random.normal()).exp());
    let weights: Vec<f64> = weights.collect();
    let total: f64 = weights.iter().sum();
    let mut writer = Writer {
        graph,
        tenant,
        shares: weights.into_iter().map(|weight| weight / total).collect(),
        script,
        jobs: Vec::new(),
        stages: Vec::new(),
    };
    match programme {
        Programme::PageRank => writer.page_rank(),
        Programme::Pregel => writer.pregel(),
        Programme::SvdPlusPlus => writer.svd_plus_plus(),
    }
    let jobs = std::mem::take(&mut writer.jobs);
    script.slots = graph.slots;
    script.lane(&jobs)
}

/// The blocks of one RDD, by partition.
type Rdd = Vec<Block>;

struct Writer<'a> {
    graph: &'a Graph,
    tenant: &'a str,
    /// Each partition's share of its RDD.
    shares: Vec<f64>,
    script: &'a mut Script,
    jobs: Vec<Job>,
    /// The stages of the next job.
    stages: Vec<Vec<Work>>,
}

impl Writer<'_> {
    /// `GraphLoader.edgeListFile` with its `edges.count()`.
    fn load(&mut self) -> Rdd {
        let (input, raw) = (self.rdd("input", 1.0), self.edges("raw"));
        self.stage(&[&input], &[&raw]);
        self.job("load");
        raw
    }

    /// `staticPageRank`: an iteration is one job, `rankGraph.edges.foreachPartition`.
    fn page_rank(&mut self) {
        let raw = self.load();
        // The first iteration also builds the graph: routing tables of the vertices, out-degrees, the
        // vertices of the graph and of the ranks, and the edges with the degrees of their sources.
        self.stage(&[&raw], &[]);
        self.stage(&[&raw], &[]);
        let graph = self.vertices("graph");
        let (mut v, mut e) = (self.vertices("v0"), self.edges("e0"));
        self.stage(&[], &[&graph, &v]);
        self.stage(&[&raw], &[&e]);
        for iteration in 1..=self.graph.iterations {
            if iteration > 1 {
                // Contributions along the edges. The first ones come from the stage that puts e0.
                self.stage(&[&e], &[]);
            }
            let next_v = self.vertices(&format!("v{iteration}"));
            let next_e = self.edges(&format!("e{iteration}"));
            // The sums, the new ranks, and the ranks that have changed on their way to the edges.
            self.stage(&[&v], &[&next_v]);
            self.stage(&[&e], &[&next_e]);
            self.job(&format!("iteration{iteration}"));
            (v, e) = (next_v, next_e);
        }
        self.stage(&[&v], &[]);
        self.job("ranks");
    }

    /// `Pregel` with an active set: a superstep is one job, `messages.count()`.
    fn pregel(&mut self) {
        let raw = self.load();
        self.stage(&[&raw], &[]);
        let graph = self.vertices("graph");
        let (mut v, mut e) = (self.vertices("v0"), self.edges("e0"));
        let mut m = self.messages("m0");
        self.stage(&[], &[&graph, &v]);
        self.stage(&[&raw], &[&e]);
        self.stage(&[&v], &[&m]);
        self.job("superstep0");
        for superstep in 1..=self.graph.iterations {
            let next_v = self.vertices(&format!("v{superstep}"));
            let next_e = self.edges(&format!("e{superstep}"));
            let next_m = self.messages(&format!("m{superstep}"));
            // Vertices take their messages, and those that have changed go to the edges.
            self.stage(&[&v, &m], &[&next_v]);
            // The active set: which vertices had a message.
            self.stage(&[&m], &[]);
            // Edges with the new attributes, which are scanned by the same tasks.
            self.stage(&[&e], &[&next_e]);
            // New messages, with the index of the vertices.
            self.stage(&[&next_v], &[&next_m]);
            self.job(&format!("superstep{superstep}"));
            (v, e, m) = (next_v, next_e, next_m);
        }
        self.stage(&[&v], &[]);
        self.job("result");
    }

    /// `SVDPlusPlus.run`: each phase is two jobs, `vertices.count()` and `edges.count()`.
    fn svd_plus_plus(&mut self) {
        let raw = self.load();
        let (mut v, mut e) = (self.vertices("v0"), self.edges("e0"));
        self.stage(&[&raw], &[&e]);
        self.stage(&[], &[&v]);
        self.job("graph-vertices");
        self.stage(&[&e], &[]);
        self.job("graph-edges");
        // Biases and norms; two phases an iteration; the errors.
        for phase in 0..2 * self.graph.iterations + 2 {
            let next_v = self.vertices(&format!("v{}", phase + 1));
            let next_e = self.edges(&format!("e{}", phase + 1));
            if phase == 0 {
                // All attributes go to the edges for the first time.
                self.stage(&[&v], &[]);
            }
            self.stage(&[&e], &[]);
            self.stage(&[&v], &[&next_v]);
            self.job(&format!("phase{phase}-vertices"));
            // The vertices that have changed go to the edges.
            self.stage(&[&v, &next_v], &[]);
            self.stage(&[&e], &[&next_e]);
            self.job(&format!("phase{phase}-edges"));
            (v, e) = (next_v, next_e);
        }
        // The predicted ratings are those of the edges.
        self.stage(&[&e], &[]);
        self.job("ratings");
    }

    fn edges(&mut self, name: &str) -> Rdd {
        self.rdd(name, self.graph.edges)
    }

    fn vertices(&mut self, name: &str) -> Rdd {
        self.rdd(name, self.graph.vertices)
    }

    fn messages(&mut self, name: &str) -> Rdd {
        self.rdd(name, self.graph.messages)
    }

    fn rdd(&mut self, name: &str, expansion: f64) -> Rdd {
        let bytes = as_f64(self.graph.input.0) * expansion;
        let (script, tenant) = (&mut *self.script, self.tenant);
        let blocks = self.shares.iter().enumerate().map(|(partition, share)| {
            script.block(format!("{tenant}/{name}/{partition}"), whole(bytes * share))
        });
        blocks.collect()
    }

    /// Adds a stage to the next job: its tasks read a partition of each of `reads`, then put one of each of
    /// `puts`.
    fn stage(&mut self, reads: &[&Rdd], puts: &[&Rdd]) {
        let stage = self.stages.len();
        let task = |partition: usize| {
            let reads = reads.iter().map(|rdd| Step::Read(rdd[partition]));
            let puts = puts.iter().map(|rdd| Step::Put(rdd[partition]));
            Work {
                id: format!("{stage}/{partition}"),
                steps: reads.chain(puts).collect(),
                after: None,
            }
        };
        let tasks = (0..self.graph.partitions).map(task);
        self.stages.push(tasks.collect());
    }

    fn job(&mut self, name: &str) {
        self.jobs.push(Job {
            tenant: self.tenant.to_owned(),
            name: name.to_owned(),
            stages: std::mem::take(&mut self.stages),
            start: Start::Listed,
        });
    }
}

impl Graph {
    /// Returns the name and the value of the first parameter that is out of range.
    pub(super) fn invalid(&self) -> Option<(&'static str, f64)> {
        let counts = [
            ("partitions", self.partitions),
            ("slots", self.slots),
            ("iterations", self.iterations),
        ];
        let wrong = counts
            .into_iter()
            .find(|(_, count)| !(1..=10_000).contains(count));
        let factors = [
            ("edges", self.edges),
            ("vertices", self.vertices),
            ("messages", self.messages),
        ];
        let wrong_factor = factors
            .into_iter()
            .find(|(_, factor)| !(0.0..=1000.0).contains(factor));
        let counts = wrong.map(|(name, count)| (name, index_f64(count)));
        counts.or(wrong_factor)
    }
}
