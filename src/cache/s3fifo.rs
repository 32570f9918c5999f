//! S3-FIFO (Yang, Zhang, Qiu, Yue, Vigfusson: "FIFO queues are all you need for cache eviction",
//! SOSP 2023, algorithm 1), with weights in bytes. Pure.
//!
//! A new entry goes to the *small* queue, a tenth of the capacity. What was not hit there again leaves
//! early and is remembered in a *ghost* queue of hashes; what was, or what comes back while the ghost
//! still knows it, goes to the *main* queue, from which it leaves only after a round without a hit.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash};

/// The small queue's share of the capacity: one tenth, as in the paper.
const SMALL_SHARE: u64 = 10;
/// More hits than this in the small queue earn a place in the main queue.
const PROMOTE_ABOVE: u8 = 1;

/// A key to drop, as it was inserted with `id`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Victim<K> {
    pub(super) key: K,
    pub(super) id: u64,
}

struct Place<K> {
    key: K,
    id: u64,
    weight: u64,
    /// Hits still credited: S3-FIFO's two-bit counter, kept here between rounds of the main queue.
    credit: u8,
}

pub(super) struct S3Fifo<K> {
    small: VecDeque<Place<K>>,
    small_bytes: u64,
    small_bytes_max: u64,
    main: VecDeque<Place<K>>,
    ghost: VecDeque<u64>,
    /// How often each hash stands in `ghost`.
    ghost_members: HashMap<u64, u32>,
    hasher: RandomState,
}

impl<K: Eq + Hash + Clone> S3Fifo<K> {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        Self {
            small: VecDeque::new(),
            small_bytes: 0,
            small_bytes_max: capacity_bytes / SMALL_SHARE,
            main: VecDeque::new(),
            ghost: VecDeque::new(),
            ghost_members: HashMap::new(),
            hasher: RandomState::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    pub(super) fn insert(&mut self, key: K, id: u64, weight: u64) {
        let known = self.ghost_members.contains_key(&self.hasher.hash_one(&key));
        let place = Place {
            key,
            id,
            weight,
            credit: 0,
        };
        if known {
            self.main.push_back(place);
        } else {
            self.small_bytes += weight;
            self.small.push_back(place);
        }
    }

    pub(super) fn evict(
        &mut self,
        mut take_hits: impl FnMut(&K, u64) -> Option<u8>,
    ) -> Option<Victim<K>> {
        loop {
            let from_small = self.small_bytes > self.small_bytes_max || self.main.is_empty();
            if from_small && let Some(place) = self.pop_small() {
                match take_hits(&place.key, place.id) {
                    None => {}
                    Some(hits) if hits > PROMOTE_ABOVE => self.main.push_back(place),
                    Some(_) => {
                        self.remember(&place.key);
                        return Some(Victim {
                            key: place.key,
                            id: place.id,
                        });
                    }
                }
                continue;
            }
            let mut place = self.main.pop_front()?;
            let Some(hits) = take_hits(&place.key, place.id) else {
                continue;
            };
            let credit = place.credit.saturating_add(hits).min(super::HITS_MAX);
            if credit == 0 {
                return Some(Victim {
                    key: place.key,
                    id: place.id,
                });
            }
            place.credit = credit - 1;
            self.main.push_back(place);
        }
    }

    pub(super) fn retain(&mut self, mut is_held: impl FnMut(&K, u64) -> bool) {
        self.small.retain(|place| is_held(&place.key, place.id));
        self.main.retain(|place| is_held(&place.key, place.id));
        self.small_bytes = self.small.iter().map(|place| place.weight).sum();
    }

    fn pop_small(&mut self) -> Option<Place<K>> {
        let place = self.small.pop_front()?;
        self.small_bytes -= place.weight;
        Some(place)
    }

    /// The ghost queue holds as many keys as the main queue, as in the paper.
    fn remember(&mut self, key: &K) {
        let hash = self.hasher.hash_one(key);
        self.ghost.push_back(hash);
        *self.ghost_members.entry(hash).or_default() += 1;
        while self.ghost.len() > self.main.len().max(64) {
            let Some(oldest) = self.ghost.pop_front() else {
                break;
            };
            if let Some(count) = self.ghost_members.get_mut(&oldest) {
                *count -= 1;
                if *count == 0 {
                    self.ghost_members.remove(&oldest);
                }
            }
        }
    }
}
