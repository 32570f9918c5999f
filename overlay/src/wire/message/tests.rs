use super::*;
use crate::model::{
    ContentHash, Extent, FailureKind, FileKind, HELD_BYTES_MAX, HeldRequest, ItemRequest,
    ListRequest, ListingDigest, StatRequest, Timestamp, Version,
};
use proptest::prelude::*;

fn path() -> impl Strategy<Value = ItemPath> {
    proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..20), 0..6).prop_map(
        |names| {
            names.iter().fold(ItemPath::root(), |path, name| {
                path.join(name).unwrap_or(path)
            })
        },
    )
}

fn bytes() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn timestamp() -> impl Strategy<Value = Timestamp> {
    (any::<i64>(), 0..1_000_000_000u32).prop_map(|(seconds, nanoseconds)| Timestamp {
        seconds,
        nanoseconds,
    })
}

prop_compose! {
    fn attributes()(
        numbers: (u16, u32, u32, u32, u64),
        sizes: (u64, u64, u32),
        times in (timestamp(), timestamp(), timestamp()),
        version: [u8; 16],
        link_target in proptest::option::of(bytes()),
        content: Option<[u8; 32]>,
    ) -> Attributes {
        Attributes {
            kind: FileKind::Symlink,
            mode: numbers.0, uid: numbers.1, gid: numbers.2, links: numbers.3, device: numbers.4,
            size: sizes.0, blocks: sizes.1, block_size: sizes.2,
            atime: times.0, mtime: times.1, ctime: times.2,
            version: Version::from_data(version), link_target,
            content: content.map(ContentHash),
        }
    }
}

prop_compose! {
    fn item()(
        path in path(),
        version: [u8; 16],
        content: Option<[u8; 32]>,
        numbers: [u64; 7],
        job: u128,
    ) -> ItemRequest {
        let [dataset, size, item_start, item_len, start, len, payment] = numbers;
        ItemRequest {
            dataset, path, version: Version::from_data(version), size, content: content.map(ContentHash),
            item: Extent { start: item_start, len: item_len }, wanted: Extent { start, len }, job, payment, is_uncached: false,
        }
    }
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        of_files(),
        item().prop_map(Request::Item),
        any::<u8>().prop_map(|tree| Request::Steer { tree }),
        any::<u8>().prop_map(|tree| Request::Command { tree }),
    ]
}

/// Questions about names.
fn stats() -> impl Strategy<Value = Request> {
    (
        path(),
        proptest::collection::vec(bytes(), 0..20),
        proptest::option::of(any::<[u8; 16]>()),
    )
        .prop_map(|(parent, names, denied)| {
            Request::Stat(StatRequest {
                parent,
                names,
                denied: denied.map(Version::from_data),
            })
        })
}

fn of_files() -> impl Strategy<Value = Request> {
    prop_oneof![
        (
            path(),
            proptest::option::of(bytes().prop_map(Cursor)),
            any::<u32>(),
            any::<Option<[u8; 16]>>()
        )
            .prop_map(|(path, cursor, limit, known)| Request::List(ListRequest {
                path,
                cursor,
                limit: limit as usize,
                known: known.map(ListingDigest),
            })),
        stats(),
        (
            path(),
            any::<[u8; 16]>(),
            any::<u64>(),
            any::<u64>(),
            any::<u64>(),
            any::<(Option<[u8; 32]>, bool)>()
        )
            .prop_map(|(path, version, size, first_block, block_count, rest)| {
                let (content, through) = rest;
                Request::Read(ReadRequest {
                    path,
                    version: Version::from_data(version),
                    size,
                    first_block,
                    block_count,
                    content: content.map(ContentHash),
                    through,
                })
            }),
        (
            path(),
            any::<[u8; 16]>(),
            any::<u64>(),
            any::<u64>(),
            any::<u64>()
        )
            .prop_map(|(path, version, size, offset, len)| Request::ReadRange(
                RangeRequest {
                    path,
                    version: Version::from_data(version),
                    size,
                    offset,
                    len,
                    content: None,
                }
            )),
        any::<(u8, [u8; 32], u64)>().prop_map(|(tree, hash, len)| Request::Find {
            tree,
            hash: ContentHash(hash),
            len,
        }),
        path().prop_map(|path| Request::Xattrs { path }),
        path().prop_map(|path| Request::Usage { path }),
        any::<u8>().prop_map(|tree| Request::Origins { tree }),
        any::<(u8, u32)>()
            .prop_map(|(tree, budget_ms)| Request::ClusterReports { tree, budget_ms }),
        (any::<u8>(), path(), any::<u32>()).prop_map(|(tree, path, budget_ms)| {
            Request::ClearBelow {
                tree,
                path,
                budget_ms,
            }
        }),
    ]
}

proptest! {
    #[test]
    fn questions_round_trip(request in request(), attempt: u8) {
        let body = encode_question(attempt, &request).unwrap();
        let _checked = request.check();
        for cut in 0..body.len() {
            prop_assert!(decode::<Question>("request", &body[..cut]).is_err());
        }
        prop_assert_eq!(decode("request", &body), Ok(Question { attempt, request }));
    }

    #[test]
    fn heads_round_trip(directory in attributes(), next in proptest::option::of(bytes().prop_map(Cursor)), entries: u32, lease_ms: Option<u32>) {
        let head = Head::Listing { directory, next, entries, lease_ms };
        let body = encode("head", &head).unwrap();
        prop_assert_eq!(decode("head", &body), Ok(head));
    }

    #[test]
    fn stat_answers_round_trip(answers in proptest::collection::vec(
        attributes().prop_map(Ok).boxed().prop_union(
            any::<String>().prop_map(|detail| Err(Failure::new(FailureKind::Stale, detail))).boxed()
        ), 0..5)) {
        let body = encode("answers", &answers).unwrap();
        prop_assert_eq!(decode::<Vec<Result<Attributes, Failure>>>("answers", &body), Ok(answers));
    }

    #[test]
    fn garbage_never_panics(body: Vec<u8>) {
        if let Ok(question) = decode::<Question>("request", &body) {
            let _checked = question.request.check();
        }
        let _reported = decode::<Reported>("report", &body);
        let _head = decode::<Head>("head", &body);
        let _hello = decode::<Hello>("hello", &body);
        let _failure = decode::<Failure>("failure", &body);
        let _cleared = decode::<Cleared>("cleared", &body);
    }
}

#[test]
fn a_body_that_announces_an_exabyte_is_refused() {
    // A stat request whose list of names claims 2^60 elements, and a path of 2^60 bytes.
    let exa = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10];
    for body in [
        [&[1u8, 0][..], &exa[..]].concat(),
        [&[3u8][..], &exa[..]].concat(),
    ] {
        assert!(decode::<Request>("request", &body).is_err());
    }
}

#[test]
fn reads_are_bounded_by_the_file() {
    let read = |size, first_block, block_count| {
        let (path, version) = (ItemPath::root(), Version::from_data([0; 16]));
        Request::Read(ReadRequest {
            path,
            version,
            size,
            first_block,
            block_count,
            content: None,
            through: false,
        })
        .check()
    };
    assert!(read(1, 0, 1).is_ok());
    assert!(read(BLOCK_BYTES, 0, 2).is_err());
    assert!(read(BLOCK_BYTES + 1, 1, 1).is_ok());
    assert!(read(BLOCK_BYTES, 0, 0).is_err());
    assert!(read(0, 0, 1).is_err());
    assert!(read(u64::MAX, u64::MAX, u64::MAX).is_err());
    assert!(read(u64::MAX, 0, READ_BLOCKS_MAX).is_ok());
    assert!(read(u64::MAX, 0, READ_BLOCKS_MAX + 1).is_err());
}

#[test]
fn names_and_limits_are_bounded() {
    let stat = |names: Vec<Bytes>| {
        Request::Stat(StatRequest {
            parent: ItemPath::root(),
            names,
            denied: None,
        })
        .check()
    };
    for (names, good) in [(0, false), (1, true), (2, false)] {
        let again = Request::Stat(StatRequest {
            parent: ItemPath::root(),
            names: vec![Bytes::from_static(b"a"); names],
            denied: Some(Version::from_data([1; 16])),
        });
        assert_eq!(again.check().is_ok(), good, "{names} names");
    }
    assert!(stat(vec![Bytes::new(), Bytes::from_static(b"a\xff\n")]).is_ok());
    for bad in [&b".."[..], b".", b"a/b", b"a\0"] {
        assert!(stat(vec![Bytes::from_static(bad)]).is_err());
    }
    assert!(stat(vec![Bytes::from(vec![b'a'; 256])]).is_err());
    assert!(stat(vec![Bytes::new(); STAT_NAMES_MAX + 1]).is_err());
    assert!(stat(vec![Bytes::from(vec![b'a'; 255]); 1000]).is_err());
    for (limit, good) in [(0, false), (1, true), (100_000, true), (100_001, false)] {
        let list = Request::List(ListRequest {
            path: ItemPath::root(),
            cursor: None,
            limit,
            known: None,
        });
        assert_eq!(list.check().is_ok(), good);
    }
}

/// Like [`requests_have_the_bytes_of_the_specification`].
#[test]
fn questions_about_names_have_the_bytes_of_the_specification() {
    let same = |request: Request, parts: &[&[u8]]| {
        let bytes = encode("request", &request).unwrap();
        assert_eq!(&bytes[..], parts.concat(), "{request:?}");
    };
    let path = || ItemPath::parse(b"a/b").unwrap();
    let x = || Bytes::from_static(b"x");
    let (parent, names) = (path(), vec![Bytes::new(), x()]);
    same(
        Request::Stat(StatRequest {
            parent,
            names,
            denied: None,
        }),
        &[&[1, 3], b"a/b", &[2, 0, 1, b'x', 0]],
    );
    let (parent, names) = (path(), vec![x()]);
    let denied = Some(Version::from_data([9; 16]));
    let version = [&[9; 16][..], &[0; 9]].concat();
    same(
        Request::Stat(StatRequest {
            parent,
            names,
            denied,
        }),
        &[&[1, 3], b"a/b", &[1, 1, b'x', 1], &version],
    );
}

/// The rules of `docs/wire.md`, byte by byte: a change here is another protocol version.
#[test]
fn requests_have_the_bytes_of_the_specification() {
    let same = |request: Request, parts: &[&[u8]]| {
        let bytes = encode("request", &request).unwrap();
        assert_eq!(&bytes[..], parts.concat(), "{request:?}");
    };
    let path = || ItemPath::parse(b"a/b").unwrap();
    let (x, budget_ms, tree) = (|| Bytes::from_static(b"x"), 300, 1);
    let (cursor, limit) = (Some(Cursor(x())), 100_000);
    let list = Request::List(ListRequest {
        path: path(),
        cursor,
        limit,
        known: None,
    });
    same(list, &[&[0, 3], b"a/b", &[1, 1, b'x', 0xa0, 0x8d, 6, 0]]);
    let (path_, version, size) = (path(), Version::from_data([9; 16]), 5);
    let (first_block, block_count) = (0, 1);
    let read = ReadRequest {
        path: path_,
        version,
        size,
        first_block,
        block_count,
        content: Some(ContentHash([4; 32])),
        through: false,
    };
    same(
        Request::Read(read),
        &[
            &[2, 3],
            b"a/b",
            &[9; 16],
            &[0; 9],
            &[5, 0, 1, 1],
            &[4; 32],
            &[0],
        ],
    );
    same(Request::Xattrs { path: path() }, &[&[3, 3], b"a/b"]);
    let path_ = ItemPath::root();
    same(Request::Usage { path: path_ }, &[&[4, 0]]);
    same(Request::Origins { tree }, &[&[5, 1]]);
    same(
        Request::ClusterReports { tree, budget_ms },
        &[&[6, 1, 0xac, 2]],
    );
    let path_ = path();
    same(
        Request::ClusterClear {
            tree,
            path: path_,
            budget_ms,
        },
        &[&[7, 1, 3], b"a/b", &[0xac, 2]],
    );
    same(
        Request::ReportsBelow { tree, budget_ms },
        &[&[8, 1, 0xac, 2]],
    );
    let path_ = path();
    same(
        Request::ClearBelow {
            tree,
            path: path_,
            budget_ms,
        },
        &[&[9, 1, 3], b"a/b", &[0xac, 2]],
    );
}

/// As above: a listing is asked for with the digest of the one that is held.
#[test]
fn a_conditional_listing_has_the_bytes_of_the_specification() {
    let list = Request::List(ListRequest {
        path: ItemPath::parse(b"a/b").unwrap(),
        cursor: None,
        limit: 1,
        known: Some(ListingDigest([9; 16])),
    });
    let expected = [&[0, 3][..], b"a/b", &[0, 1, 1], &[9; 16]].concat();
    assert_eq!(&encode("request", &list).unwrap()[..], expected);
}

/// As above: a question is its attempt and its request.
#[test]
fn questions_have_the_bytes_of_the_specification() {
    let request = Request::Usage {
        path: ItemPath::root(),
    };
    assert_eq!(encode_question(2, &request).unwrap(), &[2, 4, 0][..]);
    let question = Question {
        attempt: 2,
        request,
    };
    assert_eq!(encode("question", &question).unwrap(), &[2, 4, 0][..]);
}

/// As above.
#[test]
fn answers_have_the_bytes_of_the_specification() {
    fn same<T: Serialize>(value: &T, bytes: &[u8]) {
        assert_eq!(encode("value", value).unwrap(), bytes);
    }
    let origin = crate::OriginFingerprint {
        prefix: ItemPath::parse(b"a").unwrap(),
        fingerprint: [9; 16],
    };
    same(&origin, &[&[1, b'a'][..], &[9; 16]].concat());
    let hello = Hello {
        rank: Some(1),
        tree: 3,
        members: 200,
        arity: 2,
        list: [9; 16],
        name: "n1".to_owned(),
        reader: false,
        lane: 0,
    };
    let list = [9; 16];
    let behind = [2, b'n', b'1', 0, 0];
    same(
        &hello,
        &[&[1, 1, 3, 200, 1, 2][..], &list, &behind].concat(),
    );
    let guest = Hello {
        rank: None,
        ..hello
    };
    same(&guest, &[&[0, 3, 200, 1, 2][..], &list, &behind].concat());
    let reader = Hello {
        reader: true,
        lane: 7,
        ..guest
    };
    let behind = [2, b'n', b'1', 1, 7];
    same(&reader, &[&[0, 3, 200, 1, 2][..], &list, &behind].concat());
    let failure = Failure::new(FailureKind::Io, "no");
    same(&failure, &[10, 2, b'n', b'o']);
    let (node, result) = (NodeId::Member(3), Err(failure));
    same(&Cleared { node, result }, &[0, 3, 1, 10, 2, b'n', b'o']);
    let (node, report) = (NodeId::Guest("g".into()), Bytes::from_static(b"{}"));
    same(&Reported { node, report }, &[1, 1, b'g', 2, b'{', b'}']);
    let (answers, lease_ms) = (2, None);
    same(&Head::Stat { answers, lease_ms }, &[1, 2, 0]);
    let (attributes, lease_ms) = (2, Some(300));
    same(
        &Head::Xattrs {
            attributes,
            lease_ms,
        },
        &[2, 2, 1, 0xac, 2],
    );
    same(&Head::Unchanged { lease_ms }, &[5, 1, 0xac, 2]);
    same(&Head::Origins { origins: 2 }, &[4, 2]);
    let (blocks, name_max) = (1, 255);
    let usage = FilesystemUsage {
        blocks,
        name_max,
        ..Default::default()
    };
    same(&Head::Usage(usage), &[3, 1, 0, 0, 0, 0, 0, 255, 1]);
}

/// As above: the attributes of a symlink, as in a listing's head and its entries.
#[test]
fn attributes_have_the_bytes_of_the_specification() {
    let time = |seconds| Timestamp {
        seconds,
        nanoseconds: 5,
    };
    let attributes = Attributes {
        kind: FileKind::Symlink,
        mode: 0o777,
        uid: 1,
        gid: 2,
        links: 3,
        device: 4,
        size: 1,
        blocks: 8,
        block_size: 4096,
        atime: time(-1),
        mtime: time(1),
        ctime: time(0),
        version: Version::from_data([7; 16]),
        link_target: Some(Bytes::from_static(b"t")),
        content: Some(ContentHash([8; 32])),
    };
    let numbers = [2, 0xff, 3, 1, 2, 3, 4, 1, 8, 0x80, 0x20];
    let bytes = [
        &numbers[..],
        &[1, 5, 2, 5, 0, 5],
        &[7; 16],
        &[0; 9],
        &[1, 1, b't'],
        &[1],
        &[8; 32],
    ]
    .concat();
    let head = Head::Listing {
        directory: attributes.clone(),
        next: None,
        entries: 1,
        lease_ms: None,
    };
    let expected = [&[0][..], &bytes, &[0, 1, 0]].concat();
    assert_eq!(encode("head", &head).unwrap(), expected);
    let name = Bytes::from_static(b"n");
    let kind = FileKind::Symlink;
    let entry = crate::model::Entry {
        name,
        kind,
        attributes: Some(attributes),
    };
    let expected = [&[1, b'n', 2, 1][..], &bytes].concat();
    assert_eq!(encode("entry", &entry).unwrap(), expected);
}

/// As above: what homes are asked and answer, and how steering begins.
#[test]
fn items_and_steering_have_the_bytes_of_the_specification() {
    let item = ItemRequest {
        dataset: 300,
        path: ItemPath::parse(b"a/b").unwrap(),
        version: Version::from_data([9; 16]),
        size: 500,
        item: Extent {
            start: 300,
            len: 200,
        },
        content: Some(ContentHash([4; 32])),
        wanted: Extent { start: 301, len: 2 },
        job: 1 << 70,
        payment: 6,
        is_uncached: true,
    };
    let job = [
        0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1,
    ];
    let expected = [
        &[15, 0xac, 2, 3][..],
        b"a/b",
        &[9; 16],
        &[0; 9],
        &[0xf4, 3, 0xac, 2, 0xc8, 1, 1],
        &[4; 32],
        &[0xad, 2, 2],
        &job,
        &[6, 1],
    ]
    .concat();
    assert_eq!(encode("request", &Request::Item(item)).unwrap(), expected);
    let steer = encode("request", &Request::Steer { tree: 2 }).unwrap();
    assert_eq!(&steer[..], [16, 2]);
    let command = encode("request", &Request::Command { tree: 2 }).unwrap();
    assert_eq!(&command[..], [17, 2]);
    let head = Head::Item {
        cached: true,
        charged: 300,
        admitted: 1,
    };
    assert_eq!(encode("head", &head).unwrap(), &[6, 1, 0xac, 2, 1][..]);
    let head = Head::Unpaid { cost: 300 };
    assert_eq!(encode("head", &head).unwrap(), &[7, 0xac, 2][..]);
    let held = Request::Held(HeldRequest {
        dataset: 300,
        layout: [7; 16],
        known: 5,
    });
    let expected = [&[18, 0xac, 2][..], &[7; 16], &[5]].concat();
    assert_eq!(encode("request", &held).unwrap(), expected);
    let head = |state, bytes| Head::Held { state, bytes };
    let bytes = |head: &Head| encode("head", head).unwrap();
    assert_eq!(bytes(&head(300, Some(2))), &[8, 0xac, 2, 1, 2][..]);
    assert_eq!(bytes(&head(5, None)), &[8, 5, 0][..]);
    assert_eq!(head(5, None).check(&held), Ok(()));
    assert_eq!(head(6, Some(HELD_BYTES_MAX)).check(&held), Ok(()));
    assert!(head(6, None).check(&held).is_err(), "other bits were known");
    assert!(head(6, Some(HELD_BYTES_MAX + 1)).check(&held).is_err());
    assert!(head(5, None).check(&Request::Steer { tree: 2 }).is_err());
}

#[test]
fn items_by_hash_have_these_bytes_and_bounds() {
    let hash = ContentHash([7; 32]);
    let content = Request::Content { hash };
    let expected = [&[19][..], &[7; 32]].concat();
    assert_eq!(encode("request", &content).unwrap(), expected);
    let insert = |len| Request::Insert { hash, len };
    let expected = [&[20][..], &[7; 32], &[0xac, 2]].concat();
    assert_eq!(encode("request", &insert(300)).unwrap(), expected);
    for (len, fits) in [
        (0, false),
        (1, true),
        (ITEM_BYTES_MAX, true),
        (ITEM_BYTES_MAX + 1, false),
    ] {
        assert_eq!(insert(len).check().is_ok(), fits, "{len}");
        let head = Head::Content { bytes: Some(len) };
        assert_eq!(head.check(&content).is_ok(), fits, "{len}");
    }
    let bytes = |head: &Head| encode("head", head).unwrap();
    assert_eq!(
        bytes(&Head::Content { bytes: Some(300) }),
        &[9, 1, 0xac, 2][..]
    );
    assert_eq!(bytes(&Head::Content { bytes: None }), &[9, 0][..]);
    for (at, insertion) in [Insertion::Kept, Insertion::NoRoom, Insertion::Refused]
        .into_iter()
        .enumerate()
    {
        let head = Head::Inserted(insertion);
        assert_eq!(bytes(&head), &[10, u8::try_from(at).unwrap()][..]);
        assert_eq!(head.check(&insert(1)), Ok(()));
        assert!(head.check(&content).is_err());
    }
    assert!(Head::Content { bytes: None }.check(&insert(1)).is_err());
}

#[test]
fn items_are_bounded_and_lie_within_their_file() {
    const TIB: u64 = 1 << 40;
    const MAX: u64 = ITEM_BYTES_MAX;
    let item = |item: (u64, u64), wanted: (u64, u64), size| {
        let extent = |(start, len)| Extent { start, len };
        Request::Item(ItemRequest {
            dataset: 0,
            path: ItemPath::root(),
            version: Version::from_data([0; 16]),
            size,
            item: extent(item),
            content: None,
            wanted: extent(wanted),
            job: 0,
            payment: 0,
            is_uncached: false,
        })
        .check()
    };
    for (all, wanted, size) in [
        ((0, 1), (0, 1), 1),
        ((0, MAX), (0, MAX), MAX),
        ((MAX, MAX), (2 * MAX - 1, 1), TIB),
        ((5, 100), (104, 1), TIB),
        ((TIB - 1, 1), (TIB - 1, 1), TIB),
    ] {
        assert_eq!(item(all, wanted, size), Ok(()), "{all:?} {wanted:?}");
    }
    for (all, wanted, size) in [
        ((0, 0), (0, 0), 1),
        ((0, 1), (0, 0), 1),
        ((0, 2), (0, 1), 1),
        ((0, MAX + 1), (0, 1), TIB),
        ((5, 100), (4, 1), TIB),
        ((5, 100), (104, 2), TIB),
        ((5, 100), (u64::MAX, 1), TIB),
        ((5, 100), (5, u64::MAX), TIB),
        ((u64::MAX, 1), (u64::MAX, 1), u64::MAX),
        ((u64::MAX, u64::MAX), (u64::MAX, 1), u64::MAX),
    ] {
        assert!(item(all, wanted, size).is_err(), "{all:?} {wanted:?}");
    }
}
