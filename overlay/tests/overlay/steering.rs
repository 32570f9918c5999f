//! Steering and commands.

use crate::support::{
    Alive, CustomAnswers, SOON, TestTree, frame, kind, question, raw_child, within,
};
use crate::waiting::until;
use bytes::Bytes;
use copperfs_overlay::wire::{FrameKind, Request};
use copperfs_overlay::{
    Failure, FailureKind, LatestSender, STEERING_BYTES_MAX, SteeringSendError, Upstream,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The frames that one node received from its children, and its senders to them.
#[derive(Clone, Default)]
pub(crate) struct Helm {
    heard: Arc<Mutex<Vec<(String, usize, Bytes)>>>,
    downs: Arc<Mutex<Vec<LatestSender>>>,
    alive: Arc<AtomicUsize>,
}

impl Helm {
    pub(crate) fn answers(&self) -> CustomAnswers {
        let helm = self.clone();
        CustomAnswers::default().steering(move |(child, tree, mut up, down)| {
            let (helm, alive) = (helm.clone(), Alive::new(&helm.alive));
            async move {
                let _alive = alive;
                helm.downs.lock().unwrap().push(down);
                while let Some(frame) = up.recv().await {
                    helm.heard
                        .lock()
                        .unwrap()
                        .push((child.clone(), tree, frame));
                }
                Ok(())
            }
        })
    }

    pub(crate) fn heard(&self) -> Vec<(String, usize, Bytes)> {
        self.heard.lock().unwrap().clone()
    }

    /// Sends `frame` to all children.
    pub(crate) fn say(&self, frame: &'static [u8]) {
        for down in &*self.downs.lock().unwrap() {
            let _gone = down.send(Bytes::from_static(frame));
        }
    }

    pub(crate) fn streams(&self) -> usize {
        self.alive.load(Ordering::SeqCst)
    }
}

/// A tree of `len` with as many helms.
async fn helmed(len: usize, arity: usize, roots: Vec<usize>) -> (TestTree, Vec<Helm>) {
    let mut tree = TestTree::plan(len, arity, Duration::from_secs(5));
    tree.roots = roots;
    let helms: Vec<Helm> = (0..len).map(|_| Helm::default()).collect();
    for (rank, helm) in helms.iter().enumerate() {
        let answers = helm.answers();
        tree.start_node_as(rank, |service| service.answers = answers);
    }
    for rank in 0..len {
        tree.connected(rank).await;
    }
    (tree, helms)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_go_both_ways() {
    let (tree, helms) = helmed(4, 1, vec![0, 2]).await;
    // In tree 1 node 3 is the child of node 2; in tree 0 too.
    let mut streams = Vec::new();
    for steered in [0, 1] {
        let stream = within(5, tree.parent(3).steer(steered)).await.unwrap();
        stream.up.send(Bytes::from(vec![3; 1 + steered])).unwrap();
        streams.push(stream);
    }
    until(SOON, "both trees are heard", || helms[2].heard().len() == 2).await;
    let mut heard = helms[2].heard();
    heard.sort();
    let expected = |tree| ("node3".to_owned(), tree, Bytes::from(vec![3; 1 + tree]));
    assert_eq!(heard, [expected(0), expected(1)]);
    helms[2].say(b"decision");
    for stream in &mut streams {
        assert_eq!(within(5, stream.down.recv()).await.unwrap(), "decision");
    }
    // The largest frame, after a pause longer than the keep-alive interval.
    let large = Bytes::from(vec![9; STEERING_BYTES_MAX]);
    streams[0].up.send(large.clone()).unwrap();
    until(SOON, "the large one is heard", || {
        helms[2].heard().len() == 3
    })
    .await;
    assert!(helms[2].heard()[2].2 == large);
    // The silence itself is under test.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    helms[2].say(b"later");
    assert_eq!(within(5, streams[0].down.recv()).await.unwrap(), "later");
    // Dropping either half ends it at both ends.
    let first = streams.remove(0);
    drop(first.up);
    until(SOON, "one stream has ended", || helms[2].streams() == 1).await;
    drop(streams.remove(0).down);
    until(SOON, "both streams have ended", || helms[2].streams() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_steering_says_so() {
    let (tree, helms) = helmed(3, 1, vec![0, 2]).await;
    assert!(tree.parent(0).is_root_of(0) && !tree.parent(0).is_root_of(1));
    assert_eq!(tree.parent(0).trees(), 2);
    for (rank, of) in [(0, 0), (2, 1), (1, 2)] {
        let refused = within(5, tree.parent(rank).steer(of)).await;
        assert_eq!(kind(refused), FailureKind::Unsupported);
        let refused = within(5, tree.parent(rank).command(of, Bytes::new())).await;
        assert_eq!(kind(refused), FailureKind::Unsupported);
    }
    assert_eq!(helms.iter().map(Helm::streams).sum::<usize>(), 0);
    // A parent that steers nothing.
    let tree = TestTree::start(2, 2).await;
    let refused = within(5, tree.parent(1).steer(0)).await;
    assert_eq!(kind(refused), FailureKind::Unsupported);
    let refused = within(5, tree.parent(1).command(0, Bytes::new())).await;
    assert_eq!(kind(refused), FailureKind::Unsupported);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_stream_replaces_an_older_one() {
    let (tree, helms) = helmed(2, 2, vec![0]).await;
    let mut older = within(5, tree.parent(1).steer(0)).await.unwrap();
    let mut newer = within(5, tree.parent(1).steer(0)).await.unwrap();
    assert_eq!(within(5, older.down.recv()).await, None);
    older.up.ended().await;
    let frame = Bytes::from_static(b"x");
    assert_eq!(older.up.send(frame), Err(SteeringSendError::Ended));
    until(SOON, "the stream is served", || helms[0].streams() == 1).await;
    helms[0].say(b"still");
    assert_eq!(within(5, newer.down.recv()).await.unwrap(), "still");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_with_its_parent_and_the_next_parent_takes_over() {
    let (mut tree, helms) = helmed(3, 1, vec![0]).await;
    let child = tree.parent(2);
    let mut stream = within(5, child.steer(0)).await.unwrap();
    stream.up.send(Bytes::from_static(b"one")).unwrap();
    until(SOON, "the parent hears it", || helms[1].heard().len() == 1).await;
    let begun = Instant::now();
    tree.nodes[1] = None;
    assert_eq!(within(5, stream.down.recv()).await, None);
    let stream = within(5, child.steer(0)).await.unwrap();
    stream.up.send(Bytes::from_static(b"two")).unwrap();
    until(SOON, "the grandparent hears it", || {
        helms[0].heard().len() == 1
    })
    .await;
    assert!(begun.elapsed() < Duration::from_secs(4));
    // The node returns to its parent: the stream ends, and the next one leads to the parent again.
    tree.restart(1, helms[1].answers()).await;
    let mut stream = stream;
    assert_eq!(within(10, stream.down.recv()).await, None);
    let stream = within(5, child.steer(0)).await.unwrap();
    stream.up.send(Bytes::from_static(b"three")).unwrap();
    until(SOON, "the parent hears the next", || {
        helms[1].heard().len() == 2
    })
    .await;
    // A child that leaves ends the stream too.
    tree.nodes[2] = None;
    until(SOON, "its stream has ended", || helms[1].streams() == 0).await;
}

/// Nodes below the root forward commands; the root answers with the command.
fn relays(upstream: Upstream) -> CustomAnswers {
    CustomAnswers::default().commands(move |tree, command| {
        let upstream = upstream.clone();
        async move {
            if !upstream.is_root_of(tree) {
                return upstream.command(tree, command).await;
            }
            match &command[..] {
                b"refused" => Err(Failure::new(FailureKind::PermissionDenied, "not you")),
                b"long" => Ok(Bytes::from(vec![1; STEERING_BYTES_MAX + 1])),
                b"hang" => std::future::pending().await,
                _ => Ok([&command[..], b" done"].concat().into()),
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_climbs_to_the_root() {
    let mut tree = TestTree::plan(4, 1, Duration::from_secs(2));
    for rank in 0..4 {
        tree.start_node_as(rank, |service| {
            service.answers = relays(service.upstream.clone());
        });
    }
    for rank in 0..4 {
        tree.connected(rank).await;
    }
    let child = tree.parent(3);
    let ask = async |command: Bytes| within(10, child.command(0, command)).await;
    assert_eq!(ask(Bytes::from_static(b"add")).await.unwrap(), "add done");
    assert_eq!(ask(Bytes::new()).await.unwrap(), " done");
    let longest = Bytes::from(vec![1; STEERING_BYTES_MAX - 5]);
    assert_eq!(ask(longest).await.unwrap().len(), STEERING_BYTES_MAX);
    let failure = ask(Bytes::from_static(b"refused")).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::PermissionDenied);
    assert_eq!(failure.detail, "not you");
    for too_long in [
        Bytes::from_static(b"long"),
        Bytes::from(vec![1; STEERING_BYTES_MAX + 1]),
    ] {
        assert_eq!(kind(ask(too_long).await), FailureKind::Unsupported);
    }
    let begun = Instant::now();
    let hanging = ask(Bytes::from_static(b"hang")).await;
    assert_eq!(kind(hanging), FailureKind::Unavailable);
    assert!(begun.elapsed() < Duration::from_secs(4));
    // Without a node in charge the failure arrives in time too.
    tree.nodes[0] = None;
    tree.nodes[1] = None;
    tree.nodes[2] = None;
    let begun = Instant::now();
    let nobody = ask(Bytes::from_static(b"add")).await;
    assert_eq!(kind(nobody), FailureKind::Unavailable);
    assert!(begun.elapsed() < Duration::from_secs(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_that_breaks_the_protocol_loses_its_stream_only() {
    let helm = Helm::default();
    let mut tree = TestTree::plan(2, 2, Duration::from_secs(5));
    let answers = helm.answers();
    tree.start_node_as(0, |service| service.answers = answers);
    let (_endpoint, connection) = raw_child(&tree, 1).await;
    // In a tree in which it is not a child of this node.
    for request in [Request::Steer { tree: 1 }, Request::Command { tree: 1 }] {
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        send.write_all(&question(request)).await.unwrap();
        let answer = within(5, recv.read_to_end(4096)).await.unwrap();
        assert_eq!(answer[4], FrameKind::Failure as u8);
    }
    for wrong in [
        vec![0xff, 0xff, 0xff, 0x7f, FrameKind::Steering as u8],
        vec![1, 0, 16, 0, FrameKind::Steering as u8],
        vec![1, 0, 0, 0, FrameKind::Data as u8, 1],
        frame(FrameKind::Hello, b"x"),
    ] {
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        let steer = question(Request::Steer { tree: 0 });
        send.write_all(&steer).await.unwrap();
        let mut first = [1; 5];
        within(5, recv.read_exact(&mut first)).await.unwrap();
        assert_eq!(first, [0, 0, 0, 0, FrameKind::Steering as u8]);
        until(SOON, "the stream is served", || helm.streams() == 1).await;
        let _refused = send.write_all(&wrong).await;
        until(SOON, "the stream has ended", || helm.streams() == 0).await;
    }
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    let good = [
        question(Request::Steer { tree: 0 }),
        frame(FrameKind::Steering, b"good"),
    ];
    send.write_all(&good.concat()).await.unwrap();
    until(SOON, "it is heard", || helm.heard().len() == 1).await;
    helm.say(b"heard");
    let mut answer = [0; 15];
    within(5, recv.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer[5..], frame(FrameKind::Steering, b"heard"));
}
