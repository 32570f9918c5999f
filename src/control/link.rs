//! The connection of a client: whether it is idle, and whether the client takes the bytes of its answers.

use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long a client may take no byte of an answer. After that its connection is closed, because the answer takes
/// memory. As long as a client may take to send a request; a process that is suspended for longer connects again.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether a connection is idle. Clones share it. It is idle unless a request is being answered, or bytes of an
/// answer wait for the client.
#[derive(Clone)]
pub(super) struct Activity(Arc<Mutex<State>>);

/// The lock is held to read or write these values only.
struct State {
    /// Answers that are being made or sent. HTTP/1.1 answers one request after the other, but a request can come
    /// before the end of the answer to the last one.
    answers: usize,
    /// `None` from the begin of an answer until its last byte is sent.
    idle_since: Option<Instant>,
}

/// An answer that is being made or sent.
pub(super) struct AnswerGuard(Activity);

impl Default for Activity {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            answers: 0,
            idle_since: Some(Instant::now()),
        })))
    }
}

impl Activity {
    /// Begins an answer.
    pub(super) fn begin(&self) -> AnswerGuard {
        let mut state = self.0.lock();
        state.answers += 1;
        state.idle_since = None;
        AnswerGuard(self.clone())
    }

    /// Returns the time since which the connection is idle, if it is.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.0.lock().idle_since
    }

    /// All bytes that were written to the connection have left this process.
    fn flushed(&self) {
        let mut state = self.0.lock();
        if state.answers == 0 && state.idle_since.is_none() {
            state.idle_since = Some(Instant::now());
        }
    }
}

impl Drop for AnswerGuard {
    /// The body has been handed to the connection, which may still have to write some of it: it is idle after the
    /// next flush.
    fn drop(&mut self) {
        self.0.0.lock().answers -= 1;
    }
}

/// A connection that fails when the client has taken no byte for [`STALL_TIMEOUT`].
pub(super) struct Link<S> {
    stream: S,
    activity: Activity,
    /// Ends when the client has stalled for too long. Counts only while `is_stalled`.
    timer: Pin<Box<Sleep>>,
    is_stalled: bool,
}

impl<S> Link<S> {
    /// Must be called within a runtime.
    pub(super) fn new(stream: S, activity: Activity) -> Self {
        Self {
            stream,
            activity,
            timer: Box::pin(tokio::time::sleep(STALL_TIMEOUT)),
            is_stalled: false,
        }
    }

    /// Limits the time of a write, given its outcome.
    fn limit<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.is_stalled = false;
            return outcome;
        }
        if !self.is_stalled {
            self.is_stalled = true;
            let end = tokio::time::Instant::now() + STALL_TIMEOUT;
            self.timer.as_mut().reset(end);
        }
        ready!(self.timer.as_mut().poll(cx));
        let why = "the client does not read its answer";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Link<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Link<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.limit(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.limit(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes the connection when it has written all that it has buffered.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        if let Poll::Ready(Ok(())) = outcome {
            self.activity.flushed();
        }
        self.limit(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.limit(cx, outcome)
    }
}
