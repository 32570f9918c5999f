//! Selects the nodes of a large tree that are drawn: all unhealthy nodes, and healthy nodes as far as they fit a
//! screen.

use super::view::{NodeState, TreeNode, TreeView};
use std::collections::{HashSet, VecDeque};

/// Trees up to this many nodes are drawn whole. In larger trees, subtrees whose nodes all have the same state share
/// this many lines.
const LINES: usize = 64;
/// The number of siblings that are drawn before further siblings with identical subtrees are folded.
const SIBLINGS_SHOWN: usize = 3;

/// The lines below one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Drawn {
    /// The children with a line of their own, in order.
    pub(super) children: Vec<usize>,
    /// The lines that stand for the other children.
    pub(super) folds: Vec<Fold>,
}

/// A line that stands for several nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fold {
    /// The number of folded children; 0 if the line stands for everything below the node.
    pub(super) siblings: usize,
    /// The number of nodes below them.
    pub(super) below: usize,
    /// The state of all of them.
    pub(super) state: NodeState,
}

/// The lines below each node of `tree`.
pub(super) fn fold(tree: &TreeView, all: bool) -> Vec<Drawn> {
    let nodes = &tree.nodes;
    if all || nodes.len() <= LINES {
        let whole = |place: &TreeNode| Drawn {
            children: place.below.clone(),
            ..Drawn::default()
        };
        return nodes.iter().map(whole).collect();
    }
    let subtrees = subtrees(nodes);
    let mut drawn = vec![Drawn::default(); nodes.len()];
    let mut left = LINES;
    let roots = (0..nodes.len()).filter(|at| nodes[*at].above.is_none());
    let mut open: VecDeque<usize> = roots.collect();
    while let Some(at) = open.pop_front() {
        let (below, alike) = subtrees[at];
        drawn[at] = match alike {
            // No lines are left: a subtree whose nodes all have one state is a single line.
            Some(state) if left == 0 && below > 0 => Drawn {
                children: Vec::new(),
                folds: vec![Fold {
                    siblings: 0,
                    below,
                    state,
                }],
            },
            _ => siblings(&nodes[at].below, &subtrees),
        };
        left = left.saturating_sub(drawn[at].children.len() + drawn[at].folds.len());
        open.extend(&drawn[at].children);
    }
    drawn
}

/// For each node, the number of nodes below it, and the state that it shares with all of them, if any.
fn subtrees(nodes: &[TreeNode]) -> Vec<(usize, Option<NodeState>)> {
    let mut found: Vec<_> = nodes.iter().map(|place| (0, Some(place.state))).collect();
    // Breadth first, and then backwards, so that children come before their parents.
    let roots = (0..nodes.len()).filter(|at| nodes[*at].above.is_none());
    let mut order: Vec<usize> = roots.collect();
    let mut next = 0;
    while let Some(&at) = order.get(next) {
        order.extend(&nodes[at].below);
        next += 1;
    }
    for at in order.into_iter().rev() {
        if let Some(above) = nodes[at].above {
            let (below, state) = found[at];
            found[above].0 += below + 1;
            if found[above].1 != state {
                found[above].1 = None;
            }
        }
    }
    found
}

fn siblings(children: &[usize], subtrees: &[(usize, Option<NodeState>)]) -> Drawn {
    let mut hidden: HashSet<usize> = HashSet::new();
    let mut folds = Vec::new();
    for state in NodeState::ALL {
        let alike = |at: &&usize| subtrees[**at].1 == Some(state);
        let same: Vec<usize> = children.iter().filter(alike).copied().collect();
        // A fold of a single node would take as much space as the node itself.
        if same.len() > SIBLINGS_SHOWN + 1 {
            let rest = &same[SIBLINGS_SHOWN..];
            folds.push(Fold {
                siblings: rest.len(),
                below: rest.iter().map(|at| subtrees[*at].0).sum(),
                state,
            });
            hidden.extend(rest);
        }
    }
    let mut children = children.to_vec();
    children.retain(|at| !hidden.contains(at));
    Drawn { children, folds }
}
