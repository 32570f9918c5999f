//! Files that were pushed are read without a READ.

use crate::fixture::{Fixture, SOON};
use crate::waiting::eventually;
use copperfs_fuse::{Ino, Op};
use std::time::Duration;

/// Sizes around a page, and one that takes several messages. The total is small, because a machine that
/// reclaims cold pages early (DAMON) would evict some before they are read.
fn content(index: usize) -> Vec<u8> {
    let length = match index {
        17 => (2 << 20) + 17,
        _ => [20_000, 1, 4096, 4097, 100_000][index % 5],
    };
    vec![index as u8; length]
}

fn fill(memory: &crate::memory::Memory, files: usize) {
    for index in 0..files {
        memory.file(Ino::ROOT, format!("f{index}"), content(index));
    }
    memory.file(Ino::ROOT, "empty", "");
}

fn list(fixture: &Fixture) -> usize {
    std::fs::read_dir(fixture.root()).unwrap().count()
}

fn check(fixture: &Fixture, files: usize) {
    for index in 0..files {
        let bytes = std::fs::read(fixture.path(format!("f{index}"))).unwrap();
        assert!(bytes == content(index), "f{index}");
    }
    assert!(std::fs::read(fixture.path("empty")).unwrap().is_empty());
}

fn pushed(fixture: &Fixture) {
    eventually(SOON, "everything is pushed", || {
        fixture.mount.counters().push_pending.get() == 0
    });
}

#[test]
fn pushed_files_need_no_read() {
    for round in 0..10 {
        let fixture = Fixture::new(|memory| fill(memory, 200));
        assert_eq!(list(&fixture), 201);
        pushed(&fixture);
        assert_eq!(
            fixture.mount.counters().push_files.get(),
            200,
            "round {round}"
        );
        check(&fixture, 200);
        assert_eq!(fixture.requests(Op::Read), 0, "round {round}");
        assert_eq!(fixture.requests(Op::Lookup), 0);
    }
}

#[test]
fn reading_while_files_are_pushed_gives_the_same_bytes() {
    let fixture = Fixture::new(|memory| fill(memory, 600));
    assert_eq!(list(&fixture), 601);
    check(&fixture, 600);
    pushed(&fixture);
    check(&fixture, 600);
}

#[test]
fn a_file_is_pushed_once_until_the_kernel_forgets_it() {
    let fixture = Fixture::new(|memory| fill(memory, 30));
    list(&fixture);
    pushed(&fixture);
    fixture.runtime.block_on(async {
        // The directory is listed again, while the kernel still knows its inodes.
        let notifier = fixture.mount.notifier();
        notifier.invalidate_inode(Ino::ROOT).await;
        notifier.flush().await;
    });
    list(&fixture);
    pushed(&fixture);
    assert_eq!(fixture.mount.counters().push_files.get(), 30);
}

#[test]
fn the_bound_on_bytes_holds_until_the_kernel_forgets() {
    let fixture = Fixture::with(
        |options| options.push_bytes_max = 50_000,
        |memory| {
            for index in 0..100 {
                memory.file(Ino::ROOT, format!("f{index}"), vec![1; 10_000]);
            }
        },
    );
    list(&fixture);
    pushed(&fixture);
    // The bound is checked once per batch of 16.
    let files = fixture.mount.counters().push_files.get();
    assert!((5..=16).contains(&files), "{files}");
}

#[test]
fn without_push_every_file_is_read() {
    let fixture = Fixture::with(
        |options| options.push_bytes_max = 0,
        |memory| fill(memory, 10),
    );
    list(&fixture);
    check(&fixture, 10);
    assert!(fixture.requests(Op::Read) >= 10);
    assert_eq!(fixture.mount.counters().push_files.get(), 0);
}

#[test]
fn a_push_for_a_reader_that_is_gone_ends() {
    let fixture = Fixture::new(|memory| {
        fill(memory, 200);
    });
    list(&fixture);
    fixture.runtime.block_on(async {
        let notifier = fixture.mount.notifier();
        for index in 0..200 {
            notifier
                .invalidate_entry(Ino::ROOT, format!("f{index}").into())
                .await;
        }
        tokio::time::timeout(Duration::from_secs(10), notifier.flush())
            .await
            .expect("pushes do not hold invalidations up");
    });
    pushed(&fixture);
    check(&fixture, 200);
}
