//! A daemon that dies is followed by another one, which takes its mounts over: readers wait, and go on.

mod jobs;

use crate::origins::Hanging;
use crate::skip;
use crate::support::command::{Background, has_program, python};
use crate::support::datasets::SOON;
use crate::support::fixture::noise;
use crate::support::kernel::{forget_pages, has_no_passthrough, mount_at, passed_through, signal};
use crate::support::takeover::{Daemons, Followed, processes, read_cold, sends_no_request_again};
use crate::support::{Scratch, Tree, check, copperfs, eventually, is_root};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FILES: usize = 120;
const BYTES: usize = 20_000;

/// A directory with files of noise, in ten directories. They are young, so that their times do not count yet.
fn files() -> Scratch {
    let origin = Scratch::new();
    for number in 0..FILES {
        origin.file(&name(number), noise(number as u64, BYTES));
    }
    origin.settle();
    origin
}

fn name(number: usize) -> String {
    format!("d{}/f{number}", number % 10)
}

/// Readers that read and list all files again and again, past the page cache.
#[derive(Default)]
struct Readers {
    stop: AtomicBool,
    files: AtomicU64,
    /// The longest time of one file, in milliseconds.
    longest_ms: AtomicU64,
    /// The kernel does not send requests again: those in hand at a death fail.
    is_old_kernel: bool,
    /// Requests that have failed so.
    failed: AtomicU64,
    deaths: AtomicU64,
}

impl Readers {
    /// Reads until it is told to stop. Returns the first error.
    fn read_all(&self, mount: &Path, truth: &Path) -> Result<(), String> {
        while !self.stop.load(Ordering::Relaxed) {
            for number in 0..FILES {
                let (name, begun) = (name(number), Instant::now());
                let read = match read_cold(&mount.join(&name)) {
                    Err(error) if self.is_in_hand(&error) => continue,
                    read => read.map_err(|error| format!("{name}: {error}"))?,
                };
                let took = u64::try_from(begun.elapsed().as_millis()).unwrap();
                self.longest_ms.fetch_max(took, Ordering::Relaxed);
                if read != fs::read(truth.join(&name)).unwrap() {
                    return Err(format!("{name} has other bytes"));
                }
                self.files.fetch_add(1, Ordering::Relaxed);
            }
            for directory in 0..10 {
                let listed = fs::read_dir(mount.join(format!("d{directory}")));
                let found = listed.and_then(Iterator::collect::<Result<Vec<_>, _>>);
                match found.map(|entries| entries.len()) {
                    Ok(count) if count == FILES / 10 => {}
                    Err(error) if self.is_in_hand(&error) => {}
                    found => return Err(format!("d{directory} has {found:?} files")),
                }
            }
        }
        Ok(())
    }

    /// Returns whether this is the error of a request that was in hand at a death, and counts it.
    fn is_in_hand(&self, error: &std::io::Error) -> bool {
        let is_failed = self.is_old_kernel && Errno::from_io_error(error) == Some(Errno::IO);
        self.failed.fetch_add(is_failed.into(), Ordering::Relaxed);
        is_failed
    }

    /// Waits, after a death, until more files are read.
    #[track_caller]
    fn go_on(&self) {
        self.deaths.fetch_add(1, Ordering::Relaxed);
        let before = self.files.load(Ordering::Relaxed);
        eventually(SOON, "files are read", || {
            self.files.load(Ordering::Relaxed) > before + FILES as u64
        });
    }
}

/// Does `work` while all files are read through each of `mounts`. No read may fail.
#[track_caller]
fn while_files_are_read(mounts: &[&Path], truth: &Path, work: impl FnOnce(&Readers)) {
    let readers = Readers {
        is_old_kernel: sends_no_request_again(),
        ..Readers::default()
    };
    let outcome = std::thread::scope(|scope| {
        let read = |mount: &PathBuf| readers.read_all(mount, truth);
        let mounts: Vec<PathBuf> = mounts.iter().map(|mount| mount.to_path_buf()).collect();
        let reading: Vec<_> = mounts
            .into_iter()
            .map(|mount| scope.spawn(move || read(&mount)))
            .collect();
        let worked = catch_unwind(AssertUnwindSafe(|| work(&readers)));
        readers.stop.store(true, Ordering::Relaxed);
        for reader in reading {
            reader.join().unwrap().unwrap();
        }
        worked
    });
    eprintln!(
        "{:?} files were read, the slowest in {:?} ms",
        readers.files, readers.longest_ms
    );
    outcome.unwrap_or_else(|panic| resume_unwind(panic));
    let (failed, deaths) = (readers.failed.into_inner(), readers.deaths.into_inner());
    let in_hand = deaths * mounts.len() as u64;
    assert!(
        failed <= in_hand,
        "{failed} requests failed at {deaths} deaths"
    );
}

/// Readers, open files, working directories, inode numbers and locks go on when the daemon is killed. The successor dies,
/// too, and so on.
#[test]
fn readers_go_on_when_the_daemon_is_killed() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = files();
    let mut followed = Followed::start(origin.path(), &[]);
    let held = File::open(followed.point.join(name(7))).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let directory = File::open(followed.point.join("d3")).unwrap();
    let number_of = |number| {
        fs::metadata(followed.point.join(name(number)))
            .unwrap()
            .ino()
    };
    let old_numbers: Vec<u64> = (0..FILES).map(number_of).collect();
    let (mount, truth) = (followed.point.clone(), origin.path());
    let mounts = [&*mount, &mount, &mount];
    while_files_are_read(&mounts, truth, |files| {
        for _ in 0..4 {
            followed.kill();
            files.go_on();
        }
    });
    forget_pages(&held);
    let mut bytes = vec![0; BYTES];
    held.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == fs::read(truth.join(name(7))).unwrap());
    let other = File::open(mount.join(name(7))).unwrap();
    let refused = flock(&other, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(Errno::WOULDBLOCK), "the lock is held");
    let shown = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&directory)
    );
    assert_eq!(fs::read_dir(shown).unwrap().flatten().count(), FILES / 10);
    let number_of = |number| fs::metadata(mount.join(name(number))).unwrap().ino();
    let numbers: Vec<u64> = (0..FILES).map(number_of).collect();
    assert_eq!(numbers, old_numbers, "inode numbers stay");
    drop((held, other, directory));
    followed.end();
}

/// Every node of a tree dies in turn, while files are read on all of them: the root, which alone reads storage, an inner
/// node, and a leaf.
#[test]
fn a_tree_goes_on_when_its_nodes_are_killed() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = files();
    let tree = Tree::launch(4, 2, origin.path(), &["--takeover"]);
    let mut nodes: Vec<Daemons> = tree.nodes.iter().map(Daemons::of).collect();
    let mounts: Vec<PathBuf> = nodes.iter().map(|node| node.point.clone()).collect();
    let mounts: Vec<&Path> = mounts.iter().map(PathBuf::as_path).collect();
    while_files_are_read(&mounts, origin.path(), |files| {
        for rank in [0, 1, 3, 0, 1] {
            nodes[rank].kill();
            files.go_on();
        }
    });
    let base = tree.base();
    check(copperfs(["unmount", "--all", "--force"]).arg(base));
    nodes.iter().for_each(Daemons::are_gone);
}

/// A daemon that dies while storage hangs is followed by another one at once. Readers wait for storage, as before.
#[test]
fn storage_that_hangs_does_not_stop_a_take_over() {
    if !is_root() {
        skip!("needs root");
    }
    if !has_program("bindfs") {
        skip!("bindfs is not installed");
    }
    let storage = Hanging::start();
    storage.real.file("files/dir/file", "content");
    storage.real.settle();
    let mut followed = Followed::start(&storage.point, &["--request-timeout", "5m"]);
    assert_eq!(
        fs::read(followed.point.join("dir/file")).unwrap(),
        b"content"
    );
    storage.server.signal(Signal::STOP);
    let file = followed.point.join("dir/file");
    let reader = std::thread::spawn(move || read_cold(&file));
    followed.kill();
    followed.kill();
    storage.server.signal(Signal::CONT);
    assert_eq!(reader.join().unwrap().unwrap(), b"content");
    followed.end();
}

/// No count of `stats` becomes smaller when the daemon is replaced, also if monitoring asks just before and just after.
#[test]
fn counts_go_on() {
    if !is_root() {
        skip!("needs root");
    }
    const COUNTS: [&str; 4] = [
        "origin.opens",
        "origin.read_bytes",
        "fuse.software.requests.read",
        "fuse.software.latency_seconds.read.later.count",
    ];
    let origin = files();
    let mut followed = Followed::start(origin.path(), &[]);
    let mut before = vec![0; COUNTS.len()];
    for round in 0..3 {
        for number in 0..FILES {
            read_cold(&followed.point.join(name(number))).unwrap();
        }
        let stats = followed.mount.stats();
        let now: Vec<u64> = COUNTS.iter().map(|count| stats.get(count)).collect();
        let grown = now.iter().zip(&before).all(|(now, before)| now > before);
        assert!(grown, "{before:?}, then {now:?}");
        followed.kill();
        assert_eq!(
            followed.mount.stats().get("takeover.daemons_before"),
            round + 1
        );
        let stats = followed.mount.stats();
        let after: Vec<u64> = COUNTS.iter().map(|count| stats.get(count)).collect();
        let goes_on = after.iter().zip(&now).all(|(after, now)| after >= now);
        assert!(goes_on, "{now:?}, then {after:?}");
        before = after;
    }
    followed.end();
}

/// A program that has a file open reads it without the daemon, also while there is none. Other opens of the file, which
/// the kernel accepts only with the same local file, go on.
#[test]
fn reads_that_bypass_the_daemon_go_on() {
    if !is_root() {
        skip!("needs root");
    }
    if has_no_passthrough() {
        return;
    }
    const LENGTH: usize = 3 << 20;
    let (origin, disk) = (Scratch::new(), Scratch::new());
    let truth = noise(5, LENGTH);
    origin.file("large", &truth);
    origin.settle();
    let store = format!("{}:64MiB", disk.path().display());
    for disk in [&["--disk", &store][..], &[]] {
        let mut followed =
            Followed::start(origin.path(), &[&["--open", "passthrough"], disk].concat());
        let held = passed_through(&followed.mount, "large");
        for _ in 0..3 {
            let before = followed.mount.stats();
            followed.kill();
            let again = File::open(followed.mount.path("large")).unwrap();
            for file in [&held, &again] {
                forget_pages(file);
                let mut bytes = vec![0; LENGTH];
                file.read_exact_at(&mut bytes, 0).unwrap();
                assert!(bytes == truth);
            }
            let stats = followed.mount.stats();
            let asked = stats.since(&before, "fuse.software.requests.read");
            assert_eq!(asked, 0, "no reader asks the daemon");
        }
        drop(held);
        // Now another local file may serve it, which this daemon registers.
        drop(passed_through(&followed.mount, "large"));
        followed.end();
    }
}

/// A lease ends although the daemon that has given it, or the one that has got it, is dead.
#[test]
fn changes_are_seen_after_the_lease_across_take_overs() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = files();
    origin.file("changed", "old");
    let flags = ["--takeover", "--freshness", "ttl=1s"];
    let tree = Tree::launch(2, 1, origin.path(), &flags);
    let mut nodes: Vec<Daemons> = tree.nodes.iter().map(Daemons::of).collect();
    let leaf = nodes[1].point.clone();
    for (round, rank) in [1, 0, 1].into_iter().enumerate() {
        let (content, new) = (format!("round {round}"), format!("new{round}"));
        // Now the kernel and both nodes have leases: of attributes, of a name that is absent, and of the listing.
        fs::read(leaf.join("changed")).unwrap();
        assert!(fs::metadata(leaf.join(&new)).is_err());
        assert!(fs::read_dir(&leaf).unwrap().count() > 10);
        nodes[rank].kill();
        fs::write(origin.path().join("changed"), &content).unwrap();
        fs::write(origin.path().join(&new), &content).unwrap();
        eventually(SOON, format!("{content} is seen"), || {
            let is_listed = |entry: std::io::Result<fs::DirEntry>| {
                entry.is_ok_and(|entry| entry.file_name() == *new)
            };
            let read = |name: &str| fs::read_to_string(leaf.join(name)).ok();
            read("changed").as_ref() == Some(&content)
                && read(&new).as_ref() == Some(&content)
                && fs::read_dir(&leaf).is_ok_and(|mut listed| listed.any(is_listed))
        });
    }
    check(copperfs(["unmount", "--all", "--force"]).arg(tree.base()));
    nodes.iter().for_each(Daemons::are_gone);
}

/// A watchdog that is killed is followed by another one, so the daemon has a successor when it dies later.
#[test]
fn the_watchdog_is_replaced() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = files();
    let mut followed = Followed::start(origin.path(), &[]);
    for _ in 0..2 {
        let old = processes("watchdog", &followed.point);
        for pid in &old {
            kill_process(*pid, Signal::KILL).unwrap();
        }
        eventually(SOON, "another watchdog", || {
            let new = processes("watchdog", &followed.point);
            !new.is_empty() && new.iter().all(|pid| !old.contains(pid))
        });
        followed.kill();
        let read = read_cold(&followed.point.join(name(3))).unwrap();
        assert!(read == fs::read(origin.path().join(name(3))).unwrap());
    }
    followed.end();
}

/// A daemon that dies again and again is given up, and its mount ends as without a take-over.
#[test]
fn a_mount_ends_whose_daemons_die_again_and_again() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = files();
    let mut followed = Followed::start(origin.path(), &[]);
    for _ in 0..5 {
        followed.kill();
    }
    kill_process(followed.last, Signal::KILL).unwrap();
    let dead = || match fs::read_dir(&followed.point) {
        Err(error) => error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()),
        Ok(_) => false,
    };
    eventually(SOON, "the mount is dead", dead);
    let log = followed.log();
    assert!(log.contains("it has died 6 times in a minute"), "{log}");
    // As after any death: the next mount takes it away.
    followed.end();
}

/// A daemon that ends in order, or hangs and is ended by force, has no successor.
#[test]
fn a_mount_that_is_taken_away_stays_away() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = files();
    let unmount = |followed: &Followed, flags: &[&str]| {
        let mut unmount = copperfs(["unmount"]);
        drop(check(unmount.args(flags).arg(&followed.point)));
    };
    let ways: [&dyn Fn(&Followed); 4] = [
        &|followed| signal(followed.last, Signal::TERM),
        &|followed| unmount(followed, &[]),
        &|followed| {
            let mut umount = Command::new("umount");
            drop(check(umount.arg("-l").arg(&followed.point)));
        },
        &|followed| {
            signal(followed.last, Signal::STOP);
            unmount(followed, &["--force"]);
        },
    ];
    for way in ways {
        let mut followed = Followed::start(origin.path(), &[]);
        followed.kill();
        way(&followed);
        followed.are_gone();
    }
}

/// Reads the first half of a file, and the other one when standard input ends.
const HALVES: &str = "
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(file).st_size
first = os.pread(file, size // 2, 0)
print('half', flush=True)
sys.stdin.read()
assert first + os.pread(file, size, size // 2) == open(sys.argv[2], 'rb').read()
";

/// Files that are open in the data mount go on, for the jobs that read them.
#[test]
fn both_mounts_go_on() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = files();
    let scratch = Scratch::new();
    let data = scratch.dir("data");
    let dataset = "[[dataset]]\nname = \"set\"\npath = \"/d1\"\nbudget = \"1MB\"\n";
    let config = scratch.file("config.toml", dataset);
    let flags = [
        "--data-mount",
        data.to_str().unwrap(),
        "--page-cache=false",
        "--config",
        config.to_str().unwrap(),
    ];
    let mut followed = Followed::start(origin.path(), &flags);
    let point = followed.point.clone();
    eventually(SOON, "the dataset has its share", || {
        followed.mount.stats().get("datasets.share_bytes") > 0
    });
    let mut reader = Command::new("python3");
    reader.args(["-c", HALVES]).env("COPPERFS_JOB", "train");
    reader.args([data.join(name(11)), origin.path().join(name(11))]);
    let piped = reader.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut reader = piped.spawn().unwrap();
    let mut half = [0; 5];
    reader.stdout.take().unwrap().read_exact(&mut half).unwrap();
    for _ in 0..2 {
        followed.kill();
        for mount in [&data, &point] {
            for number in [1, 21, 33] {
                let read = read_cold(&mount.join(name(number))).unwrap();
                assert!(read == fs::read(origin.path().join(name(number))).unwrap());
            }
        }
    }
    drop(reader.stdin.take());
    assert!(reader.wait().unwrap().success());
    eventually(SOON, "the job has read its half", || {
        let mut show = copperfs(["job", "show", "run:train", "--json"]);
        // Until a report has come, there is no job.
        let shown = show.env("COPPERFS_MOUNTPOINT", &point).output().unwrap();
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
        shown["total_bytes"].as_u64() >= Some(BYTES as u64 / 2)
    });
    followed.end();
    assert!(mount_at(&data).is_none());
}

/// Mappings, `sendfile`, a directory stream that is read further, and a lock go on, each begun before the death.
const BEGUN: &str = "
import ctypes, fcntl, mmap, os, socket, sys
mount, origin, name = sys.argv[1:]
truth = open(f'{origin}/{name}', 'rb').read()
files = [os.open(f'{mount}/{name}', os.O_RDONLY) for _ in range(2)]
mapped = mmap.mmap(files[0], len(truth), prot=mmap.PROT_READ)
assert mapped[:100] == truth[:100]
fcntl.flock(files[1], fcntl.LOCK_EX)
ours, theirs = socket.socketpair()
at = os.sendfile(ours.fileno(), files[1], 0, 1000)
libc = ctypes.CDLL(None, use_errno=True)
many = os.open(f'{mount}/many', os.O_RDONLY | os.O_DIRECTORY)
def entries():
    buffer = ctypes.create_string_buffer(4096)
    length = libc.syscall(217, many, buffer, 4096)
    assert length >= 0, ctypes.get_errno()
    at, names = 0, []
    while at < length:
        size = int.from_bytes(buffer[at + 16:at + 18], 'little')
        names.append(buffer[at + 19:at + size].split(b'\\0')[0].decode())
        at += size
    return names
listed = entries()
print('begun', flush=True)
sys.stdin.read()
for file in files:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
mapped.madvise(mmap.MADV_DONTNEED)
assert mapped[:] == truth
found = theirs.recv(1000, socket.MSG_WAITALL)
while sent := os.sendfile(ours.fileno(), files[1], at, 1000):
    found += theirs.recv(sent, socket.MSG_WAITALL)
    at += sent
assert found == truth
while more := entries():
    listed += more
assert sorted(listed) == sorted(['.', '..', *os.listdir(f'{origin}/many')]), len(listed)
other = os.open(f'{mount}/{name}', os.O_RDONLY)
try:
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    sys.exit('the lock is free')
except BlockingIOError:
    pass
";

/// A mapping, `sendfile`, a directory stream and a lock that were begun go on.
#[test]
fn what_was_begun_goes_on() {
    if !is_root() {
        skip!("needs root");
    }
    if !cfg!(target_arch = "x86_64") {
        skip!("getdents64 has another number here");
    }
    let origin = files();
    origin.file("long", noise(1, 300_000));
    for number in 0..2000 {
        origin.file(&format!("many/a-longer-name-{number}"), "");
    }
    origin.settle();
    let mut followed = Followed::start(origin.path(), &[]);
    let mut reader = python();
    reader.args(["-c", BEGUN]);
    reader.arg(&followed.point).arg(origin.path()).arg("long");
    let piped = reader.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut reader = Background::spawn(piped);
    let mut begun = [0; 5];
    let (input, mut output) = (reader.stdin(), reader.stdout());
    output.read_exact(&mut begun).unwrap();
    for _ in 0..2 {
        followed.kill();
    }
    drop(input);
    let ended = reader.exit_within(SOON).expect("it ends");
    assert!(ended.success(), "{}", followed.log());
    followed.end();
}

/// A thread of a killed daemon may wait in the kernel for a page that a READ holds. Only the successor can answer that
/// READ, so it does not wait for the thread, which still has all files of its daemon: the socket to other nodes, and the
/// lock of the store.
#[test]
fn a_thread_that_hangs_in_the_kernel_is_not_waited_for() {
    if !is_root() {
        skip!("needs root");
    }
    let (origin, disks) = (files(), Scratch::new());
    let disk = format!("{}/{{rank}}:16MiB", disks.path().display());
    let flags = ["--takeover", "--request-timeout", "100s", "--disk", &disk];
    let tree = Tree::launch(2, 1, origin.path(), &flags);
    let (file, truth) = (tree.path(1, name(4)), origin.path().join(name(4)));
    fs::metadata(&file).unwrap();
    tree.root().signal(Signal::STOP);
    let mut reader = Command::new("cmp");
    let mut reader = Background::spawn(reader.arg(&file).arg(truth));
    // There is no event for the moment in which the kernel waits for the page.
    std::thread::sleep(Duration::from_millis(300));
    let mut clear = copperfs(["clear", "--everything", "--this-node"]);
    let mut clear = Background::spawn(clear.arg(&tree.leaf().point));
    let daemon = tree.leaf().pid;
    let hangs = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", daemon.as_raw_nonzero()));
        tasks.unwrap().any(|task| {
            let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
            stat.contains("(copperfs-notify) D")
        })
    };
    eventually(SOON, "a thread hangs in the kernel", hangs);
    kill_process(daemon, Signal::KILL).unwrap();
    tree.root().signal(Signal::CONT);
    let read = reader.exit_within(SOON).expect("the file is read");
    let cleared = clear.exit_within(SOON).expect("the clear ends");
    let log = tree.leaf().log();
    // Both were in hand.
    let may_fail = sends_no_request_again();
    assert!(read.success() || may_fail, "{read}\n{log}");
    assert!(cleared.success() || may_fail, "{cleared}\n{log}");
    assert!(!log.contains("the daemon before hangs"), "{log}");
    // The store is in use again.
    assert!(read_cold(&tree.path(1, name(5))).unwrap() == noise(5, BYTES));
    check(copperfs(["unmount", "--all", "--force"]).arg(tree.base()));
    Daemons::of(tree.leaf()).are_gone();
}

/// The daemon and its watchdog are killed together, as a scheduler kills all processes of a job: nothing hangs, nothing
/// is left, and the next mount has its place.
#[test]
fn a_daemon_and_its_watchdog_die_together() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = files();
    for _ in 0..3 {
        let mut followed = Followed::start(origin.path(), &[]);
        followed.kill();
        let held = File::open(followed.point.join(name(1))).unwrap();
        for pid in processes("watchdog", &followed.point) {
            kill_process(pid, Signal::KILL).unwrap();
        }
        kill_process(followed.last, Signal::KILL).unwrap();
        eventually(SOON, "the mount is dead", || {
            let error = fs::read_dir(&followed.point).err();
            error.is_some_and(|error| error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()))
        });
        let mut bytes = vec![0; 10];
        assert!(held.read_exact_at(&mut bytes, 0).is_err());
        drop(held);
        let stats = copperfs(["stats"]).arg(&followed.point).output().unwrap();
        let said = String::from_utf8_lossy(&stats.stderr).into_owned();
        assert!(
            !stats.status.success() && said.contains("is gone and left its mount behind"),
            "{said}"
        );
        let words = ["daemon", "watchdog"];
        for word in words {
            assert!(
                processes(word, &followed.point).is_empty(),
                "a {word} is left"
            );
        }
        followed.end();
    }
}

/// The successor needs no room on a disk that is full: neither in the runtime directory nor in the store.
#[test]
fn a_full_disk_does_not_stop_a_successor() {
    if !is_root() {
        skip!("needs root");
    }
    let (origin, scratch) = (files(), Scratch::new());
    let small = scratch.dir("small");
    check(
        Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"])
            .arg(&small),
    );
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let runtime = small.join("copperfs-run");
        let disk = format!("{}:16MiB", small.join("store").display());
        let flags = ["--runtime-dir", runtime.to_str().unwrap(), "--disk", &disk];
        let followed = Followed::start(origin.path(), &flags);
        read_cold(&followed.point.join(name(1))).unwrap();
        let mut full = File::create(small.join("full")).unwrap();
        while full.write_all(&[7; 4096]).is_ok() {}
        while full.write_all(&[7; 1]).is_ok() {}
        // The log is full, too, so it does not tell of the next daemon.
        for _ in 0..2 {
            let before = processes("daemon", &followed.point);
            kill_process(before[0], Signal::KILL).unwrap();
            for number in 0..20 {
                let read = read_cold(&followed.point.join(name(number))).unwrap();
                assert!(read == noise(number as u64, BYTES));
            }
            eventually(SOON, "another daemon alone", || {
                let now = processes("daemon", &followed.point);
                now.len() == 1 && now != before
            });
        }
        drop(full);
        followed.end();
    }));
    check(Command::new("umount").arg("-l").arg(&small));
    outcome.unwrap_or_else(|panic| resume_unwind(panic));
}

/// A `clear` that has returned has reached the kernels of all nodes, also of a node that is taken over meanwhile.
#[test]
fn a_clear_reaches_a_node_that_is_taken_over() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = files();
    let tree = Tree::launch(4, 2, origin.path(), &["--takeover"]);
    let mut nodes: Vec<Daemons> = tree.nodes.iter().map(Daemons::of).collect();
    let changed = origin.path().join("changed");
    for (round, rank) in [3, 1, 0, 3].into_iter().enumerate() {
        fs::write(&changed, format!("{round}")).unwrap();
        check(copperfs(["clear", "--everything"]).arg(&nodes[2].point));
        for node in &nodes {
            assert_eq!(
                fs::read_to_string(node.point.join("changed")).unwrap(),
                format!("{round}")
            );
        }
        fs::write(&changed, format!("{round} new")).unwrap();
        kill_process(nodes[rank].last, Signal::KILL).unwrap();
        // Not one of them fails, because it waits for the successor.
        check(copperfs(["clear", "--everything"]).arg(&nodes[2].point));
        for node in &nodes {
            let read = fs::read_to_string(node.point.join("changed")).unwrap();
            assert_eq!(read, format!("{round} new"), "rank {rank} was killed");
        }
        let before = nodes[rank].last;
        eventually(SOON, "another daemon alone", || {
            let now = processes("daemon", &nodes[rank].point);
            now.len() == 1 && now[0] != before
        });
        nodes[rank].last = processes("daemon", &nodes[rank].point)[0];
    }
    check(copperfs(["unmount", "--all", "--force"]).arg(tree.base()));
    nodes.iter().for_each(Daemons::are_gone);
}
