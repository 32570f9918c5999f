//! The policy `benefit`, which measures how much jobs gain from a cache.

use super::*;
use crate::model::ErrorKind;
use copperfs_policy::Mode;
use copperfs_policy::benefit::PROBE_BATCHES;

fn batches(job: &str, mode: Mode, seconds: f64) -> BatchReport {
    let (batches, half) = (PROBE_BATCHES, PROBE_BATCHES * 50);
    BatchReport {
        ranks: 1,
        job: job.into(),
        dataset: "a".into(),
        mode,
        batches,
        seconds: seconds * batches as f64,
        hits: if mode == Mode::Cached { half * 2 } else { 0 },
        misses: if mode == Mode::Cached { 0 } else { half * 2 },
    }
}

impl Cluster {
    fn measured(policy: &str) -> Self {
        let mut cluster = Self::new(2, 100 * GB, Some(100 * MB));
        cluster.ask(&Command::SetPolicy(policy.into()));
        cluster.add("a", 10 * GB);
        for job in ["i", "j"] {
            cluster.ask(&Command::AddJob(super::job(job, "a", MB)));
        }
        cluster
    }

    /// Reports, and returns the mode after the next decision.
    fn report(&mut self, report: &BatchReport) -> Mode {
        self.allocator.report_batches(report, self.now).unwrap();
        self.run(300);
        self.job(&report.job).mode
    }
}

#[test]
fn jobs_are_probed_one_after_the_other_and_switched_off_if_they_gain_nothing() {
    let mut cluster = Cluster::measured("benefit");
    cluster.run(1_000);
    assert_eq!(cluster.job("i").mode, Mode::Cached, "it has not reported");
    assert_eq!(
        cluster.report(&batches("i", Mode::Cached, 0.5)),
        Mode::Probe
    );
    assert_eq!(
        cluster.report(&batches("j", Mode::Cached, 0.5)),
        Mode::Cached,
        "one at a time"
    );
    // The first is five times as fast with the cache.
    assert_eq!(
        cluster.report(&batches("i", Mode::Probe, 0.5)),
        Mode::Cached
    );
    assert_eq!(cluster.job("j").mode, Mode::Probe);
    assert_eq!(
        cluster.report(&batches("i", Mode::Cached, 0.1)),
        Mode::Cached
    );
    let times = cluster.job("i").measured.as_ref().unwrap().times.unwrap();
    assert!((times.uncached_s - 0.5).abs() < 1e-9 && (times.whole_s.unwrap() - 0.1).abs() < 1e-9);
    // The second computes for as long, so it gains nothing.
    assert_eq!(
        cluster.report(&batches("j", Mode::Probe, 0.5)),
        Mode::Cached
    );
    assert_eq!(
        cluster.report(&batches("j", Mode::Cached, 0.49)),
        Mode::Uncached
    );
    assert_eq!(cluster.dataset("a").budget, 10 * GB, "the first needs it");
    cluster.ask(&Command::EndJob("i".into()));
    assert_eq!(cluster.job("j").mode, Mode::Uncached);
    cluster.check();

    // A new allocator goes on from the decision.
    let held = cluster.allocator.decision().clone();
    let mut next = Allocator::new(
        cluster.allocator.limits,
        Registry::default(),
        0,
        cluster.now,
    );
    next.adopt(&held, cluster.now);
    next.tick(cluster.now + at(1_100));
    assert_eq!(next.decision().job("j").unwrap().mode, Mode::Uncached);
}

#[test]
fn other_policies_measure_nothing() {
    let mut cluster = Cluster::measured("greedy");
    for mode in [Mode::Cached, Mode::Probe, Mode::Cached] {
        assert_eq!(cluster.report(&batches("i", mode, 0.5)), Mode::Cached);
    }
    assert_eq!(cluster.job("i").measured, None);
    let nonsense = batches("i", Mode::Cached, 0.0);
    let refused = cluster
        .allocator
        .report_batches(&nonsense, cluster.now)
        .unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid);
    // A policy that is changed forgets.
    cluster.ask(&Command::SetPolicy("benefit".into()));
    assert_eq!(
        cluster.report(&batches("i", Mode::Cached, 0.5)),
        Mode::Probe
    );
    cluster.ask(&Command::SetPolicy("greedy".into()));
    assert_eq!(cluster.job("i").mode, Mode::Cached);
}

/// Under each policy: whether the times are used must not decide whether a mistake is noticed.
#[test]
fn times_for_a_dataset_that_is_not_declared_are_refused_by_its_name() {
    for policy in ["benefit", "greedy"] {
        let mut cluster = Cluster::measured(policy);
        let report = BatchReport {
            dataset: "aa".into(),
            ..batches("i", Mode::Cached, 0.5)
        };
        let refused = cluster.allocator.report_batches(&report, cluster.now);
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NotFound, "{policy}");
        assert!(refused.message.contains("\"aa\""), "{refused:?}");
        cluster.run(1_000);
        assert_eq!(cluster.job("i").mode, Mode::Cached);
        assert_eq!(cluster.job("i").measured, None, "nothing is recorded");
    }
}
