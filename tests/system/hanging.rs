//! Storage and disks that hang: how long readers wait, which errors they get, and which readers are not affected.

use crate::object_store::{Server, rclone};
use crate::origins::Hanging;
use crate::silent_files::{BYTES, FILES, SilentFiles};
use crate::skip;
use crate::support::command::has_program;
use crate::support::fixture::noise;
use crate::support::kernel::forget_pages;
use crate::support::mount::Node;
use crate::support::{Mount, Scratch, Tree, check, copperfs, errno, eventually, is_root, within};
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

/// The request timeout in these tests …
const TIMEOUT: &str = "6s";
/// … and the most that readers may wait: two timeouts would be twelve seconds, and a busy machine needs
/// some time of its own.
const ONCE: Duration = Duration::from_secs(10);

/// Returns the error of `work`, which must not take longer than one timeout.
#[track_caller]
fn fails_once<T: Send + std::fmt::Debug + 'static>(
    what: &str,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) {
    let begun = Instant::now();
    let number = within(Duration::from_secs(60), move || errno(work()));
    assert_eq!(number, Errno::IO, "{what}");
    let took = begun.elapsed();
    eprintln!("{what}: EIO after {took:?}");
    assert!(took < ONCE, "{what}: EIO after {took:?}");
}

/// Creates directories with some files that tests list and read first, and others.
fn fill(storage: &Scratch) {
    for directory in ["known", "cold", "colder", "coldest"] {
        for number in 0..4 {
            let name = format!("files/{directory}/f{number}");
            storage.file(&name, noise(number, 200_000));
        }
    }
    storage.settle();
}

fn warm(point: &std::path::Path) {
    assert_eq!(fs::read_dir(point.join("known")).unwrap().count(), 4);
    assert!(fs::read(point.join("known/f0")).unwrap() == noise(0, 200_000));
    for number in 0..4 {
        fs::metadata(point.join(format!("known/f{number}"))).unwrap();
    }
}

fn read(node: &Node, name: &str) -> impl FnOnce() -> std::io::Result<Vec<u8>> + Send + 'static {
    let path = node.point.join(name);
    move || fs::read(path)
}

fn list(node: &Node, name: &str) -> impl FnOnce() -> std::io::Result<usize> + Send + 'static {
    let path = node.point.join(name);
    move || Ok(fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?.len())
}

/// A directory that hangs: a listing and a read fail after one `--request-timeout`, on the root and on a
/// leaf. The root's log and the leaf's log name the storage.
#[test]
fn readers_of_a_directory_that_hangs_wait_once_and_learn_why() {
    if !is_root() {
        skip!("needs root");
    }
    if !has_program("bindfs") {
        skip!("bindfs is not installed");
    }
    let storage = Hanging::start();
    fill(&storage.real);
    let tree = Tree::launch(2, 1, &storage.point, &["--request-timeout", TIMEOUT]);
    warm(&tree.root().point);
    warm(&tree.leaf().point);
    storage.server.signal(Signal::STOP);
    fails_once("leaf, read", read(tree.leaf(), "known/f1"));
    // Only the leaf has read so far; the root still logs the fault of its storage.
    let reason = "no answer within";
    let (root, leaf) = (tree.root().log(), tree.leaf().log());
    assert!(
        root.contains("storage fails") && root.contains(reason),
        "{root}"
    );
    assert!(
        leaf.contains("origin file://") && leaf.contains(reason),
        "{leaf}"
    );
    fails_once("leaf, listing", list(tree.leaf(), "cold"));
    fails_once("root, read", read(tree.root(), "known/f2"));
    fails_once("root, listing", list(tree.root(), "colder"));
    fails_once("root, look-up", read(tree.root(), "coldest/f1"));
    storage.server.signal(Signal::CONT);
    for node in &tree.nodes {
        eventually(Duration::from_secs(20), "storage is back", || {
            fs::read(node.point.join("known/f1")).is_ok_and(|read| read == noise(1, 200_000))
        });
    }
}

/// A dead root: readers on a leaf that waits for it wait for one timeout.
#[test]
fn readers_of_a_dead_root_wait_once() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    fill(&origin);
    let files = origin.path().join("files");
    let flags = ["--request-timeout", TIMEOUT, "--orphan", "wait"];
    let tree = Tree::launch(2, 1, &files, &flags);
    warm(&tree.leaf().point);
    tree.root().kill();
    fails_once("a dead root, read", read(tree.leaf(), "known/f1"));
    fails_once("a dead root, listing", list(tree.leaf(), "cold"));
}

/// An object store that hangs.
#[test]
fn readers_of_an_object_store_that_hangs_wait_once() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(program) = rclone() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    let server = Server::start(program);
    for directory in ["known", "cold", "colder"] {
        let place = server.bucket().join("set").join(directory);
        fs::create_dir_all(&place).unwrap();
        for number in 0..4 {
            fs::write(place.join(format!("f{number}")), noise(number, 200_000)).unwrap();
        }
    }
    let scratch = Scratch::new();
    let mount = server.mount(&scratch, &["--request-timeout", TIMEOUT]);
    warm(&mount.path("data"));
    server.signal(Signal::STOP);
    fails_once("object store, listing", list(&mount.node, "data/cold"));
    fails_once("object store, read", read(&mount.node, "data/known/f1"));
    fails_once("object store, look-up", read(&mount.node, "data/colder/f1"));
    server.signal(Signal::CONT);
}

fn status(point: &std::path::Path) -> Value {
    let said = check(copperfs(["status", "--json"]).arg(point));
    serde_json::from_str(&said).unwrap()
}

/// Answers pending READs on drop.
struct Answered<'a>(&'a SilentFiles);

impl Drop for Answered<'_> {
    fn drop(&mut self) {
        self.0.answer();
    }
}

#[test]
fn a_thousand_files_of_one_directory_that_hang_leave_the_others_readable() {
    others_are_readable_beside(|number| format!("one/{number:04}"));
}

#[test]
fn files_of_a_thousand_directories_that_hang_leave_the_others_readable() {
    others_are_readable_beside(|number| format!("many/{number:04}/file"));
}

/// How many healthy files are read before and while others hang, in 20 directories.
const HEALTHY: u64 = 2_000;

/// Reads the healthy files of `when`, which were not read before, and prints how long that takes.
fn read_healthy(mount: &Mount, when: &str) {
    let wanted: Vec<_> = (0..HEALTHY).map(|number| noise(number, 20_000)).collect();
    let begun = Instant::now();
    for (number, wanted) in wanted.iter().enumerate() {
        let path = mount.path(format!("{when}/{}/f{number}", number % 20));
        assert!(fs::read(path).unwrap() == *wanted);
    }
    let took = begun.elapsed();
    eprintln!("{HEALTHY} healthy files {when} {FILES} others hang: {took:?}");
}

/// A thousand readers wait for hanging files. Other files stay readable, and operators can see the hanging
/// calls.
fn others_are_readable_beside(hanging_file: fn(u64) -> String) {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let silent = SilentFiles::mount(&origin.dir("silent")).unwrap();
    for number in 0..HEALTHY {
        for when in ["before", "while"] {
            let name = format!("{when}/{}/f{number}", number % 20);
            origin.file(&name, noise(number, 20_000));
        }
    }
    origin.settle();
    let mount = Mount::with(origin.path(), &["--request-timeout", "10m"]);
    // A daemon whose calls hang in a FUSE server cannot end, so the calls must be answered first.
    let _answered = Answered(&silent);
    read_healthy(&mount, "before");
    let readers: Vec<_> = (0..FILES)
        .map(|number| {
            let path = mount.path("silent").join(hanging_file(number));
            std::thread::Builder::new()
                .stack_size(64 << 10)
                .spawn(move || fs::read(path).map(|read| read == [7; BYTES]))
                .unwrap()
        })
        .collect();
    // Only the reads of the files hang: names and attributes are answered.
    eventually(
        Duration::from_secs(120),
        format!("{FILES} calls hang"),
        || mount.stats().get("origin.hanging") >= FILES,
    );
    read_healthy(&mount, "while");
    let said = status(&mount.node.point);
    let held = &said["hanging"][0];
    assert!(held["calls"].as_u64() >= Some(FILES), "{said}");
    let path = held["path"].as_str().unwrap();
    let known = |number| path == format!("/silent/{}", hanging_file(number));
    assert!((0..FILES).any(known), "{said}");
    assert!(held["since_ms"].as_u64() > Some(0), "{said}");
    silent.answer();
    for reader in readers {
        let right = within(Duration::from_secs(60), move || reader.join().unwrap());
        assert!(right.unwrap(), "other bytes");
    }
    eventually(Duration::from_secs(20), "nothing hangs", || {
        mount.stats().get("origin.hanging") == 0
    });
    assert_eq!(status(&mount.node.point)["hanging"], serde_json::json!([]));
}

/// A store on a disk that hangs and later recovers.
#[test]
fn a_store_whose_disk_hangs_is_passed_by() {
    const LARGE: usize = 3 << 20;
    const COUNT: u64 = 60;
    if !is_root() {
        skip!("needs root");
    }
    if !has_program("bindfs") {
        skip!("bindfs is not installed");
    }
    let disk = Hanging::start();
    let origin = Scratch::new();
    for number in 0..COUNT {
        origin.file(&format!("dir/f{number}"), noise(number, LARGE));
    }
    origin.settle();
    let store = format!("{}:1GiB", disk.point.join("store").display());
    let flags = ["--memory", "64MiB", "--disk", &store];
    let mount = Mount::with(origin.path(), &flags);
    let read_all = |mount: &Mount| {
        for number in 0..COUNT {
            let path = mount.path(format!("dir/f{number}"));
            let wanted = noise(number, LARGE);
            within(Duration::from_secs(60), move || {
                let file = fs::File::open(&path).unwrap();
                forget_pages(&file);
                assert!(fs::read(&path).unwrap() == wanted, "{path:?}");
            });
        }
    };
    read_all(&mount);
    eventually(Duration::from_secs(60), "the store is filled", || {
        mount.stats().get("disk.entries") >= COUNT
    });
    read_all(&mount);
    let before = mount.stats();
    assert!(before.get("disk.hits") > 0, "it is read from the disk");
    disk.server.signal(Signal::STOP);
    let begun = Instant::now();
    read_all(&mount);
    let took = begun.elapsed();
    eprintln!("{COUNT} files of {LARGE} bytes beside a disk that hangs: {took:?}");
    let point = mount.node.point.clone();
    within(Duration::from_secs(30), move || {
        check(copperfs(["clear", "--this-node"]).arg(point.join("dir/f1")));
    });
    assert!(
        mount.node.log().contains("disk does not answer"),
        "the log tells of it"
    );
    read_all(&mount);
    disk.server.signal(Signal::CONT);
    let then = mount.stats().get("disk.hits");
    eventually(Duration::from_secs(60), "the disk is read again", || {
        read_all(&mount);
        mount.stats().get("disk.hits") > then
    });
    disk.server.signal(Signal::STOP);
    read_all(&mount);
    within(Duration::from_secs(60), move || mount.unmount());
}
