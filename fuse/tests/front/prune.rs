//! The kernel drops inodes that the backend has no room for; inodes in use stay.

use crate::fixture::{Fixture, SOON};
use crate::waiting::eventually;
use copperfs_fuse::{Ino, Op};
use std::fs;

/// Looks up the names of a directory, and then makes the backend prune all of them.
fn prune_all(by_name: bool) {
    let fixture = Fixture::with(|options| options.prune_by_name = by_name, |_| {});
    let memory = &fixture.memory;
    let sub = memory.directory(Ino::ROOT, "d");
    let files: Vec<Ino> = (0..2000)
        .map(|i| memory.file(sub, format!("f{i}"), "content"))
        .collect();
    let dir = fixture.path("d");
    for i in 0..2000 {
        assert!(fs::metadata(dir.join(format!("f{i}"))).unwrap().is_file());
    }
    let open = fs::File::open(dir.join("f7")).unwrap();
    let known = |ino: &Ino| memory.state().references.contains_key(ino);
    assert!(files.iter().all(known));

    memory.state().prunable = files.clone();
    fixture.mount.notifier().prune();
    eventually(SOON, "the kernel forgets unused inodes", || {
        files.iter().filter(|ino| known(ino)).count() == 1
    });
    assert!(known(&files[7]), "the open file stays");
    assert!(known(&sub), "and so does its directory");

    let before = fixture.requests(Op::Lookup);
    assert_eq!(std::io::read_to_string(open).unwrap(), "content");
    assert_eq!(
        fs::read(dir.join("f8")).unwrap(),
        b"content",
        "a pruned file can be read again"
    );
    assert!(fixture.requests(Op::Lookup) > before);
}

#[test]
fn the_kernel_drops_pruned_inodes() {
    prune_all(false);
}

#[test]
fn pruning_by_name_drops_only_files() {
    prune_all(true);
}
