//! What a node says about a job each second.

use super::{JobActivity, Reported};
use crate::job::ENDED_AFTER;
use crate::job::name::JobName;
use crate::job::progress::EpochCounts;
use crate::job::rate::Estimate;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// A job's reading of a dataset on one node. Reports of a job from several nodes are added up field
/// by field, but for the epoch (the least) and the ratios.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActivityReport {
    /// The job; `None`: all readers that belong to none.
    pub job: Option<JobName>,
    /// The dataset that it reads.
    pub dataset: String,
    /// Which epoch it is in on this node, from 0.
    pub epoch: u64,
    /// Items that an epoch has on this node, if known.
    pub expected_items: Option<u64>,
    /// What it has read in this epoch.
    pub current: EpochCounts,
    /// Bytes read since it was first seen here.
    pub bytes: u64,
    /// Bytes of the origin charged since it was first seen here.
    pub charged_bytes: u64,
    /// Of those, since the report before this one.
    pub charged_since: u64,
    /// Bytes per second read over the last five seconds.
    pub throughput: f64,
    /// Bytes per second of the origin charged over the last five seconds.
    pub remote_rate: f64,
    /// Which part of the time since the last report some reader waited for tokens: 0 to 1.
    pub throttled: f64,
    /// What is known of its ideal rate on this node.
    pub estimate: Option<Estimate>,
    /// It does not read each item once in each epoch.
    pub irregular: bool,
    /// Of its outermost processes here, those that run.
    pub processes: u32,
    /// Its processes are gone, and nothing was read for 30 s.
    pub ended: bool,
    /// Seconds since something last happened.
    pub idle_s: f64,
}

impl JobActivity {
    /// What to say of it. Only one caller: the time and the charges since the last report are counted
    /// from call to call.
    #[must_use]
    pub fn report(&self, now: Instant) -> ActivityReport {
        let waited = self.tokens.waited();
        let mut state = self.state.lock();
        let before = state.reported;
        let total = state.progress.total();
        let passed = now.saturating_duration_since(before.at);
        let throttled = if passed.is_zero() {
            0.0
        } else {
            waited
                .saturating_sub(before.waited)
                .div_duration_f64(passed)
        };
        state.reported = Reported {
            at: now,
            charged: total.charged_bytes,
            waited,
        };
        let idle = now.saturating_duration_since(state.active);
        ActivityReport {
            job: self.job.clone(),
            dataset: self.dataset.to_string(),
            epoch: state.progress.number(),
            expected_items: state.progress.expected(),
            current: *state.progress.epoch(),
            bytes: total.bytes,
            charged_bytes: total.charged_bytes,
            charged_since: total.charged_bytes - before.charged,
            throughput: state.throughput.rate(now),
            remote_rate: state.remote.rate(now),
            throttled: throttled.min(1.0),
            estimate: state.loader.estimate(),
            irregular: state.progress.irregular(),
            processes: state.running,
            ended: state.running == 0 && state.loader.waiting() == 0 && idle > ENDED_AFTER,
            idle_s: idle.as_secs_f64(),
        }
    }
}
