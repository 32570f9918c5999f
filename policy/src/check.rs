//! Validation of problems, and its messages.

use super::keep::Keep;
use super::problem::{Dataset, Job, Problem};
use super::times::Times;
use std::collections::HashMap;

/// The maximum number of jobs, and of datasets, in a problem: far more than a cluster runs at a
/// time, and policies still answer within a second.
pub const ENTRIES_MAX: usize = 100_000;

/// Why a problem is invalid. Its `Display` names the entry, the reason, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProblemError(pub(super) String);

pub(super) fn invalid<T>(reason: String) -> Result<T, ProblemError> {
    Err(ProblemError(reason))
}

/// Names an entry in messages.
pub(super) fn place(list: &str, at: usize, name: &str) -> String {
    format!("{list}[{at}] ({name:?})")
}

impl Problem {
    /// Checks that names are unique, sizes and ideal rates are positive, all amounts are finite and
    /// not negative, jobs read existing datasets and fit into the cluster, and manual settings do
    /// not exceed the totals.
    ///
    /// # Errors
    /// Describes the first violation.
    pub fn check(&self) -> Result<(), ProblemError> {
        let totals = self.totals;
        let without = "a cluster without GPUs runs no job";
        positive("totals: gpus", totals.gpus, without)?;
        amount("totals: cache", totals.cache)?;
        amount("totals: remote_io", totals.remote_io)?;
        if totals.cache <= 0.0 && totals.remote_io <= 0.0 {
            return invalid(
                "totals: cache and remote_io are both 0: no job could read a byte, so there is nothing \
                 to plan"
                    .to_owned(),
            );
        }
        let names = self.datasets.iter().map(|dataset| dataset.name.as_str());
        unique("dataset", names)?;
        for (at, dataset) in self.datasets.iter().enumerate() {
            let place = place("datasets", at, &dataset.name);
            let without = "a dataset without bytes has nothing to cache";
            positive(&format!("{place}: size"), dataset.size, without)?;
            if let Some(budget) = dataset.budget {
                let place = format!("{place}: budget");
                part(&place, budget, "the cluster's cache", totals.cache)?;
            }
            check_rule(&place, dataset)?;
        }
        unique("job", self.jobs.iter().map(|job| job.id.as_str()))?;
        for (at, job) in self.jobs.iter().enumerate() {
            self.check_job(&place("jobs", at, &job.id), job)?;
        }
        let budgets = self.datasets.iter().filter_map(|dataset| dataset.budget);
        within("budgets", budgets.sum(), totals.cache)?;
        let rates = self.jobs.iter().filter_map(|job| job.remote_io);
        within("rates of remote IO", rates.sum(), totals.remote_io)
    }

    /// Returns notes on valid settings with consequences that may surprise the reader of the
    /// allocation.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.totals.remote_io <= 0.0 {
            notes.push(
                "without remote IO only jobs whose whole dataset is cached already can run, and \
                 nothing new enters the cache"
                    .to_owned(),
            );
        }
        let wanted: f64 = self.jobs.iter().map(|job| job.gpus).sum();
        if wanted > self.totals.gpus {
            notes.push(format!(
                "the jobs want {wanted} GPUs and the cluster has {}: not all can run at once, but \
                 cache and remote IO are divided as if they did; list only those that run, or see \
                 \"order\" of the policy sjf",
                self.totals.gpus
            ));
        }
        notes
    }

    fn check_job(&self, place: &str, job: &Job) -> Result<(), ProblemError> {
        // A problem may be built in code, with any index.
        if job.dataset >= self.datasets.len() {
            return Err(no_such_dataset(place, &job.dataset.to_string(), self));
        }
        let named = |field: &str| format!("{place}: {field}");
        let without = "a job that never reads needs no cache and no remote IO; leave it out";
        positive(&named("ideal_rate"), job.ideal_rate, without)?;
        amount(&named("gpus"), job.gpus)?;
        let (wanted, available) = (job.gpus, self.totals.gpus);
        if wanted > available {
            return invalid(format!(
                "{place} wants {wanted} GPUs; the cluster has {available}"
            ));
        }
        if let Some(work) = job.work {
            amount(&named("work"), work)?;
        }
        if let Some(remote_io) = job.remote_io {
            let total = self.totals.remote_io;
            part(
                &named("remote_io"),
                remote_io,
                "the cluster's remote IO",
                total,
            )?;
        }
        if let Some(times) = job.measured {
            check_times(&named("measured"), times)?;
        }
        match job.hit_ratio {
            Some(ratio) if !(0.0..=1.0).contains(&ratio) => invalid(format!(
                "{place}: hit_ratio: {ratio} is not a ratio: it lies between 0 and 1"
            )),
            _ => Ok(()),
        }
    }
}

fn check_rule(place: &str, dataset: &Dataset) -> Result<(), ProblemError> {
    if let Some(chunk_size) = dataset.chunk_size {
        let without = "a chunk without bytes holds nothing";
        positive(&format!("{place}: chunk_size"), chunk_size, without)?;
    }
    if dataset.keep == Keep::None && dataset.budget.is_some_and(|budget| budget > 0.0) {
        return invalid(format!(
            "{place}: it has a budget, and its rule is to keep nothing: remove the budget, or write \
             \"keep\": \"uniform\""
        ));
    }
    Ok(())
}

fn check_times(place: &str, times: Times) -> Result<(), ProblemError> {
    let without = "no mini-batch takes no time; leave it out if it was not measured";
    positive(&format!("{place}: uncached_s"), times.uncached_s, without)?;
    for cached_s in times.cached() {
        positive(&format!("{place}: with a cache"), cached_s, without)?;
    }
    match times.part {
        Some(part) if !times.are_sound() => invalid(format!(
            "{place}: part_hits: {} is not a ratio: it lies between 0 and 1",
            part.hit_ratio
        )),
        _ => Ok(()),
    }
}

fn amount(place: &str, amount: f64) -> Result<(), ProblemError> {
    if !amount.is_finite() {
        return invalid(format!("{place}: {amount} is not a finite number"));
    }
    if amount < 0.0 {
        return invalid(format!("{place}: {amount} is negative"));
    }
    Ok(())
}

/// Checks an amount that must not be zero. `without` is the reason.
fn positive(place: &str, checked: f64, without: &str) -> Result<(), ProblemError> {
    amount(place, checked)?;
    if checked == 0.0 {
        return invalid(format!("{place}: it is 0: {without}"));
    }
    Ok(())
}

/// Checks a part of a total.
fn part(place: &str, part: f64, what: &str, total: f64) -> Result<(), ProblemError> {
    amount(place, part)?;
    if part > total {
        return invalid(format!("{place}: {part} is more than {what}, {total}"));
    }
    Ok(())
}

fn unique<'a>(
    kind: &str,
    names: impl ExactSizeIterator<Item = &'a str>,
) -> Result<(), ProblemError> {
    let count = names.len();
    if count > ENTRIES_MAX {
        return invalid(format!(
            "{count} {kind}s; at most {ENTRIES_MAX} make one problem"
        ));
    }
    let mut seen = HashMap::with_capacity(count);
    for (second, name) in names.enumerate() {
        if let Some(first) = seen.insert(name, second) {
            return invalid(format!(
                "{kind}s {first} and {second} have the same name, {name:?}: every {kind} needs its own"
            ));
        }
    }
    Ok(())
}

fn within(what: &str, sum: f64, total: f64) -> Result<(), ProblemError> {
    // Allow for the rounding of a sum.
    if sum <= total * (1.0 + 1e-9) {
        return Ok(());
    }
    let (sum, total) = (sum.round(), total.round());
    invalid(format!(
        "{what} set by hand add up to {sum}, and the total is {total}: lower one of them"
    ))
}

pub(super) fn no_such_dataset(place: &str, name: &str, problem: &Problem) -> ProblemError {
    let names = || problem.datasets.iter().map(|dataset| dataset.name.as_str());
    let (hint, known) = (hint(name, names()), listed(names()));
    ProblemError(format!(
        "{place}: there is no dataset {name:?}{hint}. The datasets: {known}"
    ))
}

/// Lists the first names, and the number of further names.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 10;
    let names: Vec<&str> = names.collect();
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 if names.is_empty() => "none".to_owned(),
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Returns ` (did you mean "…"?)` if a known name is similar.
pub(super) fn hint<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    const ALIKE: f64 = 0.75;
    let like = |known: &str| strsim::jaro_winkler(&name.to_lowercase(), &known.to_lowercase());
    known
        .map(|known| (like(known), known))
        .filter(|(like, _)| *like >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| format!(" (did you mean {known:?}?)"))
        .unwrap_or_default()
}
