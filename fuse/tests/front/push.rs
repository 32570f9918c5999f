//! Files that were pushed are read without a READ.

use crate::fixture::{Fixture, SOON};
use crate::waiting::eventually;
use copperfs_fuse::{Ino, Op};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

/// Sizes around a page, and one that takes several messages.
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

/// Every file has all of its pages after the push, and is then read without a READ.
///
/// A machine that is short of memory may evict pages before they are read (with the multi-generational LRU
/// the pages of a push are the first to go). So the kernel is asked which files still have all of them.
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
        let mut read_although_cached = 0;
        for index in 0..200 {
            let mut file = File::open(fixture.path(format!("f{index}"))).unwrap();
            let expected = content(index);
            let pages = Pages::of(&file);
            let all = expected.len().div_ceil(4096) as u64;
            assert_eq!(pages.cached + pages.evicted, all, "f{index}: {pages:?}");
            let reads = fixture.requests(Op::Read);
            let mut bytes = Vec::with_capacity(expected.len());
            file.read_to_end(&mut bytes).unwrap();
            assert!(bytes == expected, "f{index}");
            if pages.evicted == 0 && fixture.requests(Op::Read) > reads {
                read_although_cached += 1;
            }
        }
        // One or two may lose a page between the question and the read.
        assert!(
            read_although_cached <= 2,
            "round {round}: {read_although_cached}"
        );
        assert_eq!(fixture.requests(Op::Lookup), 0);
    }
}

/// The pages of a file that the kernel has, and those that it had and has evicted.
#[derive(Debug)]
struct Pages {
    cached: u64,
    evicted: u64,
}

impl Pages {
    /// Asks with cachestat(2). A kernel before 6.5 does not know it, and the file then counts as cached.
    #[expect(unsafe_code, reason = "no crate has cachestat")]
    fn of(file: &File) -> Self {
        const SYS_CACHESTAT: libc::c_long = 451;
        const WHOLE_FILE: [u64; 2] = [0, 0];
        let mut answer = [0_u64; 5];
        // SAFETY: both arrays have the layout of the kernel's structures and live until the call returns.
        let failed = unsafe {
            libc::syscall(
                SYS_CACHESTAT,
                file.as_raw_fd(),
                WHOLE_FILE.as_ptr(),
                answer.as_mut_ptr(),
                0,
            )
        };
        let [cached, _dirty, _writeback, evicted, _recently_evicted] = answer;
        if failed != 0 {
            let cached = file.metadata().unwrap().len().div_ceil(4096);
            return Self { cached, evicted: 0 };
        }
        Self { cached, evicted }
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
