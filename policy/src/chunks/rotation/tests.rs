//! The rules one by one, and their promises for any readers and homes.

mod world;

use super::super::layout::CHUNK_BYTES;
use super::super::reading::{Referred, Released};
use super::super::resident::ChunkState;
use super::*;
use ChunkState::{Complete, Loading, Marked};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const MINUTE: Duration = Duration::from_secs(60);

fn layout() -> ChunkLayout {
    // Ten chunks of a hundred entries.
    ChunkLayout::new(1000, 1, CHUNK_BYTES).unwrap()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn evicted(chunk: u32) -> Change {
    Change::Evicted {
        chunk,
        is_forced: false,
    }
}

fn loading(chunk: u32) -> Change {
    Change::Loading { chunk }
}

/// A rotation with its readers, which report at once.
struct Bench {
    rotation: Rotation,
    readers: BTreeMap<&'static str, Reading>,
    now: Duration,
}

impl Bench {
    fn new(readers: &[&'static str]) -> Self {
        let mut bench = Self {
            rotation: Rotation::new(layout(), MINUTE),
            readers: BTreeMap::new(),
            now: seconds(1),
        };
        for name in readers {
            bench.begin(name);
        }
        bench
    }

    fn begin(&mut self, name: &'static str) {
        self.readers.insert(name, Reading::default());
        self.tell(name);
    }

    fn tell(&mut self, name: &str) {
        self.rotation
            .hear(&reader(name), &self.readers[name], self.now)
            .unwrap();
    }

    fn refer(&mut self, name: &str, chunk: u32) -> Referred {
        let resident = self.rotation.resident();
        let answer = self
            .readers
            .get_mut(name)
            .unwrap()
            .refer(None, chunk, &resident);
        self.tell(name);
        answer
    }

    fn exhaust(&mut self, name: &str, chunk: u32) -> Released {
        let reading = self.readers.get_mut(name).unwrap();
        let answer = reading.release(self.rotation.layout(), chunk, true);
        self.tell(name);
        answer
    }

    /// The homes hold everything of the resident chunks up to this one.
    fn load(&mut self, last: u32) {
        let held = self.rotation.resident().into_iter();
        let reports = held
            .filter(|held| held.chunk <= last)
            .map(|held| ChunkReport {
                chunk: held.chunk,
                held: 100,
                lost: 0,
                pending: 0,
            });
        self.rotation.report(0, &reports.collect::<Vec<_>>());
    }

    fn after(&mut self, pause: u64) -> Vec<Change> {
        self.now += seconds(pause);
        self.rotation.advance(self.now)
    }

    fn states(&self) -> Vec<(u32, ChunkState)> {
        let resident = self.rotation.resident().into_iter();
        resident.map(|held| (held.chunk, held.state)).collect()
    }
}

fn reader(job: &str) -> Reader {
    Reader {
        job: job.to_owned(),
        part: 0,
    }
}

/// A reader that waits has ten times that long, which is more than a `Duration` can hold.
#[test]
fn the_longest_time_before_an_eviction_overflows_nothing() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.rotation = Rotation::new(layout(), Duration::MAX);
    bench.tell("a");
    bench.tell("b");
    assert_eq!(bench.after(0), [loading(0), loading(1)]);
    // One has exhausted both chunks, and waits beside the other.
    for chunk in [0, 1] {
        assert_eq!(bench.refer("b", chunk), Referred::Now);
        assert_eq!(bench.refer("a", chunk), Referred::Now);
        assert_eq!(bench.exhaust("a", chunk), Released::Now);
    }
    bench.load(1);
    assert_eq!(bench.after(1_000_000), []);
    assert_eq!(bench.rotation.deadline(), Some(Duration::MAX));
}

#[test]
fn two_chunks_come_in_and_the_older_goes_when_all_have_exhausted_it() {
    let mut bench = Bench::new(&["a", "b"]);
    assert_eq!(bench.after(0), [loading(0), loading(1)]);
    for name in ["a", "b"] {
        for chunk in [0, 1] {
            assert_eq!(bench.refer(name, chunk), Referred::Now);
        }
    }
    bench.load(0);
    assert_eq!(bench.after(1), []);
    assert_eq!(bench.states(), [(0, Complete), (1, Loading)]);
    bench.load(1);
    assert_eq!(bench.after(1), []);
    assert_eq!(bench.states(), [(0, Marked), (1, Complete)]);
    // A reader that begins now goes to the newer one.
    bench.begin("late");
    assert_eq!(bench.refer("late", 0), Referred::Marked);
    assert_eq!(bench.refer("late", 1), Referred::Now);
    assert_eq!(bench.exhaust("a", 0), Released::Now);
    assert_eq!(bench.after(59), []);
    assert_eq!(bench.exhaust("b", 0), Released::Now);
    assert_eq!(bench.after(0), [evicted(0), loading(2)]);
    assert_eq!(bench.states(), [(1, Complete), (2, Loading)]);
}

/// A job with many ranks is one job: the time of the others begins when its last rank has exhausted the chunk, and it
/// has one vote for the next one.
#[test]
fn a_job_counts_once_however_many_ranks_it_has() {
    let mut rotation = Rotation::new(layout(), MINUTE);
    let part = |job: &str, part: u64| Reader {
        job: job.to_owned(),
        part,
    };
    let hear =
        |rotation: &mut Rotation, reader: &Reader, refers: &[u32], exhausted: &[u32], now| {
            let reading = Reading {
                epoch: 0,
                refers: refers.iter().copied().collect(),
                exhausted: exhausted.iter().copied().collect(),
            };
            rotation.hear(reader, &reading, seconds(now)).unwrap();
        };
    let ranks: Vec<Reader> = (0..8).map(|rank| part("large", rank)).collect();
    for reader in ranks.iter().chain(&[part("small", 0)]) {
        hear(&mut rotation, reader, &[], &[], 1);
    }
    assert_eq!(rotation.advance(seconds(1)), [loading(0), loading(1)]);
    let whole = [0, 1].map(|chunk| ChunkReport {
        chunk,
        held: 100,
        lost: 0,
        pending: 0,
    });
    rotation.report(0, &whole);
    for reader in ranks.iter().chain(&[part("small", 0)]) {
        hear(&mut rotation, reader, &[0, 1], &[], 2);
    }
    assert_eq!(rotation.advance(seconds(2)), []);
    // One rank is ahead of the others.
    hear(&mut rotation, &ranks[0], &[1], &[0], 10);
    assert_eq!(rotation.advance(seconds(10)), []);
    assert_eq!(rotation.deadline(), None);
    for rank in &ranks[1..] {
        hear(&mut rotation, rank, &[1], &[0], 20);
    }
    assert_eq!(rotation.deadline(), Some(seconds(20) + MINUTE));
    // The ranks of one job need chunks 2 to 9, and three other jobs only 5.
    let mut voting = Rotation::new(layout(), MINUTE);
    for rank in &ranks {
        hear(&mut voting, rank, &[], &[0, 1], 1);
    }
    for job in ["a", "b", "c"] {
        let exhausted = [0, 1, 2, 3, 4, 6, 7, 8, 9];
        hear(&mut voting, &part(job, 0), &[], &exhausted, 1);
    }
    assert_eq!(voting.advance(seconds(1))[0], loading(5));
}

/// The home of the first item of a long entry counts the entry; others tell which of its items they lack.
#[test]
fn a_chunk_with_pending_items_is_not_complete() {
    let mut bench = Bench::new(&["a"]);
    assert_eq!(bench.after(0), [loading(0), loading(1)]);
    let report = |chunk, held, pending| ChunkReport {
        chunk,
        held,
        lost: 0,
        pending,
    };
    bench
        .rotation
        .report(0, &[report(0, 60, 0), report(1, 100, 0)]);
    bench.rotation.report(1, &[report(0, 40, 1)]);
    assert_eq!(bench.states(), [(0, Loading), (1, Complete)]);
    bench.rotation.report(1, &[report(0, 40, 0)]);
    assert_eq!(bench.states(), [(0, Complete), (1, Complete)]);
    bench
        .rotation
        .report(0, &[report(0, 60, 2), report(1, 100, 0)]);
    assert_eq!(bench.states()[0], (0, Loading));
}

#[test]
fn a_slow_reader_loses_a_chunk_a_minute_after_the_first_has_exhausted_it() {
    let mut bench = Bench::new(&["fast", "slow"]);
    assert_eq!(bench.after(0), [loading(0), loading(1)]);
    for name in ["fast", "slow"] {
        assert_eq!(bench.refer(name, 0), Referred::Now);
        assert_eq!(bench.refer(name, 1), Referred::Now);
    }
    bench.load(1);
    assert_eq!(bench.after(100), []);
    assert_eq!(bench.rotation.deadline(), None);
    assert_eq!(bench.exhaust("fast", 0), Released::Now);
    assert_eq!(bench.rotation.deadline(), Some(bench.now + MINUTE));
    assert_eq!(bench.after(59), []);
    let forced = Change::Evicted {
        chunk: 0,
        is_forced: true,
    };
    assert_eq!(bench.after(1), [forced, loading(2)]);
    assert_eq!(bench.refer("slow", 0), Referred::Gone);
    // The slow reader still needs it, so it comes in again, in its turn.
    for chunk in 1..10 {
        for name in ["fast", "slow"] {
            let _may_be_a_reference = bench.exhaust(name, chunk);
        }
        bench.load(10);
        bench.after(1);
    }
    assert_eq!(bench.states().last(), Some(&(0, Complete)));
}

#[test]
fn a_chunk_that_no_reader_needs_makes_room() {
    let mut bench = Bench::new(&["a"]);
    assert_eq!(bench.after(0), [loading(0), loading(1)]);
    assert_eq!(bench.exhaust("a", 0), Released::NotReferred);
    // Chunk 1 is not complete, but nothing is gained by keeping chunk 0 for it.
    assert_eq!(bench.after(0), [evicted(0), loading(2)]);
}

#[test]
fn an_epoch_begins_on_the_chunk_on_which_the_last_one_ended() {
    let mut bench = Bench::new(&["a"]);
    assert_eq!(bench.after(0), [loading(0), loading(1)]);
    for chunk in 0..10 {
        assert_eq!(bench.refer("a", chunk), Referred::Now);
        bench.load(10);
        bench.after(1);
        assert_eq!(bench.exhaust("a", chunk), Released::Now);
        bench.after(1);
    }
    // Nothing comes in for a reader that may never begin another epoch.
    assert_eq!(bench.states(), [(9, Complete)]);
    assert_eq!(bench.refer("a", 9), Referred::Now);
    assert_eq!(bench.after(1), [loading(0)]);
}

#[test]
fn nothing_comes_in_without_a_reader() {
    let mut bench = Bench::new(&["a"]);
    bench.rotation.retain_readers(|reader| reader.job != "a");
    assert_eq!(bench.after(100), []);
    bench.begin("a");
    assert_eq!(bench.after(1), [loading(0), loading(1)]);
    assert_eq!(bench.refer("a", 0), Referred::Now);
    bench.load(1);
    assert_eq!(bench.after(1), []);
    // It dies and gives back its reference. The newer chunk stays for the next job.
    bench.rotation.retain_readers(|_| false);
    assert_eq!(bench.after(1), [evicted(0)]);
    assert_eq!(bench.states(), [(1, Complete)]);
}

#[test]
fn a_reader_that_hangs_delays_the_others_for_a_minute_a_chunk() {
    let mut bench = Bench::new(&["hangs", "works"]);
    assert_eq!(bench.after(0), [loading(0), loading(1)]);
    for chunk in [0, 1] {
        assert_eq!(bench.refer("hangs", chunk), Referred::Now);
        assert_eq!(bench.refer("works", chunk), Referred::Now);
        assert_eq!(bench.exhaust("works", chunk), Released::Now);
    }
    // Chunk 1 is never completed, so chunk 0 is never marked.
    assert_eq!(bench.states(), [(0, Loading), (1, Loading)]);
    assert_eq!(bench.after(59), []);
    let forced = Change::Evicted {
        chunk: 0,
        is_forced: true,
    };
    assert_eq!(bench.after(1), [forced, loading(2)]);
}

#[test]
fn what_cannot_be_read_or_kept_counts_as_loaded() {
    let mut bench = Bench::new(&["a"]);
    assert_eq!(bench.after(0), [loading(0), loading(1)]);
    let report = |home, held, lost| {
        (
            home,
            [ChunkReport {
                chunk: 0,
                held,
                lost,
                pending: 0,
            }],
        )
    };
    for (home, reports) in [report(1, 30, 10), report(2, 40, 19)] {
        bench.rotation.report(home, &reports);
    }
    assert_eq!(bench.states()[0], (0, Loading));
    let (home, reports) = report(2, 40, 20);
    bench.rotation.report(home, &reports);
    assert_eq!(bench.states()[0], (0, Complete));
    let held = bench.rotation.resident()[0];
    assert_eq!((held.held, held.lost, held.entries), (70, 30, 100));
    // Sums of reports do not overflow, whatever other nodes claim.
    let (home, reports) = report(3, u64::MAX, u64::MAX);
    bench.rotation.report(home, &reports);
    assert_eq!(bench.rotation.resident()[0].held, 100);
}

#[test]
fn a_chunk_of_a_home_that_dies_is_loading_again() {
    let mut bench = Bench::new(&["a"]);
    assert_eq!(bench.after(0), [loading(0), loading(1)]);
    assert_eq!(bench.refer("a", 0), Referred::Now);
    bench.load(1);
    let half = [0, 1].map(|chunk| ChunkReport {
        chunk,
        held: 50,
        lost: 0,
        pending: 0,
    });
    bench.rotation.report(1, &half);
    assert_eq!(bench.after(1), []);
    assert_eq!(bench.states(), [(0, Marked), (1, Complete)]);
    bench.rotation.retain_homes(|home| home != 1);
    assert_eq!(bench.states(), [(0, Marked), (1, Complete)]);
    bench.rotation.retain_homes(|_| false);
    assert_eq!(bench.states(), [(0, Marked), (1, Loading)]);
}

#[test]
fn a_new_allocator_goes_on_from_the_decision_and_the_reports() {
    let mut bench = Bench::new(&["a", "b"]);
    assert_eq!(bench.after(0), [loading(0), loading(1)]);
    for name in ["a", "b"] {
        assert_eq!(bench.refer(name, 0), Referred::Now);
        assert_eq!(bench.refer(name, 1), Referred::Now);
    }
    bench.load(1);
    assert_eq!(bench.after(1), []);
    let _done = bench.exhaust("a", 0);
    let before = bench.rotation.resident();
    let clock = seconds(5);
    let mut rotation = Rotation::resume(layout(), MINUTE, &before, clock);
    assert_eq!(bench.states(), [(0, Marked), (1, Complete)]);
    // Readers and homes report one after the other, and nothing seems to be lost in between.
    rotation.report(
        0,
        &[ChunkReport {
            chunk: 1,
            held: 10,
            lost: 0,
            pending: 0,
        }],
    );
    let states = rotation.resident().into_iter().map(|held| held.state);
    assert!(states.eq([Marked, Complete]));
    let clock = clock + seconds(1);
    for (name, reading) in &bench.readers {
        rotation.hear(&reader(name), reading, clock).unwrap();
    }
    assert_eq!(rotation.advance(clock), []);
    assert_eq!(rotation.deadline(), Some(clock + MINUTE));
    let b = bench.readers.get_mut("b").unwrap();
    assert_eq!(b.release(&layout(), 0, true), Released::Now);
    rotation.hear(&reader("b"), b, clock).unwrap();
    assert_eq!(rotation.advance(clock), [evicted(0), loading(2)]);
}

#[test]
fn a_decision_for_another_layout_is_taken_as_far_as_it_goes() {
    let chunk = |chunk| ResidentChunk {
        chunk,
        state: Complete,
        held: 1,
        lost: 0,
        entries: 1,
    };
    let held = [10, 7, 7, 3, 4].map(chunk);
    let rotation = Rotation::resume(layout(), MINUTE, &held, seconds(0));
    let chunks = rotation.resident().into_iter().map(|held| held.chunk);
    assert!(chunks.eq([7, 3]));
}

#[test]
fn there_is_a_bound_of_readers() {
    let mut rotation = Rotation::new(layout(), MINUTE);
    let part = |part| Reader {
        job: "j".to_owned(),
        part,
    };
    for number in 0..READERS_MAX as u64 {
        rotation
            .hear(&part(number), &Reading::default(), seconds(1))
            .unwrap();
    }
    let one_more = part(READERS_MAX as u64);
    assert_eq!(
        rotation.hear(&one_more, &Reading::default(), seconds(1)),
        Err(TooManyReaders)
    );
    rotation
        .hear(&part(0), &Reading::default(), seconds(2))
        .unwrap();
}

/// An input from anywhere: numbers mean nothing, times only go forward.
#[derive(Debug, Clone)]
enum Input {
    Hear(u64, Reading),
    Vanish(u64),
    Report(u32, Vec<ChunkReport>),
    Advance(u64),
}

fn chunk() -> impl Strategy<Value = u32> {
    prop_oneof![20 => 0..12_u32, 1 => any::<u32>()]
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let some = || prop::collection::btree_set(chunk(), 0..10);
    let reading = (0..3_u64, some(), some()).prop_map(|(epoch, refers, exhausted)| Reading {
        epoch,
        refers,
        exhausted,
    });
    let count = || prop_oneof![0..120_u64, any::<u64>()];
    let report = (chunk(), count(), count()).prop_map(|(chunk, held, lost)| ChunkReport {
        chunk,
        held,
        lost,
        pending: 0,
    });
    let input = prop_oneof![
        4 => (0..4_u64, reading).prop_map(|(part, reading)| Input::Hear(part, reading)),
        1 => (0..4_u64).prop_map(Input::Vanish),
        2 => (0..3_u32, prop::collection::vec(report, 0..3))
            .prop_map(|(home, reports)| Input::Report(home, reports)),
        4 => (0..50_u64).prop_map(Input::Advance),
    ];
    prop::collection::vec(input, 0..80)
}

/// Applies the inputs, and returns all changes and the last state.
fn apply(inputs: &[Input]) -> Result<(Vec<Change>, Rotation), TestCaseError> {
    let mut rotation = Rotation::new(layout(), seconds(20));
    let mut now = Duration::ZERO;
    let mut all = Vec::new();
    for input in inputs {
        match input {
            Input::Hear(part, reading) => {
                let reader = Reader {
                    job: "j".to_owned(),
                    part: *part,
                };
                rotation.hear(&reader, reading, now).unwrap();
            }
            Input::Vanish(part) => rotation.retain_readers(|reader| reader.part != *part),
            Input::Report(home, reports) => rotation.report(*home, reports),
            Input::Advance(pause) => {
                now += seconds(*pause);
                all.extend(rotation.advance(now));
                prop_assert_eq!(rotation.advance(now), [], "a second look changes something");
            }
        }
        let resident = rotation.resident();
        let chunks: BTreeSet<u32> = resident.iter().map(|held| held.chunk).collect();
        prop_assert!(resident.len() <= RESIDENT_MAX && chunks.len() == resident.len());
        prop_assert!(chunks.iter().all(|chunk| *chunk < 10));
    }
    Ok((all, rotation))
}

proptest! {
    #[test]
    fn never_more_than_two_and_equal_inputs_have_equal_outputs(inputs in inputs()) {
        let (changes, rotation) = apply(&inputs)?;
        prop_assert_eq!(&(changes, rotation.clone()), &apply(&inputs)?);
        let text = serde_json::to_string(&rotation).unwrap();
        prop_assert_eq!(serde_json::from_str::<Rotation>(&text).unwrap(), rotation);
    }
}
