//! S3-FIFO (Yang, Zhang, Qiu, Yue, Vigfusson: "FIFO queues are all you need for cache eviction",
//! SOSP 2023, algorithm 1) over blocks with sizes. It follows the caches of a node (`src/cache/s3fifo.rs`
//! of the root crate), but is deterministic: its ghost queue holds blocks instead of hashes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;

/// The small queue's share of the capacity: one in 10, as in the paper.
const SMALL_SHARE: u64 = 10;
/// A block of the small queue with more hits than this moves to the main queue.
const PROMOTE_ABOVE: u8 = 1;
/// The most hits that count: two bits, as in the paper.
const HITS_MAX: u8 = 3;
/// The ghost queue has as many blocks as the main queue, and at least this many.
const GHOSTS_MIN: usize = 64;

/// The resident blocks in their queues.
#[derive(Debug, Clone)]
pub(super) struct S3Fifo<B> {
    capacity: u64,
    small: VecDeque<Queued<B>>,
    main: VecDeque<Queued<B>>,
    small_bytes: u64,
    used: u64,
    resident: HashMap<B, Resident>,
    ghosts: VecDeque<B>,
    /// The blocks of `ghosts`.
    ghost_members: HashSet<B>,
    /// The number of insertions so far.
    insertions: u64,
}

/// A place in a queue. It is void if its block was removed meanwhile, even if the block is resident again.
#[derive(Debug, Clone)]
struct Queued<B> {
    block: B,
    insertion: u64,
    size: u64,
}

#[derive(Debug, Clone, Copy)]
struct Resident {
    insertion: u64,
    size: u64,
    /// Hits since the block came in; each round in the main queue takes one away.
    hits: u8,
    is_small: bool,
}

impl<B: Eq + Hash + Clone> S3Fifo<B> {
    /// Creates an empty cache of `capacity` bytes.
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            small: VecDeque::new(),
            main: VecDeque::new(),
            small_bytes: 0,
            used: 0,
            resident: HashMap::new(),
            ghosts: VecDeque::new(),
            ghost_members: HashSet::new(),
            insertions: 0,
        }
    }

    /// Counts a hit. Returns whether the block is resident.
    pub(super) fn touch(&mut self, block: &B) -> bool {
        let resident = self.resident.get_mut(block);
        resident.is_some_and(|resident| {
            resident.hits = resident.hits.saturating_add(1).min(HITS_MAX);
            true
        })
    }

    /// Makes a block resident, unless it is larger than the cache. Adds the victims to `evicted`.
    pub(super) fn insert(&mut self, block: B, size: u64, evicted: &mut Vec<B>) {
        if size > self.capacity || self.resident.contains_key(&block) {
            return;
        }
        while size > self.capacity - self.used
            && let Some(victim) = self.evict()
        {
            evicted.push(victim);
        }
        self.insertions += 1;
        let is_small = !self.ghost_members.contains(&block);
        let insertion = self.insertions;
        let queued = Queued {
            block: block.clone(),
            insertion,
            size,
        };
        if is_small {
            self.small.push_back(queued);
            self.small_bytes += size;
        } else {
            self.main.push_back(queued);
        }
        let resident = Resident {
            insertion,
            size,
            hits: 0,
            is_small,
        };
        self.used += size;
        self.resident.insert(block, resident);
    }

    /// Removes a block without remembering it as a ghost.
    pub(super) fn remove(&mut self, block: &B) {
        if let Some(resident) = self.resident.remove(block) {
            self.used -= resident.size;
            if resident.is_small {
                self.small_bytes -= resident.size;
            }
        }
    }

    /// Returns the resident blocks with their sizes, in no order.
    pub(super) fn residents(&self) -> impl Iterator<Item = (&B, u64)> {
        let residents = self.resident.iter();
        residents.map(|(block, resident)| (block, resident.size))
    }

    fn evict(&mut self) -> Option<B> {
        loop {
            let from_small = self.small_bytes > self.capacity / SMALL_SHARE || self.main.is_empty();
            let queued = match from_small {
                true => self.small.pop_front().or_else(|| self.main.pop_front()),
                false => self.main.pop_front(),
            }?;
            let resident = self.resident.get_mut(&queued.block);
            let Some(resident) = resident.filter(|resident| resident.insertion == queued.insertion)
            else {
                continue;
            };
            if resident.is_small && resident.hits > PROMOTE_ABOVE {
                resident.is_small = false;
                resident.hits = 0;
                self.small_bytes -= queued.size;
                self.main.push_back(queued);
            } else if resident.is_small {
                self.remove(&queued.block);
                self.remember(queued.block.clone());
                return Some(queued.block);
            } else if resident.hits > 0 {
                resident.hits -= 1;
                self.main.push_back(queued);
            } else {
                self.remove(&queued.block);
                return Some(queued.block);
            }
        }
    }

    fn remember(&mut self, block: B) {
        if self.ghost_members.insert(block.clone()) {
            self.ghosts.push_back(block);
        }
        while self.ghosts.len() > self.main.len().max(GHOSTS_MIN)
            && let Some(oldest) = self.ghosts.pop_front()
        {
            self.ghost_members.remove(&oldest);
        }
    }
}
