//! Opens that bypass the daemon.

use crate::fixture::{Fixture, SOON, python};
use crate::skipping::{is_root, skipped};
use crate::waiting::eventually;
use copperfs_fuse::{Ino, MountError, MountOptions, Op, OpenMode};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const SIZE: usize = 3 << 20;

fn passthrough(fill: impl FnOnce(&crate::memory::Memory)) -> Option<Fixture> {
    if !is_root() {
        skipped("needs root");
        return None;
    }
    Some(Fixture::with(
        |options| options.open = OpenMode::Passthrough,
        fill,
    ))
}

fn backing(bytes: &[u8]) -> Arc<OwnedFd> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Arc::new(file.into())
}

#[test]
fn whole_files_are_read_without_the_daemon() {
    let Some(fixture) = passthrough(|memory| {
        let ino = memory.file(Ino::ROOT, "f", vec![3; SIZE]);
        memory.change(ino, |node| node.backing = Some(backing(&vec![3; SIZE])));
    }) else {
        return;
    };
    let path = fixture.path("f");
    for _ in 0..3 {
        // Two opens at a time share one backing id.
        let (first, second) = (File::open(&path).unwrap(), File::open(&path).unwrap());
        assert!(std::fs::read(&path).unwrap() == vec![3; SIZE]);
        let mut bytes = vec![0; 1000];
        first.read_exact_at(&mut bytes, SIZE as u64 - 1000).unwrap();
        second.read_exact_at(&mut bytes, 5).unwrap();
    }
    let said = python(
        fixture.root(),
        "import mmap\n\
         for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):\n\
         \x20   f = open('f', 'rb')\n\
         \x20   m = mmap.mmap(f.fileno(), 0, flags=flags, prot=mmap.PROT_READ)\n\
         \x20   assert m[:] == bytes([3]) * len(m)\n\
         print(len(m))\n",
    );
    assert_eq!(said, format!("{SIZE}\n"));
    assert_eq!(fixture.requests(Op::Read), 0);
    eventually(SOON, "all opens are released", || {
        let state = fixture.memory.state();
        state.opened.len() == state.released.len()
    });
    assert_eq!(fixture.memory.state().opened.len(), 11);
}

#[test]
fn an_arriving_file_is_read_directly_and_bypasses_the_daemon_later() {
    let Some(fixture) = passthrough(|memory| {
        memory.file(Ino::ROOT, "f", vec![3; SIZE]);
    }) else {
        return;
    };
    let path = fixture.path("f");
    let direct = File::open(&path).unwrap();
    assert!(std::fs::read(&path).unwrap() == vec![3; SIZE]);
    let reads = fixture.requests(Op::Read);
    assert!(reads > 0);
    let ino = fixture.memory.state().opened[0];
    fixture
        .memory
        .change(ino, |node| node.backing = Some(backing(&vec![3; SIZE])));
    // The first open still exists, so the inode keeps its read path.
    let said = python(
        fixture.root(),
        "import mmap, os\n\
         f = open('f', 'rb')\n\
         m = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)\n\
         assert m[:] == bytes([3]) * len(m)\n\
         assert open('f', 'rb').read() == bytes([3]) * len(m)\n\
         print('both')\n",
    );
    assert_eq!(said, "both\n");
    drop(direct);
    eventually(SOON, "the direct opens are released", || {
        let state = fixture.memory.state();
        state.opened.len() == state.released.len()
    });
    let reads = fixture.requests(Op::Read);
    assert!(std::fs::read(&path).unwrap() == vec![3; SIZE]);
    assert_eq!(fixture.requests(Op::Read), reads);
}

#[test]
fn an_unusable_backing_file_costs_speed_only() {
    let Some(fixture) = passthrough(|memory| {
        let ino = memory.file(Ino::ROOT, "f", vec![3; SIZE]);
        let directory = File::open("/").unwrap();
        memory.change(ino, |node| node.backing = Some(Arc::new(directory.into())));
    }) else {
        return;
    };
    assert!(std::fs::read(fixture.path("f")).unwrap() == vec![3; SIZE]);
    assert!(fixture.requests(Op::Read) > 0);
}

/// Run again as an ordinary user by `user.rs`.
#[test]
#[ignore = "run by user::passthrough_needs_privilege"]
fn inner_passthrough_needs_privilege() {
    let directory = crate::cleanup::directory();
    let mut options = MountOptions::new(directory.path());
    options.open = OpenMode::Passthrough;
    let runtime = crate::fixture::runtime();
    let error = copperfs_fuse::mount(crate::memory::Memory::new(), options, runtime.handle());
    assert!(
        matches!(error, Err(MountError::PassthroughNeedsPrivilege)),
        "{error:?}"
    );
}
