//! The seeds of each target: a few valid inputs from the encoder.

use crate::values;
use arbitrary::Unstructured;
use bytes::Bytes;
use copperfs_overlay::wire::message::{self, Cleared, NodeId, Reported};
use copperfs_overlay::wire::{FrameHeader, FrameKind, Head, Hello, PageWriter, Request};
use copperfs_overlay::{Attributes, ContentHash, Cursor, Entry, Extent, Failure, FailureKind, FilesystemUsage, HeldRequest, Insertion, ItemPath, ItemRequest, ListingDigest, ReadRequest, Version, ListRequest, StatRequest};
use serde::Serialize;
use std::path::Path;

/// A target's name and its seeds.
pub type Seeds = (&'static str, fn() -> Vec<Vec<u8>>);

/// Every target.
pub const TARGETS: &[Seeds] = &[
    ("frames", frames),
    ("messages", messages),
    ("pages", pages),
    ("paths", paths),
    ("round_trip", noise),
    ("answers", answers),
    ("requests", frames),
    ("indexes", crate::indexes::seeds),
    ("manifests", crate::manifests::seeds),
    ("images", crate::images::seeds),
    ("trees", crate::images::tree_seeds),
];

/// Writes the seeds of `target` into the directory that `FUZZ_SEEDS` names, if it is set. Called before libFuzzer reads
/// its directories.
///
/// # Panics
/// If the seeds cannot be written, or `target` has none.
pub fn plant(target: &str) {
    let Some(dir) = std::env::var_os("FUZZ_SEEDS") else {
        return;
    };
    let seeds = TARGETS.iter().find(|(name, _)| *name == target);
    let (_, seeds) = seeds.expect("a target without seeds");
    for (number, seed) in seeds().iter().enumerate() {
        let path = Path::new(&dir).join(format!("seed-{number:02}"));
        std::fs::write(path, seed).expect("seeds can be written");
    }
}

fn body<T: Serialize>(value: &T) -> Vec<u8> {
    message::encode("seed", value)
        .expect("a seed encodes")
        .to_vec()
}

/// A frame of `kind`.
pub fn frame(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let header = FrameHeader::new(kind, body.len()).expect("a seed fits");
    [&header.encode()[..], body].concat()
}

fn attributes() -> Attributes {
    values::attributes(&mut Unstructured::new(&[3; 200])).expect("enough bytes")
}

fn requests() -> Vec<Request> {
    let path = || ItemPath::parse(b"lib/python3.11").expect("a path");
    let (name, tree, budget_ms) = (Bytes::from_static(b"site.py"), 1, 300);
    vec![
        Request::List(ListRequest {
            path: path(),
            cursor: None,
            limit: 100,
            known: None,
        }),
        Request::List(ListRequest {
            path: path(),
            cursor: Some(Cursor(name.clone())),
            limit: 7,
            known: Some(ListingDigest([7; 16])),
        }),
        Request::Stat(StatRequest {
            parent: path(),
            names: vec![Bytes::new(), name],
            denied: None,
        }),
        Request::Read(ReadRequest {
            path: path(),
            version: Version::from_data([7; 16]),
            size: 3 << 20,
            first_block: 1,
            block_count: 2,
            content: Some(ContentHash([5; 32])),
            through: false,
        }),
        Request::Item(ItemRequest {
            dataset: 1,
            path: path(),
            version: Version::from_data([7; 16]),
            size: 9 << 20,
            item: Extent {
                start: 4 << 20,
                len: 4 << 20,
            },
            content: None,
            wanted: Extent {
                start: 5 << 20,
                len: 1 << 20,
            },
            job: 1 << 100,
            payment: 1 << 20,
            is_uncached: false,
        }),
        Request::Held(HeldRequest {
            dataset: 1,
            layout: [3; 16],
            known: 7,
        }),
        Request::Content {
            hash: ContentHash([5; 32]),
        },
        Request::Insert {
            hash: ContentHash([5; 32]),
            len: 300,
        },
        Request::Message,
        Request::Steer { tree },
        Request::Command { tree },
        Request::Find {
            tree,
            hash: ContentHash([5; 32]),
            len: 1 << 20,
        },
        Request::Xattrs { path: path() },
        Request::Usage {
            path: ItemPath::root(),
        },
        Request::Origins { tree },
        Request::ClusterReports { tree, budget_ms },
        Request::ClusterClear {
            tree,
            path: path(),
            budget_ms,
        },
        Request::ReportsBelow { tree, budget_ms },
        Request::ClearBelow {
            tree,
            path: path(),
            budget_ms,
        },
    ]
}

fn questions() -> Vec<Bytes> {
    let requests = requests();
    let encoded = requests.iter().map(|it| message::encode_question(0, it));
    encoded.map(|it| it.expect("a seed encodes")).collect()
}

fn heads() -> Vec<Head> {
    let (directory, next) = (attributes(), Some(Cursor(Bytes::from_static(b"x"))));
    vec![
        Head::Listing {
            directory,
            next,
            entries: 2,
            lease_ms: None,
        },
        Head::Stat {
            answers: 2,
            lease_ms: Some(300),
        },
        Head::Xattrs {
            attributes: 2,
            lease_ms: None,
        },
        Head::Unchanged { lease_ms: None },
        Head::Usage(FilesystemUsage::default()),
        Head::Origins { origins: 2 },
        Head::Item {
            cached: true,
            charged: 1 << 20,
            admitted: 0,
        },
        Head::Unpaid { cost: 1 << 20 },
        Head::Held {
            state: 7,
            bytes: Some(5),
        },
        Head::Content { bytes: Some(300) },
        Head::Inserted(Insertion::NoRoom),
    ]
}

fn entries() -> Vec<Entry> {
    let entry = |name: &'static [u8], attributes| Entry {
        name: Bytes::from_static(name),
        kind: copperfs_overlay::FileKind::Symlink,
        attributes,
    };
    vec![entry(b"a", None), entry(b"b\xff", Some(attributes()))]
}

fn page<T: Serialize>(items: &[T]) -> Vec<u8> {
    let mut writer = PageWriter::default();
    for item in items {
        writer.push(item).expect("a seed fits");
    }
    writer.finish().expect("something was pushed").to_vec()
}

fn failure() -> Failure {
    Failure::new(FailureKind::Stale, "changed")
}

fn messages() -> Vec<Vec<u8>> {
    let (members, arity, name) = (200, 2, "n1".to_owned());
    let tagged = |kind: u8, body: Vec<u8>| [vec![kind], body].concat();
    let mut seeds: Vec<Vec<u8>> = questions()
        .iter()
        .map(|it| tagged(0, it.to_vec()))
        .collect();
    seeds.extend(heads().iter().map(|it| tagged(1, body(it))));
    seeds.push(tagged(
        2,
        body(&Hello {
            rank: Some(1),
            tree: 0,
            members,
            arity,
            list: [9; 16],
            name,
            reader: false,
            lane: 0,
        }),
    ));
    seeds.push(tagged(
        3,
        body(&Cleared {
            node: NodeId::Member(1),
            result: Err(failure()),
        }),
    ));
    seeds.push(tagged(
        5,
        body(&Reported {
            node: NodeId::Guest("late".into()),
            report: Bytes::from_static(b"{}"),
        }),
    ));
    seeds.push(tagged(4, body(&failure())));
    seeds
}

fn frames() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = questions()
        .iter()
        .map(|it| frame(FrameKind::Request, it))
        .collect();
    seeds.extend(answers().into_iter().map(|seed| seed[1..].to_vec()));
    seeds
}

fn pages() -> Vec<Vec<u8>> {
    let many: Vec<Entry> = entries().into_iter().cycle().take(400).collect();
    let sized = |kind: u8, expected: u8, page: Vec<u8>| {
        // An even length stands for a page body as it is.
        let len = u16::try_from(page.len().next_multiple_of(2)).expect("a short page");
        [&[kind, expected][..], &len.to_le_bytes(), &page].concat()
    };
    let stats = [Ok(attributes()), Err(failure())];
    let xattrs = [(Bytes::from_static(b"user.a"), Bytes::from_static(b"\0\xff"))];
    vec![
        sized(0, 1, page(&many)),
        sized(1, 2, page(&stats)),
        sized(2, 1, page(&xattrs)),
    ]
}

fn paths() -> Vec<Vec<u8>> {
    let texts = [
        "",
        "/",
        "a//b/",
        "../etc/passwd",
        "a/./b",
        "a/b/c\na/b",
        "a\nb/c",
        "mnt3x\nmnt3",
        "a\0b",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn noise() -> Vec<Vec<u8>> {
    (0..7)
        .map(|kind| [vec![kind], vec![kind; 300]].concat())
        .collect()
}

/// Answers to each request of the target `answers`, after the number of the request.
fn answers() -> Vec<Vec<u8>> {
    let mut heads = heads()
        .into_iter()
        .map(|it| frame(FrameKind::Head, &body(&it)));
    let mut answer = |question: u8, page: Option<Vec<u8>>| {
        let page = page
            .map(|page| frame(FrameKind::Page, &page))
            .unwrap_or_default();
        [vec![question], heads.next().expect("four heads"), page].concat()
    };
    let stats = [Ok(attributes()), Err(failure())];
    let name = Bytes::from_static(b"user.a");
    let mut seeds = vec![
        answer(0, Some(page(&entries()))),
        answer(1, Some(page(&stats))),
        answer(
            2,
            Some(page(&[(name.clone(), name.clone()), (name.clone(), name)])),
        ),
        answer(3, None),
    ];
    let block = crate::peers::BLOCK;
    let data = frame(FrameKind::Data, &block);
    let end = frame(FrameKind::End, &*crate::peers::BLOCK_HASH);
    let restart = frame(FrameKind::Restart, b"");
    seeds.push([&[4][..], &data, &end].concat());
    seeds.push([&[4][..], &data, &restart, &data, &end].concat());
    seeds.push([&[4][..], &data, &frame(FrameKind::End, &[0x11; 32])].concat());
    seeds.push([&[0][..], &frame(FrameKind::Failure, &body(&failure()))].concat());
    seeds
}
