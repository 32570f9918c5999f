//! Items kept by their counts, under arbitrary operations.

use super::super::{Admission, ItemCache, Reserved};
use crate::keep::{Everything, Item, Nothing};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Numbered {
    number: u8,
    version: u8,
}

impl Item for Numbered {
    fn key(&self) -> u64 {
        u64::from(self.number)
    }
}

fn item(number: u8) -> Numbered {
    Numbered { number, version: 0 }
}

/// A cache with room for `share` bytes that is kept by count.
fn cache(share: u64) -> ItemCache<Numbered> {
    let mut cache = ItemCache::new(1);
    cache.keep_by_count(true);
    assert_eq!(cache.set_share(share), []);
    cache
}

/// Reads an item of `len` bytes. Returns the evicted items, or `None` if it is not kept.
fn read(cache: &mut ItemCache<Numbered>, number: u8, len: u32) -> Option<Vec<u8>> {
    let mut evicted = Vec::new();
    let would = cache.would_admit(&item(number), len);
    let kept = match cache.admit(item(number), len, &mut evicted) {
        Admission::Held => {
            cache.touch(&item(number));
            true
        }
        Admission::Refused => false,
        Admission::Reserved(room) => {
            assert!(would);
            cache.commit(room, &mut evicted)
        }
    };
    assert!(
        kept || evicted.is_empty(),
        "nothing goes for an item that does not come in"
    );
    kept.then(|| evicted.iter().map(|item| item.number).collect())
}

#[test]
fn the_item_with_the_fewest_references_makes_room() {
    let mut cache = cache(100);
    // The floor is 20 bytes, so undeclared items have no part in this.
    for (number, count) in [(1, 3), (2, 1), (3, 2), (4, 2)] {
        cache.set_count(number.into(), count);
        assert_eq!(read(&mut cache, number, 25), Some(vec![]));
    }
    cache.set_count(5, 2);
    assert_eq!(read(&mut cache, 5, 25), Some(vec![2]));
    // Equal counts: the one that was read longest ago.
    assert_eq!(read(&mut cache, 3, 25), Some(vec![]));
    cache.set_count(6, 2);
    assert_eq!(read(&mut cache, 6, 25), Some(vec![4]));
    // It would be the least itself.
    cache.set_count(7, 1);
    assert_eq!(read(&mut cache, 7, 25), None);
    // Tasks have ended.
    cache.set_count(1, 0);
    assert_eq!(read(&mut cache, 7, 25), Some(vec![1]));
    assert_eq!(cache.stats().evicted, 3);
}

#[test]
fn items_of_readers_that_declare_nothing_keep_a_fifth() {
    let mut cache = cache(100);
    for number in 1..=10 {
        cache.set_count(number.into(), 5);
        assert_eq!(read(&mut cache, number, 10), Some(vec![]));
    }
    assert_eq!(
        read(&mut cache, 100, 10),
        None,
        "all others will be read again"
    );
    cache.set_count(1, 0);
    cache.set_count(2, 0);
    assert_eq!(read(&mut cache, 100, 10), Some(vec![1]));
    assert_eq!(read(&mut cache, 101, 10), Some(vec![2]));
    // Two of 10 bytes are the floor: they stay, although they have the fewest references.
    cache.set_count(11, 1);
    assert_eq!(read(&mut cache, 11, 10), None);
    cache.set_count(3, 0);
    assert_eq!(read(&mut cache, 11, 10), Some(vec![3]));
    // It would be the least: all others have references, or are spared.
    assert_eq!(read(&mut cache, 102, 10), None);
}

#[test]
fn a_smaller_share_evicts_by_count_and_flush_evicts_what_is_declared_and_done() {
    let mut cache = cache(100);
    for number in 1..=10 {
        cache.set_count(number.into(), u32::from(number % 5));
        assert_eq!(read(&mut cache, number, 10), Some(vec![]));
    }
    let gone = cache.set_share(60);
    let numbers: Vec<u8> = gone.iter().map(|item| item.number).collect();
    assert_eq!(numbers, [5, 10, 1, 6]);
    cache.set_count(7, 0);
    assert_eq!(cache.flush(), [item(7)]);
    assert_eq!(cache.flush(), []);
    assert_eq!(cache.stats().used, 50);
}

#[test]
fn the_counts_of_items_that_are_not_held_are_forgotten_with_their_last_reference() {
    let mut cache = cache(20);
    cache.set_count(1, 1);
    assert_eq!(read(&mut cache, 1, 20), Some(vec![]));
    cache.set_count(2, 4);
    assert_eq!(read(&mut cache, 2, 20), Some(vec![1]));
    cache.set_count(1, 0);
    let order = cache.order.as_ref().unwrap();
    assert!(order.is_declared(&2) && !order.is_declared(&1));
    // Held, and still declared when the last reference is gone.
    cache.set_count(2, 0);
    assert!(cache.order.as_ref().unwrap().is_declared(&2));
    assert!(cache.remove(&item(2)));
    assert!(!cache.order.as_ref().unwrap().is_declared(&2));
}

#[test]
fn room_in_flight_may_go_to_an_item_with_more_references() {
    let mut cache = cache(10);
    let room = |cache: &mut ItemCache<Numbered>, number| match cache.admit(
        item(number),
        10,
        &mut Vec::new(),
    ) {
        Admission::Reserved(room) => room,
        other => panic!("{other:?}"),
    };
    let first = room(&mut cache, 1);
    cache.set_count(2, 1);
    let second = room(&mut cache, 2);
    assert!(!cache.commit(first, &mut Vec::new()));
    assert!(cache.commit(second, &mut Vec::new()));
    assert!(cache.holds(&item(2)) && !cache.holds(&item(1)));
    // The other way round, the second has come in, and stays.
    cache.set_count(1, 2);
    let third = room(&mut cache, 1);
    cache.set_count(1, 0);
    cache.set_count(3, 1);
    let fourth = room(&mut cache, 3);
    cache.abort(fourth);
    assert!(
        cache.commit(third, &mut Vec::new()),
        "the room is free again"
    );
    assert_eq!((cache.stats().used, cache.stats().reserved), (10, 0));
}

#[derive(Clone, Debug)]
enum Operation {
    Admit(u8, u8, u32),
    /// The flight at this index ends. Does its item arrive?
    Land(prop::sample::Index, bool),
    Count(u8, u32),
    Touch(u8),
    Remove(u8, u8),
    Share(u64),
    Strays(u8),
    ByCount(bool),
    /// Keeps nothing for a moment.
    Rule,
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Operation>> {
    let step = prop_oneof![
        8 => (0_u8..20, 0_u8..2, 1_u32..50).prop_map(|(n, v, len)| Operation::Admit(n, v, len)),
        8 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(at, ok)| Operation::Land(at, ok)),
        6 => (0_u8..20, 0_u32..4).prop_map(|(n, count)| Operation::Count(n, count)),
        2 => (0_u8..20).prop_map(Operation::Touch),
        1 => (0_u8..20, 0_u8..2).prop_map(|(n, v)| Operation::Remove(n, v)),
        1 => (0_u64..400).prop_map(Operation::Share),
        1 => (0_u8..4).prop_map(Operation::Strays),
        1 => any::<bool>().prop_map(Operation::ByCount),
        1 => Just(Operation::Rule),
        1 => Just(Operation::Flush),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Compared with a map of the items held.
    #[test]
    fn what_is_held_is_in_the_order_and_within_the_share(all in steps()) {
        let mut cache = cache(200);
        let mut held: BTreeMap<u64, (Numbered, u32)> = BTreeMap::new();
        let mut rooms: Vec<Reserved<Numbered>> = Vec::new();
        for step in all {
            let mut evicted = Vec::new();
            match step {
                Operation::Admit(number, version, len) => {
                    let new = Numbered { number, version };
                    let would = cache.would_admit(&new, len);
                    let has_strays = !cache.strays.is_empty();
                    let other_version = held.get(&new.key()).is_some_and(|(held, _)| *held != new);
                    match cache.admit(new, len, &mut evicted) {
                        Admission::Reserved(room) => {
                            prop_assert!(would);
                            rooms.push(room);
                        }
                        _ => prop_assert!(!would || other_version || has_strays),
                    }
                }
                Operation::Land(at, arrives) if !rooms.is_empty() => {
                    let room = rooms.swap_remove(at.index(rooms.len()));
                    let (item, len) = (room.item, room.len);
                    if arrives {
                        let was_held = cache.holds(&item);
                        if cache.commit(room, &mut evicted) && !was_held {
                            prop_assert!(!evicted.contains(&item));
                            for gone in evicted.drain(..) {
                                held.remove(&gone.key());
                            }
                            held.insert(item.key(), (item, len));
                        }
                    } else {
                        cache.abort(room);
                    }
                }
                Operation::Land(..) => {}
                Operation::Count(number, count) => cache.set_count(number.into(), count),
                Operation::Touch(number) => cache.touch(&item(number)),
                Operation::Remove(number, version) => {
                    let gone = Numbered { number, version };
                    evicted.extend(cache.remove(&gone).then_some(gone));
                }
                Operation::Share(bytes) => evicted = cache.set_share(bytes),
                Operation::Strays(by) => cache.mark_strays(|item| item.number % 4 != by),
                Operation::ByCount(by_count) => cache.keep_by_count(by_count),
                Operation::Rule => {
                    evicted = cache.set_rule(Box::new(Nothing));
                    prop_assert_eq!(cache.set_rule(Box::new(Everything)), []);
                }
                Operation::Flush => evicted = cache.flush(),
            }
            for gone in evicted {
                prop_assert_eq!(held.remove(&gone.key()).map(|(item, _)| item), Some(gone));
            }
            let stats = cache.stats();
            prop_assert!(stats.used <= stats.share);
            prop_assert_eq!(stats.used, held.values().map(|(_, len)| u64::from(*len)).sum::<u64>());
            prop_assert!(held.values().all(|(item, _)| cache.holds(item)));
            prop_assert_eq!(stats.items, held.len() as u64);
            prop_assert_eq!(stats.reserved, rooms.iter().map(|room| u64::from(room.len)).sum::<u64>());
            if let Some(order) = &cache.order {
                prop_assert!(order.bytes().total() <= stats.share);
                let sizes: BTreeMap<u64, u64> = order.residents().map(|(key, size)| (*key, size)).collect();
                for (key, (_, len)) in &held {
                    prop_assert_eq!(sizes.get(key), Some(&u64::from(*len)));
                }
                // Everything else is room in flight.
                let in_flight = |key: &u64| rooms.iter().any(|room| room.item.key() == *key);
                prop_assert!(sizes.keys().all(|key| held.contains_key(key) || in_flight(key)));
            }
        }
    }
}
