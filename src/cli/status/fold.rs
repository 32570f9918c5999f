//! What of a large tree is drawn: all that is not well, and as much of the rest as fits a screen.

use super::view::{Place, State, TreeView};
use std::collections::{HashSet, VecDeque};

/// Trees up to this many nodes are drawn whole; of larger ones, what is all alike gets so many lines.
const LINES: usize = 64;
/// Of brothers whose subtrees are all alike, so many are drawn when there are more.
const BROTHERS: usize = 3;

/// What is drawn below one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Drawn {
    /// Its children that get a line, in order.
    pub(super) children: Vec<usize>,
    /// What stands for the others.
    pub(super) folds: Vec<Fold>,
}

/// Nodes that share a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fold {
    /// How many children of the node; 0 if the node itself stands for what is below it.
    pub(super) brothers: usize,
    /// How many nodes below those.
    pub(super) below: usize,
    /// What all of them are.
    pub(super) state: State,
}

/// What is drawn below each place of `tree`.
pub(super) fn fold(tree: &TreeView, all: bool) -> Vec<Drawn> {
    let places = &tree.nodes;
    if all || places.len() <= LINES {
        let whole = |place: &Place| Drawn {
            children: place.below.clone(),
            folds: Vec::new(),
        };
        return places.iter().map(whole).collect();
    }
    let subtrees = subtrees(places);
    let mut drawn = vec![Drawn::default(); places.len()];
    let mut left = LINES;
    let roots = (0..places.len()).filter(|at| places[*at].above.is_none());
    let mut open: VecDeque<usize> = roots.collect();
    while let Some(at) = open.pop_front() {
        let (below, alike) = subtrees[at];
        drawn[at] = match alike {
            Some(state) if left == 0 && below > 0 => Drawn {
                children: Vec::new(),
                folds: vec![Fold {
                    brothers: 0,
                    below,
                    state,
                }],
            },
            _ => brothers(&places[at].below, &subtrees),
        };
        left = left.saturating_sub(drawn[at].children.len() + drawn[at].folds.len());
        open.extend(&drawn[at].children);
    }
    drawn
}

/// How many are below each place, and their common state (and its own), if they have one.
fn subtrees(places: &[Place]) -> Vec<(usize, Option<State>)> {
    let mut found: Vec<(usize, Option<State>)> =
        places.iter().map(|place| (0, Some(place.state))).collect();
    // Breadth first, then backwards: children before their parents.
    let roots = (0..places.len()).filter(|at| places[*at].above.is_none());
    let mut order: Vec<usize> = roots.collect();
    let mut next = 0;
    while let Some(&at) = order.get(next) {
        order.extend(&places[at].below);
        next += 1;
    }
    for at in order.into_iter().rev() {
        if let Some(above) = places[at].above {
            let (below, state) = found[at];
            found[above].0 += below + 1;
            if found[above].1 != state {
                found[above].1 = None;
            }
        }
    }
    found
}

fn brothers(children: &[usize], subtrees: &[(usize, Option<State>)]) -> Drawn {
    let states = [
        State::Ok,
        State::Moved,
        State::Connecting,
        State::Stranded,
        State::Missing,
    ];
    let mut hidden: HashSet<usize> = HashSet::new();
    let mut folds = Vec::new();
    for state in states {
        let alike = |at: &&usize| subtrees[**at].1 == Some(state);
        let same: Vec<usize> = children.iter().filter(alike).copied().collect();
        // A line for one more node says more than one that says "1 more".
        if same.len() > BROTHERS + 1 {
            let rest = &same[BROTHERS..];
            folds.push(Fold {
                brothers: rest.len(),
                below: rest.iter().map(|at| subtrees[*at].0).sum(),
                state,
            });
            hidden.extend(rest);
        }
    }
    Drawn {
        children: children
            .iter()
            .filter(|at| !hidden.contains(at))
            .copied()
            .collect(),
        folds,
    }
}
