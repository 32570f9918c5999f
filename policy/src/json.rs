//! Problems and allocations as JSON, for `copperfs plan` and the HTTP interface.
//!
//! A problem:
//!
//! ```json
//! {"totals":   {"gpus": 8, "cache": "2TB", "remote_io": "200MB/s"},
//!  "datasets": [{"name": "A", "size": "1.3TB"}],
//!  "jobs":     [{"id": "r0", "dataset": "A", "ideal_rate": "114MB/s", "gpus": 1, "work": "16.9TB"}]}
//! ```
//!
//! Numbers are bytes and bytes per second; strings have a unit (TB decimal, TiB binary). Optional
//! are a dataset's `budget`, and a job's `gpus` (1), `work`, `hit_ratio` and `remote_io`, as in
//! [`problem`](super::problem). An allocation:
//!
//! ```json
//! {"policy": "greedy", "datasets": {"A": {"cache": 1300000000000}},
//!  "jobs": {"r0": {"remote_io": 0, "throughput": 114000000, "score": 8.77e-5, "order": 0,
//!                  "hit_ratio": 1, "limit": 200000000}},
//!  "objective": 114000000}
//! ```

use super::check::{ProblemError, hint, no_such_dataset, place};
use super::policy::Policy;
use super::problem::{Allocation, Dataset, Job, Problem, Totals};
use crate::amounts::{ByteSize, parse_rate};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

const FIELDS: &[&str] = &["totals", "datasets", "jobs"];
const TOTALS: &[&str] = &["gpus", "cache", "remote_io"];
const DATASET: &[&str] = &["name", "size", "budget"];
const JOB: &[&str] = &[
    "id",
    "dataset",
    "ideal_rate",
    "gpus",
    "work",
    "hit_ratio",
    "remote_io",
];

impl Problem {
    /// Parses and checks a problem.
    ///
    /// # Errors
    /// Describes the first invalid entry.
    pub fn from_json(text: &str) -> Result<Self, ProblemError> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| ProblemError::Syntax(error.to_string()))?;
        Self::from_value(&value)
    }

    /// Like [`from_json`](Self::from_json), for parsed JSON.
    ///
    /// # Errors
    /// Describes the first invalid entry.
    pub fn from_value(value: &Value) -> Result<Self, ProblemError> {
        let whole = Entry::new("the problem".to_owned(), value, FIELDS)?;
        let totals = whole.required("totals", "What the cluster has: an object.")?;
        let totals = Entry::new("totals".to_owned(), totals, TOTALS)?;
        let mut problem = Self {
            totals: Totals {
                gpus: totals.required_as("gpus", "A number.", Entry::number)?,
                cache: totals.required_as("cache", "Write \"2TB\".", Entry::bytes)?,
                remote_io: totals.required_as("remote_io", "Write \"200MB/s\".", Entry::rate)?,
            },
            datasets: Vec::new(),
            jobs: Vec::new(),
        };
        for (at, value) in whole.list("datasets")?.iter().enumerate() {
            problem.datasets.push(dataset(at, value)?);
        }
        // Check now that dataset names are unique, because jobs refer to datasets by name.
        problem.check()?;
        let positions: HashMap<String, usize> = problem
            .datasets
            .iter()
            .enumerate()
            .map(|(at, dataset)| (dataset.name.clone(), at))
            .collect();
        for (at, value) in whole.list("jobs")?.iter().enumerate() {
            let job = job(at, value, &problem, &positions)?;
            problem.jobs.push(job);
        }
        problem.check()?;
        Ok(problem)
    }
}

fn dataset(at: usize, value: &Value) -> Result<Dataset, ProblemError> {
    let entry = Entry::named("datasets", at, "name", value, DATASET)?;
    Ok(Dataset {
        name: entry.required_as("name", "A text of its own.", Entry::text)?,
        size: entry.required_as("size", "Write \"1.3TB\".", Entry::bytes)?,
        budget: entry.bytes("budget")?,
    })
}

fn job(
    at: usize,
    value: &Value,
    problem: &Problem,
    positions: &HashMap<String, usize>,
) -> Result<Job, ProblemError> {
    let entry = Entry::named("jobs", at, "id", value, JOB)?;
    let id = entry.required_as("id", "A text of its own.", Entry::text)?;
    let on = entry.required_as(
        "dataset",
        "A job on no dataset reads nothing: give the name of one of \"datasets\".",
        Entry::text,
    )?;
    let Some(dataset) = positions.get(&on) else {
        return Err(no_such_dataset(&entry.place, &on, problem));
    };
    Ok(Job {
        id,
        dataset: *dataset,
        ideal_rate: entry.required_as(
            "ideal_rate",
            "What it reads when data is not its bottleneck: write \"114MB/s\".",
            Entry::rate,
        )?,
        gpus: entry.number("gpus")?.unwrap_or(1.0),
        work: entry.bytes("work")?,
        hit_ratio: entry.number("hit_ratio")?,
        remote_io: entry.rate("remote_io")?,
    })
}

/// A JSON object, with its name for messages.
struct Entry<'a> {
    place: String,
    fields: &'a Map<String, Value>,
}

impl<'a> Entry<'a> {
    fn new(place: String, value: &'a Value, known: &[&str]) -> Result<Self, ProblemError> {
        let Value::Object(fields) = value else {
            return Err(kind(place, value, "an object"));
        };
        if let Some(field) = fields.keys().find(|field| !known.contains(&field.as_str())) {
            return Err(ProblemError::UnknownField {
                hint: hint(field, known.iter().copied()),
                place,
                field: field.clone(),
                known: known.join(", "),
            });
        }
        Ok(Self { place, fields })
    }

    /// Creates an entry of a list, named by its index and the text of its field `name`.
    fn named(
        list: &str,
        at: usize,
        name: &str,
        value: &'a Value,
        known: &[&str],
    ) -> Result<Self, ProblemError> {
        // The name helps people more than the index, but may be missing.
        let called = match value.get(name).and_then(Value::as_str) {
            Some(name) => place(list, at, name),
            None => format!("{list}[{at}]"),
        };
        Self::new(called, value, known)
    }

    fn field(&self, field: &str) -> Option<&'a Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    fn required(&self, field: &'static str, why: &'static str) -> Result<&'a Value, ProblemError> {
        self.field(field).ok_or_else(|| self.missing(field, why))
    }

    fn required_as<T>(
        &self,
        field: &'static str,
        why: &'static str,
        read: fn(&Self, &'static str) -> Result<Option<T>, ProblemError>,
    ) -> Result<T, ProblemError> {
        read(self, field)?.ok_or_else(|| self.missing(field, why))
    }

    fn missing(&self, field: &'static str, why: &'static str) -> ProblemError {
        ProblemError::Missing {
            place: self.place.clone(),
            field,
            why,
        }
    }

    fn inside(&self, field: &str) -> String {
        format!("{}: {field}", self.place)
    }

    fn list(&self, field: &'static str) -> Result<&'a [Value], ProblemError> {
        match self.required(field, "A list, which may be empty.")? {
            Value::Array(values) => Ok(values),
            other => Err(kind(field.to_owned(), other, "a list")),
        }
    }

    fn text(&self, field: &'static str) -> Result<Option<String>, ProblemError> {
        match self.field(field) {
            None => Ok(None),
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some(text.clone())),
            Some(Value::String(_)) => Err(ProblemError::Amount {
                place: self.inside(field),
                why: "it is empty".to_owned(),
            }),
            Some(other) => Err(kind(self.inside(field), other, "a text")),
        }
    }

    fn number(&self, field: &'static str) -> Result<Option<f64>, ProblemError> {
        match self.field(field) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(number.as_f64()),
            Some(other) => Err(kind(self.inside(field), other, "a number")),
        }
    }

    fn bytes(&self, field: &'static str) -> Result<Option<f64>, ProblemError> {
        self.amount(field, "1.3TB", |text| {
            #[expect(clippy::cast_precision_loss, reason = "53 bits say enough of a size")]
            let bytes = |ByteSize(bytes)| bytes as f64;
            text.parse().map(bytes).map_err(|e| e.to_string())
        })
    }

    fn rate(&self, field: &'static str) -> Result<Option<f64>, ProblemError> {
        self.amount(field, "114MB/s", |text| {
            parse_rate(text).map_err(|e| e.to_string())
        })
    }

    /// Reads a plain number, or a string with a unit such as `example`.
    fn amount(
        &self,
        field: &'static str,
        example: &str,
        parse: impl Fn(&str) -> Result<f64, String>,
    ) -> Result<Option<f64>, ProblemError> {
        let text = match self.field(field) {
            None => return Ok(None),
            Some(Value::Number(number)) => return Ok(number.as_f64()),
            Some(Value::String(text)) => text.trim(),
            Some(other) => {
                let wanted = "a number or a text with a unit";
                return Err(kind(self.inside(field), other, wanted));
            }
        };
        let why = if text.starts_with('-') {
            format!("{text:?} is negative")
        // A string without a unit is ambiguous; a JSON number is not.
        } else if text.parse::<f64>().is_ok_and(f64::is_finite) {
            format!(
                "{text:?} has no unit: write {example:?}, or {text} without quotes for {}",
                if example.ends_with("/s") {
                    "bytes per second"
                } else {
                    "bytes"
                }
            )
        } else {
            match parse(text) {
                Ok(amount) => return Ok(Some(amount)),
                Err(why) => why,
            }
        };
        Err(ProblemError::Amount {
            place: self.inside(field),
            why,
        })
    }
}

fn kind(place: String, value: &Value, wanted: &'static str) -> ProblemError {
    ProblemError::Kind {
        place,
        found: match value {
            Value::Null => "null",
            Value::Bool(_) => "true or false",
            Value::Number(_) => "a number",
            Value::String(_) => "a text",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        },
        wanted,
    }
}

impl Allocation {
    /// Returns the allocation for `problem`, in the format described in the module documentation.
    /// Caches are whole bytes, rounded down. A score or objective that is not a finite number is
    /// null.
    #[must_use]
    pub fn to_json(&self, problem: &Problem, policy: Policy) -> Value {
        let caches = problem.datasets.iter().zip(&self.datasets);
        let datasets: Map<String, Value> = caches
            .map(|(dataset, share)| {
                let cache = number(share.cache.floor());
                (dataset.name.clone(), json!({ "cache": cache }))
            })
            .collect();
        let shares = problem.jobs.iter().zip(&self.jobs);
        let jobs: Map<String, Value> = shares
            .map(|(job, share)| {
                let fields = json!({
                    "remote_io": number(share.remote_io),
                    "throughput": number(share.throughput),
                    "score": share.score.map(number),
                    "order": share.order,
                    "hit_ratio": number(share.hit_ratio),
                    "limit": number(share.limit),
                });
                (job.id.clone(), fields)
            })
            .collect();
        json!({
            "policy": policy.name(),
            "datasets": datasets,
            "jobs": jobs,
            "objective": number(self.objective),
        })
    }
}

/// Formats a number without `.0` if it is whole.
fn number(amount: f64) -> Value {
    // Above this, `f64` has gaps between whole numbers.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if amount.fract() == 0.0 && (0.0..EXACT).contains(&amount) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, not negative, below 2^53"
        )]
        let whole = amount as u64;
        json!(whole)
    } else {
        // Null if not finite.
        json!(amount)
    }
}

#[cfg(test)]
mod tests;
