//! The queues of resident blocks, one for each class, and the choice of victims among them.

use super::ResidentBytes;
use std::collections::{BTreeMap, btree_map};
use std::iter::Peekable;

/// The declaration of a block. It says in which queue the block is if it is resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Undeclared,
    Unreferenced,
    Referenced,
}

impl Class {
    pub(super) fn declared(is_referenced: bool) -> Self {
        if is_referenced {
            Self::Referenced
        } else {
            Self::Unreferenced
        }
    }
}

/// The position of a block in its queue. No two resident blocks have the same last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Use {
    pub(super) rank: u32,
    pub(super) last: u64,
}

/// A resident block with its size in bytes.
type Item<B> = (B, u64);

/// The resident blocks. Three queues instead of one make the two special cases cheap: to spare the
/// undeclared blocks, and to evict the unreferenced ones.
#[derive(Debug, Clone)]
pub(super) struct Queues<B> {
    undeclared: BTreeMap<Use, Item<B>>,
    unreferenced: BTreeMap<Use, Item<B>>,
    referenced: BTreeMap<Use, Item<B>>,
    bytes: ResidentBytes,
}

impl<B> Default for Queues<B> {
    fn default() -> Self {
        Self {
            undeclared: BTreeMap::new(),
            unreferenced: BTreeMap::new(),
            referenced: BTreeMap::new(),
            bytes: ResidentBytes::default(),
        }
    }
}

impl<B: Clone> Queues<B> {
    pub(super) fn bytes(&self) -> ResidentBytes {
        self.bytes
    }

    pub(super) fn insert(&mut self, class: Class, at: Use, block: B, size: u64) {
        let (queue, bytes) = self.of(class);
        *bytes += size;
        queue.insert(at, (block, size));
    }

    /// Returns the block that was there, with its size.
    pub(super) fn remove(&mut self, class: Class, at: Use) -> Option<Item<B>> {
        let (queue, bytes) = self.of(class);
        let removed = queue.remove(&at)?;
        *bytes -= removed.1;
        Some(removed)
    }

    /// Returns the resident blocks with their sizes.
    pub(super) fn all(&self) -> impl Iterator<Item = &Item<B>> {
        let declared = self.unreferenced.values().chain(self.referenced.values());
        self.undeclared.values().chain(declared)
    }

    /// Adds the unreferenced blocks to `found`, the least recently used first.
    pub(super) fn unreferenced(&self, found: &mut Vec<B>) {
        let mut queue: Vec<_> = self.unreferenced.iter().collect();
        // Sorted already if ranks are counts: all of them are 0.
        queue.sort_unstable_by_key(|(at, _)| at.last);
        found.extend(queue.into_iter().map(|(_, (block, _))| block.clone()));
    }

    /// Chooses victims until they have `excess` bytes or more, and adds them to `victims`. Undeclared
    /// blocks are spared while those that are not victims have at most `floor` bytes, unless nothing
    /// else is left. A floor of 0 spares none, so it does not spare empty blocks either.
    ///
    /// Returns false if the block that comes in is the least at any step: `rival` is its rank, and no
    /// resident block was used later.
    pub(super) fn choose(
        &self,
        excess: u64,
        floor: u64,
        rival: Option<u32>,
        victims: &mut Vec<B>,
    ) -> bool {
        let mut heads = Heads {
            undeclared: self.undeclared.iter().peekable(),
            unreferenced: self.unreferenced.iter().peekable(),
            referenced: self.referenced.iter().peekable(),
        };
        let (mut undeclared_bytes, mut chosen_bytes) = (self.bytes.undeclared, 0);
        while chosen_bytes < excess {
            let is_spared = floor > 0 && undeclared_bytes <= floor;
            let Some((class, (at, (block, size)))) = heads.take_least(is_spared) else {
                return false;
            };
            if rival.is_some_and(|rank| rank < at.rank) {
                return false;
            }
            victims.push(block.clone());
            chosen_bytes += size;
            if class == Class::Undeclared {
                undeclared_bytes -= size;
            }
        }
        true
    }

    fn of(&mut self, class: Class) -> (&mut BTreeMap<Use, Item<B>>, &mut u64) {
        let bytes = &mut self.bytes;
        match class {
            Class::Undeclared => (&mut self.undeclared, &mut bytes.undeclared),
            Class::Unreferenced => (&mut self.unreferenced, &mut bytes.unreferenced),
            Class::Referenced => (&mut self.referenced, &mut bytes.referenced),
        }
    }
}

/// The blocks of each queue that are not victims yet.
struct Heads<'a, B> {
    undeclared: Queue<'a, B>,
    unreferenced: Queue<'a, B>,
    referenced: Queue<'a, B>,
}

type Queue<'a, B> = Peekable<btree_map::Iter<'a, Use, Item<B>>>;

impl<'a, B> Heads<'a, B> {
    /// Takes the least block. Takes an undeclared one only if there is no other, if those are spared.
    fn take_least(&mut self, is_spared: bool) -> Option<(Class, (&'a Use, &'a Item<B>))> {
        let at = |queue: &mut Queue<'a, B>| queue.peek().map(|(at, _)| **at);
        let undeclared = (Class::Undeclared, at(&mut self.undeclared));
        let unreferenced = (Class::Unreferenced, at(&mut self.unreferenced));
        let referenced = (Class::Referenced, at(&mut self.referenced));
        let least = |heads: &[(Class, Option<Use>)]| {
            let heads = heads
                .iter()
                .filter_map(|(class, at)| Some((at.as_ref()?, class)));
            heads.min_by_key(|(at, _)| **at).map(|(_, class)| *class)
        };
        let declared = least(&[unreferenced, referenced]).filter(|_| is_spared);
        let class = declared.or_else(|| least(&[undeclared, unreferenced, referenced]))?;
        let queue = match class {
            Class::Undeclared => &mut self.undeclared,
            Class::Unreferenced => &mut self.unreferenced,
            Class::Referenced => &mut self.referenced,
        };
        Some((class, queue.next()?))
    }
}
