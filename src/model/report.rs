//! What nodes say to the allocator.

use super::decision::{Decision, FormatError, Serial, decode, encode};
use serde::{Deserialize, Serialize};

/// What goes up the tree. Each frame is whole in itself: a newer one takes the place of one that was
/// not taken yet.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Up {
    /// The decision that the sender holds.
    pub holds: Serial,
    /// That decision, where the receiver is not known to hold it or a newer one: it may have lost it.
    pub held: Option<Box<Decision>>,
    /// What nodes report: the sender itself, and those below it. The newest of each.
    pub reports: Vec<NodeReport>,
}

/// What goes down the tree, whole in itself as well.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Down {
    /// The allocator's sign of life, passed on by every node on the way.
    pub beat: Beat,
    /// The decision that the sender holds.
    pub holds: Serial,
    /// That decision, where the receiver is not known to hold it or a newer one.
    pub decision: Option<Box<Decision>>,
}

/// An allocator's sign of life. One that is passed on in a circle is no news to those in it, so that
/// they find out that nobody is above them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Beat {
    /// Which allocator: another number each time one begins.
    pub allocator: u64,
    /// Rises.
    pub count: u64,
}

/// One node, as it stands.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its place in the member list.
    pub rank: u32,
    /// Its name there.
    pub name: String,
    /// Another number each time the process starts.
    pub boot: u64,
    /// Rises with each report of one process: which of two is the newer.
    pub count: u64,
    /// The decision that it follows.
    pub follows: Serial,
    /// Bytes that it has for datasets; 0: it stores none.
    pub capacity: u64,
    /// What it holds.
    pub shares: Vec<ShareReport>,
    /// What is read on it.
    pub jobs: Vec<JobReport>,
}

/// One dataset's share on one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShareReport {
    /// The dataset, by [`super::DatasetDecision::id`].
    pub dataset: u64,
    /// Bytes that it holds.
    pub cached: u64,
    /// Items that it holds.
    pub items: u64,
    /// Bytes that it may hold.
    pub share: u64,
    /// Bytes read from storage for it since the process started.
    pub origin_bytes: u64,
    /// The last failure of storage, if the last read failed.
    pub trouble: Option<String>,
}

/// One job's reading of one dataset on one node.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct JobReport {
    /// The job's name.
    pub job: String,
    /// The dataset's name.
    pub dataset: String,
    /// Which epoch it is in, from 0.
    pub epoch: u32,
    /// Items read in it.
    pub items: u64,
    /// Bytes read in it.
    pub bytes: u64,
    /// Of those, bytes that were cached, at home or by the kernel.
    pub hit_bytes: u64,
    /// Bytes that the job's own reads brought into the cache in this epoch: of use from the next one
    /// on (§6, delayed effectiveness).
    pub admitted_bytes: u64,
    /// Bytes read since it was first seen here.
    pub total_bytes: u64,
    /// Bytes read from storage on its account since then.
    pub charged_bytes: u64,
    /// Bytes per second, over the last seconds.
    pub throughput: u64,
    /// Bytes per second from storage, over the last seconds.
    pub remote_io: u64,
    /// Bytes per second that it was allowed.
    pub allowed: Option<u64>,
    /// The part of the last seconds in which a read waited for tokens, 0 to 1.
    pub throttled: f32,
    /// What it would read if data were not its bottleneck, in bytes per second, as far as its own reads
    /// show it.
    pub ideal_rate: Option<u64>,
    /// How far that can be relied on, 0 to 1.
    pub confidence: f32,
    /// Data was always its bottleneck: `ideal_rate` is only what it reached.
    pub bound: bool,
    /// It breaks the pattern.
    pub irregular: bool,
    /// Its processes are gone.
    pub ended: bool,
    /// The hit ratio of each epoch that has ended, the last ones: (epoch, bytes, bytes hit).
    pub epochs: Vec<(u32, u64, u64)>,
}

impl Down {
    /// The bytes that travel.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads what [`Down::encode`] wrote.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        decode(bytes)
    }
}

impl Up {
    /// The bytes that travel.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads what [`Up::encode`] wrote.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        decode(bytes)
    }
}
