use super::*;
use crate::manifest::testing::{File, MADE_AT, encoded, entry, parts, seal};
use crate::testing::attributes;
use bytes::Bytes;
use copperfs_overlay::FileKind;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn open(bytes: Vec<u8>) -> Result<Manifest, FormatError> {
    Manifest::from_bytes(Bytes::from(bytes))
}

/// The example of the specification.
fn example() -> Vec<u8> {
    let files: [File<'_>; 2] = [(b"a", 3, 7), (b"shard", 10, 8)];
    let entries = [
        entry("abc", 0, 0, 3),
        entry("wxyz", 1, 0, 4),
        entry("wxyz", 1, 6, 4),
    ];
    encoded(&files, &entries)
}

/// The lines of `bytes` that are not all zeros, with their positions.
fn dump(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (number, line) in bytes.chunks(16).enumerate() {
        if line.iter().any(|byte| *byte != 0) {
            let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
            out.push_str(&format!("{:04x}  {}\n", number * 16, hex.join(" ")));
        }
    }
    out
}

#[test]
fn the_example_has_the_bytes_of_the_specification() {
    let document = include_str!("../../../docs/manifest-format.md");
    let (_, example_and_more) = document.split_once("## An example").unwrap();
    let shown = example_and_more.split("```\n").nth(1).unwrap();
    let wanted = dump(&example());
    assert!(
        shown == wanted,
        "the document shows:\n{shown}instead of:\n{wanted}"
    );
}

#[test]
fn a_manifest_answers_by_number_place_and_hash() {
    let manifest = open(example()).unwrap();
    assert_eq!((manifest.len(), manifest.files()), (3, 2));
    assert_eq!(manifest.header().made_at, MADE_AT);
    assert_eq!(manifest.header().entry_bytes, 11);
    assert_eq!(manifest.path(1), Some(&b"shard"[..]));
    assert_eq!(manifest.path(2), None);
    assert_eq!(manifest.entry(2), Some(entry("wxyz", 1, 6, 4)));
    assert_eq!(manifest.entry(3), None);
    assert_eq!(manifest.find(b"shard", 6), Some(2));
    assert_eq!(manifest.find(b"shard", 4), None);
    assert_eq!(manifest.find(b"shar", 0), None);
    assert_eq!(manifest.entries_of(1), [1, 2]);
    assert!(manifest.entries_of(2).is_empty());
    // Equal content is found at all of its places.
    assert_eq!(manifest.with_hash(&entry("wxyz", 0, 0, 0).hash), [1, 2]);
    assert!(manifest.with_hash(&ContentHash([0; 32])).is_empty());
    let mut identity = blake3::Hasher::new();
    for one in [
        entry("abc", 0, 0, 3),
        entry("wxyz", 0, 0, 4),
        entry("wxyz", 0, 0, 4),
    ] {
        identity.update(&one.hash.0);
        identity.update(&one.length.to_le_bytes());
    }
    assert_eq!(manifest.identity(), identity.finalize().as_bytes());
}

#[test]
fn a_file_is_compared_with_its_state_when_it_was_read() {
    let manifest = open(example()).unwrap();
    let same = attributes(FileKind::File, 3, 7);
    assert_eq!(manifest.freshness(0, &same), Freshness::Same);
    let mut touched = same.clone();
    touched.version = touched.version.changed_at(b"noon");
    assert_eq!(manifest.freshness(0, &touched), Freshness::StatusChanged);
    for other in [
        attributes(FileKind::File, 3, 9),
        attributes(FileKind::File, 4, 7),
        attributes(FileKind::Directory, 3, 7),
    ] {
        assert_eq!(manifest.freshness(0, &other), Freshness::Changed);
    }
    assert_eq!(manifest.freshness(2, &same), Freshness::Changed);
}

#[test]
fn incomplete_foreign_and_newer_files_are_refused_with_the_reason() {
    let good = example();
    let refused = |bytes: &[u8]| open(bytes.to_vec()).err().unwrap();
    assert_eq!(refused(b""), FormatError::NotAManifest);
    assert_eq!(refused(b"CPFSIDX\n and more"), FormatError::NotAManifest);
    for len in [8, 100, HEADER_BYTES, good.len() - 1] {
        let torn = refused(&good[..len]);
        assert!(matches!(torn, FormatError::Torn { .. }), "{len}: {torn:?}");
    }
    let longer = [&good[..], b"x"].concat();
    assert!(matches!(refused(&longer), FormatError::Torn { .. }));
    let mut newer = good;
    newer[8] = 2;
    assert_eq!(refused(&newer), FormatError::Version(2));
}

#[test]
fn a_change_of_any_byte_is_refused() {
    let good = example();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert!(open(bad).is_err(), "byte {at}");
    }
}

/// Manifests that another program could write: their checksums are right, and their content is not.
#[test]
fn each_broken_rule_is_refused_with_its_place() {
    let small: File<'_> = (b"a", 10, 1);
    let said = |files: &[File<'_>], entries: &[Entry]| {
        let refused = open(encoded(files, entries)).err();
        refused.map_or_else(String::new, |error| error.to_string())
    };
    let e = |file, offset, length| entry("x", file, offset, length);
    assert_eq!(said(&[small], &[e(0, 0, 5), e(0, 5, 5)]), "");
    let cases: &[(&[File<'_>], &[Entry], &str)] = &[
        (
            &[small],
            &[e(0, 0, 6), e(0, 5, 5)],
            "entry 1 overlaps another entry",
        ),
        (
            &[small],
            &[e(0, 4, 2), e(0, 4, 2)],
            "entry 1 overlaps another entry",
        ),
        (&[small], &[e(0, 5, 6)], "entry 0 reaches beyond the end"),
        (
            &[small],
            &[e(0, u64::MAX, 2)],
            "entry 0 reaches beyond the end",
        ),
        (
            &[small],
            &[e(0, 0, 0)],
            "entry 0 is empty, and its file is not",
        ),
        (
            &[(b"a", 0, 1)],
            &[e(0, 0, 0), e(0, 0, 0)],
            "entry 1 overlaps another entry",
        ),
        (
            &[small],
            &[e(1, 0, 1)],
            "entry 0 is of a file that is not in the order",
        ),
        (
            &[small, (b"b", 9, 1)],
            &[e(1, 0, 1), e(0, 0, 1)],
            "entry 0 is of a file that is not",
        ),
        (&[small, (b"b", 9, 1)], &[e(0, 0, 1)], "other counts"),
        (
            &[small, (b"a", 9, 1)],
            &[e(0, 0, 1), e(1, 0, 1)],
            "file 1 has the path of an earlier",
        ),
        (
            &[(b"/a", 10, 1)],
            &[e(0, 0, 1)],
            "file 0 has a path that no file can have",
        ),
        (
            &[(b"a/../b", 10, 1)],
            &[e(0, 0, 1)],
            "file 0 has a path that no file can have",
        ),
        (
            &[(b"", 10, 1)],
            &[e(0, 0, 1)],
            "file 0 has a path that no file can have",
        ),
    ];
    for (files, entries, wanted) in cases {
        let said = said(files, entries);
        assert!(said.contains(wanted), "{said:?} instead of {wanted:?}");
    }
}

#[test]
fn a_version_with_an_unknown_standing_and_a_byte_in_a_gap_are_refused() {
    let good = example();
    let changed = |at: usize, byte| {
        let mut bad = good.clone();
        bad[at] = byte;
        seal(&mut bad);
        open(bad).err().unwrap().to_string()
    };
    let layout = header::Layout::of(&Header::decode(&good, good.len() as u64).unwrap().counts);
    let layout = layout.unwrap();
    let versions = to_usize(layout.range(header::Section::Versions).start);
    assert!(changed(versions + 24, 2).contains("file 0 has a version"));
    assert!(changed(versions + 32 + 31, 1).contains("file 1 has a version"));
    let gap = to_usize(layout.gaps().find(|gap| !gap.is_empty()).unwrap().start);
    assert!(changed(gap, 1).contains("is in a gap"));
}

#[test]
fn limits_are_checked_before_memory_is_allocated() {
    let counts = |entries, files, path_bytes| Counts {
        entries,
        files,
        path_bytes,
        ..Counts::default()
    };
    assert_eq!(counts(0, 1, 1).check(), Err(FormatError::Empty));
    assert_eq!(counts(1, 1, 1).check(), Ok(()));
    for large in [
        counts(1 << 32, 1, 1),
        counts(1, 1 << 32, 1),
        counts(1, 1, MANIFEST_BYTES_MAX),
        counts(1, 1, u64::MAX),
    ] {
        let refused = large.check().unwrap_err();
        assert!(
            matches!(refused, FormatError::TooLarge { .. }),
            "{refused:?}"
        );
    }
}

/// Files with the places of their entries, and a seed for the order of all entries.
fn datasets() -> impl Strategy<Value = Vec<(String, Vec<(u64, u64)>)>> {
    let length = prop_oneof![
        8 => 1..2000_u64,
        1 => PART_BYTES - 1..PART_BYTES + 2,
        1 => PART_BYTES..5 * PART_BYTES,
    ];
    let spans = prop::collection::vec((0..3u64, length), 0..6);
    let name = "[a-c]{1,2}(/[a-c]{1,2}){0,2}|[^/.\0\n]{1,20}";
    prop::collection::vec((name, spans), 1..12)
}

/// The files and entries of a dataset, in an order that depends on `seed`.
fn arranged(
    dataset: Vec<(String, Vec<(u64, u64)>)>,
    seed: u64,
) -> (Vec<(Vec<u8>, u64)>, Vec<Entry>) {
    let dataset: BTreeMap<String, Vec<(u64, u64)>> = dataset.into_iter().collect();
    let mut places = Vec::new();
    for (path, spans) in &dataset {
        let mut end = 0;
        let mut own = Vec::new();
        for (gap, length) in spans {
            own.push((end + gap, *length));
            end += gap + length;
        }
        if own.is_empty() {
            own.push((0, 0));
        }
        let size = end + u64::from(end > 0);
        places.extend(own.into_iter().map(|place| (path, size, place)));
    }
    places.sort_by_key(|place| {
        crate::num::mix64(
            seed ^ crate::num::first_u64(blake3::hash(format!("{place:?}").as_bytes()).as_bytes()),
        )
    });
    let mut files: Vec<(Vec<u8>, u64)> = Vec::new();
    let mut entries = Vec::new();
    for (path, size, (offset, length)) in places {
        let known = files.iter().position(|file| file.0 == path.as_bytes());
        let file = known.unwrap_or_else(|| {
            files.push((path.clone().into_bytes(), size));
            files.len() - 1
        });
        // Some entries have equal content.
        let text = format!("{}", (offset + length) % 7);
        entries.push(entry(&text, u32::try_from(file).unwrap(), offset, length));
    }
    (files, entries)
}

fn encode(files: &[(Vec<u8>, u64)], entries: &[Entry]) -> Vec<u8> {
    let files: Vec<File<'_>> = files.iter().map(|file| (&file.0[..], file.1, 5)).collect();
    encoded(&files, entries)
}

proptest! {
    #[test]
    fn manifests_come_back(dataset in datasets(), seed: u64) {
        let (files, entries) = arranged(dataset, seed);
        let manifest = open(encode(&files, &entries)).unwrap();
        prop_assert_eq!(manifest.len(), entries.len());
        prop_assert_eq!(manifest.files(), files.len());
        for (number, wanted) in entries.iter().enumerate() {
            prop_assert_eq!(manifest.entry(number), Some(*wanted));
            prop_assert_eq!(manifest.parts(number), parts(wanted));
            let path = manifest.path(wanted.file).unwrap();
            prop_assert_eq!(manifest.find(path, wanted.offset), Some(number));
            let same = entries.iter().enumerate().filter(|(_, one)| one.hash == wanted.hash);
            let same: Vec<u32> = same.map(|(number, _)| narrow(number)).collect();
            prop_assert_eq!(manifest.with_hash(&wanted.hash), same);
        }
        for (number, (path, size)) in files.iter().enumerate() {
            prop_assert_eq!(manifest.file_at(path), Some(narrow(number)));
            prop_assert_eq!(manifest.size(narrow(number)), Some(*size));
            let offsets: Vec<u64> = manifest.entries_of(narrow(number)).iter()
                .map(|entry| entries[*entry as usize].offset).collect();
            prop_assert!(offsets.is_sorted());
        }
        let sum: u64 = entries.iter().map(|entry| entry.length).sum();
        prop_assert_eq!(manifest.header().entry_bytes, sum);
    }

    /// Also if the author of the damage writes the checksums again: no panic, and an accepted manifest answers.
    #[test]
    fn damage_never_panics(dataset in datasets(), seed: u64, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let (files, entries) = arranged(dataset, seed);
        let good = encode(&files, &entries);
        let mut bad = good.clone();
        for (at, byte) in changes {
            let at = at.index(bad.len());
            bad[at] = byte;
        }
        prop_assert!(bad == good || open(bad.clone()).is_err());
        let sum = blake3::hash(&bad[..224]);
        bad[224..HEADER_BYTES].copy_from_slice(sum.as_bytes());
        seal(&mut bad);
        if let Ok(manifest) = open(bad) {
            for number in 0..manifest.len() {
                let entry = manifest.entry(number).unwrap();
                prop_assert_eq!(manifest.parts(number).len() as u64, parts_of(entry.length));
                let path = manifest.path(entry.file).unwrap();
                prop_assert_eq!(manifest.find(path, entry.offset), Some(number));
                prop_assert!(manifest.with_hash(&entry.hash).contains(&narrow(number)));
            }
        }
    }

    #[test]
    fn garbage_never_panics(bytes: Vec<u8>) {
        let _refused = open(bytes.clone());
        let _refused = open([&MAGIC[..], &FORMAT.to_le_bytes(), &bytes].concat());
    }
}
