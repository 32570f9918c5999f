//! Budgets from what a policy wants: kept still where moving them gains nothing. Pure.
//!
//! Each byte of budget that goes from one dataset to another is evicted here and read from storage
//! again there, and is of use one epoch later. So budgets stay where they are unless the move is worth
//! more than [`GAIN_MIN`]; what was not given to anybody goes to datasets that nobody reads now, and
//! what they hold stays until somebody needs the room.

use super::super::registry::Dataset;
use crate::model::Decision;
use crate::num::{as_f64, whole};
use copperfs_policy::{Policy, Problem};

/// A move is made if it saves so much more remote IO (for the policies that maximise that), and not at
/// all if it moves less than this part of the cache.
const GAIN_MIN: f64 = 0.01;

/// What a policy's answer is laid on.
pub(super) struct Wanted<'a> {
    /// The datasets, in the problem's order.
    pub(super) datasets: &'a [Dataset],
    pub(super) policy: Policy,
    pub(super) problem: &'a Problem,
    /// The decision that holds until now.
    pub(super) before: &'a Decision,
}

impl Wanted<'_> {
    /// The budgets: `wanted`, or what there was.
    pub(super) fn settle(&self, wanted: &[f64]) -> Vec<u64> {
        let sizes = self.problem.datasets.iter().map(|dataset| dataset.size);
        let mut wanted: Vec<f64> = wanted
            .iter()
            .zip(sizes)
            .map(|(w, size)| w.min(size))
            .collect();
        let total = self.problem.totals.cache;
        let sum: f64 = wanted.iter().sum();
        if sum > total {
            wanted.iter_mut().for_each(|bytes| *bytes *= total / sum);
        }
        self.fill_idle(&mut wanted, total);
        let before = self.before();
        let settled = match before {
            Some(before) if self.stays(&before, &wanted, total) => grown(&before, &wanted, total),
            _ => wanted,
        };
        settled.into_iter().map(whole).collect()
    }

    /// What datasets have now, if that may be compared: the same policy over no less cache.
    fn before(&self) -> Option<Vec<f64>> {
        if self.before.policy != self.policy.name() {
            return None;
        }
        let had = |one: &Dataset| {
            let before = self.before.dataset(&one.spec.name);
            before
                .filter(|before| before.id == one.id)
                .map_or(0.0, |b| as_f64(b.budget))
        };
        Some(self.datasets.iter().map(had).collect())
    }

    /// What nobody was given goes to datasets that no job reads: first to those that have it already.
    fn fill_idle(&self, wanted: &mut [f64], total: f64) {
        let mut free = total - wanted.iter().sum::<f64>();
        let read = |at: usize| self.problem.jobs.iter().any(|job| job.dataset == at);
        let had = self.before().unwrap_or_default();
        for keeps in [true, false] {
            for (at, dataset) in self.problem.datasets.iter().enumerate() {
                let Some(bytes) = wanted.get_mut(at) else {
                    continue;
                };
                if dataset.budget.is_some() || read(at) {
                    continue;
                }
                let most = if keeps {
                    had.get(at).copied().unwrap_or(0.0).min(dataset.size)
                } else {
                    dataset.size
                };
                let more = (most - *bytes).clamp(0.0, free.max(0.0));
                // Whole, or not at all.
                if self.policy == Policy::Benefit && *bytes + more < dataset.size {
                    continue;
                }
                *bytes += more;
                free -= more;
            }
        }
    }

    /// Whether the move from `before` to `wanted` is not worth it.
    fn stays(&self, before: &[f64], wanted: &[f64], total: f64) -> bool {
        let fits = before.iter().sum::<f64>() <= total;
        let pairs = || self.problem.datasets.iter().zip(before).zip(wanted);
        // What was set by hand, or is smaller than it was, goes first.
        let binding = pairs().any(|((dataset, before), wanted)| {
            (dataset.budget.is_some() && (before - wanted).abs() >= 1.0) || *before > dataset.size
        });
        if !fits || binding {
            return false;
        }
        let moved: f64 = pairs()
            .map(|((_, before), wanted)| (before - wanted).max(0.0))
            .sum();
        if moved <= GAIN_MIN * total {
            return true;
        }
        let saves = |budgets: &[f64]| -> f64 {
            let jobs = self.problem.jobs.iter();
            jobs.filter_map(|job| {
                let size = self.problem.datasets.get(job.dataset)?.size;
                Some(job.ideal_rate * budgets.get(job.dataset)? / size)
            })
            .sum()
        };
        // Others maximise something else, or leave room unused: what they want is done.
        self.policy == Policy::Greedy && saves(wanted) <= saves(before) * (1.0 + GAIN_MIN)
    }
}

/// `before`, and where `wanted` is more, as much of that as is free.
fn grown(before: &[f64], wanted: &[f64], total: f64) -> Vec<f64> {
    let mut free = total - before.iter().sum::<f64>();
    let more = before.iter().zip(wanted).map(|(before, wanted)| {
        let more = (wanted - before).clamp(0.0, free.max(0.0));
        free -= more;
        before + more
    });
    more.collect()
}
