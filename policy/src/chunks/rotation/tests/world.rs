//! Readers of any speed, which come, hang and die, read their epochs to the end.

use super::*;

/// Entries of a chunk.
const ENTRIES: u64 = 100;
/// Epochs of each reader.
const EPOCHS: u64 = 2;

#[derive(Debug, Clone)]
struct Plan {
    begins: u64,
    /// Entries a second.
    speed: u64,
    /// When it stops to read, and whether its job is then gone, or only hangs.
    stops: Option<(u64, bool)>,
}

#[derive(Debug)]
struct Actor {
    plan: Plan,
    reader: Reader,
    reading: Reading,
    /// The entries that it has read of each chunk in this epoch.
    read: [u64; 10],
    /// The chunks that were resident in this epoch.
    seen: BTreeSet<u32>,
    done: u64,
}

impl Actor {
    fn is_running(&self, now: u64) -> bool {
        let has_stopped = self.plan.stops.is_some_and(|(at, _)| at <= now);
        self.plan.begins <= now && !has_stopped && self.done < EPOCHS
    }

    fn is_gone(&self, now: u64) -> bool {
        self.done == EPOCHS || self.plan.stops.is_some_and(|(at, dies)| dies && at <= now)
    }

    /// Reads for a second from the first chunk that it may read.
    fn work(&mut self, resident: &[ResidentChunk]) {
        self.seen.extend(resident.iter().map(|held| held.chunk));
        self.reading.follow(resident);
        let Some(&chunk) = self.reading.refers.first() else {
            return;
        };
        let read = &mut self.read[chunk as usize];
        *read += self.plan.speed;
        if *read >= ENTRIES {
            assert_eq!(self.reading.release(&layout(), chunk, true), Released::Now);
        }
        if self.reading.exhausted.len() == 10 {
            assert_eq!(
                self.seen.len(),
                10,
                "it has read a chunk that was never there"
            );
            self.reading.begin_epoch();
            (self.read, self.seen) = ([0; 10], BTreeSet::new());
            self.done += 1;
        }
    }
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let stops = prop::option::weighted(0.3, (0..300_u64, any::<bool>()));
    let plan = (0..200_u64, 1..60_u64, stops).prop_map(|(begins, speed, stops)| Plan {
        begins,
        speed,
        stops,
    });
    prop::collection::vec(plan, 1..6)
}

struct World {
    actors: Vec<Actor>,
    rotation: Rotation,
    /// The entries of each chunk that the one home holds.
    held: BTreeMap<u32, u64>,
    /// A chunk that is never completed.
    stuck: u32,
    evict_after: u64,
    /// The first time at which a reader was seen to have exhausted a chunk since it came in, or to wait.
    first: BTreeMap<u32, u64>,
}

impl World {
    fn new(plans: Vec<Plan>, stuck: u32, evict_after: u64) -> Self {
        let actor = |(part, plan): (u64, Plan)| Actor {
            plan,
            reader: Reader {
                job: "j".to_owned(),
                part,
            },
            reading: Reading::default(),
            read: [0; 10],
            seen: BTreeSet::new(),
            done: 0,
        };
        Self {
            actors: (0..).zip(plans).map(actor).collect(),
            rotation: Rotation::new(layout(), seconds(evict_after)),
            held: BTreeMap::new(),
            stuck,
            evict_after,
            first: BTreeMap::new(),
        }
    }

    fn second(&mut self, now: u64, rate: u64) -> Result<(), TestCaseError> {
        let resident = self.rotation.resident();
        for actor in &mut self.actors {
            if actor.is_running(now) {
                actor.work(&resident);
            }
            if actor.plan.begins <= now {
                self.rotation
                    .hear(&actor.reader, &actor.reading, seconds(now))
                    .unwrap();
            }
        }
        let actors = &self.actors;
        self.rotation.retain_readers(|reader| {
            let actor = actors.iter().find(|actor| actor.reader == *reader);
            actor.is_some_and(|actor| !actor.is_gone(now))
        });
        for held in &resident {
            let most = if held.chunk == self.stuck {
                ENTRIES / 2
            } else {
                ENTRIES
            };
            let held = self.held.entry(held.chunk).or_default();
            *held = (*held + rate).min(most);
        }
        let reports = self.held.iter().map(|(&chunk, &held)| ChunkReport {
            chunk,
            held,
            lost: 0,
            pending: 0,
        });
        self.rotation.report(0, &reports.collect::<Vec<_>>());
        for change in self.rotation.advance(seconds(now)) {
            self.check(change, now)?;
        }
        self.note_the_first(now);
        Ok(())
    }

    /// Notes since when a reader has had no use for a resident chunk, or waits for another.
    fn note_the_first(&mut self, now: u64) {
        let resident = self.rotation.resident();
        let live = self
            .actors
            .iter()
            .filter(|actor| actor.plan.begins <= now && !actor.is_gone(now));
        for actor in live {
            let (refers, exhausted) = (&actor.reading.refers, &actor.reading.exhausted);
            let waits = resident.iter().all(|held| {
                let is_closed = held.state == Marked && !refers.contains(&held.chunk);
                is_closed || exhausted.contains(&held.chunk)
            });
            for held in &resident {
                if waits || exhausted.contains(&held.chunk) {
                    self.first.entry(held.chunk).or_insert(now);
                }
            }
        }
    }

    /// Readers lose a chunk only when time is up.
    fn check(&mut self, change: Change, now: u64) -> Result<(), TestCaseError> {
        let Change::Evicted { chunk, is_forced } = change else {
            return Ok(());
        };
        self.held.remove(&chunk);
        let first = self.first.remove(&chunk);
        let live = self.actors.iter().filter(|actor| !actor.is_gone(now));
        let losers = live
            .filter(|actor| actor.reading.refers.contains(&chunk))
            .count();
        if is_forced {
            let first = first.expect("a reader had no use for it");
            prop_assert!(
                first + self.evict_after <= now,
                "{chunk} at {now}, first {first}"
            );
        } else {
            prop_assert_eq!(losers, 0, "{} at {}", chunk, now);
        }
        Ok(())
    }
}

proptest! {
    /// Also: a reader finds each chunk resident in each of its epochs (see `Actor::work`), and loses
    /// those to which it refers only when time is up (see `World::check`).
    #[test]
    fn each_reader_that_goes_on_reads_all_its_epochs(
        plans in plans(), stuck in 0..20_u32, evict_after in 0..40_u64, rate in 5..100_u64,
    ) {
        let mut world = World::new(plans, stuck, evict_after);
        // The time that each chunk takes in the worst case, when the readers take turns.
        let chunk = ENTRIES + ENTRIES / rate + u64::from(PATIENCE) * evict_after + 10;
        let end = 500 + chunk * 10 * EPOCHS * world.actors.len() as u64;
        let mut now = 0;
        while now < 200 || world.actors.iter().any(|actor| actor.is_running(now)) {
            now += 1;
            world.second(now, rate)?;
            prop_assert!(now < end, "waits for ever: {:?}", world.actors);
        }
    }
}
