//! Several origins in one namespace, and origins that hang.

use crate::skip;
use crate::support::command::has_program;
use crate::support::fixture::noise;
use crate::support::kernel::{forget_pages, mount_at};
use crate::support::{Background, Mount, Scratch, Tree, errno, eventually, is_root, within};
use rustix::io::Errno;
use rustix::process::Signal;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn names(path: &Path) -> Vec<OsString> {
    let mut names: Vec<OsString> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    names
}

/// Each origin appears under its prefix; prefixes and their parents appear as directories; a prefix
/// inside another origin covers that origin's path.
#[test]
fn origins_stand_side_by_side_and_inside_each_other() {
    if !is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    scratch.file("one/file", "one");
    scratch.file("one/inner/covered", "covered");
    scratch.file("two/file", "two");
    scratch.file("three/file", "three");
    let dir = |name: &str| scratch.path().join(name).display().to_string();
    let mount = Mount::serving(&[
        "--origin",
        &format!("/one=file://{}", dir("one")),
        "--origin",
        &format!("/one/inner={}", dir("two")),
        "--origin",
        &format!("/far/away={}", dir("three")),
    ]);
    assert_eq!(names(&mount.node.point), ["far", "one"]);
    assert_eq!(names(&mount.path("one")), ["file", "inner"]);
    assert_eq!(names(&mount.path("one/inner")), ["file"]);
    for (path, content) in [
        ("one/file", "one"),
        ("one/inner/file", "two"),
        ("far/away/file", "three"),
    ] {
        assert_eq!(
            fs::read_to_string(mount.path(path)).unwrap(),
            content,
            "{path}"
        );
    }
    for absent in ["one/inner/covered", "far/file", "two", "far/away/none"] {
        assert_eq!(
            errno(fs::metadata(mount.path(absent))),
            Errno::NOENT,
            "{absent}"
        );
    }
    assert!(fs::metadata(mount.path("far")).unwrap().is_dir());
}

/// `--exclude`: a named path does not exist, and another path that begins with its name does.
#[test]
fn excluded_paths_are_not_served() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    for name in ["secret/file", "secrets/file", "dir/secret/file"] {
        origin.file(name, name);
    }
    let excluded = origin.path().join("secret");
    let mount = Mount::with(origin.path(), &["--exclude", excluded.to_str().unwrap()]);
    assert_eq!(names(&mount.node.point), ["dir", "secrets"]);
    assert_eq!(errno(fs::metadata(mount.path("secret"))), Errno::NOENT);
    assert_eq!(errno(fs::read(mount.path("secret/file"))), Errno::NOENT);
    for name in ["secrets/file", "dir/secret/file"] {
        assert_eq!(fs::read_to_string(mount.path(name)).unwrap(), name);
    }
}

/// A lone path is served below itself: `MOUNT/path` is the same file as `/path`.
#[test]
fn the_top_of_a_tree_is_the_same_file_under_the_mount() {
    if !is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let file = scratch.file("deep/below/file", "content");
    // A lone path is served below itself, as in Copper.
    let mount = Mount::serving(&["--origin", scratch.path().to_str().unwrap()]);
    let same = mount.path(file.strip_prefix("/").unwrap());
    assert_eq!(fs::read_to_string(same).unwrap(), "content");
}

/// Storage that a test can make hang: a `bindfs` that is stopped.
pub(crate) struct Hanging {
    pub(crate) point: PathBuf,
    pub(crate) server: Background,
    pub(crate) real: Scratch,
}

impl Hanging {
    pub(crate) fn start() -> Self {
        let real = Scratch::new();
        let point = real.dir("served");
        let mut bindfs = Command::new("bindfs");
        bindfs.args([
            "-f",
            "-o",
            "attr_timeout=0,entry_timeout=0,negative_timeout=0",
        ]);
        bindfs.arg(real.dir("files")).arg(&point);
        let server = Background::spawn(bindfs.stdin(Stdio::null()).stderr(Stdio::null()));
        eventually(Duration::from_secs(10), "bindfs serves", || {
            mount_at(&point).is_some()
        });
        Self {
            point,
            server,
            real,
        }
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.server.signal(Signal::CONT);
        let unmount = Command::new("fusermount3")
            .arg("-uz")
            .arg(&self.point)
            .status();
        if !unmount.is_ok_and(|status| status.success()) {
            drop(Command::new("umount").arg("-l").arg(&self.point).status());
        }
    }
}

/// Storage that hangs: a miss is EIO after the bound, hits are as fast as before, and when storage is
/// back, so are the files.
#[test]
fn storage_that_hangs_costs_misses_only() {
    if !is_root() {
        skip!("needs root");
    }
    if !has_program("bindfs") {
        skip!("bindfs is not installed");
    }
    let storage = Hanging::start();
    for number in 0..100 {
        storage
            .real
            .file(&format!("files/dir/f{number}"), noise(number, 10_000));
    }
    storage.real.settle();
    let mount = Mount::with(&storage.point, &["--request-timeout", "3s"]);
    let hit = mount.path("dir/f0");
    assert!(fs::read(&hit).unwrap() == noise(0, 10_000));
    storage.server.signal(Signal::STOP);
    let start = Instant::now();
    let readers: Vec<_> = (1..100)
        .map(|number| {
            let path = mount.path(format!("dir/f{number}"));
            std::thread::spawn(move || errno(fs::read(path)))
        })
        .collect();
    // There is no counter for a call that has just begun to hang.
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..50 {
        let file = fs::File::open(&hit).unwrap();
        forget_pages(&file);
        let start = Instant::now();
        assert!(fs::read(&hit).unwrap() == noise(0, 10_000));
        // A hit that waited for storage would take as long as the request timeout.
        assert!(
            start.elapsed() < Duration::from_secs(3),
            "{:?}",
            start.elapsed()
        );
    }
    for reader in readers {
        let number = within(Duration::from_secs(40), move || reader.join().unwrap());
        assert_eq!(number, Errno::IO);
    }
    eprintln!(
        "99 misses at storage that hangs ended after {:?}",
        start.elapsed()
    );
    storage.server.signal(Signal::CONT);
    eventually(Duration::from_secs(20), "storage is back", || {
        fs::read(mount.path("dir/f50")).is_ok_and(|content| content == noise(50, 10_000))
    });
    for number in 0..100 {
        assert!(fs::read(mount.path(format!("dir/f{number}"))).unwrap() == noise(number, 10_000));
    }
}

/// A daemon whose threads hang in storage still ends when it is told.
#[test]
fn a_daemon_that_hangs_in_storage_can_be_unmounted() {
    if !is_root() {
        skip!("needs root");
    }
    if !has_program("bindfs") {
        skip!("bindfs is not installed");
    }
    let storage = Hanging::start();
    storage.real.file("files/dir/file", "content");
    storage.real.file("files/other/file", "content");
    let mount = Mount::with(&storage.point, &["--request-timeout", "60s"]);
    assert_eq!(fs::read(mount.path("dir/file")).unwrap(), b"content");
    storage.server.signal(Signal::STOP);
    let path = mount.path("other/file");
    let reader = std::thread::spawn(move || fs::read(path));
    // There is no counter for a call that has just begun to hang.
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    mount.unmount();
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "after {:?}",
        start.elapsed()
    );
    assert!(within(Duration::from_secs(10), move || reader.join().unwrap()).is_err());
}

/// If a log file grows while the job starts, two roots must not take their storage for different.
#[test]
fn roots_start_beside_a_file_that_grows() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let log = origin.file("log", "begun\n");
    origin.file("data/file", "content");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut log = fs::File::options().append(true).open(&log).unwrap();
            while !stop.load(Ordering::Relaxed) {
                log.write_all(b"a line\n").unwrap();
                // About five lines in a millisecond.
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        // Ends the writer even if a launch fails.
        let _stop = Stop(&stop);
        for _ in 0..3 {
            let tree = Tree::launch(3, 2, origin.path(), &["--roots", "2"]);
            assert_eq!(fs::read(tree.path(2, "data/file")).unwrap(), b"content");
        }
    });
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
