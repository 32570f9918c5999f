//! Cuts the tree's positions into connected pieces of given sizes.
//!
//! Pure. The free positions form regions: connected pieces, each with all free positions below its top. A group
//! takes a region of exactly its size. Without one, it takes the top of the smallest region that is large
//! enough, and leaves whole subtrees. Without one of those either, it takes the whole of the largest region, and
//! continues with another. Each position is taken once, so the total cost is N log N.

use copperfs_overlay::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// The candidate orders, each a permutation of the given indices that begins with index 0.
pub(super) fn candidates(groups: &[u64], tree: Tree) -> Vec<Vec<usize>> {
    let mut members: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, group) in groups.iter().enumerate() {
        members.entry(*group).or_default().push(index);
    }
    let Some(root) = groups.first().and_then(|group| members.remove(group)) else {
        return Vec::new();
    };
    let mut others: Vec<Vec<usize>> = members.into_values().collect();
    // The sort is stable, so groups of equal size stay in the order of their numbers.
    others.sort_by_key(|members| std::cmp::Reverse(members.len()));

    let mut root_first = Carving::new(tree);
    root_first.take_from(0, &root);
    for members in &others {
        root_first.take(members);
    }
    let mut root_last = Carving::new(tree);
    // Position 0 is reserved: it is not in the set, and is filled last.
    root_last.by_size.remove(&(root_last.size[0], 0));
    for members in &others {
        root_last.take(members);
    }
    let free = root_last.order.iter_mut().filter(|index| **index == FREE);
    for (position, member) in free.zip(root) {
        *position = member;
    }
    vec![root_first.order, root_last.order]
}

struct Carving {
    tree: Tree,
    /// The index at each position, or `FREE`.
    order: Vec<usize>,
    /// For each free position, the number of connected free positions at and below it.
    size: Vec<usize>,
    /// The free positions by that number.
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
        Self {
            tree,
            order: vec![FREE; len],
            by_size: size.iter().copied().zip(0..).collect(),
            size,
        }
    }

    /// Assigns positions to `members`, in few pieces.
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

    /// Assigns `top` and connected positions below it to `members`, in the order of the positions. There must be
    /// enough of them.
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
            children.retain(|child| {
                let entered = self.size[*child] > spare;
                if !entered {
                    spare -= self.size[*child];
                }
                entered
            });
            // The first child is larger than `spare`, so its subtree can spare all remaining positions. It is
            // entered next.
            open.extend(children.into_iter().rev());
        }
        taken.sort_unstable();
        let mut above = self.tree.parent(top);
        while let Some(position) = above.filter(|position| self.order[*position] == FREE) {
            let rest = self.size[position] - total;
            // A reserved root is not in the set, and must not be added.
            if self.by_size.remove(&(self.size[position], position)) {
                self.by_size.insert((rest, position));
            }
            self.size[position] = rest;
            above = self.tree.parent(position);
        }
        for (position, member) in taken.into_iter().zip(members) {
            self.by_size.remove(&(self.size[position], position));
            self.order[position] = *member;
        }
    }
}
