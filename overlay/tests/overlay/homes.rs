//! Items from their homes.

mod hostile;
mod lanes;

use crate::support::{
    Alive, CustomAnswers, LOOPBACK, SOON, TestTree, content, hash_of, kind, path, within,
};
use crate::waiting::{until, until_some};
use bytes::{Bytes, BytesMut};
use copperfs_overlay::{
    ContentHash, Extent, Failure, FailureKind, HeldRequest, Homes, HomesBounds, ITEM_BYTES_MAX,
    Insertion, ItemAnswer, ItemPath, ItemRequest, NodeIdentity, RangeAnswer, Version,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// `len` bytes from `offset` of a file of `size` bytes, in a stripe of it.
pub(crate) fn request(name: &str, offset: u64, len: u64, size: u64) -> ItemRequest {
    let start = offset / ITEM_BYTES_MAX * ITEM_BYTES_MAX;
    let item = Extent {
        start,
        len: (size - start).min(ITEM_BYTES_MAX),
    };
    ItemRequest {
        dataset: 1,
        path: path(name),
        version: Version::from_data([7; 16]),
        size,
        item,
        content: None,
        wanted: Extent { start: offset, len },
        job: 5,
        payment: 1 << 30,
        is_uncached: false,
    }
}

/// The bytes of a request; [`content`] defines each file.
fn bytes_of(request: &ItemRequest) -> Bytes {
    let mut bytes = BytesMut::new();
    let end = request.wanted.end();
    let mut at = request.wanted.start;
    while at < end {
        let len = (end - at).min(1 << 20);
        bytes.extend_from_slice(&content(at, len));
        at += len;
    }
    bytes.freeze()
}

/// A home that has every item, for requests that pay at least its length.
pub(crate) fn home() -> CustomAnswers {
    CustomAnswers::default().items(|request| async move {
        match request.path.as_bytes() {
            b"absent" => return Err(Failure::not_found(&request.path)),
            _ if request.payment < request.wanted.len => {
                return Ok(ItemAnswer::Unpaid {
                    cost: request.wanted.len,
                });
            }
            _ => {}
        }
        let bytes = bytes_of(&request);
        Ok(ItemAnswer::Bytes {
            blocks: request.hashed(&bytes),
            cached: request.path == path("cached"),
            charged: request.wanted.len + 1,
            admitted: request.wanted.len + 2,
        })
    })
}

/// A chain of `len` nodes, all of them homes with `answers`.
async fn chain(len: usize, answers: CustomAnswers) -> TestTree {
    let mut tree = TestTree::plan(len, 1, Duration::from_secs(20));
    for rank in 0..len {
        let answers = answers.clone();
        tree.start_node_as(rank, |service| service.answers = answers);
    }
    for rank in 0..len {
        tree.connected(rank).await;
    }
    tree
}

fn homes(tree: &TestTree, rank: usize) -> Homes {
    tree.node(rank).homes().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_member_reads_from_every_other() {
    let tree = chain(4, home()).await;
    let size = 3 * ITEM_BYTES_MAX + 5000;
    let asked = [
        (0, ITEM_BYTES_MAX),
        (ITEM_BYTES_MAX + 7, 1),
        (2 * ITEM_BYTES_MAX - 1_100_000, 1_100_000),
        (3 * ITEM_BYTES_MAX, 5000),
    ];
    for reader in [3, 0, 2] {
        for home in (0..4).filter(|home| *home != reader) {
            for (offset, len) in asked {
                let request = request("cached", offset, len, size);
                let found = within(10, homes(&tree, reader).item(home, request.clone())).await;
                let found = found.unwrap();
                let ItemAnswer::Bytes {
                    blocks,
                    cached: true,
                    charged,
                    admitted,
                } = found
                else {
                    panic!("{found:?}");
                };
                assert!(blocks == request.hashed(&bytes_of(&request)), "{offset}");
                assert_eq!(RangeAnswer::joined(&blocks), bytes_of(&request));
                assert_eq!((charged, admitted), (len + 1, len + 2));
            }
        }
        // One connection to each.
        assert_eq!(homes(&tree, reader).connected(), 3);
    }
    let (reader, home) = (tree.node(3).counters(), tree.node(1).counters());
    assert_eq!(
        (reader.items_asked.get(), home.items_answered.get()),
        (12, 12)
    );
    // Four blocks of the whole item, and two of the end of another one.
    assert_eq!(reader.blocks_verified.get(), 3 * (4 + 1 + 2 + 1));
    assert!(home.item_bytes_sent.get() > reader.item_bytes_received.get() / 3);
    // No request went through the tree.
    assert_eq!(
        (
            reader.upstream_requests.get(),
            home.downstream_requests.get()
        ),
        (0, 0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_reads_too() {
    let tree = chain(2, home()).await;
    let mut config = tree.config(1);
    config.identity = NodeIdentity::Guest("late".into());
    config.listen = LOOPBACK.parse().unwrap();
    let guest = tree.try_start(1, config, |_| {}).unwrap();
    for rank in 0..2 {
        let found = guest.homes().item(rank, request("file", 0, 9, 9));
        within(10, found).await.unwrap();
    }
    assert_eq!(guest.homes().connected(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_and_unpaid_answers_arrive() {
    let tree = chain(3, home()).await;
    let homes = homes(&tree, 2);
    let mut poor = request("file", 0, 4096, 4096);
    poor.payment = 4095;
    let found = within(10, homes.item(1, poor)).await;
    assert_eq!(found, Ok(ItemAnswer::Unpaid { cost: 4096 }));
    let absent = homes.item(1, request("absent", 0, 10, 10));
    assert_eq!(kind(within(10, absent).await), FailureKind::NotFound);
    // Invalid requests are not sent.
    let asked = tree.node(2).counters().items_asked.get();
    for (offset, len, size) in [
        (0, 0, 10),
        (5, 6, 10),
        (0, ITEM_BYTES_MAX + 1, 1 << 30),
        (ITEM_BYTES_MAX - 1, 2, 1 << 30),
        (u64::MAX, 2, u64::MAX),
    ] {
        let unsound = homes.item(1, request("file", offset, len, size));
        assert_eq!(kind(within(10, unsound).await), FailureKind::Io);
    }
    assert_eq!(tree.node(2).counters().items_asked.get(), asked);
    // A node that is no home says so; the other rank does not exist.
    let tree = TestTree::start(2, 2).await;
    let asked = tree.node(1).homes().item(0, request("file", 0, 1, 1));
    assert_eq!(kind(within(10, asked).await), FailureKind::Unsupported);
    let held = HeldRequest {
        dataset: 1,
        layout: [0; 16],
        known: 0,
    };
    let asked = tree.node(1).homes().held(0, held);
    assert_eq!(kind(within(10, asked).await), FailureKind::Unsupported);
    let nobody = tree.node(1).homes().item(2, request("file", 0, 1, 1));
    assert_eq!(kind(within(10, nobody).await), FailureKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_go_to_their_home_and_come_back_by_their_hash() {
    let held = Arc::new(Mutex::new(HashMap::new()));
    let mut answers = CustomAnswers::default();
    answers.contents = Some(Arc::clone(&held));
    let tree = chain(3, answers).await;
    let homes = homes(&tree, 2);
    for len in [1, 1 << 20, ITEM_BYTES_MAX] {
        let bytes = content(0, len.min(1 << 20));
        let bytes: Bytes = bytes
            .repeat(usize::try_from(len.div_ceil(1 << 20)).unwrap())
            .into();
        let hash = hash_of(&bytes);
        assert_eq!(within(10, homes.content(1, hash)).await, Ok(None));
        let inserted = within(10, homes.insert(1, hash, bytes.clone())).await;
        assert_eq!(inserted, Ok(Insertion::Kept));
        assert_eq!(held.lock().unwrap().get(&hash), Some(&bytes));
        assert_eq!(within(10, homes.content(1, hash)).await, Ok(Some(bytes)));
    }
    // Bytes with another hash than the request says do not reach the home.
    let wrong = ContentHash([1; 32]);
    let refused = within(10, homes.insert(1, wrong, Bytes::from_static(b"abc"))).await;
    assert!(refused.is_err());
    assert_eq!(held.lock().unwrap().len(), 3);
    // A home that gives other bytes is at fault.
    held.lock()
        .unwrap()
        .insert(wrong, Bytes::from_static(b"abc"));
    assert_eq!(
        kind(within(10, homes.content(1, wrong)).await),
        FailureKind::Corrupt
    );
    let empty = within(10, homes.insert(1, wrong, Bytes::new())).await;
    assert!(empty.is_err(), "an item of no bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_are_counted_and_their_sender_is_barred() {
    let lies = CustomAnswers::default().items(|request| async move {
        let mut blocks = request.hashed(&bytes_of(&request));
        // The last one, so that all before it are received.
        blocks.last_mut().unwrap().hash = ContentHash([1; 32]);
        Ok(ItemAnswer::Bytes {
            blocks,
            cached: true,
            charged: 0,
            admitted: 0,
        })
    });
    let tree = chain(3, lies).await;
    let homes = homes(&tree, 2);
    let failure = within(10, homes.item(1, request("file", 0, 2 << 20, 2 << 20))).await;
    let failure = failure.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Corrupt);
    assert!(failure.detail.contains("node1"), "{failure}");
    let again = within(10, homes.item(1, request("file", 0, 1, 1))).await;
    assert_eq!(kind(again), FailureKind::Unavailable);
    let counters = tree.node(2).counters();
    assert_eq!(
        (counters.wrong_blocks.get(), counters.items_asked.get()),
        (1, 1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_another_length_fails() {
    let short = CustomAnswers::default().items(|_request| async move {
        Ok(ItemAnswer::Bytes {
            blocks: vec![RangeAnswer::of(Bytes::from_static(b"short"))],
            cached: true,
            charged: 0,
            admitted: 0,
        })
    });
    let tree = chain(2, short).await;
    let found = within(10, homes(&tree, 1).item(0, request("file", 0, 6, 6))).await;
    assert_eq!(kind(found), FailureKind::Io);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_absent_home_is_skipped_until_it_is_back() {
    let mut tree = TestTree::plan(3, 2, Duration::from_secs(20));
    tree.start_node(0);
    tree.start_node(1);
    tree.connected(1).await;
    let homes = homes(&tree, 1);
    let ask = || homes.item(2, request("file", 0, 1000, 1000));
    let begun = Instant::now();
    // Further requests wait for the same attempt.
    let (one, two) = tokio::join!(ask(), ask());
    assert_eq!(kind(one), FailureKind::Unavailable);
    assert_eq!(kind(two), FailureKind::Unavailable);
    assert!(begun.elapsed() < Duration::from_millis(1900));
    // From then on no request waits.
    for _ in 0..30 {
        let begun = Instant::now();
        assert_eq!(kind(ask().await), FailureKind::Unavailable);
        assert!(begun.elapsed() < Duration::from_millis(500));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tree.start_node_as(2, |service| service.answers = home());
    until_some(SOON, "it is found", async || ask().await.ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_home_is_found_again() {
    let mut tree = chain(3, home()).await;
    let homes = homes(&tree, 2);
    let ask = || homes.item(1, request("file", 0, 1000, 1000));
    within(10, ask()).await.unwrap();
    tree.restart(1, home()).await;
    let begun = Instant::now();
    until_some(SOON, "it is found again", async || ask().await.ok()).await;
    assert!(begun.elapsed() < Duration::from_secs(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_bounded_and_idle_ones_are_closed() {
    let mut tree = TestTree::plan(6, 8, Duration::from_secs(20));
    for rank in 0..5 {
        tree.start_node_as(rank, |service| service.answers = home());
    }
    let mut config = tree.config(5);
    config.homes = HomesBounds {
        connections_max: 2,
        idle: Duration::from_secs(1),
    };
    tree.nodes[5] = Some(tree.try_start(5, config, |_| {}).unwrap());
    let homes = homes(&tree, 5);
    for round in 0..3 {
        for home in 0..5 {
            let found = homes.item(home, request("file", 0, 9, 9));
            within(10, found).await.unwrap();
            assert!(homes.connected() <= 2, "round {round}");
        }
    }
    assert_eq!(homes.connected(), 2);
    until(SOON, "no home is connected", || homes.connected() == 0).await;
    let found = homes.item(3, request("file", 0, 9, 9));
    within(10, found).await.unwrap();
}

/// A home that answers nothing, the number of requests that hang in it, and the paths of all requests.
fn hanging() -> (CustomAnswers, Arc<AtomicUsize>, Arc<Mutex<Vec<ItemPath>>>) {
    let alive = Arc::new(AtomicUsize::new(0));
    let begun = Arc::new(Mutex::new(Vec::new()));
    let (gauge, paths) = (Arc::clone(&alive), Arc::clone(&begun));
    let answers = CustomAnswers::default().items(move |request: ItemRequest| {
        let alive = Alive::new(&gauge);
        paths.lock().unwrap().push(request.path);
        async move {
            let _alive = alive;
            std::future::pending().await
        }
    });
    (answers, alive, begun)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_connection_is_not_closed_for_another() {
    let (hangs, alive, _begun) = hanging();
    let mut tree = TestTree::plan(3, 8, Duration::from_secs(20));
    for rank in 0..2 {
        let answers = hangs.clone();
        tree.start_node_as(rank, |service| service.answers = answers);
    }
    let mut config = tree.config(2);
    config.homes.connections_max = 1;
    tree.nodes[2] = Some(tree.try_start(2, config, |_| {}).unwrap());
    let homes = homes(&tree, 2);
    let (busy, reader) = (homes.clone(), request("file", 0, 9, 9));
    let asked = tokio::spawn(async move { busy.item(0, reader).await });
    until(SOON, "one request hangs", || {
        alive.load(Ordering::SeqCst) == 1
    })
    .await;
    let other = homes.item(1, request("file", 0, 9, 9));
    assert_eq!(kind(within(10, other).await), FailureKind::Unavailable);
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    // Dropping a request ends the home's work.
    asked.abort();
    until(SOON, "nothing is asked any more", || {
        alive.load(Ordering::SeqCst) == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_bounds_the_items_in_progress() {
    let (hangs, alive, begun) = hanging();
    let tree = chain(2, hangs).await;
    let homes = homes(&tree, 1);
    // A home that takes no connection within a second counts as gone, which happens on a busy machine.
    until_some(SOON, "a connection to the home", async || {
        let hung = timeout(
            Duration::from_millis(100),
            homes.item(0, request("first", 0, 9, 9)),
        );
        hung.await.is_err().then_some(())?;
        (homes.connected() == 1).then_some(())
    })
    .await;
    until(SOON, "nothing is asked any more", || {
        alive.load(Ordering::SeqCst) == 0
    })
    .await;
    begun.lock().unwrap().clear();
    let asked: Vec<_> = (0..40)
        .map(|number| {
            let homes = homes.clone();
            let item = request(&number.to_string(), 0, ITEM_BYTES_MAX, ITEM_BYTES_MAX);
            let path = item.path.clone();
            (path, tokio::spawn(async move { homes.item(0, item).await }))
        })
        .collect();
    // 16 MiB for one reader.
    until(SOON, "four requests hang", || {
        alive.load(Ordering::SeqCst) == 4
    })
    .await;
    // Leaves time for a fifth request, which must not arrive.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(alive.load(Ordering::SeqCst), 4);
    let first = begun.lock().unwrap().clone();
    for (_, one) in asked.iter().filter(|(path, _)| first.contains(path)) {
        one.abort();
    }
    until(SOON, "four others hang", || {
        begun.lock().unwrap().len() == 8 && alive.load(Ordering::SeqCst) == 4
    })
    .await;
    asked.iter().for_each(|(_, one)| one.abort());
    until(SOON, "nothing is asked any more", || {
        alive.load(Ordering::SeqCst) == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_node_has_no_homes() {
    let mut tree = TestTree::plan(1, 2, Duration::from_secs(1));
    tree.start_node(0);
    let asked = within(5, homes(&tree, 0).item(0, request("file", 0, 1, 1))).await;
    assert_eq!(kind(asked), FailureKind::Unavailable);
}
