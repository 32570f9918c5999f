//! Many small files in one answer.

use crate::hostile::asked_of;
use crate::support::{TestTree, content, frame, kind, path, within};
use copperfs_overlay::wire::{FrameKind, message};
use copperfs_overlay::{
    BundleFile, BundleItem, BundleRequest, Failure, FailureKind, Files, Upstream, Version,
};
use futures_util::StreamExt;

fn request(files: &[(&str, u64)]) -> BundleRequest {
    let files = files.iter().map(|&(name, size)| BundleFile {
        name: name.to_owned().into(),
        version: Version::from_data([7; 16]),
        size,
        content: None,
    });
    BundleRequest {
        directory: path("dir"),
        files: files.collect(),
    }
}

/// The received files, and the failure after them.
async fn collect(
    parent: &Upstream,
    request: BundleRequest,
) -> (Vec<BundleItem>, Result<(), Failure>) {
    let mut stream = match parent.bundle(request).await {
        Ok(stream) => stream,
        Err(failure) => return (Vec::new(), Err(failure)),
    };
    let mut items = Vec::new();
    while let Some(item) = stream.next().await {
        match item {
            Ok(item) => items.push(item),
            Err(failure) => return (items, Err(failure)),
        }
    }
    (items, Ok(()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_travels_down_a_chain_whole_and_in_order() {
    let tree = TestTree::start(4, 1).await;
    let names: Vec<String> = (0..1500).map(|i| format!("f{i}")).collect();
    let sizes = |i: usize| (i as u64 * 7919) % 40_000 + 1;
    let mut files: Vec<(&str, u64)> = names
        .iter()
        .enumerate()
        .map(|(i, name)| (&name[..], sizes(i)))
        .collect();
    files[700] = ("large", 256 << 10);
    files[701] = ("absent", 1000);
    let (items, end) = within(60, collect(&tree.parent(3), request(&files))).await;
    assert_eq!(end, Ok(()));
    let indices: Vec<usize> = items.iter().map(|item| item.index).collect();
    let wanted: Vec<usize> = (0..1500).filter(|&index| index != 701).collect();
    assert_eq!(indices, wanted);
    for item in items {
        assert_eq!(item.bytes, content(item.index as u64, files[item.index].1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupt_file_ends_the_bundle() {
    let tree = TestTree::start(3, 1).await;
    let files = [("a", 100), ("wrong", 100), ("b", 100)];
    let (items, end) = within(10, collect(&tree.parent(1), request(&files))).await;
    assert_eq!((items.len(), kind(end)), (1, FailureKind::Corrupt));
    // The node in between sends the valid files, and no wrong byte.
    let (items, end) = within(10, collect(&tree.parent(2), request(&files))).await;
    assert_eq!((items.len(), kind(end)), (1, FailureKind::Corrupt));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_of_a_bundle_arrive() {
    let tree = TestTree::start(3, 1).await;
    let parent = tree.parent(2);
    let mut absent = request(&[("a", 1)]);
    absent.directory = path("absent");
    let (_, end) = within(10, collect(&parent, absent)).await;
    assert_eq!(kind(end), FailureKind::NotFound);
    let files = [("a", 100), ("b", 100), ("fails", 1)];
    let (items, end) = within(10, collect(&parent, request(&files))).await;
    assert_eq!((items.len(), kind(end)), (2, FailureKind::Unavailable));
    // Out of bounds: refused before it is sent.
    for wrong in [&[][..], &[("a", 0)], &[("..", 1)], &[("a", 1 << 60)]] {
        let (_, end) = within(10, collect(&parent, request(wrong))).await;
        assert!(end.is_err(), "{wrong:?}");
    }
}

/// The sender of a bundle waits for a reader that does not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_bundle_leaves_the_connection_usable() {
    let tree = TestTree::start(2, 1).await;
    let parent = tree.parent(1);
    let names: Vec<String> = (0..1000).map(|i| format!("f{i}")).collect();
    let files: Vec<(&str, u64)> = names.iter().map(|name| (&name[..], 200_000)).collect();
    for _ in 0..20 {
        let mut stream = within(10, parent.bundle(request(&files))).await.unwrap();
        assert!(within(10, stream.next()).await.is_some());
    }
    let (items, end) = within(10, collect(&parent, request(&[("a", 5)]))).await;
    assert_eq!((items.len(), end), (1, Ok(())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_impossible_bundle_is_corrupt() {
    let item = |index: u32, bytes: &[u8]| {
        let hash = blake3::hash(bytes);
        [&index.to_le_bytes()[..], hash.as_bytes(), bytes].concat()
    };
    let bundle = |items: &[Vec<u8>]| frame(FrameKind::Bundle, &items.concat());
    let done = || frame(FrameKind::Done, b"");
    let answers: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", vec![]),
        (
            "a file that was not asked for",
            [bundle(&[item(2, b"abc")]), done()].concat(),
        ),
        (
            "an end in mid-file",
            [bundle(&[item(0, b"ab")]), done()].concat(),
        ),
        ("no end", bundle(&[item(0, b"abc")])),
        (
            "the same file twice",
            [bundle(&[item(0, b"abc"), item(0, b"abc")]), done()].concat(),
        ),
        ("a wrong hash", {
            let mut wrong = item(0, b"abc");
            wrong[36] ^= 1;
            [bundle(&[wrong]), done()].concat()
        }),
        ("blocks", frame(FrameKind::Data, b"abc")),
        ("a head", {
            let head = message::encode("head", &4u32).unwrap();
            frame(FrameKind::Head, &head)
        }),
        (
            "bytes behind the end",
            [bundle(&[item(0, b"abc")]), done(), done()].concat(),
        ),
    ];
    for (what, answer) in answers {
        let ask = async |parent: Upstream| {
            let files = [("a", 3), ("b", 3)];
            kind(collect(&parent, request(&files)).await.1)
        };
        assert_eq!(
            asked_of(answer, true, ask).await,
            FailureKind::Corrupt,
            "{what}"
        );
    }
}
