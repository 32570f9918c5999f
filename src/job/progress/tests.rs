//! Epochs and their counts.

use super::*;
use proptest::prelude::*;

fn hit(bytes: u64) -> EpochCounts {
    EpochCounts::of_read(ItemOutcome {
        bytes,
        cached: true,
        ..ItemOutcome::default()
    })
}

fn miss(bytes: u64, admitted: bool) -> EpochCounts {
    EpochCounts::of_read(ItemOutcome {
        bytes,
        cached: false,
        charged: bytes,
        admitted,
    })
}

fn expecting(items: u64) -> Progress {
    let mut progress = Progress::default();
    progress.expect(Some(items), 1);
    progress
}

#[test]
fn an_epoch_ends_with_its_last_item_and_its_counts_are_kept() {
    let mut progress = expecting(10);
    for item in 0..9 {
        progress.read(Some(item), &miss(100, item < 5));
    }
    assert_eq!(progress.number, 0);
    progress.read(Some(9), &EpochCounts::of_page_cache(100));
    assert_eq!((progress.number, progress.epoch.items), (1, 0));
    for item in 0..5 {
        progress.read(Some(item), &hit(100));
    }
    let first = progress.ended.front().unwrap();
    assert_eq!((first.items, first.bytes), (10, 1000));
    assert_eq!((first.charged_bytes, first.admitted_bytes), (900, 500));
    assert_eq!((first.hit_items, first.page_cache_bytes), (1, 100));
    assert_eq!(progress.epoch.hit_bytes, 500);
    assert_eq!(progress.total().bytes, 1500);
}

#[test]
fn items_read_ahead_count_for_the_next_epoch() {
    let mut progress = expecting(100);
    for item in 0..90 {
        progress.read(Some(item), &miss(1, false));
    }
    // Five reads of the next epoch before the last ten of this one.
    for item in (0..5).chain(90..100) {
        progress.read(Some(item), &miss(1, false));
    }
    assert_eq!((progress.number, progress.epoch.items), (1, 5));
    for item in 5..100 {
        progress.read(Some(item), &miss(1, false));
    }
    assert_eq!((progress.number, progress.epoch.items), (2, 0));
    assert!(!progress.irregular());
}

#[test]
fn items_that_are_left_out_do_not_delay_the_next_epoch_for_long() {
    let mut progress = expecting(1000);
    for item in 0..950 {
        progress.read(Some(item), &hit(1));
    }
    for read in 0..u64::from(LAST) {
        assert_eq!(progress.number, u64::from(read >= u64::from(LAST_REPEATS)));
        progress.read(Some(u32::try_from(read).unwrap()), &hit(1));
    }
    assert_eq!((progress.number, progress.epoch.items), (1, 16));
    assert_eq!(progress.ended.front().unwrap().items, 950);
}

#[test]
fn a_job_on_a_part_of_the_dataset_has_shorter_epochs() {
    let mut progress = expecting(1000);
    for epoch in 0..4 {
        for item in 0..300 {
            progress.read(Some(item * 7 % 300), &hit(1));
            assert!(!progress.irregular(), "epoch {epoch}, read {item}");
        }
    }
    assert_eq!(progress.number, 3);
}

#[test]
fn without_a_known_size_repeats_tell_epochs() {
    let mut progress = Progress::default();
    for _ in 0..3 {
        for item in 0..500 {
            progress.read(Some(item), &hit(1));
        }
    }
    assert_eq!(progress.number, 2);
    assert!(progress.ended.iter().all(|epoch| epoch.items == 500));
}

#[test]
fn items_without_a_number_are_counted() {
    let mut progress = expecting(10);
    for _ in 0..25 {
        progress.read(None, &hit(1));
    }
    assert_eq!((progress.number, progress.epoch.items), (2, 5));
    assert!(!progress.irregular());
}

#[test]
fn no_more_than_a_thousand_results_are_kept() {
    let mut progress = expecting(1);
    for _ in 0..1500 {
        progress.read(Some(0), &hit(1));
    }
    assert_eq!(progress.number, 1500);
    assert_eq!(progress.ended.len(), ENDED_MAX);
    assert_eq!(progress.total().items, 1500);
}

proptest! {
    #[test]
    fn nothing_is_lost_between_epochs(items in prop::collection::vec(0_u32..50, 0..400), expected in 0_u64..60) {
        let mut progress = expecting(expected);
        for item in &items {
            progress.read(Some(*item), &hit(3));
        }
        prop_assert_eq!(progress.total().items, items.len() as u64);
        prop_assert_eq!(progress.total().bytes, 3 * items.len() as u64);
    }
}
