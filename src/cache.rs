//! A bounded cache: weighted in bytes, with counters and a choice of eviction policies.
//!
//! Purpose: a node has one [`Cache`] each for file data, attributes and listings, as in Copper (section IV),
//! which has neither bounds nor eviction. It does no I/O and knows nothing of files: the caller defines keys and
//! values.
//!
//! Invariant: the total weight of the entries never exceeds the capacity, except while [`Cache::set_capacity`] evicts
//! what no longer fits; it does not grow then. A value that is heavier than the capacity is not admitted; its caller
//! can still use it.

mod order;
mod s3fifo;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use order::Order;
use parking_lot::{Mutex, MutexGuard};
use std::hash::Hash;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// How a full cache selects the entry to evict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EvictionPolicy {
    /// S3-FIFO (Yang et al., SOSP 2023): three FIFO queues. Resists scans; a hit takes no lock.
    #[default]
    S3Fifo,
    /// Least recently used. A hit takes a lock to move the entry.
    Lru,
}

/// The counters of a cache. Only [`Cache::get`], [`Cache::count_hit`] and [`Cache::count_miss`] change `hits` and
/// `misses`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Current entries.
    pub entries: u64,
    /// Sum of their weights in bytes.
    pub bytes: u64,
    /// Look-ups that were answered from the cache.
    pub hits: u64,
    /// Look-ups that were not.
    pub misses: u64,
    /// Entries evicted because the cache was full (not those removed by `clear`).
    pub evictions: u64,
}

/// How full a cache is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// The bytes that it holds.
    pub held: u64,
    /// The bytes that it may hold.
    pub capacity: u64,
}

/// Entries that [`Cache::set_capacity`] evicts before it lets others take the lock: less than a millisecond.
const EVICTED_PER_STEP: usize = 256;

/// The maximum hit count of an entry: S3-FIFO needs no more than two bits.
const HITS_MAX: u8 = 3;

struct Slot<V> {
    value: V,
    weight: u64,
    /// Distinguishes this insertion from an earlier one under the same key, which may still be in the eviction
    /// order.
    id: u64,
    hits: AtomicU8,
}

/// A concurrent map with a byte bound.
///
/// Locks: `order` (the eviction order) is taken before a shard of `slots`, never after. A hit under
/// S3-FIFO takes only a shard's read lock.
pub struct Cache<K, V> {
    slots: DashMap<K, Slot<V>>,
    order: Mutex<Order<K>>,
    policy: EvictionPolicy,
    /// Changed under the lock of `order`.
    capacity_bytes: AtomicU64,
    bytes: AtomicU64,
    ids: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
}

impl<K, V> Cache<K, V>
where
    K: Eq + Hash + Clone,
    V: Clone,
{
    /// An empty cache that holds at most `capacity_bytes` of weight.
    #[must_use]
    pub fn new(policy: EvictionPolicy, capacity_bytes: u64) -> Self {
        Self {
            slots: DashMap::new(),
            order: Mutex::new(Order::new(policy, capacity_bytes)),
            policy,
            capacity_bytes: AtomicU64::new(capacity_bytes),
            bytes: AtomicU64::new(0),
            ids: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    /// The value under `key`, counted as a hit if there is one. A miss is not counted here, because one request may
    /// involve several look-ups: see [`Cache::count_miss`].
    pub fn get(&self, key: &K) -> Option<V> {
        if self.policy == EvictionPolicy::Lru {
            self.order.lock().touch(key);
        }
        let slot = self.slots.get(key)?;
        self.count_hit();
        // Not atomic as a whole: the count is an estimate, and may miss a concurrent hit.
        let hits = slot.hits.load(Ordering::Relaxed);
        if hits < HITS_MAX {
            slot.hits.store(hits + 1, Ordering::Relaxed);
        }
        Some(slot.value.clone())
    }

    /// The value under `key`, without counting or touching it.
    pub fn peek(&self, key: &K) -> Option<V> {
        self.slots.get(key).map(|slot| slot.value.clone())
    }

    /// Whether there is a value under `key`, without counting or touching it.
    pub fn contains(&self, key: &K) -> bool {
        self.slots.contains_key(key)
    }

    /// Counts a look-up that could have been answered from this cache as a hit.
    pub fn count_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a miss.
    pub fn count_miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Inserts `value` of `weight` bytes under `key`, replacing the current value, and evicts others until it fits.
    /// Returns whether it was admitted: a value heavier than the whole cache is not.
    pub fn insert(&self, key: K, value: V, weight: u64) -> bool {
        self.insert_evicting(key, value, weight, |_, _| {})
    }

    /// Like [`Cache::insert`]. Calls `evicted` with each evicted entry while the order is locked, so it must not use
    /// this cache.
    pub fn insert_evicting(
        &self,
        key: K,
        value: V,
        weight: u64,
        evicted: impl FnMut(K, V),
    ) -> bool {
        if weight > self.capacity_bytes() {
            self.remove(&key);
            return false;
        }
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let slot = Slot {
            value,
            weight,
            id,
            hits: AtomicU8::new(0),
        };
        let mut order = self.order.lock();
        // What is too much since a change of the capacity is left to `set_capacity`, which does it in steps.
        let bytes_max = (self.capacity_bytes()).max(self.bytes.load(Ordering::Relaxed));
        match self.slots.entry(key.clone()) {
            Entry::Occupied(mut entry) => {
                let old = entry.insert(slot);
                self.bytes.fetch_sub(old.weight, Ordering::Relaxed);
            }
            Entry::Vacant(entry) => drop(entry.insert(slot)),
        }
        self.bytes.fetch_add(weight, Ordering::Relaxed);
        order.insert(key, id, weight);
        self.evict_to(&mut order, bytes_max, usize::MAX, evicted);
        order.compact(self.slots.len(), |key, id| {
            self.slots.get(key).is_some_and(|slot| slot.id == id)
        });
        true
    }

    /// Evicts entries until the others weigh at most `bytes`. `evicted` is used as in [`Cache::insert_evicting`].
    pub fn shrink_to(&self, bytes: u64, evicted: impl FnMut(K, V)) {
        self.evict_to(&mut self.order.lock(), bytes, usize::MAX, evicted);
    }

    /// Changes the capacity to `bytes`. If the entries weigh more, evicts in the order of the policy until they fit.
    /// Releases the lock again and again meanwhile, so that others wait for a few evictions only. Memory that the
    /// tables no longer need is freed.
    pub fn set_capacity(&self, bytes: u64) {
        let shrinks = {
            let mut order = self.order.lock();
            order.set_capacity(bytes);
            self.capacity_bytes.swap(bytes, Ordering::Relaxed) > bytes
        };
        if !shrinks {
            return;
        }
        let mut gone = Vec::with_capacity(EVICTED_PER_STEP);
        loop {
            let mut order = self.order.lock();
            // Read in each step, because another call may have changed it since.
            let bytes = self.capacity_bytes();
            self.evict_to(&mut order, bytes, EVICTED_PER_STEP, |_, value| {
                gone.push(value);
            });
            MutexGuard::unlock_fair(order);
            // Without the lock, because it takes time to free large values.
            if gone.drain(..).count() < EVICTED_PER_STEP {
                break;
            }
        }
        self.order.lock().shrink_to_fit();
        self.slots.shrink_to_fit();
    }

    /// Evicts entries until the others weigh at most `bytes`, but `count_max` entries at most.
    fn evict_to(
        &self,
        order: &mut Order<K>,
        bytes: u64,
        mut count_max: usize,
        mut evicted: impl FnMut(K, V),
    ) {
        let mut held = self.bytes.load(Ordering::Relaxed);
        while held > bytes && count_max > 0 {
            let victim = order.evict(|key, id| match self.slots.get(key) {
                Some(slot) if slot.id == id => Some(slot.hits.swap(0, Ordering::Relaxed)),
                _ => None,
            });
            let Some((key, id)) = victim else { break };
            // The entry may have been replaced since it was queued.
            if let Some((key, old)) = self.slots.remove_if(&key, |_, slot| slot.id == id) {
                held = self.bytes.fetch_sub(old.weight, Ordering::Relaxed) - old.weight;
                self.evictions.fetch_add(1, Ordering::Relaxed);
                count_max -= 1;
                evicted(key, old.value);
            }
        }
    }

    /// Removes the value under `key`.
    pub fn remove(&self, key: &K) {
        drop(self.take(key));
    }

    /// Removes and returns the value under `key`.
    pub fn take(&self, key: &K) -> Option<V> {
        let _order = self.order.lock();
        let (_, old) = self.slots.remove(key)?;
        self.bytes.fetch_sub(old.weight, Ordering::Relaxed);
        Some(old.value)
    }

    /// Changes the value under `key` in place; its weight stays the same.
    pub fn update(&self, key: &K, change: impl FnOnce(&mut V)) {
        if let Some(mut slot) = self.slots.get_mut(key) {
            change(&mut slot.value);
        }
    }

    /// Calls `each` with every entry, in no order, without counting or touching them. It must not use
    /// this cache.
    pub fn for_each(&self, mut each: impl FnMut(&K, &V)) {
        for slot in &self.slots {
            each(slot.key(), &slot.value);
        }
    }

    /// The first result of `pick` for any entry, in no order, without counting or touching them. Examines all entries
    /// if `pick` returns `None`. It must not use this cache.
    pub fn search<R>(&self, mut pick: impl FnMut(&K, &V) -> Option<R>) -> Option<R> {
        (self.slots.iter()).find_map(|slot| pick(slot.key(), &slot.value))
    }

    /// Whether `is` returns true for any entry, in no order, without counting or touching them. It must not use this
    /// cache.
    pub fn any(&self, mut is: impl FnMut(&K, &V) -> bool) -> bool {
        self.search(|key, value| is(key, value).then_some(()))
            .is_some()
    }

    /// Removes every entry for which `condemned` returns true.
    pub fn remove_where(&self, mut condemned: impl FnMut(&K, &V) -> bool) {
        let _order = self.order.lock();
        self.slots.retain(|key, slot| {
            let keep = !condemned(key, &slot.value);
            if !keep {
                self.bytes.fetch_sub(slot.weight, Ordering::Relaxed);
            }
            keep
        });
    }

    /// The capacity in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    /// How full it is.
    #[must_use]
    pub fn fill(&self) -> Fill {
        Fill {
            held: self.bytes.load(Ordering::Relaxed),
            capacity: self.capacity_bytes(),
        }
    }

    /// The current counters.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            entries: self.slots.len() as u64,
            bytes: self.bytes.load(Ordering::Relaxed),
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests;
