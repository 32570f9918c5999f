//! The outcome of a run: times of jobs, and the cluster's state over time.

use crate::num::{index, index_f64};
use copperfs_policy::Choice;
use serde::Serialize;

/// The maximum number of samples, which are buckets of equal length. Beyond it pairs of buckets are
/// merged.
const SAMPLES_MAX: usize = 2048;
/// The initial length of a bucket.
const BUCKET_S: f64 = 60.0;

/// A job's times, in seconds since the start of the trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobOutcome {
    /// Its id.
    pub id: String,
    /// The model that it trains.
    pub model: String,
    /// When it was submitted.
    pub submit_s: f64,
    /// When it first had GPUs.
    pub start_s: f64,
    /// When it finished.
    pub finish_s: f64,
    /// The time from submission to the end.
    pub jct_s: f64,
}

/// A time in which a chunk of a dataset was resident.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChunkSpan {
    /// The dataset.
    pub dataset: String,
    /// The chunk.
    pub chunk: u32,
    /// When it came in, in seconds.
    pub from_s: f64,
    /// When it was evicted, in seconds. `None`: it was there at the end.
    pub until_s: Option<f64>,
    /// Whether jobs lost it before they had read all of it.
    pub is_forced: bool,
}

/// A choice of the policy for a dataset whose rule is `auto`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChoiceChange {
    /// The dataset.
    pub dataset: String,
    /// When it was made, in seconds.
    pub at_s: f64,
    /// What its cache holds from then on.
    pub choice: Choice,
}

/// Averages of the cluster's state over a period. Bytes and bytes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Sample {
    /// The start of the period.
    pub at_s: f64,
    /// The rate of all jobs' reads.
    pub throughput: f64,
    /// The rate that the jobs with GPUs would have without waiting for data.
    pub ideal_throughput: f64,
    /// The part of `throughput` from storage.
    pub remote_io: f64,
    /// Cache allocated to datasets that are being read.
    pub allocated_cache: f64,
    /// The filled part of it.
    pub cached: f64,
    /// The part of it that helps the running jobs (§6): hit ratio times dataset size.
    pub effective_cache: f64,
    /// The mean over jobs of the throughput relative to an equal share (Eq. 8).
    pub fairness: f64,
    /// The minimum over jobs of the same ratio.
    pub fairness_min: f64,
    /// GPUs in use.
    pub gpus: f64,
    /// The number of running jobs.
    pub running: f64,
    /// The number of jobs that wait for GPUs.
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

    /// The average of this sum over `seconds`.
    fn over(&self, at_s: f64, seconds: f64) -> Self {
        let mut average = Self {
            at_s,
            ..Self::default()
        };
        average.add(self, 1.0 / seconds);
        average
    }
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The mean time from submission to the end.
    pub jct_mean_s: f64,
    /// The median of that time.
    pub jct_p50_s: f64,
    /// The 99th percentile of that time.
    pub jct_p99_s: f64,
    /// The time from the first submission to the last end.
    pub makespan_s: f64,
    /// The mean of [`Sample::fairness`] while jobs ran.
    pub fairness_mean: f64,
    /// The mean of [`Sample::fairness_min`] while jobs ran.
    pub fairness_min_mean: f64,
    /// The ratio of [`Sample::effective_cache`] to [`Sample::allocated_cache`], both over the whole
    /// time.
    pub effective_cache_ratio: f64,
    /// The ratio of [`Sample::effective_cache`] to [`Sample::cached`].
    pub effective_of_cached_ratio: f64,
    /// The mean rate from storage while jobs ran, in bytes per second.
    pub remote_io_mean: f64,
    /// Bytes read from storage.
    pub remote_bytes: f64,
    /// The part of these bytes that jobs read while they were measured without a cache.
    pub probe_bytes: f64,
    /// Bytes read by all jobs.
    pub read_bytes: f64,
    /// The number of simulation steps.
    pub steps: u64,
    /// All jobs, in the workload's order.
    pub jobs: Vec<JobOutcome>,
    /// The cluster's state over time.
    pub samples: Vec<Sample>,
    /// When each chunk was resident, in the order in which they came in (of the first 65,536 of each
    /// dataset).
    pub chunks: Vec<ChunkSpan>,
    /// The choices among the options of datasets that jobs read by substitution (of each the first 65,536).
    pub choices: Vec<ChoiceChange>,
}

/// Records a run.
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

    /// Records a state that lasted from `from` for `seconds`.
    pub(super) fn add(&mut self, mut from: f64, mut seconds: f64, state: &Sample) {
        self.total.add(state, seconds);
        if state.running > 0.0 {
            self.busy += seconds;
        }
        // Double the length of all buckets until the end of the period fits.
        while from + seconds >= self.bucket * index_f64(SAMPLES_MAX) {
            self.halve();
        }
        while seconds > 0.0 {
            let at = index(from / self.bucket);
            let end = index_f64(at + 1) * self.bucket;
            // A minimum, because rounding could keep `from` before the bucket's end forever.
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

    pub(super) fn finish(self, jobs: Vec<JobOutcome>) -> Outcome {
        let mut jcts: Vec<f64> = jobs.iter().map(|job| job.jct_s).collect();
        // Quantiles need sorted times.
        jcts.sort_unstable_by(f64::total_cmp);
        let quantile = |part: f64| jcts[index(part * index_f64(jcts.len() - 1))];
        let first = jobs.iter().map(|job| job.submit_s).fold(f64::MAX, f64::min);
        let last = jobs.iter().map(|job| job.finish_s).fold(0.0, f64::max);
        let filled = self.buckets.iter().enumerate();
        let samples = filled
            .filter(|(_, (seconds, _))| *seconds > 0.0)
            .map(|(at, (seconds, sum))| sum.over(index_f64(at) * self.bucket, *seconds));
        let total = &self.total;
        // A run without jobs or without a cache has no meaningful ratio.
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
            probe_bytes: 0.0,
            read_bytes: total.throughput,
            steps: self.steps,
            jobs,
            samples: samples.collect(),
            chunks: Vec::new(),
            choices: Vec::new(),
        }
    }
}
