//! Files that change within one step of storage's clock, or while the error of that clock is unknown.

use crate::skip;
use crate::support::fixture::noise;
use crate::support::{Mount, Scratch, Tree, check, eventually, is_root};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

/// The default for users: clocks may differ, so no file of a test counts as old.
const SKEW: [&str; 2] = ["--clock-skew", "5m"];
/// Attempts with different files.
const ATTEMPTS: usize = 40;
/// The time after which a file with whole-second times has settled.
const SETTLED: Duration = Duration::from_millis(2_300);

/// An ext4 filesystem whose inodes hold whole seconds only.
struct Coarse {
    root: PathBuf,
    /// Directories in which a file was written.
    used: AtomicUsize,
    _scratch: Scratch,
}

impl Coarse {
    fn new() -> Self {
        let scratch = Scratch::new();
        let image = scratch.path().join("image");
        let root = scratch.dir("coarse");
        fs::File::create(&image)
            .unwrap()
            .set_len(512 << 20)
            .unwrap();
        check(
            Command::new("mkfs.ext4")
                .args(["-q", "-F", "-I", "128"])
                .arg(&image),
        );
        check(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&image)
                .arg(&root),
        );
        for attempt in 0..ATTEMPTS {
            fs::create_dir(root.join(attempt.to_string())).unwrap();
        }
        Self {
            root,
            used: AtomicUsize::new(0),
            _scratch: scratch,
        }
    }

    /// Writes `first` to a new file, calls `between` with its name, and writes `then` over it, all within
    /// one second of storage's clock, so that the file's times stay the same. If the machine is too slow,
    /// tries again with another file, in a directory that the mount has not listed. Returns the name.
    fn rewritten_unseen(&self, first: &[u8], then: &[u8], between: impl Fn(&str)) -> String {
        loop {
            let attempt = self.used.fetch_add(1, Ordering::Relaxed);
            assert!(attempt < ATTEMPTS, "no two writes within one second");
            let name = format!("{attempt}/file");
            let path = self.root.join(&name);
            sleep_to_the_next_second();
            fs::write(&path, first).unwrap();
            let before = fs::metadata(&path).unwrap();
            between(&name);
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(then, 0).unwrap();
            let after = fs::metadata(&path).unwrap();
            assert_eq!((before.ctime_nsec(), after.ctime_nsec()), (0, 0));
            if (before.ctime(), before.mtime()) == (after.ctime(), after.mtime()) {
                return name;
            }
        }
    }
}

impl Drop for Coarse {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.root).status();
        assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

/// Sleeps until shortly after the next second begins, which leaves the most time before the one after it.
fn sleep_to_the_next_second() {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let left = Duration::from_nanos(1_020_000_000 - u64::from(since.subsec_nanos()));
    std::thread::sleep(left);
}

fn stale(error: &std::io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::STALE)
}

/// An earlier version kept the bytes of the first look under the version that the second look found.
#[test]
fn a_file_rewritten_within_a_second_of_its_clock_is_read_anew_once_it_settles() {
    if !is_root() {
        skip!("needs root");
    }
    let (old, new) = (noise(1, 100_000), noise(2, 100_000));
    for ttl in [&[][..], &["--freshness", "ttl=1s"]] {
        let (storage, scratch) = (Coarse::new(), Scratch::new());
        let disk = scratch.dir("disk");
        let disk = format!("{}:1GiB", disk.display());
        let flags = [&["--disk", &disk], &SKEW[..], ttl].concat();
        let mount = Mount::with(&storage.root, &flags);
        let name = storage.rewritten_unseen(&old, &new, |name| {
            assert!(fs::read(mount.path(name)).unwrap() == old);
        });
        std::thread::sleep(SETTLED);
        assert!(fs::read(mount.path(&name)).unwrap() == new, "{ttl:?}");
        drop(mount);
        let mount = Mount::with(&storage.root, &flags);
        assert!(
            fs::read(mount.path(&name)).unwrap() == new,
            "from the disk, {ttl:?}"
        );
    }
}

/// An open file of 80 MiB: its head is read, it is rewritten within the second, and then its tail is read.
#[test]
fn an_open_large_file_rewritten_within_a_second_of_its_clock_never_mixes() {
    if !is_root() {
        skip!("needs root");
    }
    const LEN: usize = 80 << 20;
    const PART: usize = 1 << 20;
    let (old, new) = (vec![b'A'; LEN], vec![b'B'; LEN]);
    for ttl in [&[][..], &["--freshness", "ttl=1s"]] {
        let storage = Coarse::new();
        fs::create_dir(storage.root.join("dir")).unwrap();
        let mount = Mount::with(&storage.root, &[&SKEW[..], ttl].concat());
        let part = |file: &fs::File, at: usize| {
            let mut bytes = vec![0; PART];
            match file.read_exact_at(&mut bytes, at as u64) {
                Ok(()) => bytes,
                Err(error) => {
                    assert!(stale(&error), "{error}");
                    Vec::new()
                }
            }
        };
        // In a directory that the mount has not listed.
        let path = storage.root.join("dir/file");
        sleep_to_the_next_second();
        fs::write(&path, &old).unwrap();
        let file = fs::File::open(mount.path("dir/file")).unwrap();
        let head = part(&file, 0);
        let writer = fs::File::options().write(true).open(&path).unwrap();
        writer.write_all_at(&new, 0).unwrap();
        let tail = part(&file, LEN - PART);
        // An empty part means that the reader got an error.
        let of = |part: &[u8], state: &[u8]| part.is_empty() || part == &state[..PART];
        let (is_old, is_new) = (
            of(&head, &old) && of(&tail, &old),
            of(&head, &new) && of(&tail, &new),
        );
        assert!(
            is_old || is_new,
            "{ttl:?}: the head of one state and the tail of another"
        );
    }
}

/// Two roots look at storage independently: bytes that one of them read before a file had settled are used
/// on no node as those of the settled file.
#[test]
fn two_roots_give_what_a_file_settled_to() {
    if !is_root() {
        skip!("needs root");
    }
    let (old, new) = (noise(1, 100_000), noise(2, 100_000));
    let storage = Coarse::new();
    let flags = [&["--roots", "2"], &SKEW[..]].concat();
    let tree = Tree::launch(4, 1, &storage.root, &flags);
    let mut names = Vec::new();
    for _ in 0..4 {
        // Every node reads the file before it is rewritten, one of them under the other root's look.
        names.push(storage.rewritten_unseen(&old, &new, |name| {
            for rank in 0..4 {
                assert!(fs::read(tree.path(rank, name)).unwrap() == old);
            }
        }));
    }
    std::thread::sleep(SETTLED);
    for name in names {
        for rank in 0..4 {
            let read = fs::read(tree.path(rank, &name));
            assert!(read.unwrap() == new, "{name} on rank {rank}");
        }
    }
}

/// The cost of an old tree to storage, and the additional cost of a young tree: one more look at each file,
/// in one batch, and at most a second read.
#[test]
fn a_young_tree_costs_one_more_look_and_at_most_one_more_read() {
    if !is_root() {
        skip!("needs root");
    }
    const FILES: u64 = 40;
    let origin = Scratch::new();
    for n in 0..FILES {
        origin.file(&format!("dir/{n}"), "x".repeat(5_000));
    }
    origin.settle();
    let read_all = |mount: &Mount| {
        for n in 0..FILES {
            let read = fs::read(mount.path(format!("dir/{n}"))).unwrap();
            assert_eq!(read.len(), 5_000);
        }
    };
    let old = Mount::with(origin.path(), &["--bundles=false"]);
    read_all(&old);
    let costs = old.stats();
    assert_eq!(costs.get("origin.stats"), 0);
    assert_eq!(costs.get("origin.opens"), FILES);
    let listings = costs.get("origin.listings");

    let young = Mount::with(origin.path(), &[&["--bundles=false"], &SKEW[..]].concat());
    assert_eq!(
        fs::read_dir(young.path("dir")).unwrap().count() as u64,
        FILES
    );
    eventually(Duration::from_secs(10), "a second look", || {
        young.stats().get("origin.stats") >= FILES
    });
    // Versions of the second look settle.
    std::thread::sleep(Duration::from_secs(1));
    read_all(&young);
    let costs = young.stats();
    assert_eq!(costs.get("origin.listings"), listings);
    assert_eq!(costs.get("origin.stats"), FILES, "one look more");
    assert_eq!(
        costs.get("origin.opens"),
        FILES,
        "read under its settled version"
    );
    // Gives the node time for another look, which would be wrong.
    std::thread::sleep(Duration::from_secs(1));
    read_all(&young);
    assert_eq!(young.stats().get("origin.opens"), FILES);
    assert_eq!(young.stats().get("origin.stats"), FILES);
}
