//! Which items of all datasets on one home were read when: the order of an LRU cache. Pure.
//!
//! Under the policy `lru` a home has no shares: what was read longest ago goes, whosever it is, as in a
//! general cache (Alluxio's default in `SiloD`, section 7). It is there to be measured against: a job
//! that reads each item once an epoch evicts what it will want next.

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
    /// Of a home of `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            order: LruCache::unbounded(),
        }
    }

    /// An item of `dataset` is read: `len` bytes, counted as held from now on. Gives what goes for it.
    /// What is larger than the cache is not counted.
    pub fn read(&mut self, dataset: u64, item: ItemId, len: u32) -> Vec<(u64, ItemId)> {
        let bytes = u64::from(len);
        if self.order.get(&(dataset, item)).is_some() || bytes > self.capacity {
            return Vec::new();
        }
        let mut gone = Vec::new();
        while self.used + bytes > self.capacity {
            let Some((oldest, len)) = self.order.pop_lru() else {
                break;
            };
            self.used -= u64::from(len);
            gone.push(oldest);
        }
        self.order.put((dataset, item), len);
        self.used += bytes;
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::FileRef;
    use copperfs_overlay::{ItemPath, Version};

    fn item(name: &str) -> ItemId {
        let path = ItemPath::parse(name.as_bytes()).unwrap();
        ItemId::of(
            &FileRef::new(path, Version::from_data([1; 16]), 10, None),
            0,
        )
    }

    #[test]
    fn what_was_read_longest_ago_goes() {
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
    }

    /// The reason why training wants another rule: with room for nine tenths of a dataset, epochs in
    /// random order hit much less than nine tenths of it.
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
        // One without eviction hits 3,600; the expected value here is some 2,700 (the triangular law
        // of `allocator::baselines`).
        assert!((2_300..3_300).contains(&hits), "{hits}");
    }
}
