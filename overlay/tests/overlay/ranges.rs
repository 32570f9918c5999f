//! Parts of blocks.

use crate::hostile::asked_of;
use crate::support::{TestTree, content, frame, kind, path, within};
use copperfs_overlay::wire::FrameKind;
use copperfs_overlay::{
    BLOCK_BYTES, FailureKind, Files, RANGE_BYTES_MAX, RangeRequest, Upstream, Version,
};

fn request(offset: u64, len: u64, size: u64) -> RangeRequest {
    RangeRequest {
        path: path("file"),
        version: Version::from_data([7; 16]),
        size,
        offset,
        len,
        content: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_travels_down_a_chain() {
    let tree = TestTree::start(4, 1).await;
    let parent = tree.parent(3);
    let size = 3 * BLOCK_BYTES + 5000;
    for (offset, len) in [
        (0, 4096),
        (BLOCK_BYTES - 4096, 4096),
        (BLOCK_BYTES, RANGE_BYTES_MAX),
        (3 * BLOCK_BYTES + 4096, 904),
    ] {
        let found = within(10, parent.read_range(request(offset, len, size))).await;
        let found = found.unwrap();
        assert_eq!(found.bytes, content(offset, len), "{offset}");
        assert_eq!(found.hash.0, *blake3::hash(&found.bytes).as_bytes());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_of_ranges_arrive_and_invalid_ranges_are_not_sent() {
    let tree = TestTree::start(3, 1).await;
    let parent = tree.parent(2);
    let mut absent = request(0, 4096, BLOCK_BYTES);
    absent.path = path("absent");
    let found = within(10, parent.read_range(absent)).await;
    assert_eq!(kind(found), FailureKind::NotFound);
    for (offset, len) in [(1, 4096), (0, 0), (BLOCK_BYTES - 4096, 8192), (0, 1 << 20)] {
        let found = within(10, parent.read_range(request(offset, len, 1 << 30))).await;
        assert!(found.is_err(), "{offset} {len}");
    }
    let sent = tree.node(2).counters().upstream_requests.get();
    assert_eq!(sent, 1, "only the first was sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_impossible_range_is_corrupt() {
    let bytes = [7; 4096];
    let end = |bytes: &[u8]| frame(FrameKind::End, blake3::hash(bytes).as_bytes());
    let data = |bytes: &[u8]| frame(FrameKind::Data, bytes);
    let answers: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", vec![]),
        ("no end", data(&bytes)),
        (
            "an end too early",
            [data(&bytes[1..]), end(&bytes[1..])].concat(),
        ),
        (
            "too much",
            [data(&bytes), data(&bytes), end(&bytes)].concat(),
        ),
        (
            "empty data",
            [data(b""), data(&bytes), end(&bytes)].concat(),
        ),
        (
            "a short hash",
            [data(&bytes), frame(FrameKind::End, b"abc")].concat(),
        ),
        (
            "bytes behind the end",
            [data(&bytes), end(&bytes), end(&bytes)].concat(),
        ),
        ("a restart", frame(FrameKind::Restart, b"")),
    ];
    for (what, answer) in answers {
        let ask = async |parent: Upstream| kind(parent.read_range(request(0, 4096, 1 << 30)).await);
        let got = asked_of(answer, true, ask).await;
        assert_eq!(got, FailureKind::Corrupt, "{what}");
    }
}
