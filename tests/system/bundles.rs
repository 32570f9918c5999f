//! Small files that travel by the directory: few requests, little waste, never a wrong byte.

use crate::skip;
use crate::support::fixture::noise;
use crate::support::kernel::KernelCache;
use crate::support::{Background, Scratch, Tree, eventually, is_root};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const DIRECTORIES: usize = 6;
const FILES: usize = 60;
const BYTES: usize = 10_000;

/// Directories of small files, old enough to be trusted.
fn small_files() -> Scratch {
    let origin = Scratch::new();
    for directory in 0..DIRECTORIES {
        for file in 0..FILES {
            origin.file(&name(directory, file), content(directory, file));
        }
    }
    origin.settle();
    origin
}

fn name(directory: usize, file: usize) -> String {
    format!("d{directory}/f{file:03}")
}

fn content(directory: usize, file: usize) -> Vec<u8> {
    noise((directory * 1000 + file) as u64, BYTES)
}

/// Reads all files in order, and says when a byte is wrong.
fn read_in_order(point: &Path) {
    for directory in 0..DIRECTORIES {
        for file in 0..FILES {
            let name = name(directory, file);
            assert!(
                fs::read(point.join(&name)).unwrap() == content(directory, file),
                "{name}"
            );
        }
    }
}

/// A leaf whose reader goes through cold directories sends one listing and at most two requests for each. Storage reads
/// every byte once. A second pass sends no request.
#[test]
fn a_directory_read_in_order_costs_a_leaf_three_requests_at_most() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = small_files();
    let tree = Tree::launch(4, 2, origin.path(), &[]);
    let _kernel = KernelCache::undisturbed();
    let before = tree.stats();
    read_in_order(&tree.leaf().point);
    let after = tree.stats();
    let grown = |rank: usize, key: &str| after[rank].since(&before[rank], key);
    let requests = grown(3, "upstream.requests");
    eprintln!(
        "{DIRECTORIES} directories of {FILES} files: {requests} requests, {} bundles, {} READs, {} files pushed",
        grown(3, "bundle.requests"),
        grown(3, "fuse.software.requests.read"),
        grown(3, "push.software.files"),
    );
    assert!(requests <= 3 * DIRECTORIES as u64, "{requests} requests");
    let bytes = (DIRECTORIES * FILES * BYTES) as u64;
    assert_eq!(grown(0, "origin.read_bytes"), bytes);
    assert_eq!(grown(0, "origin.opens"), (DIRECTORIES * FILES) as u64);
    assert!(
        grown(3, "bundle.wasted_bytes") * 5 <= grown(3, "bundle.useful_bytes"),
        "most of what came was read"
    );
    assert_eq!(
        grown(1, "bundle.requests"),
        0,
        "decided on by the leaf alone"
    );

    read_in_order(&tree.leaf().point);
    assert_eq!(
        tree.leaf().stats().since(&after[3], "upstream.requests"),
        0,
        "everything is here"
    );
}

/// Turned off, each file is a request of its own.
#[test]
fn bundles_can_be_turned_off() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = small_files();
    let tree = Tree::launch(2, 1, origin.path(), &["--bundles=false"]);
    let before = tree.leaf().stats();
    read_in_order(&tree.leaf().point);
    let after = tree.leaf().stats();
    assert_eq!(after.since(&before, "bundle.requests"), 0);
    assert!(after.since(&before, "upstream.requests") >= (DIRECTORIES * FILES) as u64);
}

/// A program that takes two files of every directory wastes no more than the credit.
#[test]
fn one_who_picks_files_wastes_no_more_than_the_credit() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    for directory in 0..12 {
        for file in 0..20 {
            origin.file(&format!("d{directory:02}/f{file:02}"), noise(7, 200_000));
        }
    }
    origin.settle();
    let tree = Tree::launch(2, 1, origin.path(), &[]);
    for directory in 0..12 {
        for file in [3, 11] {
            let path = tree.path(1, format!("d{directory:02}/f{file:02}"));
            assert!(fs::read(path).unwrap() == noise(7, 200_000));
        }
        // Fetches that nothing waits for go on meanwhile.
        std::thread::sleep(Duration::from_millis(50));
    }
    let stats = tree.leaf().stats();
    let (wasted, requests) = (
        stats.get("bundle.wasted_bytes"),
        stats.get("bundle.requests"),
    );
    assert!(wasted <= (8 << 20) + 2 * 20 * 200_000, "{wasted} bytes");
    assert!((1..=5).contains(&requests), "{requests} bundles");
}

/// Files that change while their directory is being read: old bytes, new bytes or ESTALE, never a
/// mixture, and after a look-up the new ones.
#[test]
fn a_file_that_changes_inside_a_bundle_is_never_wrong() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = small_files();
    let tree = Tree::launch(3, 1, origin.path(), &[]);
    let leaf = &tree.leaf().point;
    assert!(fs::read(leaf.join(name(0, 0))).unwrap() == content(0, 0));
    // The leaf knows the old versions by now.
    let changed = |file: usize| noise(90_000 + file as u64, BYTES + file);
    for file in (2..FILES).step_by(3) {
        origin.file(&name(0, file), changed(file));
    }
    for file in 0..FILES {
        match fs::read(leaf.join(name(0, file))) {
            Ok(bytes) => {
                let right = bytes == content(0, file) || bytes == changed(file);
                assert!(
                    right,
                    "{} bytes of f{file:03} are neither state",
                    bytes.len()
                );
            }
            Err(error) => assert_eq!(
                error.raw_os_error(),
                Some(rustix::io::Errno::STALE.raw_os_error()),
                "f{file:03}: {error}"
            ),
        }
    }
    tree.leaf().clear("/");
    for rank in 0..2 {
        tree.nodes[rank].clear("/");
    }
    tree.leaf().clear("/");
    for file in (2..FILES).step_by(3) {
        assert!(fs::read(leaf.join(name(0, file))).unwrap() == changed(file));
    }
}

/// A reader that is killed in the middle of a bundle leaves nothing hanging.
#[test]
fn a_killed_reader_leaves_nothing_behind() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = small_files();
    let tree = Tree::launch(3, 1, origin.path(), &[]);
    let leaf = &tree.leaf().point;
    for _ in 0..5 {
        let script = format!("cat {}/d*/f* > /dev/null", leaf.display());
        let reader = Background::spawn(Command::new("sh").args(["-c", &script]));
        // Somewhere in the middle, each time elsewhere.
        std::thread::sleep(Duration::from_millis(15));
        reader.signal(Signal::KILL);
        tree.leaf().clear("/");
    }
    let begun = Instant::now();
    read_in_order(leaf);
    assert!(begun.elapsed() < Duration::from_secs(20));
    eventually(Duration::from_secs(10), "everything is pushed", || {
        tree.leaf().stats().get("push.software.pending") == 0
    });
}

/// The thread that lists directories ahead does not prevent unmounting.
#[test]
fn unmounting_in_the_middle_of_bundles_works() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = small_files();
    for _ in 0..3 {
        let tree = Tree::launch(2, 1, origin.path(), &[]);
        let script = format!("cat {}/d*/f* > /dev/null", tree.leaf().point.display());
        let reader = Background::spawn(Command::new("sh").args(["-c", &script]));
        // Somewhere in the middle, each time elsewhere.
        std::thread::sleep(Duration::from_millis(20));
        reader.signal(Signal::KILL);
        // Every node is taken away as its guard drops, which fails the test if it does not work.
        drop(tree);
    }
}
