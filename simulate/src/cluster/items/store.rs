//! Real caches of items: uniform ones with random eviction, and an LRU list.

use crate::random::Random;

/// The position of an item that is not held.
const NONE: u32 = u32::MAX;

/// A uniform cache. It admits items up to its budget, and evicts only when that shrinks.
#[derive(Debug, Clone)]
pub(super) struct Uniform {
    /// The position of each item in `held`.
    place: Vec<u32>,
    held: Vec<u32>,
    pub(super) budget: usize,
}

impl Uniform {
    pub(super) fn new(items: usize) -> Self {
        Self {
            place: vec![NONE; items],
            held: Vec::new(),
            budget: 0,
        }
    }

    pub(super) fn has(&self, item: u32) -> bool {
        self.place[item as usize] != NONE
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn insert(&mut self, item: u32) {
        if self.held.len() < self.budget && !self.has(item) {
            self.place[item as usize] = u32::try_from(self.held.len()).unwrap_or(NONE);
            self.held.push(item);
        }
    }

    pub(super) fn set_budget(&mut self, budget: usize, random: &mut Random) {
        self.budget = budget;
        while self.held.len() > budget {
            let at = super::below(random, self.held.len());
            let gone = self.held.swap_remove(at);
            self.place[gone as usize] = NONE;
            if let Some(&moved) = self.held.get(at) {
                self.place[moved as usize] = u32::try_from(at).unwrap_or(NONE);
            }
        }
    }
}

/// One LRU list over the items of all datasets.
#[derive(Debug, Clone)]
pub(super) struct Lru {
    /// The neighbours of each item in a ring, towards the newest and the oldest. The last entry is
    /// the ring's head.
    newer: Vec<u32>,
    older: Vec<u32>,
    len: usize,
    capacity: usize,
}

impl Lru {
    pub(super) fn new(items: u32, capacity: usize) -> Self {
        let head = items as usize;
        let mut ring = vec![NONE; head + 1];
        ring[head] = items;
        Self {
            newer: ring.clone(),
            older: ring,
            len: 0,
            capacity,
        }
    }

    pub(super) fn has(&self, item: u32) -> bool {
        self.newer[item as usize] != NONE
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Makes an item the newest. If it is new and the cache is full, the oldest one is evicted.
    pub(super) fn touch(&mut self, item: u32) {
        if self.has(item) {
            self.unlink(item);
        } else if self.len == self.capacity {
            let oldest = self.newer[self.head() as usize];
            self.unlink(oldest);
        }
        let head = self.head();
        self.join(self.older[head as usize], item);
        self.join(item, head);
        self.len += 1;
    }

    #[expect(clippy::cast_possible_truncation, reason = "made from a u32")]
    fn head(&self) -> u32 {
        (self.newer.len() - 1) as u32
    }

    fn join(&mut self, older: u32, newer: u32) {
        self.newer[older as usize] = newer;
        self.older[newer as usize] = older;
    }

    fn unlink(&mut self, item: u32) {
        self.join(self.older[item as usize], self.newer[item as usize]);
        self.newer[item as usize] = NONE;
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes() {
        let mut lru = Lru::new(5, 3);
        for item in [0, 1, 2, 0, 3] {
            lru.touch(item);
        }
        assert_eq!(
            [0, 1, 2, 3, 4].map(|item| lru.has(item)),
            [true, false, true, true, false]
        );
        lru.touch(4);
        assert!(!lru.has(2) && lru.has(0) && lru.len() == 3);
    }

    #[test]
    fn a_uniform_cache_holds_its_budget_and_evicts_at_random() {
        let mut random = Random::new(1);
        let mut cache = Uniform::new(1000);
        cache.set_budget(600, &mut random);
        (0..1000).for_each(|item| cache.insert(item));
        assert!(cache.len() == 600 && cache.has(599) && !cache.has(600));
        cache.set_budget(300, &mut random);
        let kept = (0..1000).filter(|&item| cache.has(item)).count();
        let first_half = (0..300).filter(|&item| cache.has(item)).count();
        assert!(kept == 300 && cache.len() == 300);
        assert!((120..180).contains(&first_half), "{first_half}");
    }
}
