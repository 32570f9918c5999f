use super::*;
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, ContentHash, Entry, FileKind, ItemPath, Standing, Timestamp, Version, XattrList,
};
use proptest::prelude::*;

fn kind() -> impl Strategy<Value = FileKind> {
    prop_oneof![
        4 => Just(FileKind::File),
        2 => Just(FileKind::Directory),
        1 => Just(FileKind::Symlink),
        1 => Just(FileKind::Fifo),
        1 => Just(FileKind::CharDevice),
    ]
}

/// An entry with parts begins where the entries before it end.
fn numbered(run: Vec<Entry>) -> Vec<IndexedEntry> {
    let mut first_part: u64 = 0;
    let number = |entry| {
        let count = parts(&entry);
        let own = if count > 0 { first_part } else { 0 };
        first_part = first_part.wrapping_add(count);
        // Only attributes that are recorded have extended ones beside them.
        let known = entry.attributes.as_ref();
        let known = known.filter(|known| known.version.is_settled());
        let xattrs = known.filter(|_| entry.kind != FileKind::Directory);
        IndexedEntry {
            xattrs: xattrs.and_then(|known| listed(known.uid)),
            entry,
            first_part: own,
        }
    };
    run.into_iter().map(number).collect()
}

/// Extended attributes, or that there are none, or that they are unknown.
fn listed(seed: u32) -> Option<XattrList> {
    let text = |at: u32| Bytes::from(format!("user.{}", seed.wrapping_mul(at + 7)));
    (!seed.is_multiple_of(3)).then(|| (0..seed % 5).map(|at| (text(at), text(at + 99))).collect())
}

fn timestamp() -> impl Strategy<Value = Timestamp> {
    (any::<i64>(), 0..1_000_000_000u32).prop_map(|(seconds, nanoseconds)| Timestamp {
        seconds,
        nanoseconds,
    })
}

fn settled((data, change, lasting): ([u8; 16], Option<[u8; 8]>, bool)) -> Version {
    let version = Version::from_data(data).with_change(change.unwrap_or_default());
    match lasting {
        true => version,
        false => version.standing_as(Standing::Launch),
    }
}

prop_compose! {
    fn attributes(kind: FileKind)(
        mode in 0u16..=0o7777,
        owner: (u32, u32, u32, u32),
        sizes: (u64, u64, u64),
        mtime in timestamp(),
        others in proptest::option::of((timestamp(), timestamp())),
        version: ([u8; 16], Option<[u8; 8]>, bool),
        content: Option<[u8; 32]>,
        target in proptest::collection::vec(any::<u8>(), 0..50),
    ) -> Attributes {
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        Attributes {
            kind,
            mode,
            uid: owner.0,
            gid: owner.1 % 2,
            links: owner.2 % 3,
            device: if is_device { sizes.2 } else { 0 },
            size: sizes.0,
            blocks: sizes.1,
            block_size: owner.3 % 2,
            atime: others.map_or(mtime, |(atime, _)| atime),
            mtime,
            ctime: others.map_or(mtime, |(_, ctime)| ctime),
            version: settled(version),
            link_target: (kind == FileKind::Symlink).then(|| Bytes::from(target)),
            content: content.map(ContentHash),
        }
    }
}

fn entry() -> impl Strategy<Value = Entry> {
    let name = "[a-c]{1,4}|[^/.\0]{1,60}|a{200,255}";
    (name, kind(), any::<bool>()).prop_flat_map(|(name, kind, known)| {
        let name = Bytes::from(name.into_bytes().into_iter().take(255).collect::<Vec<_>>());
        attributes(kind).prop_map(move |attributes| Entry {
            name: name.clone(),
            kind,
            attributes: known.then_some(attributes),
        })
    })
}

fn record() -> impl Strategy<Value = DirectoryRecord> {
    let place = proptest::option::of((any::<u32>(), any::<u32>(), 0..9u32, 0..u64::MAX));
    let path = proptest::collection::vec("[a-c]{1,3}", 0..6);
    (path, attributes(FileKind::Directory), place).prop_map(|(path, attributes, place)| {
        let place = place.map(|(first, offset, more, entries)| match entries {
            0 => EntryRange::default(),
            _ => EntryRange {
                first_block: first / 2,
                offset,
                last_block: first / 2 + more,
                end: offset / 3,
                entries,
            },
        });
        DirectoryRecord {
            path: ItemPath::parse(path.join("/").as_bytes()).unwrap(),
            xattrs: listed(attributes.uid),
            attributes,
            place,
        }
    })
}

fn header() -> Header {
    let (stored, raw) = tail().encode();
    let offset = HEADER_BYTES as u64 + 33 + (64 << 10) + 96;
    Header {
        hashed: true,
        file_bytes: offset + stored.len() as u64,
        tail_offset: offset,
        tail_stored: u32::try_from(stored.len()).unwrap(),
        tail_raw: u32::try_from(raw).unwrap(),
        tail_sum: checksum(&stored),
        made_at: 1_800_000_000,
        totals: Totals {
            directories: 3,
            files: 5,
            others: 1,
            bytes: 1 << 40,
            unlisted: 1,
        },
        top: Version::from_data([4; 16]),
    }
}

fn tail() -> Tail {
    let block = |offset, stored| BlockLocation {
        offset: HEADER_BYTES as u64 + offset,
        stored,
        raw: 20,
        sum: [9; 16],
    };
    let path = |text: &str| ItemPath::parse(text.as_bytes()).unwrap();
    Tail {
        uri: "s3://bucket/set".into(),
        entries: vec![block(0, 10), block(10, 7), block(23, 7)],
        directories: vec![(path(""), block(17, 6)), (path("b/c"), block(30, 3))],
        parts: vec![
            BlockLocation {
                raw: 64 << 10,
                ..block(33, 64 << 10)
            },
            BlockLocation {
                raw: 96,
                ..block(33 + (64 << 10), 96)
            },
        ],
    }
}

/// The bytes that the specification shows.
#[test]
fn an_entry_has_the_bytes_of_the_specification() {
    let time = Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 0,
    };
    let attributes = Attributes {
        kind: FileKind::File,
        mode: 0o444,
        uid: 0,
        gid: 0,
        links: 1,
        device: 0,
        size: 300,
        blocks: 1,
        block_size: 1 << 20,
        atime: time,
        mtime: time,
        ctime: time,
        version: Version::from_data([7; 16]),
        link_target: None,
        content: None,
    };
    let entry = |name: &'static [u8]| Entry {
        name: Bytes::from_static(name),
        kind: FileKind::File,
        attributes: Some(attributes.clone()),
    };
    let (mut encoder, mut out) = (Encoder::default(), Vec::new());
    encoder.entry(&mut out, &entry(b"ab"), 5, Some(&XattrList::new()));
    let first = [
        &[0, 2, b'a', b'b', 0xb0][..],
        &[0xa4, 2, 0, 0, 1, 0x80, 0x80, 0x40],
        &[0xac, 2, 0, 0x80, 0xc4, 0x9f, 0xd5, 0x0c, 0],
        &[0],
        &[7; 16],
        &[1],
    ]
    .concat();
    assert_eq!(out, first);
    out.clear();
    encoder.entry(&mut out, &entry(b"ac"), 5, None);
    let second = [&[1, 1, b'c', 0xb8, 0xac, 2, 0, 0, 0, 0][..], &[7; 16], &[0]];
    assert_eq!(out, second.concat());
    // More than an index can have count as unknown.
    out.clear();
    let large = vec![(
        Bytes::from_static(b"user.x"),
        vec![1; XATTRS_BYTES_MAX].into(),
    )];
    encoder.entry(&mut out, &entry(b"ad"), 5, Some(&large));
    let again = Decoder::new(&out).entry();
    assert!(again.is_err() || again.is_ok_and(|found| found.xattrs.is_none()));
    assert!(out.len() < 100);
}

#[test]
fn the_header_and_the_tail_come_back() {
    let (header, tail) = (header(), tail());
    let bytes = header.encode();
    assert_eq!(
        Header::decode(&bytes, header.file_bytes),
        Ok(header.clone())
    );
    let (stored, _) = tail.encode();
    assert_eq!(Tail::decode(&stored, &header), Ok(tail));
    assert_eq!(header.totals.entries(), 8);
}

#[test]
fn incomplete_and_foreign_files_are_refused_with_the_reason() {
    let header = header();
    let (good, len) = (header.encode(), header.file_bytes);
    let refused = |bytes: &[u8], len| Header::decode(bytes, len).unwrap_err();
    assert_eq!(refused(b"", 0), FormatError::NotAnIndex);
    assert_eq!(refused(b"\x7fELF and more", 13), FormatError::NotAnIndex);
    let torn = |found| FormatError::Torn {
        expected: len,
        found,
    };
    assert_eq!(refused(&good, len - 1), torn(len - 1));
    assert!(matches!(
        refused(&good[..100], 100),
        FormatError::Torn { .. }
    ));
    let mut newer = good;
    newer[8] = 5;
    assert_eq!(refused(&newer, len), FormatError::Version(5));
    for at in 12..HEADER_BYTES {
        let mut flipped = good;
        flipped[at] ^= 1;
        assert!(matches!(refused(&flipped, len), FormatError::Damaged(_)));
    }
}

proptest! {
    #[test]
    fn entries_come_back(runs in proptest::collection::vec(proptest::collection::vec(entry(), 1..20), 1..4)) {
        for run in runs {
            let run = numbered(run);
            let mut out = Vec::new();
            let mut encoder = Encoder::default();
            for IndexedEntry { entry, first_part, xattrs } in &run {
                let before = out.len();
                encoder.entry(&mut out, entry, *first_part, xattrs.as_ref());
                prop_assert!(out.len() - before <= ENTRY_BYTES_MAX);
            }
            let mut decoder = Decoder::new(&out);
            for entry in &run {
                prop_assert_eq!(&decoder.entry().unwrap(), entry);
            }
            prop_assert!(decoder.is_empty());
        }
    }

    #[test]
    fn directories_come_back(records in proptest::collection::vec(record(), 1..20)) {
        let (mut encoder, mut out) = (Encoder::default(), Vec::new());
        for record in &records {
            encoder.directory(&mut out, record);
        }
        let mut decoder = Decoder::new(&out);
        for record in &records {
            prop_assert_eq!(decoder.directory(), Ok(Some(record.clone())));
        }
        prop_assert_eq!(decoder.directory(), Ok(None));
    }

    #[test]
    fn blocks_come_back_and_damage_is_seen(raw: Vec<u8>, at: usize, repeat in 1usize..50) {
        let raw = raw.repeat(repeat);
        let mut stored = pack(&raw);
        let sum = checksum(&stored);
        prop_assert_eq!(unpack(&stored, raw.len(), &sum).unwrap(), raw.clone());
        if !stored.is_empty() {
            let at = at % stored.len();
            stored[at] ^= 1;
            prop_assert!(unpack(&stored, raw.len(), &sum).is_err());
        }
    }

    /// Whatever the bytes: no panic, and each entry takes at least one of them.
    #[test]
    fn garbage_never_panics(bytes: Vec<u8>, raw_len in 0usize..5000) {
        let mut entries = Decoder::new(&bytes);
        let mut count = 0;
        while entries.entry().is_ok() {
            count += 1;
        }
        prop_assert!(count <= bytes.len());
        let mut directories = Decoder::new(&bytes);
        while let Ok(Some(_)) = directories.directory() {}
        let _refused = unpack(&bytes, raw_len, &checksum(&bytes));
        let _refused = Header::decode(&bytes, bytes.len() as u64);
        let mut header = header();
        header.tail_sum = checksum(&bytes);
        header.tail_raw = u32::try_from(raw_len).unwrap();
        let _refused = Tail::decode(&bytes, &header);
    }
}
