//! Peers of the job that break the protocol.

mod flood;
mod load;
mod outside;
mod recorded;
mod slow;

use crate::support::{
    TestTree, fake_parent, frame, hello, kind, path, raw_child, refusal, whole, within,
};
use bytes::Bytes;
use copperfs_overlay::wire::{FrameKind, Head, Hello, PageWriter, Request, message};
use copperfs_overlay::{
    BLOCK_BYTES, Entry, Failure, FailureKind, FileKind, Files, FilesystemUsage, ListRequest,
    StatRequest,
};
use futures_util::StreamExt;
use std::time::{Duration, Instant};

/// Returns the failure of a child whose parent answers a request with these bytes.
pub(crate) async fn asked_of<T>(
    answer: Vec<u8>,
    finish: bool,
    ask: impl AsyncFnOnce(copperfs_overlay::Upstream) -> T,
) -> T {
    let mut tree = TestTree::plan(2, 2, Duration::from_millis(700));
    let (endpoint, task) = fake_parent(&tree.secret, tree.address(0), finish, move || {
        answer.clone()
    });
    tree.start_node(1);
    tree.connected(1).await;
    let result = within(10, ask(tree.parent(1))).await;
    endpoint.close(0u32.into(), b"");
    task.abort();
    result
}

async fn list(parent: copperfs_overlay::Upstream) -> FailureKind {
    kind(parent.list_page(path("dir"), None, 2).await)
}

async fn read(parent: copperfs_overlay::Upstream) -> FailureKind {
    match parent.read(whole("file", BLOCK_BYTES + 10)).await {
        Ok(parts) => {
            let ends: Vec<_> = parts.filter_map(async |part| part.err()).collect().await;
            ends.first().expect("this must fail").kind
        }
        Err(failure) => failure.kind,
    }
}

fn head(entries: u32) -> Vec<u8> {
    let directory = crate::support::attributes(FileKind::Directory, 0);
    let head = Head::Listing {
        directory,
        next: None,
        entries,
        lease_ms: None,
    };
    frame(FrameKind::Head, &message::encode("head", &head).unwrap())
}

fn page(names: &[&'static [u8]]) -> Vec<u8> {
    let mut writer = PageWriter::default();
    for name in names {
        let name = Bytes::from_static(name);
        let entry = Entry {
            name,
            kind: FileKind::File,
            attributes: None,
        };
        assert!(writer.push(&entry).unwrap().is_none());
    }
    frame(FrameKind::Page, &writer.finish().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_impossible_answer_is_corrupt() {
    let listings: Vec<(&str, Vec<u8>)> = vec![
        ("an exabyte announced", [&[0xff; 8][..], &[5]].concat()),
        ("4 GiB of head announced", vec![0xff, 0xff, 0xff, 0xff, 5]),
        ("an unknown frame", vec![0, 0, 0, 0, 99]),
        ("nothing", vec![]),
        ("half a header", vec![1, 0]),
        ("data", frame(FrameKind::Data, b"abc")),
        (
            "a head that does not decode",
            frame(FrameKind::Head, &[0xff; 40]),
        ),
        ("a head and no page", head(1)),
        ("more entries than asked for", head(3)),
        (
            "more items than announced",
            [head(1), page(&[b"a", b"b"])].concat(),
        ),
        (
            "a name with a slash",
            [head(1), page(&[b"../etc"])].concat(),
        ),
        ("dots", [head(2), page(&[b"a", b".."])].concat()),
        (
            "bytes behind the end",
            [head(1), page(&[b"a"]), page(&[b"a"])].concat(),
        ),
        ("an answer to another question", {
            let usage = Head::Usage(FilesystemUsage::default());
            frame(FrameKind::Head, &message::encode("head", &usage).unwrap())
        }),
    ];
    for (what, answer) in listings {
        assert_eq!(
            asked_of(answer, true, list).await,
            FailureKind::Corrupt,
            "{what}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_that_do_not_fit_are_corrupt() {
    let block = vec![1; 1 << 20];
    let data = |len: usize| frame(FrameKind::Data, &block[..len]);
    let end = |len: usize| frame(FrameKind::End, blake3::hash(&block[..len]).as_bytes());
    let first = || [data(1 << 20), end(1 << 20)].concat();
    let reads: Vec<(&str, Vec<u8>)> = vec![
        ("an end before the last byte", [data(5), end(5)].concat()),
        ("a block that goes on", [data(1 << 20), data(1)].concat()),
        ("an empty frame", data(0)),
        (
            "a hash of 31 bytes",
            [data(1 << 20), frame(FrameKind::End, &[0; 31])].concat(),
        ),
        (
            "a last block that is too long",
            [first(), data(11)].concat(),
        ),
        ("the end in mid-block", data(1 << 19)),
        ("the end between blocks", first()),
        (
            "a block too many",
            [first(), data(10), end(10), end(10)].concat(),
        ),
        ("a head", head(0)),
    ];
    for (what, answer) in reads {
        assert_eq!(
            asked_of(answer, true, read).await,
            FailureKind::Corrupt,
            "{what}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_stops_in_mid_answer_is_unavailable_in_time() {
    let start = Instant::now();
    let block = vec![1; 1 << 19];
    let answers = [
        frame(FrameKind::Data, &block),
        head(1)[..20].to_vec(),
        head(2),
    ];
    let [data, half, first] = answers;
    assert_eq!(asked_of(data, false, read).await, FailureKind::Unavailable);
    assert_eq!(asked_of(half, false, list).await, FailureKind::Unavailable);
    assert_eq!(asked_of(first, false, list).await, FailureKind::Unavailable);
    assert!(
        start.elapsed() < Duration::from_secs(6),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_number_of_stat_answers_is_corrupt() {
    for answers in [0, 1, 3, u32::MAX] {
        let body = message::encode(
            "head",
            &Head::Stat {
                answers,
                lease_ms: None,
            },
        )
        .unwrap();
        let stat = async |parent: copperfs_overlay::Upstream| {
            kind(
                parent
                    .stat_names(path("dir"), vec![Bytes::new(), Bytes::new()])
                    .await,
            )
        };
        let found = asked_of(frame(FrameKind::Head, &body), true, stat).await;
        assert_eq!(found, FailureKind::Corrupt);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_after_the_handshake_costs_its_sender_the_connection() {
    let mut tree = TestTree::plan(3, 2, Duration::from_secs(5));
    tree.start_node(0);
    tree.start_node(2);
    for garbage in [
        vec![0xff; 4000],
        vec![0; 4000],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ] {
        let error = refusal(&tree.secret, tree.address(0), &garbage).await;
        assert!(error.contains("hello"), "{error}");
    }
    tree.connected(2).await;
    assert!(tree.parent(2).list_page(path("dir"), None, 1).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_that_does_not_fit_the_tree_is_refused_with_the_reason() {
    let mut tree = TestTree::plan(7, 2, Duration::from_secs(5));
    tree.start_node(0);
    tree.start_node(1);
    tree.connected(1).await;
    let changed = |rank, change: &dyn Fn(&mut Hello)| {
        let mut said = tree.said(rank);
        change(&mut said);
        hello(&said)
    };
    for (above, bytes, reason) in [
        (1, tree.hello(6), "not above"),
        (1, tree.hello(0), "not above"),
        (0, tree.hello(0), "not above"),
        (0, changed(1, &|said| said.tree = 1), "not above"),
        (0, changed(1, &|said| said.rank = Some(7)), "host list"),
        (0, changed(1, &|said| said.rank = Some(2)), "same list"),
        (0, changed(1, &|said| said.rank = None), "as a guest"),
        (0, changed(1, &|said| said.members = 8), "same host list"),
        (0, changed(1, &|said| said.arity = 3), "same host list"),
        (
            0,
            changed(1, &|said| said.list[0] ^= 1),
            "names, order or roots",
        ),
    ] {
        let error = refusal(&tree.secret, tree.address(above), &bytes).await;
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(tree.node(0).children(0), ["node1"]);
    assert!(tree.node(1).children(0).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_requests_are_refused_and_others_answered() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(5));
    tree.start_node(0);
    let (_endpoint, connection) = raw_child(&tree, 1).await;
    let request = |request: &Request| {
        frame(
            FrameKind::Request,
            &message::encode_question(0, request).unwrap(),
        )
    };
    let (dir, budget_ms) = (path("dir"), 1000);
    let mut endless = whole("file", BLOCK_BYTES);
    endless.block_count = u64::MAX;
    let cases = [
        vec![0xff; 5000],
        vec![0xff, 0xff, 0xff, 0xff, FrameKind::Request as u8],
        frame(FrameKind::Request, &[0xff; 100]),
        // A list request of the path `..`.
        frame(FrameKind::Request, &[0, 0, 2, b'.', b'.', 0, 1, 0]),
        request(&Request::List(ListRequest {
            path: dir.clone(),
            cursor: None,
            limit: 0,
            known: None,
        })),
        request(&Request::List(ListRequest {
            path: dir.clone(),
            cursor: None,
            limit: u32::MAX as usize,
            known: None,
        })),
        request(&Request::Stat(StatRequest {
            parent: dir.clone(),
            names: vec![Bytes::new(); 5000],
            denied: None,
        })),
        request(&Request::Stat(StatRequest {
            parent: dir,
            names: vec![Bytes::from_static(b"a/b")],
            denied: None,
        })),
        request(&Request::Read(endless)),
        request(&Request::ReportsBelow { tree: 0, budget_ms }),
    ];
    for bytes in cases {
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        let _refused = send.write_all(&bytes).await;
        let _refused = send.finish();
        let answer = within(5, recv.read_to_end(4096)).await.unwrap();
        assert_eq!(answer[4], FrameKind::Failure as u8);
        let failure: Failure = message::decode("failure", &answer[5..]).unwrap();
        assert_eq!(failure.kind, FailureKind::Corrupt, "{failure}");
    }
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    let good = request(&Request::Usage { path: path("") });
    send.write_all(&good).await.unwrap();
    send.finish().unwrap();
    let answer = within(5, recv.read_to_end(4096)).await.unwrap();
    assert_eq!(answer[4], FrameKind::Head as u8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_never_completed_times_out() {
    let mut tree = TestTree::plan(2, 2, Duration::from_millis(500));
    tree.start_node(0);
    let (_endpoint, connection) = raw_child(&tree, 1).await;
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(&[200, 0, 0, 0, FrameKind::Request as u8, 1])
        .await
        .unwrap();
    assert!(within(5, recv.read_to_end(10)).await.is_err());
}

/// A child may not speak for its sibling, whose connection stays the one in use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_in_the_name_of_another_child_replaces_no_connection() {
    let mut tree = TestTree::plan(3, 2, Duration::from_secs(2));
    tree.start_node(0);
    let (_first, impostor) = raw_child(&tree, 1).await;
    let (_second, child) = raw_child(&tree, 2).await;
    let say_hello_as_2 = async |connection: &quinn::Connection| {
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        send.write_all(&tree.hello(2)).await.unwrap();
        send.finish().unwrap();
        within(5, recv.read_to_end(4096)).await.unwrap()
    };
    let answer = say_hello_as_2(&impostor).await;
    assert_eq!(answer[4], FrameKind::Failure as u8);
    assert!(String::from_utf8_lossy(&answer).contains("another node's hello"));
    assert_eq!(
        say_hello_as_2(&child).await,
        frame(FrameKind::Welcome, &[1])
    );
    assert_eq!(tree.node(0).children(0), ["node1", "node2"]);
}
