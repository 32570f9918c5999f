//! A node's report on one job, sent each second.

use super::JobActivity;
use crate::job::name::JobName;
use crate::job::tokens::RateLimit;
use crate::job::{ENDED_AFTER, identity::Proc};
use crate::model::{JobReport, UNATTRIBUTED};
use std::time::Instant;

/// The number of epochs in a report: enough for a table, and few to send.
const EPOCHS_REPORTED: usize = 16;

impl JobActivity {
    /// Reports on the job. Waiting for tokens is measured from report to report, so there must be one
    /// caller only. Not for a thread that answers requests, because it looks up in `proc` which of the
    /// job's processes run.
    #[must_use]
    pub(super) fn report(&self, proc: &Proc, now: Instant) -> JobReport {
        // Look processes up without the lock, because a read of `/proc` may block.
        let processes = self.measured.lock().processes.clone();
        let gone: Vec<_> = processes
            .into_iter()
            .filter(|process| !proc.runs(*process))
            .collect();
        let waited = self.tokens.waited();
        let allowed = match self.tokens.limit() {
            RateLimit::BytesPerSecond(rate) => Some(rate),
            RateLimit::Unlimited => None,
        };
        let mut measured = self.measured.lock();
        measured.processes.retain(|one| !gone.contains(one));
        let (last, waited_before) = std::mem::replace(&mut measured.reported, (now, waited));
        let passed = now.saturating_duration_since(last);
        let throttled = if passed.is_zero() {
            0.0
        } else {
            waited
                .saturating_sub(waited_before)
                .div_duration_f64(passed)
        };
        // A job without processes may still read through files that other processes have inherited.
        let idle = now.saturating_duration_since(measured.active);
        let over = measured.processes.is_empty() && measured.estimator.waiting() == 0;
        let throughput = whole(measured.throughput.rate(now));
        let remote_io = whole(measured.remote.rate(now));
        let estimate = measured.estimator.estimate();
        let progress = &measured.progress;
        let (total, current) = (progress.total(), progress.epoch());
        let ended = progress.ended();
        let first = progress.number().saturating_sub(ended.len() as u64);
        let epochs = (first..).zip(ended);
        let epochs = epochs.skip(ended.len().saturating_sub(EPOCHS_REPORTED));
        JobReport {
            job: self
                .job
                .as_ref()
                .map_or(UNATTRIBUTED, JobName::as_str)
                .to_owned(),
            dataset: self.dataset.to_string(),
            epoch: small(progress.number()),
            items: current.items,
            bytes: current.bytes,
            hit_bytes: current.hit_bytes,
            admitted_bytes: current.admitted_bytes,
            total_bytes: total.bytes,
            charged_bytes: total.charged_bytes,
            throughput,
            remote_io,
            allowed,
            throttled: short(throttled.min(1.0)),
            ideal_rate: estimate.map(|estimate| whole(estimate.rate)),
            confidence: estimate.map_or(0.0, |estimate| short(estimate.confidence)),
            bound: estimate.is_some_and(|estimate| estimate.bound),
            irregular: progress.irregular(),
            ended: over && idle > ENDED_AFTER,
            epochs: epochs
                .map(|(number, epoch)| (small(number), epoch.bytes, epoch.hit_bytes))
                .collect(),
        }
    }
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Rounds a rate to whole bytes per second.
fn whole(rate: f64) -> u64 {
    crate::num::whole(rate.round())
}

#[expect(clippy::cast_possible_truncation, reason = "a fraction, for people")]
fn short(fraction: f64) -> f32 {
    fraction as f32
}
