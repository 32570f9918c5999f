//! Workloads whose tasks only read: their inputs are files of a dataset, and their outputs go elsewhere.
//!
//! Each follows a kind of pipeline that is run over shared storage. The parameters are in
//! `config/simulate-pipelines-read-only.toml`, with their reasons.

use super::script::{Block, Job, Lane, Script, Start, Step, Work};
use crate::num::{as_f64, whole};
use copperfs_policy::amounts::ByteSize;
use serde::Deserialize;

/// Samples that are each read against a shared reference, as in bioinformatics: one job of a workflow
/// engine, which knows all tasks at the start.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// Samples.
    pub samples: usize,
    /// Median bytes of a sample.
    pub sample: ByteSize,
    /// The standard deviation of the logarithm of a sample's bytes.
    pub spread: f64,
    /// Bytes of the index that each alignment reads.
    pub index: ByteSize,
    /// Bytes of the genome and the known sites that each call of variants reads.
    pub genome: ByteSize,
    /// Bytes of a block.
    pub block: ByteSize,
    /// Tasks that run at a time.
    pub slots: usize,
}

/// Queries over the day partitions of a warehouse, each night, after a new day has arrived.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nightly {
    /// Nights.
    pub nights: usize,
    /// The number of last days that each query of a night reads. The order of queries is random each night.
    pub windows: Vec<usize>,
    /// Median bytes of a day.
    pub day: ByteSize,
    /// The standard deviation of the logarithm of a day's bytes.
    pub spread: f64,
    /// Bytes of a block.
    pub block: ByteSize,
    /// Queries that run at a time. Each is a job that is submitted when it starts.
    pub queries: usize,
    /// Tasks of a query that run at a time.
    pub slots: usize,
}

/// A window that moves over partitions in time, one job for each position, as in the backfill of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Windows {
    /// Partitions.
    pub partitions: usize,
    /// Partitions of a window.
    pub window: usize,
    /// Median bytes of a partition.
    pub partition: ByteSize,
    /// The standard deviation of the logarithm of a partition's bytes.
    pub spread: f64,
    /// Bytes of a block.
    pub block: ByteSize,
    /// Jobs that run at a time.
    pub active: usize,
    /// Tasks of a job that run at a time.
    pub slots: usize,
}

/// Two tenants that read their datasets again and again, and a scanner that declares nothing and reads each
/// of its files once, such as a backup.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scanner {
    /// Bytes of the dataset of each tenant.
    pub dataset: ByteSize,
    /// Jobs of each tenant, one after the other.
    pub jobs: usize,
    /// The part of its tenant's dataset that a job reads, at random.
    pub part: f64,
    /// Bytes that the scanner reads.
    pub scanned: ByteSize,
    /// Bytes of a block.
    pub block: ByteSize,
    /// Tasks of a job that run at a time.
    pub slots: usize,
}

impl Samples {
    pub(super) fn write(&self, script: &mut Script) -> Lane {
        let index = blocks(script, "index", self.index, self.block);
        let genome = blocks(script, "genome", self.genome, self.block);
        let mut stage = Vec::new();
        for sample in 0..self.samples {
            let bytes = spread(script, self.sample, self.spread);
            let reads = blocks(script, &format!("sample{sample}"), bytes, self.block);
            let task = |rule: &str, blocks: &[&[Block]], after| Work {
                id: format!("{rule}/{sample}"),
                steps: blocks.concat().into_iter().map(Step::Read).collect(),
                after,
            };
            let align = stage.len() + 1;
            stage.push(task("quality", &[&reads], None));
            stage.push(task("align", &[&index, &reads], None));
            // The alignment itself is on local scratch space.
            stage.push(task("call", &[&genome], Some(align)));
        }
        script.slots = self.slots;
        let job = Job {
            tenant: String::new(),
            name: "workflow".to_owned(),
            stages: vec![stage],
            start: Start::Random,
        };
        script.lane(&[job])
    }
}

impl Nightly {
    pub(super) fn write(&self, script: &mut Script) -> Lane {
        let longest = self.windows.iter().copied().max().unwrap_or(0);
        let days = parts(
            script,
            "day",
            longest.max(1) - 1 + self.nights,
            (self.day, self.spread, self.block),
        );
        script.slots = self.slots;
        let mut events = Lane::new();
        for night in 0..self.nights {
            let end = longest.max(1) + night;
            let mut queries: Vec<(usize, usize)> =
                self.windows.iter().copied().enumerate().collect();
            let mut lanes = vec![Vec::new(); self.queries];
            for turn in 0..queries.len() {
                let chosen = script.pick(queries.len());
                let (query, window) = queries.swap_remove(chosen);
                let name = format!("night{night}-query{query}");
                lanes[turn % self.queries].push(scan("", name, &days[end - window..end].concat()));
            }
            let lanes = lanes.iter().map(|jobs| script.lane(jobs)).collect();
            events.append(&mut script.merge(lanes));
        }
        events
    }
}

impl Windows {
    pub(super) fn write(&self, script: &mut Script) -> Lane {
        let size = (self.partition, self.spread, self.block);
        let partitions = parts(script, "partition", self.partitions, size);
        script.slots = self.slots;
        let mut lanes = vec![Vec::new(); self.active];
        for (position, window) in partitions.windows(self.window).enumerate() {
            let job = scan("", format!("window{position}"), &window.concat());
            lanes[position % self.active].push(job);
        }
        let lanes = lanes.iter().map(|jobs| script.lane(jobs)).collect();
        script.merge(lanes)
    }
}

impl Scanner {
    pub(super) fn write(&self, script: &mut Script) -> Lane {
        script.slots = self.slots;
        let mut lanes = Vec::new();
        for tenant in ["a", "b"] {
            let dataset = blocks(script, tenant, self.dataset, self.block);
            let mut jobs = Vec::new();
            for job in 0..self.jobs {
                let chosen = dataset.iter().copied();
                let chosen = chosen.filter(|_| script.random.unit() < self.part);
                let chosen: Vec<Block> = chosen.collect();
                jobs.push(scan(tenant, format!("job{job}"), &chosen));
            }
            lanes.push(script.lane(&jobs));
        }
        let scanned = blocks(script, "scanned", self.scanned, self.block);
        lanes.push(script.undeclared(&scanned));
        script.merge(lanes)
    }
}

/// Returns a job that reads each block in a task of its own, in the order of the list.
fn scan(tenant: &str, name: String, blocks: &[Block]) -> Job {
    let task = |(task, block): (usize, &Block)| Work {
        id: task.to_string(),
        steps: vec![Step::Read(*block)],
        after: None,
    };
    Job {
        tenant: tenant.to_owned(),
        name,
        stages: vec![blocks.iter().enumerate().map(task).collect()],
        start: Start::Listed,
    }
}

/// Adds the blocks of a file of `bytes`. The last one is shorter.
fn blocks(script: &mut Script, name: &str, bytes: ByteSize, block: ByteSize) -> Vec<Block> {
    let starts = (0..bytes.0).step_by(usize::try_from(block.0.max(1)).unwrap_or(usize::MAX));
    let add = |(at, start)| {
        let length = block.0.max(1).min(bytes.0 - start);
        script.block(format!("{name}/{at}"), length)
    };
    starts.enumerate().map(add).collect()
}

/// Adds `count` files with a median size, a spread and a size of blocks.
fn parts(
    script: &mut Script,
    name: &str,
    count: usize,
    (median, deviation, block): (ByteSize, f64, ByteSize),
) -> Vec<Vec<Block>> {
    let add = |at| {
        let bytes = spread(script, median, deviation);
        blocks(script, &format!("{name}{at}"), bytes, block)
    };
    (0..count).map(add).collect()
}

/// Returns a random size with a log-normal distribution.
fn spread(script: &mut Script, median: ByteSize, deviation: f64) -> ByteSize {
    let factor = (deviation * script.random.normal()).exp();
    ByteSize(whole(as_f64(median.0) * factor).max(1))
}
