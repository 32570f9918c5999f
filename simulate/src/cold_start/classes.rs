//! Classes of nodes that behave alike, so that each is simulated once.
//!
//! With links and cores that are shared evenly, the events at a node depend on the node itself
//! (root, reader, start), its parents in every tree, its siblings, and its children. Refinement
//! finds the coarsest partition that is stable under exactly that: nodes start with a colour for
//! their own properties, and are separated by their neighbours' colours until nothing changes. So
//! one node represents its class without any error (a test compares with a simulation of every
//! node). A single tree of 100,000 nodes has a few dozen classes. Several rotated trees over one
//! list have about as many classes as nodes, which is then simply the full simulation.

use copperfs_topology::Forest;
use std::collections::HashMap;
use std::hash::Hash;

/// A class of nodes.
#[derive(Debug)]
pub(super) struct Class {
    /// One of its nodes.
    pub(super) example: usize,
    /// The number of its nodes.
    pub(super) count: u64,
    /// The edge from the parent in each tree. `None` for the root of that tree.
    pub(super) above: Vec<Option<usize>>,
}

/// The edges from a node of one class to its children of another class, in one tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) parent: usize,
    pub(super) child: usize,
    /// The number of such children of one parent.
    pub(super) width: u32,
}

/// The classes of the nodes of several trees.
#[derive(Debug)]
pub(super) struct Classes {
    pub(super) classes: Vec<Class>,
    pub(super) edges: Vec<Edge>,
}

impl Classes {
    /// Returns the classes of `trees`, whose nodes differ by `kind` and by being a root.
    pub(super) fn alike<K: Hash + Eq>(trees: &Forest, kind: impl Fn(usize) -> K) -> Self {
        Self::of(trees, &refine(trees, kind))
    }

    /// Returns a class for every node.
    #[cfg(test)]
    pub(super) fn single(trees: &Forest) -> Self {
        Self::of(trees, &(0..trees.len()).collect::<Vec<_>>())
    }

    fn of(trees: &Forest, colours: &[usize]) -> Self {
        let mut classes: Vec<Class> = Vec::new();
        for (node, &colour) in colours.iter().enumerate() {
            // Colours are numbered in the order of their first nodes, so the first node is the
            // example.
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

/// Returns the colour of each node, numbered in the order of their first nodes.
fn refine<K: Hash + Eq>(trees: &Forest, kind: impl Fn(usize) -> K) -> Vec<usize> {
    let is_root = |node| trees.roots().iter().position(|&root| root == node);
    let (mut colours, mut count) =
        numbered((0..trees.len()).map(|node| (kind(node), is_root(node))));
    loop {
        // The family of a node, so that siblings differ if their parents' other children do.
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
