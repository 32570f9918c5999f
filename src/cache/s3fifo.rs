//! S3-FIFO (Yang, Zhang, Qiu, Yue, Vigfusson: "FIFO queues are all you need for cache eviction",
//! SOSP 2023, algorithm 1), with weights in bytes. Pure.
//!
//! A new entry goes to the *small* queue, a tenth of the capacity. If it gets no further hits there, it is evicted
//! early and remembered in a *ghost* queue of hashes. Otherwise, or if it is inserted again while it is in the
//! ghost queue, it goes to the *main* queue, from which it is evicted only after a round without a hit.

use std::collections::hash_map::RandomState;
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};

/// The small queue's share of the capacity: one tenth, as in the paper.
const SMALL_SHARE: u64 = 10;
/// An entry of the small queue with more hits than this moves to the main queue.
const PROMOTE_ABOVE: u8 = 1;

struct QueueEntry<K> {
    key: K,
    id: u64,
    weight: u64,
    /// Remaining hits: the two-bit counter of S3-FIFO, decremented in each round of the main queue.
    credit: u8,
}

pub(super) struct S3Fifo<K> {
    small: VecDeque<QueueEntry<K>>,
    small_bytes: u64,
    small_bytes_max: u64,
    main: VecDeque<QueueEntry<K>>,
    ghost: VecDeque<u64>,
    /// The hashes in `ghost`.
    ghost_members: HashSet<u64>,
    hasher: RandomState,
}

impl<K: Eq + Hash + Clone> S3Fifo<K> {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        Self {
            small: VecDeque::new(),
            small_bytes: 0,
            small_bytes_max: capacity_bytes / SMALL_SHARE,
            main: VecDeque::new(),
            ghost: VecDeque::new(),
            ghost_members: HashSet::new(),
            hasher: RandomState::new(),
        }
    }

    /// Changes the capacity. The queues adapt to it with the next evictions.
    pub(super) fn set_capacity(&mut self, bytes: u64) {
        self.small_bytes_max = bytes / SMALL_SHARE;
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.small.shrink_to_fit();
        self.main.shrink_to_fit();
    }

    pub(super) fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    pub(super) fn insert(&mut self, key: K, id: u64, weight: u64) {
        let was_evicted = self.ghost_members.contains(&self.hasher.hash_one(&key));
        let entry = QueueEntry {
            key,
            id,
            weight,
            credit: 0,
        };
        if was_evicted {
            self.main.push_back(entry);
        } else {
            self.small_bytes += weight;
            self.small.push_back(entry);
        }
    }

    /// Removes the next key to evict, with the `id` of its insertion: see [`super::order::Order::evict`].
    pub(super) fn evict(
        &mut self,
        mut take_hits: impl FnMut(&K, u64) -> Option<u8>,
    ) -> Option<(K, u64)> {
        loop {
            let from_small = self.small_bytes > self.small_bytes_max || self.main.is_empty();
            if from_small && let Some(entry) = self.small.pop_front() {
                self.small_bytes -= entry.weight;
                match take_hits(&entry.key, entry.id) {
                    None => {}
                    Some(hits) if hits > PROMOTE_ABOVE => self.main.push_back(entry),
                    Some(_) => {
                        self.remember(&entry.key);
                        return Some((entry.key, entry.id));
                    }
                }
                continue;
            }
            let mut entry = self.main.pop_front()?;
            let Some(hits) = take_hits(&entry.key, entry.id) else {
                continue;
            };
            let credit = entry.credit.saturating_add(hits).min(super::HITS_MAX);
            if credit == 0 {
                return Some((entry.key, entry.id));
            }
            entry.credit = credit - 1;
            self.main.push_back(entry);
        }
    }

    pub(super) fn retain(&mut self, mut is_held: impl FnMut(&K, u64) -> bool) {
        self.small.retain(|entry| is_held(&entry.key, entry.id));
        self.main.retain(|entry| is_held(&entry.key, entry.id));
        self.small_bytes = self.small.iter().map(|entry| entry.weight).sum();
    }

    /// Adds a key to the ghost queue, which has as many keys as the main queue, as in the paper.
    fn remember(&mut self, key: &K) {
        let hash = self.hasher.hash_one(key);
        if self.ghost_members.insert(hash) {
            self.ghost.push_back(hash);
        }
        while self.ghost.len() > self.main.len().max(64)
            && let Some(oldest) = self.ghost.pop_front()
        {
            self.ghost_members.remove(&oldest);
        }
    }
}
