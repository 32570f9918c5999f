//! Several trees over one member list, one for each root.
//!
//! Tree `k` is a [`Tree`] over the list rotated so that root `k` comes first. With evenly spread roots and at most
//! `arity` of them, a node has children in about one tree only, and `r` roots cost a node at most `r` connections to
//! parents. Every node computes the same forest from the same list. Pure.

use crate::tree::Tree;
use std::collections::HashSet;

/// Most roots of a forest.
pub const ROOTS_MAX: usize = 64;

/// The trees of a cluster. Nodes are ranks in the member list; trees are numbered from 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forest {
    tree: Tree,
    /// The rank of each tree's root.
    roots: Vec<usize>,
}

impl Forest {
    /// A forest over `len` nodes, each with up to `arity` children in a tree, with roots at ranks `roots`. Returns `None`
    /// for no node, no root, an arity of 0, more than [`ROOTS_MAX`] roots, a root that is not in the list, or a root that
    /// is listed twice.
    #[must_use]
    pub fn new(len: usize, arity: usize, roots: Vec<usize>) -> Option<Self> {
        let tree = Tree::new(len, arity)?;
        let distinct: HashSet<_> = roots.iter().collect();
        let sound = (1..=ROOTS_MAX).contains(&roots.len())
            && roots.iter().all(|&root| tree.contains(root))
            && distinct.len() == roots.len();
        sound.then_some(Self { tree, roots })
    }

    /// Returns the ranks of `count` roots spread evenly over `len` nodes: `k * len / count`.
    #[must_use]
    pub fn spread(len: usize, count: usize) -> Vec<usize> {
        let ranks = (0..count).map(|k| k.saturating_mul(len) / count.max(1));
        ranks.collect()
    }

    /// Number of nodes.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a forest has at least one node"
    )]
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    /// Most children that a node may have in one tree.
    #[must_use]
    pub fn arity(&self) -> usize {
        self.tree.arity()
    }

    /// The rank of each tree's root.
    #[must_use]
    pub fn roots(&self) -> &[usize] {
        &self.roots
    }

    /// Whether `rank` is the root of some tree.
    #[must_use]
    pub fn is_root(&self, rank: usize) -> bool {
        self.roots.contains(&rank)
    }

    /// The parent of `rank` in `tree`; `None` for its root, and if the rank or the tree does not exist.
    #[must_use]
    pub fn parent(&self, tree: usize, rank: usize) -> Option<usize> {
        let above = self.tree.parent(self.position(tree, rank)?)?;
        self.rank(tree, above)
    }

    /// The children of `rank` in `tree`.
    pub fn children(&self, tree: usize, rank: usize) -> impl Iterator<Item = usize> {
        self.position(tree, rank)
            .map_or(0..0, |position| self.tree.children(position))
            .filter_map(move |position| self.rank(tree, position))
    }

    /// The ancestors of `rank` in `tree`, the parent first, the root last.
    #[must_use]
    pub fn ancestors(&self, tree: usize, rank: usize) -> Vec<usize> {
        let position = self.position(tree, rank).into_iter();
        let above = position.flat_map(|position| self.tree.ancestors(position));
        above.filter_map(|at| self.rank(tree, at)).collect()
    }

    /// Edges between `rank` and the root of `tree`.
    #[must_use]
    pub fn depth(&self, tree: usize, rank: usize) -> usize {
        self.position(tree, rank)
            .map_or(0, |position| self.tree.depth(position))
    }

    /// Whether `rank` is `top` or one of its descendants in `tree`.
    #[must_use]
    pub fn is_within(&self, tree: usize, rank: usize, top: usize) -> bool {
        match (self.position(tree, rank), self.position(tree, top)) {
            (Some(rank), Some(top)) => self.tree.is_within(rank, top),
            _ => false,
        }
    }

    /// Whether `rank` has children in some tree.
    #[must_use]
    pub fn is_inner(&self, rank: usize) -> bool {
        (0..self.roots.len()).any(|tree| self.children(tree, rank).next().is_some())
    }

    /// The position of `rank` in the list that begins with the root of `tree`.
    fn position(&self, tree: usize, rank: usize) -> Option<usize> {
        let root = *self.roots.get(tree)?;
        let len = self.len();
        (rank < len).then(|| (rank + (len - root)) % len)
    }

    /// The rank of the node at `position` in that list.
    fn rank(&self, tree: usize, position: usize) -> Option<usize> {
        Some((position + *self.roots.get(tree)?) % self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spread(len: usize, arity: usize, roots: usize) -> Forest {
        Forest::new(len, arity, Forest::spread(len, roots)).unwrap()
    }

    #[test]
    fn two_trees_over_seven_nodes() {
        let forest = spread(7, 2, 2);
        assert_eq!(forest.roots(), [0, 3]);
        assert_eq!(forest.ancestors(0, 6), [2, 0]);
        assert_eq!(forest.ancestors(1, 6), [4, 3]);
        assert_eq!(forest.children(1, 3).collect::<Vec<_>>(), [4, 5]);
        assert_eq!(forest.children(1, 4).collect::<Vec<_>>(), [6, 0]);
        assert!(forest.is_within(1, 0, 4) && !forest.is_within(1, 4, 0));
        assert_eq!(forest.depth(1, 0), 2);
    }

    #[test]
    fn invalid_forests_are_refused() {
        for (len, arity, roots) in [
            (0, 2, vec![0]),
            (4, 0, vec![0]),
            (4, 2, vec![]),
            (4, 2, vec![4]),
            (4, 2, vec![1, 1]),
            (100, 2, (0..65).collect()),
        ] {
            assert_eq!(Forest::new(len, arity, roots), None);
        }
    }

    proptest! {
        #[test]
        fn every_tree_spans_all_nodes(len in 1usize..300, arity in 1usize..9, roots in 1usize..9) {
            let forest = spread(len, arity, roots.min(len));
            for tree in 0..forest.roots().len() {
                for rank in 0..len {
                    let above = forest.ancestors(tree, rank);
                    prop_assert_eq!(above.first().copied(), forest.parent(tree, rank));
                    prop_assert_eq!(above.len(), forest.depth(tree, rank));
                    let root = forest.roots()[tree];
                    prop_assert_eq!(above.last().copied(), (rank != root).then_some(root));
                    for child in forest.children(tree, rank) {
                        prop_assert_eq!(forest.parent(tree, child), Some(rank));
                    }
                }
            }
        }

        #[test]
        fn with_few_roots_a_node_is_inner_in_at_most_one_tree(len in 1usize..2000, arity in 2usize..9, roots in 1usize..9) {
            let roots = roots.min(arity).min(len);
            let forest = spread(len, arity, roots);
            let inner = |tree, rank| forest.children(tree, rank).next().is_some();
            for rank in 0..len {
                let count = (0..roots).filter(|&tree| inner(tree, rank)).count();
                // Where the list does not divide evenly, the last inner node of one tree may be the
                // root of the next.
                prop_assert!(count <= 2, "rank {} is inner in {} trees", rank, count);
                if roots == 1 {
                    prop_assert!(count <= 1);
                }
            }
        }
    }
}
