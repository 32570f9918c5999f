//! Cutting the tree's positions into connected pieces of given sizes.
//!
//! Pure. The positions that nobody has yet form regions: connected pieces, each the whole of what is
//! free below its top position. A group that fits a region exactly takes it; else it takes the top of
//! the smallest one that is big enough, and leaves whole subtrees; else it takes the biggest whole and
//! goes on elsewhere. Every position is taken once: N log N together.

use copperfs_overlay::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// Orders worth comparing, each a permutation of the given indices that keeps index 0 in front.
pub(super) fn candidates(groups: &[u64], tree: Tree) -> Vec<Vec<usize>> {
    let mut members: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, group) in groups.iter().enumerate() {
        members.entry(*group).or_default().push(index);
    }
    let Some(root) = groups.first().and_then(|group| members.remove(group)) else {
        return Vec::new();
    };
    let mut others: Vec<Vec<usize>> = members.into_values().collect();
    // Stable: groups of one size stay in the order of their numbers.
    others.sort_by_key(|members| std::cmp::Reverse(members.len()));

    let mut root_first = Carving::new(tree);
    root_first.take_from(0, &root);
    for members in &others {
        root_first.take(members);
    }
    let mut root_last = Carving::new(tree);
    root_last.withhold_root();
    for members in &others {
        root_last.take(members);
    }
    root_last.take_rest(&root);
    vec![root_first.order, root_last.order]
}

struct Carving {
    tree: Tree,
    /// The index at each position; `FREE` where there is none.
    order: Vec<usize>,
    /// Free positions that hang together at and below each free position.
    size: Vec<usize>,
    /// Free positions by the size of what hangs at them.
    by_size: BTreeSet<(usize, usize)>,
}

const FREE: usize = usize::MAX;

impl Carving {
    fn new(tree: Tree) -> Self {
        let len = tree.len();
        let mut size = vec![1; len];
        for position in (1..len).rev() {
            if let Some(parent) = tree.parent(position) {
                size[parent] += size[position];
            }
        }
        let by_size = size
            .iter()
            .enumerate()
            .map(|(at, size)| (*size, at))
            .collect();
        Self {
            tree,
            order: vec![FREE; len],
            size,
            by_size,
        }
    }

    /// Keeps position 0 for [`Self::take_rest`].
    fn withhold_root(&mut self) {
        self.by_size.remove(&(self.size[0], 0));
    }

    /// Places `members`, in as few pieces as it finds.
    fn take(&mut self, members: &[usize]) {
        let mut left = members;
        while !left.is_empty() {
            let fitting = self.by_size.range((left.len(), 0)..).next();
            let Some(&(size, top)) = fitting.or_else(|| self.by_size.last()) else {
                return;
            };
            let (now, later) = left.split_at(size.min(left.len()));
            self.take_from(top, now);
            left = later;
        }
    }

    /// Places `members`, which are no more than hang at `top`, there: `top` and what is connected with
    /// it, in the order of the positions.
    fn take_from(&mut self, top: usize, members: &[usize]) {
        let total = self.size[top];
        let mut spare = total - members.len().min(total);
        let mut taken = Vec::with_capacity(members.len());
        let mut open = vec![top];
        while let Some(position) = open.pop() {
            taken.push(position);
            let mut children: Vec<usize> = self
                .tree
                .children(position)
                .filter(|child| self.order[*child] == FREE)
                .collect();
            children.sort_by_key(|child| (std::cmp::Reverse(self.size[*child]), *child));
            let mut enter = Vec::new();
            for child in children {
                if self.size[child] <= spare {
                    spare -= self.size[child];
                } else {
                    enter.push(child);
                }
            }
            // The first one is bigger than what is to be spared: entered next, it absorbs all of it.
            open.extend(enter.into_iter().rev());
        }
        taken.sort_unstable();
        let mut above = self.tree.parent(top);
        while let Some(position) = above.filter(|position| self.order[*position] == FREE) {
            self.resize(position, self.size[position] - total);
            above = self.tree.parent(position);
        }
        for (position, member) in taken.into_iter().zip(members) {
            self.by_size.remove(&(self.size[position], position));
            self.order[position] = *member;
        }
    }

    fn resize(&mut self, position: usize, size: usize) {
        // The withheld root is not in the set and stays out of it.
        if self.by_size.remove(&(self.size[position], position)) {
            self.by_size.insert((size, position));
        }
        self.size[position] = size;
    }

    /// Places `members` wherever there is room, the first of them first.
    fn take_rest(&mut self, members: &[usize]) {
        let free = self.order.iter_mut().filter(|index| **index == FREE);
        for (place, member) in free.zip(members) {
            *place = *member;
        }
    }
}
