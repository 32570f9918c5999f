//! Trouble with the store's disk while files are read: it costs hits, and no reader an error.

use super::{Place, SOON, kept, many};
use crate::skip;
use crate::support::fixture::files_below;
use crate::support::kernel::forget_pages;
use crate::support::{Background, Mount, eventually, is_root, sh};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A busy machine takes its time to fill a store of 100 MB.
const FILLED: Duration = Duration::from_secs(80);

/// A small filesystem of its own.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn at(path: &Path, size: &str) -> Self {
        fs::create_dir_all(path).unwrap();
        let options = format!("size={size},mode=0700");
        sh("mount -t tmpfs -o \"$1\" store \"$2\"", &[&options, &path]);
        Self(path.to_owned())
    }

    fn free_percent(&self) -> f64 {
        let usage = rustix::fs::statvfs(&self.0).unwrap();
        #[expect(clippy::cast_precision_loss, reason = "some thousand blocks")]
        let share = usage.f_bavail as f64 / usage.f_blocks as f64;
        100.0 * share
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

/// Readers that read everything again and again, each read reaching the daemon, and compare it.
struct Load {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    readers: Vec<JoinHandle<()>>,
}

impl Load {
    fn on(mount: &Mount, origin: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let all = files_below(origin);
        let reader = |number: usize| {
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            let files: Vec<(PathBuf, PathBuf)> = all
                .iter()
                .skip(number)
                .step_by(2)
                .map(|file| (mount.path(file.strip_prefix(origin).unwrap()), file.clone()))
                .collect();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for (mounted, native) in &files {
                        let read = fs::read(mounted);
                        let read = read.unwrap_or_else(|error| panic!("{mounted:?}: {error}"));
                        assert!(read == fs::read(native).unwrap(), "{mounted:?}");
                        forget_pages(&fs::File::open(mounted).unwrap());
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let readers = (0..2).map(reader).collect();
        Self {
            stop,
            rounds,
            readers,
        }
    }

    /// Everything has been read twice more from now on.
    #[track_caller]
    fn goes_on(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        eventually(FILLED, "readers go on", || {
            self.readers.iter().any(JoinHandle::is_finished)
                || self.rounds.load(Ordering::Relaxed) >= before + 4
        });
    }

    /// No reader has seen an error or a wrong byte.
    #[track_caller]
    fn was_undisturbed(self) {
        self.stop.store(true, Ordering::Relaxed);
        for reader in self.readers {
            if let Err(panic) = reader.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// What is read: more than the node's memory holds.
fn place() -> Place {
    Place::of(many(200, 16))
}

const ENTRIES: u64 = 200 + 16 * 6;
const FLAGS: [&str; 2] = ["--memory", "64MiB"];

/// The disk's reserve stays free; a disk that others fill costs no reader anything; and when they
/// leave, the store fills again.
#[test]
fn a_full_disk() {
    if !is_root() {
        skip!("needs root");
    }
    let place = place();
    // Not room for all of it.
    let disk = SmallDisk::at(&place.disk(), "48m");
    let directory = place.disk().join("store");
    let flags = [&FLAGS[..], &["--disk-reserve", "5%"]].concat();
    let mount = place.mount_on(&directory, &flags);
    let load = Load::on(&mount, place.origin.path());
    let full = || disk.free_percent() < 15.0;
    let mut least: f64 = 100.0;
    eventually(FILLED, "it is filled", || {
        least = least.min(disk.free_percent());
        full()
    });
    // One second, in which the store must not take more.
    for _ in 0..100 {
        least = least.min(disk.free_percent());
        std::thread::sleep(Duration::from_millis(10));
    }
    eprintln!("at least {least:.1} % were free");
    // A part of a per cent for the index, which is written beside.
    assert!(least > 4.5, "only {least} % were left free");

    let greed = "while :; do head -c 1M /dev/zero >> \"$0/greedy\"; sleep 0.01; done";
    let mut others = Command::new("sh");
    others
        .args(["-c", greed])
        .arg(&disk.0)
        .stderr(Stdio::null());
    let others = Background::spawn(&mut others);
    eventually(SOON, "it is full", || disk.free_percent() < 0.1);
    eventually(FILLED, "there is no room for more", || {
        mount.stats().get("disk.dropped") > 0
    });
    load.goes_on();
    drop(others);
    // A store that still has most of its files evicts one for each new one.
    let taken = || {
        let stats = mount.stats();
        stats.get("disk.entries") + stats.get("disk.evictions")
    };
    let before = taken();
    fs::remove_file(disk.0.join("greedy")).unwrap();
    eventually(FILLED, "the store takes blocks again", || {
        taken() > before + 20
    });
    load.was_undisturbed();
    mount.unmount();
}

/// While no file of the store can be created or removed, its blocks are still read.
#[test]
fn a_store_that_cannot_be_written() {
    if !is_root() {
        skip!("needs root");
    }
    let place = place();
    let directory = place.disk();
    let mount = place.mount(&FLAGS);
    let files = files_below(place.origin.path());
    for file in files.iter().step_by(2) {
        let name = file.strip_prefix(place.origin.path()).unwrap();
        fs::read(mount.path(name)).unwrap();
    }
    let half = kept(&mount).get("disk.entries");
    assert!((ENTRIES / 2..ENTRIES).contains(&half), "{half} entries");
    sh("chattr -R +i \"$1\"", &[&directory]);
    let read_only = ReadOnly(&directory);
    let load = Load::on(&mount, place.origin.path());
    let before = mount.stats();
    load.goes_on();
    let after = mount.stats();
    assert!(after.since(&before, "disk.hits") > 0, "it is read on");
    assert_eq!(after.get("disk.entries"), half, "nothing can be written");
    drop(read_only);
    // Not all of them: files in memory are not read from the store.
    eventually(FILLED, "more is kept", || {
        mount.stats().get("disk.entries") > half
    });
    load.was_undisturbed();
    mount.unmount();
}

/// Makes a directory changeable again, so that it can be removed.
struct ReadOnly<'a>(&'a Path);

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        let mut allow = Command::new("chattr");
        drop(allow.args(["-R", "-f", "-i"]).arg(self.0).status());
    }
}

/// All that is in the directory is removed, then the directory itself; when it is there again it is
/// filled again. Then the disk is unmounted under the daemon.
#[test]
fn a_disk_that_goes_away() {
    if !is_root() {
        skip!("needs root");
    }
    let place = place();
    let disk = SmallDisk::at(&place.disk(), "200m");
    let directory = place.disk().join("store");
    let mount = place.mount_on(&directory, &FLAGS);
    let load = Load::on(&mount, place.origin.path());
    // Whatever is gone in the middle of it.
    let names = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let lie_there = || {
        let fans = names(&directory.join("content"));
        fans.map(|fan| names(&fan.path()).count() as u64)
            .sum::<u64>()
    };
    eventually(FILLED, "it is filled", || lie_there() > ENTRIES / 2);

    // The files go first, the directories when nothing is made in them any more.
    sh("until rm -rf \"$1\"/*; do :; done", &[&directory]);
    // Not with all of them: files in memory are not read from the store.
    eventually(FILLED, "it is filled again", || lie_there() > 20);
    sh("mv \"$1\" \"$1.away\"; rm -rf \"$1.away\"", &[&directory]);
    load.goes_on();
    assert!(!directory.exists(), "it is not the daemon's to make");
    fs::create_dir(&directory).unwrap();
    eventually(FILLED, "it is filled once more", || lie_there() > 20);
    let known = kept(&mount).get("disk.entries");
    assert!(known.abs_diff(lie_there()) < 20, "{known} are known");

    drop(disk);
    load.goes_on();
    load.was_undisturbed();
    kept(&mount);
    mount.unmount();
}
