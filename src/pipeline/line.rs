//! The lines in which clients tell of pipelines: one JSON object each. Pure.
//!
//! A line may have millions of inputs. It is parsed while it arrives, so that only its values are in memory, and their
//! number is limited before they are stored.

mod bounded;
mod parser;

use bounded::Bounded;
use parser::{fields, syntax};
use serde::Deserialize;
use std::collections::HashMap;
use std::io::{BufReader, Read};

/// The version of the lines.
pub const VERSION: u64 = 1;
/// The maximum length of a name of a tenant, an app, a job or a task, in bytes.
const NAME_BYTES_MAX: usize = 512;

/// What a client tells.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// A job begins.
    Submit(Box<Submission>),
    /// A task has ended.
    Done(TaskEvent),
    /// A task has failed, and will run again.
    TaskFail(TaskEvent),
    /// A job has ended.
    End(JobEvent),
    /// The jobs that this client submits from now on end with its connection.
    Attach,
}

/// A job with its tasks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Submission {
    /// The job.
    pub job: JobEvent,
    /// The name of the run, for people.
    pub app: String,
    /// A later attempt replaces an earlier one.
    pub attempt: u64,
    /// The name of the dataset that it reads.
    pub dataset: String,
    /// After how many seconds it ends by itself.
    pub expires_s: Option<f64>,
    /// When inputs are released.
    pub consume: Consume,
    /// The paths of its inputs, relative to the dataset.
    pub files: Vec<Box<str>>,
    /// Its tasks, each with a name of its own.
    pub tasks: Tasks<Input>,
}

/// Tasks with their inputs. All inputs are in one list, because a job may have a hundred thousand small tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tasks<I> {
    ids: Vec<Box<str>>,
    /// Where the inputs of each task end; they begin where those of the task before end.
    ends: Vec<usize>,
    inputs: Vec<I>,
}

impl<I> Default for Tasks<I> {
    fn default() -> Self {
        Self {
            ids: Vec::new(),
            ends: Vec::new(),
            inputs: Vec::new(),
        }
    }
}

impl<I> Tasks<I> {
    /// Adds an input to the task that is ended next.
    pub fn add_input(&mut self, input: I) {
        self.inputs.push(input);
    }

    /// Ends a task: its inputs are those that were added since the last one.
    pub fn end_task(&mut self, id: Box<str>) {
        self.ids.push(id);
        self.ends.push(self.inputs.len());
    }

    /// Returns the number of tasks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns whether there are no tasks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the inputs of all tasks.
    #[must_use]
    pub fn inputs(&self) -> &[I] {
        &self.inputs
    }

    /// Returns the tasks, each with its inputs.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[I])> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends);
        let inputs = ranges.map(|(start, end)| &self.inputs[start..*end]);
        self.ids.iter().map(|id| &**id).zip(inputs)
    }

    /// Returns the names of the tasks, and their inputs as a table.
    #[must_use]
    pub fn into_parts(self) -> (Vec<Box<str>>, Vec<usize>, Vec<I>) {
        (self.ids, self.ends, self.inputs)
    }
}

/// A file that a task reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Input {
    /// The index of its path.
    pub file: u32,
    /// The part that is read.
    pub part: InputPart,
}

/// The part of a path that a task reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputPart {
    /// The whole file.
    Whole,
    /// Bytes of the file.
    Range {
        /// The offset of the first one.
        offset: u64,
        /// Their number.
        len: u64,
    },
    /// All files of the directory and below.
    Recursive,
}

/// When a task's inputs are released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consume {
    /// When the task ends.
    #[default]
    Done,
    /// Also when a process of the task has read them.
    Read,
}

/// An event of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobEvent {
    /// The tenant that the line names, if any.
    pub tenant: Option<String>,
    /// The job's name, unique for the tenant.
    pub job: String,
}

/// An event of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskEvent {
    /// The job.
    pub job: JobEvent,
    /// The task's name.
    pub task: String,
}

/// Why a line is refused, and advice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}. {advice}")]
pub struct LineError {
    /// The failure and its reason.
    pub error: String,
    /// What to try.
    pub advice: String,
}

impl LineError {
    /// Creates one.
    pub fn new(error: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            advice: advice.into(),
        }
    }
}

const PIPELINES_MD: &str = "docs/PIPELINES.md describes the lines";

impl Line {
    /// Parses a line that is in memory, with at most `inputs_max` inputs and paths.
    ///
    /// # Errors
    /// See [`LineError`].
    pub fn parse(line: &[u8], inputs_max: usize) -> Result<Self, LineError> {
        let mut parser = serde_json::Deserializer::from_slice(line);
        let fields = fields(&mut parser, inputs_max)?;
        parser.end().map_err(|error| syntax(&error))?;
        fields.check()
    }

    /// Like [`Line::parse`], while the line arrives. `line` ends where the line ends.
    ///
    /// # Errors
    /// See [`LineError`].
    pub fn read(line: impl Read, inputs_max: usize) -> Result<Self, LineError> {
        // The parser takes single bytes.
        let line = BufReader::new(Bounded::new(line));
        let mut parser = serde_json::Deserializer::from_reader(line);
        let fields = fields(&mut parser, inputs_max)?;
        parser.end().map_err(|error| syntax(&error))?;
        fields.check()
    }
}

/// All fields that a line may have.
#[derive(Default)]
struct Fields {
    v: Option<u64>,
    op: Option<String>,
    submission: Submission,
    task: Option<String>,
    /// Paths that tasks have named themselves.
    own_paths: HashMap<Box<str>, u32>,
    tasks: TaskList,
}

#[derive(Default)]
struct TaskList {
    tasks: Tasks<Input>,
    /// The tasks that are to end before a task: its index, and the name of the other one.
    after: Vec<(usize, Box<str>)>,
    /// Whether a task names its inputs by indexes into `files`.
    by_index: bool,
    /// Whether a task names its inputs by paths of its own.
    by_path: bool,
}

impl Fields {
    fn check(self) -> Result<Line, LineError> {
        match self.v {
            Some(VERSION) => {}
            Some(v) => {
                let error = format!("version {v} of the lines is not known here");
                let advice = format!("This daemon takes \"v\":{VERSION}: {PIPELINES_MD}");
                return Err(LineError::new(error, advice));
            }
            None => {
                let error = "the line does not say its version";
                return Err(LineError::new(error, format!("Add \"v\":{VERSION}")));
            }
        }
        let op = self.op.as_deref().unwrap_or_default();
        if op == "attach" {
            return Ok(Line::Attach);
        }
        if !["submit", "done", "taskfail", "end"].contains(&op) {
            let error = format!("{op:?} is not an operation");
            return Err(LineError::new(
                error,
                "Write \"op\":\"submit\", done, taskfail, end or attach",
            ));
        }
        name("job", &self.submission.job.job)?;
        if let Some(tenant) = &self.submission.job.tenant {
            name("tenant", tenant)?;
        }
        match op {
            "submit" => Ok(Line::Submit(Box::new(self.submission()?))),
            "end" => Ok(Line::End(self.submission.job)),
            _ => {
                let task = self.task.unwrap_or_default();
                name("task", &task)?;
                let event = TaskEvent {
                    job: self.submission.job,
                    task,
                };
                Ok(match op {
                    "done" => Line::Done(event),
                    _ => Line::TaskFail(event),
                })
            }
        }
    }

    fn submission(self) -> Result<Submission, LineError> {
        let mut submission = self.submission;
        name("dataset", &submission.dataset)?;
        if let Some(seconds) = submission.expires_s
            && !(seconds.is_finite() && seconds > 0.0)
        {
            let error = format!("expires_s is {seconds}");
            return Err(LineError::new(
                error,
                "Write seconds above 0, such as 86400",
            ));
        }
        let list = self.tasks;
        if list.by_path {
            if !submission.files.is_empty() || list.by_index {
                let error = "some inputs are paths, and others are indexes into files";
                return Err(LineError::new(error, "Use one of both in a submission"));
            }
            let mut paths: Vec<(Box<str>, u32)> = self.own_paths.into_iter().collect();
            paths.sort_unstable_by_key(|(_, index)| *index);
            submission.files = paths.into_iter().map(|(path, _)| path).collect();
        }
        let files = submission.files.len();
        for (id, inputs) in list.tasks.iter() {
            name("task", id)?;
            if let Some(input) = inputs.iter().find(|input| input.file as usize >= files) {
                let error = format!(
                    "task {id:?} reads file {}, and there are {files} files",
                    input.file
                );
                return Err(LineError::new(error, "Indexes into files begin with 0"));
            }
        }
        check_order(&list)?;
        submission.tasks = list.tasks;
        Ok(submission)
    }
}

fn name(kind: &str, name: &str) -> Result<(), LineError> {
    if name.is_empty() {
        let error = format!("the line names no {kind}");
        return Err(LineError::new(error, PIPELINES_MD));
    }
    if name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let shown: String = name.chars().take(60).collect();
        let error = format!("{shown:?} cannot name a {kind}");
        let advice = format!("Write up to {NAME_BYTES_MAX} bytes without control characters");
        return Err(LineError::new(error, advice));
    }
    Ok(())
}

/// Checks that the tasks before each task are listed, and that none comes before itself.
fn check_order(list: &TaskList) -> Result<(), LineError> {
    if list.after.is_empty() {
        return Ok(());
    }
    let ids = &list.tasks.ids;
    let numbered = ids.iter().enumerate();
    let positions: HashMap<&str, usize> = numbered.map(|(at, id)| (&**id, at)).collect();
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); ids.len()];
    let mut waits_for: Vec<usize> = vec![0; ids.len()];
    for (at, before) in &list.after {
        let Some(known) = positions.get(&**before) else {
            let error = format!(
                "task {:?} comes after {before:?}, which is not listed",
                ids[*at]
            );
            let advice = "List all tasks of a job in one submission, or leave out \"after\"";
            return Err(LineError::new(error, advice));
        };
        followers[*known].push(*at);
        waits_for[*at] += 1;
    }
    let mut ready: Vec<usize> = (0..ids.len()).filter(|at| waits_for[*at] == 0).collect();
    let mut done = 0;
    while let Some(at) = ready.pop() {
        done += 1;
        for next in &followers[at] {
            waits_for[*next] -= 1;
            if waits_for[*next] == 0 {
                ready.push(*next);
            }
        }
    }
    if done == ids.len() {
        return Ok(());
    }
    let circle = ids.iter().zip(&waits_for).filter(|(_, waits)| **waits > 0);
    let names: Vec<&str> = circle.map(|(id, _)| &**id).take(5).collect();
    let error = format!(
        "tasks wait for each other in a circle: {}",
        names.join(", ")
    );
    Err(LineError::new(error, "Look at their \"after\""))
}

#[cfg(test)]
mod tests;
