//! Loaders and GPUs in simulated time.

use super::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const ITEM: u64 = 100_000;

/// A training: each worker reads a batch into a queue, as in PyTorch, and the GPU consumes batches.
struct Training {
    workers: usize,
    /// The capacity of the queue in batches, including those that are being read.
    queue: usize,
    batch: usize,
    /// Items per second that the GPU consumes.
    ideal: f64,
    /// Seconds of a hit, and of a miss in addition to its turn at the origin.
    hit_s: f64,
    miss_s: f64,
    /// Seconds that a worker needs to decode an item.
    decode_s: f64,
}

const TRAINING: Training = Training {
    workers: 8,
    queue: 16,
    batch: 32,
    ideal: 200.0,
    hit_s: 0.001,
    miss_s: 0.02,
    decode_s: 0.002,
};

/// The state of the data: the cached fraction, and the origin's items per second.
struct Moment {
    hit_ratio: f64,
    origin: f64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A worker has read an item (start, cached) and decodes it.
    Read(usize, u64, bool),
    Decoded(usize),
    /// The GPU has finished a batch.
    Trained,
}

fn tid(worker: usize) -> u32 {
    u32::try_from(worker).unwrap()
}

/// Returns the estimate after some seconds.
fn estimated(training: &Training, seconds: f64, moment: impl Fn(f64) -> Moment) -> Estimate {
    let begun = Instant::now();
    let micros = |s: f64| u64::try_from(Duration::from_secs_f64(s).as_micros()).unwrap();
    let at = |micros| begun + Duration::from_micros(micros);
    let mut loader = RateEstimator::new(begun);
    let mut events = BinaryHeap::new();
    let mut idle: Vec<usize> = (0..training.workers).collect();
    // The unread items of each worker's batch.
    let mut left = vec![0; training.workers];
    let (mut ready, mut reserved) = (0, 0);
    let mut computes = false;
    let mut origin_free = 0_u64;
    let (mut now, mut item) = (0_u64, 0_u64);
    while now < micros(seconds) {
        let mut reading: Vec<usize> = Vec::new();
        while reserved < training.queue
            && let Some(worker) = idle.pop()
        {
            reserved += 1;
            left[worker] = training.batch;
            reading.push(worker);
        }
        if !computes && ready > 0 {
            ready -= 1;
            reserved -= 1;
            computes = true;
            let end = now + micros(training.batch as f64 / training.ideal);
            events.push(Reverse((end, Event::Trained)));
        }
        if reading.is_empty() {
            let Reverse((when, event)) = events.pop().expect("a worker or the GPU is busy");
            now = when;
            match event {
                Event::Read(worker, started, cached) => {
                    loader.end(tid(worker), at(now));
                    loader.read(ITEM, cached, at(started), at(now));
                    let end = now + micros(training.decode_s);
                    events.push(Reverse((end, Event::Decoded(worker))));
                }
                Event::Decoded(worker) => {
                    left[worker] -= 1;
                    if left[worker] > 0 {
                        reading.push(worker);
                    } else {
                        ready += 1;
                        idle.push(worker);
                    }
                }
                Event::Trained => computes = false,
            }
        }
        for worker in reading {
            item += 1;
            let data = moment(now as f64 / 1e6);
            // Evenly distributed, without random numbers.
            let cached = (item * 618_034 % 1_000_000) as f64 / 1e6 < data.hit_ratio;
            let end = if cached {
                now + micros(training.hit_s)
            } else {
                origin_free = origin_free.max(now) + micros(1.0 / data.origin);
                origin_free + micros(training.miss_s)
            };
            loader.begin(tid(worker), at(now));
            events.push(Reverse((end, Event::Read(worker, now, cached))));
        }
    }
    loader.estimate().unwrap()
}

fn near(estimate: Estimate, items_per_second: f64) {
    let wanted = items_per_second * ITEM as f64;
    let off = (estimate.rate / wanted - 1.0).abs();
    assert!(off < 0.05, "{estimate:?} for {wanted}");
}

const CACHED: Moment = Moment {
    hit_ratio: 1.0,
    origin: 1e6,
};

#[test]
fn a_job_that_computes_and_hits() {
    let estimate = estimated(&TRAINING, 60.0, |_| CACHED);
    near(estimate, 200.0);
    assert!(!estimate.bound && estimate.confidence > 0.8, "{estimate:?}");
}

#[test]
fn a_job_that_computes_while_its_workers_prefetch_misses() {
    let estimate = estimated(&TRAINING, 60.0, |_| Moment {
        hit_ratio: 0.3,
        origin: 1e4,
    });
    near(estimate, 200.0);
    assert!(!estimate.bound, "{estimate:?}");
    assert!(
        estimate.confidence < 0.6,
        "decoding may be what it waits for"
    );
}

#[test]
fn a_job_that_is_bound_by_data_tells_a_lower_bound() {
    for hit_ratio in [0.0, 0.5] {
        let estimate = estimated(&TRAINING, 120.0, |_| Moment {
            hit_ratio,
            origin: 50.0,
        });
        assert!(estimate.bound && estimate.confidence == 0.0, "{estimate:?}");
        near(estimate, 50.0 / (1.0 - hit_ratio));
    }
}

#[test]
fn a_job_that_is_bound_now_and_then() {
    let estimate = estimated(&TRAINING, 240.0, |s| {
        if s % 60.0 < 30.0 {
            Moment {
                hit_ratio: 0.2,
                origin: 60.0,
            }
        } else {
            CACHED
        }
    });
    near(estimate, 200.0);
    assert!(!estimate.bound && estimate.confidence > 0.5, "{estimate:?}");
}

#[test]
fn a_job_that_is_cached_from_its_second_epoch_on() {
    let estimate = estimated(&TRAINING, 150.0, |s| Moment {
        hit_ratio: if s < 120.0 { 0.0 } else { 1.0 },
        origin: 40.0,
    });
    near(estimate, 200.0);
    assert!(!estimate.bound, "{estimate:?}");
}

#[test]
fn a_program_that_reads_and_computes_by_turns() {
    // Without a queue, the ideal rate is the rate with all data in the cache.
    let alone = Training {
        workers: 1,
        queue: 2,
        batch: 1,
        ideal: 1e5,
        decode_s: 0.009,
        ..TRAINING
    };
    let estimate = estimated(&alone, 60.0, |_| CACHED);
    near(estimate, 100.0);
    assert!(!estimate.bound, "{estimate:?}");
    let missing = estimated(&alone, 60.0, |_| Moment {
        hit_ratio: 0.0,
        origin: 1e4,
    });
    assert!(
        missing.bound && missing.rate < 100.0 * ITEM as f64,
        "{missing:?}"
    );
}

#[test]
fn small_batches_and_large_ones_are_counted_alike() {
    for (batch, queue) in [(1, 100), (500, 16)] {
        let training = Training {
            batch,
            queue,
            ..TRAINING
        };
        near(estimated(&training, 120.0, |_| CACHED), 200.0);
    }
}

#[test]
fn a_pause_is_not_a_slow_window_and_threads_are_bounded() {
    let begun = Instant::now();
    let mut loader = RateEstimator::new(begun);
    let mut now = begun;
    for part in 0..10 {
        for _ in 0..500 {
            now += Duration::from_millis(10);
            loader.read(ITEM, true, now, now);
        }
        // Validation, on other data.
        now += PAUSE + Duration::from_secs(part);
    }
    near(loader.estimate().unwrap(), 100.0);
    for reader in 0..3000 {
        loader.begin(reader, now);
    }
    assert_eq!(loader.waiting(), READERS_MAX);
    for reader in 0..3000 {
        loader.end(reader, now);
    }
    assert_eq!(loader.waiting(), 0);
}

#[test]
fn there_is_no_estimate_before_the_first_window_ends() {
    let begun = Instant::now();
    let mut loader = RateEstimator::new(begun);
    assert_eq!(loader.estimate(), None);
    loader.read(ITEM, true, begun, begun);
    assert_eq!(loader.estimate(), None);
}
