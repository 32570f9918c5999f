//! Validation of problems, and its messages.

use super::problem::{Job, Problem};
use std::collections::HashMap;

/// The maximum number of jobs, and of datasets, in a problem: far more than a cluster runs at a
/// time, and policies still answer within a second.
pub const ENTRIES_MAX: usize = 100_000;

/// Why a problem is invalid. Its `Display` names the entry, the reason, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProblemError {
    /// The text is not JSON.
    #[error("the problem is not JSON: {0}")]
    Syntax(String),
    /// A value has the wrong JSON type.
    #[error("{place} is {found}; it must be {wanted}")]
    Kind {
        /// The name of the value.
        place: String,
        /// The type found.
        found: &'static str,
        /// The type expected.
        wanted: &'static str,
    },
    /// An unknown field. A misspelt field would otherwise change the result silently.
    #[error("{place}: there is no field {field:?}{hint}. The fields: {known}")]
    UnknownField {
        /// The name of the object.
        place: String,
        /// The name of the field.
        field: String,
        /// A similar name as a question, or nothing.
        hint: String,
        /// The names of all fields.
        known: String,
    },
    /// A required field is missing.
    #[error("{place}: {field:?} is missing. {why}")]
    Missing {
        /// The name of the object.
        place: String,
        /// The name of the field.
        field: &'static str,
        /// The meaning of the field, and how to write it.
        why: &'static str,
    },
    /// An amount is invalid.
    #[error("{place}: {why}")]
    Amount {
        /// The name of the object and the field.
        place: String,
        /// The reason, and what to write instead.
        why: String,
    },
    /// A name occurs twice.
    #[error(
        "{kind}s {first} and {second} have the same name, {name:?}: every {kind} needs its own"
    )]
    Duplicate {
        /// `dataset` or `job`.
        kind: &'static str,
        /// The name.
        name: String,
        /// The index of the first entry.
        first: usize,
        /// The index of the second entry.
        second: usize,
    },
    /// A job's dataset is not in the list.
    #[error("{place}: there is no dataset {name:?}{hint}. The datasets: {known}")]
    NoSuchDataset {
        /// The name of the job.
        place: String,
        /// The name of the dataset.
        name: String,
        /// A similar name as a question, or nothing.
        hint: String,
        /// The first names of the list.
        known: String,
    },
    /// A job can never run.
    #[error("{place} wants {wanted} GPUs; the cluster has {available}")]
    TooManyGpus {
        /// The name of the job.
        place: String,
        /// The GPUs that it needs.
        wanted: String,
        /// The GPUs of the cluster.
        available: String,
    },
    /// Manual settings exceed a total.
    #[error(
        "{what} set by hand add up to {sum:.0}, and the total is {total:.0}: lower one of them"
    )]
    OverTotal {
        /// Budgets or rates.
        what: &'static str,
        /// Their sum in whole bytes.
        sum: u128,
        /// The total in whole bytes.
        total: u128,
    },
    /// There is neither cache nor remote IO.
    #[error(
        "totals: cache and remote_io are both 0: no job could read a byte, so there is nothing to plan"
    )]
    Nothing,
    /// A list is too long.
    #[error("{count} {kind}s; at most {ENTRIES_MAX} make one problem")]
    TooMany {
        /// `dataset` or `job`.
        kind: &'static str,
        /// The number of entries.
        count: usize,
    },
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
        self.check_totals()?;
        self.check_datasets()?;
        unique("job", self.jobs.iter().map(|job| job.id.as_str()))?;
        for (at, job) in self.jobs.iter().enumerate() {
            self.check_job(&place("jobs", at, &job.id), job)?;
        }
        let budgets = self.datasets.iter().filter_map(|dataset| dataset.budget);
        within("budgets", budgets.sum(), self.totals.cache)?;
        let rates = self.jobs.iter().filter_map(|job| job.remote_io);
        within("rates of remote IO", rates.sum(), self.totals.remote_io)
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

    fn check_totals(&self) -> Result<(), ProblemError> {
        let totals = self.totals;
        amount(
            "totals: gpus",
            totals.gpus,
            Zero::Refused("a cluster without GPUs runs no job"),
        )?;
        amount("totals: cache", totals.cache, Zero::Allowed)?;
        amount("totals: remote_io", totals.remote_io, Zero::Allowed)?;
        if totals.cache <= 0.0 && totals.remote_io <= 0.0 {
            return Err(ProblemError::Nothing);
        }
        Ok(())
    }

    fn check_datasets(&self) -> Result<(), ProblemError> {
        let names = self.datasets.iter().map(|dataset| dataset.name.as_str());
        unique("dataset", names)?;
        for (at, dataset) in self.datasets.iter().enumerate() {
            let place = place("datasets", at, &dataset.name);
            amount(
                &format!("{place}: size"),
                dataset.size,
                Zero::Refused("a dataset without bytes has nothing to cache"),
            )?;
            if let Some(budget) = dataset.budget {
                let place = format!("{place}: budget");
                amount(&place, budget, Zero::Allowed)?;
                at_most(place, budget, "the cluster's cache", self.totals.cache)?;
            }
        }
        Ok(())
    }

    fn check_job(&self, place: &str, job: &Job) -> Result<(), ProblemError> {
        // A problem may be built in code, with any index.
        if job.dataset >= self.datasets.len() {
            return Err(no_such_dataset(place, &job.dataset.to_string(), self));
        }
        let named = |field: &str| format!("{place}: {field}");
        amount(
            &named("ideal_rate"),
            job.ideal_rate,
            Zero::Refused("a job that never reads needs no cache and no remote IO; leave it out"),
        )?;
        amount(&named("gpus"), job.gpus, Zero::Allowed)?;
        if job.gpus > self.totals.gpus {
            return Err(ProblemError::TooManyGpus {
                place: place.to_owned(),
                wanted: job.gpus.to_string(),
                available: self.totals.gpus.to_string(),
            });
        }
        if let Some(work) = job.work {
            amount(&named("work"), work, Zero::Allowed)?;
        }
        if let Some(remote_io) = job.remote_io {
            let place = named("remote_io");
            amount(&place, remote_io, Zero::Allowed)?;
            at_most(
                place,
                remote_io,
                "the cluster's remote IO",
                self.totals.remote_io,
            )?;
        }
        match job.hit_ratio {
            Some(ratio) if !(0.0..=1.0).contains(&ratio) => Err(ProblemError::Amount {
                place: named("hit_ratio"),
                why: format!("{ratio} is not a ratio: it lies between 0 and 1"),
            }),
            _ => Ok(()),
        }
    }
}

/// Whether an amount may be zero.
#[derive(Clone, Copy)]
enum Zero {
    Allowed,
    /// Not allowed, for this reason.
    Refused(&'static str),
}

fn amount(place: &str, amount: f64, zero: Zero) -> Result<(), ProblemError> {
    let why = match zero {
        _ if !amount.is_finite() => format!("{amount} is not a finite number"),
        _ if amount < 0.0 => format!("{amount} is negative"),
        Zero::Refused(why) if amount == 0.0 => format!("it is 0: {why}"),
        _ => return Ok(()),
    };
    Err(ProblemError::Amount {
        place: place.to_owned(),
        why,
    })
}

fn at_most(place: String, amount: f64, what: &str, total: f64) -> Result<(), ProblemError> {
    if amount <= total {
        return Ok(());
    }
    let why = format!("{amount} is more than {what}, {total}");
    Err(ProblemError::Amount { place, why })
}

fn unique<'a>(
    kind: &'static str,
    names: impl ExactSizeIterator<Item = &'a str>,
) -> Result<(), ProblemError> {
    let count = names.len();
    if count > ENTRIES_MAX {
        return Err(ProblemError::TooMany { kind, count });
    }
    let mut seen = HashMap::with_capacity(count);
    for (second, name) in names.enumerate() {
        if let Some(first) = seen.insert(name, second) {
            return Err(ProblemError::Duplicate {
                kind,
                name: name.to_owned(),
                first,
                second,
            });
        }
    }
    Ok(())
}

fn within(what: &'static str, sum: f64, total: f64) -> Result<(), ProblemError> {
    // Allow for the rounding of a sum.
    if sum <= total * (1.0 + 1e-9) {
        return Ok(());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "for a message; both were found finite and not negative"
    )]
    let whole = |amount: f64| amount.round() as u128;
    Err(ProblemError::OverTotal {
        what,
        sum: whole(sum),
        total: whole(total),
    })
}

pub(super) fn no_such_dataset(place: &str, name: &str, problem: &Problem) -> ProblemError {
    let names = || problem.datasets.iter().map(|dataset| dataset.name.as_str());
    ProblemError::NoSuchDataset {
        place: place.to_owned(),
        name: name.to_owned(),
        hint: hint(name, names()),
        known: listed(names()),
    }
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
