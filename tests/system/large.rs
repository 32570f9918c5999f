//! Files larger than any cache: read anywhere, in any order, by many, within the memory that was given.

use crate::skip;
use crate::support::fixture::noise;
use crate::support::kernel::most_memory;
use crate::support::{Mount, Scratch, Tree, is_root};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Offsets of `count` pages of a file of `size` bytes, scattered, each once.
fn scattered(count: u64, size: u64) -> impl Iterator<Item = u64> {
    let pages = size / 4096;
    // Odd, and so without a factor in common with a power of two.
    let step = (pages / 2 + 12_345) | 1;
    (0..count).map(move |at| at.wrapping_mul(step) % pages * 4096)
}

#[test]
fn a_file_of_terabytes_is_read_at_its_end_and_in_its_middle() {
    if !is_root() {
        skip!("needs root");
    }
    const SIZE: u64 = 3 << 40;
    let origin = Scratch::new();
    let places = [
        0,
        (1 << 40) - 3,
        (1 << 41) - 5,
        (1 << 41) + 7 * MIB,
        SIZE - 7,
    ];
    origin.hole("huge", SIZE, &places);
    origin.settle();
    let tree = Tree::launch(3, 1, origin.path(), &[]);
    let before = tree.root().stats();
    for node in tree.nodes.iter().rev() {
        let mounted = fs::File::open(node.point.join("huge")).unwrap();
        Scratch::check_hole(&mounted, SIZE, &places);
        let mut run = vec![1; 3 << 20];
        mounted.read_exact_at(&mut run, (5 << 39) + 100).unwrap();
        assert!(run.iter().all(|byte| *byte == 0));
    }
    let fetched = tree.root().stats().since(&before, "origin.read_bytes");
    assert!(fetched <= 16 * MIB, "{fetched} bytes read");
}

/// At the root and two hops away: scattered reads fetch only the requested bytes, once.
#[test]
fn scattered_reads_cost_what_they_ask_for() {
    if !is_root() {
        skip!("needs root");
    }
    const SIZE: u64 = 256 * MIB;
    let origin = Scratch::new();
    let content = noise(21, usize::try_from(SIZE).unwrap());
    origin.file("file", &content);
    origin.settle();
    let tree = Tree::launch(3, 1, origin.path(), &[]);
    let before = tree.root().stats();
    let leaf = fs::File::open(tree.path(2, "file")).unwrap();
    let mut asked = 0;
    for offset in scattered(500, SIZE) {
        let mut page = [0; 4096];
        leaf.read_exact_at(&mut page, offset).unwrap();
        let at = usize::try_from(offset).unwrap();
        assert!(page == content[at..at + 4096], "at {offset}");
        asked += 4096;
    }
    let fetched = tree.root().stats().since(&before, "origin.read_bytes");
    assert!(fetched <= 2 * asked, "{fetched} bytes read for {asked}");
    // The nodes on the way have cached the bytes.
    let before = tree.root().stats();
    let middle = fs::File::open(tree.path(1, "file")).unwrap();
    for offset in scattered(500, SIZE) {
        middle.read_exact_at(&mut [0; 4096], offset).unwrap();
    }
    assert_eq!(tree.root().stats().since(&before, "origin.read_bytes"), 0);
}

/// A table with its footer first and then two of its columns; a header and then all that follows it;
/// two readers in turn. No byte is fetched twice, and few bytes are fetched that are not read.
#[test]
fn checkpoints_and_tables_are_brought_once() {
    if !is_root() {
        skip!("needs root");
    }
    const SIZE: u64 = 96 * MIB;
    let origin = Scratch::new();
    let content = noise(22, usize::try_from(SIZE).unwrap());
    for name in ["table", "tensors", "shared"] {
        origin.file(name, &content);
    }
    origin.settle();
    let mount = Mount::with(origin.path(), &["--whole-file-max", "1MiB"]);
    let read = |file: &fs::File, range: std::ops::Range<u64>, step: u64| {
        for offset in (range.start..range.end).step_by(usize::try_from(step).unwrap()) {
            let mut piece = vec![0; usize::try_from(step.min(range.end - offset)).unwrap()];
            file.read_exact_at(&mut piece, offset).unwrap();
            let at = usize::try_from(offset).unwrap();
            assert!(piece == content[at..at + piece.len()], "at {offset}");
        }
    };
    let open = |name: &str| fs::File::open(mount.path(name)).unwrap();

    let before = mount.stats();
    let table = open("table");
    read(&table, SIZE - 8 * KIB..SIZE, 8 * KIB);
    let footer = mount.stats().since(&before, "origin.read_bytes");
    assert!(footer <= MIB, "{footer} bytes for a footer");
    read(&table, 10 * MIB..22 * MIB, 256 * KIB);
    read(&table, 60 * MIB..72 * MIB, 256 * KIB);
    let fetched = mount.stats().since(&before, "origin.read_bytes");
    assert!(fetched <= 52 * MIB, "{fetched} bytes for 24 MiB of columns");

    let before = mount.stats();
    read(&open("tensors"), 0..16 * KIB, 4 * KIB);
    read(&open("tensors"), 16 * KIB..SIZE, 300_000);
    let fetched = mount.stats().since(&before, "origin.read_bytes");
    assert_eq!(fetched, SIZE, "each byte of the tensors once");

    let before = mount.stats();
    let (one, other) = (open("shared"), open("shared"));
    for part in 0..48 {
        read(&one, part * MIB..(part + 1) * MIB, 128 * KIB);
        read(&other, (48 + part) * MIB..(49 + part) * MIB, 128 * KIB);
    }
    let fetched = mount.stats().since(&before, "origin.read_bytes");
    // The window of the first reaches into where the other began, in pieces.
    assert!(fetched <= SIZE + 2 * MIB, "{fetched} bytes read");
}

/// A node's memory stays within its limit for any pattern: one reader of large files, many readers at once, and scattered
/// reads.
#[test]
fn memory_stays_within_its_bound() {
    if !is_root() {
        skip!("needs root");
    }
    const MEMORY: u64 = 64 * MIB;
    const FILES: usize = 40;
    const SIZE: u64 = 12 * MIB;
    let origin = Scratch::new();
    for file in 0..FILES {
        origin.file(
            &format!("f{file}"),
            noise(file as u64, usize::try_from(SIZE).unwrap()),
        );
    }
    origin.settle();
    let mount = Mount::with(origin.path(), &["--memory", "64MiB"]);
    let pid = mount.node.pid;
    let check = |what: &str| {
        let most = most_memory(pid);
        eprintln!("{what}: {} MiB", most / MIB);
        assert!(most <= MEMORY + 64 * MIB, "{what}: {most} bytes");
    };
    let path = |file: usize| mount.path(format!("f{file}"));
    let before = mount.stats();
    // Here and there first: a file of 12 MiB is not brought whole to a node this small.
    let file = fs::File::open(path(0)).unwrap();
    for offset in scattered(100, SIZE) {
        file.read_exact_at(&mut [0; 4096], offset).unwrap();
    }
    let fetched = mount.stats().since(&before, "origin.read_bytes");
    assert!(fetched <= 2 * 100 * 4096, "{fetched} bytes read");
    let whole = |path: &Path, seed: usize| {
        let expected = noise(seed as u64, usize::try_from(SIZE).unwrap());
        assert!(fs::read(path).unwrap() == expected, "{}", path.display());
    };
    for file in 0..8 {
        whole(&path(file), file);
    }
    check("one reader");
    std::thread::scope(|scope| {
        for file in 8..FILES {
            let path = path(file);
            scope.spawn(move || whole(&path, file));
        }
    });
    check("32 readers");
    assert!(mount.stats().get("cache.data.bytes") <= MEMORY);
}
