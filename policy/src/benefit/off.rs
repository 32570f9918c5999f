//! Which jobs are switched off, because a cache does not speed them up. Pure.
//!
//! A job is measured while the others have their caches, so there may be remote IO enough for one job that reads
//! without a cache, and not for several. If each were switched off by its own measurement, all of them would be
//! slow, would be measured as slow, and would have their caches back, for ever.

use super::super::problem::{Job, Problem};
use super::super::times::{Mode, Times};
use std::borrow::Cow;

/// The part of remote IO that all jobs may need together when jobs are switched off. Beyond it storage would be
/// busy all the time, and delay those that read through chunks.
const BUSY_MAX: f64 = 0.75;

/// Returns the problem with the jobs whose measured times show no gain in [`Mode::Uncached`], as far as remote IO
/// suffices for all of them together. The others are in [`Mode::Cached`], or still being measured. Jobs that
/// need least come first.
pub(super) fn with_jobs_switched_off(problem: &Problem) -> Cow<'_, Problem> {
    let gains_nothing = |job: &Job| job.measured.as_ref().is_some_and(Times::show_no_gain);
    let candidates = problem.jobs.iter().enumerate();
    let mut candidates: Vec<usize> = candidates
        .filter(|(_, job)| gains_nothing(job))
        .map(|(at, _)| at)
        .collect();
    if candidates.is_empty() {
        return Cow::Borrowed(problem);
    }
    let mut problem = problem.clone();
    for &at in &candidates {
        let job = &mut problem.jobs[at];
        job.mode = match job.mode {
            Mode::Uncached => Mode::Cached,
            mode => mode,
        };
    }
    candidates.sort_by(|&a, &b| {
        let (a, b) = (&problem.jobs[a], &problem.jobs[b]);
        let by_rate = a.ideal_rate.total_cmp(&b.ideal_rate);
        by_rate.then_with(|| a.id.cmp(&b.id))
    });
    for at in candidates {
        let before = std::mem::replace(&mut problem.jobs[at].mode, Mode::Uncached);
        if least_remote_io(&problem) > BUSY_MAX * problem.totals.remote_io {
            problem.jobs[at].mode = before;
        }
    }
    Cow::Owned(problem)
}

/// Returns the remote IO that all jobs need at least, in bytes per second: those without a cache all that they
/// read, those that substitute together what the fastest of them reads, and others nothing, because all of
/// their dataset may be cached.
fn least_remote_io(problem: &Problem) -> f64 {
    let mut together = vec![0.0_f64; problem.datasets.len()];
    let mut alone = 0.0;
    for job in &problem.jobs {
        match job.mode {
            Mode::Uncached => alone += job.ideal_rate,
            Mode::Cached | Mode::Probe if job.substitutes => {
                let fastest = &mut together[job.dataset];
                *fastest = fastest.max(job.ideal_rate);
            }
            Mode::Cached | Mode::Probe => {}
        }
    }
    alone + together.into_iter().sum::<f64>()
}
