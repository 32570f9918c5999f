//! Draws a view as text: one line per node, with branches to its parent, and columns after it.

use super::fold::{Fold, fold};
use super::view::{HangingAt, NodeState, PressureAt, Summary, TreeNode, TreeView};
use crate::cli::stats::duration;
use crate::cli::{Table, listed, or_dash};
use crate::config::Crossings;
use copperfs_policy::amounts::ByteSize;
use std::collections::BTreeSet;

/// How to draw.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Style {
    /// Whether states are coloured.
    pub(super) colours: bool,
    /// Whether every node of a large tree is drawn.
    pub(super) all: bool,
}

/// The maximum number of names in a list.
const NAMES_SHOWN: usize = 8;

/// `tree`, line by line.
pub(super) fn tree(tree: &TreeView, style: Style) -> String {
    const TITLES: [&str; 7] = ["node", "rank", "role", "lag", "children", "up", "state"];
    let drawn = fold(tree, style.all);
    let mut rows = Vec::new();
    let roots = (0..tree.nodes.len()).filter(|at| tree.nodes[*at].above.is_none());
    // Each entry has an item, the branch before it, and the branch before its children. An explicit stack,
    // because a tree of arity 1 is as deep as the cluster is large.
    let mut open: Vec<(Item, String, String)> = roots
        .map(|root| (Item::Node(root), String::new(), String::new()))
        .collect();
    while let Some((item, before, beneath)) = open.pop() {
        let at = match item {
            Item::Fold(fold) => {
                rows.push(fold_row(&before, fold));
                continue;
            }
            Item::Node(at) => at,
        };
        rows.push(row(&before, &tree.nodes[at], style.colours));
        let drawn = &drawn[at];
        let nodes = drawn.children.iter().map(|child| Item::Node(*child));
        let folds = drawn.folds.iter().map(|fold| Item::Fold(*fold));
        let items: Vec<Item> = nodes.chain(folds).collect();
        // The last pushed is drawn first.
        for (from_last, item) in items.into_iter().rev().enumerate() {
            let (branch, rail) = match from_last {
                0 => ("└─ ", "   "),
                _ => ("├─ ", "│  "),
            };
            let (branch, rail) = (format!("{beneath}{branch}"), format!("{beneath}{rail}"));
            open.push((item, branch, rail));
        }
    }
    let columns = TITLES.iter().enumerate();
    let table = columns.fold(Table::of(&rows), |table, (at, title)| {
        table.column(title, |row| row[at].as_str())
    });
    table.text()
}

#[derive(Debug, Clone, Copy)]
enum Item {
    Node(usize),
    Fold(Fold),
}

fn row(before: &str, place: &TreeNode, colours: bool) -> [String; 7] {
    let role = match place.role.as_str() {
        _ if place.guest => "guest",
        "" => "-",
        role => role,
    };
    [
        format!("{before}{}", place.node),
        or_dash(place.rank),
        role.to_owned(),
        or_dash(place.round_trip_us.map(lag)),
        place.children.to_string(),
        or_dash(place.uptime_s.map(duration)),
        state(place, colours),
    ]
}

fn state(place: &TreeNode, colours: bool) -> String {
    let since = place.since_ms.map(|ms| duration(ms / 1_000));
    let since = since.unwrap_or_else(|| "?".to_owned());
    let reason = place.reason.as_deref().unwrap_or("no answer yet");
    let home = place.home.as_deref().unwrap_or("?");
    let using = place.using.as_deref().unwrap_or("?");
    let (code, text) = match place.state {
        NodeState::Ok => (32, "ok".to_owned()),
        NodeState::Moved => {
            let text = format!("moved: under {using} instead of {home} since {since}");
            (33, text)
        }
        NodeState::Connecting => {
            let text = format!("connecting to {home} since {since}: {reason}");
            (33, text)
        }
        NodeState::Stranded => (31, format!("stranded since {since}: {reason}")),
        NodeState::Missing => (31, "missing: no answer".to_owned()),
    };
    match colours {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text,
    }
}

fn fold_row(before: &str, fold: Fold) -> [String; 7] {
    let all = match fold.state {
        NodeState::Ok => "well",
        state => state.name(),
    };
    let text = match (fold.siblings, fold.below) {
        (0, below) => format!("{below} below"),
        (siblings, 0) => format!("{siblings} more"),
        (siblings, below) => format!("{siblings} more with {below} below them"),
    };
    let mut row = [const { String::new() }; 7];
    row[0] = format!("{before}… {text}, all {all}");
    row
}

/// The summary, in a few lines.
pub(super) fn summary(summary: &Summary) -> String {
    let lists = [
        (&summary.missing, "missing"),
        (&summary.stranded, "stranded"),
        (&summary.connecting, "connecting"),
        (&summary.moved, "moved"),
    ];
    let troubled: BTreeSet<&String> = lists.iter().flat_map(|(names, _)| *names).collect();
    let nodes = count(summary.nodes, "node");
    let mut parts = vec![match summary.nodes - troubled.len() {
        _ if troubled.is_empty() => format!("{nodes}, all well"),
        well => format!("{nodes}, {well} well"),
    }];
    let lists = lists.iter().filter(|(names, _)| !names.is_empty());
    parts.extend(lists.map(|(names, what)| format!("{} {what}", names.len())));
    if summary.guests > 0 {
        parts.push(count(summary.guests, "guest"));
    }
    let text = format!(
        "{}; {}, depth {}, at most {} a node",
        parts.join(", "),
        count(summary.roots.len(), "root"),
        summary.depth,
        count(summary.connections_max, "connection"),
    );
    let crossings = summary.crossings.map(|Crossings { edges, used, .. }| {
        format!(", {used} of {} cross switches", count(edges, "edge"))
    });
    let mut lines = vec![text + &crossings.unwrap_or_default()];
    if !summary.missing.is_empty() {
        let names = listed(&summary.missing, NAMES_SHOWN);
        lines.push(format!("no answer from: {names}"));
    }
    if !summary.data_mounts_lost.is_empty() {
        let names = listed(&summary.data_mounts_lost, NAMES_SHOWN);
        lines.push(format!(
            "no data mount any more on: {names} (unmount and mount brings it back)"
        ));
    }
    for HangingAt { node, hanging } in &summary.hanging {
        let since = duration(hanging.since_ms / 1_000);
        lines.push(format!(
            "storage hangs on {node}: {}, the oldest since {since}: {} {}",
            count(usize::try_from(hanging.calls).unwrap_or(usize::MAX), "call"),
            hanging.action,
            hanging.path,
        ));
    }
    for PressureAt { node, pressure } in &summary.memory_pressure {
        lines.push(format!(
            "memory pressure on {node}: {} of {} given back since {} ({} {})",
            ByteSize(pressure.given_back),
            ByteSize(pressure.memory),
            duration(pressure.since_ms / 1_000),
            if pressure.is_machine {
                "the machine has"
            } else {
                "cgroup limit"
            },
            ByteSize(pressure.limit),
        ));
    }
    lines.join("\n")
}

/// The unhealthy nodes of a tree that is not drawn, if there are any.
pub(super) fn hint(tree: &TreeView) -> Option<String> {
    let states = [NodeState::Stranded, NodeState::Connecting, NodeState::Moved];
    let in_state = |state| tree.nodes.iter().filter(|node| node.state == state).count();
    let found = states.map(|state| (in_state(state), state.name()));
    let found = found.iter().filter(|(count, _)| *count > 0);
    let found = found.map(|(count, what)| format!("{count} {what}"));
    let found: Vec<String> = found.collect();
    let number = tree.tree;
    (!found.is_empty()).then(|| format!("tree {number}: {} (--tree {number})", found.join(", ")))
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// A round-trip time with a unit.
fn lag(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        _ => format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000),
    }
}
