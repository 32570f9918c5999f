//! What makes a problem senseless, and how that is said.

use super::problem::{Job, Problem};
use std::collections::HashMap;

/// Jobs and datasets of one problem at most: far more than a cluster runs at a time, and policies
/// still answer within a second.
pub const ENTRIES_MAX: usize = 100_000;

/// Why a problem is refused. Its `Display` names the entry, the reason, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProblemError {
    /// The text is not JSON.
    #[error("the problem is not JSON: {0}")]
    Syntax(String),
    /// Something else than an object, a list, a text or a number where one belongs.
    #[error("{place} is {found}; it must be {wanted}")]
    Kind {
        /// Where.
        place: String,
        /// What is there.
        found: &'static str,
        /// What belongs there.
        wanted: &'static str,
    },
    /// A field that does not exist: a slip of the pen would otherwise change the answer silently.
    #[error("{place}: there is no field {field:?}{hint}. The fields: {known}")]
    UnknownField {
        /// Where.
        place: String,
        /// Its name.
        field: String,
        /// A name that is much like it, as a question, or nothing.
        hint: String,
        /// All names.
        known: String,
    },
    /// A field that must be there.
    #[error("{place}: {field:?} is missing. {why}")]
    Missing {
        /// Where.
        place: String,
        /// Its name.
        field: &'static str,
        /// What it says and how to write it.
        why: &'static str,
    },
    /// An amount that cannot be.
    #[error("{place}: {why}")]
    Amount {
        /// Where, with the field.
        place: String,
        /// What is wrong, and what to write instead.
        why: String,
    },
    /// A name twice.
    #[error(
        "{kind}s {first} and {second} have the same name, {name:?}: every {kind} needs its own"
    )]
    Duplicate {
        /// `dataset` or `job`.
        kind: &'static str,
        /// The name.
        name: String,
        /// The place in the list of the first, from 0.
        first: usize,
        /// And of the second.
        second: usize,
    },
    /// A job on a dataset that is not in the list.
    #[error("{place}: there is no dataset {name:?}{hint}. The datasets: {known}")]
    NoSuchDataset {
        /// Which job.
        place: String,
        /// What it names.
        name: String,
        /// A name that is much like it, as a question, or nothing.
        hint: String,
        /// The first names of the list.
        known: String,
    },
    /// A job that can never run.
    #[error("{place} wants {wanted} GPUs; the cluster has {available}")]
    TooManyGpus {
        /// Which job.
        place: String,
        /// What it wants.
        wanted: String,
        /// What there is.
        available: String,
    },
    /// More set by hand than there is.
    #[error(
        "{what} set by hand add up to {sum:.0}, and the total is {total:.0}: lower one of them"
    )]
    OverTotal {
        /// Which: budgets, or rates.
        what: &'static str,
        /// What they add up to, whole bytes.
        sum: u128,
        /// What there is.
        total: u128,
    },
    /// Neither cache nor remote IO.
    #[error(
        "totals: cache and remote_io are both 0: no job could read a byte, so there is nothing to plan"
    )]
    Nothing,
    /// A list that is too long.
    #[error("{count} {kind}s; at most {ENTRIES_MAX} make one problem")]
    TooMany {
        /// `dataset` or `job`.
        kind: &'static str,
        /// How many.
        count: usize,
    },
}

/// How an entry is called in messages.
pub(super) fn place(list: &str, at: usize, name: &str) -> String {
    format!("{list}[{at}] ({name:?})")
}

impl Problem {
    /// Whether the problem makes sense: names are unique, sizes and ideal rates are above zero, all
    /// amounts are finite and not negative, jobs read datasets that exist and fit into the cluster,
    /// and what is set by hand does not exceed the totals.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn check(&self) -> Result<(), ProblemError> {
        self.check_totals()?;
        self.check_datasets()?;
        self.check_jobs()?;
        let budgets = self.datasets.iter().filter_map(|dataset| dataset.budget);
        within("budgets", budgets.sum(), self.totals.cache)?;
        let rates = self.jobs.iter().filter_map(|job| job.remote_io);
        within("rates of remote IO", rates.sum(), self.totals.remote_io)
    }

    /// What is no mistake but has consequences that a reader of the answer should know.
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

    fn check_jobs(&self) -> Result<(), ProblemError> {
        unique("job", self.jobs.iter().map(|job| job.id.as_str()))?;
        for (at, job) in self.jobs.iter().enumerate() {
            self.check_job(&place("jobs", at, &job.id), job)?;
        }
        Ok(())
    }

    fn check_job(&self, place: &str, job: &Job) -> Result<(), ProblemError> {
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

/// What zero means for an amount.
#[derive(Clone, Copy)]
enum Zero {
    Allowed,
    /// And why.
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
    // As much more as rounding makes of a sum.
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

/// The first names, and how many more there are.
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

/// `; did you mean "…"?` if a name is much like it.
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
