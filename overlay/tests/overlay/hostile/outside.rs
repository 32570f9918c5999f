//! Requests for invalid paths, byte by byte, and requests that are cut off.

use crate::log;
use crate::support::{TestTree, frame, path, raw_child, whole, within};
use bytes::Bytes;
use copperfs_overlay::wire::{FrameKind, HEADER_BYTES, Request, message};
use copperfs_overlay::{BLOCK_BYTES, Failure, FailureKind, StatRequest};
use std::time::Duration;

/// Texts that are no path, each with a reason of its own.
const NO_PATHS: [&[u8]; 12] = [
    b"..",
    b"../etc/passwd",
    b"/../etc/passwd",
    b"dir/../../etc",
    b"dir/..",
    b"dir/../dir",
    b"./dir",
    b"dir/.",
    b"/./etc",
    b"dir\0",
    b"dir\0/../x",
    &[b'a'; 256],
];

/// A first question that begins with `tag`, is about `path`, and goes on with `rest`: postcard by hand,
/// as no encoder would write it.
fn question(tag: &[u8], path: &[u8], rest: &[u8]) -> Vec<u8> {
    let len = message::encode("length", &path.len()).unwrap();
    let body = [&[0][..], tag, &len, path, rest].concat();
    frame(FrameKind::Request, &body)
}

fn asked(request: &Request) -> Vec<u8> {
    let body = message::encode_question(0, request).unwrap();
    frame(FrameKind::Request, &body)
}

async fn answer(connection: &quinn::Connection, question: &[u8]) -> Option<Vec<u8>> {
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    let _stopped = send.write_all(question).await;
    let _stopped = send.finish();
    within(5, recv.read_to_end(64 << 10)).await.ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_leaves_the_namespace() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(5));
    tree.start_node(0);
    let (_endpoint, child) = raw_child(&tree, 1).await;
    let read = [&[9; 16][..], &[5, 0, 1, 0]].concat();
    let long = b"d/".repeat(2049);
    let no_paths = NO_PATHS.into_iter().chain([&long[..long.len() - 1]]);
    let mut questions = Vec::new();
    for wrong in no_paths {
        // List, stat of a name in it, read, extended attributes, usage, clear.
        let rests: [(&[u8], &[u8]); 6] = [
            (&[0], &[0, 1, 0]),
            (&[1], &[1, 0]),
            (&[2], &read),
            (&[3], &[]),
            (&[4], &[]),
            (&[7, 0], &[10]),
        ];
        questions.extend(rests.map(|(tag, rest)| question(tag, wrong, rest)));
        let name = [
            &[1, u8::try_from(wrong.len().min(100)).unwrap()][..],
            &wrong[..wrong.len().min(100)],
        ];
        let name = name.concat();
        // A name that is cut to 100 bytes may be one.
        if wrong.len() < 100 {
            questions.push(question(&[1], b"dir", &name));
        }
    }
    // Absolute, or with a slash, where one name is due.
    for name in [&b"/"[..], b"/etc", b"a/b", b".", b"..", b"a\0"] {
        let names = vec![Bytes::copy_from_slice(name)];
        let request = Request::Stat(StatRequest {
            parent: path("dir"),
            names,
            denied: None,
        });
        questions.push(asked(&request));
    }
    let before = tree.node(0).counters().downstream_requests.get();
    for question in &questions {
        let answer = answer(&child, question).await.unwrap();
        assert_eq!(answer[4], FrameKind::Failure as u8, "{question:?}");
        let failure: Failure = message::decode("failure", &answer[HEADER_BYTES..]).unwrap();
        assert_eq!(
            failure.kind,
            FailureKind::Corrupt,
            "{question:?}: {failure}"
        );
    }
    assert_eq!(
        tree.node(0).counters().downstream_requests.get(),
        before,
        "the service was asked"
    );
    assert!(tree.cleared().is_empty());
    // An absolute path is relative to the root of the namespace.
    let answer = answer(&child, &question(&[0], b"/dir", &[0, 10, 0]))
        .await
        .unwrap();
    assert_eq!(answer[4], FrameKind::Head as u8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_request_is_not_answered() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(5));
    tree.start_node(0);
    let (_endpoint, child) = raw_child(&tree, 1).await;
    let request = Request::Read(whole("file", BLOCK_BYTES));
    let whole = asked(&request);
    for cut in 0..whole.len() {
        let answer = answer(&child, &whole[..cut]).await;
        assert!(answer.is_none_or(|bytes| bytes.is_empty()), "cut at {cut}");
    }
    assert_eq!(tree.node(0).counters().downstream_requests.get(), 0);
    let twice = [&whole[..], &whole].concat();
    let (mut send, mut recv) = child.open_bi().await.unwrap();
    send.write_all(&twice).await.unwrap();
    send.finish().unwrap();
    let answer = within(5, recv.read_to_end(2 << 20)).await.unwrap();
    assert!(
        answer.len() < 2 * usize::try_from(BLOCK_BYTES).unwrap(),
        "answered twice"
    );
    assert!(tree.node(0).counters().downstream_requests.get() <= 1);
}

/// A peer that keeps sending invalid requests cannot fill the disk with log lines.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_refused_requests_are_logged_once() {
    log::keep();
    let mut tree = TestTree::plan(50, 50, Duration::from_secs(5));
    tree.start_node(0);
    // No other test uses this rank, so its log lines are from here.
    let (_endpoint, child) = raw_child(&tree, 43).await;
    for _ in 0..1000 {
        let answer = answer(&child, &question(&[0], b"..", &[0, 1]))
            .await
            .unwrap();
        assert_eq!(answer[4], FrameKind::Failure as u8);
    }
    let logged = log::lines("Child(Member(43)");
    assert_eq!(logged.len(), 1, "{:?}", &logged[..2.min(logged.len())]);
}
