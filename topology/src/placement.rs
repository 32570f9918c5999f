//! The root of every item, by rendezvous hashing (Thaler and Ravishankar, 1998).
//!
//! Every root has a score for every key. The root with the highest score is the item's root; if it is gone, the next one
//! takes over. So the items of a dead root spread over the others, and no other item moves. The scores are the same on
//! every machine and in every version: they are part of the wire format. Pure.

use crate::path::ItemPath;

/// Bytes of a block, the unit of hashing, verification, caching and single-flight. The last block of a file may be
/// shorter; an empty file has no block.
pub const BLOCK_BYTES: u64 = 1 << 20;

/// Blocks of a stripe. The stripes of a large file are spread over all roots, so that one file is read at the speed of
/// all of them. A request is for blocks of one stripe.
pub const STRIPE_BLOCKS: u64 = 4;

/// The roots as candidates for keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// One per root: the first eight bytes of the BLAKE3 hash of its name.
    seeds: Vec<u64>,
}

impl Placement {
    /// Makes a placement over roots with these `names`, in the order of the trees.
    #[must_use]
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let seeds = names.into_iter().map(|name| digest(name.as_bytes()));
        Self {
            seeds: seeds.collect(),
        }
    }

    /// Returns the tree at position `attempt` (0: the item's own) in the order of `key`; `None` after the last.
    ///
    /// The key of a file's first stripe is its path. The key of a directory's metadata, and of its entries' metadata, is
    /// the directory's path.
    #[must_use]
    pub fn tree(&self, key: &ItemPath, attempt: u8) -> Option<usize> {
        self.tree_at(attempt, || digest(key.as_bytes()))
    }

    /// Like [`Placement::tree`], for stripe `stripe` of the file at `path`, counted from 0.
    #[must_use]
    pub fn tree_of_stripe(&self, path: &ItemPath, stripe: u64, attempt: u8) -> Option<usize> {
        if stripe == 0 {
            return self.tree(path, attempt);
        }
        self.tree_at(attempt, || {
            // No path has a NUL byte, so no stripe has the key of a path.
            digest(&[path.as_bytes(), &[0], &stripe.to_le_bytes()].concat())
        })
    }

    fn tree_at(&self, attempt: u8, key: impl FnOnce() -> u64) -> Option<usize> {
        let attempt = usize::from(attempt);
        match self.seeds[..] {
            [] => None,
            [_] => (attempt == 0).then_some(0),
            _ => {
                let key = key();
                let scores = self.seeds.iter().map(|seed| mix64(key ^ seed));
                let mut order: Vec<(u64, usize)> = scores.zip(0..).collect();
                order.sort_unstable_by(|a, b| b.cmp(a));
                order.get(attempt).map(|&(_, tree)| tree)
            }
        }
    }
}

/// Returns the first eight bytes of the BLAKE3 hash of `bytes`.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(bytes).as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Spreads the bits of `x`: the finalizer of splitmix64 (Steele, Lea and Flood, 2014).
#[must_use]
pub fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(text: &str) -> ItemPath {
        ItemPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn placement_is_stable_across_versions_and_machines() {
        let placement = Placement::new(["nid001", "nid002", "nid003", "nid004"]);
        let order = |path| {
            (0..5)
                .map(|attempt| placement.tree(&key(path), attempt))
                .collect::<Vec<_>>()
        };
        // The results of the first version: a change is a change of the protocol.
        for (path, first) in [
            ("lus/a.py", [1, 2, 0, 3]),
            ("", [0, 3, 2, 1]),
            ("lus/b/c", [0, 2, 3, 1]),
        ] {
            let expected: Vec<_> = first.into_iter().map(Some).chain([None]).collect();
            assert_eq!(order(path), expected, "{path:?}");
        }
    }

    #[test]
    fn shares_are_even_and_items_of_a_dead_root_spread() {
        let placement = Placement::new(["a", "b", "c", "d"]);
        let mut first = [0_u32; 4];
        let mut second_of_0 = [0_u32; 4];
        for i in 0..8000 {
            let key = key(&format!("lus/env/lib/file{i}.py"));
            let own = placement.tree(&key, 0).unwrap();
            first[own] += 1;
            if own == 0 {
                second_of_0[placement.tree(&key, 1).unwrap()] += 1;
            }
        }
        assert!(
            first.iter().all(|&n| (1800..2200).contains(&n)),
            "{first:?}"
        );
        assert!(
            second_of_0[1..].iter().all(|&n| (560..780).contains(&n)),
            "{second_of_0:?}"
        );
    }

    #[test]
    fn stripes_of_one_file_spread_over_the_roots() {
        let placement = Placement::new(["a", "b", "c", "d"]);
        let path = key("lus/model.safetensors");
        let mut shares = [0_u32; 4];
        for stripe in 0..4000 {
            shares[placement.tree_of_stripe(&path, stripe, 0).unwrap()] += 1;
        }
        assert!(
            shares.iter().all(|&n| (880..1120).contains(&n)),
            "{shares:?}"
        );
        assert_eq!(
            placement.tree_of_stripe(&path, 0, 2),
            placement.tree(&path, 2)
        );
    }

    proptest! {
        #[test]
        fn an_order_names_every_tree_once(names in proptest::collection::hash_set("[a-z]{1,8}", 1..20), text in "[a-z/]{0,30}") {
            let placement = Placement::new(names.iter().map(String::as_str));
            let key = ItemPath::parse(text.as_bytes()).unwrap();
            let mut order: Vec<usize> = (0..=20).map_while(|attempt| placement.tree(&key, attempt)).collect();
            order.sort_unstable();
            prop_assert_eq!(order, (0..names.len()).collect::<Vec<_>>());
        }

        #[test]
        fn without_one_root_only_its_items_move(text in "[a-z/]{1,30}", gone in 0usize..5) {
            let names = ["a", "b", "c", "d", "e"];
            let all = Placement::new(names);
            let rest: Vec<&str> = names.iter().copied().enumerate().filter(|(i, _)| *i != gone).map(|(_, n)| n).collect();
            let fewer = Placement::new(rest.iter().copied());
            let key = ItemPath::parse(text.as_bytes()).unwrap();
            let heir = (0..5).filter_map(|a| all.tree(&key, a)).find(|&tree| tree != gone).map(|tree| names[tree]);
            prop_assert_eq!(fewer.tree(&key, 0).map(|tree| rest[tree]), heir);
        }
    }
}
