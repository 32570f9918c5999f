//! Changes of every kind at the origin, one after another and under load: a read always returns one version of a file,
//! and never an older one than at the last `clear`.

use crate::skip;
use crate::support::fixture::settle;
use crate::support::kernel::open_modes;
use crate::support::{Mount, Scratch, Tree, is_root};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// `clear`, of the directory and of everything, in every open mode, while the old file is open: the
/// name leads to the new file at once, the open file never shows a byte of it.
#[test]
fn clear_with_the_old_file_open_in_every_mode() {
    if !is_root() {
        skip!("needs root");
    }
    const SIZE: usize = 2 << 20;
    for &mode in open_modes() {
        for cleared in ["/dir/file", "/dir", "/"] {
            let origin = Scratch::new();
            let file = origin.file("dir/sub/other", "other");
            drop(file);
            let file = origin.file("dir/file", vec![b'o'; SIZE]);
            settle(&file);
            let mount = Mount::with(origin.path(), &["--open", mode]);
            let mounted = mount.path("dir/file");
            // Twice, so that a passthrough mount has it whole.
            for _ in 0..2 {
                assert!(fs::read(&mounted).unwrap() == vec![b'o'; SIZE]);
            }
            let open = fs::File::open(&mounted).unwrap();
            let inside = std::process::Command::new("sleep")
                .arg("30")
                .current_dir(mount.path("dir/sub"))
                .spawn();
            let mut inside = inside.unwrap();
            fs::write(&file, vec![b'n'; SIZE]).unwrap();
            mount.clear(cleared);
            let what = format!("{mode}, clear {cleared}");
            assert!(fs::read(&mounted).unwrap() == vec![b'n'; SIZE], "{what}");
            assert_eq!(
                fs::read(mount.path("dir/sub/other")).unwrap(),
                b"other",
                "{what}"
            );
            let mut old = vec![0; SIZE];
            match open.read_exact_at(&mut old, 0) {
                Ok(()) => assert!(old == vec![b'o'; SIZE], "{what}: bytes of the new file"),
                Err(error) => {
                    assert_eq!(Errno::from_io_error(&error), Some(Errno::STALE), "{what}");
                }
            }
            inside.kill().unwrap();
            inside.wait().unwrap();
        }
    }
}

/// Files become directories, directories links, links files; names are swapped.
#[test]
fn clear_after_kinds_and_names_have_changed() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let at = |name: &str| origin.path().join(name);
    origin.file("dir/a", "first");
    origin.file("dir/b", "second");
    origin.file("dir/becomes_dir", "file");
    origin.file("dir/becomes_link/inside", "inside");
    symlink("a", at("dir/becomes_file")).unwrap();
    symlink("a", at("dir/turns")).unwrap();
    origin.settle();
    let tree = Tree::launch(2, 1, origin.path(), &[]);
    let seen = |name: &str| fs::read_to_string(tree.path(1, name));
    assert_eq!(seen("dir/a").unwrap(), "first");
    assert_eq!(seen("dir/b").unwrap(), "second");
    assert_eq!(seen("dir/turns").unwrap(), "first");
    assert_eq!(seen("dir/becomes_file").unwrap(), "first");
    assert_eq!(seen("dir/becomes_dir").unwrap(), "file");
    assert_eq!(seen("dir/becomes_link/inside").unwrap(), "inside");

    renameat_with(CWD, at("dir/a"), CWD, at("dir/b"), RenameFlags::EXCHANGE).unwrap();
    fs::remove_file(at("dir/becomes_dir")).unwrap();
    origin.file("dir/becomes_dir/inside", "now inside");
    fs::remove_dir_all(at("dir/becomes_link")).unwrap();
    symlink("b", at("dir/becomes_link")).unwrap();
    fs::remove_file(at("dir/becomes_file")).unwrap();
    fs::write(at("dir/becomes_file"), "now a file").unwrap();
    fs::remove_file(at("dir/turns")).unwrap();
    symlink("b", at("dir/turns")).unwrap();
    tree.leaf().clear_everywhere("/dir");

    assert_eq!(seen("dir/a").unwrap(), "second");
    assert_eq!(seen("dir/b").unwrap(), "first");
    assert_eq!(seen("dir/becomes_dir/inside").unwrap(), "now inside");
    assert_eq!(seen("dir/becomes_link").unwrap(), "first");
    assert_eq!(seen("dir/becomes_file").unwrap(), "now a file");
    assert_eq!(
        fs::read_link(tree.path(1, "dir/turns")).unwrap(),
        Path::new("b")
    );
    assert_eq!(seen("dir/turns").unwrap(), "first");
}

/// Which version a file's content is of; every byte says it.
fn version_of(content: &[u8]) -> Option<u64> {
    let words = content.chunks_exact(8);
    let first = words.clone().next()?;
    let same = words.clone().all(|word| word == first) && words.remainder().is_empty();
    same.then(|| u64::from_le_bytes(first.try_into().unwrap()))
}

const FILES: usize = 12;

/// Replaces all files by those of `version`. Sizes repeat from one version to the next but one, so that
/// a size alone proves nothing.
fn write(origin: &Scratch, version: u64) {
    for number in 0..FILES {
        let words = 1 + (number * 9001 + usize::try_from(version % 2).unwrap() * 511) % 60_000;
        let fresh = origin.file(".fresh", version.to_le_bytes().repeat(words));
        let name = origin.dir("dir").join(format!("f{number}"));
        fs::rename(fresh, name).unwrap();
    }
}

/// Reads a file and returns its version; `None` if the reader got the error for a changed file.
fn read_version(path: &Path) -> Option<u64> {
    let mut content = Vec::new();
    let read = fs::File::open(path).and_then(|mut file| file.read_to_end(&mut content));
    match read {
        Ok(_) => {
            let version = version_of(&content);
            Some(version.unwrap_or_else(|| panic!("{}: a mixture", path.display())))
        }
        Err(error) if Errno::from_io_error(&error) == Some(Errno::STALE) => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// A writer replaces files and clears the tree after each round, while readers on all nodes read. No read mixes
/// versions, and no read that begins after a `clear` has returned sees an older version.
#[test]
fn readers_under_change_never_see_a_mixture_nor_what_was_cleared() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    write(&origin, 1);
    let tree = Tree::launch(3, 1, origin.path(), &[]);
    let cleared = AtomicU64::new(1);
    let done = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    let read_on = |rank: usize| {
        for number in (0..FILES).cycle() {
            if done.load(Ordering::Acquire) {
                return;
            }
            let at_least = cleared.load(Ordering::Acquire);
            if let Some(version) = read_version(&tree.path(rank, format!("dir/f{number}"))) {
                let what = format!("rank {rank}, f{number}: version {version}");
                assert!(version >= at_least, "{what} after {at_least} was cleared");
                reads.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let write_on = || {
        let start = Instant::now();
        let mut version = 1;
        while start.elapsed() < Duration::from_secs(8) {
            version += 1;
            write(&origin, version);
            tree.leaf().clear_everywhere("/dir");
            cleared.store(version, Ordering::Release);
        }
        version
    };
    std::thread::scope(|scope| {
        let read_on = &read_on;
        (0..3).for_each(|rank| drop(scope.spawn(move || read_on(rank))));
        // Readers end whatever becomes of the writer.
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(write_on));
        done.store(true, Ordering::Release);
        eprintln!(
            "{} reads, versions {written:?}",
            reads.load(Ordering::Relaxed)
        );
        assert!(written.is_ok_and(|versions| versions > 3));
    });
    assert!(reads.load(Ordering::Relaxed) > 100);
    for node in tree.stats() {
        assert_eq!(node.get("verify.failures"), 0);
    }
}
