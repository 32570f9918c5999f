//! The life of a job, bad input, a killed allocator, and properties of every schedule.

mod schedules;

use super::*;

pub(super) fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// 20 mini-batches of `batch_s` seconds, of whose look-ups `hits` per cent hit, with the whole
/// dataset in the cache.
pub(super) fn report(job: &str, mode: Mode, batch_s: f64, hits: u64) -> Report<'_> {
    Report {
        job,
        mode,
        choice: Choice::Whole,
        ranks: 1,
        batches: 20,
        seconds: 20.0 * batch_s,
        hits,
        misses: 100 - hits,
    }
}

/// Reports 100 mini-batches in the job's current mode. Returns the mode afterwards.
fn train(probing: &mut Probing, job: &str, batch_s: f64, hits: u64, now: Duration) -> Mode {
    let mode = probing.mode(job);
    for _ in 0..5 {
        probing
            .record(&report(job, mode, batch_s, hits), now)
            .unwrap();
    }
    probing.mode(job)
}

/// Returns the state after a first probe and 100 cached mini-batches of the job `run:a`.
fn measured(uncached_s: f64, cached_s: f64, hits: u64) -> Probing {
    let mut probing = Probing::default();
    probing.watch("run:a", at(0)).unwrap();
    assert!(probing.tick(at(1)));
    assert_eq!(probing.mode("run:a"), Mode::Probe);
    assert_eq!(
        train(&mut probing, "run:a", uncached_s, 0, at(50)),
        Mode::Cached
    );
    train(&mut probing, "run:a", cached_s, hits, at(100));
    probing
}

/// Each rank reports its own mini-batches, and the first ones of each were prefetched before the probe.
#[test]
fn a_probe_takes_as_many_mini_batches_of_each_rank() {
    let mut probing = Probing::default();
    probing.watch("run:a", at(0)).unwrap();
    assert!(probing.tick(at(1)));
    let of_rank = |batch_s| Report {
        ranks: 4,
        ..report("run:a", Mode::Probe, batch_s, 0)
    };
    // Five reports of 20 mini-batches by each of four ranks. The first four are of prefetched ones.
    for number in 0..20 {
        assert_eq!(probing.mode("run:a"), Mode::Probe, "report {number}");
        let batch_s = if number < 4 { 0.01 } else { 0.36 };
        probing.record(&of_rank(batch_s), at(50)).unwrap();
    }
    assert_eq!(probing.mode("run:a"), Mode::Cached);
    for _ in 0..5 {
        let cached = report("run:a", Mode::Cached, 0.09, 100);
        probing.record(&cached, at(100)).unwrap();
    }
    let times = probing.times("run:a").unwrap();
    assert!((times.uncached_s - 0.36).abs() < 1e-12, "{times:?}");
}

#[test]
fn a_job_is_probed_first_and_compared() {
    let probing = measured(0.36, 0.09, 100);
    let times = probing.times("run:a").unwrap();
    assert!((times.uncached_s - 0.36).abs() < 1e-12);
    assert!((times.whole_s.unwrap() - 0.09).abs() < 1e-12);
    assert!((times.benefit(0.09) - 4.0).abs() < 1e-12);
    assert_eq!(probing.mode("run:a"), Mode::Cached);
    assert_eq!(probing.probed(), None);
}

#[test]
fn a_job_is_not_compared_before_it_was_measured_both_ways() {
    let mut probing = Probing::default();
    assert_eq!(probing.mode("run:a"), Mode::Cached, "unknown");
    let fast = report("run:a", Mode::Cached, 0.1, 100);
    assert_eq!(probing.record(&fast, at(0)), Ok(false));
    probing.tick(at(1));
    // Late reports of the mode before are not those of the probe.
    assert_eq!(probing.record(&fast, at(2)), Ok(false));
    assert_eq!(probing.mode("run:a"), Mode::Probe);
    for count in 1..=5 {
        let slow = report("run:a", Mode::Probe, 0.4, 0);
        assert_eq!(probing.record(&slow, at(10)), Ok(count == 5), "{count}");
    }
    assert_eq!(probing.times("run:a"), None);
    for count in 1..=5 {
        assert_eq!(probing.record(&fast, at(20)), Ok(count == 5), "{count}");
    }
    // The comparison stands until the next probe.
    let before = probing.times("run:a");
    assert_eq!(
        probing.record(&report("run:a", Mode::Cached, 9.0, 0), at(30)),
        Ok(false)
    );
    assert_eq!(probing.times("run:a"), before);
}

#[test]
fn mini_batches_that_were_prefetched_in_the_mode_before_do_not_count() {
    let mut probing = Probing::default();
    probing.watch("run:a", at(0)).unwrap();
    probing.tick(at(0));
    for batch_s in [0.1, 0.4, 0.4, 0.4, 0.4] {
        probing
            .record(&report("run:a", Mode::Probe, batch_s, 0), at(1))
            .unwrap();
    }
    for batch_s in [0.4, 0.1, 0.1, 0.1, 0.1] {
        probing
            .record(&report("run:a", Mode::Cached, batch_s, 100), at(2))
            .unwrap();
    }
    let times = probing.times("run:a").unwrap();
    assert!(
        (times.benefit(times.whole_s.unwrap()) - 4.0).abs() < 1e-9,
        "{times:?}"
    );
}

#[test]
fn a_job_within_five_per_cent_is_switched_off_until_storage_slows_it_down() {
    let mut probing = measured(1.04, 1.0, 100);
    assert_eq!(probing.mode("run:a"), Mode::Uncached);
    // Its times without a cache change nothing before the next probe.
    let now = at(300);
    assert_eq!(
        probing.record(&report("run:a", Mode::Uncached, 3.0, 0), now),
        Ok(false)
    );
    assert_eq!(probing.mode("run:a"), Mode::Uncached);
    // Ten minutes after the end of the first.
    probing.watch("run:a", at(649)).unwrap();
    assert!(!probing.tick(at(649)));
    assert!(probing.tick(at(650)));
    assert_eq!(
        train(&mut probing, "run:a", 1.03, 0, at(700)),
        Mode::Uncached
    );
    // Storage has slowed down, and the job itself has not.
    probing.watch("run:a", at(1300)).unwrap();
    assert!(probing.tick(at(1300)));
    assert_eq!(train(&mut probing, "run:a", 1.5, 0, at(1400)), Mode::Cached);
    let times = probing.times("run:a").unwrap();
    assert_eq!((times.uncached_s, times.whole_s), (1.5, Some(1.0)));
}

#[test]
fn a_job_whose_cache_is_filling_is_not_switched_off() {
    // All its look-ups still miss, so it is as slow as in the probe.
    let mut probing = measured(1.0, 1.0, 5);
    assert_eq!(probing.mode("run:a"), Mode::Cached);
    let times = probing.times("run:a").unwrap();
    assert_eq!(times.cached().count(), 0);
    // It is compared as soon as enough look-ups hit, and not only after its next probe.
    train(&mut probing, "run:a", 0.5, 60, at(200));
    let times = probing.times("run:a").unwrap();
    assert_eq!(times.uncached_s, 1.0);
    let part = times.part.unwrap();
    assert!((part.cached_s - 0.5).abs() < 1e-12 && (part.hit_ratio - 0.6).abs() < 1e-12);
    train(&mut probing, "run:a", 0.1, 100, at(300));
    assert_eq!(probing.times("run:a"), Some(times), "until the next probe");
}

#[test]
fn a_time_belongs_to_the_option_that_was_running() {
    let mut probing = measured(0.4, 0.1, 100);
    probing.watch("run:a", at(650)).unwrap();
    probing.tick(at(650));
    train(&mut probing, "run:a", 0.5, 0, at(700));
    // Three reports with the whole dataset are too few, and then it has chunks.
    for (count, choice, batch_s) in [(3, Choice::Whole, 0.1), (5, Choice::Chunks, 0.2)] {
        for _ in 0..count {
            let cached = Report {
                choice,
                ..report("run:a", Mode::Cached, batch_s, 80)
            };
            probing.record(&cached, at(750)).unwrap();
        }
    }
    let times = probing.times("run:a").unwrap();
    assert_eq!((times.uncached_s, times.chunks_s), (0.5, Some(0.2)));
    assert!((times.whole_s.unwrap() - 0.1).abs() < 1e-12, "remembered");
}

#[test]
fn a_probe_that_never_ends_is_given_up() {
    let mut probing = Probing::default();
    probing.watch("run:a", at(0)).unwrap();
    probing.watch("run:b", at(0)).unwrap();
    probing.tick(at(0));
    assert_eq!(probing.probed(), Some("run:a"));
    let last = PROBE_TIME_MAX.as_secs();
    probing.watch("run:b", at(last)).unwrap();
    assert!(!probing.tick(at(last - 1)));
    assert!(probing.tick(at(last)));
    assert_eq!(probing.probed(), Some("run:b"), "the next one");
    assert_eq!(probing.mode("run:a"), Mode::Cached);
    // A job that hangs again waits longer each time, so that it costs the others less.
    probing.ended("run:b");
    let mut given_up = last;
    for wait in [600, 1200, 2400, 4800, 9600, 9600] {
        let due = given_up + wait;
        probing.watch("run:a", at(due)).unwrap();
        assert!(!probing.tick(at(due - 1)), "{wait}");
        assert!(probing.tick(at(due)), "{wait}");
        given_up = due + last;
        assert!(probing.tick(at(given_up)));
    }
}

#[test]
fn a_slow_job_is_measured_by_fewer_mini_batches() {
    let mut probing = Probing::default();
    probing.watch("run:a", at(0)).unwrap();
    probing.tick(at(0));
    // 40 mini-batches of 7 s in the time of a probe.
    for now in [140, 280] {
        probing
            .record(&report("run:a", Mode::Probe, 7.0, 0), at(now))
            .unwrap();
    }
    assert!(probing.tick(PROBE_TIME_MAX));
    assert_eq!(probing.mode("run:a"), Mode::Cached);
    // And fewer than 100 with a cache before the next one.
    for now in [400, 500] {
        probing
            .record(&report("run:a", Mode::Cached, 2.0, 100), at(now))
            .unwrap();
    }
    assert_eq!(probing.times("run:a"), None);
    probing
        .watch("run:a", PROBE_TIME_MAX + PROBE_INTERVAL)
        .unwrap();
    assert!(probing.tick(PROBE_TIME_MAX + PROBE_INTERVAL));
    let times = probing.times("run:a").unwrap();
    assert_eq!((times.uncached_s, times.whole_s), (7.0, Some(2.0)));
}

#[test]
fn silent_and_ended_jobs_hold_nothing_up() {
    let mut probing = Probing::default();
    probing.watch("run:a", at(0)).unwrap();
    // `a` has fallen silent before its first probe.
    probing.watch("run:b", at(400)).unwrap();
    probing.tick(at(400));
    assert_eq!(probing.probed(), Some("run:b"));
    probing.ended("run:b");
    assert_eq!(
        (probing.probed(), probing.mode("run:b")),
        (None, Mode::Cached)
    );
    assert!(!probing.tick(at(401)));
    // It comes back in time.
    probing.watch("run:a", at(500)).unwrap();
    assert!(probing.tick(at(500)));
    assert_eq!(probing.probed(), Some("run:a"));
    // Silent for more than an hour: forgotten, like a job that was never seen.
    probing.tick(at(5000));
    assert_eq!(probing.probed(), None);
    assert!(probing.jobs.is_empty());
}

#[test]
fn bad_reports_change_nothing() {
    let mut probing = measured(0.4, 0.1, 100);
    probing.watch("run:a", at(700)).unwrap();
    probing.tick(at(700));
    let before = probing.state();
    for seconds in [0.0, -1.0, 1e-9, f64::NAN, f64::INFINITY, 1e9] {
        let bad = Report {
            seconds,
            batches: 100,
            ..report("run:a", Mode::Probe, 1.0, 0)
        };
        assert!(probing.record(&bad, at(701)).is_err(), "{seconds}");
    }
    assert_eq!(probing.mode("run:a"), Mode::Probe);
    assert_eq!(probing.state(), before);
    // A refused report does not add its job.
    let bad = Report {
        batches: 0,
        ..report("run:new", Mode::Cached, 1.0, 0)
    };
    assert_eq!(probing.record(&bad, at(702)), Err(ReportError::NoBatches));
    assert_eq!(probing.jobs.len(), 1);
    assert_eq!(probing.watch("", at(702)), Err(ReportError::Name(0)));
}

#[test]
fn the_number_of_jobs_is_bounded() {
    let mut probing = Probing::default();
    for number in 0..JOBS_MAX {
        probing.watch(&format!("run:{number}"), at(0)).unwrap();
    }
    let refused = probing.watch("run:more", at(0));
    assert_eq!(refused, Err(ReportError::TooManyJobs(JOBS_MAX)));
    assert_eq!(probing.watch("run:0", at(1)), Ok(()), "known");
}

#[test]
fn another_allocator_continues() {
    let mut probing = measured(1.04, 1.0, 100);
    probing.watch("run:b", at(100)).unwrap();
    probing.tick(at(100));
    assert_eq!(train(&mut probing, "run:b", 0.4, 0, at(150)), Mode::Cached);
    probing.watch("run:c", at(150)).unwrap();
    probing.tick(at(150));
    assert_eq!(probing.probed(), Some("run:c"));
    let text = serde_json::to_string(&probing.state()).unwrap();
    assert!(text.len() < 400, "{text}");

    // Its clock starts at zero.
    let mut next = Probing::default();
    next.restore(serde_json::from_str(&text).unwrap(), at(1));
    assert_eq!(next.state(), probing.state());
    assert_eq!(next.mode("run:a"), Mode::Uncached);
    assert_eq!(next.times("run:a"), probing.times("run:a"));
    // The probe of `b` is compared, although it was before.
    assert_eq!(train(&mut next, "run:b", 0.1, 100, at(2)), Mode::Cached);
    assert!(next.times("run:b").is_some());
    // `c` has no measurement, so it is probed when it is heard of.
    next.watch("run:c", at(3)).unwrap();
    assert!(next.tick(at(3)));
    assert_eq!(next.probed(), Some("run:c"));
    // What is known is not replaced by what another one knew.
    let before = next.state();
    next.restore(probing.state(), at(4));
    assert_eq!(next.state(), before);
}

#[test]
fn a_restored_state_is_checked() {
    let sound = JobState {
        job: "run:a".to_owned(),
        times: None,
        uncached_s: Some(1.0),
        given_up: 255,
    };
    let with_times = |uncached_s: f64| JobState {
        uncached_s: None,
        times: Some(Times {
            uncached_s,
            ..Times::default()
        }),
        ..sound.clone()
    };
    let nameless = JobState {
        job: String::new(),
        ..sound.clone()
    };
    let nan = JobState {
        uncached_s: Some(f64::NAN),
        ..sound.clone()
    };
    for bad in [nameless, nan, with_times(-1.0), with_times(f64::INFINITY)] {
        let mut probing = Probing::default();
        probing.restore(vec![bad], at(0));
        assert!(probing.jobs.is_empty());
    }
    let mut probing = Probing::default();
    probing.restore(vec![sound.clone(); 3], at(0));
    assert_eq!(probing.state(), [sound]);
}
