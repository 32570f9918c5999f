//! Old versions of replaced files, for readers that have them open: by their hash, from a node on the way to the root.

use super::SOON;
use crate::skip;
use crate::support::fixture::{checksums, noise, settle};
use crate::support::kernel::forget_pages;
use crate::support::tree::Members;
use crate::support::{Mount, Scratch, eventually, is_root, python};
use rustix::io::Errno;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::Stdio;

/// Two blocks, and little enough to come whole: of pieces no hash is kept.
const SIZE: usize = 1_100_000;

/// Maps a file, and touches no page of it until it is told to.
const HOLDER: &str = "import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
held = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
print('held', flush=True)
sys.stdin.readline()
sys.stdout.buffer.write(held[:])";

/// Reads so much else through the leaf that it has nothing of the files any more, in memory and on the
/// disk.
fn push_out(leaf: &Mount) {
    let before = leaf.stats();
    checksums(&leaf.path("others"));
    let evicted = |counter| leaf.stats().since(&before, counter);
    eventually(SOON, "the store is full", || evicted("disk.evictions") > 8);
    assert!(evicted("cache.data.evictions") > 8);
}

/// A file that was replaced by one with the same bytes, which a node further up has read since, continues under the old
/// open file and mapping. If no node has the bytes, the answer is `ESTALE`.
#[test]
fn old_bytes_go_on_while_any_node_on_the_way_up_has_them() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let (same, gone) = (noise(1, SIZE), noise(2, SIZE));
    origin.file("dir/same", &same);
    origin.file("dir/gone", &gone);
    for number in 0..16 {
        origin.file(&format!("others/f{number}"), noise(100 + number, 6 << 20));
    }
    origin.settle();
    let members = Members::new(3, origin.path());
    let disk = Scratch::new();
    let disk = format!("{}:16MiB", disk.path().join("disk").display());
    let root = members.start(0, &[]);
    let middle = members.start(1, &[]);
    let leaf = members.start(2, &["--memory", "32MiB", "--disk", &disk]);

    let open = |name: &str| fs::File::open(leaf.path("dir").join(name)).unwrap();
    let (open_same, open_gone) = (open("same"), open("gone"));
    let read = |file: &fs::File| {
        forget_pages(file);
        let mut bytes = vec![0; SIZE];
        file.read_exact_at(&mut bytes, 0).map(|()| bytes)
    };
    assert!(read(&open_same).unwrap() == same);
    assert!(read(&open_gone).unwrap() == gone);
    let mut hold = python();
    hold.args(["-c", HOLDER]).arg(leaf.path("dir/same"));
    hold.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = hold.spawn().unwrap();
    let mut from_holder = BufReader::new(holder.stdout.take().unwrap());
    let mut line = String::new();
    from_holder.read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    push_out(&leaf);

    // New versions of both, seen by those above the leaf.
    fs::write(origin.path().join("dir/same"), &same).unwrap();
    fs::write(origin.path().join("dir/gone"), noise(3, SIZE)).unwrap();
    settle(&origin.path().join("dir/gone"));
    for node in [&root, &middle] {
        node.clear("/dir");
    }
    assert!(fs::read(middle.path("dir/same")).unwrap() == same);

    // The mapping first, because a read of the open file caches the bytes again.
    forget_pages(&open_same);
    holder.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut mapped = Vec::new();
    std::io::Read::read_to_end(&mut from_holder, &mut mapped).unwrap();
    assert!(holder.wait().unwrap().success());
    assert!(mapped == same, "the mapping shows other bytes");
    assert!(
        leaf.log().contains("came from another node, by its hash"),
        "it was not evicted"
    );
    assert!(read(&open_same).unwrap() == same);
    let failed = read(&open_gone).unwrap_err();
    assert_eq!(Errno::from_io_error(&failed), Some(Errno::STALE));
}
