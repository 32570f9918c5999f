//! The gain of each option of a dataset, from measured times and SiloDPerf. Pure.

use super::super::choice::Choice;
use super::super::performance::{hit_ratio, hit_ratio_together, silod_perf};
use super::super::problem::{DatasetShare, Job, Problem};
use super::super::shares::{Division, Holding, job_shares, per_dataset};
use super::super::times::{BENEFIT_MAX, Mode, Times};

/// The benefit of the whole dataset to a job of which nothing is known.
const ASSUMED_BENEFIT: f64 = 2.0;

/// The gain of an option over nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gain {
    /// `Σ (b - 1) · n`: the GPUs that would do the additional work without a cache.
    pub(super) gpus: f64,
    /// Remote IO saved at ideal speed, in bytes per second.
    pub(super) saved: f64,
}

/// What the options of a problem are worth.
#[derive(Debug)]
pub(super) struct Options<'a> {
    problem: &'a Problem,
    /// The indices of the jobs that read each dataset.
    readers: Vec<Vec<usize>>,
    /// The number of jobs on each dataset that chunks serve.
    together: Vec<f64>,
    /// The remote IO of each job if nothing were cached, in bytes per second. The gain of an option
    /// must not depend on the options of other datasets, or the greedy choice would have no order.
    remote_io: Vec<f64>,
}

impl<'a> Options<'a> {
    pub(super) fn new(problem: &'a Problem) -> Self {
        let mut readers = vec![Vec::new(); problem.datasets.len()];
        for (at, job) in problem.jobs.iter().enumerate() {
            readers[job.dataset].push(at);
        }
        let misses = vec![Holding::MISSES; problem.jobs.len()];
        let uncached = job_shares(problem, &misses, Division::Even);
        Self {
            problem,
            readers,
            together: per_dataset(problem, |job| f64::from(u8::from(job.uses_chunks()))),
            remote_io: uncached.into_iter().map(|share| share.remote_io).collect(),
        }
    }

    /// Returns the benefit `b` of a job if its dataset has `share` and all of it is cached: from 1 to
    /// [`BENEFIT_MAX`].
    pub(super) fn benefit(&self, at: usize, share: DatasetShare) -> f64 {
        let job = &self.problem.jobs[at];
        let hits = self.hit_ratio(job, share);
        let together = hit_ratio_together(self.together[job.dataset]);
        let known = job
            .measured
            .and_then(|times| known(&times, share.choice, together));
        benefit(self.ideal_rate(at), self.remote_io[at], hits, known)
    }

    /// Returns the ideal rate of a job. If it is not known, it follows from the measured times, and without them from
    /// [`ASSUMED_BENEFIT`]. The most that a job could reach says nothing of its benefit, and would give the smallest
    /// dataset all that it can use.
    fn ideal_rate(&self, at: usize) -> f64 {
        let job = &self.problem.jobs[at];
        if !job.is_rate_assumed {
            return job.ideal_rate;
        }
        let of = |times: &Times| {
            times
                .cached()
                .map(|cached_s| times.benefit(cached_s))
                .reduce(f64::max)
        };
        let measured = job.measured.as_ref().and_then(of);
        let uncached = silod_perf(job.ideal_rate, self.remote_io[at], 0.0);
        match uncached > 0.0 {
            true => job
                .ideal_rate
                .min(uncached * measured.unwrap_or(ASSUMED_BENEFIT)),
            false => job.ideal_rate,
        }
    }

    /// Returns the gain of a dataset's option over nothing.
    pub(super) fn gain(&self, dataset: usize, share: DatasetShare) -> Gain {
        let mut gain = Gain {
            gpus: 0.0,
            saved: 0.0,
        };
        for &at in &self.readers[dataset] {
            let job = &self.problem.jobs[at];
            gain.gpus += gain_in_gpus(job, self.benefit(at, share));
            gain.saved += self.ideal_rate(at) * self.hit_ratio(job, share);
        }
        gain
    }

    /// Returns the planned hit ratio of a job. A probe is short, so its job counts as cached.
    fn hit_ratio(&self, job: &Job, share: DatasetShare) -> f64 {
        match share.choice {
            _ if job.mode == Mode::Uncached => 0.0,
            Choice::None => 0.0,
            Choice::Chunks if job.substitutes => hit_ratio_together(self.together[job.dataset]),
            Choice::Chunks => 0.0,
            Choice::Whole | Choice::Uniform => {
                hit_ratio(share.cache, self.problem.datasets[job.dataset].size)
            }
        }
    }
}

/// A measured benefit, and the hit ratio with which it was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Known {
    benefit: f64,
    hits: f64,
}

/// Returns the measurement that tells most about a choice. `together` is the hit ratio of jobs that
/// read chunks.
fn known(times: &Times, choice: Choice, together: f64) -> Option<Known> {
    let known = |cached_s, hits| Known {
        benefit: times.benefit(cached_s),
        hits,
    };
    let whole = || times.whole_s.map(|cached_s| known(cached_s, 1.0));
    let chunks = || times.chunks_s.map(|cached_s| known(cached_s, together));
    let part = || times.part.map(|part| known(part.cached_s, part.hit_ratio));
    match choice {
        Choice::Whole => whole().or_else(chunks).or_else(part),
        Choice::Chunks => chunks().or_else(whole).or_else(part),
        Choice::Uniform | Choice::None => part().or_else(whole).or_else(chunks),
    }
}

/// Returns the benefit with a hit ratio. `remote_io` is that of the job without a cache, in bytes per
/// second.
///
/// SiloDPerf tells how the rate depends on the hits, and the measurement scales it: with the hit
/// ratio of the measurement the benefit is the measured one. If the job was slower than SiloDPerf
/// tells, its misses take longer than their bytes alone (a request waits, or another job that
/// fetches the item). That part shrinks with the misses, so a job without misses reads at its ideal
/// rate.
fn benefit(ideal_rate: f64, remote_io: f64, hits: f64, known: Option<Known>) -> f64 {
    if hits <= 0.0 {
        return 1.0;
    }
    let rate = |hits: f64| silod_perf(ideal_rate, remote_io, hits);
    if rate(0.0) <= 0.0 {
        // Without remote IO only a job whose whole dataset is cached runs.
        return if rate(hits) > 0.0 { BENEFIT_MAX } else { 1.0 };
    }
    let modelled = |hits: f64| rate(hits) / rate(0.0);
    let scale = known.map_or(1.0, |known| {
        let scale = known.benefit / modelled(known.hits);
        if scale < 1.0 && hits > known.hits {
            1.0 - (1.0 - scale) * (1.0 - hits) / (1.0 - known.hits)
        } else {
            scale
        }
    });
    (modelled(hits) * scale).clamp(1.0, BENEFIT_MAX)
}

/// Returns the GPUs of a job (`n`). A job on no GPU counts as one, because its work counts too.
pub(super) fn gpus(job: &Job) -> f64 {
    if job.gpus > 0.0 { job.gpus } else { 1.0 }
}

/// Returns the GPUs that a job gains with a benefit, `(b - 1) · n`.
pub(super) fn gain_in_gpus(job: &Job, benefit: f64) -> f64 {
    (benefit - 1.0) * gpus(job)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::job;

    /// The benefit of a job that reads 100 bytes/s at best, and 20 without a cache.
    fn measured(hits: f64, known: Option<(f64, f64)>) -> f64 {
        let known = known.map(|(benefit, hits)| Known { benefit, hits });
        benefit(100.0, 20.0, hits, known)
    }

    #[test]
    fn without_measurements_the_model_decides() {
        assert_eq!(measured(0.0, None), 1.0);
        assert_eq!(measured(0.5, None), 2.0);
        assert_eq!(measured(1.0, None), 5.0);
        assert_eq!(
            benefit(100.0, 100.0, 1.0, None),
            1.0,
            "not bound by storage"
        );
    }

    #[test]
    fn measurements_scale_the_model() {
        // With half of the look-ups hit the model says 2, with all of them 5.
        assert_eq!(measured(0.5, Some((3.0, 0.5))), 3.0);
        assert_eq!(measured(1.0, Some((3.0, 0.5))), 7.5);
        assert_eq!(measured(0.5, Some((2.5, 1.0))), 1.0);
        assert_eq!(measured(0.75, Some((2.5, 1.0))), 2.0);
        // No hits are no benefit, whatever was measured.
        assert_eq!(measured(0.0, Some((3.0, 0.5))), 1.0);
    }

    #[test]
    fn slow_misses_slow_nothing_down_when_all_hits() {
        // The model says 4 with a hit ratio of 0.75.
        assert_eq!(measured(0.75, Some((2.0, 0.75))), 2.0);
        assert_eq!(measured(1.0, Some((2.0, 0.75))), 5.0);
        assert_eq!(measured(0.875, Some((2.0, 0.75))), 5.0 * 0.75);
    }

    #[test]
    fn the_option_itself_tells_most() {
        let times = Times {
            uncached_s: 4.0,
            whole_s: Some(1.0),
            chunks_s: Some(2.0),
            part: None,
        };
        let of = |times: &Times, choice| {
            known(times, choice, 0.75).map(|known| (known.benefit, known.hits))
        };
        assert_eq!(of(&times, Choice::Whole), Some((4.0, 1.0)));
        assert_eq!(of(&times, Choice::Chunks), Some((2.0, 0.75)));
        let times = Times {
            whole_s: None,
            ..times
        };
        assert_eq!(of(&times, Choice::Whole), Some((2.0, 0.75)));
        assert_eq!(of(&times, Choice::Uniform), Some((2.0, 0.75)));
        let times = Times {
            chunks_s: None,
            ..times
        };
        assert_eq!(of(&times, Choice::Chunks), None);
    }

    #[test]
    fn without_remote_io_only_whole_datasets_help() {
        assert_eq!(benefit(100.0, 0.0, 0.9, None), 1.0);
        assert_eq!(benefit(100.0, 0.0, 1.0, None), BENEFIT_MAX);
    }

    #[test]
    fn a_job_without_gpus_counts_as_one() {
        assert_eq!(gain_in_gpus(&job("j", 0, 1.0, 0.0), 3.0), 2.0);
        assert_eq!(gain_in_gpus(&job("j", 0, 1.0, 4.0), 3.0), 8.0);
    }
}
