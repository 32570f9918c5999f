use super::killed::{Killed, PAGE};
use super::*;
use crate::testing::Random;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Things = BTreeMap<u8, u64>;

fn record(thing: u8, value: u64) -> Vec<u8> {
    // Of different lengths.
    let filling = vec![7; usize::from(thing) * 9];
    [&[thing][..], &value.to_le_bytes(), &filling].concat()
}

fn replay(things: &mut Things, record: &[u8]) {
    let value = u64::from_le_bytes(record[1..9].try_into().unwrap());
    assert!(record[9..] == vec![7; usize::from(record[0]) * 9]);
    match value {
        0 => drop(things.remove(&record[0])),
        value => drop(things.insert(record[0], value)),
    }
}

/// The states after each record since the last commit: one of them is what the next process may find.
struct Model {
    states: Vec<Things>,
}

impl Model {
    fn now(&self) -> Things {
        self.states.last().unwrap().clone()
    }

    fn put(&mut self, thing: u8, value: u64) {
        let mut next = self.now();
        replay(&mut next, &record(thing, value));
        self.states.push(next);
    }

    fn committed(&mut self) {
        self.states = vec![self.now()];
    }
}

fn work(journal: &Journal<Arc<Killed>>, model: &mut Model, random: &mut Random) {
    for step in 1..200 {
        if journal.medium.is_dead() {
            return;
        }
        match random.below(20) {
            0 => {
                let live = model.now();
                let (things, mut random) = (live.keys().copied().collect::<Vec<_>>(), Random(step));
                let during = std::cell::RefCell::new(&mut *model);
                let taken = journal.snapshot(|| {
                    for thing in things {
                        let mut model = during.borrow_mut();
                        // A thing may change, or go, before it is dumped or after it.
                        if random.below(4) == 0 {
                            let other = u8::try_from(random.below(20)).unwrap();
                            let value = random.below(3) * step;
                            journal.put(&record(other, value), 9);
                            model.put(other, value);
                        }
                        if let Some(value) = model.now().get(&thing) {
                            journal.put(&record(thing, *value), 900);
                        }
                    }
                });
                taken.unwrap();
                if !journal.medium.is_dead() {
                    model.committed();
                }
            }
            1..6 => {
                journal.commit();
                if !journal.medium.is_dead() {
                    model.committed();
                }
            }
            _ => {
                let thing = u8::try_from(random.below(20)).unwrap();
                let value = random.below(4) * step;
                journal.put(&record(thing, value), 9);
                model.put(thing, value);
            }
        }
    }
}

/// The number of writers that are killed, unless the environment sets it: `JOURNAL_SEEDS=10000` takes a minute.
const SEEDS: u64 = 200;

/// A writer that is killed between any two bytes leaves all that was committed, and of the rest a beginning. So does the
/// one that continues its journal.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the size of a test is no setting of copperfs"
)]
fn a_killed_writer_leaves_all_that_was_committed() {
    let seeds = std::env::var("JOURNAL_SEEDS").ok();
    let seeds = seeds.map_or(SEEDS, |seeds| seeds.parse().unwrap());
    let mut deaths = 0;
    for seed in 0..seeds {
        let mut random = Random(seed);
        let medium = Killed::after(1 + to_usize(random.below(60_000)));
        let Ok(journal) = Journal::create(Arc::clone(&medium)) else {
            continue;
        };
        if medium.is_dead() {
            continue;
        }
        let mut model = Model {
            states: vec![Things::new()],
        };
        work(&journal, &mut model, &mut random);
        for _successor in 0..3 {
            deaths += u64::from(medium.is_dead());
            let mut found = Things::new();
            medium.revive(to_usize(random.below(30_000)) + 1);
            let journal = Journal::adopt(Arc::clone(&medium), |record| replay(&mut found, record));
            let journal = journal.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(
                model.states.contains(&found),
                "seed {seed}: {found:?} is none of {:?}",
                model.states
            );
            model.states = vec![found];
            work(&journal, &mut model, &mut random);
        }
    }
    assert!(deaths > seeds / 2, "{deaths} deaths of {seeds}");
}

/// A writer that is killed while it replaces a value leaves the one before, or the new one.
#[test]
fn a_value_is_the_one_before_or_the_new_one() {
    let value =
        |number: u64| vec![u8::try_from(number % 251).unwrap(); to_usize(number * 37 % 9000)];
    for seed in 0..500 {
        let mut random = Random(seed);
        let medium = Killed::after(1 + to_usize(random.below(60_000)));
        let mut latest = Latest::create(Arc::clone(&medium));
        let mut last = None;
        for number in 1..60 {
            latest.write(&value(number)).unwrap();
            assert!(medium.bytes() <= 8 * PAGE, "{} bytes", medium.bytes());
            if !medium.is_dead() {
                last = Some(number);
                continue;
            }
            medium.revive(1 + to_usize(random.below(60_000)));
            let found;
            (latest, found) = Latest::adopt(Arc::clone(&medium)).unwrap();
            let may_be = [last, Some(number)].map(|number| number.map(value));
            assert!(may_be.contains(&found), "seed {seed}, value {number}");
            last = (found == may_be[1]).then_some(number).or(last);
        }
    }
    let medium = Killed::after(usize::MAX);
    let latest = Latest::create(Arc::clone(&medium));
    assert!(latest.write(&vec![0; latest::VALUE_MAX + 1]).is_err());
    assert_eq!(Latest::adopt(medium).unwrap().1, None);
}

/// Threads put and commit while another takes snapshots. The memory stays in proportion to what is live.
#[test]
fn snapshots_are_taken_beside_writers() {
    let journal = Arc::new(Journal::create(MemoryFile::new().unwrap()).unwrap());
    let things: Vec<Mutex<u64>> = (0..200).map(|_| Mutex::new(0)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let write = |writer| {
            let (journal, things) = (&journal, &things);
            scope.spawn(move || {
                let mut random = Random(writer);
                for step in 1..20_000 {
                    let thing = u8::try_from(random.below(200)).unwrap();
                    let mut value = things[usize::from(thing)].lock();
                    *value = random.below(3) * step;
                    journal.put(&record(thing, *value), 900);
                    drop(value);
                    journal.commit();
                }
            })
        };
        let writers: Vec<_> = (0..3).map(write).collect();
        let snapshots = scope.spawn(|| {
            let mut taken = 0;
            while !stop.load(Ordering::Relaxed) {
                if !journal.is_snapshot_due() {
                    std::thread::yield_now();
                    continue;
                }
                let dump = || {
                    for (thing, value) in (0..).zip(&things) {
                        let value = value.lock();
                        if *value > 0 {
                            journal.put(&record(thing, *value), 900);
                        }
                    }
                };
                journal.snapshot(dump).unwrap();
                taken += 1;
            }
            taken
        });
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(snapshots.join().unwrap() > 3);
    });
    assert!(journal.bytes() < 16 << 20, "{} bytes", journal.bytes());
    let file = rustix::io::dup(&journal.medium).unwrap();
    let mut found = Things::new();
    let adopted = Journal::adopt(MemoryFile::from(file), |record| replay(&mut found, record));
    assert!(!adopted.unwrap().is_broken());
    let live = (0..)
        .zip(&things)
        .map(|(thing, value)| (thing, *value.lock()));
    assert_eq!(found, live.filter(|(_, value)| *value > 0).collect());
}

#[test]
fn other_formats_and_other_files_are_refused() {
    let medium = Killed::after(usize::MAX);
    let adopt = || Journal::adopt(Arc::clone(&medium), |_| {}).map(drop);
    assert!(matches!(adopt(), Err(JournalError::NoHeader)));
    drop(Journal::create(Arc::clone(&medium)).unwrap());
    adopt().unwrap();
    medium.write_at(&[9], 8).unwrap();
    let error = adopt().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the journal has format 9, and this program reads format 4"
    );
    medium.write_at(&[b'x'; 200], 0).unwrap();
    assert!(matches!(adopt(), Err(JournalError::NoHeader)));
}

/// A header that was torn by a death leaves the other one, wherever it was torn.
#[test]
fn a_torn_header_does_not_count() {
    for torn in 1..HEADER_BYTES {
        let medium = Killed::after(usize::MAX);
        let journal = Journal::create(Arc::clone(&medium)).unwrap();
        journal.put(b"record", 0);
        journal.commit();
        let next = header(1, journal.state.lock().end);
        medium.write_at(&next[..torn], SLOT_BYTES).unwrap();
        let mut found = Vec::new();
        let adopted = Journal::adopt(medium, |record| found.push(record.to_vec()));
        assert!(adopted.is_ok(), "torn after {torn} bytes");
        assert_eq!(found, [b"record"], "torn after {torn} bytes");
        let medium = Killed::after(usize::MAX);
        medium.write_at(&next[..torn], 0).unwrap();
        assert_eq!(
            Latest::adopt(medium).unwrap().1,
            None,
            "torn after {torn} bytes"
        );
    }
}

/// A medium without room.
struct Full;

impl Medium for Full {
    fn write_at(&self, _bytes: &[u8], offset: u64) -> io::Result<()> {
        match offset {
            0 => Ok(()),
            _ => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn read_at(&self, _buffer: &mut [u8], _offset: u64) -> io::Result<usize> {
        Ok(0)
    }

    fn release(&self, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&self, _length: u64) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_memory_breaks_it_and_nothing_else() {
    let journal = Journal::create(Full).unwrap();
    journal.put(b"record", 0);
    assert!(!journal.is_broken());
    journal.commit();
    assert!(journal.is_broken());
    journal.put(&vec![0; RECORD_MAX + 1], 0);
    journal.put(b"record", 0);
    journal.commit();
    assert!(journal.snapshot(|| {}).is_err());
}

/// A number that a record leaves out is that of the record before it, wherever frames and snapshots begin.
#[test]
fn a_number_that_is_left_out_is_in_the_record_before() {
    type Told = (Option<u64>, Vec<u8>);
    for seed in 0..200 {
        let mut random = Random(seed);
        let medium = Killed::after(usize::MAX);
        let journal = Arc::new(Journal::create(Arc::clone(&medium)).unwrap());
        let part = |tag| JournalPart::new(Arc::clone(&journal), tag);
        let (parts, other) = ([part(0), part(1)], part(2));
        let (mut put, mut left_out) = ([Vec::new(), Vec::new()], 0);
        for _ in 0..300 {
            match random.below(40) {
                0..3 => journal.commit(),
                3..6 => other.put(&7, 0),
                6 => {
                    journal.snapshot(|| ()).unwrap();
                    put = Default::default();
                }
                7 => {
                    let too_long = vec![0_u8; RECORD_MAX];
                    parts[0].put_with(2, |_| (None::<u64>, &too_long), 0);
                }
                _ => {
                    let (tag, number) = (to_usize(random.below(2)), random.below(3));
                    let record = |is_same: bool| -> Told {
                        left_out += u64::from(is_same);
                        ((!is_same).then_some(number), vec![1; 20])
                    };
                    parts[tag].put_with(number, record, 0);
                    put[tag].push(number);
                }
            }
        }
        journal.commit();
        assert!(left_out > 0, "seed {seed}");
        let (mut found, mut last) = ([Vec::new(), Vec::new()], [None; 2]);
        let read = Journal::adopt(medium, |record| {
            let tag = usize::from(record[0]);
            if tag < 2 {
                let (number, _): Told = postcard::from_bytes(&record[1..]).unwrap();
                last[tag] = number.or(last[tag]);
                found[tag].push(last[tag].unwrap());
            }
        });
        read.unwrap();
        assert_eq!(found, put, "seed {seed}");
    }
}
