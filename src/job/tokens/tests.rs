//! Rates, windows and turns.

use super::*;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Takes all it can of `bucket` for `time`, `item` bytes at a time, and says how much that was.
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
        // Idle before, so that it begins with a full burst.
        let mut bucket = Bucket::new(RateLimit::BytesPerSecond(rate), start);
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
    let mut bucket = Bucket::new(RateLimit::BytesPerSecond(1_000_000), start);
    let hour = Duration::from_secs(3600);
    let passed = greedy(&mut bucket, 4 << 20, start, hour);
    assert!(passed.abs_diff(3_600_000_000) <= 4 << 20, "{passed}");
}

#[test]
fn a_rate_of_zero_waits_for_another() {
    let start = Instant::now();
    let mut bucket = Bucket::new(RateLimit::BytesPerSecond(0), start);
    let later = start + Duration::from_secs(9);
    assert_eq!(bucket.try_take(1, later), Err(Wait::Change));
    bucket.set_limit(RateLimit::BytesPerSecond(10), later);
    assert_eq!(bucket.try_take(20, later), Ok(()));
    let paid = later + Duration::from_secs(2);
    assert_eq!(bucket.try_take(1, later), Err(Wait::Until(paid)));
    bucket.set_limit(RateLimit::Unlimited, later);
    assert_eq!(bucket.try_take(u64::MAX, later), Ok(()));
    bucket.set_limit(RateLimit::BytesPerSecond(10), later);
    assert!(bucket.try_take(1, later).is_err(), "what was owed is owed");
}

#[test]
fn rates_of_a_decision() {
    use RateLimit::{BytesPerSecond, Unlimited};
    for (rate, limit) in [
        (0.0, BytesPerSecond(0)),
        (0.1, BytesPerSecond(1)),
        (52.6e6, BytesPerSecond(52_600_000)),
        (-1.0, BytesPerSecond(0)),
        (f64::NAN, BytesPerSecond(0)),
        (f64::INFINITY, Unlimited),
        (1e300, BytesPerSecond(1_000_000_000_000_000)),
    ] {
        assert_eq!(RateLimit::from_bytes_per_second(rate), limit, "{rate}");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    Take(u64),
    Refund(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0_u64..200_000_000).prop_map(Step::Pass),
        (0_u64..5_000_000).prop_map(Step::Take),
        (0_u64..5_000_000).prop_map(Step::Refund),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    /// In any window no more passes than the burst, what the rate gives, and one item. A refund counts
    /// against what passed when it comes, and is never more than what was taken.
    #[test]
    fn no_window_gets_more(rate in 1_u64..100_000_000, steps in steps()) {
        let start = Instant::now();
        let mut bucket = Bucket::new(RateLimit::BytesPerSecond(rate), start);
        let mut now = start;
        let mut held = 0;
        // When, how much, and the largest take: what was given back is negative.
        let mut passed: Vec<(Instant, i128)> = Vec::new();
        let mut item = 0_i128;
        for step in steps {
            match step {
                Step::Pass(micros) => now += Duration::from_micros(micros / 100),
                Step::Take(bytes) => if bucket.try_take(bytes, now).is_ok() {
                    held += bytes;
                    item = item.max(i128::from(bytes));
                    passed.push((now, i128::from(bytes)));
                },
                Step::Refund(bytes) => {
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
    fn whoever_waits_as_told_is_served(rate in 1_u64..1_000_000_000, item in 1_u64..5_000_000) {
        let start = Instant::now();
        let mut bucket = Bucket::new(RateLimit::BytesPerSecond(rate), start);
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
async fn readers_are_served_in_turn() {
    let tokens = Tokens::new(RateLimit::BytesPerSecond(0));
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
    tokens.set_limit(RateLimit::BytesPerSecond(1_000_000));
    for reader in readers {
        reader.await.unwrap();
    }
    assert!(tokens.waited() > Duration::ZERO);
}

#[tokio::test]
async fn a_reader_that_gives_up_takes_nothing_and_holds_up_nobody() {
    let tokens = Tokens::new(RateLimit::BytesPerSecond(0));
    let spawn = |bytes| {
        let tokens = Arc::clone(&tokens);
        tokio::spawn(async move { tokens.take(bytes).await.spent(bytes) })
    };
    // The one whose turn it is, and one in the row. They would owe a century.
    let (first, second) = (spawn(1 << 50), spawn(1 << 50));
    tokio::task::yield_now().await;
    let third = spawn(10);
    tokio::task::yield_now().await;
    first.abort();
    second.abort();
    assert!(first.await.is_err() && second.await.is_err());
    tokens.set_limit(RateLimit::BytesPerSecond(1000));
    tokio::time::timeout(Duration::from_secs(20), third)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn what_was_not_spent_serves_the_next_one() {
    let tokens = Tokens::new(RateLimit::BytesPerSecond(1));
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
    // More than was allowed is owed.
    tokens.set_limit(RateLimit::Unlimited);
    let permit = tokens.take(1).await;
    tokens.set_limit(RateLimit::BytesPerSecond(1));
    permit.spent(1 << 40);
    assert!(tokens.try_take(1).is_none());
}

#[tokio::test]
async fn the_rate_holds_for_many_readers() {
    const RATE: u64 = 10_000_000;
    let tokens = Tokens::new(RateLimit::BytesPerSecond(RATE));
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
    // Half a second's worth cannot come faster, but for the burst and one item each.
    assert!(seconds > 0.37, "{seconds}");
    assert!(tokens.waited().as_secs_f64() > 0.5 * 0.37);
}
