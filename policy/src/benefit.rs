//! Quiver's policy: each dataset whole, in two chunks, or not at all, by benefit over cost (section
//! 5.3).
//!
//! The benefit of an option is how much faster the dataset's jobs run with it (`options.rs`). It
//! follows from times that jobs report; [`Probing`] decides when a job runs without a cache so that
//! they can be compared. The options compete for the cache greedily (`choose.rs`). Remote IO is
//! divided max-min, as by the other policies.

mod choose;
mod off;
mod options;
pub mod probing;
pub mod report;

pub use probing::{JobState, PROBE_BATCHES, Probing};
pub use report::{Report, ReportError};

use super::problem::{Allocation, Problem};
use super::shares::{Division, holdings_of, job_shares, ranked};
use options::Options;

/// Quiver's policy (section 5.3).
///
/// Input: as for the other policies; of the jobs also GPUs (0 counts as 1), measured times, modes,
/// and whether they substitute; of the datasets the rule and the size of a chunk. Output: cache in
/// bytes with the choice of each dataset, remote IO in bytes/s.
///
/// The benefit of job `i` under an option is `b_i = t_m / t_h`, its time per mini-batch without a
/// cache divided by that with the option. With nothing cached it is 1. A dataset's option is worth
/// `G = Σ b_i · n_i` over its jobs, with `n_i` GPUs each. The options:
///
/// - the whole dataset, at the cost of its size;
/// - two chunks, at the cost of [`Dataset::two_chunks`](super::Dataset::two_chunks), which are worth
///   something only to jobs that substitute;
/// - nothing.
///
/// They are taken in descending order of gain over cost, as far as they fit. The whole dataset may
/// later take the place of its chunks, if the difference is worth it. Among options without a gain
/// the one that saves most remote IO for each byte comes first: without measurements a gain may be
/// hidden by an estimate, and idle cache is wasted. Names break ties.
///
/// A job whose measured times show no gain within 5 % is switched off: it becomes
/// [`Mode::Uncached`](super::Mode::Uncached), and a dataset that only such jobs read gets no cache.
/// This holds as far as storage can serve such jobs all at once (`off.rs`). Settings by hand come
/// first. A dataset whose rule is `uniform` competes with all its bytes; if it does not fit, it gets
/// what all others leave.
///
/// Objective: `G` over all jobs, the number of GPUs that would do the same work without a cache.
/// More cache never lowers it by more than rounding, except where a dataset is `uniform` by hand,
/// because a dataset that fits now may take the room of a part that was worth more. A job's score is
/// its `b_i`. Jobs are ordered by the GPUs that they gain.
#[must_use]
pub fn benefit(problem: &Problem) -> Allocation {
    let problem = &*off::with_jobs_switched_off(problem);
    let options = Options::new(problem);
    let datasets = choose::choose(problem, &options);
    let holdings = holdings_of(problem, &datasets);
    let mut jobs = job_shares(problem, &holdings, Division::Even);
    let benefits: Vec<f64> = (0..jobs.len())
        .map(|at| options.benefit(at, datasets[problem.jobs[at].dataset]))
        .collect();
    // `ranked` sorts ascending.
    let gained = problem.jobs.iter().zip(&benefits);
    let gained: Vec<Option<f64>> = gained
        .map(|(job, benefit)| Some(-options::gain_in_gpus(job, *benefit)))
        .collect();
    for (rank, at) in ranked(problem, &gained).into_iter().enumerate() {
        jobs[at].order = rank;
        jobs[at].score = Some(benefits[at]);
    }
    let worth = problem.jobs.iter().zip(&benefits);
    Allocation {
        objective: worth
            .map(|(job, benefit)| benefit * options::gpus(job))
            .sum(),
        datasets,
        jobs,
    }
}

#[cfg(test)]
mod tests;
