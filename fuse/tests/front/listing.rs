//! Directory listings, with attributes and without.

use crate::fixture::{Fixture, python};
use copperfs_fuse::{FileKind, Ino, Op, OpenMode, ReaddirPlus};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirEntryExt;

const MANY: usize = 5000;

fn fill(memory: &crate::memory::Memory, plus: impl Fn(usize) -> bool) {
    for index in 0..MANY {
        let ino = memory.file(Ino::ROOT, format!("file-{index:05}"), "x");
        memory.change(ino, |node| node.plus = plus(index));
    }
}

fn names(fixture: &Fixture) -> Vec<String> {
    std::fs::read_dir(fixture.root())
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            assert_ne!(entry.ino(), 0);
            assert!(entry.file_type().unwrap().is_file());
            entry.file_name().into_string().unwrap()
        })
        .collect()
}

fn expect_all(fixture: &Fixture) {
    let expected: Vec<_> = (0..MANY).map(|index| format!("file-{index:05}")).collect();
    assert_eq!(names(fixture), expected);
    assert_eq!(names(fixture), expected, "the second time");
}

#[test]
fn five_thousand_entries_with_attributes() {
    let fixture = Fixture::new(|memory| fill(memory, |_| true));
    expect_all(&fixture);
    let (lists, plus) = (
        fixture.requests(Op::Readdir),
        fixture.requests(Op::Readdirplus),
    );
    assert_eq!(lists, 0);
    let lookups = fixture.requests(Op::Lookup);
    for index in 0..MANY {
        std::fs::metadata(fixture.path(format!("file-{index:05}"))).unwrap();
    }
    assert_eq!(
        fixture.requests(Op::Lookup),
        lookups,
        "stat after a listing asks nothing"
    );
    assert_eq!(fixture.requests(Op::Getattr), 1, "of the root alone");
    assert_eq!(
        fixture.requests(Op::Readdirplus),
        plus,
        "the listing was kept"
    );
    let state = fixture.memory.state();
    assert_eq!(state.references.len(), MANY);
    assert!(
        state.references.values().all(|&references| references == 1),
        "no reference was taken for an entry that did not fit"
    );
}

#[test]
fn five_thousand_entries_some_with_attributes() {
    let fixture = Fixture::new(|memory| fill(memory, |index| index % 3 == 1));
    expect_all(&fixture);
    assert_eq!(fixture.memory.state().references.len(), MANY.div_ceil(3));
    std::fs::metadata(fixture.path("file-00001")).unwrap();
    assert_eq!(fixture.requests(Op::Lookup), 0);
    std::fs::metadata(fixture.path("file-00002")).unwrap();
    assert_eq!(fixture.requests(Op::Lookup), 1);
}

#[test]
fn five_thousand_entries_without_attributes() {
    let fixture = Fixture::new(|memory| fill(memory, |_| false));
    expect_all(&fixture);
    assert!(fixture.memory.state().references.is_empty());
}

#[test]
fn five_thousand_entries_when_the_kernel_decides() {
    for open in [OpenMode::ZeroMessage, OpenMode::Tracked] {
        let fixture = Fixture::with(
            |options| {
                options.readdir_plus = ReaddirPlus::Auto;
                options.open = open;
            },
            |memory| fill(memory, |index| index % 2 == 0),
        );
        expect_all(&fixture);
        assert!(fixture.requests(Op::Readdir) > 0);
        assert!(fixture.requests(Op::Readdirplus) > 0);
    }
}

#[test]
fn rewinding_and_seeking_in_a_directory() {
    let fixture = Fixture::new(|memory| fill(memory, |index| index % 2 == 0));
    let said = python(
        fixture.root(),
        "import os\n\
         fd = os.open('.', os.O_RDONLY)\n\
         first = os.listdir(fd); again = os.listdir(fd)\n\
         assert first == again and len(first) == 5000\n\
         with os.scandir('.') as it:\n\
         \x20   half = [next(it).name for _ in range(1234)]\n\
         assert half == first[:1234]\n\
         print(len(set(e.inode() for e in os.scandir('.'))))\n",
    );
    assert_eq!(said, "5000\n");
}

#[test]
fn any_name_that_posix_allows() {
    let odd: [&[u8]; 6] = [
        b"not\xffutf8\x80",
        b"new\nline",
        b" ",
        &[b'n'; 255],
        "ä€𐍈".as_bytes(),
        b"...",
    ];
    let fixture = Fixture::new(|memory| {
        for name in odd {
            memory.file(Ino::ROOT, name, name);
        }
    });
    let listed: BTreeSet<_> = std::fs::read_dir(fixture.root())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_vec())
        .collect();
    assert_eq!(listed, odd.iter().map(|name| name.to_vec()).collect());
    for name in odd {
        let path = fixture.path(OsString::from_vec(name.to_vec()));
        assert_eq!(std::fs::read(path).unwrap(), name);
    }
    let long = OsString::from_vec(vec![b'n'; 256]);
    let error = std::fs::metadata(fixture.path(long)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(36));
}

#[test]
fn every_kind_of_file_is_shown() {
    let kinds = [
        (FileKind::Fifo, 0o010_000),
        (FileKind::CharDevice, 0o020_000),
        (FileKind::BlockDevice, 0o060_000),
        (FileKind::Socket, 0o140_000),
    ];
    let fixture = Fixture::new(|memory| {
        for (index, (kind, _)) in kinds.into_iter().enumerate() {
            let content = crate::memory::Content::Special;
            let ino = memory.add(Ino::ROOT, format!("s{index}"), kind, content);
            memory.change(ino, |node| {
                node.attr.device = 0x0105;
                node.plus = index % 2 == 0;
            });
        }
    });
    for (index, (_, bits)) in kinds.into_iter().enumerate() {
        use std::os::unix::fs::MetadataExt;
        let metadata = std::fs::metadata(fixture.path(format!("s{index}"))).unwrap();
        assert_eq!(metadata.mode() & 0o170_000, bits);
        assert_eq!(
            metadata.rdev(),
            if index == 1 || index == 2 {
                0x0105
            } else {
                metadata.rdev()
            }
        );
    }
    let error = std::fs::File::open(fixture.path("s1")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(13), "nodev");
}
