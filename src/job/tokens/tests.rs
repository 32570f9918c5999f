//! Rates, windows and the order of readers.

use super::*;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Takes as many items as possible from `bucket` for `time`. Returns the bytes.
fn greedy(bucket: &mut Bucket, item: u64, start: Instant, time: Duration) -> u64 {
    let (mut now, mut passed) = (start, 0);
    loop {
        match bucket.try_take(item, now) {
            Ok(()) => passed += item,
            Err(Wait::Until(then)) => {
                assert!(then > now);
                now = then;
            }
            Err(Wait::Change) => return passed,
        }
        if now >= start + time {
            return passed;
        }
    }
}

#[test]
fn three_jobs_at_two_to_one_to_one_get_their_rates_over_ten_seconds() {
    const TOTAL: u64 = 40_000_000;
    let start = Instant::now();
    let mut sum = 0;
    for (part, item) in [(2, 110_000), (1, 64_000), (1, 300_000)] {
        let rate = TOTAL * part / 4;
        // Idle at first, so that it begins with a full burst.
        let mut bucket = Bucket::new(Some(rate), start);
        let begin = start + Duration::from_secs(5);
        let passed = greedy(&mut bucket, item, begin, Duration::from_secs(10));
        let off = passed.abs_diff(rate * 10) * 100 / (rate * 10);
        assert!(off < 3, "{passed} of {}", rate * 10);
        sum += passed;
    }
    assert!(sum * 100 < TOTAL * 10 * 103);
}

#[test]
fn an_item_larger_than_the_burst_passes_and_the_long_run_is_exact() {
    let start = Instant::now();
    let mut bucket = Bucket::new(Some(1_000_000), start);
    let hour = Duration::from_secs(3600);
    let passed = greedy(&mut bucket, 4 << 20, start, hour);
    assert!(passed.abs_diff(3_600_000_000) <= 4 << 20, "{passed}");
}

#[test]
fn a_rate_of_zero_waits_for_a_change() {
    let start = Instant::now();
    let mut bucket = Bucket::new(Some(0), start);
    let later = start + Duration::from_secs(9);
    assert_eq!(bucket.try_take(1, later), Err(Wait::Change));
    bucket.set_limit(Some(10), later);
    assert_eq!(bucket.try_take(20, later), Ok(()));
    let paid = later + Duration::from_secs(2);
    assert_eq!(bucket.try_take(1, later), Err(Wait::Until(paid)));
    bucket.set_limit(None, later);
    assert_eq!(bucket.try_take(u64::MAX, later), Ok(()));
    bucket.set_limit(Some(10), later);
    assert!(bucket.try_take(1, later).is_err(), "a debt stays");
}

#[derive(Debug, Clone)]
enum Operation {
    Pass(u64),
    Take(u64),
    Refund(u64),
}

fn steps() -> impl Strategy<Value = Vec<Operation>> {
    let step = prop_oneof![
        (0_u64..200_000_000).prop_map(Operation::Pass),
        (0_u64..5_000_000).prop_map(Operation::Take),
        (0_u64..5_000_000).prop_map(Operation::Refund),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    /// In any window at most the burst, the rate's tokens, and one item pass. A refund counts when
    /// it is made, and is never more than was taken.
    #[test]
    fn no_window_exceeds_burst_rate_and_one_item(rate in 1_u64..100_000_000, steps in steps()) {
        let start = Instant::now();
        let mut bucket = Bucket::new(Some(rate), start);
        let mut now = start;
        let mut held = 0;
        // The time and amount of each take, negative for a refund.
        let mut passed: Vec<(Instant, i128)> = Vec::new();
        let mut item = 0_i128;
        for step in steps {
            match step {
                Operation::Pass(micros) => now += Duration::from_micros(micros / 100),
                Operation::Take(bytes) => if bucket.try_take(bytes, now).is_ok() {
                    held += bytes;
                    item = item.max(i128::from(bytes));
                    passed.push((now, i128::from(bytes)));
                },
                Operation::Refund(bytes) => {
                    let bytes = bytes.min(held);
                    held -= bytes;
                    bucket.refund(bytes, now);
                    passed.push((now, -i128::from(bytes)));
                }
            }
        }
        let burst = i128::from((rate / 10).max(BURST_LEAST));
        for from in 0..passed.len() {
            let mut sum = 0;
            for (when, bytes) in &passed[from..] {
                sum += bytes;
                let window = when.duration_since(passed[from].0).as_nanos();
                let gained = i128::from(rate) * i128::try_from(window).unwrap() / 1_000_000_000;
                prop_assert!(sum <= burst + gained + item + 1);
            }
        }
    }

    #[test]
    fn a_take_succeeds_after_the_announced_wait(rate in 1_u64..1_000_000_000, item in 1_u64..5_000_000) {
        let start = Instant::now();
        let mut bucket = Bucket::new(Some(rate), start);
        let mut now = start;
        for _ in 0..10 {
            if let Err(Wait::Until(then)) = bucket.try_take(item, now) {
                now = then;
                prop_assert_eq!(bucket.try_take(item, now), Ok(()));
            }
        }
    }
}

#[tokio::test]
async fn readers_are_served_in_order() {
    let tokens = Tokens::new(Some(0));
    let served = Arc::new(AtomicU64::new(0));
    let mut readers = Vec::new();
    for place in 0..20 {
        let (tokens, served) = (Arc::clone(&tokens), Arc::clone(&served));
        readers.push(tokio::spawn(async move {
            let _all_of_it = tokens.take(1000).await;
            assert_eq!(served.fetch_add(1, Ordering::SeqCst), place);
        }));
        tokio::task::yield_now().await;
    }
    assert!(tokens.try_take(1).is_none(), "others wait");
    assert_eq!(served.load(Ordering::SeqCst), 0);
    tokens.set_limit(Some(1_000_000));
    for reader in readers {
        reader.await.unwrap();
    }
    assert!(tokens.waited() > Duration::ZERO);
}

#[tokio::test]
async fn a_cancelled_take_takes_nothing_and_blocks_no_other() {
    let tokens = Tokens::new(Some(0));
    let spawn = |bytes| {
        let tokens = Arc::clone(&tokens);
        tokio::spawn(async move { tokens.take(bytes).await.spent(bytes) })
    };
    // The first waits for the bucket, and the second for its turn. They would owe a century.
    let (first, second) = (spawn(1 << 50), spawn(1 << 50));
    tokio::task::yield_now().await;
    let third = spawn(10);
    tokio::task::yield_now().await;
    first.abort();
    second.abort();
    assert!(first.await.is_err() && second.await.is_err());
    tokens.set_limit(Some(1000));
    tokio::time::timeout(Duration::from_secs(20), third)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn unspent_tokens_serve_the_next_reader() {
    let tokens = Tokens::new(Some(1));
    let permit = tokens.take(1 << 40).await;
    assert_eq!(permit.bytes(), 1 << 40);
    assert!(tokens.try_take(1).is_none());
    let other = Arc::clone(&tokens);
    let waiter = tokio::spawn(async move { other.take(1).await.spent(1) });
    tokio::task::yield_now().await;
    permit.spent(0);
    tokio::time::timeout(Duration::from_secs(20), waiter)
        .await
        .unwrap()
        .unwrap();
    // Tokens beyond the permit are owed.
    tokens.set_limit(None);
    let permit = tokens.take(1).await;
    tokens.set_limit(Some(1));
    permit.spent(1 << 40);
    assert!(tokens.try_take(1).is_none());
}

#[tokio::test]
async fn concurrent_readers_keep_the_rate() {
    const RATE: u64 = 10_000_000;
    let tokens = Tokens::new(Some(RATE));
    let passed = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let (tokens, passed) = (Arc::clone(&tokens), Arc::clone(&passed));
            tokio::spawn(async move {
                while passed.load(Ordering::SeqCst) < RATE / 2 {
                    tokens.take(20_000).await.spent(20_000);
                    passed.fetch_add(20_000, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
    let seconds = begun.elapsed().as_secs_f64();
    // Half a second's tokens cannot pass faster, except for the burst and one item per reader.
    assert!(seconds > 0.37, "{seconds}");
    assert!(tokens.waited().as_secs_f64() > 0.5 * 0.37);
}
