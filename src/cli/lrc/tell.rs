//! `copperfs lrc submit`, `done`, `taskfail` and `end`: tells the daemon of jobs.

use super::super::daemon;
use super::super::mounted::MountFlag;
use super::super::{fail, say};
use crate::control::client::AnswerLines;
use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Options of `lrc submit`.
#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// The lines as JSON, one object each; - reads standard input
    #[arg(value_name = "FILE")]
    lines: PathBuf,
    /// End the jobs when this command ends, or when its input does
    #[arg(long)]
    attach: bool,
    #[command(flatten)]
    mounted: MountFlag,
}

/// Options of `lrc done` and `lrc taskfail`.
#[derive(Debug, Args)]
pub struct TaskArgs {
    /// The job's name
    job: String,
    /// The task's name
    task: String,
    #[command(flatten)]
    of: OfTenant,
}

/// Options of `lrc end`.
#[derive(Debug, Args)]
pub struct EndArgs {
    /// The job's name
    job: String,
    #[command(flatten)]
    of: OfTenant,
}

/// Whose job it is.
#[derive(Debug, Args)]
pub(super) struct OfTenant {
    /// The tenant that the job belongs to [default: your user id]
    #[arg(long, value_name = "NAME")]
    pub(super) tenant: Option<String>,
    #[command(flatten)]
    pub(super) mounted: MountFlag,
}

/// How long the daemon may take for an answer when all lines were sent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(70);
/// Bytes of input in memory.
const CHUNK_BYTES: usize = 64 << 10;

/// Sends the lines of a file, and prints the answers.
///
/// # Errors
/// The file cannot be read, the daemon cannot be reached, or it refuses a line.
pub(super) fn submit(args: &SubmitArgs) -> anyhow::Result<()> {
    let input = open(&args.lines).with_context(|| args.lines.display().to_string())?;
    let client = args.mounted.client()?;
    let refused = daemon::run(async {
        let (mut answers, mut request) = client.converse("POST", "/v1/lrc").await?;
        if args.attach {
            request.send(&json!({ "v": 1, "op": "attach" })).await?;
            request.flush().await?;
            drop(answers.line().await?);
        }
        // Read on a thread of its own, so that answers are printed while a pipe is open.
        let (chunks, mut queue) = mpsc::channel(4);
        std::thread::spawn(move || read_lines(input, &chunks));
        // Answers are read in a task of their own: the daemon takes no further lines while they wait.
        let (count, mut counted) = watch::channel(0);
        let mut reading = tokio::spawn(print_answers(answers, count));
        let (mut sent, mut outcome) = (0, None);
        while outcome.is_none() {
            tokio::select! {
                chunk = queue.recv() => match chunk.transpose()? {
                    Some(Chunk { bytes, lines }) => {
                        sent += lines;
                        // The answers say why.
                        if request.send_bytes(bytes).await.is_err() {
                            break;
                        }
                    }
                    None => break,
                },
                done = &mut reading => outcome = Some(done),
            }
        }
        // The daemon ends its answers after the last line.
        drop(request);
        let refused = loop {
            if let Some(done) = outcome {
                break done?;
            }
            let next = async {
                tokio::select! {
                    done = &mut reading => Some(done),
                    _more = counted.changed() => None,
                }
            };
            let next = tokio::time::timeout(ANSWER_TIMEOUT, next).await;
            outcome = next.context("the daemon sends nothing any more")?;
        };
        let answered = *counted.borrow();
        ensure!(
            answered >= sent,
            "the daemon has gone away: {} lines were not answered",
            sent - answered
        );
        Ok(refused)
    })?;
    match refused {
        0 => Ok(()),
        1 => bail!("a line was refused"),
        _ => bail!("{refused} lines were refused"),
    }
}

/// Tells of the end or the failure of a task.
///
/// # Errors
/// The daemon cannot be reached, or refuses.
pub(super) fn task(op: &str, args: &TaskArgs) -> anyhow::Result<()> {
    let TaskArgs { job, task, of } = args;
    let line = json!({ "v": 1, "op": op, "tenant": of.tenant, "job": job, "task": task });
    match accepted(&of.mounted, &line)? {
        true if op == "done" => say(format_args!("{task} of {job} has released its inputs")),
        true => say(format_args!("{task} of {job} will read its inputs again")),
        false => say(format_args!(
            "nothing to do: {task} is no task of a live job {job} of this node, or has ended"
        )),
    }
    Ok(())
}

/// Ends a job.
///
/// # Errors
/// The daemon cannot be reached, or refuses.
pub(super) fn end(args: &EndArgs) -> anyhow::Result<()> {
    let EndArgs { job, of } = args;
    let line = json!({ "v": 1, "op": "end", "tenant": of.tenant, "job": job });
    match accepted(&of.mounted, &line)? {
        true => say(format_args!("{job} has ended")),
        false => say(format_args!(
            "nothing to do: no job {job} is live on this node"
        )),
    }
    Ok(())
}

fn accepted(mounted: &MountFlag, line: &Value) -> anyhow::Result<bool> {
    let client = mounted.client()?;
    daemon::run(async {
        let (mut answers, mut request) = client.converse("POST", "/v1/lrc").await?;
        request.send(line).await?;
        request.flush().await?;
        let answer: Value = serde_json::from_slice(&answers.line().await?)?;
        if let Some(error) = answer["error"].as_str() {
            bail!("{error}. {}", daemon::text(&answer, "try"));
        }
        Ok(answer["accepted"].as_bool().unwrap_or(false))
    })
}

/// Prints all answers, and counts them. Returns the number of refusals.
async fn print_answers(mut answers: AnswerLines, count: watch::Sender<u64>) -> u64 {
    let mut refused = 0;
    // An error is the end too: then answers are missing.
    while let Ok(Some(answer)) = answers.wait().await {
        refused += u64::from(is_refused(&answer));
        count.send_modify(|count| *count += 1);
    }
    refused
}

/// Prints an answer. Returns whether it is a refusal.
fn is_refused(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let parsed: Value = serde_json::from_str(&text).unwrap_or_default();
    match parsed["error"].as_str() {
        Some(error) => {
            fail(format_args!("{error}. {}", daemon::text(&parsed, "try")));
            true
        }
        None => {
            say(text);
            false
        }
    }
}

fn open(path: &Path) -> std::io::Result<Box<dyn BufRead + Send>> {
    Ok(match path.to_str() {
        Some("-") => Box::new(BufReader::new(std::io::stdin())),
        _ => Box::new(BufReader::with_capacity(
            CHUNK_BYTES,
            std::fs::File::open(path)?,
        )),
    })
}

/// Bytes of input, with the number of lines that end in them.
struct Chunk {
    bytes: Vec<u8>,
    lines: u64,
}

fn read_lines(mut input: impl Read, chunks: &mpsc::Sender<std::io::Result<Chunk>>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut objects = Objects::default();
    loop {
        let chunk = match input.read(&mut buffer) {
            Ok(0) => {
                // Input that ends within an object, which the daemon refuses.
                let bytes = objects.finish();
                let lines = u64::from(!bytes.is_empty());
                drop(chunks.blocking_send(Ok(Chunk { bytes, lines })));
                return;
            }
            Ok(count) => Ok(objects.take(&buffer[..count])),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let failed = chunk.is_err();
        if chunks.blocking_send(chunk).is_err() || failed {
            return;
        }
    }
}

/// Writes each object on a line of its own, however the input is laid out.
#[derive(Default)]
struct Objects {
    depth: u64,
    is_text: bool,
    is_escaped: bool,
    /// The last line has more than blanks.
    has_begun: bool,
}

impl Objects {
    fn take(&mut self, input: &[u8]) -> Chunk {
        let mut bytes = Vec::with_capacity(input.len() + 1);
        let mut lines = 0;
        for byte in input {
            let is_newline = matches!(byte, b'\n' | b'\r');
            if is_newline && self.depth > 0 {
                // Within an object it is a blank. Within a text it is not allowed, and stays a fault.
                bytes.push(if self.is_text { 0x1f } else { b' ' });
                continue;
            }
            if is_newline {
                if self.has_begun {
                    bytes.push(b'\n');
                    lines += 1;
                }
                self.has_begun = false;
                continue;
            }
            bytes.push(*byte);
            self.has_begun |= !byte.is_ascii_whitespace();
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_text => self.is_escaped = true,
                b'"' => self.is_text = !self.is_text,
                b'{' | b'[' if !self.is_text => self.depth += 1,
                b'}' | b']' if !self.is_text => {
                    self.depth = self.depth.saturating_sub(1);
                    // Objects may follow each other on one line.
                    if self.depth == 0 {
                        bytes.push(b'\n');
                        lines += 1;
                        self.has_begun = false;
                    }
                }
                _ => {}
            }
        }
        Chunk { bytes, lines }
    }

    fn finish(&mut self) -> Vec<u8> {
        match std::mem::take(&mut self.has_begun) || self.depth > 0 {
            true => vec![b'\n'],
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(input: &str, size: usize) -> (String, u64) {
        let mut objects = Objects::default();
        let (mut text, mut count) = (Vec::new(), 0);
        for part in input.as_bytes().chunks(size) {
            let Chunk { bytes, lines } = objects.take(part);
            text.extend(bytes);
            count += lines;
        }
        let rest = objects.finish();
        count += u64::from(!rest.is_empty());
        text.extend(rest);
        (String::from_utf8(text).unwrap(), count)
    }

    #[test]
    fn each_object_is_a_line_however_it_is_laid_out() {
        for size in [1, 3, 1000] {
            let pretty =
                "{\n  \"a\": [\n 1,\n 2 ],\r\n \"b\": \"x}{\\\"\\n\"\n}\n\n{\"c\":{}} {\"d\":1}\n";
            let (text, count) = lines(pretty, size);
            assert_eq!(count, 3, "{text}");
            let parsed: Vec<Value> = text
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            assert_eq!(
                parsed,
                [
                    json!({"a": [1, 2], "b": "x}{\"\n"}),
                    json!({"c": {}}),
                    json!({"d": 1}),
                ]
            );
            assert_eq!(lines("", size), (String::new(), 0));
            assert_eq!(lines(" \n \n", size).1, 0);
            assert_eq!(lines("{\"a\":[1", size), ("{\"a\":[1\n".to_owned(), 1));
            // The daemon refuses other texts, line by line.
            assert_eq!(lines("x\ny", size), ("x\ny\n".to_owned(), 2));
        }
    }
}
