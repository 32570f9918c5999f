//! Items on a disk: after a restart, damaged, without room, and removed.

use super::*;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(super) fn place(directory: &Path, reserve_percent: u8) -> HomeStorage {
    HomeStorage::Disk {
        directory: directory.to_owned(),
        reserve_percent,
        // A busy machine's disk may stall for a while, which is not what these tests are about.
        disk_timeout: SOON,
    }
}

fn on_disk(directory: &Path, storage: &Arc<Storage>, decision: &Decision) -> Home {
    let home = Home::new(options(place(directory, 0), RICH), storage.files(), None);
    home.apply(decision, 0, "nid0");
    home
}

/// Returns all content files of all datasets.
fn content_files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let list = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    for dataset in list(directory.join("datasets")) {
        for fan in list(dataset.path().join("content")) {
            found.extend(list(fan.path()).map(|entry| entry.path()));
        }
    }
    found
}

fn twenty() -> (Arc<Storage>, Vec<String>) {
    let names: Vec<String> = (0..20).map(|number| format!("data/a/{number}")).collect();
    let files: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 2 * KIB)).collect();
    (Storage::of(&files), names)
}

async fn fill(home: &Home, storage: &Storage, names: &[String]) {
    for name in names {
        give(home, storage, all_of(storage, name, RICH))
            .await
            .unwrap();
    }
}

/// Creates a home that has written twenty items.
async fn twenty_kept(told: &Decision) -> (TempDir, Home, Arc<Storage>, Vec<String>) {
    let scratch = tempfile::tempdir().unwrap();
    let (storage, names) = twenty();
    let home = on_disk(scratch.path(), &storage, told);
    fill(&home, &storage, &names).await;
    until(SOON, "all is written", || home.report()[0].items == 20).await;
    let on_disk = all_of(&storage, &names[0], 0);
    assert_eq!(home.try_item(&on_disk), None, "a disk may be slow");
    (scratch, home, storage, names)
}

async fn hits(home: &Home, storage: &Storage, names: &[String]) -> usize {
    let mut hits = 0;
    for name in names {
        let answer = home.item(all_of(storage, name, 0)).await.unwrap();
        hits += usize::from(matches!(answer, ItemAnswer::Bytes { cached: true, .. }));
    }
    hits
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_finds_the_share_again() {
    let large = Storage::of(&[("data/a/large", 9 * MIB)]);
    let told = decision(1, &[0], &[("a", 10 * MIB)]);
    let (scratch, home, storage, names) = twenty_kept(&told).await;
    home.close().await;
    drop(home);
    // With most of a stripe: its block 1 is removed below.
    let home = on_disk(scratch.path(), &large, &told);
    let stripe = request(&large, "data/a/large", 0, 4 * MIB, RICH);
    give(&home, &large, stripe).await.unwrap();
    until(SOON, "the stripe too", || home.report()[0].items == 21).await;
    home.close().await;
    drop(home);
    let block = large.bytes(&path("data/a/large"), MIB, MIB);
    let name = blake3::hash(&block).to_hex();
    let block = content_files(scratch.path()).into_iter().find(|file| {
        let (fan, rest) = name.split_at(2);
        file.ends_with(format!("{fan}/{rest}"))
    });
    fs::remove_file(block.unwrap()).unwrap();

    let home = on_disk(scratch.path(), &storage, &told);
    until(SOON, "it is open", || home.report()[0].items == 20).await;
    assert_eq!(hits(&home, &storage, &names).await, 20);
    assert_eq!(home.report()[0].cached, 20 * 2 * KIB);
    until(SOON, "the rest of the stripe is removed", || {
        content_files(scratch.path()).len() == 20
    })
    .await;
    home.close().await;
    drop(home);

    // Half of the budget means half of the items, on the disk as well.
    let less = decision(2, &[0], &[("a", 20 * KIB)]);
    let home = on_disk(scratch.path(), &storage, &less);
    until(SOON, "it is open", || home.report()[0].items == 10).await;
    assert_eq!(hits(&home, &storage, &names).await, 10);
    until(SOON, "the others are gone", || {
        content_files(scratch.path()).len() == 10
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_index_is_rebuilt_from_the_content() {
    let told = decision(1, &[0], &[("a", MIB)]);
    let (scratch, home, storage, names) = twenty_kept(&told).await;
    home.close().await;
    drop(home);
    let datasets = fs::read_dir(scratch.path().join("datasets")).unwrap();
    for dataset in datasets {
        fs::remove_file(dataset.unwrap().path().join("index.log")).unwrap();
    }
    let home = on_disk(scratch.path(), &storage, &told);
    assert_eq!(hits(&home, &storage, &names).await, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_before_the_first_decision_names_the_node_loses_nothing() {
    let told = decision(1, &[0], &[("a", MIB)]);
    let (scratch, home, storage, names) = twenty_kept(&told).await;
    home.close().await;
    drop(home);
    // The first decision after the restart does not name the node.
    let without = decision(2, &[1], &[("a", MIB)]);
    let home = on_disk(scratch.path(), &storage, &without);
    let share = home.find(told.datasets[0].id).unwrap();
    share.opened(Duration::from_secs(10)).await;
    home.apply(&decision(3, &[0], &[("a", MIB)]), 0, "nid0");
    assert_eq!(hits(&home, &storage, &names).await, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_items_are_read_again() {
    let told = decision(1, &[0], &[("a", MIB)]);
    let (scratch, home, storage, names) = twenty_kept(&told).await;
    for (number, file) in content_files(scratch.path()).into_iter().enumerate() {
        let mut bytes = fs::read(&file).unwrap();
        match number % 4 {
            0 => bytes[5] ^= 1,
            1 => bytes.truncate(7),
            2 => {
                fs::remove_file(&file).unwrap();
                continue;
            }
            _ => continue,
        }
        fs::write(&file, bytes).unwrap();
    }
    assert_eq!(hits(&home, &storage, &names).await, 5);
    assert_eq!(home.report()[0].items, 5);
    fill(&home, &storage, &names).await;
    until(SOON, "all is kept again", || home.report()[0].items == 20).await;
    assert_eq!(hits(&home, &storage, &names).await, 20);
    assert_eq!(storage.reads(), 35);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_without_room_costs_hits_and_no_request() {
    let scratch = tempfile::tempdir().unwrap();
    let (storage, names) = twenty();
    let full = options(place(scratch.path(), 100), RICH);
    let home = Home::new(full, storage.files(), None);
    home.apply(&decision(1, &[0], &[("a", MIB)]), 0, "nid0");
    fill(&home, &storage, &names).await;
    until(SOON, "nothing is under way", || {
        home.report()[0].items == 0
            && home
                .find(decision(1, &[], &[("a", 0)]).datasets[0].id)
                .unwrap()
                .stats()
                .reserved
                == 0
    })
    .await;
    assert_eq!(content_files(scratch.path()).len(), 0);
    // A directory that cannot be created because a file has its name.
    let occupied = scratch.path().join("occupied");
    fs::create_dir(&occupied).unwrap();
    fs::write(occupied.join("datasets"), b"").unwrap();
    let home = on_disk(&occupied, &storage, &decision(1, &[0], &[("a", MIB)]));
    fill(&home, &storage, &names).await;
    let trouble = home.report()[0].trouble.clone().unwrap();
    assert!(trouble.contains("cannot make"), "{trouble}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_directory_costs_hits_and_no_request() {
    let told = decision(1, &[0], &[("a", MIB)]);
    let (scratch, home, storage, names) = twenty_kept(&told).await;
    fs::remove_dir_all(scratch.path().join("datasets")).unwrap();
    assert_eq!(hits(&home, &storage, &names).await, 0);
    fill(&home, &storage, &names).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_content_is_removed_with_its_last_item() {
    let scratch = tempfile::tempdir().unwrap();
    let storage = Storage::of(&[("data/a/x", 2 * KIB)]);
    storage.copy("data/a/x", "data/a/y");
    let names = ["data/a/x", "data/a/y"].map(String::from);
    let home = on_disk(scratch.path(), &storage, &decision(1, &[0], &[("a", MIB)]));
    fill(&home, &storage, &names).await;
    until(SOON, "both are kept", || home.report()[0].items == 2).await;
    assert_eq!(content_files(scratch.path()).len(), 1);
    home.apply(&decision(2, &[0], &[("a", 2 * KIB)]), 0, "nid0");
    assert_eq!(home.report()[0].items, 1);
    assert_eq!(hits(&home, &storage, &names).await, 1);
    home.apply(&decision(3, &[0], &[("a", 0)]), 0, "nid0");
    until(SOON, "it is gone", || {
        content_files(scratch.path()).is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_dataset_leaves_no_directory_and_may_come_back() {
    let scratch = tempfile::tempdir().unwrap();
    let (storage, names) = twenty();
    let with = |count| decision(count, &[0], &[("a", MIB)]);
    let home = on_disk(scratch.path(), &storage, &with(1));
    for round in 0..3 {
        fill(&home, &storage, &names).await;
        until(SOON, "all is written", || home.report()[0].items == 20).await;
        home.apply(&decision(2 * round + 2, &[0], &[]), 0, "nid0");
        if round > 0 {
            until(SOON, "it is gone", || {
                fs::read_dir(scratch.path().join("datasets"))
                    .unwrap()
                    .count()
                    == 0
            })
            .await;
        }
        // In the first round at once, while the old directory is being removed.
        home.apply(&with(2 * round + 3), 0, "nid0");
        let share = home.find(with(0).datasets[0].id).unwrap();
        share.opened(Duration::from_secs(10)).await;
        assert_eq!(hits(&home, &storage, &names).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undeclared_directories_are_removed_after_ten_minutes() {
    let told = decision(1, &[0], &[("a", MIB)]);
    let (scratch, home, storage, _names) = twenty_kept(&told).await;
    home.close().await;
    drop(home);
    let datasets = scratch.path().join("datasets");
    fs::create_dir(datasets.join("0123456789abcdef.gone")).unwrap();
    fs::create_dir(datasets.join("mine")).unwrap();
    let home = on_disk(scratch.path(), &storage, &decision(1, &[0], &[("b", MIB)]));
    let share = home.all().remove(0);
    share.opened(Duration::from_secs(10)).await;
    home.tidy(Instant::now() + Duration::from_secs(500));
    assert_eq!(fs::read_dir(&datasets).unwrap().count(), 4);
    home.tidy(Instant::now() + Duration::from_secs(601));
    // The declared one, and a directory that is no dataset.
    until(SOON, "they are gone", || {
        fs::read_dir(&datasets).unwrap().count() == 2
    })
    .await;
    assert!(datasets.join("mine").exists());
}
