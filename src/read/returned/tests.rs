use super::*;
use copperfs_overlay::{BLOCK_BYTES, RANGE_ALIGN};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn new(single: bool) -> Returned {
    Returned::of(ReturnedParts::default(), single, &Meter::default())
}

impl Returned {
    fn state(&self) -> &State {
        self.0.as_deref().unwrap()
    }
}

fn hash(seed: u64) -> ContentHash {
    ContentHash(*blake3::hash(&seed.to_le_bytes()).as_bytes())
}

fn part(place: PartRange, seed: u64) -> Part {
    Part {
        range: place,
        hash: hash(seed),
    }
}

#[test]
fn a_block_never_has_two_hashes() {
    for single in [true, false] {
        let given = new(single);
        let block = PartRange::Block(0);
        assert!(given.looks_unread());
        assert_eq!(given.note(&[part(block, 1)]), Noted::Yes);
        assert_eq!(given.note(&[part(block, 1)]), Noted::Yes);
        assert_eq!(given.note(&[part(block, 2)]), Noted::Differs);
        assert!(!given.looks_unread());
        let account = given.freeze();
        assert!(account.agrees(0, &hash(1)) && !account.agrees(0, &hash(2)));
    }
}

/// A second read of a one-block file finds its hash without a lock; the lock is never created.
#[test]
fn a_one_block_file_takes_no_lock() {
    let given = new(true);
    for _ in 0..3 {
        assert_eq!(given.note(&[part(PartRange::Block(0), 1)]), Noted::Yes);
        assert!(given.state().more.get().is_none());
    }
    assert_eq!(
        Returned::of(given.freeze(), true, &Meter::default())
            .state()
            .one
            .get(),
        Some(&Some(short(&hash(1))))
    );
}

#[test]
fn a_frozen_ledger_takes_nothing_new_and_its_heir_does() {
    for single in [true, false] {
        let given = new(single);
        let (first, second) = (part(PartRange::Piece(3), 1), part(PartRange::Block(0), 2));
        assert_eq!(given.note(&[first]), Noted::Yes);
        let account = given.freeze();
        assert_eq!(given.note(&[first]), Noted::Yes, "it is in the account");
        assert_eq!(given.note(&[second]), Noted::Frozen);
        assert_eq!(
            given.note(&[part(PartRange::Run { offset: 0, len: 1 }, 1)]),
            Noted::Frozen
        );
        let whole: Arc<[ContentHash]> = vec![hash(2)].into();
        assert_eq!(given.note_whole(&whole), Noted::Frozen);
        let heir = Returned::of(account, single, &Meter::default());
        assert_eq!(heir.note(&[second]), Noted::Yes);
        assert_eq!(heir.note(&[part(PartRange::Block(0), 3)]), Noted::Differs);
        given.die();
        assert_eq!(
            given.note(&[second]),
            Noted::Yes,
            "it is compared with nothing"
        );
    }
}

#[test]
fn a_ledger_that_is_full_says_so() {
    type Of = fn(u64) -> PartRange;
    let kinds: [(usize, Of); 3] = [
        (BLOCKS_MAX, PartRange::Block),
        (PIECED_BLOCKS_MAX, |n| {
            PartRange::Piece(n * BLOCK_PIECES as u64)
        }),
        (RUNS_MAX, |n| PartRange::Run { offset: n, len: 1 }),
    ];
    for (bound, place) in kinds {
        let given = new(false);
        for n in 0..bound as u64 {
            assert_eq!(given.note(&[part(place(n), n)]), Noted::Yes);
        }
        assert!(
            !given
                .state()
                .more
                .get()
                .is_some_and(|it| it.lock().account.full)
        );
        let bytes = given.state().bytes.load(Ordering::Relaxed);
        let charged = given.state().meter.load(Ordering::Relaxed);
        assert_eq!(bytes, charged);
        for n in 0..2 * bound as u64 {
            assert_eq!(given.note(&[part(place(n), n)]), Noted::Yes);
        }
        let after = given.state().meter.load(Ordering::Relaxed);
        assert_eq!(after, charged, "bounded");
        assert!(given.freeze().is_full());
    }
}

#[test]
fn a_whole_file_holds_its_blocks_against_those_of_before() {
    let whole: Arc<[ContentHash]> = (0..4).map(hash).collect();
    let given = new(false);
    assert_eq!(given.note(&[part(PartRange::Block(2), 2)]), Noted::Yes);
    assert_eq!(given.note_whole(&whole), Noted::Yes);
    assert_eq!(given.note_whole(&whole), Noted::Yes);
    let account = given.freeze();
    assert_eq!(account.blocks().collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(account.agrees(3, &hash(3)) && !account.agrees(4, &hash(4)));
    let other = new(false);
    assert_eq!(other.note(&[part(PartRange::Block(2), 7)]), Noted::Yes);
    assert_eq!(other.note_whole(&whole), Noted::Differs);
}

#[test]
fn pieces_that_change_places_are_noticed() {
    let given = new(false);
    let noted = given.note(&[part(PartRange::Piece(1), 1), part(PartRange::Piece(2), 2)]);
    assert_eq!(noted, Noted::Yes);
    let account = given.freeze();
    let [row] = account.pieces() else {
        panic!("one block")
    };
    assert!(row.agrees(&[hash(1), hash(2)]));
    assert!(!row.agrees(&[hash(2), hash(1)]));
    assert_eq!(row.pieces().collect::<Vec<_>>(), [1, 2]);
}

/// Places that readers may be given, by block and by piece.
fn places() -> impl Strategy<Value = Vec<PartRange>> {
    let pieces = BLOCK_PIECES as u64;
    let run = (0..6_u64, 1..4_u64).prop_map(move |(at, pieces)| PartRange::Run {
        offset: at * RANGE_ALIGN,
        len: pieces * RANGE_ALIGN,
    });
    let place = prop_oneof![
        (0..6_u64).prop_map(PartRange::Block),
        (0..3 * pieces).prop_map(PartRange::Piece),
        run,
    ];
    prop::collection::vec(place, 0..40)
}

/// The hash of the bytes at `place`, which differs if it is `changed`.
fn content(place: PartRange, changed: Option<PartRange>) -> ContentHash {
    let seed = match place {
        PartRange::Block(index) => index,
        PartRange::Piece(index) => 1_000 + index,
        PartRange::Run { offset, len } => BLOCK_BYTES + offset * 100 + len,
    };
    hash(seed + if changed == Some(place) { 1 << 40 } else { 0 })
}

/// Whether a file that differs at `changed` has all of `account`.
fn has_all(account: &ReturnedParts, changed: Option<PartRange>) -> bool {
    let block = |index| account.agrees(index, &content(PartRange::Block(index), changed));
    let run = |(offset, len)| {
        account.run_agrees(
            (offset, len),
            &content(PartRange::Run { offset, len }, changed),
        )
    };
    let row = |row: &ReturnedPieces| {
        let first = row.block * BLOCK_PIECES as u64;
        let hash = |piece| content(PartRange::Piece(first + piece), changed);
        row.agrees(&row.pieces().map(hash).collect::<Vec<_>>())
    };
    account.blocks().all(block) && account.runs().all(run) && account.pieces().iter().all(row)
}

proptest! {
    /// A file agrees with an account exactly if it differs at none of the returned places, whatever their
    /// order and repetitions.
    #[test]
    fn an_account_agrees_with_a_file_that_has_all_of_it(
        given_out in places(),
        elsewhere in places(),
        single: bool,
    ) {
        let given = new(single);
        let mut model = BTreeMap::new();
        for &place in &given_out {
            let part = Part { range: place, hash: content(place, None) };
            prop_assert_eq!(given.note(&[part]), Noted::Yes);
            model.insert(place, ());
        }
        prop_assert_eq!(given.looks_unread(), given_out.is_empty());
        let account = given.freeze();
        prop_assert_eq!(account.is_empty(), given_out.is_empty());
        prop_assert!(has_all(&account, None));
        for place in given_out.iter().chain(&elsewhere) {
            prop_assert_eq!(has_all(&account, Some(*place)), !model.contains_key(place));
        }
        let heir = Returned::of(account.clone(), single, &Meter::default());
        prop_assert_eq!(heir.freeze(), account);
    }
}
