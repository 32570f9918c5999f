//! Reports of nodes to the allocator, and the frames that travel the trees.

use super::decision::{Decision, Serial};
use copperfs_overlay::ItemPath;
use copperfs_policy::chunks::{ChunkReport, Reader, Reading};
use serde::{Deserialize, Serialize};

/// A frame that goes up a tree. Each frame is complete in itself: a newer frame replaces one that
/// was not received yet.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ReportFrame {
    /// The decision that the sender holds.
    pub serial: Serial,
    /// That decision, unless the receiver is known to hold it or a newer one. The receiver may have
    /// lost it.
    pub decision: Option<Box<Decision>>,
    /// The newest reports of the sender and of the nodes below it.
    pub reports: Vec<NodeReport>,
}

/// A frame that goes down a tree. It is complete in itself, too.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct DecisionFrame {
    /// The allocator's heartbeat, forwarded by every node on the way.
    pub heartbeat: Heartbeat,
    /// The decision that the sender holds.
    pub serial: Serial,
    /// That decision, unless the receiver is known to hold it or a newer one.
    pub decision: Option<Box<Decision>>,
}

/// An allocator's heartbeat. In a circle of nodes the count stops increasing, so they notice that
/// no allocator is above them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Identifies the allocator: a different number each time an allocator starts.
    pub allocator: u64,
    /// Increases with each heartbeat.
    pub count: u64,
}

/// The state of one node.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its index in the member list.
    pub rank: u32,
    /// Its name in the member list.
    pub name: String,
    /// Identifies the process: a different number after each start.
    pub boot: u64,
    /// Increases with each report of one process, and tells which of two reports is newer.
    pub count: u64,
    /// The serial of the decision that it follows.
    pub follows: Serial,
    /// Its capacity for datasets in bytes. 0: it stores none.
    pub capacity: u64,
    /// The datasets' shares that it holds.
    pub shares: Vec<ShareReport>,
    /// The jobs that read on it.
    pub jobs: Vec<JobReport>,
    /// The processes on it that read datasets by chunks.
    pub readings: Vec<ReadingReport>,
    /// The pipelines that were submitted on it, for each dataset that they read.
    pub pipelines: Vec<PipelineReport>,
    /// The prefixes of the origins that it has read by itself, and that are the root's. It does not look before a dataset
    /// is declared whose storage the roots read.
    pub origins: Vec<ItemPath>,
}

/// The pipelines that one node has taken, as far as they read one dataset.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PipelineReport {
    /// The dataset's [`super::DatasetDecision::id`].
    pub dataset: u64,
    /// Jobs that have not ended.
    pub jobs: u32,
    /// References that their tasks hold.
    pub references: u64,
    /// Bytes of the items that are referred to.
    pub bytes: u64,
}

/// The state of a process that reads a dataset by chunks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReadingReport {
    /// The dataset's [`super::DatasetDecision::id`].
    pub dataset: u64,
    /// The process, as a part of its job.
    pub reader: Reader,
    /// Its state.
    pub reading: Reading,
}

/// One dataset's share on one node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ShareReport {
    /// The dataset's [`super::DatasetDecision::id`].
    pub dataset: u64,
    /// Bytes held.
    pub cached: u64,
    /// Items held.
    pub items: u64,
    /// The limit on the bytes held.
    pub share: u64,
    /// Bytes read from storage for the dataset since the process started.
    pub origin_bytes: u64,
    /// Why the last read of storage failed, if it did.
    pub trouble: Option<String>,
    /// The resident chunks, if the dataset is kept in chunks.
    pub chunks: Vec<ChunkReport>,
    /// Its items by their references, if the dataset is kept by them.
    pub by_count: Option<CountReport>,
}

/// The items of a share that is kept by reference counts. All are numbers since the process started, or bytes held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CountReport {
    /// Bytes of items with references.
    pub referenced: u64,
    /// Bytes of declared items without references.
    pub unreferenced: u64,
    /// Bytes of items that no pipeline has declared.
    pub undeclared: u64,
    /// Reads of items that were held.
    pub hits: u64,
    /// Reads of items that were read from storage.
    pub misses: u64,
    /// Items that have made room for others.
    pub evicted: u64,
}

/// One job's reading of one dataset on one node.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct JobReport {
    /// The job's name.
    pub job: String,
    /// The dataset's name.
    pub dataset: String,
    /// The current epoch, from 0.
    pub epoch: u32,
    /// Items read in the current epoch.
    pub items: u64,
    /// Bytes read in the current epoch.
    pub bytes: u64,
    /// Bytes of these that were cached, at the home or by the kernel.
    pub hit_bytes: u64,
    /// Bytes that the job's own reads brought into the cache in this epoch. They are useful from
    /// the next epoch on (§6, delayed effectiveness).
    pub admitted_bytes: u64,
    /// Bytes read since the job was first observed on the node.
    pub total_bytes: u64,
    /// Bytes read from storage for the job since then, without the next two.
    pub charged_bytes: u64,
    /// Bytes read from storage while the job was measured without a cache.
    pub probe_bytes: u64,
    /// Bytes that the job has read from storage with its own credentials, and given to the cache.
    pub own_bytes: u64,
    /// Bytes read per second, over the last seconds.
    pub throughput: u64,
    /// Bytes read from storage per second, over the last seconds.
    pub remote_io: u64,
    /// The job's limit on the node in bytes per second, if it has one.
    pub allowed: Option<u64>,
    /// The fraction of the last seconds in which a read waited for tokens, 0 to 1.
    pub throttled: f32,
    /// The seconds in which a read waited for tokens, since the job was first observed on the node by this process.
    pub waited_s: f32,
    /// The estimated rate in bytes per second if data were not its bottleneck.
    pub ideal_rate: Option<u64>,
    /// The confidence in `ideal_rate`, 0 to 1.
    pub confidence: f32,
    /// Whether data was always the bottleneck. `ideal_rate` is then only a lower bound.
    pub bound: bool,
    /// Whether the job deviates from reading each item once per epoch.
    pub irregular: bool,
    /// Whether its processes have ended.
    pub ended: bool,
    /// Hits of the last epochs that ended: (epoch, bytes, bytes hit).
    pub epochs: Vec<(u32, u64, u64)>,
}
