//! Changes at the origin as readers see them, before and after `clear`.

use crate::skip;
use crate::support::fixture::noise;
use crate::support::kernel::forget_pages;
use crate::support::{Mount, Scratch, Tree, errno, eventually, is_root, python};
use rustix::io::Errno;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

/// Reads a file that a reader was just told is stale. The name is invalidated beside that answer, not
/// before it, so for a moment it may still lead to the old file.
fn read_again(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut read = fs::read(path);
    eventually(Duration::from_secs(1), "its name is invalidated", || {
        let stale = read
            .as_ref()
            .is_err_and(|error| Errno::from_io_error(error) == Some(Errno::STALE));
        if stale {
            read = fs::read(path);
        }
        !stale
    });
    read
}

/// A file is listed, removed at the origin, then read: the reader is told, and next time the name is
/// gone.
#[test]
fn a_file_removed_after_it_was_listed_is_stale_and_then_gone() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let file = origin.file("dir/file", "content");
    origin.file("dir/other", "other");
    origin.settle();
    let mount = Mount::of(origin.path());
    let mounted = mount.path("dir/file");
    assert_eq!(fs::metadata(&mounted).unwrap().len(), 7);
    fs::remove_file(file).unwrap();
    assert_eq!(errno(fs::read(&mounted)), Errno::STALE);
    assert_eq!(errno(read_again(&mounted)), Errno::NOENT);
    let names: Vec<_> = fs::read_dir(mount.path("dir"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["other"]);
    assert_eq!(fs::read(mount.path("dir/other")).unwrap(), b"other");
}

/// The same with a changed file: a reader of the old version gets an error, and every reader that opens it again reads
/// the new version, on every node.
#[test]
fn a_file_changed_after_it_was_listed_is_stale_and_then_new() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let file = origin.file("dir/file", "old");
    origin.settle();
    let tree = Tree::launch(3, 1, origin.path(), &[]);
    let old = fs::metadata(tree.path(2, "dir/file")).unwrap();
    fs::write(&file, "new and longer").unwrap();
    assert_eq!(errno(fs::read(tree.path(2, "dir/file"))), Errno::STALE);
    for rank in [2, 0, 1] {
        let read = read_again(&tree.path(rank, "dir/file"));
        assert_eq!(read.unwrap(), b"new and longer", "rank {rank}");
    }
    let new = fs::metadata(tree.path(2, "dir/file")).unwrap();
    assert_eq!(new.len(), 14);
    assert_ne!(new.ino(), old.ino(), "a version is an inode");
}

/// A file that grows while it is read in blocks: all returned bytes are of one version, and a reader that opens it
/// afterwards reads all of the new one.
#[test]
fn a_file_that_grows_while_it_is_read_never_mixes_versions() {
    if !is_root() {
        skip!("needs root");
    }
    const OLD: usize = 24 << 20;
    let origin = Scratch::new();
    let content = noise(3, OLD);
    let path = origin.file("file", &content);
    origin.settle();
    let mount = Mount::with(origin.path(), &["--whole-file-max", "1MiB"]);
    let reader = fs::File::open(mount.path("file")).unwrap();
    let mut start = vec![0; 4096];
    reader.read_exact_at(&mut start, 0).unwrap();
    assert_eq!(start, content[..4096]);
    fs::File::options()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b"grown")
        .unwrap();
    let mut end = vec![0; 4096];
    let told = errno(reader.read_exact_at(&mut end, (OLD - 4096) as u64));
    assert_eq!(told, Errno::STALE);
    let whole = read_again(&mount.path("file")).unwrap();
    assert_eq!(whole.len(), OLD + 5);
    assert!(whole[..OLD] == content[..] && &whole[OLD..] == b"grown");
}

/// `clear PATH`: new content and new size are seen at once. A reader that has the old file open continues with the old
/// bytes, and sees none of the new ones.
#[test]
fn clear_shows_what_is_new_and_keeps_what_is_open() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let file = origin.file("dir/file", "old content");
    origin.file("dir/gone", "gone");
    origin.file("elsewhere/file", "elsewhere");
    origin.settle();
    let mount = Mount::of(origin.path());
    let mounted = mount.path("dir/file");
    assert_eq!(fs::read(&mounted).unwrap(), b"old content");
    assert_eq!(
        fs::read(mount.path("elsewhere/file")).unwrap(),
        b"elsewhere"
    );
    assert_eq!(errno(fs::metadata(mount.path("dir/new"))), Errno::NOENT);
    assert_eq!(fs::read_dir(mount.path("dir")).unwrap().count(), 2);
    let mut open = fs::File::open(&mounted).unwrap();
    let mut first = [0; 3];
    open.read_exact(&mut first).unwrap();

    fs::write(&file, "new").unwrap();
    fs::remove_file(origin.path().join("dir/gone")).unwrap();
    origin.file("dir/new", "a new file");
    origin.settle();
    assert_eq!(
        fs::read(&mounted).unwrap(),
        b"old content",
        "nothing changes before clear"
    );
    let before = mount.stats();
    mount.clear("/dir");

    assert_eq!(fs::metadata(&mounted).unwrap().len(), 3);
    assert_eq!(fs::read(&mounted).unwrap(), b"new");
    assert_eq!(fs::read(mount.path("dir/new")).unwrap(), b"a new file");
    assert_eq!(errno(fs::read(mount.path("dir/gone"))), Errno::NOENT);
    let after = mount.stats();
    let opened = after.since(&before, "origin.opens");
    assert_eq!(opened, 2, "only what was cleared is read again");
    let mut rest = Vec::new();
    match open.read_to_end(&mut rest) {
        Ok(_) => assert_eq!(rest, b" content"),
        Err(error) => assert_eq!(Errno::from_io_error(&error), Some(Errno::STALE)),
    }
    let after = mount.stats();
    let elsewhere = fs::read(mount.path("elsewhere/file")).unwrap();
    assert_eq!(elsewhere, b"elsewhere");
    mount.stats().assert_nothing_upstream(&after);
}

/// A mapping of a file goes on with the bytes of its version after a `clear`, or gets an error, but
/// never the new bytes.
#[test]
fn a_mapping_never_sees_the_bytes_of_another_version() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let file = origin.file("file", vec![b'o'; 1 << 20]);
    origin.settle();
    let mount = Mount::of(origin.path());
    let script = "import mmap, os, subprocess, sys
mounted, origin, *clear = sys.argv[1:]
fd = os.open(mounted, os.O_RDONLY)
old = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
assert old[0:8] == b'oooooooo' and old[-8:] == b'oooooooo'
open(origin, 'wb').write(b'n' * (1 << 20))
subprocess.run(clear, check=True, stdout=subprocess.DEVNULL)
assert open(mounted, 'rb').read() == b'n' * (1 << 20)
print('held', flush=True)
pieces = set(old[i:i + 1] for i in range(0, 1 << 20, 4096))
assert pieces == {b'o'}, pieces";
    let mut run = python();
    run.args(["-c", script]).arg(mount.path("file")).arg(&file);
    run.arg(env!("CARGO_BIN_EXE_copperfs"))
        .args(["clear", "--everything"])
        .arg(&mount.node.point);
    let finished = crate::support::run(&mut run);
    assert_eq!(finished.text(), "held\n", "{finished:?}");
    let signal = std::os::unix::process::ExitStatusExt::signal(&finished.status);
    // SIGBUS: the old bytes are nowhere any more, and the mapping says so.
    assert!(
        finished.status.success() || signal == Some(7),
        "{finished:?}"
    );
}

/// `clear` reaches all nodes: all four show the new file, and it is read from the origin once.
#[test]
fn clear_reaches_every_node() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let file = origin.file("dir/file", "old");
    origin.settle();
    let tree = Tree::launch(4, 2, origin.path(), &[]);
    for rank in 0..4 {
        assert_eq!(fs::read(tree.path(rank, "dir/file")).unwrap(), b"old");
    }
    fs::write(&file, "new and longer").unwrap();
    origin.settle();
    let before = tree.root().stats();
    tree.leaf().clear_everywhere("/dir");
    for rank in (0..4).rev() {
        assert_eq!(
            fs::read(tree.path(rank, "dir/file")).unwrap(),
            b"new and longer",
            "rank {rank}"
        );
    }
    let root = tree.root().stats();
    assert_eq!(root.since(&before, "origin.opens"), 1);
    assert_eq!(
        root.since(&before, "origin.listings"),
        2,
        "the directory, and the one that names it"
    );
}

/// A node that was cleared alone fetches again from its parent, which still has it all.
#[test]
fn clear_of_one_node_leaves_the_others_as_they_are() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("file", "content");
    origin.settle();
    let tree = Tree::launch(2, 1, origin.path(), &[]);
    assert_eq!(fs::read(tree.path(1, "file")).unwrap(), b"content");
    let before = tree.stats();
    tree.leaf().clear("/");
    assert_eq!(tree.leaf().stats().get("cache.data.entries"), 0);
    assert_eq!(fs::read(tree.path(1, "file")).unwrap(), b"content");
    let after = tree.stats();
    after[0].assert_nothing_upstream(&before[0]);
    assert!(after[1].since(&before[1], "upstream.requests") >= 2);
}

/// Pages that the kernel drops are read again from this node, without a message to its parent.
#[test]
fn pages_given_up_by_the_kernel_come_from_the_nodes_cache() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let content = noise(9, 300_000);
    origin.file("file", &content);
    origin.settle();
    let mount = Mount::of(origin.path());
    assert_eq!(fs::read(mount.path("file")).unwrap(), content);
    let before = mount.stats();
    let file = fs::File::open(mount.path("file")).unwrap();
    forget_pages(&file);
    assert_eq!(fs::read(mount.path("file")).unwrap(), content);
    let after = mount.stats();
    assert!(after.since(&before, "fuse.software.requests.read") > 0);
    after.assert_nothing_upstream(&before);
}
