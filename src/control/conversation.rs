//! Requests and answers that are streams of JSON lines, in both directions at the same time.

use crate::profile::LINE_BYTES_MAX;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use futures_util::io::{AsyncBufReadExt, AsyncReadExt};
use futures_util::stream::{self, BoxStream, IntoAsyncRead};
use futures_util::{StreamExt, TryStreamExt};
use serde::Serialize;
use std::convert::Infallible;
use std::io;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a client may take to send a line, or to receive one.
const LINE_TIMEOUT: Duration = Duration::from_secs(5);
/// Chunks of a body that wait for the other side.
const CHUNKS_QUEUED: usize = 4;
/// The media type of a stream of JSON lines.
pub(super) const NDJSON: &str = "application/x-ndjson";

/// A conversation with a client.
pub struct Conversation {
    /// The lines that the client sends.
    pub lines: Lines,
    /// The lines that are sent to the client.
    pub answer: Answers,
}

/// The lines of a body.
pub struct Lines {
    body: IntoAsyncRead<BoxStream<'static, io::Result<Bytes>>>,
    bytes_max: usize,
}

/// The lines of an answer.
#[derive(Debug, Clone)]
pub struct Answers(mpsc::Sender<Bytes>);

impl Conversation {
    /// The conversation for a request with `body`, and the response to return. The response's body ends when
    /// the conversation is dropped.
    pub(super) fn new(body: Body) -> (Self, Response) {
        let (out, answer) = queued_body();
        let conversation = Self {
            lines: Lines::new(body, LINE_BYTES_MAX),
            answer: Answers::new(out),
        };
        let response = ([("content-type", NDJSON)], answer).into_response();
        (conversation, response)
    }
}

/// A queue of chunks, and the body of them. The body ends when the queue's senders are dropped.
pub(super) fn queued_body() -> (mpsc::Sender<Bytes>, Body) {
    let (out, chunks) = mpsc::channel(CHUNKS_QUEUED);
    let chunks = stream::unfold(chunks, |mut chunks| async {
        let chunk = chunks.recv().await?;
        Some((Ok::<_, Infallible>(chunk), chunks))
    });
    (out, Body::from_stream(chunks))
}

/// Appends a line of JSON for each of `values`.
pub(super) fn write_lines<T: Serialize>(
    text: &mut Vec<u8>,
    values: &[T],
) -> serde_json::Result<()> {
    for value in values {
        serde_json::to_writer(&mut *text, value)?;
        text.push(b'\n');
    }
    Ok(())
}

impl Lines {
    /// The lines of `body`, of at most `bytes_max` bytes each.
    pub(super) fn new(body: Body, bytes_max: usize) -> Self {
        let frames = body.into_data_stream().map_err(io::Error::other).boxed();
        let body = frames.into_async_read();
        Self { body, bytes_max }
    }

    /// The next line; `None` after the last one.
    ///
    /// # Errors
    /// The line does not come in time, it is too long, or the connection fails.
    pub async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        tokio::time::timeout(LINE_TIMEOUT, self.wait()).await?
    }

    /// Waits for the next line without a time limit, because a recorded program may run for days. `None`
    /// after the last one. If the future is dropped, the part of the line that has come is lost.
    ///
    /// # Errors
    /// The line is too long (`InvalidData`), or the connection fails.
    pub async fn wait(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.body).take(self.bytes_max as u64 + 1);
        bounded.read_until(b'\n', &mut line).await?;
        if line.len() > self.bytes_max {
            let why = format!("a line has more than {} bytes", self.bytes_max);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok((!line.is_empty()).then_some(line))
    }
}

impl Answers {
    /// The lines that are sent through `chunks`.
    pub(super) fn new(chunks: mpsc::Sender<Bytes>) -> Self {
        Self(chunks)
    }

    /// Sends one value.
    ///
    /// # Errors
    /// The client is gone, or does not read.
    pub async fn send(&self, value: &serde_json::Value) -> io::Result<()> {
        self.send_all(std::slice::from_ref(value)).await
    }

    /// Sends several values, a line each, at once.
    ///
    /// # Errors
    /// As [`Answers::send`].
    pub async fn send_all<T: Serialize>(&self, values: &[T]) -> io::Result<()> {
        let mut text = Vec::new();
        write_lines(&mut text, values)?;
        let sent = tokio::time::timeout(LINE_TIMEOUT, self.0.send(text.into())).await?;
        sent.map_err(|_gone| io::ErrorKind::BrokenPipe.into())
    }

    /// Completes when the client is gone.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}
