use super::*;
use crate::journal::{Journal, MemoryFile};
use crate::num::to_usize;
use crate::read::{Noted, Part, PartRange};
use crate::testing::{Random, attributes, path};
use copperfs_overlay::ContentHash;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A table that writes a journal, and takes over those of earlier ones.
struct Daemon {
    journal: Arc<Journal<MemoryFile>>,
    file: std::os::fd::OwnedFd,
    table: InodeTable,
}

const PART: u8 = 7;

impl Daemon {
    fn start() -> Self {
        let file = MemoryFile::new().unwrap();
        let kept = rustix::io::dup(&file).unwrap();
        let journal = Journal::create(file).unwrap();
        Self::with(journal, kept, RememberedInodes::default())
    }

    fn with(
        journal: Journal<MemoryFile>,
        file: std::os::fd::OwnedFd,
        remembered: RememberedInodes,
    ) -> Self {
        let journal = Arc::new(journal);
        let root = attributes(FileKind::Directory, 0, 0);
        let table = InodeTable::new(root, u64::MAX / 2);
        let part = JournalPart::new(Arc::clone(&journal), PART);
        Self {
            journal,
            file,
            table: table.journaled(part, remembered),
        }
    }

    /// The daemon dies, and another one takes over.
    fn die(self) -> Self {
        let mut remembered = RememberedInodes::default();
        let file = rustix::io::dup(&self.file).unwrap();
        let journal = Journal::adopt(MemoryFile::from(file), |record| {
            assert_eq!(record[0], PART);
            remembered.take(&record[1..]);
        });
        Self::with(journal.unwrap(), self.file, remembered)
    }

    fn learn(&self, text: &str, attributes: Attributes) -> u64 {
        let path = path(text);
        let (parent, name) = path.split().unwrap();
        let parent = self.table.parent(&parent);
        let number = self.table.learn(&path, parent, name, attributes);
        self.table.commit();
        number
    }
}

fn directory() -> Attributes {
    attributes(FileKind::Directory, 0, 1)
}

fn file(state: u8) -> Attributes {
    attributes(FileKind::File, 5, state)
}

#[test]
fn inodes_sleep_until_their_version_is_found_again() {
    let first = Daemon::start();
    let numbers = ["a", "a/b", "a/b/c", "a/d"].map(|name| {
        let attributes = if name.ends_with(['c', 'd']) {
            file(1)
        } else {
            directory()
        };
        first.learn(name, attributes)
    });
    let [a, b, c, d] = numbers;
    first.learn("a/b/c", file(1));
    assert!(!first.table.is_asleep(c));
    let second = first.die().die();
    let table = &second.table;
    assert_eq!(table.stats().entries, 5);
    assert!(
        numbers
            .iter()
            .all(|number| table.is_asleep(*number) && table.contains(*number))
    );
    assert!(table.get(c).is_none(), "it has to wake first");
    assert_eq!(table.asleep_path(c), Some(path("a/b/c")));
    assert_eq!(table.number_at(&path("a/b")), Some(b));
    assert_eq!(table.entry(c).unwrap().0, path("a/b"));
    assert_eq!(table.file_entry(c).unwrap().0, b);
    assert_eq!(table.file_entry(b), None);
    let mut below = table.below(&path("a/b"));
    below.sort_unstable();
    let mut wanted = [b, c];
    wanted.sort_unstable();
    assert_eq!(below, wanted);
    // Its file has changed, in its bytes or in its status.
    assert!(!table.wake(&path("a/d"), d, file(2)));
    let mut changed = file(1);
    changed.version = changed.version.with_change([1; 8]);
    assert!(!table.wake(&path("a/d"), d, changed.clone()));
    assert!(!table.wake(&path("a/d"), d, attributes(FileKind::Directory, 5, 1)));
    assert!(table.is_asleep(d));
    // The new version has another number.
    assert_ne!(second.learn("a/d", changed), d);
    assert!(table.wake(&path("a/b/c"), c, file(1)));
    assert_eq!(table.get(c).unwrap().path(), &path("a/b/c"));
    // The listing of a directory may have changed.
    assert!(table.wake(&path("a"), a, directory()));
    // References are those of all look-ups.
    assert!(!table.forget(c, 1));
    assert!(table.forget(c, 1));
    assert!(!table.contains(c));
    assert!(table.forget(b, 1));
    assert_eq!(table.number_at(&path("a/b")), None);
    // A look-up wakes it, too.
    let third = second.die();
    assert!(third.table.is_asleep(a) && third.table.is_asleep(d));
    assert_eq!(third.learn("a/d", file(1)), d);
    assert!(!third.table.is_asleep(d));
    assert!(!third.table.forget(d, 1));
    assert!(third.table.forget(d, 1));
}

/// Bytes of an unsettled version may be followed by those of another state that looks the same. So a successor knows
/// which were returned.
#[test]
fn an_unsettled_version_wakes_with_its_returned_bytes() {
    let first = Daemon::start();
    let unsettled = |look, size| {
        let mut attributes = attributes(FileKind::File, size, 1);
        attributes.version = attributes.version.standing_as(Standing::Unsettled(look));
        attributes
    };
    let large = 5 << 20;
    let numbers = [("read", 5), ("unread", 5), ("settled", 5), ("large", large)]
        .map(|(name, size)| first.learn(name, unsettled(3, size)));
    let [read, unread, settled, long] = numbers;
    let part = Part {
        range: PartRange::Block(0),
        hash: ContentHash([9; 32]),
    };
    for number in [read, settled, long] {
        let inode = first.table.get_to_read(number).unwrap();
        assert_eq!(inode.given.note([&part]), Noted::Yes);
        first.table.tell_returned(&inode, [&part]);
    }
    assert!(
        first.table.get_to_read(unread).is_some(),
        "but nothing is returned"
    );
    let inode = first.table.get(settled).unwrap();
    let account = inode.given.freeze();
    assert!(first.table.move_on(&inode, file(1), account).is_some());
    first.table.commit();
    let second = first.die();
    let table = &second.table;
    assert!(table.wake(&path("unread"), unread, file(1)));
    assert!(table.wake(&path("settled"), settled, file(1)));
    let of_settled = table.get_to_read(settled).unwrap();
    assert!(of_settled.file.version.is_settled());
    assert!(table.wake(&path("read"), read, file(1)));
    let inode = table.get_to_read(read).unwrap();
    assert_eq!(inode.file.version, unsettled(3, 5).version);
    let other = Part {
        hash: ContentHash([8; 32]),
        ..part
    };
    assert_eq!(inode.given.note([&other]), Noted::Differs);
    assert_eq!(inode.given.note([&part]), Noted::Yes);
    let now = attributes(FileKind::File, large, 1);
    assert!(table.wake(&path("large"), long, now));
    let inode = table.get_to_read(long).unwrap();
    assert_eq!(inode.given.note([&other]), Noted::Differs);
    assert_eq!(inode.given.note([&part]), Noted::Yes);
}

/// A young file has another number when its version settles, and its first one as long as that is open. Both wake.
#[test]
fn both_inodes_of_a_young_file_wake() {
    let first = Daemon::start();
    let mut young = file(1);
    young.version = young.version.standing_as(Standing::Unsettled(3));
    let before = first.learn("file", young);
    let inode = first.table.get_to_read(before).unwrap();
    let part = Part {
        range: PartRange::Block(0),
        hash: ContentHash([9; 32]),
    };
    assert_eq!(inode.given.note([&part]), Noted::Yes);
    first.table.tell_returned(&inode, [&part]);
    let after = first.learn("file", file(1));
    assert_ne!(before, after);
    let second = first.die();
    assert_eq!(second.learn("file", file(1)), after);
    assert!(second.table.wake(&path("file"), before, file(1)));
    let woken = [before, after].map(|number| second.table.get(number).unwrap());
    assert!(!woken[0].file.version.is_settled() && woken[1].file.version.is_settled());
}

/// Blocks, pieces and runs of a large file are known to all successors, also by a snapshot, and while it sleeps.
#[test]
fn all_returned_parts_of_an_unsettled_version_outlive_daemons() {
    let first = Daemon::start();
    let mut now = attributes(FileKind::File, 9 << 20, 1);
    now.version = now.version.standing_as(Standing::Unsettled(4));
    let number = first.learn("file", now.clone());
    let part = |range, hash| Part {
        range,
        hash: ContentHash([hash; 32]),
    };
    let run = |offset, hash| part(PartRange::Run { offset, len: 5 }, hash);
    let early = [
        part(PartRange::Block(3), 1),
        part(PartRange::Piece(7), 2),
        part(PartRange::Piece(256), 3),
        run(9, 4),
    ];
    let late = [
        part(PartRange::Piece(8), 5),
        part(PartRange::Block(4), 6),
        run(1, 7),
    ];
    let tell = |daemon: &Daemon, parts: &[Part]| {
        let inode = daemon.table.get_to_read(number).unwrap();
        assert_eq!(inode.given.note(parts), Noted::Yes);
        daemon.table.tell_returned(&inode, parts);
    };
    tell(&first, &early[..2]);
    first.journal.snapshot(|| first.table.tell_all()).unwrap();
    tell(&first, &early[2..]);
    let known = first.table.get_to_read(number).unwrap().given.entries();
    let second = first.die();
    second.journal.snapshot(|| second.table.tell_all()).unwrap();
    let third = second.die();
    assert!(third.table.wake(&path("file"), number, now.clone()));
    assert_eq!(
        third.table.get_to_read(number).unwrap().given.entries(),
        known
    );
    tell(&third, &late);
    let fourth = third.die();
    assert!(fourth.table.wake(&path("file"), number, now));
    let given = &fourth.table.get_to_read(number).unwrap().given;
    assert_eq!(given.entries().len(), known.len() + 2);
    for part in [&early[0], &early[3], &late[1], &late[2]] {
        assert_eq!(given.note([part]), Noted::Yes);
        let other = Part {
            hash: ContentHash([9; 32]),
            ..*part
        };
        assert_eq!(given.note([&other]), Noted::Differs);
    }
    let account = given.freeze();
    assert!(account.pieces()[0].agrees(&[early[1].hash, late[0].hash]));
    assert!(account.pieces()[1].agrees(&[early[2].hash]));
}

/// What the kernel holds: the name and the references of each number.
type Kernel = BTreeMap<u64, (String, u64)>;

fn attributes_at(name: &str) -> Attributes {
    match name.contains('f') {
        true => file(1),
        false => directory(),
    }
}

/// One look-up, forget, wake or snapshot, or a death.
fn step(mut daemon: Daemon, kernel: &mut Kernel, random: &mut Random) -> Daemon {
    let table = &daemon.table;
    match random.below(12) {
        0 => daemon = daemon.die(),
        1 => daemon.journal.snapshot(|| table.tell_all()).unwrap(),
        2..6 => {
            let files = kernel.iter().filter(|(_, (name, _))| name.contains('f'));
            let at = to_usize(random.below(20));
            let Some((number, references)) =
                files.map(|(number, (_, count))| (*number, *count)).nth(at)
            else {
                return daemon;
            };
            let count = 1 + random.below(references);
            assert_eq!(table.forget(number, count), count == references);
            // Nothing answers a forget: one that is not committed at a death leaves its reference.
            table.commit();
            kernel.get_mut(&number).unwrap().1 -= count;
            kernel.retain(|_, (_, references)| *references > 0);
        }
        6 => {
            for (number, (name, _)) in kernel {
                if table.is_asleep(*number) && random.below(2) == 0 {
                    assert!(table.wake(&path(name), *number, attributes_at(name)));
                }
            }
        }
        _ => {
            let directory = ["d", "d/e"][to_usize(random.below(2))];
            let name = format!("{directory}/f{}", random.below(20));
            let number = daemon.learn(&name, file(1));
            kernel.entry(number).or_insert((name, 0)).1 += 1;
        }
    }
    daemon
}

/// The table always has the references of the kernel, however many daemons have died.
#[test]
fn the_references_of_the_kernel_outlive_daemons() {
    for seed in 0..30 {
        let (mut random, mut kernel) = (Random(seed), Kernel::new());
        let mut daemon = Daemon::start();
        for name in ["d", "d/e"] {
            let number = daemon.learn(name, directory());
            kernel.insert(number, (name.to_owned(), 1));
        }
        for _ in 0..600 {
            daemon = step(daemon, &mut kernel, &mut random);
            let entries = daemon.table.stats().entries;
            assert_eq!(entries, kernel.len() as u64 + 1, "seed {seed}");
        }
        let last = daemon.die();
        for (number, (name, references)) in &kernel {
            assert_eq!(last.table.asleep_path(*number), Some(path(name)));
            let is_last = |count| last.table.forget(*number, count);
            if name.contains('f') {
                assert!(*references == 1 || !is_last(references - 1));
                assert!(is_last(1));
            }
        }
    }
}

/// Looks names up and forgets them, as one thread of the kernel. `held` are its references on each name.
fn use_names(table: &InodeTable, held: &mut [u64], random: &mut Random) {
    for _ in 0..40 {
        let at = to_usize(random.below(held.len() as u64));
        let name = path(&format!("d/f{at}"));
        if held[at] == 0 || random.below(2) == 0 {
            let (parent, last) = name.split().unwrap();
            table.learn(&name, table.parent(&parent), last, file(1));
            held[at] += 1;
        } else {
            let number = hashed(&name, file(1).version);
            table.forget(number, held[at]);
            held[at] = 0;
        }
        assert!(
            table.stats().bytes < 1 << 40,
            "more was given back than charged"
        );
    }
}

/// Look-ups and forgets of the same sleeping inodes, at the same time, lose no reference and no byte of the charge.
#[test]
fn threads_that_use_sleeping_inodes_agree() {
    const NAMES: usize = 3;
    for seed in 0..1000 {
        let daemon = Daemon::start();
        daemon.learn("d", directory());
        let mut held = [[0; NAMES]; 3];
        for (name, count) in held[0].iter_mut().enumerate() {
            daemon.learn(&format!("d/f{name}"), file(1));
            *count = 1;
        }
        let daemon = daemon.die();
        std::thread::scope(|scope| {
            for (thread, held) in held.iter_mut().enumerate() {
                let table = &daemon.table;
                scope.spawn(move || use_names(table, held, &mut Random(seed * 3 + thread as u64)));
            }
        });
        daemon.table.commit();
        let successor = daemon.die();
        let references = |name| held.iter().map(|held| held[name]).sum::<u64>();
        let entries = (0..NAMES).filter(|name| references(*name) > 0).count() as u64;
        assert_eq!(successor.table.stats().entries, entries + 2, "seed {seed}");
        for name in (0..NAMES).filter(|name| references(*name) > 0) {
            let number = hashed(&path(&format!("d/f{name}")), file(1).version);
            assert!(
                successor.table.forget(number, references(name)),
                "seed {seed}"
            );
        }
    }
}

/// A journal that was tampered with makes no path without an end.
#[test]
fn damaged_records_make_no_inodes() {
    let daemon = Daemon::start();
    let mut remembered = RememberedInodes::default();
    let held = |number: u64, parent: Option<u64>| InodeRecord::Held {
        number: number.into(),
        parent: parent.map(Into::into),
        name: b"a",
        state: State::Directory,
        change: [0; 8],
        references: 1,
    };
    // The first one leaves out what no earlier record has.
    for record in [
        held(4, None),
        held(5, Some(6)),
        held(6, Some(5)),
        held(8, Some(9)),
    ] {
        remembered.take(&postcard::to_allocvec(&record).unwrap());
    }
    for garbage in [&b""[..], b"\xff\xff\xff", &[0; 40]] {
        remembered.take(garbage);
    }
    let part = JournalPart::new(Arc::clone(&daemon.journal), PART);
    let table = daemon.table.journaled(part, remembered);
    assert_eq!(
        [4, 5, 6, 8].map(|number| table.asleep_path(number)),
        [const { None }; 4]
    );
    assert!(!table.is_asleep(4) && table.is_asleep(8));
}
