//! Datasets that are kept in chunks.

use super::content::{all_by_content, by_content, catalog_of, id_of, with_manifests};
use super::*;
use copperfs_policy::chunks::{ChunkReport, ChunkState, ResidentChunk};

/// A hundred files of 1 KiB: ten chunks of ten entries, one in each of ten consecutive tenths.
fn names() -> Vec<String> {
    (0..100).map(|number| format!("f{number:02}")).collect()
}

fn storage() -> Arc<Storage> {
    let files = names()
        .into_iter()
        .map(|name| (format!("data/a/{name}"), KIB));
    let files: Vec<(String, u64)> = files.collect();
    let files: Vec<(&str, u64)> = files.iter().map(|(name, len)| (&**name, *len)).collect();
    Storage::of(&files)
}

fn catalog(storage: &Storage) -> Arc<Catalog> {
    let names = names();
    catalog_of(
        storage,
        "a",
        &names.iter().map(|name| &**name).collect::<Vec<_>>(),
    )
}

/// The entries of a chunk: each tenth of the dataset has one.
fn entries_of(chunk: u32) -> Vec<String> {
    (0..10)
        .map(|tenth| format!("data/a/f{:02}", tenth * 10 + chunk))
        .collect()
}

/// A decision in which these chunks are resident, with a budget for two.
fn resident(count: u64, chunks: &[u32]) -> Decision {
    let mut decision = with_manifests(count, &[("a", 20 * KIB)]);
    let dataset = &mut decision.datasets[0];
    (dataset.keep, dataset.size, dataset.entries) = (Keep::Chunks, 100 * KIB, 100);
    assert_eq!(dataset.resident_bytes_max(), Some(20 * KIB));
    let chunks = chunks.iter().map(|&chunk| ResidentChunk {
        chunk,
        state: ChunkState::Loading,
        held: 0,
        lost: 0,
        entries: 10,
    });
    dataset.resident = Some(chunks.collect());
    decision
}

fn report(chunk: u32, held: u64, lost: u64) -> ChunkReport {
    ChunkReport {
        chunk,
        held,
        lost,
        pending: 0,
    }
}

async fn read_all(home: &Home, storage: &Storage, names: &[String]) {
    for name in names {
        drop(give(home, storage, all_by_content(storage, name)).await);
    }
}

#[tokio::test]
async fn the_entries_of_resident_chunks_are_kept_and_no_others() {
    let storage = storage();
    let home = alone(&storage, &resident(1, &[3, 4]));
    home.set_catalog(id_of("a"), &catalog(&storage));
    // The entries are known, so the room for the chunks is, too.
    home.apply(&resident(1, &[3, 4]), 0, "nid0");
    for chunk in [2, 3, 4] {
        read_all(&home, &storage, &entries_of(chunk)).await;
    }
    let share = home.report().remove(0);
    assert_eq!(
        (share.items, share.cached, share.share),
        (20, 20 * KIB, 20 * KIB)
    );
    assert_eq!(share.chunks, [report(3, 10, 0), report(4, 10, 0)]);
    assert_eq!((storage.reads(), home.loaded_chunks()), (30, 2));

    home.apply(&resident(2, &[4, 5]), 0, "nid0");
    let share = home.report().remove(0);
    assert_eq!((share.items, share.cached), (10, 10 * KIB));
    assert_eq!(share.chunks, [report(4, 10, 0), report(5, 0, 0)]);
    assert_eq!(home.loaded_chunks(), 1);
    read_all(&home, &storage, &entries_of(4)).await;
    assert_eq!(storage.reads(), 30, "the chunk that stays is read no more");
    read_all(&home, &storage, &entries_of(5)[..4]).await;
    assert_eq!(home.report()[0].chunks, [report(4, 10, 0), report(5, 4, 0)]);
}

/// Each home counts its part, and has room for exactly that, although its part of the chunks is another one than
/// its part of the dataset.
#[tokio::test]
async fn homes_divide_chunks_by_the_items_at_home() {
    let storage = storage();
    let mut decision = resident(1, &[0, 1]);
    decision.homes = (0..3).map(home_node).collect();
    let homes: Vec<Home> = (0..3)
        .map(|rank| {
            let home = Home::new(options(HomeStorage::Memory, RICH), storage.files(), None);
            home.apply(&decision, rank, &format!("nid{rank}"));
            home.set_catalog(id_of("a"), &catalog(&storage));
            home.apply(&decision, rank, &format!("nid{rank}"));
            home
        })
        .collect();
    for home in &homes {
        // An item at home elsewhere is given and not kept.
        read_all(home, &storage, &entries_of(0)).await;
        read_all(home, &storage, &entries_of(1)).await;
    }
    let shares: Vec<ShareReport> = homes.iter().map(|home| home.report().remove(0)).collect();
    for share in &shares {
        assert_eq!(share.cached, share.share);
        assert!(share.cached < 20 * KIB);
    }
    for at in [0, 1] {
        let held: u64 = shares.iter().map(|share| share.chunks[at].held).sum();
        let lost: u64 = shares.iter().map(|share| share.chunks[at].lost).sum();
        assert_eq!((held, lost), (10, 0));
    }
}

/// A long entry consists of several items, which may be at home on different nodes. Its chunk is complete only when all
/// of them are there.
#[tokio::test]
async fn a_chunk_waits_for_all_items_of_its_long_entries() {
    let mut files: Vec<(String, u64)> = names()
        .into_iter()
        .map(|name| (format!("data/a/{name}"), KIB))
        .collect();
    files[13].1 = 9 * MIB;
    let files: Vec<(&str, u64)> = files.iter().map(|(name, len)| (&**name, *len)).collect();
    let storage = Storage::of(&files);
    let mut told = resident(1, &[3, 4]);
    told.homes = (0..2).map(home_node).collect();
    told.datasets[0].budget = 100 * MIB;
    told.datasets[0].size = 109 * MIB;
    let homes: Vec<Home> = (0..2)
        .map(|rank| {
            let home = Home::new(options(HomeStorage::Memory, RICH), storage.files(), None);
            for _ in 0..2 {
                home.apply(&told, rank, &format!("nid{rank}"));
                home.set_catalog(id_of("a"), &catalog(&storage));
            }
            home
        })
        .collect();
    let pieces: Vec<ItemRequest> = (0..3)
        .map(|part| {
            let start = part * ITEM_BYTES_MAX;
            let len = (9 * MIB - start).min(ITEM_BYTES_MAX);
            by_content(&storage, "data/a/f13", (start, len), (start, len))
        })
        .collect();
    let sums = || {
        let reports = homes.iter().map(|home| home.report().remove(0).chunks[0]);
        reports.fold((0, 0), |(held, pending), one| {
            (held + one.held, pending + one.pending)
        })
    };
    for home in &homes {
        read_all(home, &storage, &entries_of(3)).await;
    }
    // `read_all` reads a file of more than one item not at all.
    assert_eq!(sums(), (9, 2));
    for (part, due) in [(2, (9, 1)), (0, (10, 1)), (1, (10, 0))] {
        for home in &homes {
            give(home, &storage, pieces[part].clone()).await.unwrap();
        }
        assert_eq!(sums(), due, "part {part}");
    }
    let loaded = homes.iter().map(Home::loaded_chunks);
    assert_eq!(loaded.collect::<Vec<_>>(), [1, 1]);
}

#[tokio::test]
async fn entries_that_cannot_be_read_or_kept_count_as_lost() {
    let storage = storage();
    // Room for half of the chunks.
    let half = |count| {
        let mut decision = resident(count, &[0, 1]);
        decision.datasets[0].budget = 10 * KIB;
        decision
    };
    let home = alone(&storage, &half(1));
    home.set_catalog(id_of("a"), &catalog(&storage));
    home.apply(&half(1), 0, "nid0");
    storage.fail(FailureKind::Io);
    read_all(&home, &storage, &entries_of(0)).await;
    assert_eq!(home.report()[0].chunks, [report(0, 9, 1), report(1, 0, 0)]);
    read_all(&home, &storage, &entries_of(1)).await;
    assert_eq!(home.report()[0].chunks, [report(0, 9, 1), report(1, 1, 9)]);
    // With room for all, they are missing again until they are read.
    home.apply(&resident(2, &[0, 1]), 0, "nid0");
    assert_eq!(home.report()[0].chunks, [report(0, 9, 0), report(1, 1, 0)]);
    for chunk in [0, 1] {
        read_all(&home, &storage, &entries_of(chunk)).await;
    }
    assert_eq!(
        home.report()[0].chunks,
        [report(0, 10, 0), report(1, 10, 0)]
    );
}

/// An entry that another dataset keeps is not kept again, and counts as held, also after that dataset has given it up.
#[tokio::test]
async fn an_entry_that_another_dataset_keeps_is_held() {
    let storage = storage();
    storage.copy("data/a/f00", "data/b/copy");
    let mut decision = resident(1, &[0, 1]);
    let mut b = with_manifests(1, &[("b", MIB)]).datasets.remove(0);
    (b.size, b.entries) = (KIB, 1);
    decision.datasets.push(b);
    let home = alone(&storage, &decision);
    home.set_catalog(id_of("a"), &catalog(&storage));
    home.set_catalog(id_of("b"), &catalog_of(&storage, "b", &["copy"]));
    home.apply(&decision, 0, "nid0");
    read_all(&home, &storage, &["data/b/copy".to_owned()]).await;
    read_all(&home, &storage, &entries_of(0)).await;
    assert_eq!(storage.reads(), 10);
    let of_a = |reports: Vec<ShareReport>| {
        let a = reports
            .into_iter()
            .find(|share| share.dataset == id_of("a"));
        a.unwrap().chunks
    };
    assert_eq!(of_a(home.report()), [report(0, 10, 0), report(1, 0, 0)]);
    decision.serial.count += 1;
    decision.datasets[1].keep = Keep::None;
    home.apply(&decision, 0, "nid0");
    until(SOON, "the entry has passed on", || {
        of_a(home.report()) == [report(0, 10, 0), report(1, 0, 0)]
    })
    .await;
    assert_eq!(storage.reads(), 10);
}
