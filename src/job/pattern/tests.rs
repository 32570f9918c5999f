//! Permutations are regular, however loaders behave at an epoch's end. Other sampling is irregular.

use super::*;
use crate::job::progress::{EpochCounts, Progress};
use proptest::prelude::*;

/// Reproducible random numbers: `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn permutation(&mut self, items: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..items).collect();
        for place in (1..order.len()).rev() {
            let other = usize::try_from(self.below(place as u64 + 1)).unwrap();
            order.swap(place, other);
        }
        order
    }
}

fn read(progress: &mut Progress, item: u32) {
    progress.read(Some(item), &EpochCounts::of_page_cache(1));
}

fn expecting(items: u32, nodes: u32) -> Progress {
    let mut progress = Progress::default();
    progress.expect(Some(u64::from(items)), nodes);
    progress
}

/// Returns the reads of loaders that are up to `ahead` items ahead of one another.
fn disordered(random: &mut Random, order: Vec<u32>, ahead: u64) -> Vec<u32> {
    let mut keyed: Vec<(u64, u32)> = (0..)
        .zip(order)
        .map(|(place, item)| (place + random.below(ahead.max(1)), item))
        .collect();
    keyed.sort_by_key(|(place, _)| *place);
    keyed.into_iter().map(|(_, item)| item).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_permutation_in_each_epoch_is_regular(
        seed: u64,
        items in 128_u32..3000,
        dropped_percent in 0_u32..10,
        ahead_part in 0.0_f64..1.0,
    ) {
        let mut random = Random(seed);
        let mut progress = expecting(items, 1);
        let read_each = items - items * dropped_percent / 100;
        let epochs = 6;
        let order: Vec<u32> = (0..epochs)
            .flat_map(|_| {
                let mut order = random.permutation(items);
                order.truncate(usize::try_from(read_each).unwrap());
                order
            })
            .collect();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of it")]
        let ahead = (window(u64::from(items)) as f64 * ahead_part) as u64;
        for item in disordered(&mut random, order, ahead) {
            read(&mut progress, item);
            prop_assert!(!progress.irregular());
        }
        // The last epoch has ended only if all of it was read.
        prop_assert!((epochs - 1..=epochs).contains(&progress.number), "{}", progress.number);
        if dropped_percent == 0 && ahead == 0 {
            prop_assert!(progress.ended.iter().all(|epoch| epoch.items == u64::from(items)));
            prop_assert_eq!(progress.number, epochs);
        }
    }

    /// Each node of a distributed job reads another part of the permutation.
    #[test]
    fn a_part_of_a_permutation_on_each_node_is_regular(
        seed: u64, items in 256_u32..3000, nodes in 2_u32..9, dropped_percent in 0_u32..6,
    ) {
        let mut random = Random(seed);
        let part = items.div_ceil(nodes);
        let mut progress = expecting(part, nodes);
        let read_here = usize::try_from(part - part * dropped_percent / 100).unwrap();
        for _ in 0..8 {
            for item in random.permutation(items).into_iter().take(read_here) {
                read(&mut progress, item);
                prop_assert!(!progress.irregular());
            }
        }
        prop_assert!((7..=8).contains(&progress.number), "{}", progress.number);
    }

    #[test]
    fn sampling_with_replacement_is_irregular_within_an_epoch(seed: u64, items in 128_u32..3000) {
        let mut random = Random(seed);
        let mut progress = expecting(items, 1);
        for _ in 0..items {
            read(&mut progress, u32::try_from(random.below(u64::from(items))).unwrap());
        }
        prop_assert!(progress.irregular());
        // It stays irregular.
        for _ in 0..4 * items {
            read(&mut progress, u32::try_from(random.below(u64::from(items))).unwrap());
            prop_assert!(progress.irregular());
        }
        // Each epoch has as many reads as items. The first includes the reads before the detection.
        prop_assert_eq!(progress.number, 5);
    }

    /// Eq. 10: samples out of the first `g(i)` items, more of them with every step.
    #[test]
    fn a_curriculum_is_irregular_within_an_epoch(
        seed: u64, items in 128_u32..3000, start_percent in 1_u32..40, steps in 2_u32..12,
    ) {
        let mut random = Random(seed);
        let mut progress = expecting(items, 1);
        let step = (items / steps).max(1);
        let mut pool = f64::from(items * start_percent) / 100.0;
        for read_before in 0..items {
            if read_before > 0 && read_before % step == 0 {
                pool = (pool * 1.5).min(f64::from(items));
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at least 1")]
            let bound = pool.max(1.0) as u64;
            read(&mut progress, u32::try_from(random.below(bound)).unwrap());
        }
        prop_assert!(progress.irregular());
    }
}

#[test]
fn a_job_that_settles_is_regular_again_after_a_while() {
    let mut random = Random(7);
    let mut progress = expecting(1000, 1);
    for _ in 0..3000 {
        read(&mut progress, u32::try_from(random.below(1000)).unwrap());
    }
    assert!(progress.irregular());
    let mut epochs = 0;
    while progress.irregular() {
        epochs += 1;
        assert!(epochs <= 5, "still irregular");
        for item in random.permutation(1000) {
            read(&mut progress, item);
        }
    }
    assert!(epochs >= 2, "it has to show it twice");
    for _ in 0..3 {
        for item in random.permutation(1000) {
            read(&mut progress, item);
            assert!(!progress.irregular());
        }
    }
}

#[test]
fn sampling_with_replacement_shows_on_one_of_eight_nodes() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let mut progress = expecting(2000, 8);
        for _ in 0..2000 {
            read(&mut progress, u32::try_from(random.below(16_000)).unwrap());
        }
        assert!(progress.irregular(), "{seed}");
    }
}

#[test]
fn one_unusual_batch_is_tolerated() {
    let mut random = Random(3);
    let mut progress = expecting(2000, 1);
    // A batch of 32 is tried before training begins.
    let batch = random.permutation(2000).into_iter().take(32);
    for item in batch.chain(random.permutation(2000)) {
        read(&mut progress, item);
        assert!(!progress.irregular());
    }
    assert_eq!(progress.number, 1);
}

#[test]
fn the_window_is_a_tenth_and_more_for_small_datasets() {
    for (items, wanted) in [(100, 25), (1000, 250), (2000, 256), (10_000, 1000)] {
        assert_eq!(window(items), wanted);
    }
}
