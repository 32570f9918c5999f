//! Invalidations. Each version of a file has its own inode, and open files keep theirs.

use crate::fixture::{Fixture, SOON};
use crate::waiting::eventually;
use bytes::Bytes;
use copperfs_fuse::{Ino, Op};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

#[test]
fn a_new_version_is_seen_and_open_files_keep_the_old_one() {
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "f", "old bytes");
    });
    let path = fixture.path("f");
    let old = std::fs::File::open(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"old bytes");
    let new = fixture.memory.file(Ino::ROOT, "f", "new and longer");
    assert_eq!(
        std::fs::read(&path).unwrap(),
        b"old bytes",
        "not invalidated yet"
    );
    let notifier = fixture.mount.notifier();
    fixture.runtime.block_on(async {
        notifier
            .invalidate_entry(Ino::ROOT, Bytes::from_static(b"f"))
            .await;
        notifier.flush().await;
    });
    assert_eq!(std::fs::read(&path).unwrap(), b"new and longer");
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), new.0);
    let mut bytes = [0; 64];
    let length = old.read_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes[..length], b"old bytes");
}

#[test]
fn invalidated_names_appear_and_disappear() {
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "gone", "x");
    });
    let error = std::fs::metadata(fixture.path("new")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(names(&fixture), ["gone"]);
    fixture.memory.file(Ino::ROOT, "new", "y");
    fixture.memory.change(Ino::ROOT, |root| {
        if let crate::memory::Content::Directory(entries) = &mut root.content {
            entries.retain(|(name, _)| name != "gone");
        }
    });
    let notifier = fixture.mount.notifier();
    fixture.runtime.block_on(async {
        notifier
            .invalidate_entry(Ino::ROOT, Bytes::from_static(b"new"))
            .await;
        notifier
            .invalidate_entry(Ino::ROOT, Bytes::from_static(b"gone"))
            .await;
        notifier.flush().await;
    });
    assert_eq!(std::fs::read(fixture.path("new")).unwrap(), b"y");
    assert!(std::fs::metadata(fixture.path("gone")).is_err());
    fixture.runtime.block_on(async {
        notifier.invalidate_inode(Ino::ROOT).await;
        notifier.flush().await;
    });
    assert_eq!(names(&fixture), ["new"]);
}

fn names(fixture: &Fixture) -> Vec<String> {
    std::fs::read_dir(fixture.root())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn invalidating_a_directory_invalidates_the_names_below() {
    let fixture = Fixture::new(|memory| {
        let directory = memory.directory(Ino::ROOT, "d");
        memory.file(directory, "f", "x");
    });
    let absent = fixture.path("d/absent");
    assert!(std::fs::metadata(&absent).is_err());
    assert!(std::fs::metadata(fixture.path("d/f")).is_ok());
    let lookups = fixture.requests(Op::Lookup);
    assert!(std::fs::metadata(&absent).is_err());
    assert_eq!(fixture.requests(Op::Lookup), lookups);
    let notifier = fixture.mount.notifier();
    fixture.runtime.block_on(async {
        notifier
            .invalidate_entry(Ino::ROOT, Bytes::from_static(b"d"))
            .await;
        notifier.flush().await;
    });
    assert!(std::fs::metadata(&absent).is_err());
    assert_eq!(
        fixture.requests(Op::Lookup),
        lookups + 2,
        "d and d/absent again"
    );
}

#[test]
fn all_names_can_be_expired_at_once() {
    let fixture = Fixture::new(|_| {});
    assert!(std::fs::metadata(fixture.path("no")).is_err());
    let notifier = fixture.mount.notifier();
    if !fixture.runtime.block_on(notifier.expire_all_entries()) {
        // Kernels before 6.16.
        return;
    }
    fixture.memory.file(Ino::ROOT, "no", "now");
    assert_eq!(std::fs::read(fixture.path("no")).unwrap(), b"now");
}

#[test]
fn a_hanging_lookup_delays_an_invalidation_but_no_answer() {
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "f", "x");
        memory.state().hanging_names.insert("hangs".into());
    });
    let path = fixture.path("hangs");
    let reader = std::thread::spawn(move || std::fs::metadata(path).is_err());
    eventually(SOON, "it hangs", || fixture.requests(Op::Lookup) == 1);
    let notifier = fixture.mount.notifier();
    fixture.runtime.block_on(async {
        // More than the queue holds: the senders wait, and no invalidation is lost.
        let flood = async {
            for _ in 0..copperfs_fuse::notifier::QUEUE_MAX * 2 {
                notifier
                    .invalidate_entry(Ino::ROOT, Bytes::from_static(b"f"))
                    .await;
            }
            notifier.flush().await;
        };
        let flood = tokio::time::timeout(Duration::from_millis(300), flood);
        assert!(
            flood.await.is_err(),
            "the directory is locked by the look-up"
        );
    });
    // Another request is answered meanwhile.
    assert!(std::fs::metadata(fixture.path(".")).is_ok());
    fixture.memory.release();
    assert!(reader.join().unwrap());
    let done = fixture
        .runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(10), notifier.flush()).await });
    assert!(done.is_ok());
    assert_eq!(std::fs::read(fixture.path("f")).unwrap(), b"x");
}

#[test]
fn notifications_after_the_end_return_at_once() {
    let fixture = Fixture::new(|_| {});
    let notifier = fixture.mount.notifier();
    let Fixture {
        mount,
        runtime,
        directory,
        ..
    } = fixture;
    mount.unmount().unwrap();
    runtime.block_on(async {
        notifier
            .invalidate_entry(Ino::ROOT, Bytes::from_static(b"f"))
            .await;
        notifier.invalidate_inode(Ino::ROOT).await;
        notifier.flush().await;
        notifier.expire_all_entries().await;
    });
    drop(directory);
}
