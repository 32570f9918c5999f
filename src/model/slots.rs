//! Which node an item is at home on: weighted rendezvous over 16,384 slots. Pure.
//!
//! An item falls into a slot by the hash of its path and stripe; a slot's home is the node with the
//! smallest score (Thaler and Ravishankar, 1998; weights as exponential clocks: the score of a node of
//! capacity *w* is −ln *u* ÷ *w*, *u* uniform in (0, 1) by the hash of slot and name). So each node has
//! slots in proportion to its capacity, a node that leaves gives its slots to the others in that
//! proportion, one that joins takes from all, and nothing else moves.
//!
//! All nodes must agree: slots and scores are part of the wire format. They do, on every machine: only
//! integers, and the operations of IEEE 754 that are exactly rounded (+, −, ×, ÷), are used, in one
//! fixed order, which Rust neither reorders nor fuses. The logarithm is this file's own for that
//! reason: that of the C library differs in its last bit from one version to the next.

use super::decision::HomeNode;
use copperfs_overlay::{BLOCK_BYTES, ItemPath, STRIPE_BLOCKS};
use std::cmp::Ordering;
use std::ops::Range;

/// Slots. With 4 nodes the part of each is within 1 % of the whole of what its capacity says, and the
/// bytes of each slot can be counted once for a dataset of any size (128 KiB of numbers).
pub const SLOTS: usize = 16_384;

/// Bytes of a stripe, and of the largest file that is one item.
pub const STRIPE_BYTES: u64 = STRIPE_BLOCKS * BLOCK_BYTES;

/// How many items a file of `size` bytes is: one of up to 4 MiB (empty ones too), and one for each
/// 4 MiB stripe of a larger one.
#[must_use]
pub fn items_of(size: u64) -> u64 {
    size.div_ceil(STRIPE_BYTES).max(1)
}

/// Bytes of stripe `stripe` of a file of `size` bytes; 0 beyond its end.
#[must_use]
pub fn stripe_len(size: u64, stripe: u64) -> u64 {
    size.saturating_sub(stripe.saturating_mul(STRIPE_BYTES))
        .min(STRIPE_BYTES)
}

/// The blocks of stripe `stripe` of a file of `size` bytes; empty beyond its end.
#[must_use]
pub fn stripe_blocks(size: u64, stripe: u64) -> Range<u64> {
    let first = stripe.saturating_mul(STRIPE_BLOCKS);
    let count = stripe_len(size, stripe).div_ceil(BLOCK_BYTES);
    first..first.saturating_add(count)
}

/// The slot of an item: the first eight bytes of a BLAKE3 hash, little-endian, modulo [`SLOTS`]. What
/// is hashed is the path in the namespace without leading slash, and behind it, for every stripe but
/// the first, a NUL byte and the stripe's number as 8 bytes, little-endian: as for an item's root.
#[must_use]
pub fn slot_of(path: &ItemPath, stripe: u64) -> u16 {
    let [low, high, ..] = digest_of(path, stripe).to_le_bytes();
    u16::from_le_bytes([low, high]) % SLOTS_U16
}

/// The hash of which an item's slot is the low bits.
pub(crate) fn digest_of(path: &ItemPath, stripe: u64) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(path.as_bytes());
    if stripe > 0 {
        hasher.update(&[0]);
        hasher.update(&stripe.to_le_bytes());
    }
    head(&hasher.finalize())
}

/// [`SLOTS`], which fits.
const SLOTS_U16: u16 = 16_384;
/// In the table: no node stores anything.
const NOBODY: u32 = u32::MAX;

/// The home of every slot, for one membership.
#[derive(Clone, PartialEq, Debug)]
pub struct Homes {
    candidates: Vec<Candidate>,
    /// For each slot a position among the nodes, or [`NOBODY`].
    table: Vec<u32>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Candidate {
    /// The first eight bytes of the BLAKE3 hash of its name.
    seed: u64,
    /// One over its capacity.
    per_weight: f64,
    /// Its position among the nodes.
    position: u32,
}

impl Homes {
    /// The table for `nodes`; those without capacity are nobody's home. A tenth of a second for 2,000.
    #[must_use]
    pub fn new(nodes: &[HomeNode]) -> Self {
        let candidates: Vec<Candidate> = (0..)
            .zip(nodes)
            .filter(|(_, node)| node.capacity > 0)
            .map(|(position, node)| Candidate {
                seed: digest(node.name.as_bytes()),
                per_weight: 1.0 / as_f64(node.capacity),
                position,
            })
            .collect();
        let table = (0..SLOTS_U16)
            .map(|slot| first(&candidates, key(slot)))
            .collect();
        Self { candidates, table }
    }

    /// The home of a slot, as a position among the nodes that this was made of. `None`: no node stores
    /// datasets, or there is no such slot.
    #[must_use]
    pub fn home_of_slot(&self, slot: u16) -> Option<usize> {
        let home = *self.table.get(usize::from(slot))?;
        (home != NOBODY).then_some(home as usize)
    }

    /// The home of an item.
    #[must_use]
    pub fn home_of(&self, path: &ItemPath, stripe: u64) -> Option<usize> {
        self.home_of_slot(slot_of(path, stripe))
    }

    /// The first `n` nodes in a slot's order: its home, then who would be without it, and so on. Fewer
    /// where there are fewer.
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

/// What a candidate bids for a slot; the smallest has it.
#[derive(Clone, Copy, Debug)]
struct Scored {
    score: f64,
    seed: u64,
    position: u32,
}

impl Scored {
    /// By score. What is equal (never, in practice) is told apart by name, so that the order of the
    /// list plays no part.
    fn compare(&self, other: &Self) -> Ordering {
        self.score
            .total_cmp(&other.score)
            .then(self.seed.cmp(&other.seed))
            .then(self.position.cmp(&other.position))
    }
}

impl Candidate {
    fn uniform(&self, key: u64) -> f64 {
        uniform(mix(key ^ self.seed))
    }

    fn score(&self, key: u64) -> Scored {
        Scored {
            score: -ln(self.uniform(key)) * self.per_weight,
            seed: self.seed,
            position: self.position,
        }
    }
}

/// The winner of a slot.
fn first(candidates: &[Candidate], key: u64) -> u32 {
    /// Above any error of the logarithm, relative.
    const MARGIN: f64 = 1.0 + 1e-9;
    let mut best: Option<Scored> = None;
    let mut bar = f64::INFINITY;
    for candidate in candidates {
        // −ln u is never less than 1 − u: nearly all are out without a logarithm.
        if (1.0 - candidate.uniform(key)) * candidate.per_weight > bar {
            continue;
        }
        let scored = candidate.score(key);
        if best.is_none_or(|best| scored.compare(&best).is_lt()) {
            bar = scored.score * MARGIN;
            best = Some(scored);
        }
    }
    best.map_or(NOBODY, |best| best.position)
}

/// A slot's number, spread over 64 bits.
fn key(slot: u16) -> u64 {
    mix((u64::from(slot) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The first eight bytes of the BLAKE3 hash of `bytes`.
fn digest(bytes: &[u8]) -> u64 {
    head(&blake3::hash(bytes))
}

fn head(hash: &blake3::Hash) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The finalizer of splitmix64 (Steele, Lea and Flood, 2014).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A capacity; rounded to nearest above 2^53, the same everywhere.
#[expect(clippy::cast_precision_loss, reason = "a weight")]
fn as_f64(number: u64) -> f64 {
    number as f64
}

/// 52 bits of a hash as a number in (0, 1), never 0 or 1. Exact.
fn uniform(hash: u64) -> f64 {
    /// 2^-52.
    const UNIT: f64 = 1.0 / 4_503_599_627_370_496.0;
    (as_f64(hash >> 12) + 0.5) * UNIT
}

/// The natural logarithm of a normal number above 0, to some 1e-15, the same on every machine.
fn ln(x: f64) -> f64 {
    /// Terms of the series: the first that is left out is below 1e-18.
    const TERMS: u32 = 11;
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let mut exponent = i32::try_from(bits >> 52).unwrap_or_default() - 1023;
    // 1 to 2, then √½ to √2, so that nothing cancels near 1.
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

    /// The names of the homes of all slots.
    fn table(nodes: &[HomeNode]) -> Vec<Option<String>> {
        let homes = Homes::new(nodes);
        (0..SLOTS_U16)
            .map(|slot| Some(nodes[homes.home_of_slot(slot)?].name.clone()))
            .collect()
    }

    fn slots(nodes: &[HomeNode]) -> Vec<f64> {
        let homes = Homes::new(nodes);
        let mut counts = vec![0.0; nodes.len()];
        for slot in 0..SLOTS_U16 {
            counts[homes.home_of_slot(slot).unwrap()] += 1.0;
        }
        counts
    }

    #[test]
    fn stable_across_versions_and_machines() {
        // What the first version computed: a change of it is a change of the protocol.
        let slot = |text, stripe| slot_of(&path(text), stripe);
        let some = [
            slot("lus/data/a.jpg", 0),
            slot("lus/data/a.jpg", 1),
            slot("lus/data/b.jpg", 0),
            slot("", 0),
        ];
        assert_eq!(some, [1701, 6932, 14671, 5039]);
        let homes = Homes::new(&nodes(&[1 << 40, 1 << 40, 2 << 40, 3 << 40]));
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
    fn the_logarithm_is_one() {
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
        assert_eq!(stripe_blocks(9 * mib + 5, 2), 8..10);
        assert!(stripe_blocks(9 * mib, u64::MAX).is_empty());
        assert_eq!(stripe_blocks(100, 0), 0..1);
    }

    #[test]
    fn who_stores_nothing_is_nobodys_home() {
        assert_eq!(Homes::new(&[]).home_of_slot(0), None);
        assert_eq!(Homes::new(&nodes(&[0, 0])).home_of_slot(7), None);
        let homes = Homes::new(&nodes(&[0, 5, 0]));
        assert!((0..SLOTS_U16).all(|slot| homes.home_of_slot(slot) == Some(1)));
        assert_eq!(homes.order_of_slot(0, 3), [1]);
        assert_eq!(homes.home_of_slot(SLOTS_U16), None);
        assert!(homes.order_of_slot(SLOTS_U16, 1).is_empty());
    }

    #[test]
    fn two_thousand_nodes_are_quick() {
        let began = std::time::Instant::now();
        let homes = Homes::new(&nodes(&vec![1 << 40; 2000]));
        let took = began.elapsed();
        println!("2,000 nodes: {took:?}");
        // Measured 0.3 s without optimisation on a busy machine; this allows for a busier one.
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
        fn only_what_must_moves(
            capacities in prop::collection::vec(1_u64..1 << 42, 2..12),
            gone in any::<prop::sample::Index>(),
        ) {
            let all = nodes(&capacities);
            let gone = gone.index(all.len());
            let mut fewer = all.clone();
            let name = fewer.remove(gone).name;
            let whole = Homes::new(&all);
            for (slot, (with, without)) in (0..).zip(table(&all).into_iter().zip(table(&fewer))) {
                // Read either way: the node leaves, or it joins.
                if with.as_ref() == Some(&name) {
                    let heir = whole.order_of_slot(slot, 2)[1];
                    prop_assert_eq!(without, Some(all[heir].name.clone()));
                } else {
                    prop_assert_eq!(with, without);
                }
            }
        }

        #[test]
        fn more_capacity_takes_and_never_gives(
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
        fn the_order_of_the_list_plays_no_part(
            capacities in prop::collection::vec(0_u64..1 << 42, 1..10),
            turn in any::<prop::sample::Index>(),
        ) {
            let one = nodes(&capacities);
            let mut other = one.clone();
            other.rotate_left(turn.index(one.len()));
            prop_assert_eq!(table(&one), table(&other));
        }

        #[test]
        fn an_order_begins_at_home_and_names_everybody_once(
            capacities in prop::collection::vec(1_u64..1 << 42, 1..20),
            slot in 0..SLOTS_U16,
            n in 0_usize..25,
        ) {
            let homes = Homes::new(&nodes(&capacities));
            let mut all = homes.order_of_slot(slot, 20);
            prop_assert_eq!(homes.home_of_slot(slot), all.first().copied());
            prop_assert_eq!(&homes.order_of_slot(slot, n)[..], &all[..n.min(all.len())]);
            all.sort_unstable();
            prop_assert_eq!(all, (0..capacities.len()).collect::<Vec<_>>());
        }
    }
}
