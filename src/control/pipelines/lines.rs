//! The lines of a body, each parsed. A long line is parsed while it arrives.

use super::super::turns::Turns;
use crate::pipeline::{Line, LineError};
use axum::body::{Body, Bytes};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use std::io::{self, Read};
use std::time::Duration;
use tokio::sync::mpsc;

/// Lines up to this many bytes are in memory whole.
const SHORT_BYTES_MAX: usize = 64 << 10;
/// The maximum length of a line: a job with millions of inputs. Its values may take as much memory. `copperfs lrc run` has
/// the same limit.
const LINE_BYTES_MAX: usize = 256 << 20;
/// How long the next bytes of a line may take.
const BYTES_TIMEOUT: Duration = Duration::from_secs(10);
/// Chunks of a long line that wait to be parsed.
const CHUNKS_QUEUED: usize = 4;

/// See the module.
pub(super) struct BodyLines {
    body: BoxStream<'static, io::Result<Bytes>>,
    /// Bytes that have arrived after the last line.
    rest: Bytes,
}

/// Why no further line can be read.
pub(super) enum TornLine {
    /// The client can be told.
    Refused(LineError),
    /// The connection has failed.
    Lost(io::Error),
}

type Parsed = Result<Line, LineError>;

impl BodyLines {
    pub(super) fn new(body: Body) -> Self {
        let frames = body.into_data_stream();
        let body = frames.map(|frame| frame.map_err(io::Error::other)).boxed();
        let rest = Bytes::new();
        Self { body, rest }
    }

    /// Waits for the next line without a time limit, because tasks may run for days. `None` after the last one. `inputs_max`
    /// limits its inputs. A long line takes one of `turns` of `user`.
    pub(super) async fn next(
        &mut self,
        inputs_max: usize,
        turns: &Turns,
        user: Option<u32>,
    ) -> Result<Option<Parsed>, TornLine> {
        let mut line = Vec::new();
        loop {
            let (part, is_end) = self.part();
            line.extend_from_slice(&part);
            if is_end && line.trim_ascii().is_empty() {
                // An empty line, as at the end of a file.
                line.clear();
                continue;
            }
            if is_end {
                return Ok(Some(Line::parse(&line, inputs_max)));
            }
            if line.len() > SHORT_BYTES_MAX {
                let turn = turns.wait(user).await;
                let _turn = turn.map_err(|refused| TornLine::Refused(busy(&refused.0.body)))?;
                return self.long(line.into(), inputs_max).await.map(Some);
            }
            let wait = if line.is_empty() {
                None
            } else {
                Some(BYTES_TIMEOUT)
            };
            match self.arrive(wait).await? {
                true => {}
                false if line.trim_ascii().is_empty() => return Ok(None),
                // The last line of a body needs no newline.
                false => return Ok(Some(Line::parse(&line, inputs_max))),
            }
        }
    }

    /// Parses a line that begins with `first`, while its rest arrives.
    async fn long(&mut self, first: Bytes, inputs_max: usize) -> Result<Parsed, TornLine> {
        let (chunks, queue) = mpsc::channel(CHUNKS_QUEUED);
        let parsing = tokio::task::spawn_blocking(move || {
            let chunk = Bytes::new();
            Line::read(Chunks { queue, chunk }, inputs_max)
        });
        let mut len = first.len();
        // If the parser has given up, the rest of the line is skipped.
        drop(chunks.send(first).await);
        loop {
            let (part, is_end) = self.part();
            len += part.len();
            if len > LINE_BYTES_MAX {
                let error = format!("a line has more than {LINE_BYTES_MAX} bytes");
                let refused = LineError::new(error, "Submit the job as several ones");
                return Err(TornLine::Refused(refused));
            }
            drop(chunks.send(part).await);
            if is_end || !self.arrive(Some(BYTES_TIMEOUT)).await? {
                break;
            }
        }
        drop(chunks);
        let stopped = |_| {
            let refused =
                LineError::new("this node is shutting down", "Submit the job again later");
            TornLine::Refused(refused)
        };
        parsing.await.map_err(stopped)
    }

    /// Takes the part of the line that has arrived. Returns whether the line ends with it.
    fn part(&mut self) -> (Bytes, bool) {
        match self.rest.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let part = self.rest.split_to(end);
                // The newline.
                drop(self.rest.split_to(1));
                (part, true)
            }
            None => (std::mem::take(&mut self.rest), false),
        }
    }

    /// Waits for further bytes. Returns whether there are any.
    async fn arrive(&mut self, limit: Option<Duration>) -> Result<bool, TornLine> {
        let next = self.body.next();
        let next = match limit {
            None => next.await,
            Some(limit) => tokio::time::timeout(limit, next)
                .await
                .map_err(|_elapsed| {
                    let error = "the rest of a line does not arrive";
                    TornLine::Refused(LineError::new(error, "Send each line whole"))
                })?,
        };
        match next {
            Some(Ok(bytes)) => {
                self.rest = bytes;
                Ok(true)
            }
            Some(Err(error)) => Err(TornLine::Lost(error)),
            None => Ok(false),
        }
    }
}

fn busy(body: &serde_json::Value) -> LineError {
    let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
    LineError::new(text("error"), text("try"))
}

/// The bytes of a line, for a parser on a thread of its own.
struct Chunks {
    queue: mpsc::Receiver<Bytes>,
    chunk: Bytes,
}

impl Read for Chunks {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.queue.blocking_recv() {
                Some(chunk) => self.chunk = chunk,
                None => return Ok(0),
            }
        }
        let count = into.len().min(self.chunk.len());
        let taken = self.chunk.split_to(count);
        into[..count].copy_from_slice(&taken);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    fn lines(chunks: Vec<Vec<u8>>) -> BodyLines {
        let chunks = chunks.into_iter().map(Ok::<_, io::Error>);
        BodyLines::new(Body::from_stream(stream::iter(chunks)))
    }

    async fn all(chunks: Vec<Vec<u8>>) -> Vec<String> {
        let (mut lines, turns) = (lines(chunks), Turns::default());
        let mut found = Vec::new();
        loop {
            match lines.next(200_000, &turns, Some(1)).await {
                Ok(None) => return found,
                Ok(Some(Ok(Line::End(event)))) => found.push(event.job),
                Ok(Some(Ok(Line::Submit(job)))) => found.push(format!("{} tasks", job.tasks.len())),
                Ok(Some(Ok(other))) => panic!("{other:?}"),
                Ok(Some(Err(refused))) => found.push(refused.error),
                Err(TornLine::Refused(refused)) => panic!("{refused}"),
                Err(TornLine::Lost(error)) => panic!("{error}"),
            }
        }
    }

    fn end(job: &str) -> String {
        format!("{{\"v\":1,\"op\":\"end\",\"job\":\"{job}\"}}")
    }

    #[tokio::test]
    async fn lines_are_cut_at_newlines_however_they_arrive() {
        let long = {
            let task = |at: usize| format!("{{\"id\":\"task-{at}\",\"in\":[0,1]}}");
            let tasks: Vec<String> = (0..20_000).map(task).collect();
            let tasks = tasks.join(",");
            format!(
                "{{\"v\":1,\"op\":\"submit\",\"job\":\"j\",\"dataset\":\"d\",\"files\":[\"a\",\"b\"],\"tasks\":[{tasks}]}}"
            )
        };
        assert!(long.len() > SHORT_BYTES_MAX * 4);
        let text = format!(
            "{}\n\n{long}\n{{\"v\":1\n{}\n  \n{}",
            end("a"),
            end("b"),
            end("c")
        );
        for size in [1, 7, 1000, 65_537, text.len()] {
            // Single bytes for the short lines only, which takes long enough.
            let chunks: Vec<Vec<u8>> = match size {
                1 => {
                    let short = format!("{}\n{}", end("a"), end("b"));
                    short.bytes().map(|byte| vec![byte]).collect()
                }
                size => text.as_bytes().chunks(size).map(<[u8]>::to_vec).collect(),
            };
            let found = all(chunks).await;
            match size {
                1 => assert_eq!(found, ["a", "b"]),
                _ => {
                    assert_eq!(found.len(), 5, "{found:?}");
                    assert_eq!(
                        [&*found[0], &found[1], &found[3], &found[4]],
                        ["a", "20000 tasks", "b", "c"]
                    );
                    assert!(found[2].contains("EOF"), "{found:?}");
                }
            }
        }
    }

    #[tokio::test]
    async fn a_long_line_with_a_fault_is_refused_and_the_next_one_is_read() {
        let long = format!(
            "{{\"v\":1,\"op\":[\"{}\"]}}\n{}\n",
            "x".repeat(300_000),
            end("a")
        );
        let chunks = long.as_bytes().chunks(5000).map(<[u8]>::to_vec).collect();
        let found = all(chunks).await;
        assert!(found[0].contains("expected a string"), "{}", found[0]);
        assert_eq!(found[1..], ["a".to_owned()]);
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_line_is_not_waited_for_longer_than_a_while() {
        let chunks = stream::iter([Ok::<_, io::Error>(Bytes::from_static(b"{\"v\""))]);
        let never = chunks.chain(stream::pending());
        let mut lines = BodyLines::new(Body::from_stream(never));
        match lines.next(10, &Turns::default(), None).await {
            Err(TornLine::Refused(refused)) => assert!(refused.error.contains("does not arrive")),
            _ => panic!("it is no line"),
        }
    }
}
