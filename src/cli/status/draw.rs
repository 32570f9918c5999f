//! Draws a view as text: one line per node, with branches to its parent, and columns after it.

use super::fold::{Fold, fold};
use super::view::{HangingAt, NodeState, Summary, TreeNode, TreeView};
use crate::cli::stats::duration;
use crate::cli::table;
use crate::config::Crossings;

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
    let drawn = fold(tree, style.all);
    let mut rows =
        vec![["node", "rank", "role", "lag", "children", "up", "state"].map(String::from)];
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
        rows.push(row(&before, &tree.nodes[at]));
        let drawn = &drawn[at];
        let nodes = drawn.children.iter().map(|child| Item::Node(*child));
        let folds = drawn.folds.iter().map(|fold| Item::Fold(*fold));
        let items: Vec<Item> = nodes.chain(folds).collect();
        // The last pushed is drawn first.
        for (from_last, item) in items.into_iter().rev().enumerate() {
            let (branch, rail) = if from_last == 0 {
                ("└─ ", "   ")
            } else {
                ("├─ ", "│  ")
            };
            open.push((
                item,
                format!("{beneath}{branch}"),
                format!("{beneath}{rail}"),
            ));
        }
    }
    let text = table(&rows);
    if style.colours {
        coloured(&text, &rows)
    } else {
        text
    }
}

#[derive(Debug, Clone, Copy)]
enum Item {
    Node(usize),
    Fold(Fold),
}

fn row(before: &str, place: &TreeNode) -> [String; 7] {
    [
        format!("{before}{}", place.node),
        place
            .rank
            .map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
        if place.guest {
            "guest".to_owned()
        } else if place.role.is_empty() {
            "-".to_owned()
        } else {
            place.role.clone()
        },
        place.round_trip_us.map_or_else(|| "-".to_owned(), lag),
        place.children.to_string(),
        place.uptime_s.map_or_else(|| "-".to_owned(), duration),
        state(place),
    ]
}

fn state(place: &TreeNode) -> String {
    let since = place.since_ms.map(|ms| duration(ms / 1_000));
    let since = since.unwrap_or_else(|| "?".to_owned());
    let reason = place.reason.as_deref().unwrap_or("no answer yet");
    let home = place.home.as_deref().unwrap_or("?");
    match place.state {
        NodeState::Ok => "ok".to_owned(),
        NodeState::Moved => {
            let using = place.using.as_deref().unwrap_or("?");
            format!("moved: under {using} instead of {home} since {since}")
        }
        NodeState::Connecting => format!("connecting to {home} since {since}: {reason}"),
        NodeState::Stranded => format!("stranded since {since}: {reason}"),
        NodeState::Missing => "missing: no answer".to_owned(),
    }
}

fn fold_row(before: &str, fold: Fold) -> [String; 7] {
    let all = match fold.state {
        NodeState::Ok => "all well",
        NodeState::Moved => "all moved",
        NodeState::Connecting => "all connecting",
        NodeState::Stranded => "all stranded",
        NodeState::Missing => "all missing",
    };
    let text = match (fold.siblings, fold.below) {
        (0, below) => format!("… {below} below, {all}"),
        (siblings, 0) => format!("… {siblings} more, {all}"),
        (siblings, below) => format!("… {siblings} more with {below} below them, {all}"),
    };
    let mut row = [const { String::new() }; 7];
    row[0] = format!("{before}{text}");
    row
}

/// Colours the state at the end of each line.
fn coloured(text: &str, rows: &[[String; 7]]) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for (line, row) in text.lines().zip(rows) {
        let state = &row[6];
        let code = match state.split([':', ' ']).next() {
            Some("ok") => 32,
            Some("moved" | "connecting") => 33,
            Some("missing" | "stranded") => 31,
            _ => 0,
        };
        match line.strip_suffix(state.as_str()) {
            Some(before) if code > 0 => {
                out.push_str(&format!("{before}\x1b[{code}m{state}\x1b[0m\n"));
            }
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

/// The summary, in a few lines.
pub(super) fn summary(summary: &Summary) -> String {
    let well = summary.nodes - troubled(summary);
    let mut parts = vec![match well {
        _ if well == summary.nodes => format!("{}, all well", count(summary.nodes, "node")),
        _ => format!("{}, {well} well", count(summary.nodes, "node")),
    }];
    for (names, what) in [
        (&summary.missing, "missing"),
        (&summary.stranded, "stranded"),
        (&summary.connecting, "connecting"),
        (&summary.moved, "moved"),
    ] {
        if !names.is_empty() {
            parts.push(format!("{} {what}", names.len()));
        }
    }
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
        lines.push(format!("no answer from: {}", listed(&summary.missing)));
    }
    if !summary.data_mounts_lost.is_empty() {
        let names = listed(&summary.data_mounts_lost);
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
    lines.join("\n")
}

/// The unhealthy nodes of a tree that is not drawn, if there are any.
pub(super) fn hint(tree: &TreeView) -> Option<String> {
    let states = [
        (NodeState::Stranded, "stranded"),
        (NodeState::Connecting, "connecting"),
        (NodeState::Moved, "moved"),
    ];
    let found: Vec<String> = states
        .iter()
        .map(|(state, what)| (tree.count(*state), what))
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let number = tree.tree;
    (!found.is_empty()).then(|| format!("tree {number}: {} (--tree {number})", found.join(", ")))
}

fn troubled(summary: &Summary) -> usize {
    let lists = [
        &summary.missing,
        &summary.stranded,
        &summary.connecting,
        &summary.moved,
    ];
    let names: std::collections::BTreeSet<&String> = lists.into_iter().flatten().collect();
    names.len()
}

fn listed(names: &[String]) -> String {
    let shown = names[..names.len().min(NAMES_SHOWN)].join(", ");
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
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
