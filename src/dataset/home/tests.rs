//! Homes with a storage in memory that counts its reads.

mod chunks;
mod content;
mod counts;
mod disk;
mod epochs;
mod storage;

use super::*;
use crate::model::slots::stripe_extent;
use crate::model::{DatasetDecision, DatasetSpec, slot_of};
use crate::testing::{SOON, path};
use crate::waiting::until;
use copperfs_overlay::{Extent, ITEM_BYTES_MAX, RangeAnswer};
use copperfs_policy::Keep;
use std::time::Duration;
use storage::Storage;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const RICH: u64 = u64::MAX;

fn home_node(rank: u32) -> HomeNode {
    HomeNode {
        rank,
        name: format!("nid{rank}"),
        capacity: 1 << 40,
    }
}

/// Datasets below `data/NAME` with these budgets, homes of these ranks.
fn decision(count: u64, homes: &[u32], datasets: &[(&str, u64)]) -> Decision {
    let datasets = datasets.iter().map(|&(name, budget)| {
        let path = path(&format!("data/{name}"));
        DatasetDecision {
            budget,
            ..DatasetDecision::from(DatasetSpec::new(name, path))
        }
    });
    Decision {
        serial: Serial { term: 1, count },
        homes: homes.iter().map(|rank| home_node(*rank)).collect(),
        datasets: datasets.collect(),
        ..Decision::default()
    }
}

fn options(storage: HomeStorage, capacity: u64) -> HomeOptions {
    HomeOptions {
        capacity,
        storage,
        seed: 1,
        in_flight_bytes_max: 16 * MIB,
    }
}

/// Creates a home in memory, the only one, that has applied `decision`.
fn alone(storage: &Arc<Storage>, decision: &Decision) -> Home {
    let home = Home::new(options(HomeStorage::Memory, RICH), storage.files(), None);
    home.apply(decision, 0, "nid0");
    home
}

fn request(storage: &Storage, name: &str, offset: u64, len: u64, payment: u64) -> ItemRequest {
    let path = path(name);
    let (version, size) = storage.about(&path);
    let dataset = name.split('/').nth(1).unwrap();
    ItemRequest {
        dataset: DatasetDecision::id_of(dataset, &self::path(&format!("data/{dataset}"))),
        path,
        version,
        size,
        item: stripe_extent(size, offset / ITEM_BYTES_MAX),
        content: None,
        wanted: Extent { start: offset, len },
        job: 0,
        payment,
        is_uncached: false,
    }
}

/// The whole first stripe.
fn all_of(storage: &Storage, name: &str, payment: u64) -> ItemRequest {
    let (_, size) = storage.about(&path(name));
    request(storage, name, 0, size.min(ITEM_BYTES_MAX), payment)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Obtained {
    cached: bool,
    charged: u64,
    admitted: u64,
}

const HIT: Obtained = Obtained {
    cached: true,
    charged: 0,
    admitted: 0,
};

fn read(charged: u64, admitted: u64) -> Obtained {
    Obtained {
        cached: false,
        charged,
        admitted,
    }
}

/// Requests an item, and checks the bytes.
async fn give(home: &Home, storage: &Storage, request: ItemRequest) -> Result<Obtained, Failure> {
    let due = storage.bytes(&request.path, request.wanted.start, request.wanted.len);
    let lengths: Vec<u64> = request.blocks().map(|block| block.len).collect();
    match home.item(request).await? {
        ItemAnswer::Bytes {
            blocks,
            cached,
            charged,
            admitted,
        } => {
            assert_eq!(RangeAnswer::joined(&blocks), due);
            for (block, due) in blocks.iter().zip(lengths) {
                assert_eq!(block.bytes.len() as u64, due);
                assert_eq!(*block, RangeAnswer::of(block.bytes.clone()));
            }
            Ok(Obtained {
                cached,
                charged,
                admitted,
            })
        }
        ItemAnswer::Unpaid { cost } => panic!("it costs {cost}"),
    }
}

/// Requests an item as readers on the home do, and checks the bytes.
async fn give_here(
    home: &Home,
    storage: &Storage,
    request: ItemRequest,
) -> Result<Obtained, Failure> {
    let Some(blocks) = home.try_item(&request) else {
        return give(home, storage, request).await;
    };
    let due = storage.bytes(&request.path, request.wanted.start, request.wanted.len);
    assert_eq!(RangeAnswer::joined(&blocks), due);
    Ok(HIT)
}

#[tokio::test]
async fn storage_is_read_once_and_only_if_paid() {
    let storage = Storage::of(&[("data/a/x", 5 * KIB)]);
    let home = alone(&storage, &decision(1, &[0], &[("a", MIB)]));
    let unpaid = home.item(all_of(&storage, "data/a/x", 5 * KIB - 1)).await;
    assert_eq!(unpaid.unwrap(), ItemAnswer::Unpaid { cost: 5 * KIB });
    assert_eq!(storage.reads(), 0);
    assert_eq!(home.report()[0].cached, 0);
    let paid = give(&home, &storage, all_of(&storage, "data/a/x", 5 * KIB)).await;
    assert_eq!(paid.unwrap(), read(5 * KIB, 5 * KIB));
    for len in [1, 4 * KIB, 5 * KIB] {
        let again = request(&storage, "data/a/x", 0, len, 0);
        assert_eq!(give(&home, &storage, again).await.unwrap(), HIT);
    }
    assert_eq!((storage.reads(), storage.bytes_read()), (1, 5 * KIB));
    let report = &home.report()[0];
    assert_eq!((report.cached, report.items), (5 * KIB, 1));
    assert_eq!((report.share, report.origin_bytes), (MIB, 5 * KIB));
    assert!(storage.only_through());
}

#[tokio::test]
async fn whole_blocks_in_memory_are_returned_at_once() {
    let storage = Storage::of(&[("data/a/x", 5 * KIB), ("data/a/y", 2 * MIB + 7)]);
    let home = alone(&storage, &decision(1, &[0], &[("a", 4 * MIB)]));
    for (name, len) in [("data/a/x", 5 * KIB), ("data/a/y", 2 * MIB + 7)] {
        let all = all_of(&storage, name, 0);
        assert_eq!(home.try_item(&all), None, "it is not here yet");
        let paid = give(&home, &storage, all_of(&storage, name, len)).await;
        assert_eq!(paid.unwrap(), read(len, len));
        let blocks = home.try_item(&all).unwrap();
        assert_eq!(
            RangeAnswer::joined(&blocks),
            storage.bytes(&all.path, 0, len)
        );
        for block in &blocks {
            assert_eq!(*block, RangeAnswer::of(block.bytes.clone()));
        }
        let probed = ItemRequest {
            is_uncached: true,
            ..all.clone()
        };
        assert_eq!(home.try_item(&probed), None);
        let unknown = ItemRequest { dataset: 7, ..all };
        assert_eq!(home.try_item(&unknown), None);
    }
    // The hash of a part would have to be computed.
    for (offset, len, at_once) in [
        (0, MIB, true),
        (MIB, MIB + 7, true),
        (2 * MIB, 7, true),
        (0, 4 * KIB, false),
        (4 * KIB, MIB, false),
        (MIB, MIB + 6, false),
    ] {
        let part = request(&storage, "data/a/y", offset, len, 0);
        let due = storage.bytes(&part.path, offset, len);
        let found = home
            .try_item(&part)
            .map(|blocks| RangeAnswer::joined(&blocks));
        assert_eq!(found, at_once.then_some(due), "{offset}, {len}");
    }
    home.clear(&path("data/a"));
    assert_eq!(home.try_item(&all_of(&storage, "data/a/x", 0)), None);
    assert_eq!(storage.reads(), 2);
}

/// Otherwise the items that are read most would be evicted first.
#[tokio::test]
async fn an_item_that_was_returned_at_once_is_the_last_to_be_evicted_under_lru() {
    let names = ["data/a/x", "data/a/y", "data/a/z"];
    let storage = Storage::of(&names.map(|name| (name, 5 * KIB)));
    let mut told = decision(1, &[0], &[("a", 10 * KIB)]);
    Policy::Lru.name().clone_into(&mut told.policy);
    let place = options(HomeStorage::Memory, 10 * KIB);
    let home = Home::new(place, storage.files(), None);
    home.apply(&told, 0, "nid0");
    let [x, y, z] = names;
    for (name, due) in [
        (x, false),
        (y, false),
        (x, true),
        (z, false),
        (x, true),
        (y, false),
    ] {
        assert_eq!(
            home.try_item(&all_of(&storage, name, 0)).is_some(),
            due,
            "{name}"
        );
        if !due {
            give(&home, &storage, all_of(&storage, name, RICH))
                .await
                .unwrap();
        }
    }
}

/// The rule may change while jobs read. Without a rule that keeps items every read is paid for.
#[tokio::test]
async fn nothing_is_kept_of_a_dataset_while_its_rule_says_so() {
    let storage = Storage::of(&[("data/a/x", 5 * KIB), ("data/a/y", KIB)]);
    let with = |count, keep| {
        let mut decision = decision(count, &[0], &[("a", MIB)]);
        decision.datasets[0].keep = keep;
        decision
    };
    let home = alone(&storage, &with(1, Keep::Auto));
    let x = || give(&home, &storage, all_of(&storage, "data/a/x", 5 * KIB));
    assert_eq!(x().await.unwrap(), read(5 * KIB, 5 * KIB));
    assert_eq!(x().await.unwrap(), HIT);
    home.apply(&with(2, Keep::None), 0, "nid0");
    assert_eq!((home.report()[0].cached, home.report()[0].items), (0, 0));
    for _ in 0..2 {
        assert_eq!(x().await.unwrap(), read(5 * KIB, 0));
    }
    let unpaid = home.item(all_of(&storage, "data/a/y", 0)).await;
    assert_eq!(unpaid.unwrap(), ItemAnswer::Unpaid { cost: KIB });
    home.apply(&with(3, Keep::Uniform), 0, "nid0");
    assert_eq!(x().await.unwrap(), read(5 * KIB, 5 * KIB));
    assert_eq!(x().await.unwrap(), HIT);
}

/// A promise that a file of several blocks has the content of another one cannot be checked against
/// one stripe, so the file's bytes are not returned to readers of that content.
#[tokio::test]
async fn a_false_content_hash_never_returns_wrong_bytes() {
    let storage = Storage::of(&[("data/a/x", 2 * MIB)]);
    let home = alone(&storage, &decision(1, &[0], &[("a", 4 * MIB)]));
    let content = Some(ContentHash([7; 32]));
    let honest = ItemRequest {
        content,
        ..all_of(&storage, "data/a/x", RICH)
    };
    let due = storage.bytes(&honest.path, 0, honest.wanted.len);
    storage.change("data/a/x", 2 * MIB);
    let hostile = ItemRequest {
        content,
        ..all_of(&storage, "data/a/x", RICH)
    };
    give(&home, &storage, hostile).await.unwrap();
    match home.item(honest).await {
        Ok(ItemAnswer::Bytes { blocks, .. }) => assert_eq!(RangeAnswer::joined(&blocks), due),
        Ok(ItemAnswer::Unpaid { cost }) => panic!("it costs {cost}"),
        Err(failure) => assert_eq!(failure.kind, FailureKind::Stale),
    }
}

#[tokio::test]
async fn a_partial_request_reads_the_whole_stripe_only_if_it_is_kept() {
    let storage = Storage::of(&[("data/a/x", 9 * MIB + 5), ("data/a/y", 4 * MIB)]);
    let home = alone(&storage, &decision(1, &[0], &[("a", 5 * MIB + 5)]));
    // The last stripe: 1 MiB and 5 bytes.
    let last = request(&storage, "data/a/x", 9 * MIB, 5, RICH);
    let given = give(&home, &storage, last.clone()).await.unwrap();
    assert_eq!(given, read(MIB + 5, MIB + 5));
    assert_eq!(give(&home, &storage, last).await.unwrap(), HIT);
    let first = request(&storage, "data/a/x", MIB - 7, 14, RICH);
    let given = give(&home, &storage, first).await.unwrap();
    assert_eq!(given, read(4 * MIB, 4 * MIB));
    // Across blocks of a held item.
    let across = request(&storage, "data/a/x", MIB - 7, 2 * MIB, 0);
    assert_eq!(give(&home, &storage, across).await.unwrap(), HIT);
    // The share is full.
    let through = request(&storage, "data/a/y", MIB + 3, 10, MIB);
    for _ in 0..2 {
        let given = give(&home, &storage, through.clone()).await.unwrap();
        assert_eq!(given, read(MIB, 0));
    }
    let two = request(&storage, "data/a/y", 2 * MIB - 1, 2, RICH);
    assert_eq!(give(&home, &storage, two).await.unwrap(), read(2 * MIB, 0));
    assert_eq!(home.report()[0].cached, 5 * MIB + 5);
}

#[tokio::test]
async fn homes_with_own_storage_read_pages_of_items_that_they_do_not_keep() {
    let storage = Storage::of(&[("data/a/x", 4 * MIB)]);
    let mut told = decision(1, &[0], &[("a", 0)]);
    told.datasets[0].origin_readers = OriginReaders::Homes;
    let nobody = Storage::of(&[]);
    let home = Home::new(
        options(HomeStorage::Memory, RICH),
        nobody.files(),
        Some(storage.files()),
    );
    home.apply(&told, 0, "nid0");
    let part = request(&storage, "data/a/x", 5000, 5000, RICH);
    let given = give(&home, &storage, part).await.unwrap();
    assert_eq!(given, read(8192, 0));
    let long = request(&storage, "data/a/x", 5000, 2 * MIB, RICH);
    let given = give(&home, &storage, long).await.unwrap();
    assert_eq!(given, read(2 * MIB + 4096, 0));
    // A home without own storage refuses.
    let home = alone(&storage, &told);
    let failure = home.item(all_of(&storage, "data/a/x", RICH)).await;
    let failure = failure.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(failure.detail.contains("origin_readers = roots"));
}

#[tokio::test]
async fn concurrent_requests_join_and_pay_nothing() {
    let storage = Storage::of(&[("data/a/x", 5 * KIB)]);
    let home = alone(&storage, &decision(1, &[0], &[("a", 0)]));
    storage.hold();
    let ask = |payment| {
        let (home, storage) = (home.clone(), Arc::clone(&storage));
        let request = all_of(&storage, "data/a/x", payment);
        tokio::spawn(async move { give(&home, &storage, request).await.unwrap() })
    };
    let leader = ask(RICH);
    until(SOON, "the read is under way", || storage.reads() == 1).await;
    let joiners: Vec<_> = (0..10).map(|_| ask(0)).collect();
    tokio::task::yield_now().await;
    storage.go_on();
    assert_eq!(leader.await.unwrap(), read(5 * KIB, 0));
    for joiner in joiners {
        assert_eq!(joiner.await.unwrap(), read(0, 0));
    }
    assert_eq!(storage.reads(), 1);
    // Nothing was kept, so the next request pays.
    let next = home.item(all_of(&storage, "data/a/x", 0)).await.unwrap();
    assert_eq!(next, ItemAnswer::Unpaid { cost: 5 * KIB });
}

#[tokio::test]
async fn a_cancelled_request_does_not_affect_others() {
    let storage = Storage::of(&[("data/a/x", 5 * KIB), ("data/a/y", KIB)]);
    let home = alone(&storage, &decision(1, &[0], &[("a", MIB)]));
    storage.hold();
    let ask = |name: &'static str| {
        let (home, storage) = (home.clone(), Arc::clone(&storage));
        let request = all_of(&storage, name, RICH);
        tokio::spawn(async move { give(&home, &storage, request).await.unwrap() })
    };
    let (leader, lonely) = (ask("data/a/x"), ask("data/a/y"));
    until(SOON, "both are under way", || storage.reads() == 2).await;
    let joiner = ask("data/a/x");
    tokio::task::yield_now().await;
    leader.abort();
    lonely.abort();
    storage.go_on();
    assert_eq!(joiner.await.unwrap(), read(0, 0));
    // Abandoned flights were paid for, and their items are kept.
    until(SOON, "both are kept", || home.report()[0].items == 2).await;
    assert_eq!(storage.reads(), 2);
}

#[tokio::test]
async fn bytes_in_flight_are_bounded() {
    let files = [
        "data/a/0", "data/a/1", "data/a/2", "data/a/3", "data/a/4", "data/a/5",
    ];
    let storage = Storage::of(&files.map(|name| (name, 4 * MIB)));
    let home = alone(&storage, &decision(1, &[0], &[("a", 0)]));
    storage.hold();
    let asked = files.map(|name| {
        let (home, storage) = (home.clone(), Arc::clone(&storage));
        let request = all_of(&storage, name, RICH);
        tokio::spawn(async move { give(&home, &storage, request).await.unwrap() })
    });
    // 16 MiB of room are four stripes.
    until(SOON, "four are under way", || storage.reads() == 4).await;
    // Wait for a fifth request, which would be wrong.
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(storage.reads(), 4);
    storage.go_on();
    for asked in asked {
        assert_eq!(asked.await.unwrap(), read(4 * MIB, 0));
    }
    assert_eq!(storage.reads(), 6);
}

#[tokio::test]
async fn failures_keep_their_kind_and_joined_requests_retry_once() {
    let storage = Storage::of(&[("data/a/x", 5 * KIB)]);
    let home = alone(&storage, &decision(1, &[0], &[("a", MIB)]));
    storage.fail(FailureKind::Stale);
    let failed = give(&home, &storage, all_of(&storage, "data/a/x", RICH)).await;
    assert_eq!(failed.unwrap_err().kind, FailureKind::Stale);
    let trouble = home.report()[0].trouble.clone().unwrap();
    assert!(trouble.contains("made to fail"), "{trouble}");
    storage.hold();
    storage.fail(FailureKind::Unavailable);
    let ask = |payment| {
        let (home, storage) = (home.clone(), Arc::clone(&storage));
        let request = all_of(&storage, "data/a/x", payment);
        tokio::spawn(async move { give(&home, &storage, request).await })
    };
    let leader = ask(RICH);
    until(SOON, "the read is under way", || storage.reads() == 2).await;
    let joiner = ask(RICH);
    tokio::task::yield_now().await;
    storage.go_on();
    assert_eq!(
        leader.await.unwrap().unwrap_err().kind,
        FailureKind::Unavailable
    );
    assert_eq!(joiner.await.unwrap().unwrap(), read(5 * KIB, 5 * KIB));
    let report = &home.report()[0];
    assert_eq!((report.trouble.clone(), report.items), (None, 1));
}

#[tokio::test]
async fn items_with_another_home_are_returned_and_not_kept() {
    let names: Vec<String> = (0..40).map(|number| format!("data/a/{number}")).collect();
    let files: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), KIB)).collect();
    let storage = Storage::of(&files);
    let told = decision(1, &[0, 1], &[("a", 2 * MIB)]);
    let home = alone(&storage, &told);
    let homes = SlotTable::new(&told.homes);
    let mut kept = 0;
    for name in &names {
        let at_home = homes.home_of_slot(slot_of(&path(name), 0)) == Some(0);
        let given = give(&home, &storage, all_of(&storage, name, RICH)).await;
        assert_eq!(given.unwrap(), read(KIB, if at_home { KIB } else { 0 }));
        kept += u64::from(at_home);
    }
    assert!(kept > 5 && kept < 35);
    assert_eq!(home.report()[0].items, kept);
}

#[tokio::test]
async fn a_new_version_replaces_the_old_one() {
    let storage = Storage::of(&[("data/a/x", 5 * KIB)]);
    let home = alone(&storage, &decision(1, &[0], &[("a", 6 * KIB)]));
    let old = all_of(&storage, "data/a/x", RICH);
    give(&home, &storage, old.clone()).await.unwrap();
    storage.change("data/a/x", 6 * KIB);
    let given = give(&home, &storage, all_of(&storage, "data/a/x", RICH)).await;
    assert_eq!(given.unwrap(), read(6 * KIB, 6 * KIB));
    let report = &home.report()[0];
    assert_eq!((report.items, report.cached), (1, 6 * KIB));
    let stale = home.item(old).await.unwrap_err();
    assert_eq!(stale.kind, FailureKind::Stale);
}

#[tokio::test]
async fn shares_never_exceed_the_capacity_together() {
    let storage = Storage::of(&[]);
    let home = Home::new(options(HomeStorage::Memory, 100), storage.files(), None);
    home.apply(&decision(1, &[0], &[("a", 60), ("b", 30)]), 0, "nid0");
    let shares = |home: &Home| {
        let mut shares: Vec<u64> = home.report().iter().map(|report| report.share).collect();
        shares.sort_unstable();
        shares
    };
    assert_eq!(shares(&home), [30, 60]);
    home.apply(&decision(2, &[0], &[("a", 300), ("b", 100)]), 0, "nid0");
    assert_eq!(shares(&home), [25, 75]);
    // An older decision changes nothing.
    home.apply(&decision(1, &[0], &[("a", 60)]), 0, "nid0");
    assert_eq!(shares(&home), [25, 75]);
}

/// A whole dataset keeps its share, and a partly cached one is reduced.
#[tokio::test]
async fn partly_cached_datasets_shrink_before_whole_ones() {
    let storage = Storage::of(&[]);
    let home = Home::new(
        options(HomeStorage::Memory, 10 * MIB),
        storage.files(),
        None,
    );
    let mut told = decision(1, &[0], &[("part", 5 * MIB), ("whole", 8 * MIB)]);
    told.datasets[0].size = 20 * MIB;
    told.datasets[1].size = 8 * MIB;
    home.apply(&told, 0, "nid0");
    let shares = |home: &Home| -> Vec<u64> {
        let id = |at: usize| told.datasets[at].id;
        let of = |at| {
            home.report()
                .into_iter()
                .find(|share| share.dataset == id(at))
        };
        [0, 1]
            .map(|at| of(at).map_or(0, |share| share.share))
            .to_vec()
    };
    assert_eq!(shares(&home), [2 * MIB, 8 * MIB]);
    // Even the whole dataset does not fit.
    let home = Home::new(options(HomeStorage::Memory, 6 * MIB), storage.files(), None);
    home.apply(&told, 0, "nid0");
    assert_eq!(shares(&home), [0, 6 * MIB]);
}

/// Items are evicted at once, from all datasets in proportion. Later there is room again.
#[tokio::test]
async fn the_capacity_can_change() {
    let names: Vec<String> = ["a", "b"]
        .iter()
        .flat_map(|dataset| (0..100).map(move |at| format!("data/{dataset}/{at}")))
        .collect();
    let files: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), KIB)).collect();
    let storage = Storage::of(&files);
    for policy in ["uniform", "lru"] {
        let mut told = decision(1, &[0], &[("a", 100 * KIB), ("b", 100 * KIB)]);
        policy.clone_into(&mut told.policy);
        let home = alone(&storage, &told);
        let read_all = async || {
            for name in &names {
                let given = give(&home, &storage, all_of(&storage, name, RICH)).await;
                given.unwrap();
            }
        };
        let held = || -> u64 { home.report().iter().map(|share| share.cached).sum() };
        read_all().await;
        assert_eq!(held(), 200 * KIB);
        home.set_capacity(50 * KIB);
        home.apply(&told, 0, "nid0");
        assert_eq!(held(), 50 * KIB, "{policy}");
        read_all().await;
        assert_eq!(held(), 50 * KIB, "{policy}");
        home.set_capacity(RICH);
        home.apply(&told, 0, "nid0");
        read_all().await;
        assert_eq!(held(), 200 * KIB, "{policy}");
    }
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let storage = Storage::of(&[("data/a/x", KIB), ("data/b/x", KIB)]);
    let home = alone(&storage, &decision(1, &[0], &[("a", MIB)]));
    let kind = async |request| home.item(request).await.unwrap_err().kind;
    let good = all_of(&storage, "data/a/x", RICH);
    let mut outside = good.clone();
    outside.path = path("data/b/x");
    assert_eq!(kind(outside).await, FailureKind::Corrupt);
    let mut long = good.clone();
    long.wanted.len = KIB + 1;
    assert_eq!(kind(long.clone()).await, FailureKind::Corrupt);
    // A reader with a newer declaration goes on at another home.
    long.item.len = KIB / 2;
    long.wanted.len = KIB / 2;
    assert_eq!(kind(long).await, FailureKind::Unavailable);
    let unknown = all_of(&storage, "data/b/x", RICH);
    assert_eq!(kind(unknown).await, FailureKind::Unavailable);
    // Storage that returns blocks of another length.
    storage.shorten();
    assert_eq!(kind(good).await, FailureKind::Corrupt);
    assert_eq!(home.report()[0].cached, 0);
}

#[tokio::test]
async fn a_node_that_is_no_home_keeps_its_items_for_a_minute() {
    let storage = Storage::of(&[("data/a/x", KIB)]);
    let home = alone(&storage, &decision(1, &[0, 1], &[("a", MIB)]));
    let told = SlotTable::new(&[home_node(0), home_node(1)]);
    let here = told.home_of_slot(slot_of(&path("data/a/x"), 0)) == Some(0);
    let home = if here {
        home
    } else {
        alone(&storage, &decision(1, &[0], &[("a", MIB)]))
    };
    give(&home, &storage, all_of(&storage, "data/a/x", RICH))
        .await
        .unwrap();
    let now = Instant::now();
    home.apply(&decision(2, &[1], &[("a", MIB)]), 0, "nid0");
    home.tidy(now + Duration::from_secs(50));
    let held = all_of(&storage, "data/a/x", 0);
    assert_eq!(give(&home, &storage, held.clone()).await.unwrap(), HIT);
    // It returns, and is no home again for longer.
    home.apply(&decision(3, &[0, 1], &[("a", MIB)]), 0, "nid0");
    home.apply(&decision(4, &[1], &[("a", MIB)]), 0, "nid0");
    assert_eq!(give(&home, &storage, held.clone()).await.unwrap(), HIT);
    home.tidy(Instant::now() + Duration::from_secs(61));
    assert_eq!(home.report()[0].cached, 0);
    let unpaid = home.item(held).await.unwrap();
    assert_eq!(unpaid, ItemAnswer::Unpaid { cost: KIB });
}

#[tokio::test]
async fn a_removed_dataset_is_dropped_at_once_and_a_forgotten_one_after_a_minute() {
    let storage = Storage::of(&[("data/a/x", KIB), ("data/b/x", KIB)]);
    let home = alone(&storage, &decision(1, &[0], &[("a", MIB), ("b", MIB)]));
    for name in ["data/a/x", "data/b/x"] {
        let given = give(&home, &storage, all_of(&storage, name, RICH)).await;
        assert_eq!(given.unwrap(), read(KIB, KIB));
    }
    home.apply(&decision(2, &[0], &[("b", MIB)]), 0, "nid0");
    assert_eq!(home.report().len(), 1);
    // Another allocator without datasets.
    let mut empty = decision(1, &[0], &[]);
    empty.serial.term = 2;
    home.apply(&empty, 0, "nid0");
    home.tidy(Instant::now() + Duration::from_secs(50));
    let held = all_of(&storage, "data/b/x", 0);
    assert_eq!(give(&home, &storage, held).await.unwrap(), HIT);
    home.tidy(Instant::now() + Duration::from_secs(61));
    assert!(home.report().is_empty());
}

/// A job that is measured without a cache reads storage itself: it neither has items nor brings any.
#[tokio::test]
async fn an_uncached_request_reads_storage_for_itself() {
    let storage = Storage::of(&[("data/a/x", 5 * KIB)]);
    let home = alone(&storage, &decision(1, &[0], &[("a", MIB)]));
    let uncached = |payment| ItemRequest {
        is_uncached: true,
        ..all_of(&storage, "data/a/x", payment)
    };
    let first = give(&home, &storage, uncached(RICH)).await;
    assert_eq!(first.unwrap(), read(5 * KIB, 0));
    assert_eq!(home.report()[0].cached, 0);
    let kept = give(&home, &storage, all_of(&storage, "data/a/x", RICH)).await;
    assert_eq!(kept.unwrap(), read(5 * KIB, 5 * KIB));
    let again = give(&home, &storage, uncached(RICH)).await;
    assert_eq!(again.unwrap(), read(5 * KIB, 0));
    assert_eq!(storage.reads(), 3);
    let unpaid = home.item(uncached(1)).await;
    assert!(
        matches!(unpaid, Ok(ItemAnswer::Unpaid { cost }) if cost >= 5 * KIB),
        "{unpaid:?}"
    );
    storage.fail(FailureKind::Io);
    assert!(home.item(uncached(RICH)).await.is_err());
    assert_eq!(storage.reads(), 4);
}
