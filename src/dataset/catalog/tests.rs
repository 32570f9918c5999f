//! Entries as items.

use super::*;
use crate::testing::{NamedBytes, manifest, noise};
use copperfs_policy::keep::Item;
use proptest::prelude::*;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;

fn named(path: &str, size: u64, offset: u64, len: u64, seed: &str) -> NamedBytes {
    NamedBytes {
        path: path.into(),
        size,
        offset,
        bytes: noise(seed, len),
    }
}

fn catalog(entries: &[NamedBytes]) -> Catalog {
    Catalog::new(manifest(entries))
}

fn piece(start: u64, len: u64, content: Option<&[u8]>) -> Option<Piece> {
    let content = content.map(|bytes| ContentHash(*blake3::hash(bytes).as_bytes()));
    let extent = Extent { start, len };
    Some(Piece { extent, content })
}

#[test]
fn entries_are_pieces_and_so_are_the_bytes_between_them() {
    let (short, long) = (noise("short", 488), noise("long", 5 * MIB));
    let catalog = catalog(&[
        named("shard", 20 * MIB, 512, 488, "short"),
        named("shard", 20 * MIB, 2000, 5 * MIB, "long"),
        named("dir/copy", 488, 0, 488, "short"),
        named("empty", 0, 0, 0, "empty"),
    ]);
    let at = |offset| catalog.piece_at(b"shard", 20 * MIB, offset);
    assert_eq!(at(0), piece(0, 512, None));
    assert_eq!(at(511), piece(0, 512, None));
    assert_eq!(at(512), piece(512, 488, Some(&short)));
    assert_eq!(at(999), piece(512, 488, Some(&short)));
    assert_eq!(at(1000), piece(1000, 1000, None));
    let part = usize::try_from(4 * MIB).unwrap();
    let (first, second) = long.split_at(part);
    assert_eq!(at(2000), piece(2000, 4 * MIB, Some(first)));
    assert_eq!(at(1999 + 4 * MIB), piece(2000, 4 * MIB, Some(first)));
    assert_eq!(at(2000 + 4 * MIB), piece(2000 + 4 * MIB, MIB, Some(second)));
    let rest = 2000 + 5 * MIB;
    assert_eq!(at(rest), piece(rest, 8 * MIB - rest, None));
    assert_eq!(at(9 * MIB), piece(8 * MIB, 4 * MIB, None));
    assert_eq!(at(20 * MIB), None);
    assert_eq!(
        catalog.piece_at(b"shard", 20 * MIB + 1, 512),
        None,
        "another size"
    );
    assert_eq!(catalog.piece_at(b"copy", 488, 0), None);
    assert_eq!(catalog.piece_at(b"empty", 0, 0), None);
    let copy = catalog.piece_at(b"dir/copy", 488, 0).unwrap();
    assert_eq!(copy.content, at(512).unwrap().content);
}

#[test]
fn equal_content_is_one_item_of_several_entries() {
    let catalog = catalog(&[
        named("a", 100, 0, 100, "same"),
        named("b", 5 * MIB, 0, 5 * MIB, "long"),
        named("c", 100, 0, 100, "same"),
        named("empty", 0, 0, 0, "empty"),
    ]);
    let items: Vec<(ItemId, u64)> = catalog.items().collect();
    let mut lens: Vec<u64> = items.iter().map(|(_, len)| *len).collect();
    lens.sort_unstable();
    assert_eq!(lens, [100, MIB, 4 * MIB]);
    let same = catalog.pieces_of(0).next().unwrap().0;
    assert_eq!(catalog.entries_of(&same).collect::<Vec<_>>(), [0, 2]);
    for (part, _) in catalog.pieces_of(1) {
        assert_eq!(catalog.entries_of(&part).collect::<Vec<_>>(), [1]);
    }
    assert_eq!(
        (catalog.pieces_of(1).count(), catalog.pieces_of(3).count()),
        (2, 0)
    );
    let other = ItemId::of_content(&ContentHash([9; 32]), 100);
    assert_eq!(catalog.entries_of(&other).count(), 0);
}

/// Lengths of gaps and entries by turns, in one file.
fn lengths() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0..6 * MIB, 1..9 * MIB), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    /// Whatever the entries are, each byte is in exactly one piece.
    #[test]
    fn pieces_cover_a_file_without_overlap(lengths in lengths(), rest in 0..9 * MIB) {
        let size = lengths.iter().map(|(gap, len)| gap + len).sum::<u64>() + rest;
        let mut at = 0;
        let mut entries = Vec::new();
        for (number, (gap, len)) in lengths.iter().enumerate() {
            entries.push(named("file", size, at + gap, *len, &number.to_string()));
            at += gap + len;
        }
        let catalog = catalog(&entries);
        let mut found = BTreeSet::new();
        let mut offset = 0;
        while offset < size {
            let piece = catalog.piece_at(b"file", size, offset).unwrap();
            prop_assert_eq!(piece.extent.start, offset);
            prop_assert!((1..=PART_BYTES).contains(&piece.extent.len));
            let last = piece.extent.end() - 1;
            prop_assert_eq!(catalog.piece_at(b"file", size, last), Some(piece));
            found.extend(piece.item());
            offset = piece.extent.end();
        }
        prop_assert_eq!(offset, size);
        let items: BTreeSet<ItemId> = catalog.items().map(|(item, _)| item).collect();
        prop_assert_eq!(&found, &items);
        prop_assert!(items.iter().all(|item| catalog.entries_of(item).count() == 1));
        prop_assert!(items.iter().all(|item| ItemId::from_file(item.file()).is_some_and(|same| same.key() == item.key())));
    }
}
