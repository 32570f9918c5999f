//! A writer with a coarse clock, a reader, and the rule between them.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SKEW: Duration = Duration::from_secs(5);
const FINE: Duration = Duration::from_millis(100);

fn at(begun: Instant, ms: u64) -> ObservedAt {
    let now = begun + Duration::from_millis(ms);
    ObservedAt {
        requested: now,
        answered: now,
    }
}

fn fine(ms: u64) -> FileTimes {
    FileTimes {
        newest_ns: i128::from(ms) * 1_000_000,
        granularity: FINE,
    }
}

#[test]
fn a_state_settles_by_a_second_observation_beyond_the_granularity() {
    let (settling, begun) = (SettlingTable::with(SKEW, 7, 8), Instant::now());
    let state = Version::of(b"a");
    let look = |ms| settling.observe(b"f", &state, FINE, at(begun, ms));
    assert_eq!((look(0), look(99), look(100)), (Some(7), Some(7), Some(7)));
    assert_eq!(look(101), None);
    let other = Version::of(b"b");
    let first = settling.observe(b"f", &other, FINE, at(begun, 102));
    assert_eq!(first, Some(8), "another state starts over");
}

/// The relevant time is between the answer to the first request and the second request.
#[test]
fn the_duration_of_an_observation_does_not_count() {
    let (settling, begun) = (SettlingTable::with(SKEW, 1, 8), Instant::now());
    let slow = |requested, answered| ObservedAt {
        requested: begun + Duration::from_millis(requested),
        answered: begun + Duration::from_millis(answered),
    };
    let state = Version::of(b"a");
    let look = |moment| settling.observe(b"f", &state, FINE, moment);
    assert_eq!(look(slow(0, 500)), Some(1));
    assert_eq!(look(slow(590, 700)), Some(1));
    assert_eq!(look(slow(601, 700)), None);
}

/// Storage with a clock that is two seconds, or four minutes, ahead or behind.
#[test]
fn a_clock_within_the_skew_makes_no_file_old() {
    let settling = SettlingTable::new(Duration::from_secs(300));
    let now: i128 = 1_000_000 * 1_000_000_000;
    for offset in [-240_i128, -2, 0, 2, 240] {
        let times = FileTimes {
            newest_ns: now + offset * 1_000_000_000,
            granularity: FINE,
        };
        assert!(!settling.is_old(times, now), "{offset}");
        let later = now + (300 + 240) * 1_000_000_000 + 200_000_000;
        assert!(settling.is_old(times, later), "{offset}");
    }
    let future = FileTimes {
        newest_ns: now + 3_600_000_000_000,
        granularity: FINE,
    };
    assert!(!settling.is_old(future, now));
}

#[test]
fn a_state_is_read_once_before_it_settles_and_not_after() {
    let (settling, begun) = (SettlingTable::with(SKEW, 1, 8), Instant::now());
    let state = Version::of(b"a");
    let now = |ms| begun + Duration::from_millis(ms);
    let first = settling.observe(b"f", &state, FINE, at(begun, 0));
    let unsettled = state.standing_as(Standing::Unsettled(first.unwrap()));
    assert!(settling.admit_read(b"f", &unsettled, FINE, now(50)));
    assert!(!settling.admit_read(b"f", &unsettled, FINE, now(60)));
    assert_eq!(settling.observe(b"g", &state, FINE, at(begun, 0)), Some(2));
    assert!(!settling.admit_read(b"g", &unsettled, FINE, now(101)));
    // Another root's observation admits one read, within its own window.
    let foreign = state.standing_as(Standing::Unsettled(1 << 40));
    assert!(settling.admit_read(b"h", &foreign, FINE, now(500)));
    assert!(!settling.admit_read(b"h", &foreign, FINE, now(510)));
    // The read counts as an observation.
    assert_eq!(settling.observe(b"h", &state, FINE, at(begun, 601)), None);
}

#[test]
fn the_table_is_bounded_and_forgets_the_oldest() {
    let (settling, begun) = (SettlingTable::with(SKEW, 1, 4), Instant::now());
    let state = Version::of(b"a");
    for n in 0..100_u8 {
        settling.observe(&[n], &state, FINE, at(begun, 0));
        // A path that is observed constantly is not forgotten.
        settling.observe(b"kept", &state, FINE, at(begun, 1));
        let table = settling.table.lock();
        assert!(table.newer.len() <= 4 && table.older.len() <= 4);
    }
    assert_eq!(
        settling.observe(b"kept", &state, FINE, at(begun, 102)),
        None
    );
    let forgotten = settling.observe(&[0], &state, FINE, at(begun, 102));
    assert!(forgotten.is_some());
}

/// A reader that visits all paths in turn renews each of them.
#[test]
fn renewed_observations_do_not_make_the_table_grow() {
    let (settling, begun) = (SettlingTable::with(SKEW, 1, 4), Instant::now());
    let state = Version::of(b"a");
    for n in (0..7_u8).cycle().take(200) {
        settling.observe(&[n], &state, FINE, at(begun, 0));
        let table = settling.table.lock();
        assert!(table.newer.len() <= 4 && table.older.len() <= 4);
    }
}

#[derive(Clone, Debug)]
enum Action {
    /// Time passes, in milliseconds.
    Pass(u64),
    /// The file is written in place, at its size.
    Write(u8),
    /// The reader looks at it.
    Look(u8),
    /// The reader reads it, under the version that it last saw.
    Read(u8),
}

fn action() -> impl Strategy<Value = Action> {
    let file = 0..3_u8;
    prop_oneof![
        2 => (1..400_u64).prop_map(Action::Pass),
        1 => (1_000..9_000_u64).prop_map(Action::Pass),
        4 => file.clone().prop_map(Action::Write),
        5 => file.clone().prop_map(Action::Look),
        5 => file.prop_map(Action::Read),
    ]
}

/// One file: the time of its last change, as storage keeps it, and its content.
#[derive(Clone, Copy, Debug, Default)]
struct File {
    time_ms: u64,
    content: u64,
}

fn version_of(file: &File) -> Version {
    Version::of(b"file").changed_at(&file.time_ms.to_le_bytes())
}

/// The content that was read under each version.
type ReadContents = BTreeMap<(u8, [u8; Version::BYTES]), u64>;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Bytes that are read under one version are always the same, for any writes within a tick of
    /// its clock, and however far that clock is off within the skew.
    #[test]
    fn bytes_under_one_version_never_differ(
        actions in prop::collection::vec(action(), 1..120),
        tick_ms in prop_oneof![Just(4_u64), Just(10), Just(1_000), Just(2_000)],
        ahead_ms in 0..10_000_u64,
        generation in prop_oneof![Just(1_usize), Just(2), Just(1_000)],
    ) {
        let granularity = Duration::from_millis(if tick_ms < 1_000 { 100 } else { 2_000 });
        let settling = SettlingTable::with(SKEW, 0, generation);
        let begun = Instant::now();
        // Storage's clock is up to five seconds behind or ahead of the reader's.
        let (mut now, mut written) = (100_000_u64, 0);
        let storage = |now: u64| (now + ahead_ms - 5_000) / tick_ms * tick_ms;
        let mut files = [File { time_ms: storage(now), content: 0 }; 3];
        let mut seen: BTreeMap<u8, Version> = BTreeMap::new();
        let mut contents = ReadContents::new();
        for action in actions {
            match action {
                Action::Pass(ms) => now += ms,
                Action::Write(n) => {
                    written += 1;
                    files[usize::from(n)] = File { time_ms: storage(now), content: written };
                }
                Action::Look(n) => {
                    let file = files[usize::from(n)];
                    let times = FileTimes { granularity, ..fine(file.time_ms) };
                    let version = version_of(&file);
                    let standing = if settling.is_old(times, i128::from(now) * 1_000_000) {
                        Standing::Lasting
                    } else {
                        let moment = at(begun, now);
                        let look = settling.observe(&[n], &version, granularity, moment);
                        look.map_or(Standing::Lasting, Standing::Unsettled)
                    };
                    seen.insert(n, version.standing_as(standing));
                }
                Action::Read(n) => {
                    let Some(version) = seen.get(&n) else { continue };
                    let file = files[usize::from(n)];
                    if !version_of(&file).is_state_of(version) {
                        continue;
                    }
                    let times = FileTimes { granularity, ..fine(file.time_ms) };
                    let old = settling.is_old(times, i128::from(now) * 1_000_000);
                    let moment = begun + Duration::from_millis(now);
                    let admitted = version.is_settled()
                        || (!old && settling.admit_read(&[n], version, granularity, moment));
                    if admitted {
                        let key = (n, version.to_bytes());
                        let before = *contents.entry(key).or_insert(file.content);
                        prop_assert_eq!(before, file.content, "{:?}", version);
                    }
                }
            }
        }
    }
}
