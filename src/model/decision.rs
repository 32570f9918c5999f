//! The allocator's decision, which every node keeps.

use crate::num::first_u64;
use copperfs_overlay::ItemPath;
use copperfs_policy::benefit::JobState;
use copperfs_policy::chunks::{
    CHUNK_BYTES, ChunkLayout, EVICT_AFTER, LayoutError, RESIDENT_MAX, ResidentChunk,
};
use copperfs_policy::{Choice, Keep, Mode};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Orders decisions: by term, then by count.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Serial {
    /// Increases whenever an allocator starts, on whichever node.
    pub term: u64,
    /// Increases with each decision of a term.
    pub count: u64,
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.count)
    }
}

/// The complete state of datasets, jobs and budgets. See [`crate::budgets`].
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Decision {
    /// Its position in the order of decisions.
    pub serial: Serial,
    /// The name of the policy that made it.
    pub policy: String,
    /// Total cache for datasets, in bytes.
    pub cache_total: u64,
    /// The limit on reads from storage, all jobs together, in bytes per second. `None`: no limit.
    pub remote_io_total: Option<u64>,
    /// The live nodes that store datasets, by rank. Slots are distributed among them by capacity.
    pub homes: Vec<HomeNode>,
    /// The declared datasets.
    pub datasets: Vec<DatasetDecision>,
    /// The jobs that run.
    pub jobs: Vec<JobDecision>,
}

/// A node that stores datasets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HomeNode {
    /// Its index in the member list.
    pub rank: u32,
    /// Its name in the member list, which determines its slots.
    pub name: String,
    /// Its capacity for datasets in bytes, which is its weight.
    pub capacity: u64,
}

/// The nodes that read storage for a dataset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OriginReaders {
    /// The roots. A home requests items up its tree.
    #[default]
    Roots,
    /// Each home itself. It must reach storage and hold the credentials.
    Homes,
}

/// How a dataset that is kept in chunks is divided, and how long its jobs may share a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChunkOptions {
    /// The maximum size of a chunk, in bytes.
    pub size: u64,
    /// How long a marked chunk stays after the first job has exhausted it.
    pub evict_after: Duration,
}

impl Default for ChunkOptions {
    fn default() -> Self {
        Self {
            size: CHUNK_BYTES,
            evict_after: EVICT_AFTER,
        }
    }
}

/// A declared dataset, and its budget.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct DatasetDecision {
    /// Its name, unique.
    pub name: String,
    /// Its identifier on the wire: a hash of name and path.
    pub id: u64,
    /// The root of the dataset in the namespace.
    pub path: ItemPath,
    /// The URI that it was declared from, if any.
    pub uri: Option<String>,
    /// Total bytes of its files. 0: not counted yet.
    pub size: u64,
    /// The number of items: files, and the 4 MiB stripes of larger files. 0: not counted yet.
    pub items: u64,
    /// The index of its files, if any.
    pub index: Option<String>,
    /// The manifest of its entries, if any: a path of the namespace.
    pub manifest: Option<ItemPath>,
    /// The identity of the manifest's content, once it is counted.
    pub identity: Option<[u8; 32]>,
    /// The number of entries of the manifest. 0: there is none, or it is not counted yet.
    pub entries: u64,
    /// The nodes that read storage for it.
    pub origin_readers: OriginReaders,
    /// The rule of what its homes keep.
    pub keep: Keep,
    /// Its chunks, if it is kept in chunks.
    pub chunk_options: ChunkOptions,
    /// Whether its items are given by path only, and never by their hash alone.
    pub is_private: bool,
    /// The chunks that its homes keep, the older one first. `None`: it is not kept in chunks.
    pub resident: Option<Vec<ResidentChunk>>,
    /// A budget set by hand, which the policy does not change.
    pub pinned: Option<u64>,
    /// Its budget: bytes of cache on all nodes together.
    pub budget: u64,
    /// Bytes of its items homed on each of [`Decision::homes`], in that order. Empty until it is
    /// counted; until then a home's share follows from its capacity.
    pub homed: Vec<u64>,
    /// The ranks of the nodes that have submitted pipelines which read it. They are told of reads by tasks.
    pub owners: Vec<u32>,
    /// The problem that prevents it from being read as declared, if any.
    pub trouble: Option<DatasetTrouble>,
}

/// Why a dataset cannot be read as it is declared.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum DatasetTrouble {
    /// It was counted, and has no bytes.
    #[error("no file with any byte lies at its path or below it: a dataset of size zero")]
    Empty,
    /// It cannot be divided into the chunks in which it is to be kept.
    #[error(transparent)]
    Chunks(#[from] LayoutError),
    /// It cannot be counted. An earlier count stays.
    #[error("{0}")]
    Uncounted(String),
}

/// A running job, and its rate.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct JobDecision {
    /// Its unique name: `slurm:1234`, `run:resnet`.
    pub name: String,
    /// The name of the dataset that it reads. `None`: none observed yet.
    pub dataset: Option<String>,
    /// Whether it was declared, and not only observed.
    pub declared: bool,
    /// The user that declared it, if an ordinary user did.
    pub owner: Option<u32>,
    /// The declared ideal rate, in bytes per second.
    pub ideal_rate: Option<u64>,
    /// GPUs.
    pub gpus: u32,
    /// The number of epochs that it will run, if known.
    pub epochs: Option<u32>,
    /// Whether it deviates from reading each item once per epoch in random order.
    pub irregular: bool,
    /// How its look-ups are answered.
    pub mode: Mode,
    /// Its times with and without a cache, as far as they are measured.
    pub measured: Option<JobState>,
    /// A rate set by hand, in bytes per second.
    pub pinned: Option<u64>,
    /// Its limit on reads from storage, in bytes per second. `None`: no limit.
    pub remote_io: Option<u64>,
    /// The nodes on which it reads, each with its part of `remote_io`.
    pub nodes: Vec<JobNode>,
}

/// One node of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobNode {
    /// Its rank.
    pub rank: u32,
    /// Bytes per second.
    pub remote_io: u64,
}

impl Decision {
    /// Returns the dataset with this name.
    #[must_use]
    pub fn dataset(&self, name: &str) -> Option<&DatasetDecision> {
        self.datasets.iter().find(|dataset| dataset.name == name)
    }

    /// Returns the job with this name.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<&JobDecision> {
        self.jobs.iter().find(|job| job.name == name)
    }
}

impl JobDecision {
    /// Creates a job that was observed and not declared, without a rate.
    #[must_use]
    pub fn observed(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            gpus: 1,
            ..Self::default()
        }
    }
}

impl DatasetDecision {
    /// The identifier of a dataset on the wire.
    #[must_use]
    pub fn id_of(name: &str, path: &ItemPath) -> u64 {
        first_u64(blake3::hash(format!("{name}\0{path}").as_bytes()).as_bytes())
    }

    /// Returns whether it is kept in chunks, or may be as soon as the policy knows of jobs that can use them.
    #[must_use]
    pub fn may_be_in_chunks(&self) -> bool {
        self.resident.is_some() || self.keep == Keep::Auto
    }

    /// Returns the contents of its budget.
    #[must_use]
    pub fn choice(&self) -> Choice {
        match self.budget {
            0 => Choice::None,
            _ if self.resident.is_some() => Choice::Chunks,
            budget if budget >= self.size => Choice::Whole,
            _ => Choice::Uniform,
        }
    }

    /// Returns the layout of its chunks, which it has whether it is kept in chunks or not.
    ///
    /// # Errors
    /// It has no entries, or too few of them.
    pub fn layout(&self) -> Result<ChunkLayout, LayoutError> {
        ChunkLayout::new(self.entries, self.size, self.chunk_options.size)
    }

    /// Returns the bytes of as many chunks as can be resident. `None`: it has no chunks.
    #[must_use]
    pub fn resident_bytes_max(&self) -> Option<u64> {
        let stripes = u64::from(self.layout().ok()?.stripes());
        Some(
            self.size
                .div_ceil(stripes)
                .saturating_mul(RESIDENT_MAX as u64),
        )
    }

    /// Returns the bytes of the budget that belong to the home at index `home` of
    /// [`Decision::homes`]: the budget times the dataset's bytes homed there, divided by all its
    /// bytes. So a budget of the dataset's size holds all of it. Until the dataset is counted, the
    /// share follows from the home's capacity.
    #[must_use]
    pub fn share(&self, homes: &[HomeNode], home: usize) -> u64 {
        let counted = self.homed.len() == homes.len() && self.homed.iter().any(|bytes| *bytes > 0);
        let weight = |(at, home): (usize, &HomeNode)| match self.homed.get(at) {
            Some(bytes) if counted => u128::from(*bytes),
            _ => u128::from(home.capacity),
        };
        let whole: u128 = homes.iter().enumerate().map(weight).sum();
        let part = homes.get(home).map_or(0, |node| weight((home, node)));
        let share = part * u128::from(self.budget) / whole.max(1);
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}
