//! Which metric predicts the next access: the rank of each block that is read, by reference count, recency
//! and frequency (LRC, section III-A, Figure 5).

use super::workload::Pipeline;
use crate::num::{as_f64, index_f64};
use crate::random::Random;
use copperfs_policy::references::EvictionPolicy;
use copperfs_policy::references::replay::{Replay, TraceError};
use serde::Serialize;

/// The number of reads that are measured in the mean. Each looks at all blocks.
const MEASURED: u64 = 500;
/// The seed of the choice among more reads.
const SEED: u64 = 5;

/// A metric by which a cache could order blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The reference count when all jobs are known (LRC, the paper's figure).
    Count,
    /// The reference count of the jobs that were submitted so far (LRC-Online).
    OnlineCount,
    /// The last read or put.
    Recency,
    /// The number of reads and puts.
    Frequency,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Self; 4] = [
        Self::Count,
        Self::OnlineCount,
        Self::Recency,
        Self::Frequency,
    ];

    /// Returns its name in tables and legends.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Count => "reference count",
            Self::OnlineCount => "reference count, online",
            Self::Recency => "recency",
            Self::Frequency => "frequency",
        }
    }
}

/// The ranks of the blocks that were read, by one metric.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ranks {
    /// The metric.
    pub metric: Metric,
    /// The part of the reads whose block was in the first tenth.
    pub top_tenth: f64,
    /// The rank of the block of each measured read, 0 (first) to 1 (last), ascending.
    #[serde(skip)]
    pub ranks: Vec<f64>,
}

/// Measures the rank of the block of each read just before it, among the blocks that were read or put before.
/// Equal blocks are in the order of their last use, as in the product's order of eviction. First reads are
/// left out: no cache has their blocks. Of many reads, about 500 are measured, at random.
///
/// # Errors
/// As [`run`](super::run).
pub fn ranks(pipeline: &Pipeline) -> Result<Vec<Ranks>, TraceError> {
    let trace = &pipeline.trace;
    // The table of jobs is the same in a cache of any size.
    let mut online = Replay::new(trace, EvictionPolicy::Lru)?;
    let mut whole = Replay::with_all_jobs(trace, EvictionPolicy::Lru)?;
    let reads = trace.accesses().flatten().filter(|access| !access.is_put);
    let chance = as_f64(MEASURED) / index_f64(reads.count().max(1));
    let mut random = Random::new(SEED);
    let mut history = History {
        used: Vec::new(),
        last: vec![0; trace.blocks()],
        uses: vec![0; trace.blocks()],
        clock: 0,
    };
    let mut ranks = Metric::ALL.map(|_| Vec::new());
    for access in trace.accesses() {
        if let Some(access) = access {
            let is_known = history.uses[access.block as usize] > 0;
            if !access.is_put && is_known && random.unit() < chance {
                for (metric, ranks) in Metric::ALL.into_iter().zip(&mut ranks) {
                    let value = |block: u32| match metric {
                        Metric::Count => whole.count(block),
                        Metric::OnlineCount => online.count(block),
                        Metric::Recency => 0,
                        Metric::Frequency => history.uses[block as usize],
                    };
                    ranks.push(history.rank(access.block, value));
                }
            }
            history.add(access.block);
        }
        online.advance()?;
        whole.advance()?;
    }
    let result = Metric::ALL.into_iter().zip(ranks);
    Ok(result
        .map(|(metric, ranks)| Ranks::new(metric, ranks))
        .collect())
}

impl Ranks {
    /// Collects ranks, also those of several pipelines.
    #[must_use]
    pub fn new(metric: Metric, mut ranks: Vec<f64>) -> Self {
        ranks.sort_unstable_by(f64::total_cmp);
        let top = ranks.partition_point(|rank| *rank < 0.1);
        Self {
            metric,
            top_tenth: index_f64(top) / index_f64(ranks.len().max(1)),
            ranks,
        }
    }
}

/// The reads and puts so far.
struct History {
    /// The blocks that were used, each once.
    used: Vec<u32>,
    /// By block: the last use.
    last: Vec<u64>,
    /// By block: the number of uses.
    uses: Vec<u32>,
    clock: u64,
}

impl History {
    fn add(&mut self, block: u32) {
        let at = block as usize;
        if self.uses[at] == 0 {
            self.used.push(block);
        }
        self.clock += 1;
        self.last[at] = self.clock;
        self.uses[at] = self.uses[at].saturating_add(1);
    }

    /// Returns the part of the used blocks that have a higher (value, last use).
    fn rank(&self, block: u32, value: impl Fn(u32) -> u32) -> f64 {
        let key = |block: u32| (value(block), self.last[block as usize]);
        let own = key(block);
        let above = self.used.iter().filter(|other| key(**other) > own).count();
        index_f64(above) / index_f64(self.used.len())
    }
}
