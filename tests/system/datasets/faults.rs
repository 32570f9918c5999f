//! The allocator, a home and a node that die and come back: budgets and rates stay, no reader sees an error, and only the
//! items of a lost node are read again.

use crate::skip;
use crate::support::datasets::{Nodes, SOON, datasets, epoch};
use crate::support::tree::Members;
use crate::support::{Mount, Scratch, command, copperfs, eventually, is_root};
use serde_json::Value;
use std::path::{Path, PathBuf};

const BYTES: usize = 10_000;

/// Budgets by dataset and rates by job.
fn allocated(nodes: &Nodes) -> Option<Vec<(String, u64)>> {
    let finished = nodes.try_ask(&["allocation", "--json"]);
    let shown: Value = serde_json::from_slice(&finished.stdout).ok()?;
    let named = |list: &str, name: &str, what: &str| -> Option<Vec<(String, u64)>> {
        let list = shown[list].as_array()?.iter();
        list.map(|one| Some((one[name].as_str()?.to_owned(), one[what].as_u64()?)))
            .collect()
    };
    let jobs = named("jobs", "id", "remote_io_allowed")?;
    let jobs = jobs.into_iter().filter(|(name, _)| name != "unattributed");
    let budgets = named("datasets", "name", "budget")?;
    Some(budgets.into_iter().chain(jobs).collect())
}

/// `kill -9` of the allocator's node: the next root continues with the nodes' state, and reads go on.
#[test]
fn an_allocator_that_is_killed_is_replaced() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 200, BYTES)]);
    let flags = ["--roots", "2", "--remote-io", "10MB/s"];
    let nodes = Nodes::launch(4, origin.path(), &flags);
    nodes.add("set", &["--budget", "1MB", "--origin-readers", "homes"]);
    let job = [
        "job",
        "add",
        "train",
        "--dataset",
        "set",
        "--ideal-rate",
        "5MB/s",
    ];
    nodes.ask(&job);
    nodes.ask(&["job", "set", "train", "--remote-io", "3MB/s"]);
    let before = allocated(&nodes).unwrap();
    let expected = [
        ("set".to_owned(), 1_000_000),
        ("train".to_owned(), 3_000_000),
    ];
    assert_eq!(before, expected);
    let truth = origin.path().join("set");
    epoch(&nodes.path(3, "set"), &truth, 1);
    nodes.tree.root().kill();
    epoch(&nodes.path(3, "set"), &truth, 2);
    eventually(SOON, "another allocator says the same", || {
        let shown = nodes.try_ask(&["allocation", "--json"]);
        let shown: Option<Value> = serde_json::from_slice(&shown.stdout).ok();
        let homes = shown.as_ref().and_then(|shown| shown["nodes"].as_array());
        homes.is_some_and(|homes| homes.len() == 3) && allocated(&nodes).as_ref() == Some(&before)
    });
    // It takes commands.
    nodes.ask(&["dataset", "set", "set", "--budget", "600kB"]);
    eventually(SOON, "the nodes follow", || {
        nodes.cached() <= 600_000 + 3 * BYTES as u64
    });
    epoch(&nodes.path(2, "set"), &truth, 3);
}

/// A node that dies takes its own items with it, and no others.
#[test]
fn a_lost_node_loses_only_its_items() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 400, BYTES)]);
    let nodes = Nodes::launch(4, origin.path(), &[]);
    nodes.add("set", &["--budget", "4MB", "--origin-readers", "homes"]);
    let truth = origin.path().join("set");
    epoch(&nodes.path(1, "set"), &truth, 1);
    assert_eq!(nodes.cached(), 4_000_000);
    let lost = nodes.held(3).bytes;
    nodes.tree.leaf().kill();
    let before = nodes.total("origin.read_bytes");
    epoch(&nodes.path(1, "set"), &truth, 2);
    eventually(SOON, "three homes have the budget of four", || {
        let shares: u64 = (0..3).map(|rank| nodes.held(rank).share).sum();
        shares.abs_diff(4_000_000) <= 3
    });
    epoch(&nodes.path(1, "set"), &truth, 3);
    epoch(&nodes.path(2, "set"), &truth, 4);
    let read = nodes.total("origin.read_bytes") - before;
    // Items whose home was lost were read before the others had room for them, and once more.
    assert!(
        (lost..=2 * lost).contains(&read),
        "{read} bytes, {lost} were lost"
    );
    assert_eq!(nodes.cached(), 4_000_000);
}

/// Nodes started one by one, each with a data mount and a store.
struct Stored {
    members: Members,
    scratch: Scratch,
    page_cache: &'static str,
}

impl Stored {
    fn data(&self, rank: usize) -> PathBuf {
        self.scratch.dir(&format!("data{rank}"))
    }

    fn start(&self, rank: usize) -> Mount {
        let (data, disk) = (self.data(rank), self.scratch.dir(&format!("disk{rank}")));
        let disk = format!("{}:100MB", disk.display());
        let flags = [
            "--data-mount",
            data.to_str().unwrap(),
            "--disk",
            &disk,
            self.page_cache,
        ];
        self.members.start(rank, &flags)
    }
}

/// A node that ends, or is killed, and starts again finds its share in its store.
#[test]
fn a_restarted_node_has_its_share() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 200, BYTES)]);
    let stored = Stored {
        members: Members::new(2, origin.path()),
        scratch: Scratch::new(),
        page_cache: "--page-cache=false",
    };
    let root = stored.start(0);
    let leaf = stored.start(1);
    let ask =
        |words: &[&str]| command::check(copperfs(words).env("COPPERFS_MOUNTPOINT", &root.point));
    ask(&[
        "dataset",
        "add",
        "set",
        "/set",
        "--budget",
        "2MB",
        "--origin-readers",
        "homes",
    ]);
    let cached = |node: &Mount| node.stats().get("datasets.bytes");
    eventually(SOON, "both have a share", || {
        leaf.stats().get("datasets.share_bytes") > 0
    });
    let (data, truth) = (stored.data(0), origin.path().join("set"));
    epoch(&data.join("set"), &truth, 1);
    let held = cached(&leaf);
    assert_eq!(held + cached(&root), 2_000_000);
    leaf.kill();
    eventually(SOON, "it is dead", || !leaf.is_alive());
    drop(leaf);
    unmount_dead(&stored.data(1));
    let leaf = stored.start(1);
    eventually(SOON, "its share is back", || {
        cached(&leaf) >= held * 95 / 100
    });
    let before = root.stats().get("origin.read_bytes");
    epoch(&stored.data(1).join("set"), &truth, 2);
    let read =
        leaf.stats().get("origin.read_bytes") + root.stats().get("origin.read_bytes") - before;
    assert!(
        read <= held / 20,
        "{read} bytes of storage, {held} were held"
    );
}

/// What a killed daemon leaves of its data mount.
fn unmount_dead(point: &Path) {
    if crate::support::kernel::mount_at(point).is_some() {
        let mut umount = std::process::Command::new("umount");
        command::check(umount.arg("-l").arg(point));
    }
}
