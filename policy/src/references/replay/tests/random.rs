//! Random traces: the replay against the brute force, and properties of every outcome.

use super::super::{Attribution, Decrement, Event, Options, Task, Trace, replay};
use super::brute_force::{Document, brute_force};
use crate::references::{Admit, EvictionPolicy};
use copperfs_topology::mix64;
use std::collections::BTreeSet;

/// The number of traces that are compared, unless the environment sets it. `REPLAY_TRACES=10000` with a
/// release build takes a second.
const TRACES: u64 = 2_000;

fn traces() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "the environment sets the number of traces"
    )]
    let traces = std::env::var("REPLAY_TRACES").ok();
    traces.map_or(TRACES, |traces| traces.parse().unwrap())
}

/// Small numbers from a seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(mix64(seed))
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0) % end
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Returns a trace with few names, so that its events concern the same jobs, tasks and blocks often.
pub(super) fn document(seed: u64) -> Document {
    let mut random = Random::new(seed);
    let blocks = 2 + random.below(8);
    let is_of_units = random.one_in(3);
    let sizes = (0..blocks).map(|block| {
        let size = if is_of_units { 1 } else { random.below(6) };
        (format!("b{block}"), size)
    });
    let blocks: Vec<(String, u64)> = sizes.collect();
    let cache = random.below(14);
    let floor = match random.below(3) {
        0 => 0,
        1 => random.below(cache + 1),
        _ => cache / 2,
    };
    let mut initial = Vec::new();
    let mut free = cache;
    for (block, size) in &blocks {
        if random.one_in(2) && *size <= free {
            free -= size;
            let at = random.below(initial.len() as u64 + 1);
            initial.insert(usize::try_from(at).unwrap(), block.clone());
        }
    }
    let options = Options {
        admit: match random.one_in(2) {
            true => Admit::Always,
            false => Admit::Compare,
        },
        decrement: match random.one_in(2) {
            true => Decrement::Read,
            false => Decrement::Done,
        },
        attribution: match random.one_in(2) {
            true => Attribution::None,
            false => Attribution::Fifo,
        },
        floor,
    };
    let names: Vec<String> = blocks.iter().map(|(name, _)| name.clone()).collect();
    let events = 10 + random.below(50);
    Document {
        cache,
        blocks: blocks.into_iter().collect(),
        initial_lru_to_mru: initial,
        options,
        events: (0..events).map(|_| event(&mut random, &names)).collect(),
    }
}

fn event(random: &mut Random, blocks: &[String]) -> Event {
    let tenant = ["", "", "t"][usize::try_from(random.below(3)).unwrap()].to_owned();
    let job = format!("j{}", random.below(3));
    let task = format!("t{}", random.below(4));
    let any = |random: &mut Random| {
        let at = random.below(blocks.len() as u64);
        blocks[usize::try_from(at).unwrap()].clone()
    };
    match random.below(24) {
        0..4 => {
            let mut ids = BTreeSet::new();
            let mut tasks = Vec::new();
            for _ in 0..random.below(5) {
                let id = format!("t{}", random.below(4));
                if ids.insert(id.clone()) {
                    let inputs = (0..random.below(5)).map(|_| any(random)).collect();
                    tasks.push(Task { id, inputs });
                }
            }
            Event::Submit {
                tenant,
                job,
                attempt: random.below(4),
                tasks,
            }
        }
        4..11 => Event::Read {
            tenant,
            job: Some(job),
            task: (!random.one_in(8)).then_some(task),
            block: any(random),
        },
        11..15 => Event::Read {
            tenant,
            job: None,
            task: random.one_in(2).then_some(task),
            block: any(random),
        },
        15..17 => Event::Put { block: any(random) },
        17..19 => Event::Done { tenant, job, task },
        19..21 => Event::TaskFail { tenant, job, task },
        21 | 22 => Event::End { tenant, job },
        _ => Event::Flush,
    }
}

fn trace(document: &Document) -> Trace {
    Trace::from_json(&serde_json::to_vec(document).unwrap()).unwrap()
}

#[test]
fn the_replay_equals_the_brute_force() {
    let policies = [
        EvictionPolicy::Lrc,
        EvictionPolicy::LrcOffline,
        EvictionPolicy::Lru,
        EvictionPolicy::Lfu,
        EvictionPolicy::Min,
    ];
    let mut evictions = 0;
    let traces = traces();
    for seed in 0..traces {
        let document = document(seed);
        let trace = trace(&document);
        for policy in policies {
            let found = replay(&trace, policy).unwrap();
            evictions += found.evictions.len();
            let expected = brute_force(&document, policy);
            assert_eq!(found, expected, "{policy}, seed {seed}: {document:#?}");
        }
    }
    // The traces are no trivial ones.
    assert!(evictions as u64 > 5 * traces, "{evictions} evictions");
}

#[test]
fn counts_are_zero_after_every_job_has_ended() {
    for seed in 0..1_000 {
        let mut document = document(seed);
        for (tenant, job) in ["", "t"]
            .iter()
            .flat_map(|tenant| (0..3).map(move |job| (tenant, job)))
        {
            document.events.push(Event::End {
                tenant: (*tenant).to_owned(),
                job: format!("j{job}"),
            });
        }
        let trace = trace(&document);
        for policy in EvictionPolicy::ALL {
            let outcome = replay(&trace, policy).unwrap();
            let is_offline = policy == EvictionPolicy::LrcOffline;
            assert!(is_offline || outcome.counts.is_empty(), "seed {seed}");
        }
    }
}

#[test]
fn every_outcome_is_within_the_cache_and_accounts_for_every_read() {
    for seed in 0..1_000 {
        let document = document(seed);
        let trace = trace(&document);
        let reads = document.events.iter();
        let reads = reads.filter(|event| matches!(event, Event::Read { .. }));
        let reads = reads.count() as u64;
        for policy in EvictionPolicy::ALL {
            let outcome = replay(&trace, policy).unwrap();
            let sizes = outcome.resident.iter().map(|block| document.blocks[block]);
            assert!(
                sizes.sum::<u64>() <= document.cache,
                "{policy}, seed {seed}"
            );
            assert_eq!(outcome.hits + outcome.misses, reads);
            assert!(outcome.counts.values().all(|count| *count > 0));
            let distinct: BTreeSet<_> = outcome.resident.iter().collect();
            assert_eq!(distinct.len(), outcome.resident.len());
        }
    }
}
