//! The home node of each item: weighted rendezvous hashing over 16,384 slots. Pure.
//!
//! An item belongs to a slot by the hash of its path and stripe. A slot's home is the node with the
//! smallest score (Thaler and Ravishankar, 1998). Weights work as exponential clocks: a node of
//! capacity *w* has the score −ln *u* ÷ *w*, where *u*, uniform in (0, 1), is derived from the hash
//! of slot and name. So each node has slots in proportion to its capacity, a leaving node's slots
//! go to the others in that proportion, a joining node takes slots from all, and no other slot
//! moves.
//!
//! All nodes must agree, so slots and scores are part of the wire format. They agree on every
//! machine because the computation uses only integers and the operations of IEEE 754 that are
//! exactly rounded (+, −, ×, ÷), in one fixed order, which Rust neither reorders nor fuses. For the
//! same reason this file has its own logarithm: the C library's differs in the last bit between
//! versions.

use super::decision::HomeNode;
use crate::num::{as_f64, first_u64, mix64};
use copperfs_overlay::{BLOCK_BYTES, ContentHash, Extent, ItemPath, STRIPE_BLOCKS};
use std::cmp::Ordering;

/// The number of slots. With 4 nodes each node's part is within 1 % of its capacity's part, and
/// counting bytes per slot takes 128 KiB for a dataset of any size.
pub const SLOTS: usize = 16_384;

/// Bytes of a stripe, which is also the size of the largest file that is one item.
pub const STRIPE_BYTES: u64 = STRIPE_BLOCKS * BLOCK_BYTES;

/// Returns the number of items of a file of `size` bytes: one for a file of up to 4 MiB (also if
/// empty), and one for each 4 MiB stripe of a larger file.
#[must_use]
pub fn items_of(size: u64) -> u64 {
    size.div_ceil(STRIPE_BYTES).max(1)
}

/// Returns the bytes of stripe `stripe` of a file of `size` bytes; 0 beyond its end.
#[must_use]
pub fn stripe_len(size: u64, stripe: u64) -> u64 {
    size.saturating_sub(stripe.saturating_mul(STRIPE_BYTES))
        .min(STRIPE_BYTES)
}

/// Returns stripe `stripe` of a file of `size` bytes; empty beyond its end.
#[must_use]
pub fn stripe_extent(size: u64, stripe: u64) -> Extent {
    Extent {
        start: stripe.saturating_mul(STRIPE_BYTES),
        len: stripe_len(size, stripe),
    }
}

/// Returns the slot of an item: the first eight bytes of a BLAKE3 hash, little-endian, modulo
/// [`SLOTS`]. The hash covers the path in the namespace without its leading slash, and for every
/// stripe but the first a NUL byte and the stripe's number as 8 bytes, little-endian. An item's
/// root uses the same hash.
#[must_use]
pub fn slot_of(path: &ItemPath, stripe: u64) -> u16 {
    slot_of_key(key_of(path, stripe))
}

/// Returns the slot of an item of known content: the first two bytes of its hash, little-endian, modulo
/// [`SLOTS`].
#[must_use]
pub fn slot_of_content(content: &ContentHash) -> u16 {
    slot_of_key(key_of_content(content))
}

/// Identifies the items of a manifest, and their homes: see `docs/wire.md`, Items.
#[must_use]
pub fn layout_of(identity: &[u8; 32], homes: &[HomeNode]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(identity);
    for home in homes {
        hasher.update(&home.rank.to_le_bytes());
        hasher.update(&home.capacity.to_le_bytes());
        hasher.update(&(home.name.len() as u64).to_le_bytes());
        hasher.update(home.name.as_bytes());
    }
    let mut layout = [0; 16];
    layout.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    layout
}

/// Returns the slot of the item with this key.
#[must_use]
pub fn slot_of_key(key: u64) -> u16 {
    let [low, high, ..] = key.to_le_bytes();
    u16::from_le_bytes([low, high]) % SLOTS_U16
}

/// Returns the key of an item of known content, in whatever file: see [`key_of`].
#[must_use]
pub fn key_of_content(content: &ContentHash) -> u64 {
    first_u64(&content.0)
}

/// Returns the key of an item, which all of its versions share. Its low bits are the item's slot.
#[must_use]
pub fn key_of(path: &ItemPath, stripe: u64) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(path.as_bytes());
    if stripe > 0 {
        hasher.update(&[0]);
        hasher.update(&stripe.to_le_bytes());
    }
    first_u64(hasher.finalize().as_bytes())
}

/// [`SLOTS`] as `u16`.
const SLOTS_U16: u16 = 16_384;

/// The home of every slot, for one set of nodes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SlotTable {
    candidates: Vec<Candidate>,
    /// The index of each slot's home among the nodes.
    table: Vec<Option<u32>>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Candidate {
    /// The first eight bytes of the BLAKE3 hash of its name.
    seed: u64,
    /// The reciprocal of its capacity.
    per_weight: f64,
    /// Its index among the nodes.
    position: u32,
}

impl SlotTable {
    /// Computes the table for `nodes`. A node without capacity is the home of no slot. Takes a
    /// tenth of a second for 2,000 nodes.
    #[must_use]
    pub fn new(nodes: &[HomeNode]) -> Self {
        let candidates: Vec<Candidate> = (0..)
            .zip(nodes)
            .filter(|(_, node)| node.capacity > 0)
            .map(|(position, node)| Candidate {
                seed: first_u64(blake3::hash(node.name.as_bytes()).as_bytes()),
                per_weight: 1.0 / as_f64(node.capacity),
                position,
            })
            .collect();
        let table = (0..SLOTS_U16)
            .map(|slot| first(&candidates, key(slot)))
            .collect();
        Self { candidates, table }
    }

    /// Returns the home of a slot as an index into the nodes of [`SlotTable::new`]. `None`: no node
    /// stores datasets, or the slot does not exist.
    #[must_use]
    pub fn home_of_slot(&self, slot: u16) -> Option<usize> {
        let home = self.table.get(usize::from(slot))?;
        home.map(|home| home as usize)
    }

    /// Returns the first `n` nodes in a slot's order: its home, the home if that node left, and so
    /// on. Returns fewer if there are fewer nodes.
    #[must_use]
    pub fn order_of_slot(&self, slot: u16, n: usize) -> Vec<usize> {
        if usize::from(slot) >= SLOTS {
            return Vec::new();
        }
        let key = key(slot);
        let mut scored: Vec<Scored> = self.candidates.iter().map(|c| c.score(key)).collect();
        let n = n.min(scored.len());
        if n > 0 && n < scored.len() {
            scored.select_nth_unstable_by(n - 1, Scored::compare);
            scored.truncate(n);
        }
        scored.sort_unstable_by(Scored::compare);
        scored.iter().take(n).map(|s| s.position as usize).collect()
    }
}

/// A candidate's score for a slot. The smallest score wins.
#[derive(Clone, Copy, Debug)]
struct Scored {
    score: f64,
    seed: u64,
    position: u32,
}

impl Scored {
    /// Compares scores. Names break ties, so that the order of the nodes does not matter.
    fn compare(&self, other: &Self) -> Ordering {
        self.score
            .total_cmp(&other.score)
            .then(self.seed.cmp(&other.seed))
            .then(self.position.cmp(&other.position))
    }
}

impl Candidate {
    fn uniform(&self, key: u64) -> f64 {
        uniform(mix64(key ^ self.seed))
    }

    fn score(&self, key: u64) -> Scored {
        Scored {
            score: -ln(self.uniform(key)) * self.per_weight,
            seed: self.seed,
            position: self.position,
        }
    }
}

/// Returns the index of a slot's home.
fn first(candidates: &[Candidate], key: u64) -> Option<u32> {
    /// A relative margin above any error of the logarithm.
    const MARGIN: f64 = 1.0 + 1e-9;
    let mut best: Option<Scored> = None;
    let mut bar = f64::INFINITY;
    for candidate in candidates {
        // −ln u ≥ 1 − u, so most candidates are ruled out without computing a logarithm.
        // The margin in `bar` covers errors of the logarithm, so no winner is skipped.
        if (1.0 - candidate.uniform(key)) * candidate.per_weight > bar {
            continue;
        }
        let scored = candidate.score(key);
        if best.is_none_or(|best| scored.compare(&best).is_lt()) {
            bar = scored.score * MARGIN;
            best = Some(scored);
        }
    }
    best.map(|best| best.position)
}

/// Spreads a slot's number over 64 bits.
fn key(slot: u16) -> u64 {
    mix64((u64::from(slot) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Converts 52 bits of a hash to a number strictly between 0 and 1, exactly.
fn uniform(hash: u64) -> f64 {
    /// 2^-52.
    const UNIT: f64 = 1.0 / 4_503_599_627_370_496.0;
    (as_f64(hash >> 12) + 0.5) * UNIT
}

/// Returns the natural logarithm of a positive normal number, to about 1e-15, identically on every
/// machine.
fn ln(x: f64) -> f64 {
    /// Terms of the series. The first omitted term is below 1e-18.
    const TERMS: u32 = 11;
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let mut exponent = i32::try_from(bits >> 52).unwrap_or_default() - 1023;
    // Reduce to 1..2, then to √½..√2, so that no digits cancel near 1.
    let mut mantissa = f64::from_bits((bits & MANTISSA) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 (s + s³/3 + s⁵/5 + …), s = (m − 1) ÷ (m + 1), at most 0.172.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let series = (0..TERMS)
        .rev()
        .fold(0.0, |sum, n| sum * square + 1.0 / f64::from(2 * n + 1));
    f64::from(exponent) * std::f64::consts::LN_2 + 2.0 * s * series
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;
    use proptest::prelude::*;

    fn nodes(capacities: &[u64]) -> Vec<HomeNode> {
        (0..)
            .zip(capacities)
            .map(|(rank, capacity)| HomeNode {
                rank,
                name: format!("nid{rank:05}"),
                capacity: *capacity,
            })
            .collect()
    }

    /// Returns the name of each slot's home.
    fn table(nodes: &[HomeNode]) -> Vec<Option<String>> {
        let homes = SlotTable::new(nodes);
        (0..SLOTS_U16)
            .map(|slot| Some(nodes[homes.home_of_slot(slot)?].name.clone()))
            .collect()
    }

    fn slots(nodes: &[HomeNode]) -> Vec<f64> {
        let homes = SlotTable::new(nodes);
        let mut counts = vec![0.0; nodes.len()];
        for slot in 0..SLOTS_U16 {
            counts[homes.home_of_slot(slot).unwrap()] += 1.0;
        }
        counts
    }

    #[test]
    fn stable_across_versions_and_machines() {
        // Values computed by the first version. A change to them changes the protocol.
        let slot = |text, stripe| slot_of(&path(text), stripe);
        let some = [
            slot("lus/data/a.jpg", 0),
            slot("lus/data/a.jpg", 1),
            slot("lus/data/b.jpg", 0),
            slot("", 0),
        ];
        assert_eq!(some, [1701, 6932, 14671, 5039]);
        let homes = SlotTable::new(&nodes(&[1 << 40, 1 << 40, 2 << 40, 3 << 40]));
        let order: Vec<_> = [0, 1, 2, 16_383]
            .map(|slot| homes.order_of_slot(slot, 4))
            .into();
        let first = [[2, 3, 0, 1], [3, 0, 2, 1], [1, 3, 2, 0], [0, 2, 1, 3]];
        assert_eq!(order, first);
        let all: Vec<u8> = (0..SLOTS_U16)
            .map(|slot| u8::try_from(homes.home_of_slot(slot).unwrap()).unwrap())
            .collect();
        assert_eq!(blake3::hash(&all).to_hex()[..16], *"c5d1c1cb748d4dd4");
    }

    #[test]
    fn the_logarithm_agrees_with_the_standard_one() {
        for i in 1..200_000_u32 {
            let x = f64::from(i) / 200_000.0;
            assert!((ln(x) - x.ln()).abs() <= 4e-15 * x.ln().abs(), "{x}");
        }
        for x in [uniform(0), uniform(u64::MAX), 1e-300, 1.0] {
            assert!((ln(x) - x.ln()).abs() <= 4e-15 * x.ln().abs(), "{x}");
        }
        assert!(uniform(0) > 0.0 && uniform(u64::MAX) < 1.0);
    }

    #[test]
    fn items_and_their_blocks() {
        let mib = 1 << 20;
        let counts = [0, 1, 4 * mib, 4 * mib + 1, 9 * mib].map(items_of);
        assert_eq!(counts, [1, 1, 1, 2, 3]);
        assert_eq!(stripe_len(9 * mib + 5, 2), mib + 5);
        assert_eq!(stripe_len(9 * mib, 3), 0);
        let (start, len) = (8 * mib, mib + 5);
        assert_eq!(stripe_extent(9 * mib + 5, 2), Extent { start, len });
        assert_eq!(stripe_extent(9 * mib, u64::MAX).len, 0);
        assert_eq!(stripe_extent(100, 0), Extent { start: 0, len: 100 });
    }

    #[test]
    fn nodes_without_capacity_are_no_home() {
        assert_eq!(SlotTable::new(&[]).home_of_slot(0), None);
        assert_eq!(SlotTable::new(&nodes(&[0, 0])).home_of_slot(7), None);
        let homes = SlotTable::new(&nodes(&[0, 5, 0]));
        assert!((0..SLOTS_U16).all(|slot| homes.home_of_slot(slot) == Some(1)));
        assert_eq!(homes.order_of_slot(0, 3), [1]);
        assert_eq!(homes.home_of_slot(SLOTS_U16), None);
        assert!(homes.order_of_slot(SLOTS_U16, 1).is_empty());
    }

    #[test]
    fn two_thousand_nodes_are_quick() {
        let began = std::time::Instant::now();
        let homes = SlotTable::new(&nodes(&vec![1 << 40; 2000]));
        let took = began.elapsed();
        println!("2,000 nodes: {took:?}");
        // Measured at 0.3 s without optimisation on a busy machine. The bound allows for a busier
        // machine.
        assert!(took.as_secs() < 10, "{took:?}");
        assert!(homes.home_of_slot(0).is_some());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn slots_follow_capacity(capacities in prop::collection::vec(1_u64 << 30..1 << 42, 1..12)) {
            let nodes = nodes(&capacities);
            let total: f64 = capacities.iter().map(|c| as_f64(*c)).sum();
            for (count, capacity) in slots(&nodes).iter().zip(&capacities) {
                let (part, due) = (count / as_f64(SLOTS as u64), as_f64(*capacity) / total);
                prop_assert!((part - due).abs() < 0.02, "{part} of {due}");
            }
        }

        #[test]
        fn only_slots_of_the_changed_node_move(
            capacities in prop::collection::vec(1_u64..1 << 42, 2..12),
            gone in any::<prop::sample::Index>(),
        ) {
            let all = nodes(&capacities);
            let gone = gone.index(all.len());
            let mut fewer = all.clone();
            let name = fewer.remove(gone).name;
            let whole = SlotTable::new(&all);
            for (slot, (with, without)) in (0..).zip(table(&all).into_iter().zip(table(&fewer))) {
                // Holds for a node that leaves and for a node that joins.
                if with.as_ref() == Some(&name) {
                    let heir = whole.order_of_slot(slot, 2)[1];
                    prop_assert_eq!(without, Some(all[heir].name.clone()));
                } else {
                    prop_assert_eq!(with, without);
                }
            }
        }

        #[test]
        fn a_node_that_grows_loses_no_slot(
            capacities in prop::collection::vec(1_u64 << 20..1 << 42, 2..8),
            grown in any::<prop::sample::Index>(),
        ) {
            let before = nodes(&capacities);
            let mut after = before.clone();
            let grown = grown.index(after.len());
            after[grown].capacity *= 2;
            for (was, is) in table(&before).into_iter().zip(table(&after)) {
                prop_assert!(was == is || is.as_ref() == Some(&after[grown].name));
            }
        }

        #[test]
        fn the_order_of_the_nodes_does_not_matter(
            capacities in prop::collection::vec(0_u64..1 << 42, 1..10),
            turn in any::<prop::sample::Index>(),
        ) {
            let one = nodes(&capacities);
            let mut other = one.clone();
            other.rotate_left(turn.index(one.len()));
            prop_assert_eq!(table(&one), table(&other));
        }

        #[test]
        fn a_slots_order_begins_with_its_home_and_names_each_node_once(
            capacities in prop::collection::vec(1_u64..1 << 42, 1..20),
            slot in 0..SLOTS_U16,
            n in 0_usize..25,
        ) {
            let homes = SlotTable::new(&nodes(&capacities));
            let mut all = homes.order_of_slot(slot, 20);
            prop_assert_eq!(homes.home_of_slot(slot), all.first().copied());
            prop_assert_eq!(&homes.order_of_slot(slot, n)[..], &all[..n.min(all.len())]);
            all.sort_unstable();
            prop_assert_eq!(all, (0..capacities.len()).collect::<Vec<_>>());
        }
    }
}
