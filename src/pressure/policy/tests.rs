use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A machine on which caches of `memory` bytes fill as far as they may beside `others` bytes of others.
struct Model {
    policy: Policy,
    now: Instant,
    memory: u64,
    limit: u64,
    others: u64,
    held: u64,
}

impl Model {
    fn new(memory: u64, limit: u64, others: u64) -> Self {
        let now = Instant::now();
        let policy = Policy::default();
        Self {
            policy,
            now,
            memory,
            limit,
            others,
            held: 0,
        }
    }

    fn bound(&self) -> u64 {
        self.policy.bound.unwrap_or(self.memory)
    }

    fn usage(&self) -> Usage {
        let (limit, used) = (self.limit, self.others + self.held);
        Usage {
            limit,
            used,
            is_machine: false,
        }
    }

    /// Passes the time until the next look, in which the caches grow at `rate` bytes per second. Returns whether the
    /// limit was exceeded.
    fn step(&mut self, rate: u64) -> bool {
        let wait = self.policy.look_after(Some(self.usage()));
        self.now += wait;
        let grown = rate / 1000 * u64::try_from(wait.as_millis()).unwrap();
        self.held = (self.held + grown).min(self.bound());
        let killed = self.usage().room() == 0;
        let (held, capacity) = (self.held, self.bound());
        self.policy.decide(
            self.now,
            &Look {
                usage: Some(self.usage()),
                kills: 0,
                is_stalled: false,
                memory: self.memory,
                parts: vec![Fill { held, capacity }],
            },
        );
        self.held = self.held.min(self.bound());
        killed
    }
}

#[test]
fn caches_settle_below_the_limit_and_come_back_when_there_is_room() {
    let mut model = Model::new(4 * GIB, 3 * GIB, GIB);
    for _ in 0..10_000 {
        assert!(!model.step(GIB), "killed with {} MiB", model.held / MIB);
    }
    let margin = model.usage().margin();
    let room = model.usage().room();
    assert!((margin..=margin * 2).contains(&room), "{} MiB", room / MIB);
    let settled = model.bound();
    model.limit = 64 * GIB;
    let began = model.now;
    while model.policy.bound.is_some() {
        assert!(model.bound() >= settled);
        assert!(!model.step(GIB));
        assert!(model.now - began < Duration::from_secs(120));
    }
    assert!(model.now - began > CALM);
}

#[test]
fn a_kill_beside_it_takes_all_but_the_floor() {
    let mut policy = Policy::default();
    let look = |kills| Look {
        usage: Some(Usage {
            limit: 10 * GIB,
            used: GIB,
            is_machine: false,
        }),
        kills,
        is_stalled: false,
        memory: GIB,
        parts: vec![Fill {
            held: GIB,
            capacity: GIB,
        }],
    };
    let now = Instant::now();
    assert_eq!(policy.decide(now, &look(3)), None, "kills of earlier times");
    assert_eq!(policy.decide(now, &look(4)), Some(GIB / 8));
}

#[test]
fn as_little_is_given_back_as_is_needed_even_if_caches_are_not_full() {
    let usage = Usage {
        limit: 10 * GIB,
        used: 9 * GIB + 10 * MIB,
        is_machine: true,
    };
    let parts = vec![
        Fill {
            held: GIB,
            capacity: 3 * GIB,
        },
        Fill {
            held: 100 * MIB,
            capacity: GIB,
        },
    ];
    let look = Look {
        usage: Some(usage),
        kills: 0,
        is_stalled: false,
        memory: 4 * GIB,
        parts,
    };
    let bound = Policy::default().decide(Instant::now(), &look).unwrap();
    let held: u64 = look
        .parts
        .iter()
        .map(|part| part.held.min(part.capacity / 4 * bound / GIB))
        .sum();
    let given_back = GIB + 100 * MIB - held;
    let needed = usage.margin() * 3 / 2 - usage.room();
    assert!(
        (needed..needed + MIB).contains(&given_back),
        "{given_back} for {needed}"
    );
}

#[test]
fn looks_are_rare_while_there_is_room() {
    let usage = |used| {
        Some(Usage {
            limit: 64 * GIB,
            used,
            is_machine: true,
        })
    };
    assert_eq!(look_after(None), LOOK_MAX);
    assert_eq!(look_after(usage(0)), LOOK_MAX);
    assert_eq!(look_after(usage(62 * GIB)), LOOK_MIN);
    assert!(look_after(usage(58 * GIB)) > LOOK_MIN && look_after(usage(58 * GIB)) < LOOK_MAX);
}

proptest! {
    /// Whatever others use: the bound is never below the floor, and never above the configured memory. If others leave
    /// room for the floor and the margin, the limit is never reached, unless half of the margin is used up between two
    /// looks.
    #[test]
    fn the_limit_is_not_reached(
        memory in 64_u64..8192,
        limit in 512_u64..16_384,
        others in prop::collection::vec((0_u64..100, 1_usize..50), 1..20),
        rate in 1_u64..1024,
    ) {
        let (memory, limit) = (memory * MIB, limit * MIB);
        let mut model = Model::new(memory, limit, 0);
        let most = model.usage().margin() / 2 * (1000 / 50);
        let rate = (rate * MIB).min(most);
        for (percent, steps) in others {
            let most = limit.saturating_sub(floor(memory, limit) + model.usage().margin());
            // Others do not jump by more than what is left, because then the kernel would have killed them.
            model.others = (most / 100 * percent).min(model.others + model.usage().room() / 4);
            for _ in 0..steps {
                prop_assert!(!model.step(rate));
                prop_assert!(model.bound() >= floor(memory, limit) && model.bound() <= memory);
            }
        }
    }
}
