//! What the allocator says, as every node keeps it.
//!
//! Travels as postcard, lz4-compressed, behind a format number ([`Decision::encode`]).

use copperfs_overlay::ItemPath;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which decision is the newer one: that of the later term, then that with the higher count.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Serial {
    /// Rises whenever an allocator starts anew, on whatever node.
    pub term: u64,
    /// Rises with each decision of one term.
    pub count: u64,
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.count)
    }
}

/// The whole state. See [`crate::budgets`].
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Decision {
    /// Which one it is.
    pub serial: Serial,
    /// The policy that made it, by name.
    pub policy: String,
    /// Bytes of cache that there are for datasets.
    pub cache_total: u64,
    /// Bytes per second that storage may be read with, all jobs together; `None`: no limit.
    pub remote_io_total: Option<u64>,
    /// The nodes that store datasets and live, by rank. Slots are spread over them by capacity.
    pub homes: Vec<HomeNode>,
    /// The declared datasets.
    pub datasets: Vec<DatasetDecision>,
    /// The jobs that run.
    pub jobs: Vec<JobDecision>,
}

/// A node that stores datasets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HomeNode {
    /// Its place in the member list.
    pub rank: u32,
    /// Its name there: what slots are spread by.
    pub name: String,
    /// Bytes that it has for datasets: its weight.
    pub capacity: u64,
}

/// Who reads storage for a dataset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OriginReaders {
    /// The roots: a home asks up its tree.
    #[default]
    Roots,
    /// Each home by itself; it must reach storage and hold the credentials.
    Homes,
}

/// A declared dataset, and what it gets.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DatasetDecision {
    /// Its name, unique.
    pub name: String,
    /// What it is called on the wire: a hash of name and path.
    pub id: u64,
    /// Where it begins in the namespace: what lies there and below.
    pub path: ItemPath,
    /// Where it was declared from, if that was a URI.
    pub uri: Option<String>,
    /// Bytes of its files; 0: not known yet.
    pub size: u64,
    /// Items: files, and the 4 MiB stripes of larger ones; 0: not known yet.
    pub items: u64,
    /// The index that names its files, if it has one.
    pub index: Option<String>,
    /// Who reads storage.
    pub origin_readers: OriginReaders,
    /// A budget that was set by hand, which the policy does not touch.
    pub pinned: Option<u64>,
    /// Bytes of cache that it may take, all nodes together.
    pub budget: u64,
    /// Bytes of its items that are at home on each of [`Decision::homes`], in that order; empty: not
    /// counted yet, then homes take what their weight says.
    pub homed: Vec<u64>,
    /// What stops it from being read as declared, if anything does.
    pub trouble: Option<String>,
}

/// A job that runs, and what it gets.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct JobDecision {
    /// Its name, unique: `slurm:1234`, `run:resnet`.
    pub name: String,
    /// The dataset that it reads, by name; `None`: not seen yet.
    pub dataset: Option<String>,
    /// Declared, not merely seen.
    pub declared: bool,
    /// The owner of the job, if an ordinary user has declared it.
    pub owner: Option<u32>,
    /// Bytes per second that it reads when data is not its bottleneck, as declared.
    pub ideal_rate: Option<u64>,
    /// GPUs.
    pub gpus: u32,
    /// Epochs that it will run, if that is known.
    pub epochs: Option<u32>,
    /// It breaks the pattern of one random read of each item an epoch.
    pub irregular: bool,
    /// A rate that was set by hand, in bytes per second.
    pub pinned: Option<u64>,
    /// Bytes per second that it may read from storage; `None`: as much as it likes.
    pub remote_io: Option<u64>,
    /// The nodes that it reads on, and the part of `remote_io` that each has.
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

/// The format of an encoded decision, in its first two bytes.
const FORMAT: u16 = 2;
/// Bytes of a decision, decoded: bounds what a peer can make this node allocate.
const DECODED_MAX: usize = 16 << 20;

/// Why bytes are no decision.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FormatError {
    /// Written by another version of copperfs.
    #[error("format {0} is not known here: do all nodes run the same copperfs?")]
    Version(u16),
    /// Torn, too large, or not of this kind.
    #[error("not readable: {0}")]
    Damaged(String),
}

pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Postcard fails on types that do not know their length only; these do.
    let plain = postcard::to_stdvec(value).unwrap_or_default();
    let mut bytes = FORMAT.to_le_bytes().to_vec();
    bytes.extend(lz4_flex::compress_prepend_size(&plain));
    bytes
}

pub(super) fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, FormatError> {
    let damaged = |why: &str| FormatError::Damaged(why.into());
    let (format, rest) = bytes
        .split_first_chunk::<2>()
        .ok_or_else(|| damaged("too short"))?;
    let format = u16::from_le_bytes(*format);
    if format != FORMAT {
        return Err(FormatError::Version(format));
    }
    let (len, block) = rest
        .split_first_chunk::<4>()
        .ok_or_else(|| damaged("too short"))?;
    let len = usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX);
    if len > DECODED_MAX {
        return Err(damaged("too large"));
    }
    let plain = lz4_flex::decompress(block, len)
        .map_err(|error| FormatError::Damaged(error.to_string()))?;
    postcard::from_bytes(&plain).map_err(|error| FormatError::Damaged(error.to_string()))
}

impl Decision {
    /// The bytes that travel.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads what [`Decision::encode`] wrote, on whatever node.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        decode(bytes)
    }

    /// The dataset of this name.
    #[must_use]
    pub fn dataset(&self, name: &str) -> Option<&DatasetDecision> {
        self.datasets.iter().find(|dataset| dataset.name == name)
    }

    /// The job of this name.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<&JobDecision> {
        self.jobs.iter().find(|job| job.name == name)
    }
}

impl DatasetDecision {
    /// What a dataset is called on the wire.
    #[must_use]
    pub fn id_of(name: &str, path: &ItemPath) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(name.as_bytes());
        hasher.update(&[0]);
        hasher.update(path.to_string().as_bytes());
        let mut id = [0; 8];
        hasher.finalize_xof().fill(&mut id);
        u64::from_le_bytes(id)
    }

    /// The part of the budget that the home at position `home` of [`Decision::homes`] holds, in bytes:
    /// budget × bytes homed there ÷ bytes of the dataset, so that a full budget holds everything.
    /// Where the bytes are not counted yet, the part that its capacity says.
    #[must_use]
    pub fn share(&self, homes: &[HomeNode], home: usize) -> u64 {
        let (part, whole) = if self.homed.len() == homes.len() && self.homed.iter().any(|b| *b > 0)
        {
            let whole: u128 = self.homed.iter().map(|bytes| u128::from(*bytes)).sum();
            (self.homed.get(home).copied().map(u128::from), whole)
        } else {
            let whole = homes.iter().map(|home| u128::from(home.capacity)).sum();
            (homes.get(home).map(|home| u128::from(home.capacity)), whole)
        };
        let share = part.unwrap_or(0) * u128::from(self.budget) / whole.max(1);
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}
