//! The n-ary tree over an ordered member list, by arithmetic.
//!
//! Node 0 is the root; the parent of node `i` is `(i - 1) / arity`. Every node computes the same tree from the same list,
//! so no node has to ask where its neighbours are. Pure: no I/O, no state.

use std::ops::Range;

/// The shape of a tree: how many nodes, and how many children a node may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tree {
    len: usize,
    arity: usize,
}

impl Tree {
    /// A tree of `len` nodes (at least 1), each with up to `arity` children (at least 1); `None` otherwise.
    #[must_use]
    pub fn new(len: usize, arity: usize) -> Option<Self> {
        (len >= 1 && arity >= 1).then_some(Self { len, arity })
    }

    /// Number of nodes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a tree has at least one node")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Most children that a node may have.
    #[must_use]
    pub fn arity(&self) -> usize {
        self.arity
    }

    /// Whether `node` is in the tree.
    #[must_use]
    pub fn contains(&self, node: usize) -> bool {
        node < self.len
    }

    /// The parent of `node`; `None` for the root, and if `node` is not in the tree.
    #[must_use]
    pub fn parent(&self, node: usize) -> Option<usize> {
        (self.contains(node) && node > 0).then(|| (node - 1) / self.arity)
    }

    /// The children of `node`; empty for a leaf, and if `node` is not in the tree.
    #[must_use]
    pub fn children(&self, node: usize) -> Range<usize> {
        if !self.contains(node) {
            return 0..0;
        }
        // Saturation is correct: a child beyond `usize::MAX` is beyond `len` too.
        let first = node.saturating_mul(self.arity).saturating_add(1);
        let end = first.saturating_add(self.arity);
        first.min(self.len)..end.min(self.len)
    }

    /// The ancestors of `node`, nearest first, the root last.
    pub fn ancestors(&self, node: usize) -> impl Iterator<Item = usize> + use<> {
        let tree = *self;
        std::iter::successors(tree.parent(node), move |&above| tree.parent(above))
    }

    /// Edges between `node` and the root.
    #[must_use]
    pub fn depth(&self, node: usize) -> usize {
        self.ancestors(node).count()
    }

    /// Whether `node` is `top` or one of its descendants.
    #[must_use]
    pub fn is_within(&self, node: usize, top: usize) -> bool {
        self.contains(node) && (node == top || self.ancestors(node).any(|above| above == top))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seven_nodes_of_arity_two() {
        let tree = Tree::new(7, 2).unwrap();
        assert_eq!(tree.parent(0), None);
        assert_eq!(tree.children(0), 1..3);
        assert_eq!(tree.children(2), 5..7);
        assert_eq!(tree.children(3), 7..7);
        assert_eq!(tree.ancestors(6).collect::<Vec<_>>(), [2, 0]);
        assert_eq!(tree.depth(6), 2);
        assert!(tree.is_within(6, 2) && !tree.is_within(6, 1) && !tree.is_within(7, 0));
    }

    #[test]
    fn degenerate_shapes() {
        assert_eq!(Tree::new(0, 2), None);
        assert_eq!(Tree::new(1, 0), None);
        let alone = Tree::new(1, 4).unwrap();
        assert!(alone.children(0).is_empty());
        let chain = Tree::new(5, 1).unwrap();
        assert_eq!(chain.depth(4), 4);
        let star = Tree::new(usize::MAX, usize::MAX).unwrap();
        assert_eq!(star.depth(usize::MAX - 1), 1);
        assert!(star.children(5).is_empty());
    }

    proptest! {
        #[test]
        fn children_know_their_parent(len in 1usize..2000, arity in 1usize..20, node in 0usize..2000) {
            let tree = Tree::new(len, arity).unwrap();
            prop_assert!(tree.children(node).len() <= arity);
            for child in tree.children(node) {
                prop_assert_eq!(tree.parent(child), Some(node));
                prop_assert_eq!(tree.depth(child), tree.depth(node) + 1);
                prop_assert!(tree.is_within(child, node) && tree.is_within(child, 0));
            }
        }

        #[test]
        fn every_node_but_the_root_is_one_child_of_one_node(len in 1usize..500, arity in 1usize..20) {
            let tree = Tree::new(len, arity).unwrap();
            let mut children: Vec<usize> = (0..len).flat_map(|node| tree.children(node)).collect();
            children.sort_unstable();
            prop_assert_eq!(children, (1..len).collect::<Vec<_>>());
        }

        #[test]
        fn ancestors_shrink_to_the_root(len in 1usize..usize::MAX, arity in 2usize..usize::MAX, node in 0usize..usize::MAX) {
            let tree = Tree::new(len, arity).unwrap();
            let above: Vec<usize> = tree.ancestors(node).collect();
            prop_assert!(above.is_sorted_by(|a, b| a > b));
            prop_assert_eq!(above.last().copied(), (node > 0 && node < len).then_some(0));
        }
    }
}
