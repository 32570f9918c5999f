//! The store on a disk, with real mounts: the blocks of a killed daemon are found again, damaged blocks are never served,
//! and equal files are stored once. Trouble with the disk is in `store/trouble.rs`, passthrough in `store/whole.rs`.

mod old_bytes;
mod trouble;
mod whole;

use crate::skip;
use crate::support::fixture::{checksums, files_below, noise};
use crate::support::kernel::forget_pages;
use crate::support::{Mount, Scratch, Stats, Tree, copperfs, eventually, is_root};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);

/// A directory for a store, an origin, and a mount point that several daemons use one after another.
struct Place {
    origin: Scratch,
    scratch: Scratch,
    /// What the store may take.
    size: &'static str,
}

impl Place {
    fn of(origin: Scratch) -> Self {
        origin.settle();
        let scratch = Scratch::new();
        scratch.dir("mnt");
        Self {
            origin,
            scratch,
            size: "2GiB",
        }
    }

    fn disk(&self) -> PathBuf {
        self.scratch.path().join("disk")
    }

    fn command(&self, disk: &Path, flags: &[&str]) -> std::process::Command {
        let origin = format!("/=file://{}", self.origin.path().display());
        let mut mount = copperfs(["mount", "--origin", &origin, "--disk"]);
        mount
            .arg(format!("{}:{}", disk.display(), self.size))
            .args(flags);
        mount
    }

    fn mount(&self, flags: &[&str]) -> Mount {
        self.mount_on(&self.disk(), flags)
    }

    fn mount_on(&self, disk: &Path, flags: &[&str]) -> Mount {
        let point = self.scratch.path().join("mnt");
        Mount::at(&point, &mut self.command(disk, flags))
    }

    /// The content files in the store.
    fn contents(&self) -> Vec<PathBuf> {
        let mut files = files_below(&self.disk().join("content"));
        files.extend(files_below(&self.disk().join("whole")));
        files.sort();
        files
    }
}

fn bytes_of(files: &[PathBuf]) -> u64 {
    files
        .iter()
        .map(|file| fs::metadata(file).unwrap().len())
        .sum()
}

/// `small` files of some KB in directories of 50, and `large` ones of 6 MB.
fn many(small: u64, large: u64) -> Scratch {
    let origin = Scratch::new();
    for number in 0..small {
        let size = 1000 + usize::try_from(number * 97 % 16_000).unwrap();
        let name = format!("small/{}/f{number}", number / 50);
        origin.file(&name, noise(number + 1, size));
    }
    for number in 0..large {
        let name = format!("large/f{number}");
        origin.file(&name, noise(1 << 20 | number, 6_000_001));
    }
    origin
}

/// Waits until the store has this many content files.
#[track_caller]
fn knows(mount: &Mount, entries: u64) {
    let what = format!("{entries} content files are known");
    eventually(SOON, what, || mount.stats().get("disk.entries") >= entries);
}

/// Everything that passed by is in the store: the writer's queue is empty.
#[track_caller]
fn kept(mount: &Mount) -> Stats {
    let mut last = mount.stats();
    eventually(SOON, "it writes no more", || {
        // A queue that writes no entry for this long is empty; there is no event for that.
        std::thread::sleep(Duration::from_millis(100));
        let now = mount.stats();
        let same = now.get("disk.entries") == last.get("disk.entries");
        last = now;
        same
    });
    last
}

fn kill(mount: &Mount) {
    mount.kill();
    eventually(SOON, "it is dead", || !mount.is_alive());
}

/// SIGKILL in the middle of filling: nothing that was on the disk by then is fetched again, with the
/// index and without, and every byte is right.
#[test]
fn a_killed_daemon_leaves_what_it_had() {
    if !is_root() {
        skip!("needs root");
    }
    let place = Place::of(many(2000, 4));
    let expected = checksums(place.origin.path());
    let total = bytes_of(&files_below(place.origin.path()));
    for without_index in [false, true] {
        if without_index {
            fs::remove_dir_all(place.disk()).unwrap();
        }
        let filling = place.mount(&[]);
        let point = filling.node.point.clone();
        let readers: Vec<_> = (0..4)
            .map(|number| {
                let files: Vec<_> = files_below(place.origin.path())
                    .into_iter()
                    .skip(number)
                    .step_by(4)
                    .map(|file| point.join(file.strip_prefix(place.origin.path()).unwrap()))
                    .collect();
                // Reads that fail are those after the kill.
                std::thread::spawn(move || {
                    files.iter().map_while(|file| fs::read(file).ok()).count()
                })
            })
            .collect();
        eventually(SOON, "it fills", || place.contents().len() > 60);
        kill(&filling);
        let read: usize = readers
            .into_iter()
            .map(|reader| reader.join().unwrap())
            .sum();
        assert!(read < 2004, "it was killed too late");
        let contents = place.contents();
        let there = bytes_of(&contents);
        if without_index {
            fs::remove_file(place.disk().join("index.log")).unwrap();
        }
        let again = place.mount(&[]);
        knows(&again, contents.len() as u64);
        assert_eq!(checksums(&again.node.point), expected);
        let stats = again.stats();
        let fetched = stats.get("origin.read_bytes");
        let spared = total.saturating_sub(fetched);
        eprintln!(
            "killed with {} files and {there} bytes of {total} in the store: {fetched} fetched",
            contents.len()
        );
        assert!(
            spared * 100 >= there * 95,
            "of {there} bytes only {spared} were not fetched again"
        );
        assert_eq!(stats.get("disk.damaged"), 0);
        again.unmount();
    }
}

/// One flipped byte in every tenth content file, every tenth torn, then the index lost too: all of it is
/// found when it is read, counted, and fetched again, and nothing wrong is served.
#[test]
fn damage_is_found_counted_and_fetched_again() {
    if !is_root() {
        skip!("needs root");
    }
    let place = Place::of(many(300, 3));
    let expected = checksums(place.origin.path());
    let fill = place.mount(&[]);
    assert_eq!(checksums(&fill.node.point), expected);
    kept(&fill);
    fill.unmount();
    for round in 0..3 {
        let contents = place.contents();
        assert_eq!(contents.len(), 300 + 3 * 6);
        let mut damaged = 0;
        let mut lost = 0;
        for (number, file) in contents.iter().enumerate() {
            let open = fs::File::options()
                .read(true)
                .write(true)
                .open(file)
                .unwrap();
            let len = open.metadata().unwrap().len();
            match number % 10 {
                0 => {
                    let at = (number as u64 * 7919) % len;
                    let mut byte = [0];
                    open.read_exact_at(&mut byte, at).unwrap();
                    open.write_all_at(&[byte[0] ^ 1], at).unwrap();
                }
                5 => open.set_len(len / 2).unwrap(),
                // Gone is not damaged.
                7 if round == 1 => fs::remove_file(file).unwrap(),
                _ => continue,
            }
            lost += len;
            damaged += u64::from(number % 10 != 7);
        }
        if round == 2 {
            fs::remove_file(place.disk().join("index.log")).unwrap();
        }
        let again = place.mount(&[]);
        if round != 1 {
            knows(&again, contents.len() as u64);
        }
        assert_eq!(checksums(&again.node.point), expected, "round {round}");
        let stats = kept(&again);
        let found = stats.get("disk.damaged");
        let fetched = stats.get("origin.read_bytes");
        eprintln!("round {round}: {damaged} damaged, {found} found, {fetched} of {lost} fetched");
        if round == 1 {
            // Missing ones are counted when a reader finds them before the sweep does.
            assert!(found >= damaged, "round {round}");
        } else {
            assert_eq!(found, damaged, "round {round}");
        }
        assert!(fetched >= lost, "round {round}: nothing was fetched for it");
        assert_eq!(place.contents().len(), contents.len(), "round {round}");
        again.unmount();
        // Whole again: from the disk alone.
        let whole = place.mount(&[]);
        assert_eq!(checksums(&whole.node.point), expected, "round {round}");
        assert_eq!(whole.stats().get("origin.read_bytes"), 0, "round {round}");
        assert_eq!(whole.stats().get("disk.damaged"), 0, "round {round}");
        whole.unmount();
    }
}

/// One directory, one daemon; and nothing is done to a directory that is no store, or to one of a later
/// format. What an older format left is thrown away.
#[test]
fn whose_directory_it_is() {
    if !is_root() {
        skip!("needs root");
    }
    let place = Place::of(many(10, 0));
    let first = place.mount(&[]);
    let expected = checksums(&first.node.point);
    let point = place.scratch.dir("second");
    let refused = Mount::try_at(&point, &mut place.command(&place.disk(), &[])).unwrap_err();
    let said = refused.refused();
    let holder = format!("process {}", first.pid.as_raw_nonzero());
    assert!(said.contains(&holder), "{said}");
    assert_eq!(checksums(&first.node.point), expected);
    kept(&first);
    first.unmount();

    let foreign = place.scratch.file("foreign/precious", "mine");
    let directory = foreign.parent().unwrap();
    let refused = Mount::try_at(&point, &mut place.command(directory, &[])).unwrap_err();
    assert!(refused.refused().contains("not empty"), "{refused:?}");
    assert_eq!(fs::read(&foreign).unwrap(), b"mine");
    assert_eq!(fs::read_dir(directory).unwrap().count(), 1);

    let identity = place.disk().join("copperfs-store");
    fs::write(&identity, "copperfs store\nformat 99\n").unwrap();
    let refused = Mount::try_at(&point, &mut place.command(&place.disk(), &[])).unwrap_err();
    assert!(refused.refused().contains("format 99"), "{refused:?}");
    assert_eq!(place.contents().len(), 10);

    fs::write(&identity, "copperfs store\nformat 0\n").unwrap();
    let anew = place.mount(&[]);
    assert_eq!(place.contents().len(), 0, "of an older format");
    assert_eq!(checksums(&anew.node.point), expected);
    kept(&anew);
    assert_eq!(place.contents().len(), 10);
}

/// Equal files lie there once, whatever they are called.
#[test]
fn equal_files_are_stored_once() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    for number in 0..20 {
        origin.file(&format!("a/f{number}"), noise(number, 30_000));
        origin.file(&format!("b/deep/g{number}"), noise(number, 30_000));
    }
    let place = Place::of(origin);
    let mount = place.mount(&[]);
    assert_eq!(checksums(&mount.node.point), checksums(place.origin.path()));
    let stats = kept(&mount);
    assert_eq!(stats.get("disk.entries"), 20);
    assert_eq!(stats.get("disk.shared"), 20);
    assert_eq!(place.contents().len(), 20);
}

/// After a restart every node of a tree reads all from its own disk: no file's bytes travel.
#[test]
fn a_restarted_tree_reads_its_own_disks() {
    if !is_root() {
        skip!("needs root");
    }
    let place = Place::of(many(200, 2));
    let expected = checksums(place.origin.path());
    let disk = format!("{}/{{rank}}:1GiB", place.scratch.dir("disks").display());
    let flags = ["--disk", disk.as_str()];
    let first = Tree::launch(4, 2, place.origin.path(), &flags);
    for rank in 0..4 {
        assert_eq!(checksums(&first.nodes[rank].point), expected);
    }
    for node in &first.nodes {
        eventually(SOON, "its store is full", || {
            node.stats().get("disk.entries") == 200 + 2 * 6
        });
    }
    drop(first);
    let again = Tree::launch(4, 2, place.origin.path(), &flags);
    for rank in [3, 0, 1, 2] {
        assert_eq!(checksums(&again.nodes[rank].point), expected, "{rank}");
    }
    for (rank, stats) in again.stats().iter().enumerate() {
        assert_eq!(stats.get("origin.read_bytes"), 0, "rank {rank}");
        assert_eq!(stats.get("disk.misses"), 0, "rank {rank}");
        assert!(stats.get("disk.hits") >= 200, "rank {rank}");
    }
}

/// A mount over a store with very many files answers at once.
#[test]
fn a_mount_over_a_large_store_answers_soon() {
    if !is_root() {
        skip!("needs root");
    }
    const FILES: u64 = 10_000;
    let origin = Scratch::new();
    for number in 0..FILES {
        let name = format!("d{}/f{number}", number / 1000);
        origin.file(&name, number.to_le_bytes());
    }
    let place = Place::of(origin);
    let start = Instant::now();
    let fill = place.mount(&[]);
    assert_eq!(
        fs::read(fill.path("d4/f4000")).unwrap(),
        4000_u64.to_le_bytes()
    );
    let empty = start.elapsed();
    let start = Instant::now();
    for number in 0..FILES {
        let path = fill.path(format!("d{}/f{number}", number / 1000));
        assert_eq!(fs::read(path).unwrap(), number.to_le_bytes());
    }
    eprintln!("{FILES} files were read after {:?}", start.elapsed());
    assert_eq!(kept(&fill).get("disk.entries"), FILES);
    kill(&fill);
    let start = Instant::now();
    let again = place.mount(&[]);
    let first = fs::read(again.path("d3/f3000")).unwrap();
    let took = start.elapsed();
    assert_eq!(first, 3000_u64.to_le_bytes());
    assert_eq!(again.stats().get("origin.read_bytes"), 0);
    eprintln!(
        "mounted over {FILES} files, and one of them read, after {took:?}; over none {empty:?}"
    );
}

/// What was cleared is really fetched again, and not found after a restart either.
#[test]
fn a_clear_reaches_the_disk_and_lasts() {
    if !is_root() {
        skip!("needs root");
    }
    let place = Place::of(many(100, 0));
    let mount = place.mount(&[]);
    let expected = checksums(&mount.node.point);
    kept(&mount);
    let below = |mount: &Mount| {
        for file in files_below(&mount.path("small/1")) {
            forget_pages(&fs::File::open(&file).unwrap());
            fs::read(file).unwrap();
        }
    };
    let directory = bytes_of(&files_below(&place.origin.path().join("small/1")));
    let before = mount.stats();
    mount.clear("/small/1");
    below(&mount);
    let fetched = mount.stats().since(&before, "origin.read_bytes");
    assert_eq!(fetched, directory, "all that was cleared and no more");
    kept(&mount);
    mount.clear("/small/1");
    mount.unmount();

    let again = place.mount(&[]);
    assert_eq!(checksums(&again.node.point), expected);
    assert_eq!(again.stats().get("origin.read_bytes"), directory);
    again.unmount();
}
