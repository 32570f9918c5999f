//! Traces: CSV with one job a line, and TOML for a handful of jobs with their cluster.
//!
//! Pure: text in, workload out. Errors name the line.

use super::workload::Builder;
use super::{Curriculum, Job, Workload, WorkloadError};
use copperfs_policy::amounts::parse_bytes;
use serde::Deserialize;

/// The columns of a trace, in any order; others are not read.
pub const COLUMNS: [&str; 8] = [
    "id",
    "submit_s",
    "model",
    "dataset",
    "dataset_bytes",
    "gpus",
    "ideal_rate",
    "work_bytes",
];

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Nothing in it.
    #[error("the trace is empty: its first line names the columns {}", COLUMNS.join(","))]
    Empty,
    /// A column that is needed.
    #[error("line 1: there is no column {0:?}; a trace has the columns {columns}", columns = COLUMNS.join(","))]
    NoColumn(&'static str),
    /// A column twice.
    #[error("line 1: the column {0:?} is there twice")]
    ColumnTwice(String),
    /// More or fewer fields than columns.
    #[error("line {line}: {found} fields, where line 1 names {wanted} columns")]
    Fields {
        /// Which line.
        line: usize,
        /// Its fields.
        found: usize,
        /// The columns.
        wanted: usize,
    },
    /// A field that is not a number.
    #[error("line {line}: {column} is {text:?}, which is not {wanted}")]
    NotANumber {
        /// Which line.
        line: usize,
        /// Which column.
        column: &'static str,
        /// What stands there.
        text: String,
        /// What would do.
        wanted: &'static str,
    },
    /// A line that makes no sense.
    #[error("line {line}: {source}")]
    Line {
        /// Which line.
        line: usize,
        /// Why.
        source: WorkloadError,
    },
    /// TOML that makes no sense; its message names the line.
    #[error("{0}")]
    Toml(String),
    /// A value that is not what its key says.
    #[error("{what} of {whose}: {why}")]
    Value {
        /// Which key.
        what: &'static str,
        /// Of which table.
        whose: String,
        /// What is wrong.
        why: String,
    },
    /// A workload that makes no sense.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

/// Reads a CSV trace.
///
/// # Errors
/// A missing column, a wrong number of fields, a number that is none, or what
/// [`WorkloadError`] names; with the line.
pub fn from_csv(text: &str) -> Result<Workload, TraceError> {
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty());
    let (_, head) = lines.next().ok_or(TraceError::Empty)?;
    let names: Vec<&str> = head.split(',').map(str::trim).collect();
    let mut places = [0; COLUMNS.len()];
    for (place, column) in places.iter_mut().zip(COLUMNS) {
        let mut found = (0..names.len()).filter(|&at| names[at] == column);
        *place = found.next().ok_or(TraceError::NoColumn(column))?;
        if found.next().is_some() {
            return Err(TraceError::ColumnTwice(column.to_owned()));
        }
    }
    let mut builder = Builder::default();
    for (line, text) in lines {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        if fields.len() != names.len() {
            return Err(TraceError::Fields {
                line,
                found: fields.len(),
                wanted: names.len(),
            });
        }
        let row = Row {
            line,
            fields: places.map(|place| fields[place]),
        };
        row.add(&mut builder)?;
    }
    Ok(builder.finish()?)
}

/// A line's fields in the order of [`COLUMNS`].
struct Row<'a> {
    line: usize,
    fields: [&'a str; COLUMNS.len()],
}

impl Row<'_> {
    fn number(&self, column: usize) -> Result<f64, TraceError> {
        let wanted = "a number";
        self.parse(column, wanted)
    }

    fn parse<T: std::str::FromStr>(
        &self,
        column: usize,
        wanted: &'static str,
    ) -> Result<T, TraceError> {
        let text = self.fields[column];
        text.parse().map_err(|_ignored| TraceError::NotANumber {
            line: self.line,
            column: COLUMNS[column],
            text: text.to_owned(),
            wanted,
        })
    }

    fn add(&self, builder: &mut Builder) -> Result<(), TraceError> {
        let line = self.line;
        let wrong = |source| TraceError::Line { line, source };
        let size = self.number(4)?;
        let job = Job {
            id: self.fields[0].to_owned(),
            submit: self.number(1)?,
            model: self.fields[2].to_owned(),
            dataset: builder.dataset(self.fields[3], size).map_err(wrong)?,
            gpus: self.parse(5, "a whole number of GPUs")?,
            ideal_rate: self.number(6)?,
            work: self.number(7)?,
            curriculum: None,
        };
        builder.job(job).map_err(wrong)
    }
}

/// Writes a workload as [`from_csv`] reads it.
#[must_use]
pub fn to_csv(workload: &Workload) -> String {
    let mut text = COLUMNS.join(",");
    text.push('\n');
    for job in &workload.jobs {
        let set = &workload.datasets[job.dataset];
        text.push_str(&format!(
            "{},{:.3},{},{},{},{},{},{}\n",
            job.id, job.submit, job.model, set.name, set.size, job.gpus, job.ideal_rate, job.work
        ));
    }
    text
}

/// What a TOML file says of the cluster; flags go before it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cluster {
    /// GPUs.
    pub gpus: Option<u32>,
    /// Bytes of cache.
    pub cache: Option<f64>,
    /// Bytes a second of remote IO.
    pub remote_io: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    gpus: Option<u32>,
    cache: Option<String>,
    remote_io: Option<String>,
    #[serde(default)]
    dataset: Vec<FileDataset>,
    #[serde(default)]
    job: Vec<FileJob>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileDataset {
    name: String,
    size: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileJob {
    id: String,
    #[serde(default)]
    model: String,
    dataset: String,
    #[serde(default = "one")]
    gpus: u32,
    ideal_rate: String,
    epochs: Option<f64>,
    work: Option<String>,
    #[serde(default)]
    submit_s: f64,
    curriculum: Option<FileCurriculum>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileCurriculum {
    starting_percent: f64,
    alpha: f64,
    step: u64,
    batch: String,
}

const fn one() -> u32 {
    1
}

/// Reads a TOML file: `gpus`, `cache`, `remote_io`, `[[dataset]]`, `[[job]]`.
///
/// # Errors
/// No TOML, keys that are not known, numbers without units, or what [`WorkloadError`] names.
pub fn from_toml(text: &str) -> Result<(Cluster, Workload), TraceError> {
    let file: File = toml::from_str(text).map_err(|error| TraceError::Toml(error.to_string()))?;
    let cluster = Cluster {
        gpus: file.gpus,
        cache: value("cache", "the cluster", file.cache.as_deref(), bytes)?,
        remote_io: value("remote_io", "the cluster", file.remote_io.as_deref(), rate)?,
    };
    let mut builder = Builder::default();
    for set in &file.dataset {
        if builder.find(&set.name).is_some() {
            return Err(WorkloadError::DuplicateDataset(set.name.clone()).into());
        }
        let size = value("size", &set.name, Some(&set.size), bytes)?.unwrap_or(0.0);
        builder.dataset(&set.name, size)?;
    }
    for job in &file.job {
        let dataset = builder.find(&job.dataset).ok_or_else(|| {
            TraceError::from(WorkloadError::UnknownDataset {
                job: job.id.clone(),
                dataset: job.dataset.clone(),
            })
        })?;
        let set = file.dataset.iter().find(|set| set.name == job.dataset);
        let size = set.and_then(|set| bytes(&set.size).ok()).unwrap_or(0.0);
        builder.job(job.build(dataset, size)?)?;
    }
    Ok((cluster, builder.finish()?))
}

impl FileJob {
    fn build(&self, dataset: usize, size: f64) -> Result<Job, TraceError> {
        let work = match (self.epochs, &self.work) {
            (Some(epochs), None) => epochs * size,
            (None, Some(work)) => value("work", &self.id, Some(work), bytes)?.unwrap_or(0.0),
            _ => {
                return Err(TraceError::Value {
                    what: "work",
                    whose: self.id.clone(),
                    why: "say either epochs = 13 or work = \"16.9TB\"".into(),
                });
            }
        };
        let curriculum = match &self.curriculum {
            None => None,
            Some(given) => Some(Curriculum {
                start: given.starting_percent,
                growth: given.alpha,
                step: given.step,
                batch_bytes: value("batch", &self.id, Some(&given.batch), bytes)?.unwrap_or(0.0),
            }),
        };
        Ok(Job {
            id: self.id.clone(),
            submit: self.submit_s,
            model: self.model.clone(),
            dataset,
            gpus: self.gpus,
            ideal_rate: value("ideal_rate", &self.id, Some(&self.ideal_rate), rate)?.unwrap_or(0.0),
            work,
            curriculum,
        })
    }
}

fn value(
    what: &'static str,
    whose: &str,
    text: Option<&str>,
    parse: fn(&str) -> Result<f64, String>,
) -> Result<Option<f64>, TraceError> {
    text.map(parse)
        .transpose()
        .map_err(|why| TraceError::Value {
            what,
            whose: whose.to_owned(),
            why,
        })
}

/// A size with its unit: `1.3TB` is decimal, `1.3TiB` binary.
///
/// # Errors
/// No unit, an unknown one, nothing, or no number.
pub fn bytes(text: &str) -> Result<f64, String> {
    let trimmed = text.trim();
    if !trimmed.ends_with(|last: char| last.is_ascii_alphabetic()) {
        return Err(format!(
            "{text:?} has no unit. Write a number and a unit: 2TB (1000-based), 2TiB (1024-based)"
        ));
    }
    let bytes = parse_bytes(trimmed).map_err(|error| error.to_string())?;
    if bytes == 0 {
        return Err(format!("{text:?} is nothing: it must be above zero"));
    }
    #[expect(clippy::cast_precision_loss, reason = "sizes need no 16 digits")]
    let bytes = bytes as f64;
    Ok(bytes)
}

/// A rate with its unit: `200MB/s`, `1.6Gbit/s`.
///
/// # Errors
/// As [`bytes()`]; or it does not end with `/s`.
pub fn rate(text: &str) -> Result<f64, String> {
    const FORMS: &str = "Write bytes or bits a second: 200MB/s, 1GiB/s, 1.6Gbit/s";
    let trimmed = text.trim();
    let amount = trimmed
        .strip_suffix("/s")
        .ok_or_else(|| format!("{text:?} is not a rate: it does not end with /s. {FORMS}"))?;
    let refused = |why: String| format!("{text:?} is not a rate: {why}. {FORMS}");
    match amount.strip_suffix("bit") {
        Some(amount) => Ok(bytes(&format!("{amount}B")).map_err(refused)? / 8.0),
        None => bytes(amount).map_err(refused),
    }
}
