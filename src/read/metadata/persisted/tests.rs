use super::format::{FormatError, Record, file_name};
use super::*;
use crate::read::metadata::lease::Lease;
use crate::testing::{SOON, path};
use crate::waiting::eventually;
use bytes::Bytes;
use copperfs_overlay::{Attributes, Cursor, Entry, FileKind, Timestamp, Version};
use proptest::prelude::*;

fn attributes(kind: FileKind) -> Attributes {
    let time = Timestamp {
        seconds: -7,
        nanoseconds: 3,
    };
    Attributes {
        kind,
        mode: 0o644,
        uid: 1,
        gid: 2,
        links: 3,
        device: 0,
        size: 5,
        blocks: 8,
        block_size: 4096,
        atime: time,
        mtime: time,
        ctime: time,
        version: Version::from_data([7; 16]),
        link_target: None,
        content: None,
    }
}

fn listing(names: &[&str]) -> Listing {
    let entry = |name: &&str| Entry {
        name: Bytes::copy_from_slice(name.as_bytes()),
        kind: FileKind::File,
        attributes: Some(attributes(FileKind::File)),
    };
    Listing {
        directory: attributes(FileKind::Directory),
        entries: names.iter().map(entry).collect(),
        next: Some(Cursor(Bytes::from_static(b"on"))),
    }
}

fn directory(names: &[&str]) -> Arc<Directory> {
    Arc::new(Directory::new(listing(names), Lease::LASTING))
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let bytes = Record::encode(&path("a/b"), &directory(&["x", "y"])).unwrap();
    let read = Record::decode(&bytes, &path("a/b")).unwrap();
    assert_eq!(read, listing(&["x", "y"]));
    let other = Record::decode(&bytes, &path("a/c"));
    assert!(matches!(other, Err(FormatError::Foreign)));
}

#[test]
fn a_torn_file_is_detected() {
    let whole = Record::encode(&path("a"), &directory(&["x", "y"])).unwrap();
    for cut in 0..whole.len() {
        assert!(Record::decode(&whole[..cut], &path("a")).is_err(), "{cut}");
    }
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        assert!(Record::decode(&bytes, &path("a")).is_err(), "{at}");
    }
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes: Vec<u8>, behind_header: bool) {
        let mut file = Record::encode(&path("a"), &directory(&["x"])).unwrap();
        if behind_header {
            file.truncate(14);
        } else {
            file.clear();
        }
        file.extend(bytes);
        let _refused_or_not = Record::decode(&file, &path("a"));
    }
}

#[tokio::test]
async fn a_listing_is_found_again_until_it_is_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let kept = PersistedListings::open(dir.path()).unwrap();
    assert_eq!(kept.load(&path("a/b")).await, None);
    for name in ["a", "a/b", "a/b/c", "ab"] {
        kept.keep(&path(name), &directory(&[name.rsplit('/').next().unwrap()]));
    }
    eventually(SOON, "written", || kept.stats().kept == 4);
    drop(kept);
    let kept = PersistedListings::open(dir.path()).unwrap();
    assert_eq!(kept.load(&path("a/b")).await, Some(listing(&["b"])));
    kept.clear(&path("a/b"));
    let files = || std::fs::read_dir(dir.path()).unwrap().count();
    eventually(SOON, "cleared", || files() == 1);
    assert_eq!(kept.load(&path("a/b")).await, None);
    assert_eq!(kept.load(&path("a/b/c")).await, None);
    assert_eq!(kept.load(&path("ab")).await, Some(listing(&["ab"])));
    let stats = kept.stats();
    assert_eq!((stats.loaded, stats.torn, stats.dropped), (2, 0, 0));
}

#[tokio::test]
async fn a_torn_file_is_none_and_goes_away() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(file_name(&path("a")));
    let kept = PersistedListings::open(dir.path()).unwrap();
    kept.keep(&path("a"), &directory(&["x"]));
    eventually(SOON, "written", || kept.stats().kept == 1);
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(kept.load(&path("a")).await, None);
    eventually(SOON, "removed", || !file.exists());
    assert_eq!(kept.stats().torn, 1);
    kept.keep(&path("a"), &directory(&["x"]));
    eventually(SOON, "written again", || kept.stats().kept == 2);
    assert_eq!(kept.load(&path("a")).await, Some(listing(&["x"])));
}
