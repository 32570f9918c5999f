//! Parents that send blocks whose hash is wrong.

use super::cable::{Cabled, right};
use crate::support::{SOON, content, fake_parent, frame, kind, path, whole, within};
use crate::waiting::until;
use copperfs_overlay::wire::FrameKind;
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, FailureKind, Files, LinkStatus, RangeRequest, Version,
};
use futures_util::StreamExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Returns this many bytes with a wrong hash.
fn lie(len: usize) -> Vec<u8> {
    let block = vec![7; len];
    let hash = *blake3::hash(b"something else").as_bytes();
    [frame(FrameKind::Data, &block), frame(FrameKind::End, &hash)].concat()
}

/// A chain of four nodes. The third one sends corrupt blocks, and its child bars it for a short time. Returns the counter of its requests.
async fn chain(bar: Duration) -> (Cabled, Arc<AtomicU32>, impl Drop) {
    chain_with(bar, 1 << 20).await
}

/// Like [`chain`], with corrupt blocks of this length.
async fn chain_with(bar: Duration, len: usize) -> (Cabled, Arc<AtomicU32>, impl Drop) {
    struct Ended(quinn::Endpoint, tokio::task::JoinHandle<()>);
    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.close(0u32.into(), b"");
            self.1.abort();
        }
    }
    let mut cabled = Cabled::plan(4, 1, vec![0]);
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let address = cabled.tree.address(2);
    let (endpoint, task) = fake_parent(&cabled.tree.secret, address, true, move || {
        count.fetch_add(1, Ordering::SeqCst);
        lie(len)
    });
    for rank in [0, 1] {
        cabled.start_node(rank, |_| {});
    }
    cabled.tree.connected(1).await;
    cabled.start_node(3, |config| config.failover.corrupt_bar = bar);
    cabled.home(3).await;
    (cabled, asked, Ended(endpoint, task))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_block_is_taken_back_and_comes_from_elsewhere() {
    let (cabled, asked, _corrupt_peer) = chain(Duration::from_secs(60)).await;
    let files = cabled.tree.parent(3);
    let begun = Instant::now();
    let parts = files.read(whole("file", BLOCK_BYTES)).await.unwrap();
    // The bytes that were released before the hash was seen to be wrong are taken back.
    assert_eq!(within(10, right(parts)).await, Ok(1));
    println!("right after {:?}", begun.elapsed());
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let counters = cabled.tree.node(3).counters();
    assert_eq!(
        (counters.wrong_blocks.get(), counters.blocks_verified.get()),
        (1, 1)
    );
    assert_ne!(cabled.above(3)[0], Some(2));
    // It is left alone for a while.
    cabled.moved(3, 1).await;
    let parts = files.read(whole("file", 3 * BLOCK_BYTES)).await.unwrap();
    assert_eq!(within(20, right(parts)).await, Ok(0));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_range_comes_from_elsewhere() {
    let (cabled, asked, _corrupt_peer) = chain_with(Duration::from_secs(60), 4096).await;
    let request = RangeRequest {
        path: path("file"),
        version: Version::from_data([7; 16]),
        size: BLOCK_BYTES,
        offset: 8192,
        len: 4096,
        content: None,
    };
    let found = within(10, cabled.tree.parent(3).read_range(request)).await;
    assert_eq!(found.unwrap().bytes, content(8192, 4096));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let counters = cabled.tree.node(3).counters();
    assert_eq!(
        (counters.wrong_blocks.get(), counters.blocks_verified.get()),
        (1, 1)
    );
    assert_ne!(cabled.above(3)[0], Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_stays_corrupt_is_barred_for_good() {
    let (cabled, asked, _corrupt_peer) = chain(Duration::from_millis(100)).await;
    let files = cabled.tree.parent(3);
    for lies in 1..=3 {
        within(20, async {
            while asked.load(Ordering::SeqCst) < lies {
                cabled.home(3).await;
                let parts = files.read(whole("file", BLOCK_BYTES)).await.unwrap();
                right(parts).await.unwrap();
            }
        })
        .await;
    }
    cabled.moved(3, 1).await;
    // Leaves node 3 time to return to the corrupt peer, which it must not do.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let parts = files.read(whole("file", BLOCK_BYTES)).await.unwrap();
    assert_eq!(right(parts).await, Ok(0));
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    assert_eq!(cabled.above(3), [Some(1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_only_corrupt_source_is_never_trusted() {
    let mut cabled = Cabled::plan(2, 2, vec![0]);
    cabled.tree.timeout = Duration::from_secs(2);
    let (endpoint, task) = fake_parent(&cabled.tree.secret, cabled.tree.address(0), true, || {
        lie(1 << 20)
    });
    cabled.start_node(1, |_| {});
    cabled.tree.connected(1).await;
    let files = cabled.tree.parent(1);
    let mut parts = files.read(whole("file", BLOCK_BYTES)).await.unwrap();
    let mut failure = None;
    within(10, async {
        while let Some(part) = parts.next().await {
            match part {
                Ok(BlockPart::End(_)) => panic!("a lie was verified"),
                Ok(_) => {}
                Err(error) => failure = Some(error.kind),
            }
        }
    })
    .await;
    // Three requests, and no other ancestor.
    assert_eq!(failure, Some(FailureKind::Unavailable));
    assert_eq!(cabled.tree.node(1).counters().wrong_blocks.get(), 3);
    until(SOON, "node 1 is stranded", || {
        matches!(cabled.tree.status(1), LinkStatus::Stranded { .. })
    })
    .await;
    let asked = within(5, files.list_page(path("dir"), None, 1)).await;
    assert_eq!(kind(asked), FailureKind::Unavailable);
    endpoint.close(0u32.into(), b"");
    task.abort();
}
