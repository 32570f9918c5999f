//! Requests and answers that are streams of JSON lines, in both directions at the same time.

use crate::profile::LINE_BYTES_MAX;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use futures_util::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use futures_util::stream::{self, BoxStream, IntoAsyncRead};
use futures_util::{StreamExt, TryStreamExt};
use serde::Serialize;
use std::convert::Infallible;
use std::io;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a client may take to send a line, or to receive one.
const LINE_TIMEOUT: Duration = Duration::from_secs(5);
/// Chunks of an answer that wait for the client.
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

/// The lines of a request's body.
pub struct Lines(BufReader<IntoAsyncRead<BoxStream<'static, io::Result<Bytes>>>>);

/// The lines of an answer.
#[derive(Debug, Clone)]
pub struct Answers(mpsc::Sender<Bytes>);

impl Conversation {
    /// The conversation for a request with `body`, and the response to return. The response's body ends when
    /// the conversation is dropped.
    pub(super) fn new(body: Body) -> (Self, Response) {
        let (out, chunks) = mpsc::channel(CHUNKS_QUEUED);
        let chunks = stream::unfold(chunks, |mut chunks| async {
            let chunk = chunks.recv().await?;
            Some((Ok::<_, Infallible>(chunk), chunks))
        });
        let response = ([("content-type", NDJSON)], Body::from_stream(chunks));
        let frames = body.into_data_stream().map_err(io::Error::other).boxed();
        let conversation = Self {
            lines: Lines(BufReader::new(frames.into_async_read())),
            answer: Answers(out),
        };
        (conversation, response.into_response())
    }
}

impl Lines {
    /// The next line; `None` after the last one.
    ///
    /// # Errors
    /// The line does not come in time, it is too long, or the connection fails.
    pub async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        tokio::time::timeout(LINE_TIMEOUT, self.wait()).await?
    }

    /// Waits for the next line without a time limit, because a recorded program may run for days. `None`
    /// after the last one.
    ///
    /// # Errors
    /// The line is too long, or the connection fails.
    pub async fn wait(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let bound = u64::try_from(LINE_BYTES_MAX + 1).unwrap_or(u64::MAX);
        let mut bounded = (&mut self.0).take(bound);
        bounded.read_until(b'\n', &mut line).await?;
        if line.len() > LINE_BYTES_MAX {
            let why = format!("a line has more than {LINE_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok((!line.is_empty()).then_some(line))
    }
}

impl Answers {
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
        for value in values {
            serde_json::to_writer(&mut text, value)?;
            text.push(b'\n');
        }
        let sent = tokio::time::timeout(LINE_TIMEOUT, self.0.send(text.into())).await?;
        sent.map_err(|_gone| io::ErrorKind::BrokenPipe.into())
    }

    /// Completes when the client is gone.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}
