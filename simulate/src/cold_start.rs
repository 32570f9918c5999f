//! A discrete-event model of a cold start: every node of a tree reads the same items at once.
//!
//! It models the product's own tree arithmetic, requests that coalesce at every node, items that
//! are forwarded in units as they arrive, links and cores that are divided evenly among their
//! users, and one storage link for each root. It does not model loss and congestion control, FUSE, full
//! caches, failures, or read-ahead. So it is a lower bound, which real runs approach if links are
//! the bottleneck; `docs/BENCHMARKS.md` compares the two.
//!
//! Pure: no I/O, no clock; a scenario always has the same outcome, to the last bit. Nodes that
//! behave alike are simulated once (`classes`), so one tree of 100,000 nodes takes a fraction of a
//! second.

mod calibration;
mod classes;
mod engine;
mod paper;
mod resource;
pub mod workload;

pub use calibration::{Calibration, CalibrationError};
pub use paper::{STATED, Stated};

use crate::random::Random;
use classes::Classes;
use copperfs_topology::{Forest, Placement, ROOTS_MAX};
use engine::{ClassCounts, Engine};
use resource::{Time, seconds, time};
use serde::Serialize;
use workload::Item;

/// The maximum number of nodes, which is that of a member list.
pub const NODES_MAX: usize = 1 << 20;
/// Bytes that are forwarded at a time. A node holds back the last unit of a block until its own
/// hash agrees.
pub const UNIT_BYTES: u64 = 64 << 10;

/// The nodes that read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// Every node.
    All,
    /// One node, by its index in the list. The others only forward.
    One(usize),
}

/// A cold start. Times are in seconds and rates in bytes per second.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Nodes in the list.
    pub nodes: usize,
    /// The maximum number of children of a node in a tree.
    pub arity: usize,
    /// Trees, each with its own root.
    pub roots: usize,
    /// The payload rate of a node's link, in each direction.
    pub link: f64,
    /// The delay from a node to its neighbour, one way.
    pub hop: f64,
    /// A parent's core time for one request.
    pub request_cpu: f64,
    /// The rate at which a root reads from storage.
    pub storage: f64,
    /// The delay before the first byte of an item arrives from storage.
    pub storage_latency: f64,
    /// A reader's computation between two items.
    pub think: f64,
    /// The number of items that a reader requests at a time.
    pub window: usize,
    /// Readers start at random times within this span.
    pub skew: f64,
    /// The nodes that read.
    pub readers: Readers,
    /// Bytes that are forwarded at a time.
    pub unit: u64,
    /// The seed of the random starts.
    pub seed: u64,
}

impl Default for Scenario {
    /// The tree of Copper's largest run, on its machine's links.
    fn default() -> Self {
        Self {
            nodes: 8_300,
            arity: 4,
            roots: 1,
            link: 25e9,
            hop: 2e-6,
            request_cpu: 0.0,
            storage: 10e9,
            storage_latency: 0.0,
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
    /// The tree is impossible.
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
    /// A number is out of range.
    #[error("{what} must be {wanted}")]
    Number {
        /// Which number.
        what: &'static str,
        /// The valid range.
        wanted: &'static str,
    },
    /// The scenario does not fit into memory.
    #[error(
        "{classes} nodes that differ × {items} items are too many to simulate: fewer nodes, a \
         shorter profile, one root, or no skew"
    )]
    TooLarge {
        /// The number of simulated nodes.
        classes: usize,
        /// The number of items that each reads.
        items: usize,
    },
}

/// The maximum number of simulated pairs of node and item. Each needs 4 bytes and about 4 events.
const NODE_ITEMS_MAX: usize = 1 << 30;

/// Seconds from the start until readers had all items.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Times {
    /// The time by which half of the readers were done.
    pub p50_s: f64,
    /// The time by which 99 % of the readers were done.
    pub p99_s: f64,
    /// The time by which all were done: the duration of the cold start.
    pub max_s: f64,
}

/// The outcome of a simulation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Nodes in the list.
    pub nodes: usize,
    /// Most children of a node.
    pub arity: usize,
    /// Trees.
    pub roots: usize,
    /// The number of edges from a root to the farthest node.
    pub depth: usize,
    /// The number of items that every reader reads.
    pub items: usize,
    /// Their payload bytes.
    pub item_bytes: u64,
    /// When the readers were done.
    pub times: Times,
    /// The maximum number of requests sent by a node.
    pub requests_per_node_max: u64,
    /// The maximum number of requests answered by a node.
    pub requests_answered_per_node_max: u64,
    /// The maximum number of payload bytes that a node received from its parents.
    pub bytes_received_per_node_max: u64,
    /// The maximum number of payload bytes that a node sent to its children.
    pub bytes_sent_per_node_max: u64,
    /// Payload bytes over all edges.
    pub bytes_moved: u64,
    /// Requests to storage, all roots together.
    pub storage_reads: u64,
    /// Bytes from storage, all roots together.
    pub storage_bytes: u64,
    /// The number of simulated classes of nodes.
    pub classes: usize,
    /// The number of simulated events.
    pub events: u64,
}

/// Simulates `scenario` with every reader reading `items` in order.
///
/// # Errors
/// See [`ScenarioError`].
pub fn run(scenario: &Scenario, items: &[Item]) -> Result<Outcome, ScenarioError> {
    let forest = check(scenario)?;
    let readers = readers(scenario);
    let classes = Classes::alike(&forest, |node| readers[node]);
    simulate(scenario, items, &forest, &classes, &readers)
}

fn simulate(
    scenario: &Scenario,
    items: &[Item],
    forest: &Forest,
    classes: &Classes,
    readers: &[Option<Time>],
) -> Result<Outcome, ScenarioError> {
    let count = classes.classes.len();
    // The engine keeps a counter for each pair of class and item.
    if count.saturating_mul(items.len()) > NODE_ITEMS_MAX {
        return Err(ScenarioError::TooLarge {
            classes: count,
            items: items.len(),
        });
    }
    let trees = trees(forest, items);
    let (counts, events) = Engine::new(scenario, items, &trees, classes, readers).run();
    let mut ends: Vec<(Time, u64)> = classes
        .classes
        .iter()
        .zip(&counts)
        .filter(|(class, _)| readers[class.example].is_some())
        .map(|(class, counts)| (counts.end, class.count))
        .collect();
    // Percentiles count each class as often as it has nodes.
    ends.sort_unstable();
    let times = Times {
        p50_s: seconds(percentile(&ends, 50)),
        p99_s: seconds(percentile(&ends, 99)),
        max_s: seconds(percentile(&ends, 100)),
    };
    let most = |what: fn(&ClassCounts) -> u64| counts.iter().map(what).max().unwrap_or(0);
    let sum = |what: fn(&ClassCounts) -> u64| -> u64 {
        let of_class = classes.classes.iter().zip(&counts);
        of_class
            .map(|(class, counts)| class.count * what(counts))
            .sum()
    };
    Ok(Outcome {
        nodes: scenario.nodes,
        arity: scenario.arity,
        roots: scenario.roots,
        depth: forest.depth(0, forest.len() - 1),
        items: items.len(),
        item_bytes: items.iter().map(|item| item.bytes).sum(),
        times,
        requests_per_node_max: most(|counts| counts.asked),
        requests_answered_per_node_max: most(|counts| counts.answered),
        bytes_received_per_node_max: most(|counts| counts.received),
        bytes_sent_per_node_max: most(|counts| counts.sent),
        bytes_moved: sum(|counts| counts.received),
        storage_reads: sum(|counts| counts.storage_reads),
        storage_bytes: sum(|counts| counts.storage_bytes),
        classes: count,
        events,
    })
}

fn check(scenario: &Scenario) -> Result<Forest, ScenarioError> {
    const RATE: &str = "a rate above 0";
    const SPAN: &str = "a time of at most 11 days";
    // NaN fails both kinds of checks.
    let rate = |value: f64| value.is_finite() && value > 0.0;
    let span = |value: f64| (0.0..=1e6).contains(&value);
    let are_counts = scenario.unit > 0 && scenario.window > 0;
    for (what, wanted, is_valid) in [
        ("the link", RATE, rate(scenario.link)),
        ("the rate of storage", RATE, rate(scenario.storage)),
        ("the hop", SPAN, span(scenario.hop)),
        ("a request's core time", SPAN, span(scenario.request_cpu)),
        (
            "the latency of storage",
            SPAN,
            span(scenario.storage_latency),
        ),
        ("the time between items", SPAN, span(scenario.think)),
        ("the skew", SPAN, span(scenario.skew)),
        ("the unit and the window", "at least 1", are_counts),
    ] {
        if !is_valid {
            return Err(ScenarioError::Number { what, wanted });
        }
    }
    let refused = ScenarioError::Tree {
        nodes: scenario.nodes,
        arity: scenario.arity,
        roots: scenario.roots,
    };
    if scenario.nodes > NODES_MAX || scenario.roots > scenario.nodes.min(ROOTS_MAX) {
        return Err(refused);
    }
    // Roots are spread over the list, as the product does by default.
    let roots = Forest::spread(scenario.nodes, scenario.roots);
    Forest::new(scenario.nodes, scenario.arity, roots).ok_or(refused)
}

/// Returns when the reader of each node begins, if it has one.
fn readers(scenario: &Scenario) -> Vec<Option<Time>> {
    let mut random = Random::new(scenario.seed);
    let reader = |node| {
        // Drawn for every node, so that the starts do not depend on which nodes read.
        let start = time(scenario.skew * random.unit());
        let reads = [Readers::All, Readers::One(node)].contains(&scenario.readers);
        reads.then_some(start)
    };
    (0..scenario.nodes).map(reader).collect()
}

/// Returns the tree of each item by the product's own placement, over the names of the roots, so
/// that trees share items as there.
fn trees(forest: &Forest, items: &[Item]) -> Vec<usize> {
    let roots = forest.roots().iter();
    let names: Vec<String> = roots.map(|root| format!("node{root}")).collect();
    let placement = Placement::new(names.iter().map(String::as_str));
    let tree = |item: &Item| placement.tree(&item.key, 0).unwrap_or(0);
    items.iter().map(tree).collect()
}

/// Returns the least value that `percent` % of the counted values do not exceed.
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

#[cfg(test)]
mod tests;
