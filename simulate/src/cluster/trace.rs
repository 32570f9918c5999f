//! Traces: CSV with one job per line, and TOML for a few jobs with their cluster.
//!
//! Pure: text in, workload out. Errors name the line.

use super::workload::Builder;
use super::{Curriculum, Job, Workload, WorkloadError};
use crate::num::as_f64;
use copperfs_policy::Keep;
use copperfs_policy::amounts::ByteSize;
use serde::Deserialize;

/// The columns of a trace, in any order. Further columns are ignored.
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

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It is empty.
    #[error("the trace is empty: its first line names the columns {}", COLUMNS.join(","))]
    Empty,
    /// A line is malformed.
    #[error("line {line}: {reason}")]
    Malformed {
        /// The number of the line.
        line: usize,
        /// The reason.
        reason: String,
    },
    /// A line is invalid.
    #[error("line {line}: {source}")]
    Line {
        /// The number of the line.
        line: usize,
        /// The reason.
        source: WorkloadError,
    },
    /// The TOML file is invalid. The message names the line.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    /// A job has both a number of epochs and an amount of work, or neither.
    #[error("work of {0}: say either epochs = 13 or work = \"16.9TB\"")]
    Work(String),
    /// The workload is invalid.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

/// Parses a CSV trace.
///
/// # Errors
/// A column is missing, a line has a wrong number of fields, a field is not a number, or the
/// workload is invalid ([`WorkloadError`]); with the line.
pub fn from_csv(text: &str) -> Result<Workload, TraceError> {
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty());
    let malformed = |line, reason| Err(TraceError::Malformed { line, reason });
    let (_, head) = lines.next().ok_or(TraceError::Empty)?;
    let names: Vec<&str> = head.split(',').map(str::trim).collect();
    let mut places = [0; COLUMNS.len()];
    for (place, column) in places.iter_mut().zip(COLUMNS) {
        // Columns may be in any order, and further ones are allowed.
        let mut found = (0..names.len()).filter(|&at| names[at] == column);
        let Some(first) = found.next() else {
            let columns = COLUMNS.join(",");
            let reason =
                format!("there is no column {column:?}; a trace has the columns {columns}");
            return malformed(1, reason);
        };
        *place = first;
        if found.next().is_some() {
            return malformed(1, format!("the column {column:?} is there twice"));
        }
    }
    let mut builder = Builder::default();
    for (line, text) in lines {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let (found, wanted) = (fields.len(), names.len());
        if found != wanted {
            let reason = format!("{found} fields, where line 1 names {wanted} columns");
            return malformed(line, reason);
        }
        let fields = places.map(|place| fields[place]);
        let number = |column| parse(line, column, fields[column], "a number");
        let wrong = |source| TraceError::Line { line, source };
        let size = number(4)?;
        let job = Job {
            id: fields[0].to_owned(),
            submit: number(1)?,
            model: fields[2].to_owned(),
            dataset: builder
                .dataset(fields[3], size, Keep::Auto)
                .map_err(wrong)?,
            gpus: parse(line, 5, fields[5], "a whole number of GPUs")?,
            ideal_rate: number(6)?,
            work: number(7)?,
            curriculum: None,
            substitutes: false,
        };
        builder.job(job).map_err(wrong)?;
    }
    Ok(builder.finish()?)
}

/// Parses the field of a line in a column of [`COLUMNS`].
fn parse<T: std::str::FromStr>(
    line: usize,
    column: usize,
    text: &str,
    wanted: &str,
) -> Result<T, TraceError> {
    text.parse().map_err(|_ignored| {
        let reason = format!("{} is {text:?}, which is not {wanted}", COLUMNS[column]);
        TraceError::Malformed { line, reason }
    })
}

/// Formats a workload as [`from_csv`] parses it.
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

/// The cluster described by a TOML file. Flags take precedence.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cluster {
    /// GPUs.
    pub gpus: Option<u32>,
    /// Bytes of cache.
    pub cache: Option<f64>,
    /// Remote IO in bytes per second.
    pub remote_io: Option<f64>,
    /// The maximum bytes of a chunk.
    pub chunk_size: Option<f64>,
    /// How long a chunk stays after the first job has exhausted it, in seconds.
    pub evict_after_s: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    gpus: Option<u32>,
    cache: Option<Bytes>,
    remote_io: Option<Rate>,
    chunk_size: Option<Bytes>,
    evict_after_s: Option<f64>,
    #[serde(default)]
    dataset: Vec<FileDataset>,
    #[serde(default)]
    job: Vec<FileJob>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileDataset {
    name: String,
    size: Bytes,
    #[serde(default)]
    keep: Keep,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileJob {
    id: String,
    #[serde(default)]
    model: String,
    dataset: String,
    gpus: Option<u32>,
    ideal_rate: Rate,
    epochs: Option<f64>,
    work: Option<Bytes>,
    #[serde(default)]
    submit_s: f64,
    curriculum: Option<FileCurriculum>,
    #[serde(default)]
    substitutes: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileCurriculum {
    starting_percent: f64,
    alpha: f64,
    step: u64,
    batch: Bytes,
}

/// An amount with its unit, as [`bytes()`] parses it.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Bytes(f64);

impl TryFrom<String> for Bytes {
    type Error = AmountError;

    fn try_from(text: String) -> Result<Self, AmountError> {
        bytes(&text).map(Self)
    }
}

/// A rate with its unit, as [`rate`] parses it.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Rate(f64);

impl TryFrom<String> for Rate {
    type Error = AmountError;

    fn try_from(text: String) -> Result<Self, AmountError> {
        rate(&text).map(Self)
    }
}

/// Parses a TOML file: `gpus`, `cache`, `remote_io`, `chunk_size`, `evict_after_s`, `[[dataset]]`,
/// `[[job]]`.
///
/// # Errors
/// The text is not TOML, a key is unknown, an amount has no unit, or the workload is invalid
/// ([`WorkloadError`]).
pub fn from_toml(text: &str) -> Result<(Cluster, Workload), TraceError> {
    let file: File = toml::from_str(text)?;
    let cluster = Cluster {
        gpus: file.gpus,
        cache: file.cache.map(|cache| cache.0),
        remote_io: file.remote_io.map(|rate| rate.0),
        chunk_size: file.chunk_size.map(|size| size.0),
        evict_after_s: file.evict_after_s,
    };
    let mut builder = Builder::default();
    for FileDataset { name, size, keep } in &file.dataset {
        if builder.find(name).is_some() {
            return Err(WorkloadError::DuplicateDataset(name.clone()).into());
        }
        builder.dataset(name, size.0, *keep)?;
    }
    for job in file.job {
        // A dataset has the position in the workload that it has in the file.
        let Some(dataset) = builder.find(&job.dataset) else {
            let (job, dataset) = (job.id, job.dataset);
            return Err(WorkloadError::UnknownDataset { job, dataset }.into());
        };
        let work = match (job.epochs, job.work) {
            (Some(epochs), None) => epochs * file.dataset[dataset].size.0,
            (None, Some(work)) => work.0,
            _ => return Err(TraceError::Work(job.id)),
        };
        builder.job(Job {
            id: job.id,
            submit: job.submit_s,
            model: job.model,
            dataset,
            gpus: job.gpus.unwrap_or(1),
            ideal_rate: job.ideal_rate.0,
            work,
            curriculum: job.curriculum.map(|given| Curriculum {
                start: given.starting_percent,
                growth: given.alpha,
                step: given.step,
                batch_bytes: given.batch.0,
            }),
            substitutes: job.substitutes,
        })?;
    }
    Ok((cluster, builder.finish()?))
}

/// Why a text is not an amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AmountError(String);

const RATE_FORMS: &str = "Write bytes or bits a second: 200MB/s, 1GiB/s, 1.6Gbit/s";

/// Parses a size with its unit: `1.3TB` is decimal, `1.3TiB` binary.
///
/// # Errors
/// It has no unit or an unknown one, is zero, or is not a number.
pub fn bytes(text: &str) -> Result<f64, AmountError> {
    let trimmed = text.trim();
    let refused = |reason: &str| AmountError(format!("{text:?} {reason}"));
    if !trimmed.ends_with(|last: char| last.is_ascii_alphabetic()) {
        return Err(refused(
            "has no unit. Write a number and a unit: 2TB (1000-based), 2TiB (1024-based)",
        ));
    }
    let parsed = trimmed.parse::<ByteSize>();
    let ByteSize(bytes) = parsed.map_err(|error| AmountError(error.to_string()))?;
    if bytes == 0 {
        return Err(refused("is nothing: it must be above zero"));
    }
    Ok(as_f64(bytes))
}

/// Parses a rate with its unit: `200MB/s`, `1.6Gbit/s`.
///
/// # Errors
/// Like [`bytes()`], or it does not end with `/s`.
pub fn rate(text: &str) -> Result<f64, AmountError> {
    let refused = |why| AmountError(format!("{text:?} is not a rate: {why}. {RATE_FORMS}"));
    let amount = text.trim().strip_suffix("/s");
    let amount = amount.ok_or_else(|| refused("it does not end with /s".to_owned()))?;
    let parsed = match amount.strip_suffix("bit") {
        Some(amount) => bytes(&format!("{amount}B")).map(|bits| bits / 8.0),
        None => bytes(amount),
    };
    parsed.map_err(|AmountError(why)| refused(why))
}
