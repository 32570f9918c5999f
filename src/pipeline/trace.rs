//! Makes a trace for `lrc replay` from the log of a run. Pure.
//!
//! A log has submissions and ends, and no reads, because an engine does not tell them. A task has read its inputs when
//! it ends, so each input is read just before the `done` of its task, in the order of the submission. Blocks are the
//! items of homes: a file, or each 4 MiB of a larger one, named `PATH#STRIPE`.

use super::message::{Input, Message, Op, Submission, Task};
use copperfs_policy::references::Admit;
use copperfs_policy::references::replay::{Decrement, Event, Options, Task as TraceTask};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Bytes of a block.
const STRIPE_BYTES: u64 = 4 << 20;

/// A line of a log.
#[derive(Debug, Deserialize)]
struct Logged<'a> {
    #[serde(default)]
    expected: bool,
    #[serde(borrow)]
    answer: Answer<'a>,
}

#[derive(Debug, Deserialize)]
struct Answer<'a> {
    #[serde(default)]
    accepted: bool,
    #[serde(borrow, default)]
    error: Option<std::borrow::Cow<'a, str>>,
}

/// A trace, with the fields that `lrc replay` reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoggedTrace {
    cache: u64,
    blocks: BTreeMap<String, u64>,
    options: Options,
    events: Vec<Event>,
}

/// Why a log has no trace.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A line is none of a log.
    #[error(
        "line {line}: it is no line of a log ({source}). Give the file of copperfs lrc run --log"
    )]
    Line {
        /// Its number, from 1.
        line: usize,
        /// The reason.
        source: serde_json::Error,
    },
}

/// The submissions and events of a log that were accepted, in order.
#[derive(Debug)]
pub struct RunEvents(Vec<Message>);

impl RunEvents {
    /// Reads the lines of a log. Without `expected`, the jobs that a profile let expect are left out.
    ///
    /// # Errors
    /// A line is none of a log. The last one may be cut, because the run may have been killed.
    pub fn read<'a>(
        lines: impl Iterator<Item = &'a [u8]>,
        expected: bool,
    ) -> Result<Self, LogError> {
        /// The relayed line.
        #[derive(Deserialize)]
        struct Relayed {
            line: serde_json::Value,
        }
        let mut events = Vec::new();
        let mut cut = None;
        for (number, text) in (1..).zip(lines) {
            if let Some(error) = cut.take() {
                return Err(error);
            }
            let read = || -> serde_json::Result<Option<Message>> {
                let logged: Logged<'_> = serde_json::from_slice(text)?;
                let is_taken = logged.answer.accepted && logged.answer.error.is_none();
                if !is_taken || (logged.expected && !expected) {
                    return Ok(None);
                }
                let Relayed { line } = serde_json::from_slice(text)?;
                Message::from_json(line.to_string().as_bytes()).map(Some)
            };
            match read() {
                Ok(message) => events.extend(message),
                Err(source) => {
                    let line = number;
                    cut = Some(LogError::Line { line, source });
                }
            }
        }
        match cut {
            // Something else than a log has no line that could be read.
            Some(error) if events.is_empty() => Err(error),
            _ => Ok(Self(events)),
        }
    }

    /// The paths that are inputs, and whether all files below them are.
    #[must_use]
    pub fn paths(&self) -> BTreeSet<(&str, bool)> {
        let mut paths = BTreeSet::new();
        for message in &self.0 {
            let Message::Submit(submission) = message else {
                continue;
            };
            paths.extend(submission.files.iter().map(|path| (path.as_str(), false)));
            let named = submission.tasks.iter().flat_map(|task| &task.paths);
            paths.extend(named.map(|input| (input.path.as_str(), input.recursive)));
        }
        paths
    }

    /// The trace for a cache of `cache` bytes, of which `floor` are for undeclared blocks. `sizes` has the bytes of each
    /// file; a file that it lacks is no input, as for the daemon.
    #[must_use]
    pub fn trace(&self, sizes: &BTreeMap<String, u64>, cache: u64, floor: u64) -> LoggedTrace {
        let mut trace = LoggedTrace {
            cache,
            blocks: BTreeMap::new(),
            options: Options {
                admit: Admit::Compare,
                decrement: Decrement::Done,
                floor,
                ..Options::default()
            },
            events: Vec::new(),
        };
        // The blocks of each task of the last attempt of each job, until the task ends.
        let mut live = Live::new();
        for message in &self.0 {
            match message {
                Message::Submit(submission) => {
                    if submission.consume.as_deref() == Some("read") {
                        trace.options.decrement = Decrement::Read;
                    }
                    let tenant = submission.tenant.clone().unwrap_or_default();
                    let blocks = trace.submit(&tenant, submission, sizes);
                    live.insert((tenant, submission.job.clone()), blocks);
                }
                Message::Event(event) => trace.event(&mut live, event),
            }
        }
        trace
    }
}

/// The blocks of each task that has not ended, by tenant and job, and by task.
type Live = HashMap<(String, String), HashMap<String, Vec<String>>>;

impl LoggedTrace {
    fn submit(
        &mut self,
        tenant: &str,
        submission: &Submission,
        sizes: &BTreeMap<String, u64>,
    ) -> HashMap<String, Vec<String>> {
        let mut tasks = Vec::with_capacity(submission.tasks.len());
        let mut live = HashMap::with_capacity(submission.tasks.len());
        for task in &submission.tasks {
            let mut seen = BTreeSet::new();
            let mut inputs = Vec::new();
            for (path, off, end) in ranges(submission, task, sizes) {
                for (name, size) in blocks(path, sizes[path], off, end) {
                    if seen.insert(name.clone()) {
                        self.blocks.insert(name.clone(), size);
                        inputs.push(name);
                    }
                }
            }
            live.insert(task.id.clone(), inputs.clone());
            let id = task.id.clone();
            tasks.push(TraceTask { id, inputs });
        }
        self.events.push(Event::Submit {
            tenant: tenant.to_owned(),
            job: submission.job.clone(),
            attempt: submission.attempt,
            tasks,
        });
        live
    }

    fn event(&mut self, live: &mut Live, event: &super::message::Event) {
        let tenant = event.tenant.clone().unwrap_or_default();
        let (name, task) = (event.job.clone(), event.task.clone().unwrap_or_default());
        let job = (tenant.clone(), name.clone());
        let event = match event.op {
            Op::Done => {
                let tasks = live.get_mut(&job);
                for block in tasks
                    .and_then(|tasks| tasks.remove(&task))
                    .unwrap_or_default()
                {
                    self.events.push(Event::Read {
                        tenant: tenant.clone(),
                        job: Some(name.clone()),
                        task: Some(task.clone()),
                        block,
                    });
                }
                Event::Done {
                    tenant,
                    job: name,
                    task,
                }
            }
            Op::TaskFail => Event::TaskFail {
                tenant,
                job: name,
                task,
            },
            Op::End | Op::Submit => {
                live.remove(&job);
                Event::End { tenant, job: name }
            }
        };
        self.events.push(event);
    }
}

/// The inputs of a task that are there: the path, the first byte, and the end.
fn ranges<'a>(
    submission: &'a Submission,
    task: &'a Task,
    sizes: &'a BTreeMap<String, u64>,
) -> Vec<(&'a str, u64, u64)> {
    let mut ranges = Vec::new();
    for input in &task.inputs {
        let (index, off, end) = match *input {
            Input::Whole(index) => (index, 0, u64::MAX),
            Input::Range(index, off, len) => (index, off, off.saturating_add(len)),
        };
        ranges.extend(
            submission
                .files
                .get(index)
                .map(|path| (path.as_str(), off, end)),
        );
    }
    for input in &task.paths {
        if input.recursive {
            let path = input.path.trim_end_matches('/');
            let is_below = |(file, _): &(&'a String, &u64)| {
                let rest = file.strip_prefix(path);
                path.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            let from = sizes.range(path.to_owned()..);
            let same = from.take_while(|(file, _)| file.starts_with(path));
            ranges.extend(
                same.filter(is_below)
                    .map(|(file, _)| (file.as_str(), 0, u64::MAX)),
            );
        } else {
            let off = input.off.unwrap_or(0);
            let end = input.len.map_or(u64::MAX, |len| off.saturating_add(len));
            ranges.push((input.path.as_str(), off, end));
        }
    }
    ranges.retain(|(path, ..)| sizes.contains_key(*path));
    ranges
}

/// The blocks of a file of `size` bytes that a range touches, with their sizes.
fn blocks(path: &str, size: u64, off: u64, end: u64) -> impl Iterator<Item = (String, u64)> {
    let end = end.min(size);
    let stripes = if off < end {
        off / STRIPE_BYTES..end.div_ceil(STRIPE_BYTES)
    } else {
        0..0
    };
    stripes.map(move |stripe| {
        let bytes = (size - stripe * STRIPE_BYTES).min(STRIPE_BYTES);
        (format!("{path}#{stripe}"), bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use copperfs_policy::references::EvictionPolicy;
    use copperfs_policy::references::replay::{Trace, replay};

    const LOG: &str = r#"{"ms":1,"line":{"v":1,"op":"submit","job":"j","attempt":0,"files":["a","d/b","gone"],"tasks":[{"id":"t","in":[[0,4194303,2],1,2]},{"id":"u","in":[1]}]},"answer":{"accepted":true,"blocks":3}}
{"ms":2,"line":{"v":1,"op":"submit","job":"bad","attempt":0,"tasks":[]},"answer":{"error":"no","try":"x"}}
{"ms":2,"line":{"v":1,"op":"submit","job":"j","attempt":0,"tasks":[]},"answer":{"accepted":false}}
{"ms":3,"expected":true,"line":{"v":1,"op":"submit","job":"e","attempt":0,"tasks":[{"id":"0","inputs":[{"path":"d","recursive":true}]}]},"answer":{"accepted":true}}
{"ms":4,"line":{"v":1,"op":"taskfail","job":"j","task":"t"},"answer":{"accepted":true}}
{"ms":4,"line":{"v":1,"op":"done","job":"j","task":"t"},"answer":{"accepted":true}}
{"ms":5,"line":{"v":1,"op":"done","job":"j","task":"u"},"answer":{"accepted":true}}
{"ms":6,"expected":true,"line":{"v":1,"op":"end","job":"e"},"answer":{"accepted":true}}
{"ms":6,"line":{"v":1,"op":"end","job":"j"},"answer":{"accepted":true}}
{"ms":7,"line":{"v":1,"op":"do"#;

    fn sizes() -> BTreeMap<String, u64> {
        let sizes = [("a", 9 << 20), ("d/b", 10), ("d2", 1), ("d", 0)];
        sizes.map(|(path, size)| (path.to_owned(), size)).into()
    }

    #[test]
    fn a_log_is_replayed_with_reads_at_the_ends_of_tasks() {
        let lines = || LOG.as_bytes().split(|byte| *byte == b'\n');
        let events = RunEvents::read(lines(), true).unwrap();
        let paths: Vec<(&str, bool)> = events.paths().into_iter().collect();
        assert_eq!(
            paths,
            [("a", false), ("d", true), ("d/b", false), ("gone", false)]
        );
        let trace = events.trace(&sizes(), 1 << 30, 1 << 20);
        let json = serde_json::to_string(&trace).unwrap();
        let shown: serde_json::Value = serde_json::from_str(&json).unwrap();
        let blocks = serde_json::json!({"a#0": 4 << 20, "a#1": 4 << 20, "d/b#0": 10});
        assert_eq!(shown["blocks"], blocks);
        let kinds: Vec<&str> = (shown["events"].as_array().unwrap().iter())
            .map(|event| event["ev"].as_str().unwrap())
            .collect();
        assert_eq!(
            kinds,
            [
                "submit", "submit", "taskfail", "read", "read", "read", "done", "read", "done",
                "end", "end"
            ]
        );
        assert_eq!(
            shown["events"][1]["tasks"][0]["in"],
            serde_json::json!(["d/b#0"])
        );
        let trace = Trace::from_json(json.as_bytes()).unwrap();
        let outcome = replay(&trace, EvictionPolicy::Lrc).unwrap();
        let outcome = serde_json::to_value(outcome).unwrap();
        assert_eq!(
            (&outcome["hits"], &outcome["misses"]),
            (&1.into(), &3.into())
        );
        assert_eq!(outcome["counts"], serde_json::json!({}));
        // Without the expected jobs.
        let events = RunEvents::read(lines(), false).unwrap();
        assert_eq!(events.trace(&sizes(), 1 << 30, 0).events.len(), 9);
    }

    #[test]
    fn the_last_byte_of_a_block_is_in_it() {
        let names = |size, off, end| {
            blocks("f", size, off, end)
                .map(|(name, _)| name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(8 << 20, 0, 4 << 20), ["f#0"]);
        assert_eq!(names(8 << 20, (4 << 20) - 1, (4 << 20) + 1), ["f#0", "f#1"]);
        assert_eq!(names(5, 0, u64::MAX), ["f#0"]);
        assert!(
            names(5, 5, 9).is_empty() && names(0, 0, 9).is_empty() && names(9, 3, 3).is_empty()
        );
    }

    #[test]
    fn something_else_than_a_log_is_refused() {
        for text in ["{\"cache\":1}\n", "hello\n{}", "\n"] {
            let lines = text.as_bytes().split(|byte| *byte == b'\n');
            let error = RunEvents::read(lines, true).unwrap_err().to_string();
            assert!(
                error.starts_with("line 1: it is no line of a log"),
                "{error}"
            );
        }
    }
}
