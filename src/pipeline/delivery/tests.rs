use super::*;
use copperfs_policy::references::{Batch, CountBoard};
use proptest::prelude::*;
use std::collections::HashMap;

const OWNER: OwnerId = OwnerId { rank: 7, boot: 1 };

#[derive(Default)]
struct Counts(BTreeMap<u64, u32>);

impl Counted for Counts {
    fn count(&self, key: u64) -> u32 {
        self.0.get(&key).copied().unwrap_or(0)
    }

    fn keys(&self) -> impl Iterator<Item = u64> {
        let counted = self.0.iter().filter(|(_, count)| **count > 0);
        counted.map(|(key, _)| *key)
    }
}

fn nodes(ranks: &[u32]) -> Vec<HomeNode> {
    let node = |rank: &u32| HomeNode {
        rank: *rank,
        name: format!("n{rank}"),
        capacity: 100,
    };
    ranks.iter().map(node).collect()
}

fn at(ms: u64) -> Duration {
    Duration::from_secs(3600) + Duration::from_millis(ms)
}

/// Homes that apply what they are sent.
#[derive(Default)]
struct Homes(HashMap<u32, CountBoard<OwnerId, u64>>);

impl Homes {
    fn apply(&mut self, rank: u32, batch: &CountBatch) -> u64 {
        let board = self.0.entry(rank).or_default();
        let step = Batch {
            from: batch.from,
            to: batch.to,
            counts: &batch.counts,
        };
        board.apply(batch.owner, step, &mut Vec::new())
    }

    fn count(&self, rank: u32, key: u64) -> u32 {
        self.0.get(&rank).map_or(0, |board| board.total(&key))
    }
}

/// Sends everything that is due at `now` to all homes.
fn deliver(delivery: &mut Delivery, counts: &Counts, homes: &mut Homes, now: Duration) -> usize {
    let mut messages = 0;
    for rank in delivery.idle() {
        while let Some(batch) = delivery.next(rank, counts, now) {
            messages += 1;
            let state = homes.apply(rank, &batch);
            delivery.answered(rank, &batch, Some(state));
        }
    }
    messages
}

#[test]
fn a_home_is_told_of_items_that_have_lost_their_references_before_it_heard_of_them() {
    let mut delivery = Delivery::new(OWNER, 1);
    delivery.place(&nodes(&[0]));
    // Item 5 was read by a task that has ended within the first 100 ms; item 6 is still to be read.
    delivery.changed([5, 6]);
    let batch = delivery.next(0, &Counts(BTreeMap::from([(6, 1)])), at(0));
    assert_eq!(batch.unwrap().counts, [(5, 0), (6, 1)]);
    // All of a short job's tasks have ended.
    let mut delivery = Delivery::new(OWNER, 1);
    delivery.place(&nodes(&[0]));
    delivery.changed([5]);
    let batch = delivery.next(0, &Counts::default(), at(0)).unwrap();
    assert_eq!(batch.counts, [(5, 0)]);
    // The home does not answer. It is told no more, because it has no counts.
    delivery.answered(0, &batch, None);
    assert_eq!(delivery.next(0, &Counts::default(), at(1000)), None);
    assert!(!delivery.has_due());
}

#[test]
fn each_home_is_told_of_its_own_items_only_and_only_if_there_are_any() {
    let mut delivery = Delivery::new(OWNER, 1);
    delivery.place(&nodes(&[0, 1, 2, 3]));
    let mut homes = Homes::default();
    // One item.
    let mut counts = Counts(BTreeMap::from([(5, 3)]));
    delivery.changed([5]);
    assert_eq!(deliver(&mut delivery, &counts, &mut homes, at(0)), 1);
    let home = *homes.0.keys().next().unwrap();
    assert_eq!(homes.count(home, 5), 3);
    assert!(!delivery.has_due());
    // A beat for this home, and nothing for the others.
    assert_eq!(deliver(&mut delivery, &counts, &mut homes, at(400)), 0);
    assert_eq!(deliver(&mut delivery, &counts, &mut homes, at(500)), 1);
    assert_eq!(homes.0.len(), 1);
    // The last count goes, and after it there are no beats.
    counts.0.clear();
    delivery.changed([5]);
    assert_eq!(deliver(&mut delivery, &counts, &mut homes, at(600)), 1);
    assert_eq!(homes.count(home, 5), 0);
    assert_eq!(deliver(&mut delivery, &counts, &mut homes, at(5000)), 0);
}

#[test]
fn a_home_that_has_restarted_gets_all_of_its_counts_again() {
    let mut delivery = Delivery::new(OWNER, 1);
    delivery.place(&nodes(&[0]));
    let mut homes = Homes::default();
    let mut counts = Counts((0..1000).map(|key| (key, 1)).collect());
    delivery.changed(0..1000);
    assert_eq!(deliver(&mut delivery, &counts, &mut homes, at(0)), 1);
    homes.0.clear();
    counts.0.insert(3, 9);
    delivery.changed([3]);
    // The change, whose answer tells of the restart, and all.
    assert_eq!(deliver(&mut delivery, &counts, &mut homes, at(100)), 2);
    assert_eq!((homes.count(0, 3), homes.count(0, 4)), (9, 1));
}

#[test]
fn a_home_that_does_not_answer_is_left_alone_for_a_while() {
    let mut delivery = Delivery::new(OWNER, 1);
    delivery.place(&nodes(&[0]));
    let counts = Counts(BTreeMap::from([(1, 1)]));
    delivery.changed([1]);
    let batch = delivery.next(0, &counts, at(0)).unwrap();
    assert!(delivery.idle().is_empty(), "one at a time");
    assert!(delivery.next(0, &counts, at(100)).is_none());
    delivery.answered(0, &batch, None);
    assert!(delivery.next(0, &counts, at(100)).is_none());
    let again = delivery.next(0, &counts, at(200)).unwrap();
    assert_eq!(again.counts, batch.counts);
    assert!(again.to > batch.to, "the first one may have arrived");
}

#[test]
fn many_counts_go_in_several_messages() {
    let mut delivery = Delivery::new(OWNER, 1);
    delivery.place(&nodes(&[0]));
    let count = COUNTS_MAX as u64 * 2 + 5;
    let counts = Counts((0..count).map(|key| (key, 2)).collect());
    delivery.changed(0..count);
    let mut homes = Homes::default();
    assert_eq!(deliver(&mut delivery, &counts, &mut homes, at(0)), 3);
    assert!((0..count).all(|key| homes.count(0, key) == 2));
}

proptest! {
    // Each change of the homes computes the homes of all slots.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Counts change while homes restart, messages or their answers are lost, and nodes come and go. Once all of that
    /// is over, each home has exactly the counts of its items.
    #[test]
    fn counts_arrive_whatever_happens(
        steps in prop::collection::vec((0_u8..8, any::<u8>(), 0_u32..4, 0_u8..8), 1..100),
    ) {
        let mut delivery = Delivery::new(OWNER, 1);
        let mut ranks = vec![0, 1, 2];
        delivery.place(&nodes(&ranks));
        let (mut counts, mut homes) = (Counts::default(), Homes::default());
        let mut now = 0;
        for (what, key, count, fate) in steps {
            now += 60;
            let rank = u32::from(key % 4);
            match what {
                0..=4 => {
                    // Spread over the slots.
                    let key = crate::num::mix64(key.into());
                    counts.0.insert(key, count);
                    delivery.changed([key]);
                }
                5 => drop(homes.0.remove(&rank)),
                6 => {
                    ranks.retain(|known| *known != rank);
                    if count > 1 || ranks.is_empty() {
                        ranks.push(rank);
                    }
                    delivery.place(&nodes(&ranks));
                }
                _ => {}
            }
            for rank in delivery.idle() {
                if let Some(batch) = delivery.next(rank, &counts, at(now)) {
                    // Lost, or its answer is, or it comes twice.
                    let times = match fate { 0 => 0, 2 => 2, _ => 1 };
                    let state = (0..times).map(|_| homes.apply(rank, &batch)).last();
                    delivery.answered(rank, &batch, state.filter(|_| fate > 1));
                }
            }
        }
        let mut heard: BTreeSet<u32> = BTreeSet::new();
        for _round in 0..4 {
            now += 600;
            for rank in delivery.idle() {
                while let Some(batch) = delivery.next(rank, &counts, at(now)) {
                    heard.insert(rank);
                    let state = homes.apply(rank, &batch);
                    delivery.answered(rank, &batch, Some(state));
                }
            }
        }
        // A home that hears nothing for a while takes the owner for gone.
        homes.0.retain(|rank, _| heard.contains(rank));
        prop_assert!(!delivery.has_due());
        let slots = SlotTable::new(&nodes(&ranks));
        for (key, count) in &counts.0 {
            let home = slots.home_of_slot(slot_of_key(*key)).map(|at| nodes(&ranks)[at].rank);
            for rank in ranks.iter().copied() {
                let due = if home == Some(rank) { *count } else { 0 };
                prop_assert_eq!(homes.count(rank, *key), due, "home {:?} of {}", home, key);
            }
        }
    }
}

#[test]
fn a_batch_that_is_on_its_way_while_homes_change_hides_no_count() {
    let keys: Vec<u64> = (0..64).map(|at| at << 58 | at).collect();
    let counts = Counts(keys.iter().map(|key| (*key, 2)).collect());
    let mut delivery = Delivery::new(OWNER, 1);
    let mut homes = Homes::default();
    delivery.place(&nodes(&[0, 1]));
    delivery.changed(keys.iter().copied());
    let first: Vec<_> = [0, 1]
        .map(|rank| delivery.next(rank, &counts, at(0)).unwrap())
        .into();
    // One home gets the items of the other one before it has answered.
    delivery.place(&nodes(&[0]));
    for (rank, batch) in (0..).zip(&first) {
        let state = homes.apply(rank, batch);
        delivery.answered(rank, batch, Some(state));
    }
    deliver(&mut delivery, &counts, &mut homes, at(100));
    assert!(keys.iter().all(|key| homes.count(0, *key) == 2));
    // A home that was away is back, and an answer from before arrives late.
    delivery.place(&nodes(&[0, 1]));
    let batch = delivery.next(1, &counts, at(200)).unwrap();
    delivery.answered(1, &first[1], Some(first[1].to));
    assert!(
        delivery.next(1, &counts, at(201)).is_none(),
        "a batch is on its way"
    );
    let state = homes.apply(1, &batch);
    delivery.answered(1, &batch, Some(state));
    deliver(&mut delivery, &counts, &mut homes, at(300));
    let total = |key: &u64| homes.count(0, *key).max(homes.count(1, *key));
    assert!(keys.iter().all(|key| total(key) == 2));
}
