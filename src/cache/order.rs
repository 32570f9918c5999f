//! The eviction order of a [`super::Cache`]: selects the next key. Pure.

use super::EvictionPolicy;
use super::s3fifo::S3Fifo;
use lru::LruCache;
use std::hash::Hash;

/// The state of one policy.
pub(super) enum Order<K> {
    S3Fifo(S3Fifo<K>),
    Lru(LruCache<K, u64>),
}

impl<K: Eq + Hash + Clone> Order<K> {
    pub(super) fn new(policy: EvictionPolicy, capacity_bytes: u64) -> Self {
        match policy {
            EvictionPolicy::S3Fifo => Self::S3Fifo(S3Fifo::new(capacity_bytes)),
            EvictionPolicy::Lru => Self::Lru(LruCache::unbounded()),
        }
    }

    /// Adds an entry, which may replace one under the same key.
    pub(super) fn insert(&mut self, key: K, id: u64, weight: u64) {
        match self {
            Self::S3Fifo(order) => order.insert(key, id, weight),
            Self::Lru(order) => {
                order.put(key, id);
            }
        }
    }

    /// Records a hit, for policies that move entries on a hit.
    pub(super) fn touch(&mut self, key: &K) {
        if let Self::Lru(order) = self {
            order.promote(key);
        }
    }

    /// Removes the next key to evict, with the `id` of its insertion. `take_hits` returns and resets the hits of an
    /// entry, or returns `None` if the entry is no longer in the cache.
    pub(super) fn evict(
        &mut self,
        mut take_hits: impl FnMut(&K, u64) -> Option<u8>,
    ) -> Option<(K, u64)> {
        match self {
            Self::S3Fifo(order) => order.evict(take_hits),
            Self::Lru(order) => loop {
                let (key, id) = order.pop_lru()?;
                if take_hits(&key, id).is_some() {
                    return Some((key, id));
                }
            },
        }
    }

    /// Adapts the queues to another capacity. Evicts nothing.
    pub(super) fn set_capacity(&mut self, bytes: u64) {
        if let Self::S3Fifo(order) = self {
            order.set_capacity(bytes);
        }
    }

    /// Frees memory that the queues no longer need.
    pub(super) fn shrink_to_fit(&mut self) {
        match self {
            Self::S3Fifo(order) => order.shrink_to_fit(),
            // Its table does not shrink.
            Self::Lru(_) => {}
        }
    }

    /// Removes outdated entries once they outnumber the current ones.
    pub(super) fn compact(&mut self, held: usize, mut is_held: impl FnMut(&K, u64) -> bool) {
        let bound = held.saturating_mul(2).saturating_add(64);
        match self {
            Self::S3Fifo(order) if order.len() > bound => order.retain(is_held),
            Self::Lru(order) if order.len() > bound => {
                let gone = order.iter().filter(|&(key, &id)| !is_held(key, id));
                let gone: Vec<K> = gone.map(|(key, _)| key.clone()).collect();
                for key in gone {
                    order.pop(&key);
                }
            }
            _ => {}
        }
    }
}
