//! Failures as applications see them: errors within a time limit, hits at full speed, and no mount or daemon that
//! remains.

use crate::skip;
use crate::support::fixture::noise;
use crate::support::kernel::{cpu_ticks, forget_pages, voluntary_switches};
use crate::support::mount::Node;
use crate::support::{
    Background, Mount, Scratch, Tree, check, copperfs, errno, eventually, is_root, within,
};
use rustix::io::Errno;
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SIZE: usize = 20_000;

/// A directory `hot` that a test reads beforehand, and `cold` that it does not.
fn origin(cold: u64) -> Scratch {
    let origin = Scratch::new();
    for number in 0..20 {
        origin.file(&format!("hot/f{number}"), noise(number, SIZE));
    }
    for number in 0..cold {
        origin.file(&format!("cold/f{number}"), noise(1000 + number, 4000));
    }
    origin.settle();
    origin
}

/// Brings `hot`, and the names in `cold`, on to the node.
fn warm(node: &Node) {
    for number in 0..20 {
        assert_eq!(
            fs::read(node.point.join(format!("hot/f{number}")))
                .unwrap()
                .len(),
            SIZE
        );
    }
    for entry in fs::read_dir(node.point.join("cold")).unwrap() {
        entry.unwrap().metadata().unwrap();
    }
}

/// Reads a file that the node has and the kernel has not, again and again; the times it takes, sorted.
fn hits(node: &Node, count: u64) -> Vec<Duration> {
    let read = |number: u64| {
        let number = number % 20;
        let path = node.point.join(format!("hot/f{number}"));
        forget_pages(&fs::File::open(&path).unwrap());
        let start = Instant::now();
        let content = fs::read(&path).unwrap();
        let time = start.elapsed();
        assert!(content == noise(number, SIZE));
        time
    };
    let before = node.stats();
    let mut times: Vec<Duration> = (0..count).map(read).collect();
    let asked = node.stats().since(&before, "fuse.software.requests.read");
    assert!(asked >= count, "the daemon was asked {asked} times");
    times.sort();
    times
}

/// `cat FILE`, which will wait.
fn reader(path: &Path) -> Background {
    let mut cat = Command::new("cat");
    Background::spawn(
        cat.arg(path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    )
}

/// A parent that has died: a miss is EIO within the time limit, hits go on, and the other nodes still serve their
/// caches.
#[test]
fn a_dead_parent_is_eio_within_the_bound() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin(10);
    let tree = Tree::launch(3, 1, origin.path(), &["--request-timeout", "3s"]);
    let leaf = tree.leaf();
    warm(leaf);
    assert_eq!(fs::read(tree.path(1, "cold/f0")).unwrap().len(), 4000);
    tree.root().kill();
    eventually(Duration::from_secs(5), "the root is dead", || {
        !tree.root().is_alive()
    });
    assert_eq!(
        fs::read(tree.path(2, "cold/f0")).unwrap().len(),
        4000,
        "its parent has it"
    );
    let start = Instant::now();
    assert_eq!(errno(fs::read(tree.path(2, "cold/f1"))), Errno::IO);
    assert!(
        start.elapsed() < Duration::from_secs(12),
        "EIO after {:?}",
        start.elapsed()
    );
    hits(leaf, 50);
    assert!(leaf.is_alive());
    assert_eq!(
        errno(fs::read(tree.path(2, "cold/f2"))),
        Errno::IO,
        "again, not an empty file"
    );
}

/// A parent that hangs and comes back: the reads that failed meanwhile are not remembered.
#[test]
fn a_failed_read_is_not_remembered() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin(5);
    let tree = Tree::launch(2, 1, origin.path(), &["--request-timeout", "2s"]);
    warm(tree.leaf());
    tree.root().signal(Signal::STOP);
    for number in 0..5 {
        let path = tree.path(1, format!("cold/f{number}"));
        assert_eq!(
            errno(within(Duration::from_secs(20), move || fs::read(path))),
            Errno::IO
        );
    }
    tree.root().signal(Signal::CONT);
    eventually(Duration::from_secs(20), "the files are read", || {
        fs::read(tree.path(1, "cold/f0")).is_ok()
    });
    for number in 0..5 {
        let content = fs::read(tree.path(1, format!("cold/f{number}"))).unwrap();
        assert!(content == noise(1000 + number, 4000));
    }
}

/// 500 readers hang in misses. A hit that needs the daemon is as fast as before, and when the parent
/// goes on, every reader gets its bytes.
#[test]
fn five_hundred_hanging_misses_do_not_slow_a_hit() {
    if !is_root() {
        skip!("needs root");
    }
    const READERS: u64 = 500;
    let origin = origin(READERS);
    let tree = Tree::launch(2, 1, origin.path(), &["--request-timeout", "100s"]);
    let leaf = tree.leaf().clone();
    warm(&leaf);
    let free = hits(&leaf, 300);
    tree.root().signal(Signal::STOP);
    let before = leaf.stats();
    let point = leaf.point.clone();
    let (done, finished) = std::sync::mpsc::sync_channel(READERS.try_into().unwrap());
    for number in 0..READERS {
        let (path, done) = (point.join(format!("cold/f{number}")), done.clone());
        let read = move || drop(done.send((number, fs::read(path))));
        drop(
            std::thread::Builder::new()
                .stack_size(64 << 10)
                .spawn(read)
                .unwrap(),
        );
    }
    eventually(Duration::from_secs(20), "all readers wait", || {
        leaf.stats().since(&before, "fuse.software.requests.read") >= READERS
    });
    assert!(finished.try_recv().is_err(), "nobody has been answered");
    let busy = hits(&leaf, 300);
    let at = |times: &[Duration], percent: usize| times[times.len() * percent / 100];
    eprintln!(
        "a hit takes {:?} (95 %: {:?}), with {READERS} hanging misses {:?} (95 %: {:?})",
        at(&free, 50),
        at(&free, 95),
        at(&busy, 50),
        at(&busy, 95)
    );
    let bound = 4 * at(&free, 50) + Duration::from_millis(2);
    assert!(
        at(&busy, 50) < bound,
        "a hit takes {:?} instead of {:?}",
        at(&busy, 50),
        at(&free, 50)
    );
    tree.root().signal(Signal::CONT);
    for _ in 0..READERS {
        let (number, content) = finished.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(
            content.unwrap() == noise(1000 + number, 4000),
            "file {number}"
        );
    }
}

/// SIGKILL ends a process that waits for a miss at once, and nothing of its request remains.
#[test]
fn a_killed_reader_goes_away_at_once() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin(3);
    let tree = Tree::launch(2, 1, origin.path(), &["--request-timeout", "100s"]);
    warm(tree.leaf());
    tree.root().signal(Signal::STOP);
    for number in 0..3 {
        let mut reader = reader(&tree.path(1, format!("cold/f{number}")));
        assert!(
            reader.exit_within(Duration::from_millis(500)).is_none(),
            "it waits"
        );
        reader.signal(Signal::KILL);
        let start = Instant::now();
        assert!(
            reader.exit_within(Duration::from_secs(5)).is_some(),
            "it hangs"
        );
        eprintln!("a killed reader was gone after {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(2));
    }
    tree.root().signal(Signal::CONT);
    assert!(fs::read(tree.path(1, "cold/f0")).unwrap() == noise(1000, 4000));
}

/// A daemon ends by SIGTERM and by `unmount --force` while readers hang in it: the daemon and the mount are
/// gone within the bound, and the readers get an error.
#[test]
fn a_daemon_ends_with_readers_inside() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin(8);
    let tree = Tree::launch(3, 2, origin.path(), &["--request-timeout", "100s"]);
    for rank in [1, 2] {
        warm(&tree.nodes[rank]);
    }
    tree.root().signal(Signal::STOP);
    let mut readers: Vec<Background> = (0..16)
        .map(|number| reader(&tree.path(1 + number % 2, format!("cold/f{}", number / 2))))
        .collect();
    assert!(
        readers[15]
            .exit_within(Duration::from_millis(500))
            .is_none(),
        "they wait"
    );
    tree.nodes[1].signal(Signal::TERM);
    let start = Instant::now();
    check(copperfs(["unmount", "--force"]).arg(&tree.nodes[2].point));
    for node in &tree.nodes[1..] {
        eventually(Duration::from_secs(20), "the daemon is gone", || {
            !node.is_alive()
        });
        assert!(!node.is_mounted());
        // The unmount may have taken away a mount point that the launch had made.
        assert_eq!(fs::read_dir(&node.point).map_or(0, Iterator::count), 0);
    }
    eprintln!("both were gone after {:?}", start.elapsed());
    are_let_go(&mut readers);
}

/// Readers inside a daemon that has ended get an error, and soon.
fn are_let_go(readers: &mut [Background]) {
    for reader in readers {
        let status = reader
            .exit_within(Duration::from_secs(5))
            .expect("readers are let go");
        assert!(!status.success());
    }
}

/// A killed daemon leaves a mount that says so; the next `mount` there takes it away, and so does
/// `unmount`.
#[test]
fn the_mount_of_a_killed_daemon_is_cleaned() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin(1);
    let scratch = Scratch::new();
    let point = scratch.dir("mnt");
    let flag = format!("/=file://{}", origin.path().display());
    let start = || Mount::at(&point, &mut copperfs(["mount", "--origin", &flag]));
    let killed = start();
    let open = fs::File::open(killed.path("hot/f0")).unwrap();
    killed.kill();
    eventually(Duration::from_secs(5), "it is dead", || !killed.is_alive());
    // The second while the kernel is still taking the connection down.
    let number = errno(fs::metadata(killed.path("cold/f0")));
    assert!(
        [Errno::NOTCONN, Errno::CONNABORTED].contains(&number),
        "{number}"
    );
    let second = start();
    assert!(fs::read(second.path("hot/f1")).unwrap() == noise(1, SIZE));
    drop(open);
    second.kill();
    eventually(Duration::from_secs(5), "it is dead", || !second.is_alive());
    let said = check(copperfs(["unmount"]).arg(&point));
    assert!(said.contains("gone already"), "{said}");
    assert!(!second.is_mounted());
    assert_eq!(fs::read_dir(&point).unwrap().count(), 0);
}

/// `unmount --force` ends the daemon of a mount that is in use by an open file, a working directory or a
/// mapping.
#[test]
fn unmount_ends_a_daemon_whose_mount_is_in_use() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin(1);
    let mount = Mount::of(origin.path());
    let open = fs::File::open(mount.path("hot/f0")).unwrap();
    let mut inside = Command::new("sleep");
    inside.arg("60").current_dir(mount.path("hot"));
    let _inside = Background::spawn(&mut inside);
    let start = Instant::now();
    mount.unmount();
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "after {:?}",
        start.elapsed()
    );
    drop(open);
}

/// The same when another mount namespace holds a copy of the mount, so that the kernel never tells the
/// daemon that it is gone.
#[test]
fn unmount_ends_a_daemon_whose_mount_another_namespace_holds() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin(1);
    let mount = Mount::of(origin.path());
    let mut hold = Command::new("unshare");
    hold.args([
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        "echo held; exec sleep 60",
    ]);
    let mut holder = Background::spawn(hold.stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut said = String::new();
    BufReader::new(holder.stdout())
        .read_line(&mut said)
        .unwrap();
    assert_eq!(said, "held\n");
    let point = mount.node.point.clone();
    let start = Instant::now();
    mount.unmount();
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "after {:?}",
        start.elapsed()
    );
    let inside = format!(
        "/proc/{}/root{}/hot/f0",
        holder.pid().as_raw_nonzero(),
        point.display()
    );
    let left = within(Duration::from_secs(10), move || fs::read(inside));
    assert!(left.is_err(), "nobody serves it any more");
}

/// A process that runs from the mount when its daemon dies is not stuck.
#[test]
fn readers_of_a_killed_daemon_get_errors() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin(4);
    let tree = Tree::launch(2, 1, origin.path(), &["--request-timeout", "100s"]);
    warm(tree.leaf());
    tree.root().signal(Signal::STOP);
    let mut readers: Vec<Background> = (0..4)
        .map(|number| reader(&tree.path(1, format!("cold/f{number}"))))
        .collect();
    assert!(
        readers[3].exit_within(Duration::from_millis(300)).is_none(),
        "they wait"
    );
    tree.leaf().kill();
    are_let_go(&mut readers);
}

/// An idle daemon does nothing.
#[test]
fn an_idle_daemon_uses_no_processor() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = origin(1);
    let tree = Tree::launch(2, 1, origin.path(), &[]);
    warm(tree.leaf());
    // Work that the reads began ends meanwhile. The five seconds after it are measured.
    std::thread::sleep(Duration::from_secs(1));
    let used = || -> Vec<[u64; 2]> {
        let of = |node: &Node| [cpu_ticks(node.pid), voluntary_switches(node.pid)];
        tree.nodes.iter().map(of).collect()
    };
    let before = used();
    std::thread::sleep(Duration::from_secs(5));
    let after = used();
    eprintln!("ticks and switches in 5 idle seconds: {before:?} to {after:?}");
    for ([ticks, switches], [ticks_before, switches_before]) in after.iter().zip(&before) {
        // On a slow machine the timers of an unoptimized build take five ticks, so the switches are the sharper bound.
        assert!(ticks - ticks_before <= 15);
        assert!(switches - switches_before <= 100);
    }
}
