//! The order of eviction: the resident blocks by (rank, last use), least first. Under LRC the rank of a
//! block is its reference count.
//!
//! Invariants: resident bytes never exceed the capacity. Each resident block is in exactly one of the
//! three queues, under its present rank and last use.

mod queues;

use queues::{Class, Queues, Use};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::hash::Hash;

/// Whether a block that comes in may be refused for the sake of resident blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Admit {
    /// It comes in whenever the cache is large enough for it (LRC, section III-A).
    #[default]
    Always,
    /// It is a candidate beside the resident blocks. If it is the least, it stays out.
    Compare,
}

/// The limits of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// The bytes that may be resident.
    pub capacity: u64,
    /// Undeclared blocks are spared while they have at most this many bytes together. 0: they are not.
    pub floor: u64,
    /// Whether a block that comes in may be refused.
    pub admit: Admit,
}

/// Resident bytes, by the declaration of their blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResidentBytes {
    /// Of blocks that no job has declared.
    pub undeclared: u64,
    /// Of declared blocks with count 0: inactive data (LRC, section II-C).
    pub unreferenced: u64,
    /// Of blocks with a count above 0.
    pub referenced: u64,
}

impl ResidentBytes {
    /// Returns the bytes of all resident blocks.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.undeclared + self.unreferenced + self.referenced
    }
}

/// The resident blocks in the order of their eviction.
///
/// The victim is the resident block with the least (rank, last use). A block is *declared* once its count
/// was set, even to 0. With a floor, undeclared blocks are spared while they have at most that many bytes
/// together, unless no other block is left: a pipeline must not take all of the cache from readers that
/// declare nothing.
///
/// The order keeps the ranks of blocks that are not resident too, so that they count when the block comes
/// in. Such a block is remembered until [`forget`](Self::forget).
///
/// A home that reserves room for a block before its bytes arrive inserts the block then, and removes it if
/// it does not arrive. In between the block may be chosen as a victim.
#[derive(Debug, Clone)]
pub struct EvictionOrder<B> {
    limits: Limits,
    blocks: HashMap<B, Block>,
    queues: Queues<B>,
    /// The last use that was counted. Each use has a number of its own.
    clock: u64,
}

/// A block that is resident, declared, or ranked.
#[derive(Debug, Clone, Copy)]
struct Block {
    last: u64,
    rank: u32,
    class: Class,
    is_resident: bool,
}

impl Block {
    const UNKNOWN: Self = Self {
        last: 0,
        rank: 0,
        class: Class::Undeclared,
        is_resident: false,
    };

    fn position(&self) -> Use {
        Use {
            rank: self.rank,
            last: self.last,
        }
    }
}

impl<B: Eq + Hash + Clone> EvictionOrder<B> {
    /// Creates an order without blocks.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            blocks: HashMap::new(),
            queues: Queues::default(),
            clock: 0,
        }
    }

    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Sets the limits. Evicts until the resident blocks are within the capacity, and adds the victims to
    /// `evicted`.
    pub fn set_limits(&mut self, limits: Limits, evicted: &mut Vec<B>) {
        self.limits = limits;
        let excess = self.bytes().total().saturating_sub(limits.capacity);
        let first = evicted.len();
        // Without a block that comes in, there is always a victim.
        self.queues.choose(excess, limits.floor, None, evicted);
        self.remove_all(&evicted[first..]);
    }

    /// Declares the block and sets its reference count, which is its rank. It need not be resident.
    pub fn set_count(&mut self, block: &B, count: u32) {
        let class = Class::declared(count > 0);
        self.update(block, |block| {
            block.class = class;
            block.rank = count;
        });
    }

    /// Declares the block and says whether it has references, but leaves its rank: for orders that do not
    /// rank by count.
    pub fn declare(&mut self, block: &B, is_referenced: bool) {
        let class = Class::declared(is_referenced);
        self.update(block, |block| block.class = class);
    }

    /// Sets the rank of the block without declaring it: for orders that do not rank by count.
    pub fn set_rank(&mut self, block: &B, rank: u32) {
        self.update(block, |block| block.rank = rank);
    }

    /// Returns the rank of the block: its count, if that was set last. An unknown block has rank 0.
    #[must_use]
    pub fn rank(&self, block: &B) -> u32 {
        self.blocks.get(block).map_or(0, |block| block.rank)
    }

    /// Returns whether the block was declared.
    #[must_use]
    pub fn is_declared(&self, block: &B) -> bool {
        let known = self.blocks.get(block);
        known.is_some_and(|block| block.class != Class::Undeclared)
    }

    /// Returns whether the block is resident.
    #[must_use]
    pub fn is_resident(&self, block: &B) -> bool {
        (self.blocks.get(block)).is_some_and(|block| block.is_resident)
    }

    /// Makes a resident block the last one used. Returns whether it is resident.
    pub fn touch(&mut self, block: &B) -> bool {
        let Some(known) = self.blocks.get_mut(block).filter(|known| known.is_resident) else {
            return false;
        };
        self.clock += 1;
        let (class, before) = (known.class, known.position());
        known.last = self.clock;
        let after = known.position();
        if let Some((block, size)) = self.queues.remove(class, before) {
            self.queues.insert(class, after, block, size);
        }
        true
    }

    /// Returns the victims that make room for a block of `size` bytes which is not resident, in the order
    /// of their eviction. `None`: it stays out, because it is larger than the cache, or because it is the
    /// least under [`Admit::Compare`]. Changes nothing.
    #[must_use]
    pub fn victims_for(&self, block: &B, size: u64) -> Option<Vec<B>> {
        let mut victims = Vec::new();
        let fits = self.choose_for(block, size, &mut victims);
        fits.then_some(victims)
    }

    /// Makes a block of `size` bytes resident, as the last one used. Evicts the victims that
    /// [`victims_for`](Self::victims_for) returns, and adds them to `evicted`. Returns whether the block is
    /// resident now. If it was before, it counts as used, and its size stays.
    pub fn insert(&mut self, block: B, size: u64, evicted: &mut Vec<B>) -> bool {
        if self.touch(&block) {
            return true;
        }
        let first = evicted.len();
        if !self.choose_for(&block, size, evicted) {
            evicted.truncate(first);
            return false;
        }
        self.remove_all(&evicted[first..]);
        self.clock += 1;
        let known = self.blocks.entry(block.clone()).or_insert(Block::UNKNOWN);
        known.last = self.clock;
        known.is_resident = true;
        let position = known.position();
        self.queues.insert(known.class, position, block, size);
        true
    }

    /// Removes a block whose bytes are gone. Returns whether it was resident. A declared block keeps its
    /// count.
    pub fn remove(&mut self, block: &B) -> bool {
        let Some(known) = self.blocks.get_mut(block).filter(|known| known.is_resident) else {
            return false;
        };
        self.queues.remove(known.class, known.position());
        known.is_resident = false;
        if known.class == Class::Undeclared && known.rank == 0 {
            self.blocks.remove(block);
        }
        true
    }

    /// Forgets the declaration and the rank of a block. A resident block stays, and is undeclared now.
    pub fn forget(&mut self, block: &B) {
        self.update(block, |block| {
            block.class = Class::Undeclared;
            block.rank = 0;
        });
        if !self.is_resident(block) {
            self.blocks.remove(block);
        }
    }

    /// Evicts the declared blocks with count 0, the least recently used first, and adds them to `evicted`.
    pub fn flush(&mut self, evicted: &mut Vec<B>) {
        let first = evicted.len();
        self.queues.unreferenced(evicted);
        self.remove_all(&evicted[first..]);
    }

    /// Returns the resident blocks with their sizes in bytes, in no order.
    pub fn residents(&self) -> impl Iterator<Item = (&B, u64)> {
        self.queues.all().map(|(block, size)| (block, *size))
    }

    /// Returns the resident bytes.
    #[must_use]
    pub fn bytes(&self) -> ResidentBytes {
        self.queues.bytes()
    }

    /// Chooses the victims for a block that comes in, and adds them to `victims`. Returns false if the
    /// block stays out; then `victims` may have some that stay too.
    fn choose_for(&self, block: &B, size: u64, victims: &mut Vec<B>) -> bool {
        let limits = self.limits;
        if size > limits.capacity {
            return false;
        }
        let free = limits.capacity.saturating_sub(self.bytes().total());
        let excess = size.saturating_sub(free);
        let rival = (limits.admit == Admit::Compare).then(|| self.rank(block));
        self.queues.choose(excess, limits.floor, rival, victims)
    }

    fn remove_all(&mut self, blocks: &[B]) {
        for block in blocks {
            self.remove(block);
        }
    }

    /// Changes the class or the rank of a block, and moves it in the queues if it is resident.
    fn update(&mut self, key: &B, change: impl FnOnce(&mut Block)) {
        let known = self.blocks.entry(key.clone()).or_insert(Block::UNKNOWN);
        let before = *known;
        change(known);
        let after = *known;
        let has_moved = before.class != after.class || before.rank != after.rank;
        if after.is_resident
            && has_moved
            && let Some((block, size)) = self.queues.remove(before.class, before.position())
        {
            (self.queues).insert(after.class, after.position(), block, size);
        }
    }
}

#[cfg(test)]
mod tests;
