//! Declared datasets, read through data mounts: the cached part of them, the reads of storage, and the counters. Budgets
//! are in `datasets/budgets.rs`, jobs in `datasets/jobs.rs`, and nodes that die in `datasets/faults.rs`.

mod accounts;
mod budgets;
mod chunks;
mod entries;
mod faults;
mod jobs;
mod lanes;

use crate::skip;
use crate::support::datasets::{Nodes, SOON, datasets, epoch};
use crate::support::{eventually, is_root};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const FILES: u64 = 400;
const BYTES: usize = 10_000;
const SIZE: u64 = FILES * BYTES as u64;

/// From the second epoch on, the hit ratio of a dataset is its budget divided by its size, on any node: each node is the
/// home of a part.
#[test]
fn an_epoch_finds_what_the_budget_holds() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", FILES, BYTES)]);
    let nodes = Nodes::launch(4, origin.path(), &[]);
    nodes.add("set", &["--budget", "1.6MB", "--origin-readers", "homes"]);
    let truth = origin.path().join("set");
    let mut before = nodes.total("origin.read_bytes");
    for (round, rank) in [0, 1, 3, 2].into_iter().enumerate() {
        epoch(&nodes.path(rank, "set"), &truth, round as u64);
        let after = nodes.total("origin.read_bytes");
        let read = after - before;
        before = after;
        let cached = nodes.cached();
        assert!(cached <= 1_600_000 + 4 * 10_000, "{cached} bytes cached");
        let expected = if round == 0 { SIZE } else { SIZE - 1_600_000 };
        let off = read.abs_diff(expected);
        // A home takes whole items: each may be one short.
        assert!(off <= SIZE / 50, "epoch {round}: {read} bytes of storage");
    }
    // At random, not in turns: an item's home depends on its name.
    for rank in 0..4 {
        let held = nodes.held(rank);
        let about = (200_000..600_000).contains(&held.bytes);
        assert!(
            about && held.bytes <= held.share + 10_000,
            "rank {rank}: {held:?}"
        );
    }
}

/// A budget of the dataset's size caches all of it, read through the tree or by the homes themselves. Concurrent readers
/// share one fetch.
#[test]
fn all_of_it_is_read_from_storage_once() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("homes", 200, BYTES), ("roots", 200, BYTES)]);
    let nodes = Nodes::launch(4, origin.path(), &[]);
    let mut cached = 0;
    for name in ["homes", "roots"] {
        nodes.add(name, &["--budget", "2MB", "--origin-readers", name]);
        let before = nodes.total("origin.read_bytes");
        let truth = origin.path().join(name);
        std::thread::scope(|scope| {
            for rank in 0..4 {
                let (directory, truth) = (nodes.path(rank, name), &truth);
                scope.spawn(move || epoch(&directory, truth, rank as u64));
            }
        });
        let read = nodes.total("origin.read_bytes") - before;
        assert_eq!(read, 200 * BYTES as u64, "{name}");
        cached += 200 * BYTES as u64;
        assert_eq!(nodes.cached(), cached, "{name}");
    }
    // Only the roots read storage.
    let stats = nodes.tree.stats();
    let others: u64 = stats[1..].iter().map(|node| node.get("origin.opens")).sum();
    assert!(others > 0, "homes read by themselves");
}

/// Where only the root reads storage, each home asks it directly: no node between them works for the bytes.
#[test]
fn a_first_epoch_passes_no_node_between_home_and_root() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 100, BYTES)]);
    let nodes = Nodes::launch(4, origin.path(), &[]);
    nodes.add("set", &["--budget", "1MB", "--origin-readers", "roots"]);
    let before = nodes.tree.stats();
    epoch(&nodes.path(3, "set"), &origin.path().join("set"), 0);
    let after = nodes.tree.stats();
    let grown = |rank: usize, key: &str| after[rank].get(key) - before[rank].get(key);
    assert_eq!(grown(0, "origin.read_bytes"), 100 * BYTES as u64);
    // Node 3 is below node 1, and they below the root; the other two are its children.
    let items = after[3].get("datasets.bytes") / BYTES as u64;
    assert!(items > 0, "node 3 is a home");
    assert_eq!(grown(3, "upstream.direct_requests"), items);
    let direct = grown(3, "upstream.direct_received_bytes");
    assert!(direct > items * BYTES as u64, "{direct} bytes");
    let between = grown(1, "downstream.sent_bytes");
    assert!(between < BYTES as u64, "{between} bytes by way of node 1");
    for child in [1, 2] {
        assert_eq!(grown(child, "upstream.direct_requests"), 0);
    }
    // Each node could read this storage by itself, which is proposed.
    eventually(SOON, "all homes have looked", || {
        nodes.dataset("set")["homes_can_read"] == true
    });
    let add = ["dataset", "add", "set", "/set", "--replace"];
    let said = nodes.ask(&add);
    assert!(said.contains("with --origin-readers homes"), "{said}");
    let said = nodes.ask(&[&add[..], &["--origin-readers", "homes"]].concat());
    assert!(!said.contains("by themselves"), "{said}");
}

/// Programs open a file two or three times to read it once: for its footer, and then for its data. Storage gives a small
/// file once for that, also if no home keeps it.
#[test]
fn opens_in_a_row_of_a_small_file_are_one_read_of_storage() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 100, BYTES)]);
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--keep", "none", "--origin-readers", "homes"]);
    let (set, truth) = (nodes.path(1, "set"), origin.path().join("set"));
    let before = nodes.total("origin.read_bytes");
    let mut slow = 0;
    for number in 0..100 {
        let name = format!("d0/f{number}");
        let begun = Instant::now();
        let mut footer = [0; 8];
        let file = fs::File::open(set.join(&name)).unwrap();
        file.read_exact_at(&mut footer, BYTES as u64 - 8).unwrap();
        drop(file);
        let data = fs::read(set.join(&name)).unwrap();
        // On a busy machine a file may be forgotten between its opens.
        slow += u64::from(begun.elapsed() > Duration::from_secs(1));
        assert!(data.ends_with(&footer), "{name}");
        assert!(data == fs::read(truth.join(&name)).unwrap(), "{name}");
    }
    let read = nodes.total("origin.read_bytes") - before;
    let once = 100 * BYTES as u64;
    assert!(
        (once..=once + slow * BYTES as u64).contains(&read),
        "{read} bytes of storage for {once} ({slow} files were slow)"
    );
    // All of a file was returned once: a second reader is one of storage again.
    drop(fs::read(set.join("d0/f99")).unwrap());
    let again = nodes.total("origin.read_bytes") - before - read;
    assert_eq!(again, BYTES as u64);
}

/// Files above 4 MiB are items by their stripes, and are read right at any offset.
#[test]
fn large_files_are_striped_over_the_homes() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("large", 3, 9_500_000)]);
    let nodes = Nodes::launch(3, origin.path(), &[]);
    nodes.add(
        "large",
        &["--budget", "28.5MB", "--origin-readers", "homes"],
    );
    assert_eq!(nodes.dataset("large")["items"], 9);
    for rank in [2, 1] {
        epoch(&nodes.path(rank, "large"), &origin.path().join("large"), 7);
    }
    assert_eq!(nodes.cached(), 28_500_000);
}

/// What is asked of storage after a change is the new file, and never a mix; the dataset says so.
#[test]
fn storage_that_changes_under_a_dataset() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 20, BYTES)]);
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--budget", "200kB", "--origin-readers", "homes"]);
    let truth = origin.path().join("set");
    epoch(&nodes.path(1, "set"), &truth, 1);
    origin.file("set/d0/f3", vec![b'n'; 12_345]);
    origin.settle();
    for rank in 0..2 {
        nodes.tree.nodes[rank].clear("/set");
    }
    epoch(&nodes.path(1, "set"), &truth, 2);
    epoch(&nodes.path(0, "set"), &truth, 3);
    // Storage is gone: cached items are still served, other items are an error, and `show` gives the reason.
    fs::rename(&truth, origin.path().join("elsewhere")).unwrap();
    nodes.ask(&["dataset", "set", "set", "--budget", "1B"]);
    eventually(SOON, "nothing is cached", || nodes.cached() == 0);
    let file = nodes.path(1, "set/d0/f5");
    drop(fs::read(&file).expect_err("storage is gone"));
    eventually(SOON, "the dataset's trouble is shown", || {
        let shown = nodes.dataset("set");
        shown["trouble"].is_string()
    });
}

/// A dataset's file by the software mount: served as any file, counted, and warned about once.
#[test]
fn reads_past_the_data_mount_are_counted() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 20, BYTES)]);
    let alone = ["--bundles=false", "--push=false"];
    let nodes = Nodes::launch(2, origin.path(), &alone);
    nodes.add("set", &["--budget", "200kB"]);
    epoch(&nodes.tree.path(1, "set"), &origin.path().join("set"), 1);
    assert_eq!(nodes.cached(), 0, "it is no dataset there");
    let leaf = nodes.tree.leaf();
    let unattributed = leaf.stats().get("datasets.unattributed_bytes");
    assert_eq!(unattributed, 20 * BYTES as u64);
    assert_eq!(warnings(&leaf.log(), "set"), 1, "{}", leaf.log());
}

fn warnings(log: &str, dataset: &str) -> usize {
    let about = |line: &&str| line.contains(" WARN ") && line.contains(dataset);
    log.lines().filter(about).count()
}

/// What the kernel's page cache answers never reaches the daemon, but its opens and closes do.
#[test]
fn hits_in_the_page_cache_are_counted() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 50, BYTES)]);
    let nodes = Nodes::with_page_cache(1, origin.path(), &[]);
    nodes.add("set", &["--budget", "500kB"]);
    let truth = origin.path().join("set");
    epoch(&nodes.path(0, "set"), &truth, 1);
    let node = nodes.tree.root();
    let first = node.stats();
    assert_eq!(kernel_hits(node), 0);
    // The kernel may give up pages whenever it likes, so not all of one round need be hits.
    let hit = |round: u64| {
        epoch(&nodes.path(0, "set"), &truth, round);
        kernel_hits(node) >= 50
    };
    assert!((2..10).any(hit), "{} hits", kernel_hits(node));
    assert_eq!(node.stats().since(&first, "origin.read_bytes"), 0);
}

/// Closes without a read, which come after the reader has gone on.
fn kernel_hits(node: &crate::support::mount::Node) -> u64 {
    node.stats().get("data_mount.cached_opens")
}

/// Other files of the data mount are files as on the software mount.
#[test]
fn what_is_no_dataset_is_read_as_ever() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 5, BYTES), ("beside", 5, BYTES)]);
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--budget", "50kB"]);
    let read = |name: &str| epoch(&nodes.path(1, name), &origin.path().join(name), 1);
    read("beside");
    read("set");
    assert!(
        fs::write(nodes.path(1, "set/new"), "x").is_err(),
        "read-only"
    );
    assert!(!Path::new(&nodes.path(1, "set/missing")).exists());
    assert_eq!(nodes.cached(), 5 * BYTES as u64);
    nodes.ask(&["dataset", "rm", "set"]);
    eventually(SOON, "it is no dataset", || nodes.cached() == 0);
    read("set");
}
