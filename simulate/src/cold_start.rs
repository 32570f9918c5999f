//! A discrete-event model of a cold start: every node of a tree reads the same items at once.
//!
//! What it models: the product's own tree arithmetic; requests that coalesce at every node; items that
//! are passed on in forwarding units as they arrive; links and cores that divide themselves evenly
//! among those who use them; one origin a root. What it does not: loss and congestion control, FUSE,
//! full caches, failures, read-ahead. So it is a lower bound that real runs approach where links are
//! what limits them, and `docs/BENCHMARKS.md` compares the two.
//!
//! Pure: no I/O, no clock; the same scenario gives the same outcome to the last bit. Nodes that behave
//! alike are simulated once (`classes`), so one tree of 100,000 nodes takes a fraction of a second.

mod calibration;
mod classes;
mod engine;
mod paper;
mod shared;
pub mod workload;

pub use calibration::{Calibration, CalibrationError};
pub use paper::{STATED, Stated, System};

use crate::random::Random;
use classes::Classes;
use copperfs_topology::{Forest, Placement, ROOTS_MAX};
use engine::{Engine, Machine, Piece, Reader, Seen};
use serde::Serialize;
use shared::{Time, seconds, time};
use workload::{Item, ItemKind};

/// Most nodes of a scenario: those of a member list.
pub const NODES_MAX: usize = 1 << 20;
/// What is passed on at a time: a node holds back the last unit of a block until its own hash agrees.
pub const UNIT_BYTES: u64 = 64 << 10;

/// Who reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// Every node.
    All,
    /// One node, by its place in the list; the others only pass things on.
    One(usize),
}

/// A cold start. Times in seconds, rates in bytes a second.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Nodes in the list.
    pub nodes: usize,
    /// Most children of a node in a tree.
    pub arity: usize,
    /// Trees, each with its own root.
    pub roots: usize,
    /// Payload that a node's link carries, each way.
    pub link: f64,
    /// From a node to its neighbour, one way.
    pub hop: f64,
    /// A parent's core time for a request.
    pub request_cpu: f64,
    /// What one root reads from the origin.
    pub origin: f64,
    /// Before the first byte of each item comes from the origin.
    pub origin_latency: f64,
    /// What a reader does itself between two items.
    pub think: f64,
    /// Items that a reader asks for at a time.
    pub window: usize,
    /// Readers start at random within this time.
    pub skew: f64,
    /// Who reads.
    pub readers: Readers,
    /// Bytes that are passed on at a time.
    pub unit: u64,
    /// For the skew.
    pub seed: u64,
}

impl Default for Scenario {
    /// The tree of Copper's largest run on its machine's links.
    fn default() -> Self {
        Self {
            nodes: 8_300,
            arity: 4,
            roots: 1,
            link: 25e9,
            hop: 2e-6,
            request_cpu: 0.0,
            origin: 10e9,
            origin_latency: 0.0,
            think: 0.0,
            window: 1,
            skew: 0.0,
            readers: Readers::All,
            unit: UNIT_BYTES,
            seed: 1,
        }
    }
}

/// Why a scenario cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// The tree makes no sense.
    #[error(
        "no tree of {nodes} nodes, arity {arity} and {roots} roots: it takes 1 to {NODES_MAX} nodes, \
         an arity of at least 1, and 1 to {ROOTS_MAX} roots, each of them a node"
    )]
    Tree {
        /// Nodes asked for.
        nodes: usize,
        /// Arity asked for.
        arity: usize,
        /// Roots asked for.
        roots: usize,
    },
    /// A number that no machine has.
    #[error("{what} must be {wanted}")]
    Number {
        /// Which number.
        what: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// Too much to keep in memory.
    #[error(
        "{classes} nodes that differ × {items} items are too many to simulate: fewer nodes, a \
         shorter profile, one root, or no skew"
    )]
    TooLarge {
        /// Nodes that are simulated.
        classes: usize,
        /// Items that each reads.
        items: usize,
    },
}

/// Node-items that are simulated at most: 4 bytes each, and some 4 events.
const NODE_ITEMS_MAX: usize = 1 << 30;

/// Seconds until a reader had everything, counted from the start of the whole.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Times {
    /// Half of the readers are done by then.
    pub p50_s: f64,
    /// 99 % of the readers.
    pub p99_s: f64,
    /// All of them: the cold start's time.
    pub max_s: f64,
}

/// What came out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Nodes in the list.
    pub nodes: usize,
    /// Most children of a node.
    pub arity: usize,
    /// Trees.
    pub roots: usize,
    /// Edges from a root to the farthest node.
    pub depth: usize,
    /// Items that every reader reads.
    pub items: usize,
    /// Their payload bytes.
    pub item_bytes: u64,
    /// When readers were done.
    pub times: Times,
    /// Most requests that one node sent up.
    pub requests_per_node_max: u64,
    /// Most requests that one node answered.
    pub requests_answered_per_node_max: u64,
    /// Payload bytes that came to one node from its parents, at most.
    pub bytes_received_per_node_max: u64,
    /// Payload bytes that one node sent to its children, at most.
    pub bytes_sent_per_node_max: u64,
    /// Payload bytes over all edges.
    pub bytes_moved: u64,
    /// Requests to the origin, all roots together.
    pub origin_reads: u64,
    /// Bytes from the origin, all roots together.
    pub origin_bytes: u64,
    /// Kinds of nodes that were simulated.
    pub classes: usize,
    /// Events that it took.
    pub events: u64,
}

/// Simulates `scenario` with every reader reading `items` in order.
///
/// # Errors
/// See [`ScenarioError`].
pub fn run(scenario: &Scenario, items: &[Item]) -> Result<Outcome, ScenarioError> {
    let forest = check(scenario)?;
    let starts = starts(scenario);
    let classes = Classes::alike(&forest, |node| {
        (start_of(&starts, node), reads(scenario, node))
    });
    simulate(scenario, items, &forest, &classes)
}

fn simulate(
    scenario: &Scenario,
    items: &[Item],
    forest: &Forest,
    classes: &Classes,
) -> Result<Outcome, ScenarioError> {
    let count = classes.classes.len();
    if count.saturating_mul(items.len()) > NODE_ITEMS_MAX {
        return Err(ScenarioError::TooLarge {
            classes: count,
            items: items.len(),
        });
    }
    let pieces = pieces(forest, items);
    let machine = Machine {
        link: scenario.link,
        hop: time(scenario.hop),
        request_cpu: scenario.request_cpu,
        origin_rate: scenario.origin,
        origin_latency: time(scenario.origin_latency),
        unit: scenario.unit,
    };
    let starts = starts(scenario);
    let engine = Engine::new(machine, &pieces, classes, |node| {
        reads(scenario, node).then(|| Reader {
            start: start_of(&starts, node),
            think: time(scenario.think),
            window: scenario.window,
        })
    });
    let (seen, events) = engine.run();
    Ok(outcome(scenario, forest, items, classes, (&seen, events)))
}

fn check(scenario: &Scenario) -> Result<Forest, ScenarioError> {
    let positive = |value: f64| value.is_finite() && value > 0.0;
    let time = |value: f64| (0.0..=1e6).contains(&value);
    let number = |what, wanted| Err(ScenarioError::Number { what, wanted });
    const RATE: &str = "a rate above 0";
    const SPAN: &str = "a time of at most 11 days";
    if !positive(scenario.link) {
        return number("the link", RATE);
    }
    if !positive(scenario.origin) {
        return number("the origin's rate", RATE);
    }
    for (what, value) in [
        ("the hop", scenario.hop),
        ("a request's core time", scenario.request_cpu),
        ("the origin's latency", scenario.origin_latency),
        ("the time between items", scenario.think),
        ("the skew", scenario.skew),
    ] {
        if !time(value) {
            return number(what, SPAN);
        }
    }
    if scenario.unit == 0 || scenario.window == 0 {
        return number("the unit and the window", "at least 1");
    }
    let refused = ScenarioError::Tree {
        nodes: scenario.nodes,
        arity: scenario.arity,
        roots: scenario.roots,
    };
    if scenario.nodes > NODES_MAX {
        return Err(refused);
    }
    if scenario.roots > scenario.nodes.min(ROOTS_MAX) {
        return Err(refused);
    }
    let roots = Forest::spread(scenario.nodes, scenario.roots);
    Forest::new(scenario.nodes, scenario.arity, roots).ok_or(refused)
}

fn reads(scenario: &Scenario, node: usize) -> bool {
    match scenario.readers {
        Readers::All => true,
        Readers::One(one) => node == one,
    }
}

/// When each node's reader starts; empty: all at once.
fn starts(scenario: &Scenario) -> Vec<Time> {
    if scenario.skew == 0.0 {
        return Vec::new();
    }
    let mut random = Random::new(scenario.seed);
    (0..scenario.nodes)
        .map(|_node| time(scenario.skew * random.unit()))
        .collect()
}

fn start_of(starts: &[Time], node: usize) -> Time {
    starts.get(node).copied().unwrap_or(0)
}

/// Items with the tree that each comes down, by the product's own placement over the names of roots.
fn pieces(forest: &Forest, items: &[Item]) -> Vec<Piece> {
    let names: Vec<String> = forest
        .roots()
        .iter()
        .map(|root| format!("node{root}"))
        .collect();
    let placement = Placement::new(names.iter().map(String::as_str));
    items
        .iter()
        .map(|item| Piece {
            bytes: item.bytes,
            tree: placement.tree(&item.key, 0).unwrap_or(0),
        })
        .collect()
}

fn outcome(
    scenario: &Scenario,
    forest: &Forest,
    items: &[Item],
    classes: &Classes,
    (seen, events): (&[Seen], u64),
) -> Outcome {
    let mut ends: Vec<(Time, u64)> = classes
        .classes
        .iter()
        .zip(seen)
        .filter(|(class, _)| reads(scenario, class.example))
        .map(|(class, seen)| (seen.end, class.count))
        .collect();
    ends.sort_unstable();
    let most = |what: fn(&Seen) -> u64| seen.iter().map(what).max().unwrap_or(0);
    let sum = |what: fn(&Seen) -> u64| -> u64 {
        let of_class = classes.classes.iter().zip(seen);
        of_class.map(|(class, seen)| class.count * what(seen)).sum()
    };
    Outcome {
        nodes: scenario.nodes,
        arity: scenario.arity,
        roots: scenario.roots,
        depth: forest.depth(0, forest.len() - 1),
        items: items.len(),
        item_bytes: items.iter().map(|item| item.bytes).sum(),
        times: Times {
            p50_s: seconds(percentile(&ends, 50)),
            p99_s: seconds(percentile(&ends, 99)),
            max_s: seconds(percentile(&ends, 100)),
        },
        requests_per_node_max: most(|seen| seen.asked),
        requests_answered_per_node_max: most(|seen| seen.answered),
        bytes_received_per_node_max: most(|seen| seen.received),
        bytes_sent_per_node_max: most(|seen| seen.sent),
        bytes_moved: sum(|seen| seen.received),
        origin_reads: sum(|seen| seen.origin_reads),
        origin_bytes: sum(|seen| seen.origin_bytes),
        classes: classes.classes.len(),
        events,
    }
}

/// The least value that `percent` % of the counted ones do not exceed.
fn percentile(ascending: &[(Time, u64)], percent: u64) -> Time {
    let total: u64 = ascending.iter().map(|(_, count)| count).sum();
    let wanted = (total * percent).div_ceil(100).max(1);
    let mut passed = 0;
    for &(value, count) in ascending {
        passed += count;
        if passed >= wanted {
            return value;
        }
    }
    0
}

/// One item of `bytes`, as a test of a link reads it.
#[must_use]
pub fn one_file(bytes: u64) -> Vec<Item> {
    vec![Item {
        key: copperfs_topology::ItemPath::root(),
        kind: ItemKind::Data,
        bytes,
    }]
}

#[cfg(test)]
mod tests;
