//! The jobs that have ended lately. Pure.
//!
//! Nodes report a job for a while after its end, so that its last reads are counted: a node that reports after it has
//! received the decision without the job has reported all of them. Another allocator begins with an empty history.

use super::NODE_TIMEOUT;
use crate::model::{EndedJob, JobDecision, JobReport, JobTotals, NodeReport, Serial, UNATTRIBUTED};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// The number of jobs that are kept. The oldest is dropped first.
const ENDED_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct History {
    live: BTreeMap<String, Live>,
    /// The oldest first.
    ended: VecDeque<Ended>,
}

/// A job that has not ended.
#[derive(Debug)]
struct Live {
    job: JobDecision,
    began: Duration,
    /// The reads on nodes that do not report the job any longer.
    gone: JobTotals,
}

#[derive(Debug)]
struct Ended {
    /// Without the reads in `parts`.
    job: EndedJob,
    at: Duration,
    /// The first decision without the job.
    serial: Serial,
    /// The newest reads of each node, by rank, until all have reported.
    parts: BTreeMap<u32, JobTotals>,
    /// The nodes that have not reported since they received the decision.
    awaited: BTreeSet<u32>,
}

impl History {
    /// Records that `report` replaces a node's report `before`.
    pub(super) fn record(&mut self, before: Option<&NodeReport>, report: &NodeReport) {
        let same = |one: &JobReport, other: &JobReport| {
            (&one.job, &one.dataset) == (&other.job, &other.dataset)
        };
        for part in before.into_iter().flat_map(|before| &before.jobs) {
            if !report.jobs.iter().any(|now| same(now, part))
                && let Some(live) = self.live.get_mut(&part.job)
            {
                live.gone.add(&JobTotals::of_node([part]));
            }
        }
        for ended in &mut self.ended {
            ended.record(report);
        }
    }

    /// Follows a decision that was made at `now`: `jobs` are all jobs, and `reports` the newest ones of all nodes.
    pub(super) fn follow(
        &mut self,
        jobs: &[JobDecision],
        reports: &[NodeReport],
        serial: Serial,
        now: Duration,
    ) {
        let names: BTreeSet<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        let over: Vec<String> = self.live.keys().cloned().collect();
        for name in over {
            if !names.contains(name.as_str())
                && let Some(live) = self.live.remove(&name)
            {
                if self.ended.len() == ENDED_MAX {
                    self.ended.pop_front();
                }
                self.ended.push_back(live.end(reports, serial, now));
            }
        }
        for job in jobs.iter().filter(|job| job.name != UNATTRIBUTED) {
            let live = self.live.entry(job.name.clone());
            let live = live.or_insert_with(|| Live {
                job: job.clone(),
                began: now,
                gone: JobTotals::default(),
            });
            live.job.clone_from(job);
        }
        for ended in &mut self.ended {
            ended.settle(now);
        }
    }

    /// The jobs that have ended, the last one first.
    pub(super) fn ended(&self, now: Duration) -> Vec<EndedJob> {
        let newest = self.ended.iter().rev();
        newest.map(|ended| ended.told(now)).collect()
    }
}

impl Live {
    fn end(self, reports: &[NodeReport], serial: Serial, now: Duration) -> Ended {
        let Self { job, began, gone } = self;
        let name = job.name.as_str();
        let parts = reports.iter().filter_map(|report| of_job(report, name));
        // A job whose reads were only observed has ended because no node reports it.
        let awaited = reports.iter().filter(|_| job.declared);
        Ended {
            at: now,
            serial,
            parts: parts.collect(),
            awaited: awaited.map(|report| report.rank).collect(),
            job: EndedJob {
                dataset: job.dataset,
                declared: job.declared,
                gpus: job.gpus,
                epochs: job.epochs,
                ago: Duration::ZERO,
                lasted: now.saturating_sub(began),
                totals: gone,
                is_complete: false,
                job: job.name,
            },
        }
    }
}

impl Ended {
    fn record(&mut self, report: &NodeReport) {
        if !self.awaited.contains(&report.rank) {
            return;
        }
        self.parts.extend(of_job(report, &self.job.job));
        if report.follows >= self.serial {
            self.awaited.remove(&report.rank);
        }
    }

    /// Sums up once all nodes have reported, or are late.
    fn settle(&mut self, now: Duration) {
        if now.saturating_sub(self.at) >= NODE_TIMEOUT {
            self.awaited.clear();
        }
        if self.awaited.is_empty() {
            for part in std::mem::take(&mut self.parts).values() {
                self.job.totals.add(part);
            }
        }
    }

    fn told(&self, now: Duration) -> EndedJob {
        let mut job = self.job.clone();
        for part in self.parts.values() {
            job.totals.add(part);
        }
        job.ago = now.saturating_sub(self.at);
        job.is_complete = self.awaited.is_empty() || job.ago >= NODE_TIMEOUT;
        job
    }
}

/// The rank of a node and the reads of a job on it, if it reports any.
fn of_job(report: &NodeReport, name: &str) -> Option<(u32, JobTotals)> {
    let mut parts = report
        .jobs
        .iter()
        .filter(|part| part.job == name)
        .peekable();
    parts.peek()?;
    Some((report.rank, JobTotals::of_node(parts)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn serial(count: u64) -> Serial {
        Serial { term: 1, count }
    }

    fn declared(name: &str) -> JobDecision {
        JobDecision {
            declared: true,
            dataset: Some("a".into()),
            ..JobDecision::observed(name)
        }
    }

    /// The report of node `rank`, on which `job` has read two epochs.
    fn report(rank: u32, follows: u64, job: &str, bytes: u64) -> NodeReport {
        let part = JobReport {
            job: job.into(),
            dataset: "a".into(),
            epoch: 1,
            bytes,
            hit_bytes: bytes,
            total_bytes: bytes + 100,
            charged_bytes: 100,
            epochs: vec![(0, 100, 0)],
            ..JobReport::default()
        };
        NodeReport {
            rank,
            follows: serial(follows),
            jobs: vec![part],
            ..NodeReport::default()
        }
    }

    #[test]
    fn the_last_reads_of_a_job_count() {
        let mut history = History::default();
        let before = [report(0, 1, "run:x", 5), report(1, 1, "run:x", 5)];
        history.follow(&[declared("run:x")], &before, serial(1), at(10));
        assert_eq!(history.ended(at(20)), []);
        history.follow(&[], &before, serial(2), at(40));
        let [ended] = history.ended(at(41)).try_into().unwrap();
        assert_eq!((ended.job.as_str(), ended.lasted), ("run:x", at(30)));
        assert!(!ended.is_complete);
        assert_eq!(ended.totals.bytes, 210);

        // One node has not received the decision yet, and the other has.
        history.record(Some(&before[0]), &report(0, 1, "run:x", 50));
        history.record(Some(&before[1]), &report(1, 2, "run:x", 60));
        let ended = &history.ended(at(41))[0];
        assert_eq!((ended.is_complete, ended.totals.bytes), (false, 310));
        history.record(None, &report(0, 2, "run:x", 70));
        history.follow(&[], &[], serial(3), at(42));
        // The job of that name which runs next is another one.
        history.record(None, &report(0, 3, "run:x", 9000));
        let ended = &history.ended(at(42))[0];
        assert!(ended.is_complete);
        assert_eq!((ended.totals.nodes, ended.totals.bytes), (2, 330));
        assert_eq!(ended.totals.charged_bytes, 200);
        let epochs: Vec<_> = ended.totals.epochs.iter().collect();
        assert_eq!(epochs, [(&0, &(200, 0)), (&1, &(130, 130))]);
    }

    #[test]
    fn a_node_that_is_silent_is_not_awaited_for_ever() {
        let mut history = History::default();
        let reports = [report(0, 1, "run:x", 5)];
        history.follow(&[declared("run:x")], &reports, serial(1), at(0));
        history.follow(&[], &reports, serial(2), at(1));
        assert!(!history.ended(at(2))[0].is_complete);
        assert!(history.ended(at(1) + NODE_TIMEOUT)[0].is_complete);
        history.follow(&[], &[], serial(2), at(1) + NODE_TIMEOUT);
        assert_eq!(history.ended(at(9))[0].totals.bytes, 105);
    }

    #[test]
    fn a_job_that_was_only_observed_is_told_as_last_reported() {
        let mut history = History::default();
        let job = JobDecision {
            dataset: Some("a".into()),
            ..JobDecision::observed("slurm:7")
        };
        let last = report(0, 1, "slurm:7", 5);
        history.follow(&[job], std::slice::from_ref(&last), serial(1), at(0));
        history.record(Some(&last), &NodeReport::default());
        history.follow(&[], &[NodeReport::default()], serial(2), at(1));
        let ended = &history.ended(at(1))[0];
        assert!(ended.is_complete && !ended.declared);
        assert_eq!(ended.totals.bytes, 105);
    }

    #[test]
    fn few_jobs_are_kept() {
        let mut history = History::default();
        for number in 0..100 {
            let job = [declared(&format!("run:{number}"))];
            history.follow(&job, &[], serial(1), at(number));
        }
        let ended = history.ended(at(100));
        assert_eq!(ended.len(), ENDED_MAX);
        assert_eq!(ended[0].job, "run:98");
    }
}
