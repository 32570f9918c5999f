//! The cache of a replay: the resident blocks under each policy.

use super::trace::{Step, Trace};
use crate::references::s3_fifo::S3Fifo;
use crate::references::{EvictionOrder, EvictionPolicy, JobTable, Limits, ResidentBytes};

/// The table of jobs of a replay, by number.
pub(super) type Jobs = JobTable<u32, u32, u32>;

/// The resident blocks.
#[derive(Debug)]
pub(super) enum Cache {
    Ranked(EvictionOrder<u32>, Ranks),
    S3Fifo(Queues),
}

/// Where the rank of a block comes from.
#[derive(Debug)]
pub(super) enum Ranks {
    /// The reference count.
    Counts,
    /// It is always 0.
    Zero,
    /// By block: its reads and puts so far.
    Uses(Vec<u32>),
    /// By event: the rank of its block after it.
    NextReads(Vec<u32>),
}

/// Queues without ranks, and the fields of a block that only a flush needs.
#[derive(Debug)]
pub(super) struct Queues {
    queues: S3Fifo<u32>,
    /// By block: the last read or put.
    last: Vec<u64>,
    is_declared: Vec<bool>,
    clock: u64,
}

impl Cache {
    /// Creates the cache with the initial blocks of the trace.
    pub(super) fn new(trace: &Trace, policy: EvictionPolicy) -> Self {
        let blocks = trace.sizes.len();
        let ranks = match policy {
            EvictionPolicy::Lrc | EvictionPolicy::LrcOffline => Ranks::Counts,
            EvictionPolicy::Lru => Ranks::Zero,
            EvictionPolicy::Lfu => Ranks::Uses(vec![0; blocks]),
            EvictionPolicy::Min => {
                let (first, next) = next_reads(trace);
                let mut cache = Self::ranked(trace, Ranks::NextReads(next));
                if let Self::Ranked(order, _) = &mut cache {
                    for block in &trace.initial {
                        order.set_rank(block, first[*block as usize]);
                    }
                }
                return cache;
            }
            EvictionPolicy::S3Fifo => {
                let mut queues = Queues {
                    queues: S3Fifo::new(trace.cache),
                    last: vec![0; blocks],
                    is_declared: vec![false; blocks],
                    clock: 0,
                };
                for &block in &trace.initial {
                    queues.bring_in(block, trace.sizes[block as usize], &mut Vec::new());
                }
                return Self::S3Fifo(queues);
            }
        };
        Self::ranked(trace, ranks)
    }

    fn ranked(trace: &Trace, ranks: Ranks) -> Self {
        let mut order = EvictionOrder::new(Limits {
            capacity: trace.cache,
            floor: trace.options.floor,
            admit: trace.options.admit,
        });
        for &block in &trace.initial {
            // A trace has no more initial blocks than fit.
            order.insert(block, trace.sizes[block as usize], &mut Vec::new());
        }
        Self::Ranked(order, ranks)
    }

    /// Takes the counts of blocks that have changed, which are declared then.
    pub(super) fn set_counts(&mut self, changed: &mut Vec<u32>, jobs: &Jobs) {
        for block in changed.drain(..) {
            let count = jobs.count(&block);
            match self {
                Self::Ranked(order, Ranks::Counts) => order.set_count(&block, count),
                Self::Ranked(order, _) => order.declare(&block, count > 0),
                Self::S3Fifo(queues) => queues.is_declared[block as usize] = true,
            }
        }
    }

    /// Reads or puts the block at the event of this index. Inserts it if it is not resident. Returns
    /// whether it was.
    pub(super) fn use_block(
        &mut self,
        event: usize,
        block: u32,
        size: u64,
        evicted: &mut Vec<u32>,
    ) -> bool {
        match self {
            Self::Ranked(order, ranks) => {
                if let Some(rank) = ranks.after_use(event, block) {
                    order.set_rank(&block, rank);
                }
                let is_hit = order.touch(&block);
                if !is_hit {
                    order.insert(block, size, evicted);
                }
                is_hit
            }
            Self::S3Fifo(queues) => queues.bring_in(block, size, evicted),
        }
    }

    /// Evicts declared blocks without references.
    pub(super) fn flush(&mut self, jobs: &Jobs, evicted: &mut Vec<u32>) {
        match self {
            Self::Ranked(order, _) => order.flush(evicted),
            Self::S3Fifo(queues) => queues.flush(jobs, evicted),
        }
    }

    /// Returns the resident bytes.
    pub(super) fn bytes(&self, jobs: &Jobs) -> ResidentBytes {
        match self {
            Self::Ranked(order, _) => order.bytes(),
            Self::S3Fifo(queues) => queues.bytes(jobs),
        }
    }

    /// Returns the resident blocks, in no order.
    pub(super) fn residents(&self) -> Vec<u32> {
        match self {
            Self::Ranked(order, _) => order.residents().map(|(block, _)| *block).collect(),
            Self::S3Fifo(queues) => queues.queues.residents().map(|(block, _)| *block).collect(),
        }
    }
}

impl Ranks {
    /// Returns the rank of a block after it was read or put by the event. `None`: a use does not change it.
    fn after_use(&mut self, event: usize, block: u32) -> Option<u32> {
        match self {
            Self::Counts | Self::Zero => None,
            Self::Uses(uses) => {
                let uses = &mut uses[block as usize];
                *uses = uses.saturating_add(1);
                Some(*uses)
            }
            Self::NextReads(ranks) => Some(ranks[event]),
        }
    }
}

impl Queues {
    /// Returns whether the block was resident.
    fn bring_in(&mut self, block: u32, size: u64, evicted: &mut Vec<u32>) -> bool {
        self.clock += 1;
        self.last[block as usize] = self.clock;
        let is_hit = self.queues.touch(&block);
        if !is_hit {
            self.queues.insert(block, size, evicted);
        }
        is_hit
    }

    fn bytes(&self, jobs: &Jobs) -> ResidentBytes {
        let mut bytes = ResidentBytes::default();
        for (block, size) in self.queues.residents() {
            let of = match (self.is_declared[*block as usize], jobs.count(block)) {
                (false, _) => &mut bytes.undeclared,
                (true, 0) => &mut bytes.unreferenced,
                (true, _) => &mut bytes.referenced,
            };
            *of += size;
        }
        bytes
    }

    fn flush(&mut self, jobs: &Jobs, evicted: &mut Vec<u32>) {
        let residents = self.queues.residents().map(|(block, _)| *block);
        let is_flushed = |block: &u32| self.is_declared[*block as usize] && jobs.count(block) == 0;
        let mut flushed: Vec<u32> = residents.filter(is_flushed).collect();
        flushed.sort_unstable_by_key(|block| self.last[*block as usize]);
        for block in &flushed {
            self.queues.remove(block);
        }
        evicted.extend(flushed);
    }
}

/// Returns the ranks under `min`: of each block at the start, and of the block of each event after it. A
/// block that is read sooner has a higher rank. One that is put before it is read has 0, as if it were not
/// read again, because the put brings it in.
fn next_reads(trace: &Trace) -> (Vec<u32>, Vec<u32>) {
    let mut next = vec![0; trace.sizes.len()];
    let mut after = vec![0; trace.events.len()];
    for (event, step) in trace.events.iter().enumerate().rev() {
        let (block, rank) = match step {
            // A trace has fewer than 2^32 events, so the first has the highest rank.
            Step::Read { block, .. } => {
                (*block, u32::try_from(event).map_or(1, |at| u32::MAX - at))
            }
            Step::Put { block } => (*block, 0),
            _ => continue,
        };
        let next = &mut next[block as usize];
        after[event] = *next;
        *next = rank;
    }
    (next, after)
}
