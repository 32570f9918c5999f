//! The guesses about the files of a directory, without caches and I/O.

use super::*;

/// A directory of small files of the same size, listed in the order of their names.
struct Files {
    by_name: Vec<u32>,
    bytes: u64,
}

impl Files {
    fn new(count: u32, bytes: u64) -> Self {
        let by_name = (0..count).collect();
        Self { by_name, bytes }
    }

    /// The guess after the file at `position` is read. Its files count as requested.
    fn read(&self, readers: &Readers, usefulness: &Usefulness, position: usize) -> Guess {
        self.read_entered(readers, usefulness, position, false)
    }

    fn read_entered(
        &self,
        readers: &Readers,
        usefulness: &Usefulness,
        position: usize,
        has_entered: bool,
    ) -> Guess {
        let limits = Limits {
            cache_bytes: 1 << 30,
            may_begin: true,
        };
        let guess = readers.on_read(position, || has_entered, self, usefulness, limits);
        let guess = guess.unwrap_or_default();
        for batch in &guess.batches {
            let positions = batch.positions.iter().copied();
            let unread: Vec<usize> = positions.filter(|&at| !readers.marks.is_read(at)).collect();
            readers.marks.prefetch(&unread, self.by_name.len());
            let (files, bytes) = (unread.len() as u64, unread.len() as u64 * self.bytes);
            usefulness.add_prefetched(1, files, bytes, batch.is_shuffled);
        }
        guess
    }
}

impl Entries for Files {
    fn by_name(&self) -> &[u32] {
        &self.by_name
    }

    fn rank(&self, position: usize) -> usize {
        position
    }

    fn kind(&self, _position: usize) -> FileKind {
        FileKind::File
    }

    fn small_file_bytes(&self, position: usize) -> Option<u64> {
        (position < self.by_name.len()).then_some(self.bytes)
    }
}

fn positions(guess: &Guess) -> Vec<usize> {
    let batches = guess.batches.iter();
    batches.flat_map(|batch| batch.positions.clone()).collect()
}

#[test]
fn a_small_directory_is_prefetched_whole_at_the_second_file() {
    let (files, readers, usefulness) = (
        Files::new(20, 1000),
        Readers::default(),
        Usefulness::default(),
    );
    assert_eq!(files.read(&readers, &usefulness, 4), Guess::default());
    let guess = files.read(&readers, &usefulness, 9);
    let mut named = positions(&guess);
    named.sort_unstable();
    let all_but_the_first: Vec<usize> = (0..20).filter(|at| *at != 4).collect();
    assert_eq!(named, all_but_the_first);
    assert_eq!(
        files.read(&readers, &usefulness, 9),
        Guess::default(),
        "read before"
    );
    assert_eq!(
        positions(&files.read(&readers, &usefulness, 10)),
        [] as [usize; 0]
    );
}

/// The files of many directories in no order: the first guesses seem wrong, because their files come late.
#[test]
fn many_small_directories_are_prefetched_for_readers_in_no_order() {
    const DIRECTORIES: usize = 50;
    let files = Files::new(100, 20_480);
    let readers: Vec<Readers> = (0..DIRECTORIES).map(|_| Readers::default()).collect();
    let usefulness = Usefulness::default();
    let mut requested = 0;
    for turn in 0..8 {
        for (number, readers) in readers.iter().enumerate() {
            let position = (turn * 37 + number * 11) % 100;
            let guess = files.read(readers, &usefulness, position);
            let shuffled = guess.batches.iter().filter(|batch| batch.is_shuffled);
            if turn < 3 {
                assert_eq!(shuffled.count(), 0, "not before the fourth file");
            }
            requested += positions(&guess).len();
        }
        if turn == 2 {
            // As much as is granted before any of it was read.
            assert!((300..800).contains(&requested), "{requested}");
        }
    }
    assert!(
        requested > 99 * DIRECTORIES - 8 * DIRECTORIES,
        "{requested}"
    );
    assert!(usefulness.shuffled_unread() <= 128 << 20);
}

#[test]
fn a_large_directory_is_prefetched_in_the_order_of_its_reader() {
    let (files, readers, usefulness) = (
        Files::new(2000, 1000),
        Readers::default(),
        Usefulness::default(),
    );
    let mut named = Vec::new();
    for position in 0..100 {
        named.extend(positions(&files.read(&readers, &usefulness, position)));
    }
    let mut distinct = named.clone();
    distinct.sort_unstable();
    distinct.dedup();
    // The file that is being read is named with each batch, to join its request.
    assert!(
        named.len() - distinct.len() <= 12,
        "{}",
        named.len() - distinct.len()
    );
    assert!((100..=500).contains(distinct.last().unwrap()));
    assert!(usefulness.stats().wasted_bytes <= 400 * 1000);
}

#[test]
fn a_reader_in_order_waits_for_no_file_when_its_window_reaches_the_credit() {
    let (files, readers, usefulness) = (
        Files::new(5000, 20_480),
        Readers::default(),
        Usefulness::default(),
    );
    let mut prefetched = [false; 5000];
    let (mut waits, mut refusals) = (Vec::new(), 0);
    for position in 0..4000 {
        // A window of 1,024 such files is more than the credit of 8 MiB.
        refusals += usize::from(!usefulness.pays());
        if !prefetched[position] {
            waits.push(position);
        }
        for at in positions(&files.read(&readers, &usefulness, position)) {
            prefetched[at] = true;
        }
    }
    assert!(refusals > 100, "{refusals}");
    assert_eq!(
        waits,
        (0..8).collect::<Vec<_>>(),
        "the run that is not long enough yet"
    );
}

#[test]
fn a_shuffled_reader_gets_growing_batches_within_the_credit() {
    let (files, readers, usefulness) = (
        Files::new(4000, 100_000),
        Readers::default(),
        Usefulness::default(),
    );
    let mut batches = Vec::new();
    for step in 0..40 {
        let guess = files.read(&readers, &usefulness, step * 37 % 4000);
        batches.extend(
            guess
                .batches
                .iter()
                .map(|batch| (step, batch.positions.len())),
        );
        assert!(guess.batches.iter().all(|batch| batch.is_shuffled));
        assert!(usefulness.shuffled_unread() <= 128 << 20);
    }
    let steps: Vec<usize> = batches.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [7, 15, 31]);
    assert!(batches[0].1 < batches[1].1 && batches[1].1 < batches[2].1);
}

#[test]
fn a_reader_that_enters_from_the_previous_directory_has_the_next_ones_prefetched() {
    let (first, readers, usefulness) = (
        Files::new(30, 1000),
        Readers::default(),
        Usefulness::default(),
    );
    let ends: Vec<bool> = (0..30)
        .map(|position| first.read(&readers, &usefulness, position).at_end)
        .collect();
    assert_eq!(ends.iter().position(|end| *end), Some(29));

    let (second, next) = (Files::new(30, 1000), Readers::default());
    let guess = second.read_entered(&next, &usefulness, 0, true);
    assert_eq!(guess.next_directories, DIRECTORIES_AHEAD);
    assert_eq!(positions(&guess).len(), 30, "at its first file already");
    let elsewhere = second.read_entered(&Readers::default(), &usefulness, 5, true);
    assert_eq!(elsewhere.next_directories, 0, "not from its beginning");
}

#[test]
fn nothing_is_prefetched_when_the_guesses_were_wrong() {
    let usefulness = Usefulness::default();
    usefulness.add_prefetched(1, 100, 9 << 20, false);
    let (files, readers) = (Files::new(20, 1000), Readers::default());
    files.read(&readers, &usefulness, 0);
    assert_eq!(files.read(&readers, &usefulness, 1).batches, []);
}
