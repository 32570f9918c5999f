use super::*;
use proptest::prelude::*;

fn policies() -> [EvictionPolicy; 2] {
    [EvictionPolicy::S3Fifo, EvictionPolicy::Lru]
}

#[test]
fn holds_no_more_than_its_capacity() {
    for policy in policies() {
        let cache = Cache::new(policy, 100);
        for key in 0..1000_u32 {
            assert!(cache.insert(key, key, 7));
            assert!(cache.stats().bytes <= 100);
        }
        assert_eq!(cache.stats().entries, 14);
        assert_eq!(cache.stats().evictions, 1000 - 14);
    }
}

#[test]
fn a_value_heavier_than_the_cache_is_not_admitted_and_removes_the_old_one() {
    for policy in policies() {
        let cache = Cache::new(policy, 10);
        assert!(cache.insert("a", 1, 10));
        assert!(!cache.insert("a", 2, 11));
        assert_eq!(cache.get(&"a"), None);
        assert_eq!(cache.stats().bytes, 0);
    }
}

#[test]
fn a_scan_does_not_evict_frequently_used_entries() {
    let cache = Cache::new(EvictionPolicy::S3Fifo, 1000);
    for _ in 0..3 {
        for hot in 0..50_u32 {
            if cache.get(&hot).is_none() {
                cache.insert(hot, (), 10);
            }
        }
    }
    for cold in 1000..3000 {
        cache.insert(cold, (), 10);
    }
    let kept = (0..50).filter(|hot| cache.contains(hot)).count();
    assert!(
        kept >= 45,
        "only {kept} of 50 hot entries survived the scan"
    );
}

#[test]
fn lru_drops_the_least_recently_used() {
    let cache = Cache::new(EvictionPolicy::Lru, 3);
    for key in ["a", "b", "c"] {
        cache.insert(key, (), 1);
    }
    assert!(cache.get(&"a").is_some());
    cache.insert("d", (), 1);
    assert!(cache.contains(&"a") && !cache.contains(&"b"));
}

#[test]
fn filling_and_clearing_for_ever_keeps_the_order_small() {
    for policy in policies() {
        let cache = Cache::new(policy, 1 << 30);
        for round in 0..1000_u32 {
            for key in 0..20 {
                cache.insert((round, key), (), 1);
            }
            cache.remove_where(|_, ()| true);
        }
        assert_eq!(cache.stats().bytes, 0);
        let places = match &*cache.order.lock() {
            Order::S3Fifo(order) => order.len(),
            Order::Lru(order) => order.len(),
        };
        assert!(places < 200, "{places} places remembered for nothing");
    }
}

#[test]
fn a_smaller_capacity_evicts_at_once_and_in_order() {
    for policy in [EvictionPolicy::S3Fifo, EvictionPolicy::Lru] {
        let cache = Cache::new(policy, 10_000);
        for key in 0..10_000 {
            cache.insert(key, (), 1);
        }
        for key in 0..500 {
            // Twice, so that S3-FIFO keeps them.
            assert!(cache.get(&key).is_some() && cache.get(&key).is_some());
        }
        cache.set_capacity(1000);
        let stats = cache.stats();
        assert_eq!((stats.entries, stats.bytes), (1000, 1000));
        assert_eq!(stats.evictions, 9000);
        assert!((0..500).all(|key| cache.contains(&key)), "{policy:?}");
        assert!(!cache.insert(0, (), 1001), "heavier than the cache");
        cache.set_capacity(2000);
        for key in 20_000..22_000 {
            cache.insert(key, (), 1);
        }
        assert_eq!(cache.stats().bytes, 2000);
        cache.set_capacity(0);
        assert_eq!(cache.stats().entries, 0);
    }
}

#[test]
fn the_capacity_changes_beside_readers_and_writers() {
    let cache = Cache::new(EvictionPolicy::S3Fifo, 4096);
    std::thread::scope(|scope| {
        for first in 0..2 {
            let cache = &cache;
            scope.spawn(move || {
                for key in (first..100_000_u64).step_by(2) {
                    cache.insert(key, key, 1 + key % 3);
                    let near = key.saturating_sub(key % 64);
                    assert!(cache.get(&near).is_none_or(|value| value == near));
                }
            });
        }
        for round in 0..200 {
            cache.set_capacity([64, 4096, 1024][round % 3]);
        }
        cache.set_capacity(512);
    });
    let weights = || {
        let mut sum = 0;
        cache.for_each(|key, _| sum += 1 + key % 3);
        sum
    };
    assert!(cache.stats().bytes <= 512 && cache.stats().bytes > 400);
    assert_eq!(cache.stats().bytes, weights());
}

proptest! {
    /// After any operations, the byte count is exact and bounded, and a look-up returns the last inserted value.
    #[test]
    fn agrees_with_a_plain_map(
        lru in any::<bool>(),
        operations in prop::collection::vec((0_u8..4, 0_u8..20, 1_u64..30), 1..400),
    ) {
        let policy = if lru { EvictionPolicy::Lru } else { EvictionPolicy::S3Fifo };
        let cache = Cache::new(policy, 100);
        let mut model = std::collections::HashMap::new();
        let mut capacity = 100;
        for (step, (operation, key, weight)) in operations.into_iter().enumerate() {
            match operation {
                0 => {
                    cache.insert(key, step, weight);
                    model.insert(key, (step, weight));
                }
                1 => {
                    if let Some(value) = cache.get(&key) {
                        prop_assert_eq!(value, model[&key].0);
                    }
                }
                2 => {
                    cache.remove(&key);
                    model.remove(&key);
                }
                _ => {
                    capacity = weight * 5;
                    cache.set_capacity(capacity);
                }
            }
            let held: u64 = model
                .iter()
                .filter(|(key, _)| cache.contains(key))
                .map(|(_, &(_, weight))| weight)
                .sum();
            prop_assert_eq!(cache.stats().bytes, held);
            prop_assert!(held <= capacity);
        }
    }
}
