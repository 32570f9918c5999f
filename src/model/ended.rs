//! Jobs that have ended.

use super::report::JobReport;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// A job that has ended, and its reads on all nodes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct EndedJob {
    /// Its name.
    pub job: String,
    /// The dataset that it read.
    pub dataset: Option<String>,
    /// Whether it was declared. Other jobs were observed.
    pub declared: bool,
    /// GPUs that it was declared with.
    pub gpus: u32,
    /// Epochs that it was declared with.
    pub epochs: Option<u32>,
    /// The time since its end.
    pub ago: Duration,
    /// The time from its declaration, or its first read, to its end.
    pub lasted: Duration,
    /// Its reads.
    pub totals: JobTotals,
    /// Whether every node has reported since its end, or was given up.
    pub is_complete: bool,
}

/// The reads of a job, summed over nodes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct JobTotals {
    /// Nodes on which it read.
    pub nodes: u32,
    /// Bytes read.
    pub bytes: u64,
    /// Bytes read from storage for it, without the next two.
    pub charged_bytes: u64,
    /// Bytes read from storage while it was measured without a cache.
    pub probe_bytes: u64,
    /// Bytes that it has read from storage with its own credentials.
    pub own_bytes: u64,
    /// The seconds in which a read waited for tokens, on the node where that was the longest.
    pub waited_s: f32,
    /// By epoch from 0 on: bytes read, and bytes of these that were cached. Nodes report the last epochs only.
    pub epochs: BTreeMap<u32, (u64, u64)>,
}

impl JobTotals {
    /// The sums over the parts of a job that one node reports: one for each dataset.
    #[must_use]
    pub fn of_node<'a>(parts: impl IntoIterator<Item = &'a JobReport>) -> Self {
        let mut sums = Self::default();
        for part in parts {
            let current = (part.epoch, part.bytes, part.hit_bytes);
            let epochs = part.epochs.iter().copied().chain([current]);
            sums.add(&Self {
                nodes: 0,
                bytes: part.total_bytes,
                charged_bytes: part.charged_bytes,
                probe_bytes: part.probe_bytes,
                own_bytes: part.own_bytes,
                waited_s: part.waited_s,
                epochs: epochs
                    .filter(|(_, bytes, _)| *bytes > 0)
                    .map(|(epoch, bytes, hit)| (epoch, (bytes, hit)))
                    .collect(),
            });
        }
        sums.nodes = u32::from(sums.bytes > 0);
        sums
    }

    /// Adds the sums over other nodes.
    pub fn add(&mut self, other: &Self) {
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.charged_bytes = self.charged_bytes.saturating_add(other.charged_bytes);
        self.probe_bytes = self.probe_bytes.saturating_add(other.probe_bytes);
        self.own_bytes = self.own_bytes.saturating_add(other.own_bytes);
        self.waited_s = self.waited_s.max(other.waited_s);
        for (epoch, (bytes, hit)) in &other.epochs {
            let sums = self.epochs.entry(*epoch).or_default();
            sums.0 = sums.0.saturating_add(*bytes);
            sums.1 = sums.1.saturating_add(*hit);
        }
    }
}
