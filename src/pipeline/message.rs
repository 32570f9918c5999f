//! The lines that an engine's adapter writes: one JSON object each (docs/PIPELINES.md). Pure.
//!
//! A line that this module cannot read is no error of the run: the daemon judges every line, and its message
//! reaches the adapter. So nothing is checked here but the form.

use serde::{Deserialize, Serialize};
use serde_json::Number;

/// The version of the lines.
pub const VERSION: u64 = 1;

/// A line of an adapter.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// A job with its tasks.
    Submit(Box<Submission>),
    /// An event of a submitted job.
    Event(Event),
}

/// A job with its tasks. Missing fields are not written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// The version of the line.
    pub v: u64,
    /// Always [`Op::Submit`].
    pub op: Op,
    /// The user, if it is not the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The name of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// The job, unique for its tenant.
    pub job: String,
    /// The attempt: a higher one replaces the job.
    #[serde(default)]
    pub attempt: u64,
    /// The dataset with the inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Seconds until the job ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<Number>,
    /// What releases a reference: `done` or `read`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consume: Option<String>,
    /// Paths relative to the dataset's root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// The tasks.
    pub tasks: Vec<Task>,
}

/// A task of a submission.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Task {
    /// Its name, unique in the job.
    pub id: String,
    /// Inputs by their index in [`Submission::files`].
    #[serde(default, rename = "in", skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Input>,
    /// Inputs by their paths.
    #[serde(default, rename = "inputs", skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathInput>,
    /// Tasks that run before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
}

/// An input by its index in [`Submission::files`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Input {
    /// The whole file.
    Whole(usize),
    /// Index, offset and length in bytes.
    Range(usize, u64, u64),
}

/// An input by its path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct PathInput {
    /// The path, relative to the dataset's root.
    pub path: String,
    /// The first byte; 0 if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<u64>,
    /// The number of bytes; missing: to the end of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub len: Option<u64>,
    /// Whether all files below the path are inputs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recursive: bool,
}

/// An event of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The version of the line.
    pub v: u64,
    /// What has happened.
    pub op: Op,
    /// The user, if it is not the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The job.
    pub job: String,
    /// The task, unless the job has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
}

/// The kind of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// A job is submitted.
    Submit,
    /// A task has ended.
    Done,
    /// A task has failed, and will run again.
    TaskFail,
    /// A job has ended.
    End,
}

impl Message {
    /// Reads a line.
    ///
    /// # Errors
    /// It has another form.
    pub fn from_json(line: &[u8]) -> serde_json::Result<Self> {
        /// The part that tells the kinds apart.
        #[derive(Deserialize)]
        struct Head {
            op: Op,
        }
        let Head { op } = serde_json::from_slice(line)?;
        Ok(match op {
            Op::Submit => Self::Submit(serde_json::from_slice(line)?),
            Op::Done | Op::TaskFail | Op::End => Self::Event(serde_json::from_slice(line)?),
        })
    }

    /// The job that it is about.
    #[must_use]
    pub fn job(&self) -> &str {
        match self {
            Self::Submit(submission) => &submission.job,
            Self::Event(event) => &event.job,
        }
    }
}

impl Event {
    /// The end of `job`.
    #[must_use]
    pub fn end(job: &str) -> Self {
        Self {
            v: VERSION,
            op: Op::End,
            tenant: None,
            job: job.to_owned(),
            task: None,
        }
    }
}

impl Submission {
    /// A job of an application, without tasks.
    #[must_use]
    pub fn new(app: &str, job: String, attempt: u64) -> Self {
        Self {
            v: VERSION,
            op: Op::Submit,
            tenant: None,
            app: Some(app.to_owned()),
            job,
            attempt,
            dataset: None,
            expires_s: None,
            consume: None,
            files: Vec::new(),
            tasks: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_submission_is_written_as_it_was_read() {
        let line = json!({"v": 1, "op": "submit", "app": "daily", "job": "app-1/sql-0", "attempt": 0,
            "dataset": "warehouse", "expires_s": 86400, "consume": "done", "files": ["a.parquet", "b"],
            "tasks": [
                {"id": "scan1/0", "in": [[0, 0, 2_564_892], 1], "after": ["x"]},
                {"id": "list", "inputs": [{"path": "a.parquet", "off": 0, "len": 10},
                                          {"path": "dir", "recursive": true}]}]});
        let read = Message::from_json(line.to_string().as_bytes()).unwrap();
        let Message::Submit(submission) = &read else {
            panic!("{read:?}");
        };
        let inputs = &submission.tasks[0].inputs;
        assert_eq!(*inputs, [Input::Range(0, 0, 2_564_892), Input::Whole(1)]);
        assert_eq!(serde_json::to_value(submission).unwrap(), line);
    }

    #[test]
    fn events_are_told_apart() {
        for (line, op, task) in [
            (
                r#"{"v":1,"op":"done","job":"j","task":"t"}"#,
                Op::Done,
                Some("t"),
            ),
            (
                r#"{"v":1,"op":"taskfail","job":"j","task":"t"}"#,
                Op::TaskFail,
                Some("t"),
            ),
            (r#"{"v":1,"op":"end","job":"j"}"#, Op::End, None),
        ] {
            let read = Message::from_json(line.as_bytes()).unwrap();
            let Message::Event(event) = &read else {
                panic!("{read:?}");
            };
            assert_eq!(
                (event.op, event.task.as_deref(), read.job()),
                (op, task, "j")
            );
            assert_eq!(serde_json::to_string(event).unwrap(), line);
        }
        for line in [
            "{}",
            "[]",
            r#"{"v":1,"op":"attach"}"#,
            r#"{"v":1,"op":"end"}"#,
            "{\"v\":1",
        ] {
            assert!(Message::from_json(line.as_bytes()).is_err(), "{line}");
        }
    }
}
