//! Budgets from a policy's answer, without moves that gain nothing. Pure.
//!
//! A byte of budget that moves to another dataset is evicted, read from storage for the new
//! dataset, and useful one epoch later. So budgets stay as they are unless the move gains more than
//! [`GAIN_MIN`]. Cache that the policy leaves over goes to datasets without readers, which keep
//! their content until another dataset needs the room.

use super::pipelines;
use crate::model::{DatasetDecision, Decision};
use crate::num::{as_f64, whole};
use copperfs_policy::{Choice, Keep, Policy, Problem};

/// The minimum relative gain in saved remote IO for a move, and the minimum fraction of the cache that is
/// worth moving.
const GAIN_MIN: f64 = 0.01;

/// The context of a policy's answer.
pub(super) struct BudgetPlan<'a> {
    /// The datasets, in the problem's order.
    pub(super) datasets: &'a [DatasetDecision],
    pub(super) policy: Policy,
    pub(super) problem: &'a Problem,
    /// The current decision.
    pub(super) before: &'a Decision,
    /// No budget moves without need: too little is known of the jobs.
    pub(super) holds: bool,
    /// What the answer of each dataset holds.
    pub(super) choices: &'a [Choice],
}

impl BudgetPlan<'_> {
    /// Returns the budgets in bytes: the policy's answer `wanted`, or the current budgets.
    pub(super) fn settle(&self, wanted: &[f64]) -> Vec<u64> {
        let datasets = wanted.iter().zip(&self.problem.datasets);
        let mut wanted: Vec<f64> = datasets
            .map(|(wanted, dataset)| wanted.min(dataset.size))
            .collect();
        let total = self.problem.totals.cache;
        let sum: f64 = wanted.iter().sum();
        if sum > total {
            wanted.iter_mut().for_each(|bytes| *bytes *= total / sum);
        }
        let before = self.before();
        self.fill_idle(&mut wanted, before.as_deref(), total);
        let before = before.filter(|before| self.stays(before, &wanted, total));
        let settled = before.map(|before| grown(&before, &wanted, total));
        settled.unwrap_or(wanted).into_iter().map(whole).collect()
    }

    /// Returns the current budgets, if the same policy made them.
    fn before(&self) -> Option<Vec<f64>> {
        if self.before.policy != self.policy.name() {
            return None;
        }
        let had = |one: &DatasetDecision| {
            let before = self.before.dataset(&one.name);
            let before = before.filter(|before| before.id == one.id);
            before.map_or(0.0, |before| as_f64(before.budget))
        };
        Some(self.datasets.iter().map(had).collect())
    }

    /// Allocates free cache to datasets without readers, first to those that have it already.
    fn fill_idle(&self, wanted: &mut [f64], before: Option<&[f64]>, total: f64) {
        let mut free = total - wanted.iter().sum::<f64>();
        let read = |at: usize| self.problem.jobs.iter().any(|job| job.dataset == at);
        for keeps in [true, false] {
            for (at, bytes) in wanted.iter_mut().enumerate() {
                let dataset = &self.problem.datasets[at];
                let had = before.map_or(0.0, |before| before[at]);
                let by_count = pipelines::decides(&self.datasets[at]);
                if !by_count && (dataset.budget.is_some() || read(at)) {
                    continue;
                }
                let useful = match dataset.keep {
                    Keep::Chunks => dataset.two_chunks(),
                    // It has room for the items with references. It may keep the others for the next pipeline.
                    Keep::References => had.min(dataset.size),
                    Keep::Auto | Keep::Uniform | Keep::None => dataset.size,
                };
                let most = if keeps { had.min(useful) } else { useful };
                let more = (most - *bytes).clamp(0.0, free.max(0.0));
                // This policy caches a dataset whole or not at all.
                if self.policy == Policy::Benefit && !by_count && *bytes + more < useful {
                    continue;
                }
                *bytes += more;
                free -= more;
            }
        }
    }

    /// Returns whether the move from `before` to `wanted` gains too little.
    fn stays(&self, before: &[f64], wanted: &[f64], total: f64) -> bool {
        let fits = before.iter().sum::<f64>() <= total;
        let pairs = || self.problem.datasets.iter().zip(before).zip(wanted);
        // A manual budget, chunks, and a dataset that has become smaller take effect in any case.
        let mut all = pairs().zip(self.choices).enumerate();
        let binding = all.any(|(at, (((dataset, before), wanted), choice))| {
            let is_exact = dataset.budget.is_some() || *choice == Choice::Chunks;
            let moved = match pipelines::decides(&self.datasets[at]) {
                true => wanted - before,
                false => (before - wanted).abs(),
            };
            (is_exact && moved >= 1.0) || *before > dataset.size
        });
        if !fits || binding {
            return false;
        }
        if self.holds {
            return true;
        }
        let moved: f64 = pairs()
            .map(|((_, before), wanted)| (before - wanted).max(0.0))
            .sum();
        if moved <= GAIN_MIN * total {
            return true;
        }
        let saves = |budgets: &[f64]| -> f64 {
            let size = |at: usize| self.problem.datasets[at].size;
            let jobs = self.problem.jobs.iter();
            jobs.map(|job| job.ideal_rate * budgets[job.dataset] / size(job.dataset))
                .sum()
        };
        // Only this policy maximises the saved remote IO. The answers of the others are taken as they are.
        self.policy == Policy::Greedy && saves(wanted) <= saves(before) * (1.0 + GAIN_MIN)
    }
}

/// Returns `before`, raised towards `wanted` as far as there is free cache.
fn grown(before: &[f64], wanted: &[f64], total: f64) -> Vec<f64> {
    let mut free = total - before.iter().sum::<f64>();
    let more = before.iter().zip(wanted).map(|(before, wanted)| {
        let more = (wanted - before).clamp(0.0, free.max(0.0));
        free -= more;
        before + more
    });
    more.collect()
}
