//! Making an index, and reading it.

use super::super::format::{BLOCK_PARTS, DirectoryRecord, checksum};
use super::super::write::IndexWriter;
use super::*;
use crate::testing::{SOON, attributes, noise};
use crate::waiting::until;
use copperfs_overlay::{ContentHash, ITEM_BYTES_MAX};

#[tokio::test(flavor = "multi_thread")]
async fn an_index_equals_its_tree() {
    let (root, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    plant(root.path());
    let target = out.path().join("i");
    let totals = make(root.path(), &target, true).await;
    assert_eq!(totals.directories, 44);
    assert_eq!((totals.files, totals.others, totals.unlisted), (2041, 2, 0));
    assert_eq!(totals.bytes, 4000 + 3_000_000);
    let index = open(&target).await.unwrap();
    assert_eq!(index.header.totals, totals);
    let wide = index.directory(&path("wide")).await.unwrap().unwrap();
    let place = wide.place.unwrap();
    assert!(
        place.last_block > place.first_block,
        "it takes several blocks"
    );
    let (all, more) = index.entries(&place, None, usize::MAX).await.unwrap();
    assert_eq!((all.len(), more), (2001, false));
    let names: Vec<&Bytes> = all.iter().map(|found| &found.entry.name).collect();
    assert!(names.is_sorted());
    // Page by page, and name by name.
    let mut paged: Vec<IndexedEntry> = Vec::new();
    loop {
        let after = paged.last().map(|last| last.entry.name.clone());
        let page = index.entries(&place, after.as_deref(), 700).await.unwrap();
        paged.extend(page.0);
        if !page.1 {
            break;
        }
    }
    assert!(paged == all);
    for known in all.iter().step_by(97) {
        let found = index.find(&place, &known.entry.name).await.unwrap();
        assert_eq!(found.as_ref(), Some(known));
        let absent = [&known.entry.name[..], b"!"].concat();
        assert_eq!(index.find(&place, &absent).await.unwrap(), None);
    }
    assert_eq!(index.find(&place, b"").await.unwrap(), None);
    assert!(index.directory(&path("wid")).await.unwrap().is_none());
    assert!(index.directory(&path("zzz")).await.unwrap().is_none());
    let empty = index.directory(&path("empty")).await.unwrap().unwrap();
    assert_eq!(empty.place.unwrap().entries, 0);
    // Contents are told, equal ones equal.
    let top = index.directory(&path("")).await.unwrap().unwrap();
    let tar = index.find(&top.place.unwrap(), b"set.tar").await.unwrap();
    let content = tar.unwrap().entry.attributes.unwrap().content.unwrap();
    assert_eq!(content.0, *blake3::hash(&vec![1; 3_000_000]).as_bytes());
}

// On one thread, so that the first request is answered first.
#[tokio::test]
async fn a_resumed_walk_makes_the_same_index() {
    let (root, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    plant(root.path());
    let (whole, target) = (out.path().join("whole"), out.path().join("resumed"));
    // Listing a directory for the first time changes when it was last looked at.
    make(root.path(), &whole, false).await;
    let directories = make(root.path(), &whole, false).await.directories;
    let uri = format!("file://{}", root.path().display());
    let mut listed = 0;
    for permits in [0, 3, 11] {
        let storage = Storage::raw(root.path());
        storage.0.permits.forget_permits(1 << 20);
        storage.0.permits.add_permits(permits);
        let resume = target.with_extension("partial").exists();
        let mut log = Partial::open(&target, &uri, false, resume).unwrap();
        let walking = walker(storage.clone(), false);
        let all_given = async {
            let asked = || storage.asked().0;
            until(SOON, "it is out of permits", || asked() >= permits as u64).await;
            // The last listings may be in the log or not: the result is the same.
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        };
        tokio::select! {
            walked = walking.walk(&uri, &mut log) => panic!("it hangs: {walked:?}"),
            () = all_given => {}
        }
        listed += storage.asked().0;
    }
    let refused = Partial::open(&target, &uri, false, false).unwrap_err();
    assert!(matches!(refused, IndexError::Begun(_)), "{refused}");
    let refused = Partial::open(&target, &uri, true, true).unwrap_err();
    assert!(refused.to_string().contains("with --hash"), "{refused}");

    // A file of another program or version is kept.
    let other = out.path().join("other.partial");
    for foreign in [
        vec![7; 9000],
        [&[3, 0, 0, 0][..], &checksum(b"xyz"), b"xyz"].concat(),
    ] {
        std::fs::write(&other, &foreign).unwrap();
        let refused = Partial::open(&out.path().join("other"), &uri, false, true).unwrap_err();
        assert!(matches!(refused, IndexError::Foreign(_)), "{refused}");
        assert_eq!(std::fs::read(&other).unwrap(), foreign);
    }

    // The last record is cut off, as a power cut would.
    let partial = target.with_extension("partial");
    let len = std::fs::metadata(&partial).unwrap().len();
    let cut = std::fs::File::options().write(true).open(&partial).unwrap();
    cut.set_len(len - 3).unwrap();
    let storage = Storage::raw(root.path());
    let mut log = Partial::open(&target, &uri, false, true).unwrap();
    let busy = Partial::open(&target, &uri, false, true).unwrap_err();
    assert!(matches!(busy, IndexError::Busy(_)), "{busy}");
    let done = log.done;
    assert!(done > 1, "{done} were kept");
    let walking = walker(storage.clone(), false);
    assert!(walking.walk(&uri, &mut log).await.unwrap().is_empty());
    assert_eq!(storage.asked().0, directories - done);
    assert!(listed >= done);
    write_index(&log, &target, &uri, false, 1_800_000_000, Existing::Keep).unwrap();
    log.remove();
    assert!(!partial.exists());
    assert!(std::fs::read(&target).unwrap() == std::fs::read(&whole).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn long_files_have_the_hashes_of_their_parts() {
    let (root, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let part = usize::try_from(ITEM_BYTES_MAX).unwrap();
    let bytes = noise("long", ITEM_BYTES_MAX * 2 + 7);
    for (name, len) in [
        ("a", part),
        ("b", part + 1),
        ("c", 2 * part),
        ("d/e", 2 * part + 7),
    ] {
        let file = root.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, &bytes[..len]).unwrap();
    }
    let target = out.path().join("i");
    make(root.path(), &target, true).await;
    let index = open(&target).await.unwrap();
    let parts = async |directory: &str, name: &str| {
        let record = index.directory(&path(directory)).await.unwrap().unwrap();
        let place = record.place.unwrap();
        index.parts(&place, name.as_bytes()).await.unwrap()
    };
    let wanted = |len: usize| -> Vec<[u8; 32]> {
        let parts = bytes[..len].chunks(part);
        parts.map(|part| *blake3::hash(part).as_bytes()).collect()
    };
    assert_eq!(parts("", "a").await, Vec::<[u8; 32]>::new());
    assert_eq!(parts("", "b").await, wanted(part + 1));
    assert_eq!(parts("", "c").await, wanted(2 * part));
    assert_eq!(parts("d", "e").await, wanted(2 * part + 7));
    assert_eq!(parts("", "d").await, Vec::<[u8; 32]>::new());
    assert_eq!(parts("", "none").await, Vec::<[u8; 32]>::new());
    // Without hashes of contents there are none of parts.
    make(root.path(), &target, false).await;
    let index = open(&target).await.unwrap();
    let top = index.directory(&path("")).await.unwrap().unwrap();
    let parts = index.parts(&top.place.unwrap(), b"b").await.unwrap();
    assert!(parts.is_empty() && index.tail.parts.is_empty());
}

/// Parts of one file lie in several blocks, and those of several files in one.
#[tokio::test]
async fn parts_are_found_across_blocks_and_damaged_numbers_are_refused() {
    let out = TempDir::new().unwrap();
    let target = out.path().join("i");
    let mut writer = IndexWriter::create(&target, "file:///x", Existing::Replace).unwrap();
    let hash =
        |file: usize, part: u64| *blake3::hash(format!("{file} {part}").as_bytes()).as_bytes();
    let counts = [3, 2 * BLOCK_PARTS - 3, BLOCK_PARTS + 5, 2];
    let entries = counts.iter().enumerate().map(|(file, count)| {
        let mut known = attributes(FileKind::File, count * ITEM_BYTES_MAX, 1);
        known.content = Some(ContentHash([9; 32]));
        Ok(WalkedEntry {
            entry: Entry {
                name: Bytes::from(format!("f{file}")),
                kind: FileKind::File,
                attributes: Some(known),
            },
            parts: (0..*count).map(|part| hash(file, part)).collect(),
            xattrs: None,
        })
    });
    let top = DirectoryRecord {
        path: ItemPath::root(),
        attributes: attributes(FileKind::Directory, 0, 2),
        xattrs: None,
        place: None,
    };
    writer.directory(top, Some(entries)).unwrap();
    writer.finish(true, 0).unwrap();
    let mut index = open(&target).await.unwrap();
    assert_eq!(index.tail.parts.len(), 4);
    let place = index
        .directory(&path(""))
        .await
        .unwrap()
        .unwrap()
        .place
        .unwrap();
    for (file, count) in counts.iter().enumerate() {
        let parts = index
            .parts(&place, format!("f{file}").as_bytes())
            .await
            .unwrap();
        let wanted: Vec<_> = (0..*count).map(|part| hash(file, part)).collect();
        assert!(parts == wanted, "f{file}");
    }
    // An entry that names more parts than there are.
    index.tail.parts.truncate(2);
    for name in ["f2", "f3"] {
        let refused = index.parts(&place, name.as_bytes()).await.unwrap_err();
        assert!(refused.to_string().contains("a file's parts"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_sorted_in_runs_and_the_last_of_each_counts() {
    let (root, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    plant(root.path());
    let target = out.path().join("i");
    let mut log = Partial::open(&target, "x", false, false).unwrap();
    let walking = walker(Storage::raw(root.path()), false);
    walking.walk("x", &mut log).await.unwrap();
    let (record, _) = log.record_at(log.first).unwrap().unwrap();
    let directory = DirectoryRecord {
        path: path("set"),
        ..record.directory
    };
    log.append(directory, None, true).unwrap();
    let order = |run_bytes| {
        let mut sorted = Sorted::in_runs(&log, run_bytes).unwrap();
        let mut found = Vec::new();
        while let Some(at) = sorted.next_record().unwrap() {
            let (record, _) = log.record_at(at).unwrap().unwrap();
            found.push((record.directory.path, record.again));
        }
        found
    };
    let (one, many) = (order(usize::MAX), order(300));
    assert_eq!(one, many);
    assert_eq!(one.len(), 44);
    assert!(one.windows(2).all(|pair| pair[0].0 < pair[1].0));
    assert!(one.contains(&(path("set"), true)));
}

#[tokio::test]
async fn damage_anywhere_is_refused_and_never_served() {
    let (root, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    std::fs::create_dir(root.path().join("d")).unwrap();
    std::fs::write(root.path().join("d/f"), b"x").unwrap();
    let target = out.path().join("i");
    make(root.path(), &target, false).await;
    let good = std::fs::read(&target).unwrap();
    let look = async || -> Result<(), IndexError> {
        let index = open(&target).await?;
        for directory in ["", "d"] {
            let record = index.directory(&path(directory)).await?;
            index
                .entries(&record.unwrap().place.unwrap(), None, 10)
                .await?;
        }
        Ok(())
    };
    look().await.unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        std::fs::write(&target, bad).unwrap();
        assert!(look().await.is_err(), "byte {at}");
    }
    std::fs::write(&target, &good[..good.len() - 1]).unwrap();
    let torn = look().await.unwrap_err().to_string();
    assert!(torn.contains("Copy it again"), "{torn}");
    std::fs::write(&target, b"#!/bin/sh\n").unwrap();
    let foreign = look().await.unwrap_err().to_string();
    assert!(foreign.contains("not an index"), "{foreign}");
}

/// Extended attributes of files and directories are recorded, and where there are none, that too.
#[tokio::test(flavor = "multi_thread")]
async fn extended_attributes_are_recorded() {
    let (root, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    std::fs::create_dir(root.path().join("d")).unwrap();
    for name in ["a", "d/b"] {
        std::fs::write(root.path().join(name), "x").unwrap();
    }
    std::os::unix::fs::symlink("a", root.path().join("l")).unwrap();
    let set = |name: &str, key: &str, value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(root.path().join(name), key, value, flags).unwrap();
    };
    set("a", "user.two", b"2");
    set("a", "user.one", b"");
    set("d", "user.of", b"directory");
    let target = out.path().join("i");
    make(root.path(), &target, false).await;
    let index = open(&target).await.unwrap();
    let list = |all: &[(&'static str, &'static [u8])]| -> Option<XattrList> {
        let pair = |(name, value): &(&'static str, &'static [u8])| {
            (
                Bytes::from_static(name.as_bytes()),
                Bytes::from_static(value),
            )
        };
        Some(all.iter().map(pair).collect())
    };
    let top = index.directory(&path("")).await.unwrap().unwrap();
    assert_eq!(top.xattrs, list(&[]));
    let (entries, _) = index.entries(&top.place.unwrap(), None, 9).await.unwrap();
    let found: Vec<_> = entries.into_iter().map(|found| found.xattrs).collect();
    let of_a = list(&[("user.one", b""), ("user.two", b"2")]);
    assert_eq!(found, [of_a, None, list(&[])]);
    let directory = index.directory(&path("d")).await.unwrap().unwrap();
    assert_eq!(directory.xattrs, list(&[("user.of", b"directory")]));
    let place = directory.place.unwrap();
    let (below, _) = index.entries(&place, None, 9).await.unwrap();
    assert_eq!(below[0].xattrs, list(&[]));
}
