//! Readers and homes that break the protocol.

use super::{home, request};
use crate::support::{
    SOON, TestTree, fake_parent, frame, hash_of, hello, kind, path, question, raw_member, whole,
    within,
};
use crate::waiting::until;
use copperfs_overlay::wire::{FrameKind, Head, Request, message};
use copperfs_overlay::{Extent, FailureKind, ITEM_BYTES_MAX, Membership, NodeIdentity};
use std::time::Duration;

/// Returns the failure of a reader whose home answers with these bytes.
async fn asked_of(answer: Vec<u8>, len: u64) -> FailureKind {
    // The home has no children.
    let mut tree = TestTree::plan(3, 2, Duration::from_millis(700));
    let (endpoint, task) = fake_parent(&tree.secret, tree.address(2), true, move || answer.clone());
    tree.start_node(0);
    tree.start_node(1);
    let asked = tree.node(1).homes().item(2, request("file", 0, len, len));
    let got = kind(within(10, asked).await);
    endpoint.close(0u32.into(), b"");
    task.abort();
    got
}

fn head(head: &Head) -> Vec<u8> {
    frame(FrameKind::Head, &message::encode("head", head).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_impossible_item_is_corrupt() {
    let bytes = [7; 4096];
    let end = |bytes: &[u8]| frame(FrameKind::End, &hash_of(bytes).0);
    let data = |bytes: &[u8]| frame(FrameKind::Data, bytes);
    let begun = head(&Head::Item {
        cached: true,
        charged: 0,
        admitted: 0,
    });
    let answers: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", vec![]),
        ("no bytes", begun.clone()),
        ("no head", [data(&bytes), end(&bytes)].concat()),
        ("no end", [begun.clone(), data(&bytes)].concat()),
        (
            "an end too early",
            [begun.clone(), data(&bytes[1..]), end(&bytes[1..])].concat(),
        ),
        (
            "too much",
            [begun.clone(), data(&bytes), data(&bytes), end(&bytes)].concat(),
        ),
        (
            "another hash",
            [begun.clone(), data(&bytes), end(b"other")].concat(),
        ),
        (
            "two heads",
            [begun.clone(), begun.clone(), data(&bytes), end(&bytes)].concat(),
        ),
        (
            "bytes behind the end",
            [begun.clone(), data(&bytes), end(&bytes), begun].concat(),
        ),
        (
            "an answer to another question",
            head(&Head::Unchanged { lease_ms: None }),
        ),
        (
            "bytes behind what is unpaid",
            [head(&Head::Unpaid { cost: 1 }), data(&bytes)].concat(),
        ),
        ("4 GiB announced", vec![0xff, 0xff, 0xff, 0xff, 5]),
    ];
    for (what, answer) in answers {
        let got = asked_of(answer, 4096).await;
        assert_eq!(got, FailureKind::Corrupt, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_asks_for_items_and_nothing_else() {
    let mut tree = TestTree::plan(3, 2, Duration::from_secs(5));
    tree.start_node_as(0, |service| service.answers = home());
    // Node 0 has no parent here, and may read.
    tree.start_node_as(1, |service| service.answers = home());
    let said = |rank| {
        let identity = NodeIdentity::Member(rank);
        Membership::new(tree.members.clone(), 2, vec![0], identity)
            .unwrap()
            .hello_as_reader(0)
    };
    let (_endpoint, connection) = raw_member(&tree.secret, tree.address(1)).await;
    let ask = async |bytes: Vec<u8>| {
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        // Refused in mid-send, or taken.
        let _stopped = send.write_all(&bytes).await;
        let _stopped = send.finish();
        within(5, recv.read_to_end(1 << 16)).await.unwrap()
    };
    assert_eq!(ask(hello(&said(0))).await[4], FrameKind::Welcome as u8);
    let item = |offset, len, size| {
        let mut item = request("file", 0, 1, size);
        item.wanted = Extent { start: offset, len };
        question(Request::Item(item))
    };
    let refused = [
        question(Request::Usage { path: path("") }),
        // This node is no root.
        question(Request::Read(whole("file", 1))),
        question(Request::Steer { tree: 0 }),
        question(Request::Command { tree: 0 }),
        question(Request::ReportsBelow {
            tree: 0,
            budget_ms: 1,
        }),
        item(0, 0, 10),
        item(0, ITEM_BYTES_MAX + 1, 1 << 40),
        item(ITEM_BYTES_MAX, 1, 1 << 40),
        item(u64::MAX, u64::MAX, u64::MAX),
        frame(FrameKind::Steering, b"x"),
        hello(&said(0)),
        hello(&tree.said(2)),
    ];
    for bytes in refused {
        let answer = ask(bytes.clone()).await;
        assert_eq!(answer[4], FrameKind::Failure as u8, "{bytes:?}");
    }
    assert_eq!(ask(item(3, 5, 10)).await[4], FrameKind::Head as u8);
    assert_eq!(tree.node(1).counters().items_answered.get(), 1);
    // A node cannot read from itself, and with another list it cannot read at all.
    for wrong in [
        said(1),
        copperfs_overlay::wire::Hello {
            list: [0; 16],
            ..said(0)
        },
        copperfs_overlay::wire::Hello {
            lane: 16,
            ..said(0)
        },
    ] {
        let (_endpoint, connection) = raw_member(&tree.secret, tree.address(1)).await;
        let (mut send, _recv) = connection.open_bi().await.unwrap();
        send.write_all(&hello(&wrong)).await.unwrap();
        within(5, connection.closed()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_asks_for_items_over_another_connection() {
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(5));
    tree.start_node_as(0, |service| service.answers = home());
    let (_endpoint, connection) = crate::support::raw_child(&tree, 1).await;
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    let item = Request::Item(request("file", 0, 1, 1));
    send.write_all(&question(item)).await.unwrap();
    let answer = within(5, recv.read_to_end(4096)).await.unwrap();
    assert_eq!(answer[4], FrameKind::Failure as u8);
    until(SOON, "nothing is asked any more", || tree.alive() == 0).await;
}
