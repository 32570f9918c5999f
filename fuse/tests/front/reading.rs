//! The messages that reading costs, and its independence of other readers' misses.

use crate::fixture::{Fixture, SOON, python};
use crate::waiting::eventually;
use bytes::Bytes;
use copperfs_fuse::{Ino, Op, OpenMode};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

fn pattern(length: usize) -> Bytes {
    (0..length)
        .map(|i| (i * 31 + i / 4096) as u8)
        .collect::<Vec<_>>()
        .into()
}

/// Maps a file shared and privately, and compares the mappings with its bytes.
#[track_caller]
fn assert_mapped(fixture: &Fixture, name: &str) {
    let program = format!(
        "import mmap\n\
         for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):\n\
         \x20   f = open('{name}', 'rb')\n\
         \x20   m = mmap.mmap(f.fileno(), 0, flags=flags, prot=mmap.PROT_READ)\n\
         \x20   assert m[:] == open('{name}', 'rb').read()\n\
         print('mapped')\n",
    );
    assert_eq!(python(fixture.root(), &program), "mapped\n");
}

#[test]
fn a_second_open_read_and_close_costs_no_message() {
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "f", pattern(20_000));
    });
    assert_eq!(std::fs::read(fixture.path("f")).unwrap(), pattern(20_000));
    assert_eq!(fixture.requests(Op::Open), 1, "answered ENOSYS");
    let before = fixture.mount.counters().messages();
    for _ in 0..10 {
        assert_eq!(std::fs::read(fixture.path("f")).unwrap(), pattern(20_000));
    }
    assert_eq!(fixture.mount.counters().messages(), before);
}

#[test]
fn tracked_opens_are_seen_and_keep_the_cache() {
    let fixture = Fixture::with(
        |options| options.open = OpenMode::Tracked,
        |memory| {
            memory.file(Ino::ROOT, "f", pattern(20_000));
        },
    );
    for _ in 0..3 {
        assert_eq!(std::fs::read(fixture.path("f")).unwrap(), pattern(20_000));
    }
    assert_eq!(fixture.memory.state().opened.len(), 3);
    assert_eq!(fixture.requests(Op::Read), 1);
    eventually(SOON, "releases", || {
        fixture.memory.state().released.len() == 3
    });
}

#[test]
fn direct_opens_send_every_read_and_can_be_mapped() {
    let fixture = Fixture::with(
        |options| options.open = OpenMode::Tracked,
        |memory| {
            memory.file(Ino::ROOT, "f", pattern(20_000));
            memory.state().direct = true;
        },
    );
    for _ in 0..3 {
        assert_eq!(std::fs::read(fixture.path("f")).unwrap(), pattern(20_000));
    }
    eventually(SOON, "releases", || {
        fixture.memory.state().released.len() == 3
    });
    {
        let state = fixture.memory.state();
        assert_eq!(state.released_handles, [1, 2, 3]);
        for handle in 1..=3 {
            assert!(state.read_handles.contains(&handle), "open {handle}");
        }
    }
    let read = || fixture.requests(Op::Read);
    let before = read();
    let file = std::fs::File::open(fixture.path("f")).unwrap();
    for at in 0..10 {
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, at).unwrap();
    }
    assert_eq!(read() - before, 10, "one byte each");
    assert_mapped(&fixture, "f");
}

#[test]
fn an_absent_name_is_looked_up_once() {
    let fixture = Fixture::new(|_| {});
    for _ in 0..20 {
        let error = std::fs::metadata(fixture.path("no")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
    assert_eq!(fixture.requests(Op::Lookup), 1);
}

#[test]
fn files_of_all_sizes_are_read_and_mapped() {
    let sizes = [
        0,
        1,
        4095,
        4096,
        4097,
        131_072,
        131_073,
        1 << 20,
        (3 << 20) + 5,
    ];
    let fixture = Fixture::new(|memory| {
        for size in sizes {
            memory.file(Ino::ROOT, format!("f{size}"), pattern(size));
        }
    });
    for size in sizes {
        let bytes = std::fs::read(fixture.path(format!("f{size}"))).unwrap();
        assert!(bytes == pattern(size), "{size} bytes");
    }
    assert_mapped(&fixture, "f131073");
}

#[test]
fn five_hundred_hanging_misses_do_not_slow_a_hit() {
    let fixture = Fixture::new(|memory| {
        for index in 0..500 {
            let ino = memory.file(Ino::ROOT, format!("hanging-read-{index}"), pattern(10_000));
            memory.change(ino, |node| node.hang_read = true);
            let name = format!("hanging-name-{index}");
            memory.state().hanging_names.insert(name.into());
            memory.file(Ino::ROOT, format!("hit-{index}"), pattern(10_000));
        }
    });
    let mut readers = Vec::new();
    for index in 0..500 {
        for kind in ["read", "name"] {
            let path = fixture.path(format!("hanging-{kind}-{index}"));
            let reader = std::thread::Builder::new().stack_size(1 << 16);
            readers.push(reader.spawn(move || std::fs::read(path).is_err()).unwrap());
        }
    }
    eventually(SOON, "all readers hang", || {
        fixture.requests(Op::Lookup) >= 1000 && fixture.requests(Op::Read) >= 500
    });
    let mut times = Vec::new();
    for index in 0..500 {
        let start = Instant::now();
        assert_eq!(
            std::fs::read(fixture.path(format!("hit-{index}")))
                .unwrap()
                .len(),
            10_000
        );
        times.push(start.elapsed());
    }
    times.sort();
    fixture.memory.release();
    assert!(
        readers.into_iter().all(|reader| reader.join().unwrap()),
        "every hanging reader has failed"
    );
    // A hit is a look-up and a read, some 0.2 ms; the machine may be busy.
    assert!(times[250] < Duration::from_millis(20), "{:?}", times[250]);
}
