use super::*;

fn order(capacity: u64, floor: u64, admit: Admit) -> EvictionOrder<char> {
    EvictionOrder::new(Limits {
        capacity,
        floor,
        admit,
    })
}

/// An order with blocks of one byte, used in this order, with these counts. `None`: undeclared.
fn with(limits: (u64, u64, Admit), blocks: &[(char, Option<u32>)]) -> EvictionOrder<char> {
    let (capacity, floor, admit) = limits;
    let mut order = order(capacity, floor, admit);
    for (block, count) in blocks {
        if let Some(count) = count {
            order.set_count(block, *count);
        }
        assert!(order.insert(*block, 1, &mut Vec::new()));
    }
    order
}

/// Inserts a block of `size` bytes, and returns the victims if it is resident then. Checks that
/// `victims_for` says the same.
fn insert(order: &mut EvictionOrder<char>, block: char, size: u64) -> Option<Vec<char>> {
    let planned = order.victims_for(&block, size);
    let mut evicted = Vec::new();
    let is_in = order.insert(block, size, &mut evicted);
    assert_eq!(is_in, order.is_resident(&block));
    assert!(order.bytes().total() <= order.limits().capacity);
    let found = is_in.then_some(evicted);
    assert_eq!(found, planned);
    found
}

const ALWAYS: Admit = Admit::Always;
const COMPARE: Admit = Admit::Compare;

#[test]
fn the_least_count_goes_first_and_among_equals_the_least_recently_used() {
    let blocks = [('a', Some(2)), ('b', Some(1)), ('c', Some(1)), ('d', None)];
    let mut order = with((4, 0, ALWAYS), &blocks);
    order.touch(&'b');
    assert_eq!(insert(&mut order, 'e', 3), Some(vec!['d', 'c', 'b']));
    // The rank is the count, so the new block without one goes before the older 'a'.
    assert_eq!(insert(&mut order, 'f', 1), Some(vec!['e']));
}

#[test]
fn a_count_moves_a_resident_block() {
    let mut order = with((2, 0, ALWAYS), &[('a', Some(1)), ('b', Some(1))]);
    order.set_count(&'a', 5);
    assert_eq!((order.rank(&'a'), order.rank(&'x')), (5, 0));
    assert_eq!(insert(&mut order, 'c', 1), Some(vec!['b']));
    // Its count was kept while it was not resident, and c has none.
    assert_eq!(insert(&mut order, 'b', 1), Some(vec!['c']));
    order.set_count(&'a', 0);
    assert_eq!(insert(&mut order, 'c', 1), Some(vec!['a']));
}

#[test]
fn a_block_larger_than_the_cache_stays_out_and_evicts_nothing() {
    let mut order = with((2, 0, ALWAYS), &[('a', None), ('b', None)]);
    assert_eq!(insert(&mut order, 'c', 3), None);
    assert_eq!(insert(&mut order, 'c', u64::MAX), None);
    assert!(order.is_resident(&'a') && order.is_resident(&'b'));
}

#[test]
fn under_compare_the_least_block_stays_out_and_none_of_the_victims_goes() {
    let blocks = [('a', Some(0)), ('b', Some(3)), ('c', Some(3))];
    let mut order = with((3, 0, COMPARE), &blocks);
    order.set_count(&'x', 2);
    // One victim would be less than it, the second is not.
    assert_eq!(insert(&mut order, 'x', 2), None);
    assert!(order.is_resident(&'a'));
    assert_eq!(insert(&mut order, 'x', 1), Some(vec!['a']));
    // With equal counts the block that comes in was used later.
    order.set_count(&'y', 2);
    assert_eq!(insert(&mut order, 'y', 1), Some(vec!['x']));
}

#[test]
fn a_floor_spares_undeclared_blocks_up_to_its_bytes() {
    let blocks = [('a', None), ('b', None), ('c', None), ('d', Some(9))];
    let mut order = with((4, 2, ALWAYS), &blocks);
    // Three undeclared bytes are above the floor, two are not.
    assert_eq!(insert(&mut order, 'e', 2), Some(vec!['a', 'd']));
    assert_eq!(order.bytes().undeclared, 4);
    // Nothing but undeclared blocks is left.
    let mut order = with((2, 2, ALWAYS), &[('a', None), ('b', None)]);
    order.set_count(&'e', 1);
    assert_eq!(insert(&mut order, 'e', 2), Some(vec!['a', 'b']));
}

#[test]
fn the_floor_does_not_spare_the_block_that_comes_in() {
    let mut order = with((2, 1, COMPARE), &[('a', None), ('b', Some(1))]);
    assert_eq!(insert(&mut order, 'c', 1), None);
    // A rival without references does not keep it out.
    order.set_count(&'b', 0);
    assert_eq!(insert(&mut order, 'c', 1), Some(vec!['b']));
}

#[test]
fn a_flush_evicts_declared_blocks_without_references_by_last_use() {
    let blocks = [('a', Some(0)), ('b', Some(1)), ('c', None), ('d', Some(0))];
    let mut order = with((4, 0, ALWAYS), &blocks);
    order.touch(&'a');
    let mut evicted = Vec::new();
    order.flush(&mut evicted);
    assert_eq!(evicted, ['d', 'a']);
    order.flush(&mut evicted);
    assert_eq!(evicted.len(), 2);
}

#[test]
fn smaller_limits_evict_until_the_blocks_fit() {
    let mut order = with((4, 0, COMPARE), &[('a', Some(1)), ('b', None), ('c', None)]);
    let limits = Limits {
        capacity: 1,
        floor: 1,
        admit: COMPARE,
    };
    let mut evicted = vec!['z'];
    order.set_limits(limits, &mut evicted);
    // The second undeclared block is spared.
    assert_eq!(evicted, ['z', 'b', 'a']);
    assert_eq!(order.residents().collect::<Vec<_>>(), [(&'c', 1)]);
}

#[test]
fn removing_and_forgetting_leave_no_trace() {
    let mut order = with((4, 0, ALWAYS), &[('a', Some(1)), ('b', None)]);
    assert!(order.remove(&'a') && !order.remove(&'a'));
    assert!(order.is_declared(&'a') && order.rank(&'a') == 1);
    order.forget(&'a');
    assert!(!order.is_declared(&'a'));
    assert!(order.remove(&'b'));
    assert!(order.blocks.is_empty());
    assert_eq!(order.bytes(), ResidentBytes::default());
}

#[test]
fn a_resident_block_that_is_inserted_counts_as_used() {
    let mut order = with((2, 0, ALWAYS), &[('a', None), ('b', None)]);
    let mut evicted = Vec::new();
    assert!(order.insert('a', 2, &mut evicted));
    assert!(evicted.is_empty());
    assert_eq!(order.bytes().total(), 2);
    assert_eq!(insert(&mut order, 'c', 1), Some(vec!['b']));
}

#[test]
fn bytes_are_counted_by_class() {
    let blocks = [('a', Some(1)), ('b', None), ('c', Some(0))];
    let mut order = with((9, 0, ALWAYS), &blocks);
    let bytes = |undeclared, unreferenced, referenced| ResidentBytes {
        undeclared,
        unreferenced,
        referenced,
    };
    assert_eq!(order.bytes(), bytes(1, 1, 1));
    order.set_count(&'a', 0);
    order.declare(&'b', true);
    order.forget(&'c');
    assert_eq!(order.bytes(), bytes(1, 1, 1));
    assert_eq!(order.bytes().total(), 3);
}

#[test]
fn ranks_order_blocks_without_declaring_them() {
    let mut order = with((2, 0, ALWAYS), &[('a', None), ('b', None)]);
    order.set_rank(&'a', 2);
    order.declare(&'b', true);
    assert!(!order.is_declared(&'a'));
    assert_eq!(insert(&mut order, 'c', 1), Some(vec!['b']));
}
