//! The caches of a node and their limits, and pushes into the kernel.

use crate::skip;
use crate::support::fixture::{checksums, noise};
use crate::support::kernel::{KernelCache, forget_pages};
use crate::support::{Mount, Scratch, Tree, eventually, is_root};
use std::fs;
use std::time::Duration;

/// A cache that is smaller than the files read stays within its limit and evicts, and every byte is right.
#[test]
fn a_small_cache_keeps_its_bound_under_either_policy() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    for number in 0..120 {
        origin.file(
            &format!("d{}/f{number}", number % 5),
            noise(number, 1 << 20),
        );
    }
    let expected = checksums(origin.path());
    for policy in ["s3-fifo", "lru"] {
        let flags = ["--memory", "64MiB", "--eviction", policy];
        let mount = Mount::with(origin.path(), &flags);
        for _ in 0..2 {
            assert_eq!(checksums(&mount.node.point), expected, "{policy}");
            let stats = mount.stats();
            assert!(stats.get("cache.data.bytes") <= 64 << 20, "{policy}");
            assert!(stats.get("cache.data.evictions") > 0, "{policy}");
        }
    }
}

/// The whole of a small file comes with its first byte; of a large one, blocks that were asked for.
#[test]
fn small_files_come_whole_and_large_ones_in_blocks() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("small", noise(1, 3 << 20));
    origin.file("large", noise(2, 64 << 20));
    origin.settle();
    let mount = Mount::with(origin.path(), &["--whole-file-max", "4MiB"]);
    let start = |name: &str| {
        use std::os::unix::fs::FileExt;
        let mut piece = [0; 4096];
        fs::File::open(mount.path(name))
            .unwrap()
            .read_exact_at(&mut piece, 0)
            .unwrap();
    };
    let before = mount.stats();
    start("small");
    eventually(Duration::from_secs(5), "the whole file is here", || {
        mount.stats().since(&before, "origin.read_bytes") == 3 << 20
    });
    start("large");
    let large = mount.stats().since(&before, "origin.read_bytes") - (3 << 20);
    assert!(
        large < 32 << 20,
        "{large} bytes of a large file for its first 4096"
    );
    assert!(fs::read(mount.path("large")).unwrap() == noise(2, 64 << 20));
    assert_eq!(
        mount.stats().since(&before, "origin.read_bytes"),
        67 << 20,
        "each byte once"
    );
}

/// `--bypass-above`: a big file is read from storage by the node itself, a small one through the tree.
#[test]
fn bypass_above_reads_big_files_from_storage() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("small", noise(1, 100_000));
    origin.file("big", noise(2, 3 << 20));
    origin.settle();
    let tree = Tree::launch(2, 1, origin.path(), &["--bypass-above", "1MiB"]);
    assert!(fs::read(tree.path(1, "small")).unwrap() == noise(1, 100_000));
    assert!(fs::read(tree.path(1, "big")).unwrap() == noise(2, 3 << 20));
    let stats = tree.stats();
    assert_eq!(
        (stats[0].get("origin.opens"), stats[1].get("origin.opens")),
        (1, 1)
    );
    assert_eq!(stats[1].get("origin.read_bytes"), 3 << 20);
}

/// Small files that are on the node are in the kernel's page cache once their directory is listed:
/// reading them sends no READ.
#[test]
fn listing_a_directory_pushes_its_files_into_the_page_cache() {
    if !is_root() {
        skip!("needs root");
    }
    const FILES: u64 = 200;
    let origin = Scratch::new();
    for number in 0..FILES {
        origin.file(&format!("dir/f{number}"), noise(number, 20_000));
    }
    origin.settle();
    let mount = Mount::of(origin.path());
    let read_all = || {
        for number in 0..FILES {
            let content = fs::read(mount.path(format!("dir/f{number}"))).unwrap();
            assert!(content == noise(number, 20_000), "file {number}");
        }
    };
    read_all();
    // Some tries: the kernel may give up pages at any moment.
    let mut reads = Vec::new();
    for _ in 0..6 {
        KernelCache::to_be_dropped().drop_all();
        let kernel = KernelCache::undisturbed();
        let before = mount.stats();
        let listed = fs::read_dir(mount.path("dir")).unwrap().count();
        assert_eq!(listed as u64, FILES);
        eventually(Duration::from_secs(10), "all is pushed", || {
            mount.stats().get("push.software.pending") == 0
        });
        let pushed = mount.stats();
        read_all();
        let after = mount.stats();
        drop(kernel);
        after.assert_nothing_upstream(&before);
        let count = (
            pushed.since(&before, "push.software.files"),
            after.since(&before, "fuse.software.requests.read"),
        );
        reads.push(count);
        if count == (FILES, 0) {
            return;
        }
    }
    panic!("files pushed, and READs that came all the same: {reads:?}");
}

/// What is pushed after a `clear` is the new version, even if it looks the same from outside.
#[test]
fn what_is_pushed_is_never_an_old_version() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let write = |round: u64| {
        for number in 0..50 {
            origin.file(
                &format!("dir/f{number}"),
                noise(round * 100 + number, 10_000),
            );
        }
    };
    write(0);
    let mount = Mount::of(origin.path());
    for round in 0..4 {
        if round > 0 {
            write(round);
            mount.clear("/dir");
        }
        for _ in 0..2 {
            assert_eq!(fs::read_dir(mount.path("dir")).unwrap().count(), 50);
            for number in 0..50 {
                let path = mount.path(format!("dir/f{number}"));
                let content = fs::read(&path).unwrap();
                assert!(
                    content == noise(round * 100 + number, 10_000),
                    "round {round}"
                );
                forget_pages(&fs::File::open(&path).unwrap());
            }
        }
    }
}

/// Without push nothing is stored unasked.
#[test]
fn push_can_be_turned_off() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("dir/file", noise(1, 1000));
    let mount = Mount::with(origin.path(), &["--push=off", "--readdir-plus", "always"]);
    for _ in 0..3 {
        assert_eq!(fs::read_dir(mount.path("dir")).unwrap().count(), 1);
        assert!(fs::read(mount.path("dir/file")).unwrap() == noise(1, 1000));
    }
    assert_eq!(mount.stats().get("push.software.files"), 0);
}
