//! Request timeouts by level: how long each level of a tree waits for the level above it.
//!
//! A reader waits for at most `request_timeout`. It learns the reason of a failure only if the level that
//! knows the reason answers before the level below gives up. So storage has the shortest timeout, and each
//! level waits slightly longer than the level above it. Pure.

use copperfs_topology::Tree;
use std::time::Duration;

/// The minimum and the maximum share of the whole timeout that storage gets.
const STORAGE_SHARE: (f64, f64) = (0.5, 0.8);
/// Time left after the timeout of storage, if the whole timeout is long enough.
const STORAGE_MARGIN: Duration = Duration::from_millis(2500);
/// The minimum share of the whole timeout that the lowest level waits.
const LOWEST_SHARE: f64 = 0.75;
/// Time left to the reader after the lowest level's timeout, because it may have waited for one hanging
/// bundle before.
const LOWEST_MARGIN: Duration = Duration::from_millis(1500);

/// Returns how long a root waits for storage if readers wait for `whole`.
#[must_use]
pub fn of_storage(whole: Duration) -> Duration {
    let (least, most) = STORAGE_SHARE;
    let timeout = whole.saturating_sub(STORAGE_MARGIN);
    timeout.clamp(whole.mul_f64(least), whole.mul_f64(most))
}

/// Returns how long a node `depth` edges below its root waits for the node above it, in a tree with `deepest`
/// levels below the root.
#[must_use]
pub fn of_request(whole: Duration, depth: usize, deepest: usize) -> Duration {
    let storage = of_storage(whole);
    let lowest = whole.saturating_sub(LOWEST_MARGIN);
    let lowest = lowest.max(whole.mul_f64(LOWEST_SHARE)).max(storage);
    let deepest = u32::try_from(deepest.max(1)).unwrap_or(u32::MAX);
    let depth = u32::try_from(depth).unwrap_or(u32::MAX).min(deepest);
    storage + (lowest - storage) / deepest * depth
}

/// The number of levels below the root in a tree of `nodes` nodes with up to `arity` children each.
#[must_use]
pub fn depth_of_tree(nodes: usize, arity: usize) -> usize {
    Tree::new(nodes, arity).map_or(0, |tree| tree.depth(nodes - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_answers_before_the_level_below_gives_up() {
        for seconds in [1, 2, 3, 5, 10, 30, 120] {
            let whole = Duration::from_secs(seconds);
            for deepest in 1..12 {
                let mut above = of_storage(whole);
                assert!(above >= whole / 2, "{above:?} of {whole:?}");
                for depth in 1..=deepest {
                    let timeout = of_request(whole, depth, deepest);
                    assert!(timeout > above, "{depth} of {deepest}, {whole:?}");
                    above = timeout;
                }
                let left = whole.saturating_sub(above) + Duration::from_millis(1);
                assert!(
                    left >= LOWEST_MARGIN.min(whole / 4),
                    "{above:?} of {whole:?}"
                );
            }
        }
        assert_eq!(of_storage(Duration::from_secs(30)), Duration::from_secs(24));
        let guest = of_request(Duration::from_secs(30), 9, 3);
        assert_eq!(guest, of_request(Duration::from_secs(30), 3, 3));
    }

    #[test]
    fn depth_follows_from_nodes_and_arity() {
        let depths = [(1, 2), (2, 2), (3, 2), (4, 2), (7, 2), (8, 2), (4, 1)];
        let found: Vec<usize> = depths
            .iter()
            .map(|(n, arity)| depth_of_tree(*n, *arity))
            .collect();
        assert_eq!(found, [0, 1, 1, 2, 2, 3, 3]);
    }
}
