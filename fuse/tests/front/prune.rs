//! The kernel drops inodes that the backend has no room for; inodes in use stay.

use crate::fixture::{Fixture, SOON};
use crate::waiting::eventually;
use copperfs_fuse::{Ino, Op};
use std::fs;

/// Looks up the names of a directory of the mount, and then makes the backend ask for all of them to be
/// dropped.
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
    eventually(SOON, "the kernel forgets what nothing uses", || {
        files.iter().filter(|ino| known(ino)).count() == 1
    });
    assert!(known(&files[7]), "the open file stays");
    assert!(known(&sub), "and so does its directory");

    let before = fixture.requests(Op::Lookup);
    assert_eq!(std::io::read_to_string(open).unwrap(), "content");
    assert_eq!(
        fs::read(dir.join("f8")).unwrap(),
        b"content",
        "it comes back"
    );
    assert!(fixture.requests(Op::Lookup) > before);
}

#[test]
fn the_kernel_drops_inodes_that_it_is_told_to() {
    prune_all(false);
}

#[test]
fn a_kernel_that_drops_names_only_drops_those_of_files() {
    prune_all(true);
}
