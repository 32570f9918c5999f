//! Items that are known by their content.

use super::*;
use crate::dataset::Catalog;
use crate::model::slots::layout_of;
use crate::testing::{NamedBytes, manifest};
use copperfs_overlay::{HeldRequest, Insertion};

/// The whole of these files of `storage`, below `data/NAME`, as a manifest.
pub(super) fn catalog_of(storage: &Storage, dataset: &str, names: &[&str]) -> Arc<Catalog> {
    let entries = names.iter().map(|name| {
        let file = path(&format!("data/{dataset}/{name}"));
        let (_, size) = storage.about(&file);
        NamedBytes {
            path: (*name).into(),
            size,
            offset: 0,
            bytes: storage.bytes(&file, 0, size).to_vec(),
        }
    });
    Arc::new(Catalog::new(manifest(&entries.collect::<Vec<_>>())))
}

/// Like [`decision`]; every dataset has a manifest.
pub(super) fn with_manifests(count: u64, datasets: &[(&str, u64)]) -> Decision {
    let mut decision = decision(count, &[0], datasets);
    for dataset in &mut decision.datasets {
        dataset.manifest = Some(path(&format!("data/{}.manifest", dataset.name)));
    }
    decision
}

pub(super) fn id_of(name: &str) -> u64 {
    DatasetDecision::id_of(name, &path(&format!("data/{name}")))
}

/// A request for the bytes `offset..offset + len` of an item, which the whole bytes of `item` are.
pub(super) fn by_content(
    storage: &Storage,
    name: &str,
    item: (u64, u64),
    wanted: (u64, u64),
) -> ItemRequest {
    let whole = storage.bytes(&path(name), item.0, item.1);
    let extent = |(start, len)| Extent { start, len };
    ItemRequest {
        item: extent(item),
        content: Some(ContentHash(*blake3::hash(&whole).as_bytes())),
        wanted: extent(wanted),
        ..request(storage, name, 0, 1, RICH)
    }
}

pub(super) fn all_by_content(storage: &Storage, name: &str) -> ItemRequest {
    let (_, size) = storage.about(&path(name));
    by_content(storage, name, (0, size), (0, size))
}

/// Copies in other places, and in other datasets, are one item: read and kept once.
#[tokio::test]
async fn equal_content_is_read_and_kept_once() {
    let storage = Storage::of(&[("data/a/x", 5 * KIB), ("data/b/y", 9 * KIB)]);
    storage.copy("data/a/x", "data/a/copy");
    storage.copy("data/a/x", "data/b/z");
    let home = alone(&storage, &with_manifests(1, &[("a", MIB), ("b", MIB)]));
    home.set_catalog(id_of("a"), &catalog_of(&storage, "a", &["copy", "x"]));
    home.set_catalog(id_of("b"), &catalog_of(&storage, "b", &["y", "z"]));
    let first = give(&home, &storage, all_by_content(&storage, "data/a/x")).await;
    assert_eq!(first.unwrap(), read(5 * KIB, 5 * KIB));
    for name in ["data/a/x", "data/a/copy", "data/b/z"] {
        let mut free = all_by_content(&storage, name);
        free.payment = 0;
        assert_eq!(give(&home, &storage, free).await.unwrap(), HIT, "{name}");
    }
    assert_eq!(storage.reads(), 1);
    let held: Vec<u64> = home.report().iter().map(|share| share.cached).collect();
    assert_eq!(held.iter().sum::<u64>(), 5 * KIB);
}

/// An item that another dataset keeps is resident, and ceases to be when that dataset gives it up and this one has no
/// room for it.
#[tokio::test]
async fn an_item_that_another_dataset_keeps_is_resident() {
    let storage = Storage::of(&[("data/a/x", 5 * KIB)]);
    storage.copy("data/a/x", "data/b/z");
    let mut told = with_manifests(1, &[("a", MIB), ("b", KIB)]);
    let home = alone(&storage, &told);
    home.set_catalog(id_of("a"), &catalog_of(&storage, "a", &["x"]));
    let b = catalog_of(&storage, "b", &["z"]);
    home.set_catalog(id_of("b"), &b);
    let held = async |homes: &[HomeNode]| {
        let request = HeldRequest {
            dataset: id_of("b"),
            layout: layout_of(b.manifest().identity(), homes),
            known: 0,
        };
        home.held(request).await.map(|held| held.bits.unwrap()[0])
    };
    assert_eq!(held(&told.homes).await, Ok(0));
    give(&home, &storage, all_by_content(&storage, "data/a/x"))
        .await
        .unwrap();
    assert_eq!(held(&told.homes).await, Ok(1));
    let mut free = all_by_content(&storage, "data/b/z");
    free.payment = 0;
    assert!(home.has(&free));
    told.serial.count += 1;
    told.datasets[0].keep = Keep::None;
    home.apply(&told, 0, "nid0");
    assert_eq!(held(&told.homes).await, Ok(0));
    assert!(!home.has(&free));
    // Bits for other homes would be taken for other items.
    let failure = held(&[home_node(0), home_node(1)]).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unavailable);
}

/// Only items that have changed are examined again, and the bits are always those of all items.
#[tokio::test]
async fn the_bits_of_changed_items_follow() {
    let names: Vec<String> = (0..40).map(|number| format!("f{number:02}")).collect();
    let files: Vec<(String, u64)> = names
        .iter()
        .map(|name| (format!("data/a/{name}"), KIB))
        .collect();
    let files: Vec<(&str, u64)> = files.iter().map(|(name, len)| (&**name, *len)).collect();
    let storage = Storage::of(&files);
    // Entries of equal content are one item, whose bits change together.
    storage.copy("data/a/f03", "data/a/f33");
    // Another dataset with a part of them.
    for name in &names[10..20] {
        storage.copy(&format!("data/a/{name}"), &format!("data/b/{name}"));
    }
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    let told = |count, room_of_a| with_manifests(count, &[("a", room_of_a), ("b", 6 * KIB)]);
    let home = alone(&storage, &told(1, MIB));
    let a = catalog_of(&storage, "a", &names);
    home.set_catalog(id_of("a"), &a);
    home.set_catalog(id_of("b"), &catalog_of(&storage, "b", &names[10..20]));
    let shares = ["a", "b"].map(|name| home.find(id_of(name)).unwrap());
    let (mut known, mut seen) = (0, 0);
    let mut random: u64 = 7;
    for step in 0..400_u64 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let drawn = usize::try_from(random >> 40).unwrap();
        match random >> 33 & 15 {
            0 => home.clear(&path("data/a")),
            1 => home.apply(&told(step + 2, 20 * KIB), 0, "nid0"),
            2 => home.apply(&told(step + 2, MIB), 0, "nid0"),
            3..7 => {
                let name = format!("data/b/{}", names[10 + drawn % 10]);
                drop(give(&home, &storage, all_by_content(&storage, &name)).await);
            }
            _ => {
                let name = format!("data/a/{}", names[drawn % names.len()]);
                drop(give(&home, &storage, all_by_content(&storage, &name)).await);
            }
        }
        let request = HeldRequest {
            dataset: id_of("a"),
            layout: layout_of(a.manifest().identity(), &told(0, 0).homes),
            known,
        };
        let answer = home.held(request).await.unwrap();
        let due = a
            .in_order()
            .map(|(item, _)| shares.iter().any(|share| share.holds(&item)));
        let due: Vec<bool> = due.collect();
        match answer.bits {
            Some(bits) => {
                let bit = |at: usize| bits[at / 8] >> (at % 8) & 1 == 1;
                let found: Vec<bool> = (0..due.len()).map(bit).collect();
                assert_eq!(found, due, "step {step}");
                seen = due.iter().filter(|held| **held).count();
            }
            None => assert_eq!(seen, due.iter().filter(|held| **held).count()),
        }
        known = answer.state;
    }
}

/// The share of a dataset that is declared again counts its changes from 0, so as many changes of it are not the same
/// ones.
#[tokio::test]
async fn the_bits_follow_a_dataset_that_is_declared_again() {
    let files = ["data/b/w", "data/b/x", "data/b/y"].map(|name| (name, 5 * KIB));
    let storage = Storage::of(&files);
    storage.copy("data/b/x", "data/a/x");
    let told = |count| with_manifests(count, &[("a", KIB), ("b", MIB)]);
    let home = alone(&storage, &told(1));
    let a = catalog_of(&storage, "a", &["x"]);
    home.set_catalog(id_of("a"), &a);
    let held = async || {
        let request = HeldRequest {
            dataset: id_of("a"),
            layout: layout_of(a.manifest().identity(), &told(0).homes),
            known: 0,
        };
        home.held(request).await.unwrap().bits.unwrap()[0]
    };
    let read = async |name: &str| {
        give(&home, &storage, all_by_content(&storage, name))
            .await
            .unwrap()
    };
    let b = catalog_of(&storage, "b", &["w", "x", "y"]);
    home.set_catalog(id_of("b"), &b);
    read("data/b/x").await;
    assert_eq!(held().await, 1);
    let mut without = told(2);
    drop(without.datasets.pop());
    home.apply(&without, 0, "nid0");
    home.apply(&told(3), 0, "nid0");
    home.set_catalog(id_of("b"), &b);
    // As many changes, and more, of other items.
    read("data/b/w").await;
    read("data/b/y").await;
    assert_eq!(held().await, 0);
}

/// A manifest can claim any hash, so a private dataset's items answer no other dataset, whatever that one claims.
#[tokio::test]
async fn a_forged_manifest_gets_nothing_of_a_private_dataset() {
    let storage = Storage::of(&[("data/a/x", 5 * KIB), ("data/b/z", 5 * KIB)]);
    let mut told = with_manifests(1, &[("a", MIB), ("b", MIB)]);
    told.datasets[0].is_private = true;
    let home = alone(&storage, &told);
    home.set_catalog(id_of("a"), &catalog_of(&storage, "a", &["x"]));
    // The manifest of b says that z has the bytes of x.
    let secret = storage.bytes(&path("data/a/x"), 0, 5 * KIB);
    let hash = ContentHash(*blake3::hash(&secret).as_bytes());
    let forged = Arc::new(Catalog::new(manifest(&[NamedBytes {
        path: "z".into(),
        size: 5 * KIB,
        offset: 0,
        bytes: secret.to_vec(),
    }])));
    home.set_catalog(id_of("b"), &forged);
    let own = all_by_content(&storage, "data/a/x");
    assert_eq!(
        give(&home, &storage, own).await.unwrap(),
        read(5 * KIB, 5 * KIB)
    );
    let claimed = ItemRequest {
        content: Some(hash),
        ..all_by_content(&storage, "data/b/z")
    };
    assert!(!home.has(&claimed));
    let failure = home.item(claimed.clone()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Stale, "{failure}");
    assert_eq!(home.content(hash).await, None);
    let request = HeldRequest {
        dataset: id_of("b"),
        layout: layout_of(forged.manifest().identity(), &told.homes),
        known: 0,
    };
    assert_eq!(home.held(request).await.unwrap().bits.unwrap()[0], 0);
    // Nor does it inherit them.
    told.serial.count += 1;
    told.datasets[0].keep = Keep::None;
    home.apply(&told, 0, "nid0");
    tokio::task::yield_now().await;
    assert_eq!((cached(&home, "a"), cached(&home, "b")), (0, 0));
    assert!(home.item(claimed).await.is_err());
}

/// An item that is read again before the bytes that were given up are removed keeps its new bytes.
#[tokio::test]
async fn an_item_that_is_back_survives_the_eviction_of_its_old_bytes() {
    let storage = Storage::of(&[("data/a/x", 5 * KIB)]);
    let home = alone(&storage, &with_manifests(1, &[("a", MIB)]));
    home.set_catalog(id_of("a"), &catalog_of(&storage, "a", &["x"]));
    let ask = || give(&home, &storage, all_by_content(&storage, "data/a/x"));
    assert_eq!(ask().await.unwrap(), read(5 * KIB, 5 * KIB));
    let share = home.find(id_of("a")).unwrap();
    let given_up = share.set_bytes(0);
    drop(share.set_bytes(MIB));
    assert_eq!(ask().await.unwrap(), read(5 * KIB, 5 * KIB));
    drop(given_up);
    assert_eq!(ask().await.unwrap(), HIT);
}

/// Under the policy `lru` a share alone has no limit, so inserted items take their place in the order of reads.
#[tokio::test]
async fn inserted_items_never_exceed_the_capacity() {
    let names: Vec<String> = (0..8).map(|number| format!("f{number}")).collect();
    let files: Vec<(String, u64)> = names
        .iter()
        .map(|name| (format!("data/a/{name}"), 4 * KIB))
        .collect();
    let files: Vec<(&str, u64)> = files.iter().map(|(name, len)| (&**name, *len)).collect();
    let storage = Storage::of(&files);
    for policy in [Policy::Lru, Policy::Greedy] {
        let mut told = with_manifests(1, &[("a", 10 * KIB), ("b", 0)]);
        policy.name().clone_into(&mut told.policy);
        let place = options(HomeStorage::Memory, 10 * KIB);
        let home = Home::new(place, storage.files(), None);
        home.apply(&told, 0, "nid0");
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        home.set_catalog(id_of("a"), &catalog_of(&storage, "a", &names));
        for (name, _) in &files {
            let bytes = storage.bytes(&path(name), 0, 4 * KIB);
            let hash = ContentHash(*blake3::hash(&bytes).as_bytes());
            let inserted = home.insert(hash, bytes).await;
            assert!(cached(&home, "a") <= 10 * KIB, "{policy:?}");
            if policy == Policy::Lru {
                assert_eq!(inserted, Insertion::Kept);
            }
        }
        assert_eq!(cached(&home, "a"), 8 * KIB, "{policy:?}");
    }
}

/// Three items of 5 KiB which are in both datasets, and one which is in the first only; read for the first.
async fn overlapping(
    storage_of_home: HomeStorage,
    room_of_b: u64,
) -> (Home, Arc<Storage>, Decision) {
    let files = ["data/a/x0", "data/a/x1", "data/a/x2", "data/a/own"];
    let storage = Storage::of(&files.map(|name| (name, 5 * KIB)));
    for index in 0..3 {
        storage.copy(&format!("data/a/x{index}"), &format!("data/b/y{index}"));
    }
    let told = with_manifests(1, &[("a", MIB), ("b", room_of_b)]);
    let home = Home::new(options(storage_of_home, RICH), storage.files(), None);
    home.apply(&told, 0, "nid0");
    home.set_catalog(
        id_of("a"),
        &catalog_of(&storage, "a", &["own", "x0", "x1", "x2"]),
    );
    home.set_catalog(id_of("b"), &catalog_of(&storage, "b", &["y0", "y1", "y2"]));
    // A dataset takes no items before its item store is open.
    for name in ["a", "b"] {
        home.find(id_of(name)).unwrap().opened(SOON).await;
    }
    for name in files {
        let found = give(&home, &storage, all_by_content(&storage, name)).await;
        assert_eq!(found.unwrap(), read(5 * KIB, 5 * KIB));
    }
    // Items are written after the answer.
    until(SOON, "all items are kept", || {
        cached(&home, "a") == 20 * KIB
    })
    .await;
    (home, storage, told)
}

/// The number of bytes that the dataset `name` holds.
fn cached(home: &Home, name: &str) -> u64 {
    let reports = home.report();
    let found = reports.iter().find(|share| share.dataset == id_of(name));
    found.map_or(0, |share| share.cached)
}

/// The items that a dataset gives up pass to another that has them too, as far as it has room, and are not read again.
#[tokio::test]
async fn items_that_are_given_up_pass_to_another_dataset() {
    for (room, due) in [(MIB, 15 * KIB), (11 * KIB, 10 * KIB), (KIB, 0)] {
        let (home, storage, mut told) = overlapping(HomeStorage::Memory, room).await;
        assert_eq!((cached(&home, "a"), cached(&home, "b")), (20 * KIB, 0));
        told.serial.count += 1;
        told.datasets[0].keep = Keep::None;
        home.apply(&told, 0, "nid0");
        assert_eq!(cached(&home, "a"), 0);
        until(SOON, "the items have passed on", || {
            cached(&home, "b") == due
        })
        .await;
        let mut hits = 0;
        for index in 0..3 {
            let mut free = all_by_content(&storage, &format!("data/b/y{index}"));
            free.payment = 0;
            hits += u64::from(home.has(&free));
        }
        assert_eq!((hits * 5 * KIB, storage.reads()), (due, 4), "{room}");
    }
}

/// A budget that goes from one dataset to another takes the items along.
#[tokio::test]
async fn items_follow_a_budget_from_one_dataset_to_another() {
    let (home, storage, mut told) = overlapping(HomeStorage::Memory, 0).await;
    told.serial.count += 1;
    (told.datasets[0].budget, told.datasets[1].budget) = (0, MIB);
    home.apply(&told, 0, "nid0");
    // The item that is being passed on is waited for.
    for index in 0..3 {
        let mut free = all_by_content(&storage, &format!("data/b/y{index}"));
        free.payment = 0;
        assert_eq!(give(&home, &storage, free).await.unwrap(), HIT);
    }
    assert_eq!((cached(&home, "b"), storage.reads()), (15 * KIB, 4));
}

/// A clear drops items, and no other dataset takes them.
#[tokio::test]
async fn items_that_are_cleared_pass_to_no_other_dataset() {
    let (home, storage, _) = overlapping(HomeStorage::Memory, MIB).await;
    home.clear(&path("data/a"));
    tokio::task::yield_now().await;
    assert_eq!((cached(&home, "a"), cached(&home, "b")), (0, 0));
    let again = give(&home, &storage, all_by_content(&storage, "data/b/y0")).await;
    assert_eq!(again.unwrap(), read(5 * KIB, 5 * KIB));
}

/// The items of a dataset on a disk pass on before its directory is removed.
#[tokio::test]
async fn the_items_of_a_removed_dataset_pass_to_another_on_a_disk() {
    let directory = tempfile::tempdir().unwrap();
    let place = disk::place(directory.path(), 0);
    let (home, storage, mut told) = overlapping(place, MIB).await;
    told.serial.count += 1;
    drop(told.datasets.remove(0));
    home.apply(&told, 0, "nid0");
    until(SOON, "the items have passed on", || {
        cached(&home, "b") == 15 * KIB
    })
    .await;
    for index in 0..3 {
        let mut free = all_by_content(&storage, &format!("data/b/y{index}"));
        free.payment = 0;
        assert_eq!(give(&home, &storage, free).await.unwrap(), HIT);
    }
    assert_eq!(storage.reads(), 4);
    home.close().await;
}

/// A request by another dataset joins the read in progress.
#[tokio::test]
async fn equal_content_is_read_once_at_the_same_time() {
    let storage = Storage::of(&[("data/a/x", 2 * MIB)]);
    storage.copy("data/a/x", "data/b/z");
    let home = alone(
        &storage,
        &with_manifests(1, &[("a", 4 * MIB), ("b", 4 * MIB)]),
    );
    home.set_catalog(id_of("a"), &catalog_of(&storage, "a", &["x"]));
    home.set_catalog(id_of("b"), &catalog_of(&storage, "b", &["z"]));
    storage.hold();
    let requests = ["data/a/x", "data/b/z"].map(|name| all_by_content(&storage, name));
    let answers = requests.map(|request| {
        let (home, storage) = (home.clone(), Arc::clone(&storage));
        tokio::spawn(async move { give(&home, &storage, request).await })
    });
    until(SOON, "the read has begun", || storage.reads() == 1).await;
    storage.go_on();
    let mut charged = 0;
    for answer in answers {
        charged += answer.await.unwrap().unwrap().charged;
    }
    assert_eq!((charged, storage.reads()), (2 * MIB, 1));
}

/// Bytes that do not match are neither returned as that content nor kept, for any reader.
#[tokio::test]
async fn other_bytes_are_never_given_under_a_hash() {
    let storage = Storage::of(&[("data/a/x", 5 * KIB), ("data/a/long", 3 * MIB)]);
    let home = alone(&storage, &with_manifests(1, &[("a", 8 * MIB)]));
    home.set_catalog(id_of("a"), &catalog_of(&storage, "a", &["long", "x"]));
    for name in ["data/a/x", "data/a/long"] {
        let honest = all_by_content(&storage, name);
        storage.change(name, honest.size);
        let (version, _) = storage.about(&path(name));
        let changed = ItemRequest { version, ..honest };
        let failure = home.item(changed.clone()).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Stale, "{failure}");
        assert!(
            failure
                .to_string()
                .contains("other bytes than in the manifest")
        );
        // Without the hash they are the file's bytes, and are not kept.
        let (content, size) = (None, changed.size);
        for _ in 0..2 {
            let loose = ItemRequest {
                content,
                ..changed.clone()
            };
            assert_eq!(give(&home, &storage, loose).await.unwrap(), read(size, 0));
        }
    }
    assert_eq!(home.report()[0].cached, 0);
}

/// Entries within a file begin anywhere. Each is read whole, in whole pages, and kept alone.
#[tokio::test]
async fn an_entry_in_a_file_is_an_item_of_its_own() {
    let storage = Storage::of(&[("data/a/shard", 6 * MIB)]);
    let name = "data/a/shard";
    let entry = |offset, len| NamedBytes {
        path: "shard".into(),
        size: 6 * MIB,
        offset,
        bytes: storage.bytes(&path(name), offset, len).to_vec(),
    };
    let entries = [entry(5, 100), entry(5000, 3 * MIB)];
    let home = alone(&storage, &with_manifests(1, &[("a", 8 * MIB)]));
    home.set_catalog(id_of("a"), &Arc::new(Catalog::new(manifest(&entries))));
    // The middle of the first, which is read whole: 4 KiB of the file.
    let small = by_content(&storage, name, (5, 100), (50, 10));
    assert_eq!(
        give(&home, &storage, small.clone()).await.unwrap(),
        read(4 * KIB, 100)
    );
    assert_eq!(give(&home, &storage, small).await.unwrap(), HIT);
    let whole = by_content(&storage, name, (5000, 3 * MIB), (5000, 3 * MIB));
    let cost = 3 * MIB + 4 * KIB;
    let poor = ItemRequest {
        payment: cost - 1,
        ..whole.clone()
    };
    assert_eq!(home.item(poor).await.unwrap(), ItemAnswer::Unpaid { cost });
    assert_eq!(
        give(&home, &storage, whole).await.unwrap(),
        read(cost, 3 * MIB)
    );
    for (offset, len) in [(5000, 1), (5000 + MIB, MIB), (5000 + 3 * MIB - 1, 1)] {
        let part = by_content(&storage, name, (5000, 3 * MIB), (offset, len));
        assert_eq!(give(&home, &storage, part).await.unwrap(), HIT);
    }
    assert_eq!(
        (home.report()[0].items, home.report()[0].cached),
        (2, 3 * MIB + 100)
    );
}

/// A dataset that is declared again with a manifest, or without one, keeps nothing under its old names.
#[tokio::test]
async fn items_change_their_names_with_the_declaration() {
    let storage = Storage::of(&[("data/a/x", 5 * KIB)]);
    let home = alone(&storage, &decision(1, &[0], &[("a", MIB)]));
    let by_path = || give(&home, &storage, all_of(&storage, "data/a/x", RICH));
    by_path().await.unwrap();
    assert_eq!(home.report()[0].items, 1);
    home.apply(&with_manifests(2, &[("a", MIB)]), 0, "nid0");
    assert_eq!(home.report()[0].items, 0);
    // The manifest is not loaded yet. Its items are known by their hash already.
    let by_hash = || give(&home, &storage, all_by_content(&storage, "data/a/x"));
    assert_eq!(by_hash().await.unwrap(), read(5 * KIB, 5 * KIB));
    home.set_catalog(id_of("a"), &catalog_of(&storage, "a", &["x"]));
    assert_eq!(by_hash().await.unwrap(), HIT);
    assert_eq!(by_path().await.unwrap(), read(5 * KIB, 0));
    home.apply(&decision(3, &[0], &[("a", MIB)]), 0, "nid0");
    assert_eq!(home.report()[0].items, 0);
    // A catalog that was loaded for the earlier declaration has no effect.
    home.set_catalog(id_of("a"), &catalog_of(&storage, "a", &["x"]));
    assert_eq!(by_path().await.unwrap(), read(5 * KIB, 5 * KIB));
    assert_eq!(by_path().await.unwrap(), HIT);
}

/// Only what the manifest names is kept.
#[tokio::test]
async fn an_item_that_the_manifest_does_not_name_is_not_kept() {
    let storage = Storage::of(&[("data/a/x", 5 * KIB), ("data/a/y", 5 * KIB)]);
    let home = alone(&storage, &with_manifests(1, &[("a", MIB)]));
    home.set_catalog(id_of("a"), &catalog_of(&storage, "a", &["x"]));
    for _ in 0..2 {
        let other = give(&home, &storage, all_by_content(&storage, "data/a/y")).await;
        assert_eq!(other.unwrap(), read(5 * KIB, 0));
    }
    assert_eq!(home.report()[0].items, 0);
}
