//! The current trees of the cluster: the parent of each node, and the nodes that differ from the list.
//!
//! Pure. Computed from the nodes' reports and the member list. Reports come from other nodes and are not
//! trusted. A node that reports an ancestor that it cannot have is drawn below its parent in the list, so the
//! result is always a tree.
//!
//! | key | what |
//! | --- | --- |
//! | `healthy` | all nodes answer and none is stranded in any tree; then the command ends with 0 |
//! | `nodes`, `guests` | members and the guests that answered; how many of them are guests |
//! | `missing`, `moved`, `connecting`, `stranded` | names of the nodes in such a state in any tree |
//! | `data_mounts_lost` | names of the nodes whose data mount was taken away alone |
//! | `hanging[].{node,calls,action,path,since_ms}` | nodes on which calls into storage hang: the number of calls; the oldest call's action, path and age |
//! | `memory_pressure[].{node,memory,given_back,since_ms,limit,is_machine}` | nodes whose caches have given memory back because it is short: the configured bytes, those given back, for how long, the tightest limit and whether it is the machine's memory |
//! | `roots` | names of the roots, tree by tree |
//! | `depth` | of the deepest tree as it is, in edges |
//! | `connections_max` | most connections to other nodes that one node has |
//! | `crossings.{edges,given,used}` | edges of all trees by the list, and how many of them cross switches in the list's order as it was given and as it is used; null where no topology is known |
//! | `trees[].{tree,root}` | number of the tree, name of its root; with `--tree` only that one |
//! | `trees[].nodes[].{node,rank,guest,role}` | which node it is; `rank` is null for a guest, `role` empty where there is no answer |
//! | `trees[].nodes[].state` | `ok`, `moved`, `connecting`, `stranded` or `missing` |
//! | `trees[].nodes[].{reason,since_ms}` | why it is not connected, or null; for how long it has stood so |
//! | `trees[].nodes[].{home,using}` | name of the parent by the list; of the ancestor that it hangs from, or null |
//! | `trees[].nodes[].{round_trip_us,uptime_s}` | to that ancestor, smoothed; since the daemon started; or null |
//! | `trees[].nodes[].children` | how many nodes say that they hang from it |

use crate::cli::stats::{ClusterReports, MemberList};
use crate::config::Crossings;
use crate::report::{Hanging, LinkState, MemoryPressure, Report, Standing, printable};
use copperfs_overlay::Forest;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The maximum length of a name, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The state of a node in one tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::cli) enum NodeState {
    /// It is connected to its parent, or is the root.
    Ok,
    /// It is connected to another ancestor.
    Moved,
    /// It is looking for an ancestor.
    Connecting,
    /// It can reach no ancestor.
    Stranded,
    /// It has not answered.
    Missing,
}

impl NodeState {
    /// All, from the best to the worst.
    pub(in crate::cli) const ALL: [Self; 5] = [
        Self::Ok,
        Self::Moved,
        Self::Connecting,
        Self::Stranded,
        Self::Missing,
    ];

    /// Its name, as in JSON.
    pub(in crate::cli) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Moved => "moved",
            Self::Connecting => "connecting",
            Self::Stranded => "stranded",
            Self::Missing => "missing",
        }
    }
}

/// A node in one tree.
#[derive(Debug, Clone, Serialize)]
pub(in crate::cli) struct TreeNode {
    pub(in crate::cli) node: String,
    pub(in crate::cli) rank: Option<usize>,
    pub(in crate::cli) guest: bool,
    /// Empty if the node has not answered.
    pub(in crate::cli) role: String,
    pub(in crate::cli) state: NodeState,
    /// Why it is not connected, as text.
    pub(in crate::cli) reason: Option<String>,
    /// How long it has been in this state, in milliseconds.
    pub(in crate::cli) since_ms: Option<u64>,
    /// Name of the parent by the list.
    pub(in crate::cli) home: Option<String>,
    /// Name of the ancestor that it is connected to.
    pub(in crate::cli) using: Option<String>,
    pub(in crate::cli) round_trip_us: Option<u64>,
    /// The number of nodes that report it as their ancestor in use.
    pub(in crate::cli) children: usize,
    pub(in crate::cli) uptime_s: Option<u64>,
    /// The node above it in the drawing, as an index into the tree's nodes; `None` for the root.
    #[serde(skip)]
    pub(in crate::cli) above: Option<usize>,
    /// The nodes below it in the drawing, in rank order, guests last.
    #[serde(skip)]
    pub(in crate::cli) below: Vec<usize>,
}

/// One tree.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct TreeView {
    pub(in crate::cli) tree: usize,
    /// Name of its root.
    pub(in crate::cli) root: String,
    /// Members by rank, then guests by name.
    pub(in crate::cli) nodes: Vec<TreeNode>,
}

impl TreeView {
    /// The depth of the tree, in edges.
    fn depth(&self) -> usize {
        let depth = |place: &TreeNode| {
            let above = |at: &usize| self.nodes[*at].above;
            std::iter::successors(place.above, above).count()
        };
        self.nodes.iter().map(depth).max().unwrap_or(0)
    }
}

/// Hanging calls into storage of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(in crate::cli) struct HangingAt {
    pub(in crate::cli) node: String,
    #[serde(flatten)]
    pub(in crate::cli) hanging: Hanging,
}

/// A node whose caches have given memory back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(in crate::cli) struct PressureAt {
    pub(in crate::cli) node: String,
    #[serde(flatten)]
    pub(in crate::cli) pressure: MemoryPressure,
}

/// A summary of all trees. A node counts once, even if it has moved in several trees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(in crate::cli) struct Summary {
    /// All nodes answer, and none is stranded in any tree.
    pub(in crate::cli) healthy: bool,
    /// Members and the guests that answered.
    pub(in crate::cli) nodes: usize,
    pub(in crate::cli) guests: usize,
    pub(in crate::cli) missing: Vec<String>,
    pub(in crate::cli) moved: Vec<String>,
    pub(in crate::cli) connecting: Vec<String>,
    pub(in crate::cli) stranded: Vec<String>,
    /// Nodes whose data mount alone was unmounted.
    pub(in crate::cli) data_mounts_lost: Vec<String>,
    /// Nodes on which calls into storage hang.
    pub(in crate::cli) hanging: Vec<HangingAt>,
    /// Nodes whose caches have given memory back.
    pub(in crate::cli) memory_pressure: Vec<PressureAt>,
    /// Names of the roots, tree by tree.
    pub(in crate::cli) roots: Vec<String>,
    /// Of the deepest tree, in edges.
    pub(in crate::cli) depth: usize,
    /// The maximum number of connections of one node to others.
    pub(in crate::cli) connections_max: usize,
    /// The number of edges that cross switches, if a topology is known.
    pub(in crate::cli) crossings: Option<Crossings>,
}

/// The state of all trees.
#[derive(Debug)]
pub(in crate::cli) struct View {
    pub(in crate::cli) trees: Vec<TreeView>,
    pub(in crate::cli) summary: Summary,
}

/// A node, whether it has answered or not.
struct Node<'a> {
    name: String,
    rank: Option<usize>,
    report: Option<&'a Report>,
    standing: Standing,
}

/// There is no member list, or one that does not describe a forest.
#[derive(Debug, thiserror::Error)]
#[error(
    "the daemon does not say which nodes there are: it is still starting, or of another release"
)]
pub(in crate::cli) struct NoMemberList;

impl View {
    /// The cluster that `reports` describe.
    ///
    /// # Errors
    /// There is no member list.
    pub(in crate::cli) fn of(reports: &ClusterReports) -> Result<Self, NoMemberList> {
        let list = reports.list.as_ref().ok_or(NoMemberList)?;
        let forest = Forest::new(list.names.len(), list.arity, list.roots.clone());
        let forest = forest.ok_or(NoMemberList)?;
        let nodes = nodes(list, &reports.nodes);
        let trees = 0..forest.roots().len();
        let trees: Vec<_> = trees.map(|tree| tree_view(&forest, tree, &nodes)).collect();
        let summary = Summary {
            crossings: list.crossings,
            ..summary(&nodes, &trees)
        };
        Ok(Self { trees, summary })
    }

    /// Each node in the first tree, and its worst state in any tree. Members by rank, then guests by name.
    pub(in crate::cli) fn nodes(&self) -> impl Iterator<Item = (&TreeNode, NodeState)> {
        let first = self.trees.iter().take(1).flat_map(|tree| &tree.nodes);
        first.enumerate().map(|(at, first)| {
            let states = self.trees.iter().map(|tree| tree.nodes[at].state);
            (first, states.max().unwrap_or(first.state))
        })
    }
}

/// The members in rank order, then the guests by name.
fn nodes<'a>(list: &MemberList, reports: &'a [Report]) -> Vec<Node<'a>> {
    let mut by_rank = BTreeMap::new();
    let mut guests = BTreeMap::new();
    for report in reports {
        match report.rank().and_then(|rank| usize::try_from(rank).ok()) {
            Some(rank) => drop(by_rank.insert(rank, report)),
            None => drop(guests.insert(printable(report.node(), NAME_BYTES_MAX), report)),
        }
    }
    let node = |name: String, rank, report: Option<&'a Report>| Node {
        name,
        rank,
        report,
        standing: report.map(Report::standing).unwrap_or_default(),
    };
    let members = list.names.iter().enumerate().map(|(rank, name)| {
        let name = printable(name, NAME_BYTES_MAX);
        node(name, Some(rank), by_rank.get(&rank).copied())
    });
    let guests = guests.into_iter();
    let guests = guests.map(|(name, report)| node(name, None, Some(report)));
    members.chain(guests).collect()
}

fn tree_view(forest: &Forest, tree: usize, nodes: &[Node<'_>]) -> TreeView {
    let root = forest.roots()[tree];
    let mut places: Vec<TreeNode> = nodes
        .iter()
        .map(|node| tree_node(forest, tree, node, nodes))
        .collect();
    for at in 0..places.len() {
        if let Some(above) = places[at].above {
            places[above].below.push(at);
            places[above].children += usize::from(places[at].using.is_some());
        }
    }
    TreeView {
        tree,
        root: nodes[root].name.clone(),
        nodes: places,
    }
}

fn tree_node(forest: &Forest, tree: usize, node: &Node<'_>, nodes: &[Node<'_>]) -> TreeNode {
    let root = forest.roots()[tree];
    let is_root = node.rank == Some(root);
    let link = node.standing.link(tree);
    let home = match node.rank {
        Some(rank) => forest.parent(tree, rank),
        // Any member may be the parent of a guest.
        None => Some(link.map_or(root, |link| link.home)).filter(|home| *home < forest.len()),
    };
    let state = match (node.report, link) {
        (None, _) => NodeState::Missing,
        (Some(_), _) if is_root => NodeState::Ok,
        (Some(_), None) => NodeState::Connecting,
        (Some(_), Some(link)) => match link.state {
            LinkState::Connected if link.using == home => NodeState::Ok,
            LinkState::Connected => NodeState::Moved,
            LinkState::Connecting | LinkState::Stopped => NodeState::Connecting,
            LinkState::Stranded => NodeState::Stranded,
        },
    };
    let can_have = |above: &usize| match node.rank {
        Some(rank) => *above != rank && forest.is_within(tree, rank, *above),
        None => *above < forest.len(),
    };
    let using = link
        .filter(|_| matches!(state, NodeState::Ok | NodeState::Moved))
        .and_then(|link| link.using)
        .filter(can_have);
    let name = |rank: usize| nodes[rank].name.clone();
    let role = node.report.map_or("", Report::role);
    let reason = link.and_then(|link| link.reason.as_deref());
    TreeNode {
        node: node.name.clone(),
        rank: node.rank,
        guest: node.rank.is_none(),
        role: printable(role, 16),
        state,
        reason: reason.map(|reason| printable(reason, 200)),
        since_ms: link.map(|link| link.since_ms),
        home: home.map(name),
        using: using.map(name),
        round_trip_us: using.and(link).and_then(|link| link.round_trip_us),
        children: 0,
        uptime_s: (node.report).map(|report| report.counter("uptime_seconds")),
        above: using.or(home).or(Some(root)).filter(|_| !is_root),
        below: Vec::new(),
    }
}

fn summary(nodes: &[Node<'_>], trees: &[TreeView]) -> Summary {
    let names = |is: &dyn Fn(usize) -> bool| -> Vec<String> {
        let found = nodes.iter().enumerate().filter(|(at, _)| is(*at));
        found.map(|(_, node)| node.name.clone()).collect()
    };
    let in_state =
        |state: NodeState| names(&|at| trees.iter().any(|tree| tree.nodes[at].state == state));
    let lost = |report: &Report| report.counter("data_mount.lost") > 0;
    let (missing, stranded) = (in_state(NodeState::Missing), in_state(NodeState::Stranded));
    Summary {
        healthy: missing.is_empty() && stranded.is_empty(),
        nodes: nodes.len(),
        guests: nodes.iter().filter(|node| node.rank.is_none()).count(),
        missing,
        moved: in_state(NodeState::Moved),
        connecting: in_state(NodeState::Connecting),
        stranded,
        data_mounts_lost: names(&|at| nodes[at].report.is_some_and(lost)),
        hanging: nodes.iter().filter_map(hanging_at).collect(),
        memory_pressure: nodes.iter().filter_map(pressure_at).collect(),
        roots: trees.iter().map(|tree| tree.root.clone()).collect(),
        depth: trees.iter().map(TreeView::depth).max().unwrap_or(0),
        connections_max: connections_max(nodes.len(), trees),
        crossings: None,
    }
}

/// Cleans the texts, because they come from another node and are printed to a terminal.
fn hanging_at(node: &Node<'_>) -> Option<HangingAt> {
    let hanging = node.standing.hanging.as_ref()?;
    Some(HangingAt {
        node: node.name.clone(),
        hanging: Hanging {
            action: printable(&hanging.action, REPORTED_BYTES_MAX),
            path: printable(&hanging.path, REPORTED_BYTES_MAX),
            ..*hanging
        },
    })
}

fn pressure_at(node: &Node<'_>) -> Option<PressureAt> {
    Some(PressureAt {
        node: node.name.clone(),
        pressure: node.standing.memory_pressure?,
    })
}

/// Maximum length of another node's text that is shown, in bytes.
const REPORTED_BYTES_MAX: usize = 200;

/// The maximum number of connections of one node. Trees with the same edge share a connection.
fn connections_max(nodes: usize, trees: &[TreeView]) -> usize {
    let places = trees.iter().flat_map(|tree| tree.nodes.iter().enumerate());
    let used = places.filter(|(_, place)| place.using.is_some());
    let edges = used.filter_map(|(at, place)| Some((at, place.above?)));
    let edges: BTreeSet<_> = edges.collect();
    let mut ends = vec![0; nodes];
    for (child, parent) in edges {
        ends[child] += 1;
        ends[parent] += 1;
    }
    ends.into_iter().max().unwrap_or(0)
}

#[cfg(test)]
pub(in crate::cli::status) mod tests;
