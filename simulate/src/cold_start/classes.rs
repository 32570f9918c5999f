//! Nodes that behave alike, so that each kind is simulated once.
//!
//! With links and cores that divide themselves evenly, what happens at a node follows from what it is
//! (root, reader, when it starts), from its parents in every tree, from its siblings and from its
//! children. The coarsest partition that is stable under exactly that is found by refinement: nodes
//! start with the colour of what they are and are told apart by their neighbours' colours until no
//! more are. So one node stands for its class without any error (a test compares with all nodes
//! simulated one by one). A single tree of 100,000 nodes has a few dozen classes; several rotated
//! trees over one list have about as many as nodes, which is then simply the full simulation.

use copperfs_topology::Forest;
use std::collections::HashMap;
use std::hash::Hash;

/// Nodes alike.
#[derive(Debug)]
pub(super) struct Class {
    /// One of them.
    pub(super) example: usize,
    /// How many they are.
    pub(super) count: u64,
    /// By tree, the edge from above; `None` for the root of that tree.
    pub(super) above: Vec<Option<usize>>,
}

/// From a node of one class to its children of another, in one tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) parent: usize,
    pub(super) child: usize,
    /// How many such children one parent has.
    pub(super) width: u32,
}

/// The classes of a set of trees.
#[derive(Debug)]
pub(super) struct Classes {
    pub(super) classes: Vec<Class>,
    pub(super) edges: Vec<Edge>,
}

impl Classes {
    /// The classes of `trees`, whose nodes differ in themselves by `kind` and by being a root.
    pub(super) fn alike<K: Hash + Eq>(trees: &Forest, kind: impl Fn(usize) -> K) -> Self {
        Self::of(trees, &refine(trees, kind))
    }

    /// Every node by itself.
    #[cfg(test)]
    pub(super) fn single(trees: &Forest) -> Self {
        Self::of(trees, &(0..trees.len()).collect::<Vec<_>>())
    }

    fn of(trees: &Forest, colours: &[usize]) -> Self {
        let mut classes: Vec<Class> = Vec::new();
        for (node, &colour) in colours.iter().enumerate() {
            if colour == classes.len() {
                classes.push(Class {
                    example: node,
                    count: 0,
                    above: Vec::new(),
                });
            }
            classes[colour].count += 1;
        }
        let mut edges = Vec::new();
        for (child, class) in classes.iter_mut().enumerate() {
            let example = class.example;
            class.above = (0..trees.roots().len())
                .map(|k| {
                    let parent = trees.parent(k, example)?;
                    let alike = trees
                        .children(k, parent)
                        .filter(|&node| colours[node] == child)
                        .count();
                    edges.push(Edge {
                        parent: colours[parent],
                        child,
                        width: u32::try_from(alike).unwrap_or(u32::MAX),
                    });
                    Some(edges.len() - 1)
                })
                .collect();
        }
        Self { classes, edges }
    }
}

/// Colours 0, 1, … in the order of their first node.
fn refine<K: Hash + Eq>(trees: &Forest, kind: impl Fn(usize) -> K) -> Vec<usize> {
    let is_root = |node| trees.roots().iter().position(|&root| root == node);
    let (mut colours, mut count) =
        numbered((0..trees.len()).map(|node| (kind(node), is_root(node))));
    loop {
        // What a node is to its parents and children: with it, siblings tell on each other.
        let below: Vec<Vec<(usize, usize)>> = (0..trees.len())
            .map(|node| {
                let mut below: Vec<(usize, usize)> = (0..trees.roots().len())
                    .flat_map(|k| trees.children(k, node).map(move |child| (k, child)))
                    .map(|(k, child)| (k, colours[child]))
                    .collect();
                below.sort_unstable();
                below
            })
            .collect();
        let (families, _) = numbered(below.iter());
        let (finer, finer_count) = numbered((0..trees.len()).map(|node| {
            let above: Vec<Option<(usize, usize)>> = (0..trees.roots().len())
                .map(|k| trees.parent(k, node))
                .map(|parent| parent.map(|parent| (colours[parent], families[parent])))
                .collect();
            (colours[node], families[node], above)
        }));
        if finer_count == count {
            return colours;
        }
        (colours, count) = (finer, finer_count);
    }
}

fn numbered<T: Hash + Eq>(things: impl Iterator<Item = T>) -> (Vec<usize>, usize) {
    let mut numbers = HashMap::new();
    let numbered = things
        .map(|thing| {
            let next = numbers.len();
            *numbers.entry(thing).or_insert(next)
        })
        .collect();
    (numbered, numbers.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forest(nodes: usize, arity: usize, roots: usize) -> Forest {
        Forest::new(nodes, arity, Forest::spread(nodes, roots)).unwrap()
    }

    fn count(nodes: usize, arity: usize, roots: usize) -> usize {
        let trees = forest(nodes, arity, roots);
        Classes::alike(&trees, |_node| ()).classes.len()
    }

    #[test]
    fn complete_trees_have_one_class_a_level() {
        assert_eq!(count(1, 2, 1), 1);
        assert_eq!(count(31, 2, 1), 5);
        assert_eq!(count(85, 4, 1), 4);
    }

    #[test]
    fn large_trees_have_few_classes() {
        assert!(count(8_300, 4, 1) < 60, "{}", count(8_300, 4, 1));
        assert!(count(100_000, 4, 1) < 60, "{}", count(100_000, 4, 1));
    }

    #[test]
    fn classes_are_stable() {
        for (nodes, arity, roots) in [(40, 2, 1), (100, 3, 1), (64, 4, 4), (30, 2, 3)] {
            let trees = forest(nodes, arity, roots);
            let colours = refine(&trees, |node| node == 17);
            let classes = Classes::of(&trees, &colours);
            let total: u64 = classes.classes.iter().map(|class| class.count).sum();
            assert_eq!(total, u64::try_from(nodes).unwrap());
            for node in 0..nodes {
                let class = &classes.classes[colours[node]];
                for k in 0..roots {
                    let parent = trees.parent(k, node);
                    let edge = class.above[k].map(|edge| classes.edges[edge]);
                    assert_eq!(parent.map(|p| colours[p]), edge.map(|edge| edge.parent));
                    let Some((parent, edge)) = parent.zip(edge) else {
                        continue;
                    };
                    let alike = trees
                        .children(k, parent)
                        .filter(|&child| colours[child] == colours[node]);
                    assert_eq!(alike.count(), usize::try_from(edge.width).unwrap());
                }
            }
        }
    }
}
