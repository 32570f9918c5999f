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
//! are a dataset's `budget`, `keep` ("auto") and `chunk_size`, and a job's `gpus` (1), `work`,
//! `hit_ratio`, `remote_io`, `substitutes` (false), `measured` and `mode` ("cached"), as in
//! [`problem`](super::problem). An allocation:
//!
//! ```json
//! {"policy": "greedy", "datasets": {"A": {"cache": 1300000000000, "choice": "whole"}},
//!  "jobs": {"r0": {"remote_io": 0, "throughput": 114000000, "score": 8.77e-5, "order": 0,
//!                  "hit_ratio": 1, "limit": 200000000}},
//!  "objective": 114000000}
//! ```

use super::check::{ProblemError, hint, invalid, no_such_dataset, place};
use super::policy::Policy;
use super::problem::{Allocation, Dataset, Job, Problem, Totals};
use super::times::{Part, Times};
use crate::amounts::{AmountError, ByteSize, parse_rate};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// The fields of each kind of object.
const WHOLE: &str = "totals, datasets, jobs";
const TOTALS: &str = "gpus, cache, remote_io";
const DATASET: &str = "name, size, budget, keep, chunk_size";
const JOB: &str =
    "id, dataset, ideal_rate, gpus, work, hit_ratio, remote_io, substitutes, measured, mode";
const MEASURED: &str = "uncached_s, whole_s, chunks_s, part_s, part_hits";

impl Problem {
    /// Parses and checks a problem.
    ///
    /// # Errors
    /// Describes the first invalid entry.
    pub fn from_json(text: &str) -> Result<Self, ProblemError> {
        let parsed = serde_json::from_str(text);
        let syntax = |error| ProblemError(format!("the problem is not JSON: {error}"));
        Self::from_value(&parsed.map_err(syntax)?)
    }

    /// Like [`from_json`](Self::from_json), for parsed JSON.
    ///
    /// # Errors
    /// Describes the first invalid entry.
    pub fn from_value(value: &Value) -> Result<Self, ProblemError> {
        let whole = Entry::new("the problem".to_owned(), value, WHOLE)?;
        let totals = whole.required("totals", "What the cluster has: an object.", Ok)?;
        let totals = Entry::new("totals".to_owned(), totals, TOTALS)?;
        let mut problem = Self {
            totals: Totals {
                gpus: totals.required("gpus", "A number.", number)?,
                cache: totals.required("cache", "Write \"2TB\".", bytes)?,
                remote_io: totals.required("remote_io", "Write \"200MB/s\".", rate)?,
            },
            datasets: Vec::new(),
            jobs: Vec::new(),
        };
        for (at, value) in whole.list("datasets")?.iter().enumerate() {
            let entry = Entry::named("datasets", at, "name", value, DATASET)?;
            problem.datasets.push(Dataset {
                name: entry.required("name", "A text of its own.", text)?,
                size: entry.required("size", "Write \"1.3TB\".", bytes)?,
                budget: entry.optional("budget", bytes)?,
                keep: entry.optional("keep", named)?.unwrap_or_default(),
                chunk_size: entry.optional("chunk_size", bytes)?,
            });
        }
        // Check now that dataset names are unique, because jobs refer to datasets by name.
        problem.check()?;
        let names = problem.datasets.iter().map(|dataset| dataset.name.as_str());
        let positions: HashMap<&str, usize> = names.zip(0..).collect();
        for (at, value) in whole.list("jobs")?.iter().enumerate() {
            let entry = Entry::named("jobs", at, "id", value, JOB)?;
            let id = entry.required("id", "A text of its own.", text)?;
            let why = "A job on no dataset reads nothing: give the name of one of \"datasets\".";
            let on = entry.required("dataset", why, text)?;
            let Some(dataset) = positions.get(on.as_str()) else {
                return Err(no_such_dataset(&entry.place, &on, &problem));
            };
            let why = "What it reads when data is not its bottleneck: write \"114MB/s\".";
            problem.jobs.push(Job {
                id,
                dataset: *dataset,
                ideal_rate: entry.required("ideal_rate", why, rate)?,
                is_rate_assumed: false,
                gpus: entry.optional("gpus", number)?.unwrap_or(1.0),
                work: entry.optional("work", bytes)?,
                hit_ratio: entry.optional("hit_ratio", number)?,
                remote_io: entry.optional("remote_io", rate)?,
                substitutes: entry.optional("substitutes", flag)?.unwrap_or_default(),
                measured: times(&entry)?,
                mode: entry.optional("mode", named)?.unwrap_or_default(),
            });
        }
        problem.check()?;
        Ok(problem)
    }
}

/// A JSON object, with its name for messages.
struct Entry<'a> {
    place: String,
    fields: &'a Map<String, Value>,
}

/// Reads the value of a field. An error follows the name of the field in the message.
type Read<'a, T> = fn(&'a Value) -> Result<T, String>;

impl<'a> Entry<'a> {
    fn new(place: String, value: &'a Value, known: &str) -> Result<Self, ProblemError> {
        let Value::Object(fields) = value else {
            return invalid(place + &not(value, "an object"));
        };
        let names = || known.split(", ");
        if let Some(field) = fields
            .keys()
            .find(|field| !names().any(|name| name == *field))
        {
            let hint = hint(field, names());
            return invalid(format!(
                "{place}: there is no field {field:?}{hint}. The fields: {known}"
            ));
        }
        Ok(Self { place, fields })
    }

    /// Creates an entry of a list, named by its index and the text of its field `name`.
    fn named(
        list: &str,
        at: usize,
        name: &str,
        value: &'a Value,
        known: &str,
    ) -> Result<Self, ProblemError> {
        // The name helps people more than the index, but may be missing.
        let called = match value.get(name).and_then(Value::as_str) {
            Some(name) => place(list, at, name),
            None => format!("{list}[{at}]"),
        };
        Self::new(called, value, known)
    }

    /// Reads a field that may be missing.
    fn optional<T>(&self, field: &str, read: Read<'a, T>) -> Result<Option<T>, ProblemError> {
        let value = self.fields.get(field).filter(|value| !value.is_null());
        let read = value.map(read).transpose();
        read.map_err(|wrong| ProblemError(format!("{}: {field}{wrong}", self.place)))
    }

    /// Reads a field that must be there. `why`: its meaning, and how to write it.
    fn required<T>(&self, field: &str, why: &str, read: Read<'a, T>) -> Result<T, ProblemError> {
        let missing = || ProblemError(format!("{}: {field:?} is missing. {why}", self.place));
        self.optional(field, read)?.ok_or_else(missing)
    }

    fn list(&self, field: &str) -> Result<&'a [Value], ProblemError> {
        match self.required(field, "A list, which may be empty.", Ok)? {
            Value::Array(values) => Ok(values),
            other => invalid(field.to_owned() + &not(other, "a list")),
        }
    }
}

/// Reads the measured times of a job.
fn times(job: &Entry<'_>) -> Result<Option<Times>, ProblemError> {
    let Some(value) = job.optional("measured", Ok)? else {
        return Ok(None);
    };
    let entry = Entry::new(format!("{}: measured", job.place), value, MEASURED)?;
    let part_s = entry.optional("part_s", number)?;
    let why = "The fraction of look-ups that hit in \"part_s\": a number.";
    let part = |cached_s| {
        let hit_ratio = entry.required("part_hits", why, number)?;
        Ok(Part {
            cached_s,
            hit_ratio,
        })
    };
    let why = "Seconds per mini-batch without a cache: a number.";
    Ok(Some(Times {
        uncached_s: entry.required("uncached_s", why, number)?,
        whole_s: entry.optional("whole_s", number)?,
        chunks_s: entry.optional("chunks_s", number)?,
        part: part_s.map(part).transpose()?,
    }))
}

fn text(value: &Value) -> Result<String, String> {
    match value.as_str() {
        None => Err(not(value, "a text")),
        Some(text) if text.trim().is_empty() => Err(": it is empty".to_owned()),
        Some(text) => Ok(text.to_owned()),
    }
}

fn flag(value: &Value) -> Result<bool, String> {
    value
        .as_bool()
        .ok_or_else(|| not(value, "true or false, without quotes"))
}

/// Reads one of a few names.
fn named<T: FromStr<Err: fmt::Display>>(value: &Value) -> Result<T, String> {
    let text = text(value)?;
    text.parse().map_err(|error| format!(": {error}"))
}

fn number(value: &Value) -> Result<f64, String> {
    value.as_f64().ok_or_else(|| not(value, "a number"))
}

fn bytes(value: &Value) -> Result<f64, String> {
    #[expect(clippy::cast_precision_loss, reason = "53 bits say enough of a size")]
    let bytes = |ByteSize(bytes)| bytes as f64;
    amount(value, "1.3TB", "bytes", |text| text.parse().map(bytes))
}

fn rate(value: &Value) -> Result<f64, String> {
    amount(value, "114MB/s", "bytes per second", parse_rate)
}

/// Reads a plain number of `unit`, or a string with a unit such as `example`.
fn amount(
    value: &Value,
    example: &str,
    unit: &str,
    parse: impl Fn(&str) -> Result<f64, AmountError>,
) -> Result<f64, String> {
    if let Value::Number(_) = value {
        return number(value);
    }
    let text = value.as_str().map(str::trim);
    let text = text.ok_or_else(|| not(value, "a number or a text with a unit"))?;
    if text.starts_with('-') {
        return Err(format!(": {text:?} is negative"));
    }
    // A string without a unit is ambiguous; a JSON number is not.
    if text.parse::<f64>().is_ok_and(f64::is_finite) {
        return Err(format!(
            ": {text:?} has no unit: write {example:?}, or {text} without quotes for {unit}"
        ));
    }
    parse(text).map_err(|error| format!(": {error}"))
}

/// Says that a value has the wrong type.
fn not(value: &Value, wanted: &str) -> String {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    format!(" is {found}; it must be {wanted}")
}

impl Allocation {
    /// Returns the allocation for `problem`, in the format described in the module documentation.
    /// Caches are whole bytes, rounded down. A score or objective that is not a finite number is
    /// null.
    #[must_use]
    pub fn to_json(&self, problem: &Problem, policy: Policy) -> Value {
        let mut datasets = Map::new();
        for (dataset, share) in problem.datasets.iter().zip(&self.datasets) {
            let cache = plain(share.cache.floor());
            let fields = json!({ "cache": cache, "choice": share.choice.name() });
            datasets.insert(dataset.name.clone(), fields);
        }
        let mut jobs = Map::new();
        for (job, share) in problem.jobs.iter().zip(&self.jobs) {
            let fields = json!({
                "remote_io": plain(share.remote_io),
                "throughput": plain(share.throughput),
                "score": share.score.map(plain),
                "order": share.order,
                "hit_ratio": plain(share.hit_ratio),
                "limit": plain(share.limit),
            });
            jobs.insert(job.id.clone(), fields);
        }
        json!({
            "policy": policy.name(),
            "datasets": datasets,
            "jobs": jobs,
            "objective": plain(self.objective),
        })
    }
}

/// Formats a number without `.0` if it is whole.
fn plain(amount: f64) -> Value {
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
