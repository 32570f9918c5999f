//! The cache under arbitrary operations.

use super::super::Nothing;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Numbered {
    number: u32,
    version: u8,
}

impl Item for Numbered {
    fn key(&self) -> u64 {
        mix64(u64::from(self.number))
    }
}

impl Numbered {
    fn slot(&self) -> u16 {
        u16::try_from(self.key() % 16_384).unwrap()
    }
}

/// Keeps the items with even numbers.
#[derive(Debug)]
struct Even;

impl Rule<Numbered> for Even {
    fn keeps(&self, item: &Numbered) -> bool {
        item.number.is_multiple_of(2)
    }
}

fn item(number: u32, version: u8) -> Numbered {
    Numbered { number, version }
}

fn admitted(cache: &mut ItemCache<Numbered>, item: Numbered, len: u32) -> bool {
    match cache.admit(item, len, &mut Vec::new()) {
        Admission::Reserved(room) => cache.commit(room, &mut Vec::new()),
        Admission::Held => true,
        Admission::Refused => false,
    }
}

fn full(items: u32, seed: u64) -> ItemCache<Numbered> {
    let mut cache = ItemCache::new(seed);
    assert_eq!(cache.set_share(u64::from(items) * 10), []);
    assert!((0..items).all(|number| admitted(&mut cache, item(number, 0), 10)));
    cache
}

#[test]
fn a_full_budget_holds_everything_and_a_smaller_one_the_first_items() {
    let cache = full(1000, 1);
    assert!((0..1000).all(|number| cache.holds(&item(number, 0))));
    let mut cache = ItemCache::new(1);
    cache.set_share(5_005);
    for _epoch in 0..3 {
        for number in 0..1000 {
            let kept = admitted(&mut cache, item(number, 0), 10);
            assert_eq!(kept, number < 500);
        }
    }
    assert_eq!(cache.stats().evicted, 0);
}

#[test]
fn every_item_is_evicted_with_equal_probability() {
    // 200 items, half of them evicted, 400 times. Each is evicted about 200 times.
    let (items, rounds) = (200_u32, 400_u32);
    let mut gone = vec![0_u32; items as usize];
    for seed in 0..u64::from(rounds) {
        let mut cache = full(items, seed);
        let evicted = cache.set_share(u64::from(items) * 5);
        assert_eq!(evicted.len(), items as usize / 2);
        for number in 0..items {
            gone[number as usize] += u32::from(evicted.contains(&item(number, 0)));
        }
    }
    let due = f64::from(rounds) / 2.0;
    // Each count has variance rounds / 4, a little less than independent draws would give.
    let chi: f64 = gone
        .iter()
        .map(|count| (f64::from(*count) - due).powi(2) / (due / 2.0))
        .sum();
    // 199 degrees of freedom: between 140 and 270 in 999 of 1,000 cases.
    assert!((140.0..270.0).contains(&chi), "{chi}");
}

#[test]
fn evictions_depend_on_the_seed_only() {
    let evicted = |seed| full(100, seed).set_share(500);
    assert_eq!(evicted(7), evicted(7));
    assert_ne!(evicted(7), evicted(8));
}

#[test]
fn strays_are_evicted_first_and_make_room() {
    let mut cache = full(100, 3);
    let away = |number: u32| item(number, 0).slot().is_multiple_of(3);
    let strays = (0..100).filter(|number| away(*number)).count();
    assert!(strays > 15);
    cache.mark_strays(|item| !item.slot().is_multiple_of(3));
    let evicted = cache.set_share(900);
    assert_eq!(evicted.len(), 10);
    assert!(evicted.iter().all(|item| item.slot().is_multiple_of(3)));
    // The share is full, but each stray makes room for one item.
    let taken = (1000..2000).filter(|number| {
        let new = item(*number, 0);
        !new.slot().is_multiple_of(3) && admitted(&mut cache, new, 10)
    });
    assert_eq!(taken.count(), strays - 10);
    assert_eq!(cache.stats().used, 900);
}

#[test]
fn a_new_version_replaces_the_old_one_even_if_full() {
    let mut cache = full(10, 4);
    let mut evicted = Vec::new();
    let Admission::Reserved(room) = cache.admit(item(3, 1), 10, &mut evicted) else {
        panic!("there is room: the old version goes");
    };
    assert_eq!(evicted, [item(3, 0)]);
    evicted.clear();
    assert!(cache.commit(room, &mut evicted) && evicted.is_empty());
    assert!(cache.holds(&item(3, 1)) && !cache.holds(&item(3, 0)));
    assert_eq!(cache.stats().items, 10);
}

#[test]
fn two_versions_in_flight_end_as_one() {
    let mut cache = ItemCache::new(0);
    cache.set_share(100);
    let rooms = [0, 1].map(|version| cache.admit(item(1, version), 10, &mut Vec::new()));
    for (version, room) in (0..).zip(rooms) {
        let Admission::Reserved(room) = room else {
            panic!("there is room for both");
        };
        let mut replaced = Vec::new();
        assert!(cache.commit(room, &mut replaced));
        let older = (version == 1).then(|| item(1, 0));
        assert_eq!(replaced, Vec::from_iter(older));
    }
    assert_eq!((cache.stats().used, cache.stats().items), (10, 1));
}

#[test]
fn one_version_that_arrives_twice_is_held_once_and_replaces_nothing() {
    let mut cache = ItemCache::new(0);
    cache.set_share(100);
    for room in [(); 2].map(|()| cache.admit(item(1, 0), 10, &mut Vec::new())) {
        let Admission::Reserved(room) = room else {
            panic!("there is room for both");
        };
        let mut replaced = Vec::new();
        assert!(cache.commit(room, &mut replaced) && replaced.is_empty());
    }
    let stats = cache.stats();
    assert_eq!((stats.used, stats.reserved, stats.items), (10, 0, 1));
}

#[test]
fn an_item_that_arrives_after_the_share_shrank_is_not_kept() {
    let mut cache = full(10, 5);
    cache.set_share(110);
    let Admission::Reserved(room) = cache.admit(item(99, 0), 10, &mut Vec::new()) else {
        panic!("there is room");
    };
    assert_eq!(cache.set_share(100), []);
    assert!(!cache.commit(room, &mut Vec::new()));
    assert_eq!((cache.stats().used, cache.stats().reserved), (100, 0));
}

#[test]
fn restored_items_stay_within_the_share() {
    let mut cache = ItemCache::new(6);
    cache.set_share(55);
    let kept = (0..10).map(|number| (item(number, 0), 10));
    assert_eq!(cache.restore(kept).len(), 5);
    assert_eq!((cache.stats().used, cache.stats().items), (50, 5));
    let mut cache = ItemCache::new(6);
    cache.set_share(100);
    let versions = [0, 1].map(|version| (item(1, version), 10));
    assert_eq!(cache.restore(versions), [item(1, 0)]);
}

#[test]
fn a_new_rule_evicts_at_once_and_admits_by_itself() {
    let mut cache = full(10, 7);
    cache.set_share(1000);
    let Admission::Reserved(room) = cache.admit(item(11, 0), 10, &mut Vec::new()) else {
        panic!("there is room");
    };
    let gone = cache.set_rule(Box::new(Even));
    let numbers: Vec<u32> = gone.iter().map(|item| item.number).collect();
    assert_eq!(numbers, [1, 3, 5, 7, 9]);
    assert!(
        !cache.commit(room, &mut Vec::new()),
        "it arrives under the new rule"
    );
    assert!(!admitted(&mut cache, item(13, 0), 10) && admitted(&mut cache, item(12, 0), 10));
    let found = [(item(20, 0), 10), (item(21, 0), 10)];
    assert_eq!(cache.restore(found), [item(21, 0)]);
    let stats = cache.stats();
    assert_eq!(
        (stats.used, stats.reserved, stats.items, stats.evicted),
        (70, 0, 7, 5)
    );
    assert_eq!(cache.set_rule(Box::new(Nothing)).len(), 7);
    assert!(!admitted(&mut cache, item(2, 0), 10));
    assert_eq!((cache.stats().used, cache.stats().items), (0, 0));
    assert_eq!(cache.set_rule(Box::new(Everything)), []);
    assert!(admitted(&mut cache, item(2, 0), 10));
}

#[derive(Clone, Debug)]
enum Operation {
    Admit(u32, u8, u32),
    /// The flight at this index ends. Does its item arrive?
    Land(prop::sample::Index, bool),
    Remove(u32, u8),
    Share(u64),
    Place(u16),
    /// Keep even numbers only, or everything.
    Rule(bool),
}

fn steps() -> impl Strategy<Value = Vec<Operation>> {
    let step = prop_oneof![
        8 => (0_u32..40, 0_u8..2, 1_u32..50).prop_map(|(n, v, len)| Operation::Admit(n, v, len)),
        8 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(at, ok)| Operation::Land(at, ok)),
        1 => (0_u32..40, 0_u8..2).prop_map(|(n, v)| Operation::Remove(n, v)),
        1 => (0_u64..800).prop_map(Operation::Share),
        1 => (1_u16..5).prop_map(Operation::Place),
        1 => any::<bool>().prop_map(Operation::Rule),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Compared with a simple map.
    #[test]
    fn the_share_is_never_exceeded_and_every_eviction_has_a_reason(all in steps()) {
        let mut cache = ItemCache::new(9);
        let mut held: BTreeMap<u64, (Numbered, u32)> = BTreeMap::new();
        let mut rooms: Vec<Reserved<Numbered>> = Vec::new();
        let mut modulus = u16::MAX;
        let mut even = false;
        cache.set_share(400);
        for step in all {
            let (before, changes) = (held.clone(), cache.changes());
            match step {
                Operation::Admit(number, version, len) => {
                    let new = item(number, version);
                    let mut evicted = Vec::new();
                    let admission = cache.admit(new, len, &mut evicted);
                    for gone in evicted {
                        held.remove(&gone.key());
                        prop_assert!(gone.key() == new.key() || gone.slot() % modulus == 0);
                    }
                    if let Admission::Reserved(room) = admission {
                        rooms.push(room);
                        let stats = cache.stats();
                        prop_assert!(stats.used + stats.reserved <= stats.share);
                    }
                }
                Operation::Land(at, arrives) if !rooms.is_empty() => {
                    let room = rooms.swap_remove(at.index(rooms.len()));
                    let (item, len) = (room.item, room.len);
                    if arrives {
                        let was = held.get(&item.key()).map(|(item, _)| *item);
                        let mut replaced = Vec::new();
                        let kept = cache.commit(room, &mut replaced);
                        if was == Some(item) {
                            prop_assert!(kept && replaced.is_empty());
                        } else {
                            prop_assert_eq!(replaced, Vec::from_iter(was));
                            held.remove(&item.key());
                            if kept {
                                held.insert(item.key(), (item, len));
                            }
                        }
                    } else {
                        cache.abort(room);
                    }
                }
                Operation::Land(..) => {}
                Operation::Remove(number, version) => {
                    let gone = item(number, version);
                    let was = held.get(&gone.key()).is_some_and(|(held, _)| *held == gone);
                    prop_assert_eq!(cache.remove(&gone), was);
                    if was {
                        held.remove(&gone.key());
                    }
                }
                Operation::Share(bytes) => {
                    let used = cache.stats().used;
                    let evicted = cache.set_share(bytes);
                    prop_assert!(evicted.is_empty() || used > bytes);
                    for gone in evicted {
                        prop_assert_eq!(held.remove(&gone.key()).map(|(item, _)| item), Some(gone));
                    }
                }
                Operation::Place(by) => {
                    modulus = by;
                    cache.mark_strays(|item| item.slot() % by != 0);
                }
                Operation::Rule(only_even) => {
                    even = only_even;
                    let rule: Box<dyn Rule<Numbered>> = match even {
                        true => Box::new(Even),
                        false => Box::new(Everything),
                    };
                    for gone in cache.set_rule(rule) {
                        prop_assert!(even && gone.number % 2 == 1);
                        prop_assert_eq!(held.remove(&gone.key()).map(|(item, _)| item), Some(gone));
                    }
                }
            }
            prop_assert!(!even || held.values().all(|(item, _)| item.number % 2 == 0));
            let changed = held != before;
            prop_assert!(!changed || cache.changes() > changes);
            let stats = cache.stats();
            prop_assert!(stats.used <= stats.share);
            prop_assert_eq!(stats.used, held.values().map(|(_, len)| u64::from(*len)).sum::<u64>());
            prop_assert_eq!(stats.items, held.len() as u64);
            prop_assert!(held.values().all(|(item, _)| cache.holds(item)));
            prop_assert_eq!(stats.reserved, rooms.iter().map(|room| u64::from(room.len)).sum::<u64>());
        }
    }
}

#[test]
fn the_last_changes_are_known_and_older_ones_are_not() {
    let mut cache = full(3, 1);
    let since = |cache: &ItemCache<Numbered>, changes| -> Option<Vec<u32>> {
        let changed = cache.changed_since(changes)?;
        Some(changed.map(|item| item.number).collect())
    };
    assert_eq!(since(&cache, 0), Some(vec![0, 1, 2]));
    let before = cache.changes();
    assert_eq!(since(&cache, before), Some(vec![]));
    assert_eq!(since(&cache, before + 1), None, "of another cache");
    assert!(cache.remove(&item(1, 0)));
    assert!(admitted(&mut cache, item(7, 0), 10));
    assert_eq!(since(&cache, before), Some(vec![1, 7]));
    for _ in 0..RECENT_MAX / 2 {
        assert!(cache.remove(&item(7, 0)));
        assert!(admitted(&mut cache, item(7, 0), 10));
    }
    assert_eq!(since(&cache, before), None);
    let recent = since(&cache, before + 2).unwrap();
    assert_eq!(recent.len(), RECENT_MAX);
    assert_eq!(cache.recent.len(), RECENT_MAX);
}
