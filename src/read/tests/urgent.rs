//! Readers of blocks that a long run or other runs would delay.

use super::*;
use crate::read::data::RUN_DELAY;
use std::time::Duration;
use tokio::task::JoinHandle;

/// A file of eight blocks, which a node fetches by one request.
const LEN: usize = 8 << 20;
/// Parts that the source sends of each block.
const BLOCK_PARTS: usize = 12;
/// More than the time after which a block is requested separately.
const LONG: Duration = RUN_DELAY.saturating_mul(2);

/// A source that sends nothing until permits are added to its gate.
fn slow(files: &[(&str, usize)], options: ReadOptions) -> (ReadPath, Arc<Source>) {
    let source = Source::new(files);
    source.gate.forget_permits(OPEN_GATE);
    source.gate.add_permits(1);
    read_path(source, options)
}

fn reader(path: &ReadPath, f: &FileRef, block: u64) -> JoinHandle<Bytes> {
    let (path, f) = (path.clone(), f.clone());
    tokio::spawn(async move {
        let ahead = ReadAhead::default();
        let read = path.bytes(&f, &ahead, block * BLOCK_BYTES, 1000).await;
        read.unwrap()
    })
}

fn requests(source: &Source) -> Vec<(u64, u64)> {
    let reads = source.reads.lock();
    let reads = reads
        .iter()
        .map(|read| (read.first_block, read.block_count));
    reads.collect()
}

fn expected(source: &Source, name: &str, block: usize) -> Vec<u8> {
    source.content(name)[block << 20..][..1000].to_vec()
}

#[tokio::test(start_paused = true)]
async fn a_block_far_behind_in_a_run_is_requested_separately() {
    let (path, source) = slow(&[("f", LEN)], options());
    let f = file(&path, "f").await;
    let first = reader(&path, &f, 0);
    settle().await;
    let (near, far) = (reader(&path, &f, 3), reader(&path, &f, 7));
    let far_too = reader(&path, &f, 7);
    settle().await;
    assert_eq!(requests(&source), [(0, 8)]);
    tokio::time::sleep(LONG).await;
    assert_eq!(requests(&source), [(0, 8), (7, 1)]);

    // Enough for one block of each of the two requests.
    for _ in 0..2 * BLOCK_PARTS {
        source.gate.add_permits(1);
        settle().await;
    }
    assert_eq!(far.await.unwrap(), expected(&source, "f", 7));
    assert_eq!(far_too.await.unwrap(), expected(&source, "f", 7));
    settle().await;
    assert!(first.is_finished() && !near.is_finished());

    source.gate.add_permits(OPEN_GATE);
    assert_eq!(near.await.unwrap(), expected(&source, "f", 3));
    settle().await;
    for block in 0..8 {
        let read = path.try_bytes(&f, block << 20, 1000).unwrap();
        assert_eq!(read, expected(&source, "f", small(block) as usize));
    }
    assert_eq!(
        path.try_bytes(&f, 0, small(LEN as u64)).unwrap(),
        source.content("f")
    );
    assert_eq!(requests(&source), [(0, 8), (7, 1)]);
}

/// The run reaches the block before the separate request has brought it.
#[tokio::test(start_paused = true)]
async fn a_block_comes_from_the_request_that_has_it_first() {
    let (path, source) = slow(&[("f", LEN)], options());
    let f = file(&path, "f").await;
    source.single_hangs.store(true, Ordering::Relaxed);
    let first = reader(&path, &f, 0);
    settle().await;
    let far = reader(&path, &f, 5);
    tokio::time::sleep(LONG).await;
    assert_eq!(requests(&source), [(0, 8), (5, 1)]);
    source.gate.add_permits(6 * BLOCK_PARTS + 1);
    assert_eq!(far.await.unwrap(), expected(&source, "f", 5));
    source.gate.add_permits(OPEN_GATE);
    first.await.unwrap();
    settle().await;
    assert_eq!(
        path.try_bytes(&f, 0, small(LEN as u64)).unwrap(),
        source.content("f")
    );
    assert_eq!(path.stats().data.bytes, LEN as u64);
}

/// The room for fetches is full of runs that arrive slowly.
#[tokio::test(start_paused = true)]
async fn a_reader_does_not_wait_for_the_runs_of_others() {
    let options = ReadOptions {
        sizes: with_data(32 << 20),
        ..options()
    };
    let (path, source) = slow(&[("long", LEN), ("f", 2 << 20)], options);
    let (long, f) = (file(&path, "long").await, file(&path, "f").await);
    let first = reader(&path, &long, 7);
    settle().await;
    let trickle = {
        let source = Arc::clone(&source);
        tokio::spawn(async move {
            for _ in 0..8 * BLOCK_PARTS {
                tokio::time::sleep(Duration::from_millis(100)).await;
                source.gate.add_permits(1);
            }
        })
    };
    let second = reader(&path, &f, 1);
    assert_eq!(second.await.unwrap(), expected(&source, "f", 1));
    assert!(!trickle.is_finished());
    source.gate.add_permits(OPEN_GATE);
    first.await.unwrap();
}
