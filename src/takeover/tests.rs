//! Daemons over one journal, which are killed between any two bytes that they write.

use super::*;
use crate::journal::killed::Killed;
use crate::namespace::InodeTable;
use crate::num::to_usize;
use crate::testing::{Random, attributes, path};
use copperfs_fuse::{Ino, PassthroughOpen};
use copperfs_overlay::{Attributes, FileKind};
use std::collections::BTreeMap;

/// Directories with files in them. Each directory is in the one before.
const DIRECTORIES: u64 = 4;
const FILES: u64 = 12;
/// The operations of one daemon, unless it is killed before.
const STEPS: usize = 80;

/// What the successor of a daemon has to know.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct State {
    /// The references of the kernel, by the path and the state of the file.
    references: BTreeMap<(String, u8), u64>,
    /// The thread that has opened each file.
    handles: BTreeMap<u64, u32>,
    /// The inode of each open whose reads may bypass the daemon, and its local file.
    opens: BTreeMap<u64, (u64, Option<u32>)>,
}

/// The present state, and the earlier ones since the last commit. A successor may find each of them.
struct Model {
    states: Vec<State>,
    /// The number of each inode.
    numbers: BTreeMap<(String, u8), u64>,
    /// The state of each file at the origin.
    files: BTreeMap<String, u8>,
    /// The last number of an open file.
    last: u64,
}

impl Model {
    fn new() -> Self {
        Self {
            states: vec![State::default()],
            numbers: BTreeMap::new(),
            files: BTreeMap::new(),
            last: 0,
        }
    }

    fn now(&self) -> &State {
        self.states.last().unwrap()
    }

    fn change(&mut self, change: impl FnOnce(&mut State)) {
        let mut next = self.now().clone();
        change(&mut next);
        self.states.push(next);
    }

    fn committed(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }
}

struct Daemon {
    medium: Arc<Killed>,
    journal: Arc<Journal<Arc<Killed>>>,
    node: JournalPart,
    inodes: InodeTable,
    handles: HandleTable,
    opens: Opens,
    /// The opens of earlier daemons.
    inherited: Vec<PassthroughOpen>,
    generation: u32,
}

fn directory() -> Attributes {
    attributes(FileKind::Directory, 0, 1)
}

fn attributes_of(name: &str, state: u8) -> Attributes {
    match name.rsplit('/').next().unwrap().starts_with('d') {
        true => directory(),
        false => attributes(FileKind::File, 5, state),
    }
}

/// As [`Estate::tell`].
fn tell(node: &JournalPart, generation: u32) {
    node.put(&NodeRecord::Generation(generation), 0);
    node.commit();
}

impl Daemon {
    fn with(medium: &Arc<Killed>, journal: Journal<Arc<Killed>>, before: Remembered) -> Self {
        let journal = Arc::new(journal);
        let part = |tag| JournalPart::new(Arc::clone(&journal), tag);
        let [inodes, _of_the_data_mount] = before.inodes;
        let daemon = Self {
            medium: Arc::clone(medium),
            node: part(NODE),
            inodes: InodeTable::new(directory(), u64::MAX / 2).journaled(part(SOFTWARE), inodes),
            handles: HandleTable::journaled(part(HANDLES), before.generation, before.handles),
            inherited: before.opens.all(),
            opens: Opens::new(part(OPENS), before.opens),
            generation: before.generation,
            journal,
        };
        // As `Estate::inherit`.
        tell(&daemon.node, daemon.generation);
        daemon
    }

    /// Takes over what an earlier daemon has left in `medium`.
    fn follow(medium: &Arc<Killed>) -> Self {
        let mut before = Remembered::default();
        let journal = Journal::adopt(Arc::clone(medium), |record| before.take(record));
        Self::with(medium, journal.unwrap(), before)
    }

    /// The kernel looks a name up.
    fn look_up(&self, model: &mut Model, name: &str) {
        let state = *model.files.entry(name.to_owned()).or_insert(1);
        let path = path(name);
        let (parent, own) = path.split().unwrap();
        let attributes = attributes_of(name, state);
        let parent = self.inodes.parent(&parent);
        let number = self.inodes.learn(&path, parent, own, attributes);
        let key = (name.to_owned(), state);
        model.numbers.insert(key.clone(), number);
        model.change(|state| *state.references.entry(key).or_default() += 1);
        self.inodes.commit();
    }

    /// The kernel forgets some references, or all.
    fn forget(&self, model: &mut Model, random: &mut Random) {
        let held: Vec<_> = model.now().references.clone().into_iter().collect();
        let Some(((name, state), references)) =
            held.get(to_usize(random.below(held.len().max(1) as u64)))
        else {
            return;
        };
        // It keeps a directory as long as names in it.
        let inside = format!("{name}/");
        if held
            .iter()
            .any(|((other, _), _)| other.starts_with(&inside))
        {
            return;
        }
        let count = 1 + random.below(*references);
        let key = (name.clone(), *state);
        let was_last = self.inodes.forget(model.numbers[&key], count);
        assert_eq!(was_last, count == *references, "{key:?}");
        model.change(|state| {
            let left = references - count;
            match left {
                0 => state.references.remove(&key),
                left => state.references.insert(key, left),
            };
        });
    }

    /// The kernel uses an inode of an earlier daemon.
    fn wake(&self, model: &Model, random: &mut Random) {
        let held: Vec<_> = model.now().references.keys().cloned().collect();
        let Some((name, state)) = held.get(to_usize(random.below(held.len().max(1) as u64))) else {
            return;
        };
        let number = model.numbers[&(name.clone(), *state)];
        if self.inodes.is_asleep(number) {
            let now = model.files[name];
            let woke = self
                .inodes
                .wake(&path(name), number, attributes_of(name, now));
            let is_directory = attributes_of(name, now).kind == FileKind::Directory;
            assert_eq!(woke, is_directory || now == *state, "{name}");
        }
    }

    /// A file is opened, or the kernel sends the request of an earlier open again.
    fn open(&self, model: &mut Model, random: &mut Random) {
        let open = PassthroughOpen {
            ino: Ino(random.below(5)),
            handle: random.below(50),
            backing: random.below(2).checked_sub(1).map(|_| 7),
        };
        self.opens.opened(open);
        model.change(|state| {
            _ = (state.opens).insert(open.handle, (open.ino.0, open.backing));
        });
    }

    /// A file is closed, or the kernel sends the request of it again.
    fn close(&self, model: &mut Model, random: &mut Random) {
        let handle = random.below(50);
        self.opens.released(handle);
        model.change(|state| _ = state.opens.remove(&handle));
    }

    fn snapshot(&self) {
        let taken = self.journal.snapshot(|| {
            tell(&self.node, self.generation);
            self.inodes.tell_all();
            self.handles.tell_all();
            self.opens.tell_all();
        });
        taken.unwrap();
    }

    fn work(&self, model: &mut Model, random: &mut Random) {
        for _ in 0..STEPS {
            if self.medium.is_dead() {
                return;
            }
            let committed = match random.below(20) {
                0 => {
                    self.snapshot();
                    true
                }
                1 => {
                    // The file changes at the origin.
                    let name = name(random);
                    model.files.entry(name).and_modify(|state| *state += 1);
                    false
                }
                2..5 => {
                    self.wake(model, random);
                    false
                }
                5..9 => {
                    self.forget(model, random);
                    false
                }
                9 => {
                    self.open(model, random);
                    true
                }
                10 => {
                    self.close(model, random);
                    // Nothing is written of a file that is not open.
                    false
                }
                11..13 => {
                    let thread = u32::try_from(random.below(9)).unwrap();
                    let handle = self.handles.open(thread);
                    assert!(handle > model.last, "{handle} again");
                    model.last = handle;
                    model.change(|state| _ = state.handles.insert(handle, thread));
                    true
                }
                13 => {
                    let first = model.now().handles.keys().next().copied();
                    if let Some(first) = first {
                        self.handles.close(first);
                        model.change(|state| _ = state.handles.remove(&first));
                    }
                    false
                }
                _ => {
                    let name = name(random);
                    // A path is looked up name by name.
                    let ends = name.match_indices('/').map(|(at, _)| at);
                    for end in ends.chain([name.len()]) {
                        self.look_up(model, &name[..end]);
                        if self.medium.is_dead() {
                            return;
                        }
                        model.committed();
                    }
                    true
                }
            };
            if committed && !self.medium.is_dead() {
                model.committed();
            }
        }
    }

    /// What this daemon knows, of all that the model has ever had.
    fn state(&self, model: &Model) -> State {
        let references = model.numbers.iter().filter_map(|(key, number)| {
            let references = self.inodes.references(*number)?;
            assert_eq!(self.inodes.asleep_path(*number), Some(path(&key.0)));
            Some((key.clone(), references))
        });
        let handles = (model.states.iter())
            .flat_map(|state| state.handles.clone())
            .filter(|(handle, _)| self.handles.take_inherited(*handle).is_some());
        State {
            references: references.collect(),
            handles: handles.collect(),
            opens: (self.inherited.iter())
                .map(|open| (open.handle, (open.ino.0, open.backing)))
                .collect(),
        }
    }
}

/// A file in one of the directories.
fn name(random: &mut Random) -> String {
    let depth = random.below(DIRECTORIES);
    let above: String = (0..depth).map(|depth| format!("d{depth}/")).collect();
    format!("{above}f{}", random.below(FILES))
}

/// The number of first daemons, unless the environment sets it: `TAKEOVER_SEEDS=10000` takes a minute.
const SEEDS: u64 = 500;

/// A daemon that is killed between any two bytes of its journal leaves all that it has told the kernel: the inodes with
/// their references, the open files, whose numbers are not given again, and the opens that bypass it. So do its
/// successors.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the size of a test is no setting of copperfs"
)]
fn a_killed_daemon_leaves_all_that_it_has_told_the_kernel() {
    let seeds = std::env::var("TAKEOVER_SEEDS").ok();
    let seeds = seeds.map_or(SEEDS, |seeds| seeds.parse().unwrap());
    let mut deaths = 0;
    for seed in 0..seeds {
        let random = &mut Random(seed);
        // The first daemon is not killed before it has a journal.
        let medium = Killed::after(200 + to_usize(random.below(8_000)));
        let journal = Journal::create(Arc::clone(&medium)).unwrap();
        let mut daemon = Daemon::with(&medium, journal, Remembered::default());
        let mut model = Model::new();
        for life in 0..4 {
            daemon.work(&mut model, random);
            deaths += u64::from(medium.is_dead());
            medium.revive(1 + to_usize(random.below(8_000)));
            daemon = Daemon::follow(&medium);
            let found = daemon.state(&model);
            assert!(
                model.states.contains(&found),
                "seed {seed}, life {life}: {found:?} is none of {:?}",
                model.states
            );
            model.states = vec![found];
        }
    }
    assert!(deaths > seeds, "{deaths} deaths of {seeds} first daemons");
}
