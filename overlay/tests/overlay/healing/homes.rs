//! Homes and steering parents that die without a word.

use super::cable::Cabled;
use crate::homes::{home, request};
use crate::steering::Helm;
use crate::support::{CustomAnswers, SOON, kind, within};
use crate::waiting::{until, until_some};
use bytes::Bytes;
use copperfs_overlay::FailureKind;
use std::time::{Duration, Instant};

/// A chain of `len`, all of them homes or helms as `answers` says.
async fn chain(len: usize, answers: impl Fn(usize) -> CustomAnswers) -> Cabled {
    let mut cabled = Cabled::plan(len, 1, vec![0]);
    for rank in 0..len {
        let config = cabled.config(rank, |_| {});
        let started = cabled.tree.try_start(rank, config, |service| {
            service.answers = answers(rank);
        });
        cabled.tree.nodes[rank] = Some(started.unwrap());
    }
    for rank in 0..len {
        cabled.tree.connected(rank).await;
    }
    cabled
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_that_dies_silently_is_left_within_two_seconds() {
    let cabled = chain(4, |rank| match rank {
        // Hangs until it dies.
        1 => CustomAnswers::default().items(|_request| std::future::pending()),
        _ => home(),
    })
    .await;
    let homes = cabled.tree.node(3).homes().clone();
    let asked = homes.clone();
    let hanging = tokio::spawn(async move { asked.item(1, request("file", 0, 9, 9)).await });
    within(5, homes.item(0, request("file", 0, 9, 9)))
        .await
        .unwrap();
    until(SOON, "two homes are connected", || homes.connected() == 2).await;
    // It hangs for longer than a reader waits for a dead home.
    tokio::time::sleep(Duration::from_millis(2200)).await;
    assert!(!hanging.is_finished());
    for rank in [0, 1] {
        cabled.cables[rank].pull();
    }
    let begun = Instant::now();
    assert_eq!(
        kind(within(5, hanging).await.unwrap()),
        FailureKind::Unavailable
    );
    // One that was idle, and is asked after it died.
    let idle = within(5, homes.item(0, request("file", 0, 9, 9))).await;
    assert_eq!(kind(idle), FailureKind::Unavailable);
    let both = begun.elapsed();
    assert!(both < Duration::from_millis(4000), "{both:?}");
    // From then on no reader waits, and the live homes answer.
    let begun = Instant::now();
    for rank in [0, 1] {
        let dead = within(5, homes.item(rank, request("file", 0, 9, 9))).await;
        assert_eq!(kind(dead), FailureKind::Unavailable);
    }
    assert!(begun.elapsed() < Duration::from_millis(500));
    within(5, homes.item(2, request("file", 0, 9, 9)))
        .await
        .unwrap();
    cabled.cables[0].plug();
    until_some(SOON, "the home that is back answers", async || {
        homes.item(0, request("file", 0, 9, 9)).await.ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_steering_stream_notices_a_dead_parent() {
    let helms: Vec<Helm> = (0..3).map(|_| Helm::default()).collect();
    let cabled = chain(3, |rank| helms[rank].answers()).await;
    let child = cabled.tree.parent(2);
    let mut stream = within(5, child.steer(0)).await.unwrap();
    stream.up.send(Bytes::from_static(b"report")).unwrap();
    until(SOON, "the parent hears it", || helms[1].heard().len() == 1).await;
    let silent = tokio::time::timeout(Duration::from_millis(2500), stream.down.recv()).await;
    assert!(silent.is_err(), "a parent that lives is not left");
    cabled.cables[1].pull();
    let begun = Instant::now();
    assert_eq!(within(5, stream.down.recv()).await, None);
    let noticed = begun.elapsed();
    assert!(noticed < Duration::from_millis(3500), "{noticed:?}");
    // The next stream leads to the child's new parent.
    let stream = within(10, child.steer(0)).await.unwrap();
    stream.up.send(Bytes::from_static(b"again")).unwrap();
    until(SOON, "the root hears it", || {
        helms[0].heard().iter().any(|heard| heard.2 == "again")
    })
    .await;
    // The dead one's end of the old stream goes too.
    until(SOON, "the old stream has ended", || helms[1].streams() == 0).await;
}
