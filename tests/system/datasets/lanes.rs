//! Nodes whose items travel over several lanes.

use crate::skip;
use crate::support::datasets::{Nodes, datasets, epoch};
use crate::support::mount::Node;
use crate::support::{Stats, is_root};
use std::fs;

const FILES: u64 = 300;
const BYTES: usize = 20_000;
const LANES: usize = 3;

/// The numbers of all lanes.
fn of_lanes(stats: &Stats, name: &str) -> Vec<u64> {
    let lanes = 0..LANES;
    lanes
        .map(|lane| stats.get(&format!("lanes.{lane}.{name}")))
        .collect()
}

/// The names of the threads of the lanes.
fn threads(node: &Node) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", node.pid.as_raw_nonzero())).unwrap();
    let names = tasks.flatten().filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        Some(name.trim().to_owned())
    });
    let mut of_lanes: Vec<String> = names.filter(|name| name.contains("lane")).collect();
    of_lanes.sort_unstable();
    of_lanes
}

/// Each lane requests the items of its files, and answers lanes of other nodes.
#[test]
fn items_travel_over_all_lanes() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", FILES, BYTES)]);
    let lanes = LANES.to_string();
    let nodes = Nodes::launch(3, origin.path(), &["--lanes", &lanes]);
    nodes.add("set", &["--budget", "6MB", "--origin-readers", "homes"]);
    let truth = origin.path().join("set");
    for rank in 0..3 {
        epoch(&nodes.path(rank, "set"), &truth, rank as u64);
    }
    for (rank, stats) in nodes.tree.stats().iter().enumerate() {
        for (name, total) in [
            ("requests", "homes.requests"),
            ("answered", "homes.answered"),
        ] {
            let each = of_lanes(stats, name);
            let sum: u64 = each.iter().sum();
            assert_eq!(sum, stats.get(total), "{name} of {rank}");
            assert!(each.iter().all(|count| *count > sum / 10), "{each:?}");
        }
        // Two thirds of the items are elsewhere.
        let asked = stats.get("homes.requests");
        assert!((150..250).contains(&asked), "{asked}");
    }
    for node in &nodes.tree.nodes {
        let due = ["copperfs-lane0", "copperfs-lane1", "copperfs-lane2"];
        assert_eq!(threads(node), due);
    }
}
