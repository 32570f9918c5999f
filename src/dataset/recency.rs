//! The order in which the items of all datasets on one home were read, for an LRU cache. Pure.
//!
//! Under the policy `lru` a home has no shares: the item that was read longest ago is evicted, from
//! whichever dataset, as in a general cache (Alluxio's default in `SiloD`, section 7). It exists
//! for comparison: a job that reads each item once per epoch evicts the items that it needs next.

use super::item::ItemId;
use lru::LruCache;

/// See the module.
#[derive(Debug)]
pub struct Recency {
    capacity: u64,
    used: u64,
    order: LruCache<(u64, ItemId), u32>,
}

impl Recency {
    /// Creates an empty order for a home of `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            order: LruCache::unbounded(),
        }
    }

    /// Records a read of an item of `dataset` with `len` bytes, which counts as held from now on.
    /// Returns the items that it evicts. Items larger than the cache are not counted.
    pub fn read(&mut self, dataset: u64, item: ItemId, len: u32) -> Vec<(u64, ItemId)> {
        let bytes = u64::from(len);
        if self.order.get(&(dataset, item)).is_some() || bytes > self.capacity {
            return Vec::new();
        }
        let gone = self.shrink_to(self.capacity - bytes);
        self.order.put((dataset, item), len);
        self.used += bytes;
        gone
    }

    /// Changes the capacity. Returns the items that no longer fit, which do not count as held from now on.
    pub fn set_capacity(&mut self, bytes: u64) -> Vec<(u64, ItemId)> {
        self.capacity = bytes;
        self.shrink_to(bytes)
    }

    fn shrink_to(&mut self, bytes: u64) -> Vec<(u64, ItemId)> {
        let mut gone = Vec::new();
        while self.used > bytes
            && let Some((oldest, len)) = self.order.pop_lru()
        {
            self.used -= u64::from(len);
            gone.push(oldest);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::slots::stripe_extent;
    use crate::read::FileRef;
    use copperfs_overlay::{ItemPath, Version};

    fn item(name: &str) -> ItemId {
        let path = ItemPath::parse(name.as_bytes()).unwrap();
        let file = FileRef::new(path, Version::from_data([1; 16]), 10, None);
        ItemId::of(&file, stripe_extent(10, 0))
    }

    #[test]
    fn the_least_recently_read_item_is_evicted() {
        let mut recency = Recency::new(30);
        for name in ["a", "b", "c"] {
            assert_eq!(recency.read(1, item(name), 10), []);
        }
        assert_eq!(recency.read(1, item("a"), 10), [], "a hit");
        assert_eq!(recency.read(2, item("d"), 10), [(1, item("b"))]);
        assert_eq!(
            recency.read(2, item("e"), 20),
            [(1, item("c")), (1, item("a"))]
        );
        assert_eq!(recency.read(2, item("f"), 31), [], "larger than all");
        assert_eq!(recency.set_capacity(20), [(2, item("d"))]);
        assert_eq!(recency.read(2, item("f"), 21), [], "larger than all");
    }

    /// The reason for uniform caches: with room for nine tenths of a dataset, epochs in random
    /// order hit much less than nine tenths of it.
    #[test]
    fn epochs_in_random_order_thrash() {
        const ITEMS: usize = 1000;
        let mut recency = Recency::new(900);
        let mut order: Vec<_> = (0..ITEMS).map(|number| item(&number.to_string())).collect();
        let mut random = 12_345_u64;
        let (mut hits, mut held) = (0, std::collections::HashSet::new());
        for epoch in 0..5 {
            for at in (1..ITEMS).rev() {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                order.swap(at, usize::try_from(random >> 33).unwrap() % (at + 1));
            }
            for item in &order {
                hits += usize::from(epoch > 0 && held.contains(item));
                for (_, gone) in recency.read(1, *item, 1) {
                    held.remove(&gone);
                }
                held.insert(*item);
            }
        }
        // A cache without eviction hits 3,600. The expected value here is about 2,700 (the
        // triangular law of `copperfs_policy::baselines`).
        assert!((2_300..3_300).contains(&hits), "{hits}");
    }
}
