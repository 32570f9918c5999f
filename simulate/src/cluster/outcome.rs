//! What a run shows: times of jobs, and what the cluster did over time.

use super::progress::Progress;
use super::{Scenario, Workload};
use serde::Serialize;

/// Samples of a run lie in buckets of equal length; when there are more than this, pairs become one.
const SAMPLES_MAX: usize = 2048;
/// The first length of a bucket.
const BUCKET_S: f64 = 60.0;

/// A job's times, in seconds from the trace's zero.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobOutcome {
    /// Its id.
    pub id: String,
    /// What it trains.
    pub model: String,
    /// When it was submitted.
    pub submit_s: f64,
    /// When it had GPUs.
    pub start_s: f64,
    /// When it was done.
    pub finish_s: f64,
    /// From submission to the end.
    pub jct_s: f64,
}

/// What the cluster did in one stretch of time: averages over it. Bytes and bytes a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Where the stretch begins.
    pub at_s: f64,
    /// What all jobs read.
    pub throughput: f64,
    /// What those that had GPUs would have read without waiting for data.
    pub ideal_throughput: f64,
    /// What of it came from storage.
    pub remote_io: f64,
    /// Cache given to datasets that are being read.
    pub allocated_cache: f64,
    /// What of it was filled.
    pub cached: f64,
    /// What of it helped the jobs that read (§6): hit ratio times dataset.
    pub effective_cache: f64,
    /// Mean over jobs of throughput over what an equal share would give (Eq. 8).
    pub fairness: f64,
    /// The least of them.
    pub fairness_min: f64,
    /// GPUs in use.
    pub gpus: f64,
    /// Jobs that run.
    pub running: f64,
    /// Jobs that wait for GPUs.
    pub waiting: f64,
}

impl Sample {
    fn add(&mut self, other: &Self, seconds: f64) {
        self.throughput += other.throughput * seconds;
        self.ideal_throughput += other.ideal_throughput * seconds;
        self.remote_io += other.remote_io * seconds;
        self.allocated_cache += other.allocated_cache * seconds;
        self.cached += other.cached * seconds;
        self.effective_cache += other.effective_cache * seconds;
        self.fairness += other.fairness * seconds;
        self.fairness_min += other.fairness_min * seconds;
        self.gpus += other.gpus * seconds;
        self.running += other.running * seconds;
        self.waiting += other.waiting * seconds;
    }

    fn over(mut self, at_s: f64, seconds: f64) -> Self {
        let sum = self;
        self = Self::default();
        self.add(&sum, 1.0 / seconds);
        self.at_s = at_s;
        self
    }
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Mean time from submission to the end.
    pub jct_mean_s: f64,
    /// Half of the jobs took at most this.
    pub jct_p50_s: f64,
    /// 99 % of the jobs took at most this.
    pub jct_p99_s: f64,
    /// From the first submission to the last end.
    pub makespan_s: f64,
    /// [`Sample::fairness`] over the time in which jobs ran.
    pub fairness_mean: f64,
    /// [`Sample::fairness_min`] over the time in which jobs ran.
    pub fairness_min_mean: f64,
    /// [`Sample::effective_cache`] over [`Sample::allocated_cache`], both over the whole time.
    pub effective_cache_ratio: f64,
    /// [`Sample::effective_cache`] over [`Sample::cached`].
    pub effective_of_cached_ratio: f64,
    /// Mean of what came from storage, in bytes a second.
    pub remote_io_mean: f64,
    /// What came from storage, in bytes.
    pub remote_bytes: f64,
    /// What all jobs read, in bytes.
    pub read_bytes: f64,
    /// Steps of the simulation.
    pub steps: u64,
    /// Every job, in the workload's order.
    pub jobs: Vec<JobOutcome>,
    /// The cluster over time.
    pub samples: Vec<Sample>,
}

/// Collects a run.
#[derive(Debug)]
pub(super) struct Recorder {
    buckets: Vec<(f64, Sample)>,
    bucket: f64,
    total: Sample,
    busy: f64,
    pub(super) steps: u64,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self {
            buckets: Vec::new(),
            bucket: BUCKET_S,
            total: Sample::default(),
            busy: 0.0,
            steps: 0,
        }
    }

    /// The cluster was so from `from` for `seconds`.
    pub(super) fn add(&mut self, mut from: f64, mut seconds: f64, state: &Sample) {
        self.total.add(state, seconds);
        if state.running > 0.0 {
            self.busy += seconds;
        }
        while from + seconds >= self.bucket * index_f64(SAMPLES_MAX) {
            self.halve();
        }
        while seconds > 0.0 {
            let at = index(from / self.bucket);
            let end = index_f64(at + 1) * self.bucket;
            // At least a little, or rounding could keep `from` before the bucket's end for ever.
            let part = seconds.min((end - from).max(self.bucket * 1e-9));
            if self.buckets.len() <= at {
                self.buckets.resize(at + 1, (0.0, Sample::default()));
            }
            let (filled, sum) = &mut self.buckets[at];
            *filled += part;
            sum.add(state, part);
            from += part;
            seconds -= part;
        }
    }

    fn halve(&mut self) {
        self.bucket *= 2.0;
        let pairs = self.buckets.chunks(2).map(|pair| {
            let mut sum = pair[0];
            for (seconds, sample) in &pair[1..] {
                sum.0 += seconds;
                sum.1.add(sample, 1.0);
            }
            sum
        });
        self.buckets = pairs.collect();
    }

    pub(super) fn finish(self, workload: &Workload, progress: &[Progress]) -> Outcome {
        let jobs: Vec<JobOutcome> = workload
            .jobs
            .iter()
            .zip(progress)
            .map(|(job, progress)| {
                let finish = progress.finished.unwrap_or(f64::INFINITY);
                JobOutcome {
                    id: job.id.clone(),
                    model: job.model.clone(),
                    submit_s: job.submit,
                    start_s: progress.started.unwrap_or(f64::INFINITY),
                    finish_s: finish,
                    jct_s: finish - job.submit,
                }
            })
            .collect();
        let mut jcts: Vec<f64> = jobs.iter().map(|job| job.jct_s).collect();
        jcts.sort_unstable_by(f64::total_cmp);
        let quantile = |part: f64| jcts[index(part * index_f64(jcts.len() - 1))];
        let first = jobs.iter().map(|job| job.submit_s).fold(f64::MAX, f64::min);
        let last = jobs.iter().map(|job| job.finish_s).fold(0.0, f64::max);
        let total = &self.total;
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        Outcome {
            jct_mean_s: jcts.iter().sum::<f64>() / index_f64(jcts.len()),
            jct_p50_s: quantile(0.5),
            jct_p99_s: quantile(0.99),
            makespan_s: last - first,
            fairness_mean: ratio(total.fairness, self.busy),
            fairness_min_mean: ratio(total.fairness_min, self.busy),
            effective_cache_ratio: ratio(total.effective_cache, total.allocated_cache),
            effective_of_cached_ratio: ratio(total.effective_cache, total.cached),
            remote_io_mean: ratio(total.remote_io, self.busy),
            remote_bytes: total.remote_io,
            read_bytes: total.throughput,
            steps: self.steps,
            jobs,
            samples: self.samples(),
        }
    }

    fn samples(&self) -> Vec<Sample> {
        let filled = self.buckets.iter().enumerate();
        filled
            .filter(|(_, (seconds, _))| *seconds > 0.0)
            .map(|(at, (seconds, sum))| sum.over(index_f64(at) * self.bucket, *seconds))
            .collect()
    }
}

/// Adds up what the jobs that run do; the cache's figures come from the cache.
pub(super) fn state(
    (scenario, workload): (&Scenario, &Workload),
    active: &[usize],
    progress: &[Progress],
    waiting: usize,
) -> Sample {
    let mut sample = Sample {
        running: index_f64(active.len()),
        waiting: index_f64(waiting),
        fairness_min: f64::INFINITY,
        ..Sample::default()
    };
    for &job in active {
        let now = &progress[job];
        sample.throughput += now.rate;
        sample.ideal_throughput += workload.jobs[job].ideal_rate * scenario.gpu_speed * now.share;
        sample.remote_io += now.remote;
        sample.gpus += f64::from(workload.jobs[job].gpus) * now.share;
        let ratio = now.rate / now.equal;
        sample.fairness += ratio / sample.running;
        sample.fairness_min = sample.fairness_min.min(ratio);
    }
    if active.is_empty() {
        sample.fairness_min = 0.0;
    }
    sample
}

#[expect(clippy::cast_precision_loss, reason = "counts of jobs and of samples")]
pub(super) fn index_f64(count: usize) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative, and bounded by the number of samples or jobs"
)]
pub(super) fn index(value: f64) -> usize {
    value as usize
}
